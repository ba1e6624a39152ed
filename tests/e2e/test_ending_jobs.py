"""Real jobs that hang or fail: the first finding names rank, cause and line. `make accuracy` runs all of them."""

from __future__ import annotations

from pathlib import Path

import ending_jobs
import pytest
from collected_jobs import TORCHRUN, end, manifest_of, start_record
from launching import JOBS

from rankscope.pipeline import diagnose, load

pytest.importorskip("torch")
pytestmark = pytest.mark.e2e

JOB = str(JOBS / "ending.py")


@pytest.mark.parametrize(
    "fault", ["init", "segfault", "exit-hang", "left", "worker", "mismatch", "os-exit", "collate", "terminated"]
)
def test_rank_cause_and_line_are_named(fault: str, tmp_path: Path) -> None:
    ended = ending_jobs.record(tmp_path, fault)
    report = ending_jobs.judge(tmp_path)
    print(ended.code, *ending_jobs.shown(report), sep="\n")
    right = ending_jobs.outcome(fault, report)
    assert (right.rank, right.cause, right.line) == (True, True, True)
    assert right.further == ()


def test_a_job_ends_under_record_as_it_does_alone(tmp_path: Path) -> None:
    recorded = ending_jobs.record(tmp_path / "recorded", "segfault")
    alone = ending_jobs.run_alone(tmp_path / "alone", "segfault")
    assert (recorded.code, recorded.out) == (alone.code, alone.out)


def test_healthy_jobs_get_no_error(tmp_path: Path) -> None:
    assert ending_jobs.record(tmp_path, "worker", "--cured").code == 0
    assert [line for line in ending_jobs.shown(ending_jobs.judge(tmp_path)) if not line.startswith("info")] == []


def test_torchrun_knows_how_each_rank_ended_and_each_attempt_has_its_verdict(tmp_path: Path) -> None:
    options = ("--max-restarts", "1")
    job = [*TORCHRUN, "--nproc-per-node", "2", *options, JOB, "restarts", "--timeout", "30"]
    assert end(start_record(tmp_path / "traces", ending_jobs.OPTIONS, job)).code == 1
    codes = [rank.get("exit_code") for rank in manifest_of(tmp_path / "traces")["ranks"]]
    assert 1 in codes
    report = diagnose(load(tmp_path / "traces", jobs=1))
    print(*ending_jobs.shown(report), sep="\n")
    errors = [finding for finding in report.findings if finding.severity == "error"]
    assert [("attempt 1" in errors[0].title, errors[0].ranks)] == [(True, (1,))]
    assert "ValueError: loss is nan" in errors[0].title
    assert [each.number for each in report.capture.attempts] == [0, 1]
    assert any("attempt 2" in each.title for each in errors[1:])


def test_two_nodes_without_a_shared_disk_are_well_alone_and_together(tmp_path: Path) -> None:
    from collected_jobs import free_port

    endpoint = f"127.0.0.1:{free_port()}"
    nodes = []
    for number in range(2):
        torchrun = [*TORCHRUN[:3], "--nnodes", "2", "--node-rank", str(number), "--nproc-per-node", "1"]
        torchrun += ["--rdzv-backend", "c10d", "--rdzv-id", "5", "--rdzv-endpoint", endpoint]
        job = [*torchrun, "--local-addr", "127.0.0.1", JOB, "raise", "--cured"]
        nodes.append(start_record(tmp_path / f"node_{number}", ending_jobs.OPTIONS, job))
    assert [end(node).code for node in nodes] == [0, 0]
    for paths in ([tmp_path / "node_0"], [tmp_path / "node_1"], [tmp_path / "node_0", tmp_path / "node_1"]):
        report = diagnose(load(paths, jobs=1))
        assert [line for line in ending_jobs.shown(report) if not line.startswith("info")] == []
        assert len(report.capture.nodes) == 2
        assert sum(node.is_here for node in report.capture.nodes) == len(paths)
