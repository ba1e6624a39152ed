"""Ranks that hang or die leave dumps that name the culprit: real gloo jobs, collected from inside."""

from __future__ import annotations

import json
import re
import signal
from pathlib import Path
from typing import NamedTuple

import pytest
from launching import JOB_ENVIRONMENT, N_RANKS, Started, diagnose, run_forked

from rankscope.collect.native.frames import prepare

pytestmark = pytest.mark.e2e

ALL_RANKS = range(N_RANKS)


class Ended(NamedTuple):
    codes: list[int]
    printed: str
    folder: Path

    def names(self) -> set[str]:
        return {path.name for path in self.folder.iterdir() if not path.name.endswith(".partial")}

    def reasons(self, rank: int) -> list[str]:
        return re.findall(r"reason: (.*) ===$", self.stacks(rank), re.MULTILINE)

    def stacks(self, rank: int) -> str:
        return (self.folder / f"stacks_{rank}.txt").read_text()


def run(tmp_path: Path, *arguments: str) -> Ended:
    folder, output = tmp_path / "traces", tmp_path / "output.txt"
    started = Started("dumping", ["--dumps", str(folder), *arguments], JOB_ENVIRONMENT, N_RANKS, output)
    codes = run_forked(started)
    print(output.read_text(errors="replace"))
    return Ended(codes, output.read_text(errors="replace"), folder)


def dumps_of(*ranks: int) -> set[str]:
    return {f"nccl_trace_rank_{rank}" for rank in ranks}


def stacks_of(*ranks: int) -> set[str]:
    return {f"stacks_{rank}.txt" for rank in ranks}


MANIFEST = {"manifest.json", "manifest.d"}


def test_a_job_that_ends_well_leaves_its_calls_and_no_stacks(tmp_path: Path) -> None:
    ended = run(tmp_path)
    assert ended.codes == [0] * N_RANKS  # torch's compiler was not imported for the dump, either
    assert ended.names() == dumps_of(*ALL_RANKS) | MANIFEST
    assert diagnose(ended.folder).errors == []


def test_a_rank_sleeps_for_ever(tmp_path: Path) -> None:
    ended = run(tmp_path, "--fault", "sleep", "--rank", "2", "--stall", "2", "--timeout", "5")
    stall = "no collective has finished for 2 s"
    for rank in ALL_RANKS:
        files = f"stacks_{rank}.txt, nccl_trace_rank_{rank}"
        assert f"rankscope: rank {rank}: {stall}: wrote {files} to {ended.folder}\n" in ended.printed
        assert ended.reasons(rank)[0] == stall
    assert ended.reasons(2) == [stall]
    assert "in load_batch_for_ever\n" in ended.stacks(2)
    assert "in average\n" in ended.stacks(0)
    # gloo's own, on the rank that gives up first; the dump of the stall stays, as there the call waits
    assert any("Timed out" in ended.reasons(rank)[1] for rank in ALL_RANKS if rank != 2)
    (error,) = diagnose(ended.folder).errors
    assert (error["rule"], error["ranks"]) == ("rank-stuck", [2])


def test_a_rank_raises(tmp_path: Path) -> None:
    ended = run(tmp_path, "--fault", "raise", "--rank", "1")
    assert ended.codes == [1] * N_RANKS
    assert ended.names() == dumps_of(*ALL_RANKS) | stacks_of(*ALL_RANKS) | MANIFEST
    assert ended.reasons(1) == ["ValueError: loss is nan"]
    assert "\n  File" in ended.stacks(1)
    assert "in fail\n" in ended.stacks(1)
    assert "[rank1]: ValueError: loss is nan" in ended.printed
    (error,) = diagnose(ended.folder).errors
    assert error["ranks"] == [1]


def test_a_rank_is_killed(tmp_path: Path) -> None:
    ended = run(tmp_path, "--fault", "kill", "--rank", "1")
    assert ended.codes == [1, -signal.SIGKILL, 1, 1]
    assert ended.names() == dumps_of(0, 2, 3) | stacks_of(0, 2, 3) | MANIFEST
    (error,) = diagnose(ended.folder).errors
    assert (error["rule"], error["ranks"]) == ("rank-lost", [1])


def test_signals_while_ranks_wait_in_gloo(tmp_path: Path) -> None:
    ended = run(tmp_path, "--fault", "signals", "--rank", "2")
    assert ended.codes == [-signal.SIGTERM, 1, -signal.SIGTERM, 1]
    assert ended.reasons(0) == ended.reasons(2) == ["SIGUSR2", "SIGTERM"]
    assert all(ended.reasons(rank)[0] == "SIGUSR2" for rank in ALL_RANKS)
    assert all("in average\n" in ended.stacks(rank) for rank in (0, 1, 3))
    assert "in ask_all_then_end_two\n" in ended.stacks(2)
    (error,) = diagnose(ended.folder).errors
    assert (error["rule"], error["ranks"]) == ("rank-stuck", [2])


def test_a_snapshot_while_ranks_wait_in_gloo_shows_where_and_changes_nothing(tmp_path: Path) -> None:
    ended = run(tmp_path, "--fault", "snapshot", "--rank", "2")
    assert ended.codes == [0] * N_RANKS, "the job goes on to its end"
    answer = json.loads((tmp_path / "snapshot.json").read_text())
    assert answer["live"]["silent"] == []
    assert answer["live"]["progress"]["verdict"] == "hung"
    (error,) = (finding for finding in answer["findings"] if finding["severity"] == "error")
    assert (error["rule"], error["ranks"]) == ("rank-stuck", [2])
    for rank in ALL_RANKS:
        assert ended.reasons(rank) == ["asked by rankscope snapshot"] * 2
    if not prepare():
        for rank in (0, 1, 3):
            frames = re.findall(r"^#\d+ (.*) from (.*):(\d+)$", ended.stacks(rank), re.MULTILINE)
            functions = [function for function, _, _ in frames]
            assert any(function.startswith("c10d::Work::wait(") for function in functions), functions
            assert functions.index("average") > next(at for at, name in enumerate(functions) if "c10d::" in name)
    assert ended.names() == dumps_of(*ALL_RANKS) | stacks_of(*ALL_RANKS) | MANIFEST
