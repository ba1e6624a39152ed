"""Which logs are of one run of the job; what forked children and unranked processes take from the others."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rankscope.analyze.compile.runs import runs_of
from rankscope.model.tables import MISSING, Trace
from rankscope.pipeline import load
from rankscope.simulate.compile_log import TRAIN, LogBuilder, Site, ids_of, log_name

Row = dict[str, Any]
SECOND = 10**9


def log(rank: int, first_s: int, last_s: int, file_id: int = 0) -> Row:
    times = {"first_ns": first_s * SECOND, "last_ns": last_s * SECOND}
    return {"file_id": file_id, "rank": rank, "n_unresolved": 0, **times}


@pytest.mark.parametrize(
    ("logs", "runs"),
    [
        ([], []),
        ([log(0, 0, 10)], [0]),
        ([log(0, 0, 10), log(1, 1, 9), log(2, 3, 12)], [0, 0, 0]),
        ([log(0, 0, 10), log(0, 20, 30)], [0, 1]),
        ([log(0, 20, 30), log(0, 0, 10)], [1, 0]),
        ([log(0, 0, 10), log(1, 1, 9), log(0, 20, 30), log(1, 22, 28)], [0, 0, 1, 1]),
        ([log(0, 0, 10), log(0, 5, 7)], [0, 0]),
        ([log(0, 0, 10), log(0, 20, 30), log(1, 24, 26)], [0, 1, 1]),
        ([log(0, 0, 10), log(0, 20, 30), log(0, 40, 50)], [0, 1, 2]),
        ([log(MISSING, 0, 10), log(MISSING, 20, 30)], [0, 1]),
    ],
    ids=[
        "nothing",
        "one log",
        "three ranks",
        "a restart",
        "found in another order",
        "two ranks restarted",
        "a forked child",
        "a rank that joined later",
        "three runs",
        "without ranks",
    ],
)
def test_logs_of_one_rank_that_do_not_overlap_are_of_different_runs(logs: list[Row], runs: list[int]) -> None:
    assert runs_of(logs) == runs


def logs_by_path(trace: Trace) -> dict[str, Row]:
    paths = {row["file_id"]: Path(row["path"]).name for row in trace.table("files").rows()}
    return {paths[row["file_id"]]: row for row in trace.table("compile_logs").rows()}


def test_both_logs_of_a_restarted_rank_are_kept(tmp_path: Path) -> None:
    """Elastic restarts leave two files of one rank: neither may hide the other."""
    LogBuilder(0, at="2026-11-16 06:00:00").start("0/0").metrics("0/0").write(tmp_path, log_name(0, "zzzzzzzz"))
    LogBuilder(0, at="2026-11-16 07:00:00").start("0/0").metrics("0/0").write(tmp_path, log_name(0, "aaaaaaaa"))

    trace = load(tmp_path, jobs=1)

    logs = logs_by_path(trace)
    assert {name: (row["rank"], row["run"]) for name, row in logs.items()} == {
        log_name(0, "zzzzzzzz"): (0, 0),
        log_name(0, "aaaaaaaa"): (0, 1),
    }
    assert len(trace.table("compilations")) == 2
    assert set(trace.table("files").text("status").tolist()) == {"read"}


def test_several_runs_in_one_folder_are_told_apart(tmp_path: Path) -> None:
    for run, hour in enumerate((6, 9, 12)):
        for rank in range(2):
            LogBuilder(rank, at=f"2026-11-16 {hour:02}:00:00").chromium("dynamo").wait(60).start("0/0").write(
                tmp_path, log_name(rank, f"run{run}_xxx")
            )

    logs = logs_by_path(load(tmp_path, jobs=1))

    assert {name: row["run"] for name, row in logs.items()} == {
        log_name(rank, f"run{run}_xxx"): run for run in range(3) for rank in range(2)
    }


def test_two_runs_of_a_job_without_ranks_are_both_rank_0(tmp_path: Path) -> None:
    for hour in (6, 9):
        name = log_name(None, f"abc{hour}defg")
        LogBuilder(at=f"2026-11-16 {hour:02}:00:00").chromium("dynamo").start().write(tmp_path, name)

    logs = load(tmp_path, jobs=1).table("compile_logs").rows()

    assert sorted((row["run"], row["rank"]) for row in logs) == [(0, 0), (1, 0)]


def test_a_log_that_tells_no_rank_among_others_that_do_is_of_no_rank(tmp_path: Path) -> None:
    """Nobody can tell whose it is: it must not be taken for rank 0."""
    for rank in range(2):
        LogBuilder(rank).chromium("dynamo").start().write(tmp_path)
    LogBuilder().chromium("dynamo").start().write(tmp_path, log_name(None, "launcher"))

    logs = logs_by_path(load(tmp_path, jobs=1))

    assert {name: row["rank"] for name, row in logs.items()} == {
        log_name(0): 0,
        log_name(1): 1,
        log_name(None, "launcher"): MISSING,
    }


def test_a_child_takes_its_file_names_from_the_process_it_was_forked_from(tmp_path: Path) -> None:
    """Torch does not tell the strings of the parent again in the child's file."""
    parent = LogBuilder(0, pid=100).chromium("dynamo").start(sites=[Site(TRAIN, 30, "forward")]).wait(60).metrics()
    parent.write(tmp_path, log_name(0, "parent_a"))
    frames = [{"line": 41, "name": "loader", "filename": parent.strings[TRAIN]}]
    child = LogBuilder(0, at="2026-11-16 06:18:30", pid=101).chromium("dynamo")
    child.record("dynamo_start", {"stack": frames}, **ids_of("1/0")).write(tmp_path, log_name(0, "child_xy"))

    trace = load(tmp_path, jobs=1)

    logs = logs_by_path(trace)
    assert logs[log_name(0, "child_xy")]["n_unresolved"] == 1
    assert logs[log_name(0, "child_xy")]["run"] == logs[log_name(0, "parent_a")]["run"]
    stacks = {row["line"]: row["file"] for row in trace.table("compile_stacks").rows()}
    assert stacks == {30: TRAIN, 41: TRAIN}
    unfinished = [row for row in trace.table("compilations").rows() if row["compile_id"] == "1/0"]
    assert [(row["file"], row["line"]) for row in unfinished] == [(TRAIN, 41)]


