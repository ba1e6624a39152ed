"""What stacks of threads add to verdicts about hangs, and what they say where no recorder does."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from analyze.building import START_NS, Setting, alarms, effects, findings, found, job, root_cause
from rankscope.analyze import run_rules
from rankscope.model.finding import Finding
from rankscope.model.tables import Table, Trace

STALL = "no collective has finished for 300 s"
TORCH = "/venv/torch/distributed/distributed_c10d.py:1:all_reduce"
WAITING = (TORCH, "/job/train.py:40:average", "/job/train.py:80:main")
LOADING = ("/usr/lib/python3.11/socket.py:7:recv", "/job/data.py:31:load", "/job/train.py:66:main")
SAVING = ("/job/save.py:9:save", "/job/train.py:70:main")
COMPUTING = ("/job/train.py:50:forward", "/job/train.py:80:main")

Look = tuple[int, str, Sequence[str]]  # when (seconds), why, and the frames of the main thread, innermost first


def with_stacks(trace: Trace, looks: Mapping[int, Sequence[Look]]) -> Trace:
    """The same trace, with stacks of main threads beside what it has; each rank also has a thread of its own."""
    frames, stacks = list(trace.table("frames").rows()), list(trace.table("stacks").rows())
    threads: list[dict[str, Any]] = []
    for rank, sections in looks.items():
        for section, (second, reason, texts) in enumerate(sections):
            common = {"file_id": 100 + rank, "rank": rank, "section": section, "reason": reason}
            common["time_ns"] = START_NS + second * 10**9 if second >= 0 else -1
            for is_main, own in ((False, COMPUTING), (True, texts)):
                stack, site = 1000 + len(threads), -1
                for depth, text in enumerate(own):
                    file, line, function = text.split(":")
                    frame = {"frame_id": len(frames), "file": file, "line": int(line), "function": function}
                    frame["is_user"] = file.startswith("/job")
                    known = [row["frame_id"] for row in frames if {**row, "frame_id": 0} == {**frame, "frame_id": 0}]
                    number = known[0] if known else len(frames)
                    frames += [] if known else [frame]
                    stacks.append({"stack_id": stack, "depth": depth, "frame_id": number})
                    site = number if site < 0 and frame["is_user"] else site
                threads.append({**common, "is_main": is_main, "stack_id": stack, "site_id": site})
    tables = {"frames": frames, "stacks": stacks, "thread_stacks": threads}
    made = {name: Table.from_rows(name, rows) for name, rows in tables.items()}
    return Trace(trace.paths, {**trace.tables, **made})


def stacks_alone(looks: Mapping[int, Sequence[Look]]) -> Trace:
    return with_stacks(Trace(("traces",)), looks)


def stuck_job() -> Trace:
    """Rank 2 made one call less than its peers."""
    call = "dp:1 all_reduce @/job/train.py:40"
    return job({rank: [f"{call} done"] * 3 + [call] * (rank != 2) for rank in range(4)})


def places(finding: Finding) -> tuple[int | None, int | None]:
    own, peer = finding.location, finding.peer_location
    return own.line if own else None, peer.line if peer else None


def test_a_stuck_rank_is_told_with_the_place_where_it_stands() -> None:
    before = root_cause(stuck_job())
    assert places(before) == (40, 40)
    trace = with_stacks(stuck_job(), {rank: [(300, STALL, LOADING if rank == 2 else WAITING)] for rank in range(4)})
    cause = root_cause(trace)
    assert (cause.rule, cause.ranks, cause.certainty) == ("rank-stuck", (2,), "certain")
    assert places(cause) == (31, 40)
    assert "the main thread of rank 2 is in load (data.py:31), inside recv (socket.py:7)" in cause.evidence.certain
    assert cause.evidence.stacks[0].label == "rank 2 now"
    assert [frame.function for frame in cause.evidence.stacks[0].frames] == ["load", "main"]
    assert cause.evidence.stacks[0].n_hidden == 1
    assert cause.help == "find out why rank 2 does not leave load (data.py:31), inside recv (socket.py:7)"


def test_the_newest_stacks_count() -> None:
    looks = [(300, "SIGUSR2", LOADING), (330, "SIGTERM", SAVING)]
    assert places(root_cause(with_stacks(stuck_job(), {2: looks})))[0] == 9
    untimed = [(300, "SIGUSR2", LOADING), (-1, "", SAVING)]  # printed by faulthandler alone: later in the file
    assert places(root_cause(with_stacks(stuck_job(), {2: untimed})))[0] == 9


def test_the_stacks_of_the_stall_count_more_than_those_of_the_clean_up() -> None:
    looks = [(300, STALL, LOADING), (330, "SIGTERM", SAVING), (331, "RuntimeError: Timed out in gloo", WAITING)]
    assert places(root_cause(with_stacks(stuck_job(), {2: looks})))[0] == 31


def test_stacks_that_are_older_than_the_last_call_say_nothing() -> None:
    cause = root_cause(with_stacks(stuck_job(), {2: [(-1000, "", LOADING)], 0: [(0, "SIGUSR2", WAITING)]}))
    assert places(cause)[0] == 31  # without a time they may be new
    old = Trace(("traces",), {**with_stacks(stuck_job(), {2: [(0, "SIGUSR2", LOADING)]}).tables})
    assert places(root_cause(old)) == (40, 40)


def test_a_rank_that_waits_where_its_recorder_cannot_see_it_is_said_to_wait() -> None:
    cause = root_cause(with_stacks(stuck_job(), {2: [(300, STALL, WAITING)]}))
    assert cause.evidence.likely[0] == "rank 2 is waiting there in a call that its recorder does not show"


@pytest.mark.parametrize(
    ("reason", "has_raised"),
    [
        ("ValueError: bad batch", True),
        ("my.job.Broken", True),
        ("Fatal Python error: Segmentation fault", True),
        ("KeyboardInterrupt", False),
        ("SIGTERM", False),
        (STALL, False),
        ("time-out of ALLREDUCE #5", False),
        ("", False),
    ],
)
def test_an_exception_that_ended_the_rank_is_the_reason(reason: str, has_raised: bool) -> None:
    cause = root_cause(with_stacks(stuck_job(), {2: [(300, reason, LOADING)]}))
    expected = f"rank 2 ended there: {reason}" if has_raised else "rank 2 is stuck or busy there"
    assert cause.title.startswith(f"rank 2 raised {reason}; it never reached" if has_raised else "rank 2 never reached")
    assert cause.evidence.likely[0] == expected
    assert cause.help.startswith("fix the exception" if has_raised else "find out why")


def test_a_rank_without_a_dump_that_wrote_its_stacks_is_told_with_them() -> None:
    call = "dp:1 all_reduce @/job/train.py:40"
    trace = job({0: [call], 1: [call]}, Setting(config={"1": [[0, 1, 2]]}))
    cause = root_cause(with_stacks(trace, {2: [(300, STALL, LOADING)]}))
    assert (cause.rule, cause.ranks) == ("rank-lost", (2,))
    assert places(cause)[0] == 31
    assert not any("died" in text for text in cause.evidence.likely)


def test_a_stalled_collective_keeps_its_place_and_tells_where_all_stand() -> None:
    call = "dp:1 all_reduce @/job/train.py:40"
    trace = with_stacks(job({0: [call], 1: [call]}), {rank: [(300, STALL, WAITING)] for rank in range(2)})
    cause = root_cause(trace)
    assert (cause.rule, places(cause)) == ("collective-stalled", (40, 40))
    assert cause.evidence.certain[-1].startswith("the main thread of ranks 0,1 is in average (train.py:40)")


def test_stacks_alone_name_the_odd_rank() -> None:
    trace = stacks_alone({rank: [(300 + rank, STALL, LOADING if rank == 3 else WAITING)] for rank in range(8)})
    finding = found(trace, "H112")
    assert (finding.rule, finding.ranks, finding.severity, finding.certainty) == (
        "rank-elsewhere",
        (3,),
        "error",
        "likely",
    )
    assert finding.title == "rank 3 is in load (data.py:31) while 7 peers are in average (train.py:40)"
    assert places(finding) == (31, 40)
    assert [group.ranks for group in finding.evidence.stacks] == [(3,), (0, 1, 2, 4, 5, 6, 7)]


def test_one_look_at_a_job_proves_no_hang() -> None:
    looks = {rank: [(0, "SIGUSR2", LOADING if rank == 3 else WAITING)] for rank in range(4)}
    finding = found(stacks_alone(looks), "H112")
    assert (finding.severity, finding.certainty) == ("warning", "possible")


def test_two_looks_with_the_same_result_do() -> None:
    looks: dict[int, Sequence[Look]] = {
        rank: [(at, "", LOADING if rank == 3 else WAITING) for at in (0, 60)] for rank in range(4)
    }
    assert found(stacks_alone(looks), "H112").severity == "error"
    looks[0] = [(0, "", COMPUTING), (60, "", WAITING)]
    assert found(stacks_alone(looks), "H112").severity == "warning"


def test_of_two_ranks_the_one_outside_of_the_collective_is_odd() -> None:
    assert found(stacks_alone({0: [(0, STALL, LOADING)], 1: [(0, STALL, WAITING)]}), "H112").ranks == (0,)


@pytest.mark.parametrize(
    "mains",
    [
        [WAITING] * 4,
        [WAITING, WAITING, LOADING, LOADING],
        [WAITING, LOADING, SAVING, COMPUTING],
        [WAITING, COMPUTING, COMPUTING, COMPUTING],  # one is early, not three late
        [LOADING, SAVING],
        [LOADING],
    ],
    ids=["together", "halves", "everywhere", "one-early", "none-waits", "one-rank"],
)
def test_ranks_that_do_not_divide_into_few_and_many_are_no_finding(mains: Sequence[Sequence[str]]) -> None:
    trace = stacks_alone({rank: [(0, STALL, main)] for rank, main in enumerate(mains)})
    assert [finding for finding in findings(trace) if finding.code == "H112"] == []


def test_stacks_of_another_time_are_left_out() -> None:
    looks = {rank: [(7200, STALL, WAITING)] for rank in range(4)}
    looks[3] = [(0, "SIGUSR2", LOADING)]
    assert [finding for finding in findings(stacks_alone(looks)) if finding.code == "H112"] == []


def test_where_the_dumps_decide_stacks_do_not() -> None:
    trace = with_stacks(stuck_job(), {rank: [(300, STALL, LOADING if rank == 2 else WAITING)] for rank in range(4)})
    told = {finding.code for finding in [*findings(trace), *effects(trace)]}
    assert "H105" in told
    assert "H112" not in told
    skipped = {check.rule: check.why for check in run_rules(trace)[2]}
    assert skipped["rank-elsewhere"] == "the recorder dumps already show what happened"


def test_a_job_that_ended_well_has_no_odd_rank() -> None:
    trace = stacks_alone({rank: [(0, STALL, LOADING if rank == 3 else WAITING)] for rank in range(4)})
    ended = [{"rank": rank, "exit_code": 0, "file_id": 0} for rank in range(4)]
    trace.tables["manifests"] = Table.from_rows("manifests", ended)
    assert alarms(trace) == []


def test_the_first_exception_is_the_cause_where_no_recorder_tells() -> None:
    gone = "RuntimeError: Connection closed by peer"
    looks = {rank: [(7 + rank, gone, WAITING)] for rank in (0, 1, 3)}
    trace = stacks_alone({**looks, 2: [(5, "ValueError: bad batch", LOADING)]})
    (finding,) = [each for each in run_rules(trace)[0] if each.severity == "error"]
    assert (finding.code, finding.ranks, finding.certainty) == ("H113", (2,), "likely")
    assert finding.title == "rank 2 raised ValueError: bad batch"
    assert finding.location is not None
    assert (finding.location.file, finding.location.line) == ("/job/data.py", 31)
    assert f"rank 0 raised later: {gone}" in finding.evidence.notes


def test_ranks_that_fail_alike_are_named_together() -> None:
    trace = stacks_alone({rank: [(5 + rank, "OSError: no such file", LOADING)] for rank in range(3)})
    (finding,) = run_rules(trace)[0]
    assert (finding.code, finding.ranks, finding.certainty) == ("H113", (0, 1, 2), "certain")


@pytest.mark.parametrize("reason", ["KeyboardInterrupt", "SIGTERM", STALL])
def test_what_is_no_exception_of_the_job_is_no_cause(reason: str) -> None:
    trace = stacks_alone({rank: [(5, reason, WAITING)] for rank in range(3)})
    assert run_rules(trace)[0] == []
