"""From a folder of dumps to the answer, through the real command."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from cli.running import run_rankscope
from rankscope.simulate import Fault, JobSpec, Mesh, simulate

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def hung_job(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("hung")
    simulate(JobSpec(Mesh(dp=4, tp=2)), Fault("op", rank=5)).write(folder)
    return folder


def test_the_culprit_is_named_with_both_lines_of_code(hung_job: Path) -> None:
    done = run_rankscope(str(hung_job))
    assert done.returncode == 1, done.stderr
    assert done.stderr == ""
    first = next(line for line in done.stdout.splitlines() if line.startswith("error["))
    assert first.startswith("error[H102] (certain) rank 5 ")
    assert done.stdout.count("| ") > 2
    assert done.stdout.splitlines()[-1] == "Next: rankscope explain H102"


def test_json_names_the_same_culprit(hung_job: Path) -> None:
    done = run_rankscope(str(hung_job), "--json")
    assert done.returncode == 1, done.stderr
    finding = json.loads(done.stdout)["findings"][0]
    assert (finding["rule"], finding["ranks"]) == ("op-mismatch", [5])


def test_output_is_the_same_from_run_to_run(hung_job: Path) -> None:
    assert run_rankscope(str(hung_job), "--all").stdout == run_rankscope(str(hung_job), "--all", "--jobs", "1").stdout


def test_a_healthy_job_is_called_healthy(tmp_path: Path) -> None:
    simulate(JobSpec(Mesh(dp=2, tp=2))).write(tmp_path)
    done = run_rankscope(str(tmp_path))
    assert done.returncode == 0, done.stdout + done.stderr
    assert "No problems found." in done.stdout
    assert re.search(r"\nChecked \d+ of \d+ rules", done.stdout)
