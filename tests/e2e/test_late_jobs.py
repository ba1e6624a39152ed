"""Real jobs with a late rank: the first finding has rank, cause and line. `make accuracy` counts all causes."""

from __future__ import annotations

from pathlib import Path

import late_jobs
import pytest

pytest.importorskip("torch")
pytestmark = pytest.mark.e2e


@pytest.mark.parametrize("cause", ["sleep", "gc", "transfer", "lock", "compile"])
def test_rank_cause_and_line_are_named(cause: str, tmp_path: Path) -> None:
    report = late_jobs.judge(late_jobs.record(tmp_path / "job", cause, "--steps", "30"))
    right = late_jobs.outcome(cause, report)
    print(*late_jobs.alarms(report), sep="\n")
    assert (right.rank, right.cause, right.line) == (True, True, True)
    assert right.further == ()


def test_the_same_job_without_the_cause_gets_no_warning(tmp_path: Path) -> None:
    report = late_jobs.judge(late_jobs.record(tmp_path / "job", "sleep", "--steps", "30", "--cured"))
    assert late_jobs.alarms(report) == []
