"""H115: all recorded calls are done and the job hangs all the same; a job in order is never said to hang."""

from __future__ import annotations

from typing import Any

import pytest

from analyze.building import Programs, Setting, alarms, findings, found, job
from analyze.test_ended_well import recorded
from analyze.test_stack_rules import COMPUTING, LOADING, SAVING, STALL, WAITING, places, with_stacks
from rankscope.analyze import run_rules
from rankscope.model.tables import Trace

CALL = "dp:1 all_reduce @/job/train.py:40"
DONE = {rank: [f"{CALL} done"] * 3 for rank in range(4)}
SIGNAL = {"ending": "signal", "exit_code": 143}


def codes(trace: Trace) -> list[str]:
    return [finding.code for finding in findings(trace) if finding.code.startswith("H")]


def why_skipped(trace: Trace) -> str | None:
    return next(check.why for check in run_rules(trace)[2] if check.rule == "hang-outside")


def test_a_stall_in_which_no_call_waits_is_told_with_the_place_of_each_rank() -> None:
    looks = {rank: [(300, STALL, SAVING if rank < 2 else LOADING)] for rank in range(4)}
    finding = found(with_stacks(job(DONE), looks), "H115")
    assert (finding.severity, finding.certainty, finding.ranks) == ("error", "likely", ())
    assert finding.title == (
        "the job hangs outside of its recorded calls, which all completed: "
        "ranks 2,3 are in load (data.py:31), inside recv (socket.py:7), ranks 0,1 are in save (save.py:9)"
    )
    assert finding.evidence.certain == (
        "all recorded calls completed on all ranks",
        "the main thread of ranks 0,1 is in save (save.py:9)",
        "the main thread of ranks 2,3 is in load (data.py:31), inside recv (socket.py:7)",
    )
    assert [group.ranks for group in finding.evidence.stacks] == [(0, 1), (2, 3)]
    assert finding.evidence.notes == (f"stacks were written because: {STALL}",)
    assert places(finding)[0] == 9


def test_the_stall_counts_though_a_signal_came_later() -> None:
    looks = {rank: [(300, STALL, SAVING), (330, "SIGTERM", SAVING)] for rank in range(4)}
    assert found(with_stacks(job(DONE), looks), "H115").severity == "error"


def test_a_stall_without_a_time_may_be_an_old_one() -> None:
    looks = {rank: [(-1, "Timeout (0:05:00)!", SAVING)] for rank in range(4)}
    finding = found(with_stacks(job(DONE), looks), "H115")
    assert (finding.severity, finding.certainty) == ("warning", "possible")


def test_a_stall_after_which_the_ranks_made_calls_is_over() -> None:
    later = {rank: [f"{CALL} done +1000", f"{CALL} done +600000"] for rank in range(4)}
    trace = with_stacks(job(later), {rank: [(300, STALL, SAVING)] for rank in range(4)})
    assert codes(trace) == []
    assert "the data does not show whether the job hung" in str(why_skipped(trace))


def test_a_rank_of_which_nothing_is_known_is_named() -> None:
    trace = job({rank: DONE[rank] for rank in range(3)}, Setting(config={"1": [[0, 1, 2, 3]]}))
    finding = found(with_stacks(trace, {rank: [(300, STALL, SAVING)] for rank in range(3)}), "H115")
    assert "the data does not show where rank 3 is" in finding.evidence.notes


def test_stacks_that_somebody_asked_for_are_only_a_note() -> None:
    trace = with_stacks(job(DONE), {rank: [(300, "asked by snapshot", COMPUTING)] for rank in range(4)})
    finding = found(trace, "H115")
    assert finding.severity == "info"
    assert finding.title == "no rank is waiting in a recorded call: ranks 0-3 are in forward (train.py:50)"
    assert finding.help.startswith("if the job hung, find out why ranks 0-3 do not leave forward")
    assert alarms(trace) == []


def test_ranks_that_a_signal_ended_are_told_with_their_last_calls() -> None:
    programs = {0: [f"{CALL} done"] * 2, 1: [f"{CALL} done"] * 2}
    trace = recorded(programs, SIGNAL, SIGNAL)
    finding = found(trace, "H115")
    assert finding.severity == "info"
    assert finding.title == (
        "no rank was waiting in a recorded call when a signal ended the job: "
        "the last call of ranks 0,1 was all_reduce [8] f32 (dp) in step (train.py:40)"
    )
    assert finding.evidence.notes == ("ranks 0,1 were ended by a signal",)
    assert "rankscope snapshot" in finding.help
    assert "py-spy" in finding.help


def test_groups_of_one_role_are_one_place() -> None:
    programs = {rank: [f"tp:{rank // 2} all_reduce done @/job/train.py:40"] for rank in range(4)}
    finding = found(recorded(programs, *[SIGNAL] * 4), "H115")
    assert finding.evidence.certain[1:] == (
        "the last call of ranks 0-3 was all_reduce [8] f32 (tp) in step (train.py:40)",
    )


@pytest.mark.parametrize(
    ("told", "why", "others"),
    [
        pytest.param({}, "the job ended normally", [], id="ended well"),
        pytest.param({"ending": "exception", "exit_code": 1}, "a rank ended with an exception", ["H120"], id="raised"),
    ],
)
def test_a_job_that_ended_otherwise_did_not_hang(told: dict[str, Any], why: str, others: list[str]) -> None:
    trace = with_stacks(recorded(DONE, *[told] * 4), {rank: [(300, STALL, SAVING)] for rank in range(4)})
    assert codes(trace) == others  # a job that failed is at least said to have failed
    assert str(why_skipped(trace)).startswith(why)


def test_dumps_alone_are_no_sign() -> None:
    assert codes(job(DONE)) == []
    assert str(why_skipped(job(DONE))).startswith(
        "all calls completed, and the data does not show whether the job hung"
    )


@pytest.mark.parametrize(
    ("programs", "looks", "code"),
    [
        ({0: [CALL], 1: [CALL]}, [WAITING, WAITING], "H109"),
        ({0: [f"{CALL} aborted"], 1: [f"{CALL} aborted"]}, [WAITING, WAITING], "H109"),
        ({0: [f"{CALL} done", CALL], 1: [f"{CALL} done"]}, [WAITING, LOADING], "H105"),
        (DONE, [WAITING, WAITING, WAITING, LOADING], "H112"),
    ],
    ids=["all wait", "aborted", "one never came", "one is elsewhere"],
)
def test_what_another_rule_explains_is_left_to_it(programs: Programs, looks: list[tuple[str, ...]], code: str) -> None:
    trace = with_stacks(job(programs), {rank: [(300, STALL, look)] for rank, look in enumerate(looks)})
    assert code in codes(trace)
    assert "H115" not in codes(trace)
