"""torch._logging.set_logs in a job's own code: what it turns on is kept for each rank, and the job notices nothing."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import pytest
from collected_jobs import Ended, Script, collected, environment, run_scripts

from rankscope.collect.settings import Settings
from rankscope.pipeline import load

pytest.importorskip("torch")
pytestmark = pytest.mark.e2e

JOB = "sets_logs"
# What differs from one run to the next: date, process and durations.
_RUN = re.compile(r"^([VIWE])\d{4} [\d:.]+ \d+ |[\d.]+(?:e-\d+)? ?(?:us|ms|s)\b|0x[0-9a-f]+|\d+\.\d{3,}", re.MULTILINE)
# Of the compile log, which without the collector goes nowhere.
_OF_COMPILE_LOG = re.compile(r".*(?:LazyTraceHandler|tlparse raw data).*\n")
# Dynamo's sums, which it logs when the process ends: after the collector here, where it was imported before.
_AT_EXIT = re.compile(r".*torch/_dynamo/(?:eval_frame.py:7\d\d|utils.py:9\d\d)\].*\n")


class Jobs(NamedTuple):
    without: Ended
    of_ranks: tuple[Ended, Ended]  # the second one with names given to the collector, too
    folder: Path

    def logged(self, rank: int, folder: str = "t") -> str:
        return (self.folder / folder / f"torch_logs_{rank}.txt").read_text()


@pytest.fixture(scope="module")
def jobs(tmp_path_factory: pytest.TempPathFactory) -> Jobs:
    scratch = tmp_path_factory.mktemp("set_logs")

    def script(folder: str, logs: str, **more: str) -> Script:
        settings = Settings(str(scratch / folder), "test", False, False, False, False, False, logs=logs)
        return Script(JOB, (), collected(settings, environment(**more)))

    def rank(number: int) -> Mapping[str, str]:
        return {"RANK": str(number), "LOCAL_RANK": str(number), "WORLD_SIZE": "2"}

    scripts = [Script(JOB, ()), script("t", "", **rank(0)), script("t", "guards,recompiles", **rank(1))]
    without, first, second = run_scripts(scratch, scripts)
    (scratch / "alone").mkdir()
    (alone,) = run_scripts(scratch / "alone", [script("alone", "")])
    assert alone.code == 0
    return Jobs(without, (first, second), scratch)


def shown(text: str) -> str:
    return _RUN.sub(r"\1", _AT_EXIT.sub("", _OF_COMPILE_LOG.sub("", text)))


@pytest.mark.parametrize("rank", [0, 1])
def test_the_job_ends_and_prints_as_without(jobs: Jobs, rank: int) -> None:
    with_it = jobs.of_ranks[rank]
    assert (with_it.code, with_it.out) == (jobs.without.code, jobs.without.out) == (0, "")
    assert shown(with_it.err) == shown(jobs.without.err)
    assert with_it.err.count("[__graph_breaks] Graph break in user code") == 1
    assert "own handler: torch._dynamo.symbolic_convert.__graph_breaks" in with_it.err


def test_what_each_call_turns_on_is_in_the_file_of_the_rank(jobs: Jobs) -> None:
    """Line by line what torch's own handlers show."""
    printed = [line for line in shown(jobs.without.err).splitlines() if re.match(r"[VIWE]torch/|[VIWE]\S+\.py:", line)]
    assert shown(jobs.logged(0)).splitlines() == printed
    assert len(printed) > 40


def test_names_given_to_the_collector_come_on_top(jobs: Jobs) -> None:
    logged = jobs.logged(1)
    assert logged.count("Graph break in user code") == 1  # as set_logs asked for
    assert logged.count("[__guards] GUARDS:") == 3 * 5  # under each choice, also when the job had turned all off
    assert logged.count("[__recompiles] Recompiling function twice") == 5
    assert "create_symbol" in logged
    assert logged.count("the choice was") == 1


def test_without_ranks_in_the_environment(jobs: Jobs) -> None:
    """It is known to be a rank only at its end."""
    assert shown(jobs.logged(0, "alone")) == shown(jobs.logged(0))


def test_the_files_are_read(jobs: Jobs) -> None:
    trace = load([jobs.folder / "t"])
    sources = trace.table("compile_logs").text("source").tolist()
    assert sorted(sources) == ["text", "text", "trace", "trace"]
    assert set(trace.table("graph_breaks").array("rank").tolist()) == {0, 1}
