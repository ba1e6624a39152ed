"""What the launcher makes of a job whose ranks could not finish their files."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from rankscope.collect import manifest
from rankscope.collect.launching import leftovers
from rankscope.commands.record_summary import summary_lines

RUN = {"id": "1", "command": ["python"], "started_ns": 1, "ended_ns": 9, "exit_code": -9}


@pytest.fixture
def dead_pid() -> int:
    process = subprocess.Popen([sys.executable, "-S", "-c", ""])
    process.wait()
    return process.pid


def write_part(folder: Path, rank: int, pid: int, **changed: Any) -> None:
    part = {"rank": rank, "host": socket.gethostname(), "pid": pid, "ended_ns": None, "got": [], "problems": []}
    manifest.write_part(folder, rank, {**part, **changed})


def read_part(folder: Path, rank: int) -> dict[str, Any]:
    return next(part for part in manifest.read_parts(folder) if part["rank"] == rank)


def test_a_killed_rank_is_told_and_its_lines_are_kept(tmp_path: Path, dead_pid: int) -> None:
    write_part(tmp_path, 0, dead_pid)
    (tmp_path / f"metrics_0.jsonl.{dead_pid}.partial").write_text('{"a": 1}\n{"b": 2}\n{"c"')
    (tmp_path / f"kineto_trace_0.json.{dead_pid}.partial").write_text("{")
    (tmp_path / "nccl_trace_rank_0").write_bytes(b"x" * 5)
    leftovers.finish(tmp_path, RUN)
    assert (tmp_path / "metrics_0.jsonl").read_text() == '{"a": 1}\n{"b": 2}\n'
    part = read_part(tmp_path, 0)
    assert [(got["what"], got["file"], got["n_bytes"]) for got in part["got"]] == [
        ("metrics", "metrics_0.jsonl", 18),
        ("recorder", "nccl_trace_rank_0", 5),
    ]
    assert [record["problem"] for record in part["problems"]] == [leftovers.KILLED]
    assert part["ended_ns"] is not None
    whole = json.loads((tmp_path / manifest.NAME).read_text())
    assert whole["run"] == RUN
    assert [rank["got"] for rank in whole["ranks"]] == [part["got"]]


def test_launchers_of_several_nodes_tell_one_run(tmp_path: Path) -> None:
    for started, code in ((5, 0), (3, 7), (4, 0)):
        leftovers.finish(tmp_path, {**RUN, "started_ns": started, "exit_code": code})
    whole = json.loads((tmp_path / manifest.NAME).read_text())
    assert (whole["run"]["started_ns"], whole["run"]["exit_code"]) == (3, 7)
    leftovers.finish(tmp_path, {**RUN, "id": "2", "exit_code": 0})
    assert json.loads((tmp_path / manifest.NAME).read_text())["run"]["exit_code"] == 0


def test_a_rank_that_ended_by_itself_stays_as_it_is(tmp_path: Path, dead_pid: int) -> None:
    write_part(tmp_path, 0, dead_pid, ended_ns=5, got=[{"what": "stacks", "file": "stacks_0.txt", "n_bytes": 3}])
    (tmp_path / "stacks_0.txt").write_text("abc")
    before = read_part(tmp_path, 0)
    leftovers.finish(tmp_path, RUN)
    assert read_part(tmp_path, 0) == before
    assert leftovers.unfinished(tmp_path) == []


def test_ranks_of_other_nodes_and_those_that_still_run_are_left_alone(tmp_path: Path, dead_pid: int) -> None:
    write_part(tmp_path, 0, dead_pid)
    write_part(tmp_path, 1, dead_pid, host="elsewhere")
    (tmp_path / "attempt_1").mkdir()
    write_part(tmp_path / "attempt_1", 2, os.getpid())
    leftovers.finish(tmp_path, RUN)
    assert leftovers.unfinished(tmp_path) == [1, 2]


def test_a_file_that_is_there_already_is_not_overwritten(tmp_path: Path, dead_pid: int) -> None:
    write_part(tmp_path, 0, dead_pid)
    (tmp_path / "metrics_0.jsonl").write_text("whole\n")
    (tmp_path / f"metrics_0.jsonl.{dead_pid}.partial").write_text("late\n")
    leftovers.finish(tmp_path, RUN)
    assert (tmp_path / "metrics_0.jsonl").read_text() == "whole\n"


def test_the_summary_counts_ranks_and_joins_equal_problems(tmp_path: Path) -> None:
    problem = {"what": "debug_server", "problem": "no port", "hint": "choose another"}
    for rank in range(3):
        got = [{"what": "kineto", "file": f"kineto_trace_{rank}.json", "n_bytes": 1500}]
        got += [{"what": "nsys", "file": "nsys_0.sqlite", "n_bytes": 3}] if rank == 0 else []
        write_part(tmp_path, rank, 1, ended_ns=1, got=got, problems=[problem] if rank else [])
    assert list(summary_lines(tmp_path, with_problems=True)) == [
        f"collected into {tmp_path}",
        "  kineto  3 ranks, 3 files, 4.5 KB",
        "  nsys    1 rank, 1 file, 3 bytes",
        "  problem with debug server on ranks 1,2: no port",
        "    = fix: choose another",
    ]
    assert len(list(summary_lines(tmp_path, with_problems=False))) == 3


def test_a_job_that_nobody_could_watch(tmp_path: Path) -> None:
    (tmp_path / "startup_failure_7.txt").write_text("Traceback\nRuntimeError: broken\n")
    failure, nothing, why = summary_lines(tmp_path, with_problems=True)
    assert failure.startswith("the collector could not start in process 7: RuntimeError: broken")
    assert nothing.startswith("nothing was collected")
    assert "PYTHONPATH" in why
