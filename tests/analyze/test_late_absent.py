"""All traced ranks wait: the one that they wait for was not traced."""

from __future__ import annotations

from pathlib import Path

import pytest

import rankscope
from analyze.device_tables import findings
from rankscope.model.finding import Finding
from rankscope.pipeline import diagnose
from rankscope.simulate.profiler import ProfileFault, ProfileSpec, simulate_profile

SPEC = ProfileSpec(data_parallel=4, ranks_per_host=2, n_layers=4, n_microbatches=2, n_steps=6)
LATE = 2


def write(folder: Path, kind: str | None, absent: int = LATE) -> Path:
    simulate_profile(SPEC, ProfileFault(kind, rank=LATE) if kind else None).write(folder, gzip=False)
    [trace] = [path for path in folder.rglob("*") if path.is_file() and f"_{absent}." in path.name]
    trace.unlink()
    return folder


def found(folder: Path) -> list[Finding]:
    return findings(rankscope.load(folder, jobs=1), "S205")


@pytest.mark.parametrize("kind", ["data-loading", "garbage-collection"])
def test_the_rank_without_a_trace_is_the_headline(kind: str, tmp_path: Path) -> None:
    report = diagnose(rankscope.load(write(tmp_path, kind), jobs=1))
    first = report.findings[0]
    assert (first.code, first.ranks, first.evidence.facts["absent"]) == ("S205", (), [LATE])
    assert not {"P302", "D907"} & {finding.code for finding in report.findings}
    assert "for one that is not here: rank 2" in first.title


@pytest.mark.parametrize(("kind", "absent"), [(None, 2), ("data-loading", 0), ("garbage-collection", 3)])
def test_a_healthy_job_and_a_late_rank_that_is_here_say_nothing(kind: str | None, absent: int, tmp_path: Path) -> None:
    assert found(write(tmp_path, kind, absent)) == []
