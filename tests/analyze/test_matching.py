"""Which calls belong together, and what became of them once all ranks are looked at."""

from __future__ import annotations

from typing import Any

import pytest

from analyze.building import MS, START_NS, Setting, column, job
from rankscope.model.tables import Trace


def match_at(trace: Trace, seq: int, name: str = "1") -> dict[str, Any]:
    """The collective with this number in the group of this name."""
    names = column(trace, "groups", "name")
    (found,) = [
        row
        for row in trace.table("matches").rows()
        if not row["is_p2p"] and row["seq"] == seq and names[row["group_id"]] == name
    ]
    return found


def transfers(trace: Trace) -> list[tuple[int, int, int, int]]:
    """Of each transfer sender, receiver, its number in the pair and how many sides are there."""
    rows = [row for row in trace.table("matches").rows() if row["is_p2p"]]
    return [(row["src"], row["dst"], row["seq"], row["n_joined"]) for row in rows]


def statuses(trace: Trace, rank: int) -> list[str]:
    return [row["status"] for row in trace.table("collectives").rows() if row["rank"] == rank]


def partners(trace: Trace) -> list[tuple[int, ...]]:
    """Of each complete transfer the record numbers of its send and its receive."""
    rows = list(trace.table("collectives").rows())
    found: dict[int, dict[str, int]] = {}
    for row in rows:
        if row["is_p2p"] and row["match_id"] >= 0:
            found.setdefault(row["match_id"], {})[row["op"]] = row["record_id"]
    return [(sides["send"], sides["recv"]) for sides in found.values() if len(sides) == 2]


def test_below_the_window_is_evicted_and_above_it_not_joined() -> None:
    whole = [f"dp:1 all_reduce #{seq} done" for seq in (1, 2)]
    programs = {0: [*whole, "dp:1 all_reduce #3"], 1: ["dp:1 all_reduce #3"], 2: whole}
    trace = job(programs, Setting(dropped={1: 2}))
    first, last = match_at(trace, 1), match_at(trace, 3)
    assert (first["n_joined"], first["n_evicted"], first["n_missing"], first["state"]) == (2, 1, 0, "done")
    assert (last["n_joined"], last["n_evicted"], last["n_missing"], last["state"]) == (2, 0, 1, "missing")


def test_a_member_without_a_dump_is_unknown_not_missing() -> None:
    calls = ["dp:1 all_reduce"]
    row = match_at(job({0: calls, 1: calls}, Setting(config={"1": [(0, 1, 2)]})), 1)
    assert (row["n_members"], row["n_joined"], row["n_missing"], row["n_unknown"]) == (3, 2, 0, 1)


def test_a_counter_beyond_an_empty_ring_is_a_join() -> None:
    setting = Setting(config={"1": [(0, 1)]}, dropped={1: 90}, counters={(1, "1"): (7, 6)})
    row = match_at(job({0: ["dp:1 all_reduce #7"], 1: []}, setting), 7)
    assert (row["n_evicted"], row["n_missing"]) == (1, 0)


def test_rings_of_different_depth_are_matched_by_sequence_number() -> None:
    deep = [f"dp:1 all_reduce #{seq} done" for seq in range(1, 9)]
    trace = job({0: deep, 1: deep[5:]}, Setting(dropped={1: 5}))
    joined = [match_at(trace, seq)["n_joined"] for seq in range(1, 9)]
    assert joined == [1, 1, 1, 1, 1, 2, 2, 2]


def test_record_numbers_play_no_part() -> None:
    # Rank 1 also talks to another group, so its own counter runs ahead of rank 0's.
    programs = {
        0: ["dp:1 all_reduce [8] done", "dp:1 all_gather [8]->[16] done"],
        1: ["x:2 barrier done", "x:2 barrier done", "dp:1 all_reduce [8] done", "dp:1 all_gather [8]->[16] done"],
    }
    trace = job(programs)
    assert [(match_at(trace, seq)["op"], match_at(trace, seq)["n_joined"]) for seq in (1, 2)] == [
        ("all_reduce", 2),
        ("all_gather", 2),
    ]


def test_the_trailer_stands_for_a_coalesced_group() -> None:
    calls = ["dp:1 all_gather [8]->[16] member waiting", "dp:1 all_gather_coalesced [8]->[16] batch done"]
    trace = job({0: calls, 1: calls})
    assert (match_at(trace, 1)["op"], match_at(trace, 1)["n_done"]) == ("all_gather_coalesced", 2)
    assert [row["match_id"] for row in trace.table("collectives").rows() if row["role"] == "member"] == [-1, -1]


