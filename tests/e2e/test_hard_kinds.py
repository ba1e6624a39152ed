"""Real jobs on gloo of kinds that are easily misread: the culprit is named, and the twin in order gets no error."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pytest
from collected_jobs import Script, collected, environment, free_port, run_scripts
from launching import N_RANKS, code_site, diagnose, run_job

from rankscope.collect.settings import Settings

pytest.importorskip("torch")
pytestmark = pytest.mark.e2e

JOB, IMPORTED = "hard_kinds", "torch.distributed.pipelining"
HOUR_NS = 3600 * 10**9


def run(folder: Path, kinds: str, fault: str = "none", culprit: int = -1) -> int:
    folder.mkdir(exist_ok=True)
    return run_job(JOB, folder, ["--fault", fault, "--culprit", str(culprit)], {"KINDS": kinds}, IMPORTED)


def run_collected(scratch: Path, kinds: str, fault: str = "none", culprit: int = -1, desync: bool = True) -> Path:
    """Under the collector, which records the transfers that gloo's own recorder leaves out."""
    traces, master_port = scratch / "traces", free_port()
    settings = Settings(
        folder=str(traces),
        stall_seconds=2.0,
        desync=desync,
        kineto=False,
        execution_trace=False,
        metrics=False,
        compile_log=False,
    )
    arguments = ["--dumps", str(traces), "--fault", fault, "--culprit", str(culprit)]
    scripts = []
    for rank in map(str, range(N_RANKS)):
        given = environment(RANK=rank, LOCAL_RANK=rank, WORLD_SIZE=str(N_RANKS), MASTER_PORT=master_port, KINDS=kinds)
        scripts.append(Script(JOB, arguments, collected(settings, given)))
    run_scripts(scratch, scripts, IMPORTED)
    return traces


def test_groups_made_again_uneven_sizes_and_several_roles_are_in_order(tmp_path: Path) -> None:
    assert run(tmp_path, "generations uneven groups arguments") == 0
    diagnosis = diagnose(tmp_path)
    assert (diagnosis.exit_code, diagnosis.report["findings"]) == (0, [])


def test_a_hang_in_a_group_that_was_made_again_beside_a_stale_dump(tmp_path: Path) -> None:
    hung, older = tmp_path / "hung", tmp_path / "older"
    run(hung, "generations", "stuck-in-second-generation", 2)
    diagnosis = diagnose(hung)
    (error,) = diagnosis.errors
    assert (error["rule"], error["ranks"], error["collective"]["seq"]) == ("rank-stuck", [2], 8)
    assert error["peer_location"] == code_site(JOB, "average_phase", "dist.all_reduce(gradients, group=group)")

    # The dump that rank 3 left an hour before, in a run that was in order.
    assert run(older, "generations") == 0
    name = "nccl_trace_rank_3"
    (hung / name).write_bytes(pickle.dumps(_an_hour_older(pickle.loads((older / name).read_bytes())), 2))
    diagnosis = diagnose(hung)
    (error,) = diagnosis.errors
    assert (error["rule"], error["ranks"]) == ("rank-stuck", [2])
    assert [(each["code"], each["ranks"]) for each in diagnosis.report["findings"][1:]] == [("D911", [3])]


def _an_hour_older(dump: dict[str, Any]) -> dict[str, Any]:
    for entry in dump["entries"]:
        entry["time_created_ns"] -= HOUR_NS
    return dump


def test_a_job_in_order_that_is_dumped_rank_after_rank_gets_no_error(tmp_path: Path) -> None:
    """Defect: "rank 0 never reached the all_reduce that 3 peers are waiting in", for certain."""
    assert run(tmp_path, "moments") == 0
    diagnosis = diagnose(tmp_path)
    assert (diagnosis.exit_code, diagnosis.errors) == (0, [])
    assert [(each["code"], each["ranks"]) for each in diagnosis.report["findings"]] == [("D911", [0, 1, 2])]


def test_groups_made_in_another_order_on_one_rank(tmp_path: Path) -> None:
    """Defect: "all 1 ranks of group 2 (dp) joined all_reduce: a device or the network is at fault"."""
    run(tmp_path, "groups", "other-group-order", 2)
    diagnosis = diagnose(tmp_path)
    (error,) = diagnosis.errors
    assert (error["rule"], error["ranks"]) == ("group-order", [2])
    assert (
        error["title"] == 'rank 2 created the process groups in a different order: "dp" is group 2 there, not group 1'
    )
    assert error["location"] == code_site(JOB, "groups_in_order", 'group=groups["dp"]')


def test_a_broadcast_from_another_root_is_not_blamed_on_the_network_alone(tmp_path: Path) -> None:
    """Defect: "all 4 ranks joined broadcast, but it does not complete", where two had moved on: a device, certainly."""
    run(tmp_path, "arguments", "other-root", 1)
    (error,) = diagnose(tmp_path).errors
    assert (error["rule"], error["certainty"]) == ("collective-stalled", "likely")
    assert 1 in error["ranks"]
    assert "passed a different src or dst" in error["evidence"]["likely"][0]
    assert error["help"].startswith("print the src or dst that each rank passes here")
    assert error["location"] == code_site(JOB, "arguments", "dist.broadcast")


def test_a_rank_that_passes_the_wrong_group_is_told_from_its_victim(tmp_path: Path) -> None:
    """Defect: both were named for certain, and the table said that all came from the same line."""
    run(tmp_path, "arguments", "other-group", 3)
    (error,) = diagnose(tmp_path).errors
    assert (error["rule"], error["ranks"], error["certainty"]) == ("order-deadlock", [3], "likely")
    assert error["location"] == code_site(JOB, "arguments", "dist.all_reduce(torch.ones(16))")


def test_a_transfer_that_the_recorder_does_not_show_is_seen_in_the_stacks(tmp_path: Path) -> None:
    """Defect: ranks in send and recv "are not waiting in another call", for certain."""
    (error,) = diagnose(run_collected(tmp_path, "arguments", "other-tag", 1, desync=False)).errors
    assert (error["rule"], error["ranks"]) == ("rank-stuck", [0, 1])
    certain = " ".join(error["evidence"]["certain"])
    assert "inside send (distributed_c10d.py" in certain
    assert "inside recv (distributed_c10d.py" in certain
    assert "are not waiting in another one that was recorded" in certain


def test_pipelines_are_in_order(tmp_path: Path) -> None:
    diagnosis = diagnose(run_collected(tmp_path, "gpipe 1f1b interleaved"))
    assert (diagnosis.exit_code, diagnosis.report["findings"]) == (0, [])
    assert diagnosis.report["capture"]["n_calls"] > 1000


@pytest.mark.parametrize(
    ("kind", "fault", "culprit", "verdict"),
    [
        ("1f1b", "no-send", 1, "rank 1 skipped its send to rank 2 in run (hard_kinds.py:"),
        ("gpipe", "no-recv", 2, "rank 2 skipped its receive from rank 1 in run (hard_kinds.py:"),
        ("interleaved", "no-send", 1, "rank 1 skipped its send to rank 2 in run (hard_kinds.py:"),
    ],
)
def test_a_stage_that_leaves_out_a_transfer(tmp_path: Path, kind: str, fault: str, culprit: int, verdict: str) -> None:
    diagnosis = diagnose(run_collected(tmp_path, kind, fault, culprit))
    (error,) = diagnosis.errors
    assert (error["rule"], error["ranks"]) == ("p2p-unmatched", [culprit])
    assert error["title"].startswith(verdict)
    assert error["location"]["file"].endswith("hard_kinds.py")
