"""Backends that do not record how calls end: a healthy job is no hang, and a hang rests on who has made which call."""

from __future__ import annotations

from pathlib import Path

import pytest

from rankscope.model.finding import Finding
from rankscope.pipeline import load
from read.dumps import Dump, report_of, rows_of
from read.newer_dumps import STEP, hooked_dump, write_job

WORLD = range(4)


def _job(folder: Path, dumps: dict[int, Dump]) -> Path:
    return write_job(folder, dumps)


def _findings(folder: Path) -> list[Finding]:
    return list(report_of(folder).findings)


@pytest.mark.parametrize("backend", ["ucc", "c10d", ""])
def test_a_healthy_job_is_no_hang(tmp_path: Path, backend: str) -> None:
    (note,) = _findings(_job(tmp_path, {rank: hooked_dump(STEP * 2, WORLD, backend) for rank in WORLD}))
    assert (note.code, note.severity) == ("H111", "info")
    assert note.title.startswith("the dumps do not show whether the last call, all_reduce [4,8] f32 (seq 6 of ")
    assert note.title.endswith(", completed")
    assert f"{f'backend {backend}' if backend else 'this backend'} does not record" in note.evidence.certain[1]


def test_what_counts_as_done_is_marked_as_inferred(tmp_path: Path) -> None:
    calls = rows_of(load([_job(tmp_path, {rank: hooked_dump(STEP, WORLD) for rank in WORLD})]), "collectives")
    assert {(row["status"], row["status_inferred"]) for row in calls} == {("done", True)}


@pytest.mark.parametrize("op", ["all_reduce", "broadcast"])
def test_the_rank_that_has_made_fewer_calls_is_named(tmp_path: Path, op: str) -> None:
    dumps = {rank: hooked_dump([*STEP, op, "all_reduce"], WORLD) for rank in WORLD}
    dumps[2] = hooked_dump(STEP, WORLD)
    cause, *_ = _findings(_job(tmp_path, dumps))
    assert (cause.rule, cause.ranks, cause.certainty, cause.severity) == ("rank-stuck", (2,), "likely", "error")
    assert cause.title == f"rank 2 has not made the {op} call that its 3 peers made"
    note = "backend ucc does not record whether calls complete: the verdict is based on which ranks made which calls"
    assert note in cause.evidence.notes
    assert not any("waiting in no other" in line for line in cause.evidence.certain)


def test_another_call_than_the_peers_is_certain(tmp_path: Path) -> None:
    dumps = {rank: hooked_dump([*STEP, "all_reduce"], WORLD) for rank in WORLD}
    dumps[1] = hooked_dump([*STEP, "barrier"], WORLD)
    cause, *_ = _findings(_job(tmp_path, dumps))
    assert (cause.rule, cause.ranks, cause.certainty) == ("op-mismatch", (1,), "certain")


def test_a_rank_without_a_dump_is_likely_lost(tmp_path: Path) -> None:
    cause, *_ = _findings(_job(tmp_path, {rank: hooked_dump(STEP, WORLD) for rank in (0, 1, 3)}))
    assert (cause.rule, cause.ranks, cause.certainty) == ("rank-lost", (2,), "likely")


def test_a_call_that_is_not_let_go_of_has_not_returned(tmp_path: Path) -> None:
    """Such a backend blocks in the call itself, or threw: the recorder was not told that it was issued."""
    dumps = {rank: hooked_dump([*STEP, "all_reduce"], WORLD) for rank in WORLD}
    for dump in dumps.values():
        dump["entries"][-1]["retired"] = False
    cause, *_ = _findings(_job(tmp_path, dumps))
    assert (cause.rule, cause.certainty) == ("collective-stalled", "likely")


def test_a_backend_that_tells_completions_is_read_as_ever(tmp_path: Path) -> None:
    """nccl2 has the completion hook: what is not completed there has not completed."""
    dumps = {rank: hooked_dump([*STEP, "all_reduce"], WORLD, "nccl2") for rank in WORLD}
    dumps[2] = hooked_dump(STEP, WORLD, "nccl2")
    for dump in dumps.values():
        for entry in dump["entries"]:
            is_done = entry["record_id"] < len(STEP)
            entry.update(state="completed" if is_done else "scheduled", retired=is_done)
    cause, *_ = _findings(_job(tmp_path, dumps))
    assert (cause.rule, cause.ranks, cause.certainty) == ("rank-stuck", (2,), "certain")


def test_receives_from_anyone_are_no_hang(tmp_path: Path) -> None:
    dumps = {0: hooked_dump([*STEP, "send 0->1"], [0, 1]), 1: hooked_dump([*STEP, "recv 1<-?"], [0, 1])}
    assert {finding.severity for finding in _findings(_job(tmp_path, dumps))} == {"info"}