def test_a_child_that_writes_after_its_parent_fell_silent_is_of_the_same_run(tmp_path: Path) -> None:
    """Names that its own file does not tell give away that it was forked."""
    parent = LogBuilder(0, pid=100).chromium("dynamo").start(sites=[Site(TRAIN, 30, "forward")]).metrics()
    parent.write(tmp_path, log_name(0, "parent_a"))
    child = LogBuilder(0, at="2026-11-16 06:20:00", pid=101).chromium("dynamo")
    frames = {"stack": [{"line": 41, "name": "loader", "filename": parent.strings[TRAIN]}]}
    child.record("dynamo_start", frames, **ids_of("1/0")).write(tmp_path, log_name(0, "child_xy"))

    trace = load(tmp_path, jobs=1)

    assert trace.table("compile_logs").array("run").tolist() == [0, 0]
    assert set(trace.table("compile_stacks").text("file").tolist()) == {TRAIN}


def test_a_child_takes_no_names_from_another_rank(tmp_path: Path) -> None:
    for rank in range(2):
        own = LogBuilder(rank, pid=100 + rank).chromium("dynamo").start(sites=[Site(f"/job/r{rank}.py", 3, "f")])
        own.wait(60).metrics().write(tmp_path, log_name(rank, "parent_a"))
    child = LogBuilder(1, at="2026-11-16 06:18:30", pid=300).chromium("dynamo")
    frames = {"stack": [{"line": 41, "name": "loader", "filename": 0}]}
    child.record("dynamo_start", frames, **ids_of("1/0")).write(tmp_path, log_name(1, "child_xy"))

    stacks = load(tmp_path, jobs=1).table("compile_stacks").rows()

    assert [row["file"] for row in stacks if row["line"] == 41] == ["/job/r1.py"]


def test_a_file_name_that_nobody_knows_is_said_to_be_unknown(tmp_path: Path) -> None:
    frames = {"stack": [{"line": 41, "name": "loader", "filename": 5}]}
    LogBuilder(0).record("dynamo_start", frames, **ids_of("0/0")).write(tmp_path)

    trace = load(tmp_path, jobs=1)

    assert trace.table("compile_logs").array("n_unresolved").tolist() == [1]
    [row] = trace.table("compile_stacks").rows()
    assert (row["function"], row["line"]) == ("loader", 41)
    assert "5" in row["file"]
