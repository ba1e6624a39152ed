"""Jobs on gloo under torch.profiler, one rank of them slow for a reason: the verdict names the rank and the reason."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from launching import N_RANKS, Diagnosis, diagnose, run_job

from rankscope.simulate import Fault, JobSpec, Mesh, simulate

pytest.importorskip("torch")
pytestmark = pytest.mark.e2e

CULPRIT = 2
# A pause is all that a trace without Python functions shows of a rank that sleeps in every step.
CAUSES = {
    "sleep": "pause",
    "extra-work": "more-work",
    "slow-loader": "data-loading",
    "garbage": "pause",  # nothing in these traces shows what the host did meanwhile
}
CAUSES_BY_STACKS = {"sleep-with-stacks": "sleeping", "garbage-with-stacks": "garbage-collection"}


@pytest.fixture(scope="module")
def traces(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One folder of traces per case of the job."""
    folder = tmp_path_factory.mktemp("profiled")
    assert run_job("profiled_training", folder, ["--culprit", str(CULPRIT)], {}) == 0
    return folder


def first_finding(diagnosis: Diagnosis) -> dict[str, Any]:
    finding: dict[str, Any] = diagnosis.report["findings"][0]
    return finding


def found(diagnosis: Diagnosis, code: str) -> list[dict[str, Any]]:
    return [finding for finding in diagnosis.report["findings"] if finding["code"] == code]


def losses(diagnosis: Diagnosis) -> list[str]:
    """What is said to cost time, beyond hints."""
    alarming = (finding for finding in diagnosis.report["findings"] if finding["severity"] != "info")
    return [finding["title"] for finding in alarming if finding["code"].startswith(("S2", "P3"))]


@pytest.mark.parametrize(("case", "cause"), CAUSES.items())
def test_the_slow_rank_comes_first_with_its_cause(traces: Path, case: str, cause: str) -> None:
    late = first_finding(diagnose(traces / case, "--no-cache"))

    assert (late["code"], late["rule"], late["severity"]) == ("S202", "late-rank", "warning")
    assert late["ranks"] == [CULPRIT]
    assert late["evidence"]["facts"]["cause"] == cause


@pytest.mark.parametrize(("case", "cause"), CAUSES_BY_STACKS.items())
def test_python_functions_show_the_cause(traces: Path, case: str, cause: str) -> None:
    late = first_finding(diagnose(traces / case, "--stacks", "--no-cache"))

    assert (late["code"], late["ranks"]) == ("S202", [CULPRIT])
    assert late["evidence"]["facts"]["cause"] == cause


def test_a_healthy_job_raises_no_alarm(traces: Path) -> None:
    diagnosis = diagnose(traces / "healthy", "--no-cache")

    assert diagnosis.exit_code == 0
    assert losses(diagnosis) == []
    capture = diagnosis.report["capture"]
    assert (capture["ranks"], capture["world_size"]) == (list(range(N_RANKS)), N_RANKS)
    assert capture["sources"] == {"kineto": N_RANKS}


def test_junk_beside_the_traces_is_named_and_does_no_harm(traces: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(traces / "sleep", tmp_path / "job")
    whole = (folder / "rank-0.pt.trace.json").read_bytes()
    (folder / "rank-0.pt.trace.json").write_bytes(whole[: len(whole) * 3 // 4])
    (folder / "rank-7.pt.trace.json").write_bytes(b"")
    (folder / "notes.txt").write_text("rank 2 looks slow\n")

    diagnosis = diagnose(folder, "--no-cache")

    assert [(late["ranks"], late["evidence"]["facts"]["cause"]) for late in found(diagnosis, "S202")] == [
        ([CULPRIT], "pause")
    ]
    [damaged] = found(diagnosis, "D902")
    names = {Path(file["path"]).name for file in damaged["evidence"]["facts"]["files"]}
    assert names == {"rank-0.pt.trace.json", "rank-7.pt.trace.json"}


def test_a_rank_without_a_trace_is_noticed(traces: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(traces / "slow-loader", tmp_path / "job")
    (folder / "rank-1.pt.trace.json").unlink()

    diagnosis = diagnose(folder, "--no-cache")

    assert [missing["ranks"] for missing in found(diagnosis, "D907")] == [[1]]
    assert first_finding(diagnosis)["ranks"] == [CULPRIT]
    assert diagnosis.report["capture"]["world_size"] == N_RANKS


def test_profiles_and_dumps_in_one_folder_are_both_judged(traces: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(traces / "extra-work", tmp_path / "job")
    simulate(JobSpec(Mesh(dp=N_RANKS, tp=1)), Fault("skip", rank=1)).write(folder)

    diagnosis = diagnose(folder, "--no-cache", "--all")

    assert diagnosis.report["capture"]["sources"] == {"flight_recorder": N_RANKS, "kineto": N_RANKS}
    assert [(error["rule"], error["ranks"]) for error in diagnosis.errors] == [("call-skipped", [1])]
    late = [effect["ranks"] for effect in diagnosis.report["effects"] if effect["code"] == "S202"]
    assert late == [[CULPRIT]]  # the hang comes first
