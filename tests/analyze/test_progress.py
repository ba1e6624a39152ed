"""Two readings of a job: who went on between them, and what that makes of the second one's findings."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from analyze.building import Setting, job
from rankscope.analyze.hangs.progress import Progress, progress_between, tempered
from rankscope.model.finding import Capture, Finding, Location, Report, Severity
from rankscope.model.tables import Table, Trace

SECONDS = 4.0
WORLD = Setting(config={"1": [[0, 1]]})


def reading(calls: Mapping[int, int], lines: Mapping[int, int] | None = None, n_unfinished: int = 0) -> Trace:
    """Each rank's number of calls so far, and the line at which its main thread stands."""
    counters = {(rank, "1"): (n_calls, n_calls - n_unfinished) for rank, n_calls in calls.items()}
    setting = Setting(config={"1": [[0, 1]]}, counters=counters)
    programs = {rank: ["dp:1 all_reduce [8] f32 done"] * n_calls for rank, n_calls in calls.items()}
    trace = job(programs, setting)
    if lines is not None:
        places = sorted(set(lines.values()))
        number = {line: position for position, line in enumerate(places)}
        frame = {"file": "train.py", "function": "step", "is_user": True}
        trace.tables["frames"] = Table.from_rows(
            "frames", [{**frame, "frame_id": number[x], "line": x} for x in places]
        )
        trace.tables["stacks"] = Table.from_rows(
            "stacks", [{"stack_id": number[x], "depth": 0, "frame_id": number[x]} for x in places]
        )
        main = {"section": 0, "is_main": True}
        rows = [{**main, "rank": rank, "stack_id": number[x], "site_id": number[x]} for rank, x in lines.items()]
        # Another thread of the rank that moves says nothing about the training loop.
        rows.append({"section": 0, "is_main": False, "rank": 0, "stack_id": sum(calls.values()) % len(places)})
        trace.tables["thread_stacks"] = Table.from_rows("thread_stacks", rows)
    return trace


def between(before: Trace, after: Trace) -> tuple[str, dict[int, str]]:
    progress = progress_between(before, after, SECONDS)
    return progress.verdict, {each.rank: each.state for each in progress.ranks}


def test_all_ranks_that_make_calls_are_a_moving_job_with_its_rate() -> None:
    progress = progress_between(reading({0: 4, 1: 3}), reading({0: 12, 1: 11}), SECONDS)
    assert (progress.verdict, progress.collectives_per_s) == ("moving", 2.0)
    assert [(each.n_calls, each.n_completed) for each in progress.ranks] == [(8, 8), (8, 8)]


def test_nothing_that_moves_is_a_hang() -> None:
    before, after = (reading({0: 4, 1: 3}, {0: 10, 1: 20}) for _ in range(2))
    assert between(before, after) == ("hung", {0: "still", 1: "still"})
    assert between(reading({0: 4, 1: 3}), reading({0: 4, 1: 3})) == ("hung", {0: "still", 1: "still"})


def test_a_main_thread_that_moves_is_work_although_no_call_is_made() -> None:
    before, after = reading({0: 4, 1: 3}, {0: 10, 1: 20}), reading({0: 4, 1: 3}, {0: 10, 1: 21})
    assert between(before, after) == ("working", {0: "still", 1: "active"})
    progress = progress_between(before, after, SECONDS)
    assert progress.ranks[1].location == Location("train.py", 21, "step")


def test_some_that_go_on_and_some_that_do_not() -> None:
    before, after = reading({0: 4, 1: 3}, {0: 10, 1: 20}), reading({0: 9, 1: 3}, {0: 10, 1: 20})
    assert between(before, after) == ("partly", {0: "advanced", 1: "still"})


def test_a_call_that_finished_is_progress_without_a_new_one() -> None:
    before, after = reading({0: 4, 1: 4}, n_unfinished=2), reading({0: 4, 1: 4}, n_unfinished=1)
    assert between(before, after) == ("moving", {0: "advanced", 1: "advanced"})


def test_transfers_count_as_calls() -> None:
    def trace(n_sends: int) -> Trace:
        sends = ["pp:1 send>1 [8] f32 done"] * n_sends
        made = job({0: sends, 1: ["pp:1 recv<0 [8] f32 done"] * n_sends}, WORLD)
        calls = made.table("collectives")
        numbers = calls.array("record_id") + 1
        made.tables["collectives"] = calls.replaced({"p2p_seq": numbers})
        return made

    progress = progress_between(trace(2), trace(5), SECONDS)
    assert [each.n_calls for each in progress.ranks] == [3, 3]


def test_counters_that_go_back_are_a_new_process() -> None:
    assert between(reading({0: 40, 1: 40}), reading({0: 2, 1: 41})) == ("partly", {0: "restarted", 1: "advanced"})


def test_a_rank_that_told_nothing_in_one_reading_is_unknown_and_decides_nothing() -> None:
    assert between(reading({0: 4, 1: 4}), reading({0: 6})) == ("moving", {0: "advanced", 1: "unknown"})
    assert between(reading({0: 4}), reading({1: 4})) == ("unknown", {0: "unknown", 1: "unknown"})


# What it makes of findings


def report_of(rule: str, severity: Severity, *ranks: int) -> Report:
    finding = Finding(code="H105", rule=rule, severity=severity, certainty="certain", title="title", ranks=ranks)
    return Report("rankscope.report/1", Capture(("x",), (0, 1), 2, {}), (finding,), ())


@pytest.fixture
def moving() -> Progress:
    return progress_between(reading({0: 4, 1: 3}), reading({0: 12, 1: 11}), SECONDS)


@pytest.fixture
def working() -> Progress:
    return progress_between(reading({0: 4, 1: 3}, {0: 10, 1: 20}), reading({0: 4, 1: 3}, {0: 10, 1: 21}), SECONDS)


def test_a_moment_of_a_moving_job_is_no_error(moving: Progress) -> None:
    for ranks in ((1,), ()):  # a stall of all has no culprit
        [finding] = tempered(report_of("rank-stuck", "error", *ranks), moving).findings
        assert finding.severity == "info"
        assert "made progress between the two readings" in finding.evidence.notes[-1]


def test_a_rank_that_works_while_others_wait_is_a_warning(working: Progress) -> None:
    [finding] = tempered(report_of("rank-stuck", "error", 1), working).findings
    assert finding.severity == "warning"
    assert "rank 1 moved" in finding.evidence.notes[-1]


def test_the_rank_that_stands_still_stays_an_error(working: Progress) -> None:
    assert tempered(report_of("rank-stuck", "error", 0), working) == report_of("rank-stuck", "error", 0)


@pytest.mark.parametrize("rule", ["op-mismatch", "rank-lost", "dtype-mismatch"])
def test_what_does_not_pass_by_itself_stays_an_error(rule: str, moving: Progress) -> None:
    assert tempered(report_of(rule, "error", 1), moving) == report_of(rule, "error", 1)
