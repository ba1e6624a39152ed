"""Ends that no main thread shows: a helper thread, an exception that a framework caught, SIGTERM to one rank."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from analyze.building import found, job, root_cause
from analyze.test_ended_well import recorded
from analyze.test_ending import CALL, CLOSED, FAILED, INIT, errors, short
from analyze.test_stack_rules import LOADING, SAVING, STALL, WAITING, Look, stacks_alone, stuck_job, with_stacks
from rankscope.analyze import run_rules
from rankscope.model.finding import Location
from rankscope.model.source_text import loops_around
from rankscope.model.tables import Table, Trace

DIED = "OSError: cannot open shard 3 (in thread prefetch)"
LOST = "rank 2 lost its thread prefetch to OSError: cannot open shard 3; it never reached the all_reduce"


def with_thread(trace: Trace) -> Trace:
    """The threads beside the main one are called prefetch, and raised where a reason says so."""
    rows = list(trace.table("thread_stacks").rows())
    named = [row if row["is_main"] else {**row, "thread_name": "prefetch"} for row in rows]
    raised = [{**row, "is_current": row["reason"] == DIED and not row["is_main"]} for row in named]
    return Trace(trace.paths, {**trace.tables, "thread_stacks": Table.from_rows("thread_stacks", raised)})


def test_the_thread_whose_exception_keeps_a_rank_waiting_is_named_with_its_line() -> None:
    looks: dict[int, list[Look]] = {2: [(5, DIED, SAVING), (300, STALL, LOADING)], 0: [(300, STALL, WAITING)]}
    cause = root_cause(with_thread(with_stacks(stuck_job(), looks)))
    assert (cause.code, cause.ranks) == ("H105", (2,))
    assert cause.title.startswith(LOST)
    assert cause.location is not None
    assert (cause.location.file, cause.location.line) == ("/job/train.py", 50)  # the thread's, not where main waits


def test_a_thread_that_a_job_did_without_is_no_error() -> None:
    trace = recorded({0: [f"{CALL} done"], 1: [f"{CALL} done"]}, {}, {})
    event = {"kind": "traceback", "rank": 1, "text": "OSError: shard 3", "fields": json.dumps({"in_thread": True})}
    trace.tables["log_events"] = Table.from_rows("log_events", [{"file_id": 0, "line": 3, **event}])
    assert errors(with_thread(with_stacks(trace, {1: [(5, DIED, SAVING)]}))) == []


def test_a_rank_that_alone_got_sigterm_is_the_cause() -> None:
    about = ({**FAILED, "rank_exit_code": 1}, {"ending": "signal", "exit_code": 1, "rank_exit_code": 143})
    finding = found(with_stacks(short(*about), {0: [(9, CLOSED, WAITING)], 1: [(8, "SIGTERM", LOADING)]}), "H116")
    assert (finding.ranks, finding.title) == (
        (1,),
        "rank 1 was killed by SIGTERM in load (data.py:31), inside recv (socket.py:7)",
    )
    assert finding.action == "collect-more"


@pytest.mark.parametrize(
    "looks",
    [
        pytest.param(
            {0: [(7, "SIGTERM", WAITING), (9, CLOSED, WAITING)], 1: [(8, "SIGTERM", LOADING)]}, id="all got it"
        ),
        pytest.param({0: [(7, CLOSED, WAITING)], 1: [(8, "SIGTERM", LOADING)]}, id="the launcher, afterwards"),
    ],
)
def test_sigterm_of_a_launcher_blames_nobody(looks: dict[int, list[tuple[int, str, tuple[str, ...]]]]) -> None:
    trace = with_stacks(short(FAILED, {"ending": "signal", "exit_code": 1, "rank_exit_code": 143}), looks)
    assert not any(code == "H116" for code, _ in errors(trace))


def test_a_killed_rank_is_named_although_the_others_were_told_to_end_before_they_noticed() -> None:
    trace = short({"ending": "signal", "exit_code": 137}, {"ending": "", "exit_code": 137})
    finding = found(with_stacks(trace, {0: [(9, "SIGTERM", WAITING)]}), "H116")
    assert (finding.ranks, finding.title) == ((1,), "rank 1 was likely killed by SIGKILL")


def test_an_exception_before_init_is_the_cause_of_those_who_wait_there() -> None:
    timed_out = "DistStoreError: Timed out after 5 seconds waiting for clients. 1/2 clients joined."
    looks: dict[int, list[Look]] = {
        0: [(9, timed_out, INIT)],
        1: [(3, "ModuleNotFoundError: No module named 'x'", LOADING)],
    }
    finding = found(stacks_alone(looks), "H117")
    assert finding.title.startswith("rank 1 raised ModuleNotFoundError: No module named 'x'; it never called init")
    assert (finding.ranks, finding.action) == ((1,), "fix-first")


def test_an_exception_that_a_framework_caught_is_read_from_the_output() -> None:
    trace = stuck_job()
    place = {"file": "/job/loop.py", "line": 11, "function": "loop"}
    event = {"kind": "traceback", "rank": 2, "text": "ValueError: bad batch", "fields": json.dumps({"place": place})}
    trace.tables["log_events"] = Table.from_rows("log_events", [{"file_id": 0, "line": 3, **event}])
    cause = next(each for each in run_rules(trace)[0] if each.code == "H105")
    assert cause.title.startswith("rank 2 raised ValueError: bad batch; it never reached")
    assert cause.location == Location("/job/loop.py", 11, "loop")


SOURCE = """
def train(loader):
    for batch in loader:
        reduce(batch)
        if is_first:
            barrier()
    # the end

    barrier()
"""


def test_a_call_within_the_loop_is_no_end_of_it(tmp_path: Path) -> None:
    file = tmp_path / "train.py"
    file.write_text(SOURCE)
    around = [loops_around(Location(str(file), line, "train")) for line in (3, 4, 6, 9)]
    assert around == [frozenset({3}), frozenset({3}), frozenset({3}), frozenset()]
    assert loops_around(Location(str(file), 90, "train")) is None
    step = f"dp:1 all_reduce done @{file}:4"
    for line, left in ((6, False), (9, True)):
        programs = {rank: [step] * 6 + [f"dp:1 all_reduce @{file}:4"] for rank in range(4)}
        programs[2] = [step] * 6 + [f"dp:1 barrier @{file}:{line}"]
        cause = root_cause(job(programs))
        assert cause.ranks == (2,)
        assert ("left the training loop early" in cause.title) is left
        assert any("took another branch" in text for text in cause.evidence.likely) is not left