def test_without_a_trailer_the_last_call_of_a_number_stands_for_it() -> None:
    calls = ["dp:1 all_reduce [8] #1 done", "dp:1 all_reduce [4] #1"]
    trace = job({0: calls, 1: calls})
    assert (match_at(trace, 1)["n_joined"], match_at(trace, 1)["n_done"]) == (2, 0)


def test_a_batch_has_ended_when_its_transfers_have() -> None:
    programs = {
        0: ["pp:1 barrier done", "pp:1 send>1 member", "pp:1 recv<1 member", "pp:1 coalesced batch p2p"],
        1: ["pp:1 barrier done", "pp:1 recv<0 member done", "pp:1 send>0 member done", "pp:1 coalesced batch p2p done"],
    }
    trace = job(programs)
    assert statuses(trace, 0) == ["done"] * 4


def test_a_batch_waits_while_one_of_its_transfers_does() -> None:
    programs = {
        0: ["pp:1 barrier done", "pp:1 send>1 member", "pp:1 recv<1 member", "pp:1 coalesced batch p2p"],
        1: ["pp:1 barrier done", "pp:1 recv<0 member done"],
    }
    assert statuses(job(programs), 0) == ["done", "done", "waiting", "waiting"]


def test_the_kth_send_meets_the_kth_receive_of_its_direction() -> None:
    programs = {
        0: ["pp:1 barrier done", "pp:1 send>1 done", "pp:1 recv<1 done", "pp:1 send>1"],
        1: ["pp:1 barrier done", "pp:1 recv<0 done", "pp:1 send>0 done"],
    }
    assert sorted(transfers(job(programs))) == [(0, 1, 1, 2), (0, 1, 2, 1), (1, 0, 1, 2)]


def test_transfers_of_two_groups_are_counted_apart() -> None:
    programs = {
        0: ["a:1 barrier done", "a:1 send>1 done", "b:2 send>1"],
        1: ["a:1 barrier done", "b:2 recv<0", "a:1 recv<0 done"],
    }
    assert partners(job(programs)) == [(1, 2), (2, 1)]


def test_transfers_are_counted_from_the_end_when_a_ring_has_wrapped() -> None:
    receives = ["pp:1 barrier done", *["pp:1 recv<0 done"] * 5, "pp:1 recv<0"]
    sends = [*["pp:1 send>1 done"] * 2, "pp:1 barrier #1 done", "pp:1 send>1"]
    programs = {0: sends, 1: receives}
    # Counted from the start, the sender's oldest kept send, its fourth, would meet the first receive.
    assert partners(job(programs, Setting(dropped={0: 4}))) == [(0, 4), (1, 5), (3, 6)]
    assert partners(job(programs)) == [(0, 1), (1, 2), (3, 3)]


def test_completions_that_one_side_has_not_noticed_do_not_shift_the_transfers() -> None:
    ends = [0, 1000, 1300, 4000, 4150, 9000, 9900, 15000]
    sends = [f"pp:1 send>1 done +{end} ={end + 5}" for end in ends[2:]]
    receives = [f"pp:1 recv<0 done +{end} ={end + 5}" for end in ends[:6]]
    unnoticed = [f"pp:1 recv<0 +{end}" for end in ends[6:]]
    programs = {0: ["pp:1 barrier done", *sends], 1: ["pp:1 barrier done", *receives, *unnoticed]}
    trace = job(programs, Setting(dropped={0: 2}))
    assert partners(trace) == [(place, place + 2) for place in range(1, 7)]
    assert set(statuses(trace, 1)) == {"done"}


def test_a_transfer_seen_to_end_by_one_side_has_ended() -> None:
    programs = {0: ["pp:1 barrier done", "pp:1 send>1 done"], 1: ["pp:1 barrier done", "pp:1 recv<0"]}
    assert statuses(job(programs), 1) == ["done", "done"]


def test_a_finished_transfer_without_counterpart_was_evicted_there() -> None:
    programs = {0: ["pp:1 barrier done", "pp:1 send>1 done"], 1: ["pp:1 barrier done"]}
    (row,) = [row for row in job(programs, Setting(dropped={1: 3})).table("matches").rows() if row["is_p2p"]]
    assert (row["n_evicted"], row["n_missing"]) == (1, 0)


@pytest.mark.parametrize(("state", "status"), [("aborted", "aborted"), ("failed", "failed"), ("started", "waiting")])
def test_what_did_not_succeed_is_unfinished(state: str, status: str) -> None:
    trace = job({rank: [f"dp:1 all_reduce {state}"] for rank in (0, 1)})
    assert statuses(trace, 0) == [status]
    assert (match_at(trace, 1)["n_done"], match_at(trace, 1)["state"]) == (0, "waiting")


def test_a_completion_within_the_timeout_is_no_abort() -> None:
    trace = job({rank: ["dp:1 all_reduce done +0 =599000"] for rank in (0, 1)})
    assert statuses(trace, 0) == ["done"]


def test_gloo_lets_go_of_calls_that_failed_too() -> None:
    programs = {0: ["dp:1 all_reduce gloo done", "dp:1 all_reduce gloo done"], 1: ["dp:1 all_reduce gloo done"]}
    trace = job(programs)
    assert statuses(trace, 0) == ["done", "failed"]
    assert match_at(trace, 2)["state"] == "missing"


def test_a_root_may_finish_without_the_others() -> None:
    programs = {0: ["dp:1 barrier gloo done", "dp:1 broadcast gloo done"], 1: ["dp:1 barrier gloo done"]}
    assert statuses(job(programs), 0) == ["done", "done"]


def test_a_difference_in_state_alone_is_ignored() -> None:
    trace = job({0: ["dp:1 all_reduce done"], 1: ["dp:1 all_reduce"], 2: ["dp:1 all_reduce started"]})
    assert [statuses(trace, rank) for rank in range(3)] == [["done"]] * 3
    assert match_at(trace, 1)["state"] == "done"


def test_a_completion_that_cannot_be_true_settles_nothing() -> None:
    trace = job({0: ["dp:1 all_reduce done"], 1: ["dp:1 all_reduce"], 2: []}, Setting(config={"1": [(0, 1, 2)]}))
    assert [statuses(trace, rank) for rank in (0, 1)] == [["failed"], ["waiting"]]


def test_a_gloo_call_that_was_let_go_on_one_side_may_still_wait_on_the_other() -> None:
    trace = job({0: ["dp:1 all_reduce gloo done"], 1: ["dp:1 all_reduce gloo"]})
    assert statuses(trace, 1) == ["waiting"]


def test_transfers_passed_by_a_later_collective_have_ended() -> None:
    # Both sides kept no end of the transfer, but a rank in order came by it.
    programs = {
        0: ["pp:1 send>1", "dp:2 all_reduce done", "pp:1 send>1"],
        1: ["pp:1 recv<0", "dp:2 all_reduce done", "pp:1 recv<0"],
    }
    trace = job(programs)
    assert statuses(trace, 0) == ["done", "done", "waiting"]


def test_a_transfer_is_not_passed_by_a_call_that_needs_nobody() -> None:
    programs = {0: ["pp:1 send>1", "dp:2 broadcast done"], 1: ["dp:2 broadcast done"]}
    assert statuses(job(programs, Setting(config={"1": [(0, 1)], "2": [(0, 1)]})), 0) == ["waiting", "done"]


def test_the_common_operation_is_that_of_most_ranks() -> None:
    programs = {0: ["dp:1 all_gather [8]->[24]"], 1: ["dp:1 all_reduce"], 2: ["dp:1 all_reduce"]}
    row = match_at(job(programs), 1)
    assert (row["op"], row["n_signatures"], row["state"]) == ("all_reduce", 2, "mismatch")


def test_sizes_of_a_transfer_are_compared_across_send_and_receive() -> None:
    def trace_with(received: str) -> Trace:
        return job({0: ["p:1 barrier", "p:1 send>1 [8]"], 1: ["p:1 barrier", f"p:1 recv<0 {received}"]})

    signatures = [column(trace_with(size), "matches", "n_signatures")[1] for size in ("[2,4]", "[9]", "[8] bf16")]
    assert signatures == [1, 2, 2]


def test_the_last_to_join_is_named_with_its_time() -> None:
    row = match_at(job({0: ["dp:1 all_reduce +5"], 1: ["dp:1 all_reduce +40"], 2: ["dp:1 all_reduce +7"]}), 1)
    assert (row["last_rank"], row["last_created_ns"] - row["first_created_ns"]) == (1, 35 * MS)
    assert row["first_created_ns"] == START_NS + 5 * MS


def test_a_job_of_transfers_alone_is_matched() -> None:
    assert transfers(job({0: ["pp:1 send>1 done"], 1: ["pp:1 recv<0 done"]})) == [(0, 1, 1, 2)]


def test_a_job_without_calls_has_no_matches() -> None:
    assert len(job({0: [], 1: []}).table("matches")) == 0
