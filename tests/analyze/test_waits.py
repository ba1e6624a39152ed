"""Who waits for whom, and the verdicts that follow: stuck, lost, cycles, transfers, stalls."""

from __future__ import annotations

from analyze.building import Setting, alarms, effects, findings, job, lines, root_cause, verdict
from rankscope.analyze.hangs.waits import wait_graph
from rankscope.model.tables import Trace

DONE = "dp:1 all_reduce done @loop.py:10"
NEXT = "dp:1 all_reduce @loop.py:20"


def hold_ups(trace: Trace) -> list[tuple[tuple[int, ...], dict[int, str]]]:
    """Of each call that is waited in: who waits, and who holds it up and why."""
    calls = wait_graph(trace).calls.values()
    return [(call.waiting, dict(call.held_up_by)) for call in sorted(calls, key=lambda call: call.match)]


# Reasons to wait


def test_a_call_is_held_up_by_who_is_absent_behind_or_unknown() -> None:
    programs = {
        0: ["dp:1 all_reduce"],
        1: [],
        2: ["tp:2 all_reduce", "dp:1 all_reduce"],
        3: [],
    }
    trace = job(programs, Setting(config={"1": [(0, 1, 2, 4)], "2": [(2, 3)]}))
    assert hold_ups(trace) == [((0,), {1: "absent", 2: "behind", 4: "unknown"}), ((2,), {3: "absent"})]


def test_an_evicted_call_is_no_evidence() -> None:
    setting = Setting(config={"1": [(0, 1)]}, dropped={1: 50}, counters={(1, "1"): (6, 6)})
    trace = job({0: ["dp:1 all_reduce #6"], 1: []}, setting)
    assert hold_ups(trace) == [((0,), {})]


def test_a_ring_that_kept_nothing_of_a_group_is_unknown() -> None:
    setting = Setting(config={"1": [(0, 1)]}, dropped={1: 50})
    assert hold_ups(job({0: ["dp:1 all_reduce #6"], 1: []}, setting)) == [((0,), {1: "unknown"})]


def test_a_cut_dump_holds_up_only_where_its_counters_say_so() -> None:
    programs = {0: [DONE, NEXT], 1: [DONE]}
    cut = frozenset({1})
    assert hold_ups(job(programs, Setting(damaged=cut))) == [((0,), {1: "unknown"})]
    counted = Setting(damaged=cut, counters={(1, "1"): (1, 1)})
    assert hold_ups(job(programs, counted)) == [((0,), {1: "absent"})]
    joined = Setting(damaged=cut, counters={(1, "1"): (2, 1)})
    assert hold_ups(job(programs, joined)) == [((0,), {})]


def test_a_cut_dump_that_waits_elsewhere_may_have_joined_since() -> None:
    # Its counters show an unfinished call of another group: it is not idle, and what came after is lost.
    counters = {(1, "1"): (1, 1), (1, "2"): (5, 4)}
    trace = job({0: [DONE, NEXT], 1: [DONE]}, Setting(damaged=frozenset({1}), counters=counters))
    assert hold_ups(trace) == [((0,), {1: "unknown"})]


def test_a_receive_may_be_in_the_lost_part_of_a_cut_dump() -> None:
    programs = {0: ["pp:1 barrier done", "pp:1 send>1"], 1: ["pp:1 barrier done"]}
    assert hold_ups(job(programs)) == [((0,), {1: "absent"})]
    assert hold_ups(job(programs, Setting(damaged=frozenset({1})))) == [((0,), {1: "unknown"})]


def test_only_the_first_unfinished_call_of_a_rank_counts() -> None:
    trace = job({0: [NEXT, NEXT, NEXT], 1: []}, Setting(config={"1": [(0, 1)]}))
    assert [call.seq for call in wait_graph(trace).calls.values()] == [1]


def test_a_batch_waits_in_each_of_its_transfers() -> None:
    programs = {
        0: ["pp:1 barrier done", "pp:1 send>1 member", "pp:1 recv<2 member", "pp:1 coalesced batch p2p"],
        1: ["pp:1 barrier done"],
        2: ["pp:1 barrier done"],
    }
    assert hold_ups(job(programs)) == [((0,), {1: "absent"}), ((0,), {2: "absent"})]


# Ranks that never came


def test_a_rank_that_never_came_is_stuck_after_its_last_call() -> None:
    trace = job({0: [DONE, NEXT], 1: [DONE, NEXT], 2: [DONE]})
    assert verdict(trace) == ("rank-stuck", (2,), "certain")
    cause = root_cause(trace)
    assert lines(cause) == (10, 20)
    assert cause.title == "rank 2 never reached the all_reduce that 2 peers are waiting in"
    assert cause.evidence.n_blocked == 2


def test_a_rank_that_made_no_call_at_all_is_stuck_too() -> None:
    trace = job({0: [NEXT], 1: [NEXT], 2: []}, Setting(config={"1": [(0, 1, 2)]}))
    assert verdict(trace) == ("rank-stuck", (2,), "certain")
    assert root_cause(trace).location is None


def test_ranks_stuck_at_the_same_place_are_one_cause() -> None:
    trace = job({0: [DONE, NEXT], 1: [DONE], 2: [DONE], 3: [DONE, NEXT]})
    assert verdict(trace) == ("rank-stuck", (1, 2), "certain")


def test_the_number_of_ranks_blocked_over_others_is_told() -> None:
    programs = {
        0: ["c:3 all_reduce"],
        1: ["b:2 all_reduce", "c:3 all_reduce"],
        2: ["a:1 all_reduce", "b:2 all_reduce"],
        3: [],
        4: ["d:4 all_reduce done"],
        5: ["d:4 all_reduce done"],
    }
    config = {"1": [(2, 3)], "2": [(1, 2)], "3": [(0, 1)], "4": [(4, 5)]}
    cause = root_cause(job(programs, Setting(config=config)))
    assert (cause.rule, cause.ranks, cause.evidence.n_blocked) == ("rank-stuck", (3,), 3)
    assert cause.evidence.notes == ("2 more ranks are blocked by this",)


def test_a_thousand_equal_ranks_are_one_stack() -> None:
    programs = {rank: [DONE, NEXT] if rank != 513 else [DONE] for rank in range(1024)}
    cause = root_cause(job(programs))
    assert cause.ranks == (513,)
    assert cause.evidence.n_blocked == 1023
    assert [(stack.label, len(stack.ranks)) for stack in cause.evidence.stacks] == [("last call", 1), ("waiting", 1023)]
    # torch's own frame is counted, not shown.
    assert [(frame.file, frame.line) for frame in cause.evidence.stacks[1].frames] == [("loop.py", 20)]
    assert cause.evidence.stacks[1].n_hidden == 1
    assert cause.evidence.comparison is not None
    assert [side.label for side in cause.evidence.comparison.sides] == ["1023 ranks", "rank 513"]


def test_both_sides_are_shown_with_the_calls_before() -> None:
    comparison = root_cause(job({0: [DONE, DONE, NEXT], 1: [DONE, DONE]})).evidence.comparison
    assert comparison is not None
    assert (comparison.keys, comparison.mark) == (("1", "2", "3"), 2)
    assert [side.cells[-1] for side in comparison.sides] == ["all_reduce  [8]  f32  waiting", "not called"]


# Ranks without a dump


def test_a_rank_without_a_dump_that_others_wait_for_is_lost() -> None:
    trace = job({0: [DONE, NEXT], 1: [DONE, NEXT]}, Setting(config={"1": [(0, 1, 2)]}))
    assert verdict(trace) == ("rank-lost", (2,), "likely")
    cause = root_cause(trace)
    assert (cause.location, lines(cause)[1]) == (None, 20)
    assert "it was alive at seq 1 of group 1 (dp), which completed" in cause.evidence.likely


def test_two_lost_ranks_that_different_ranks_wait_for_are_both_causes() -> None:
    programs = {0: ["a:1 all_reduce +50"], 2: ["b:2 all_reduce +10"]}
    trace = job(programs, Setting(config={"1": [(0, 1)], "2": [(2, 3)]}))
    told = [(finding.rule, finding.ranks) for finding in findings(trace) if finding.severity == "error"]
    assert told == [("rank-lost", (3,)), ("rank-lost", (1,))], "no wait leads from one to the other"


def test_of_lost_ranks_that_hold_up_the_same_ranks_the_one_that_blocked_first_is_the_cause() -> None:
    programs = {0: ["a:1 all_reduce +50"], 2: ["b:2 all_reduce +10"]}
    trace = job(programs, Setting(config={"1": [(0, 1, 2)], "2": [(2, 3)]}))
    assert verdict(trace) == ("rank-lost", (3,), "likely")
    assert any("rank 1" in note for note in root_cause(trace).evidence.notes)


def test_two_stuck_ranks_in_groups_of_their_own_are_both_causes() -> None:
    programs = {0: [DONE, NEXT], 1: [DONE], 2: ["x:2 all_reduce done"] * 2 + ["x:2 all_reduce"]}
    programs |= {3: ["x:2 all_reduce done"] * 2, 4: programs[2]}
    told = [finding for finding in findings(job(programs)) if finding.severity == "error"]
    # Rank 3 holds up two ranks, rank 1 only one.
    assert [(finding.rule, finding.ranks) for finding in told] == [("rank-stuck", (3,)), ("rank-stuck", (1,))]
    assert [finding.evidence.n_blocked for finding in told] == [2, 1]


def test_a_lost_rank_that_more_wait_for_goes_before_a_stuck_one() -> None:
    programs = {0: [DONE, NEXT], 1: [DONE], **{rank: ["x:2 barrier"] for rank in (2, 3, 4)}}
    setting = Setting(config={"1": [(0, 1)], "2": [(2, 3, 4, 5)]})
    told = findings(job(programs, setting))
    assert [(finding.rule, finding.ranks) for finding in told] == [("rank-lost", (5,)), ("rank-stuck", (1,))]


def test_a_rank_that_wrote_a_damaged_file_was_alive() -> None:
    programs = {0: [DONE, NEXT], 1: [DONE]}
    trace = job(programs, Setting(config={"1": [(0, 1, 2)]}, damaged=frozenset({1})))
    assert verdict(trace) == ("rank-lost", (2,), "likely")


def test_a_known_cause_goes_before_a_missing_dump() -> None:
    trace = job({0: [DONE, NEXT], 1: [DONE]}, Setting(config={"1": [(0, 1, 2)]}))
    assert verdict(trace) == ("rank-stuck", (1,), "certain")


def test_where_no_end_is_recorded_the_missing_dump_speaks_alone() -> None:
    calls = ["dp:1 all_reduce gloo done"] * 3
    trace = job({0: calls, 1: calls}, Setting(config={"1": [(0, 1, 2)]}))
    assert verdict(trace) == ("rank-lost", (2,), "likely")
    finished = [DONE] * 3
    assert [
        finding.code for finding in findings(job({0: finished, 1: finished}, Setting(config={"1": [(0, 1, 2)]})))
    ] == ["D901"]


# Cycles

ORDERED = [f"{group} all_reduce done @loop.py:{line}" for group, line in (("a:1", 1), ("b:2", 2), ("a:1", 3))]
IN_A, IN_B = "a:1 all_reduce @loop.py:1", "b:2 all_reduce @loop.py:2"


def test_two_ranks_in_different_order_are_a_deadlock_of_both() -> None:
    config = {"1": [(0, 1)], "2": [(0, 1)]}
    trace = job({0: [IN_A], 1: [IN_B]}, Setting(config=config))
    assert verdict(trace) == ("order-deadlock", (0, 1), "certain")
    comparison = root_cause(trace).evidence.comparison
    assert comparison is not None
    assert {side.cells[:3] for side in comparison.sides} == {
        ("group 1 (a)", "all_reduce [8] f32", "step (loop.py:1)"),
        ("group 2 (b)", "all_reduce [8] f32", "step (loop.py:2)"),
    }


def test_the_rank_that_left_the_order_is_named() -> None:
    programs = {rank: [*ORDERED * 3, IN_A] for rank in (0, 1, 3)}
    trace = job({**programs, 2: [*ORDERED * 3, IN_B]})
    assert verdict(trace) == ("order-deadlock", (2,), "likely")
    assert lines(root_cause(trace)) == (2, 1)
    assert root_cause(trace).evidence.n_blocked == 3


def test_of_two_ranks_the_one_that_left_its_own_order_is_named() -> None:
    trace = job({0: [*ORDERED * 3, IN_A], 1: [*ORDERED * 3, IN_B]})
    assert verdict(trace) == ("order-deadlock", (1,), "likely")


def test_a_cycle_over_three_groups_names_all_of_it() -> None:
    programs = {0: ["a:1 barrier"], 1: ["b:2 barrier"], 2: ["c:3 barrier"]}
    trace = job(programs, Setting(config={"1": [(0, 1)], "2": [(1, 2)], "3": [(2, 0)]}))
    assert verdict(trace) == ("order-deadlock", (0, 1, 2), "certain")
    assert "in 3 calls of 3 groups" in root_cause(trace).title


def test_a_chain_that_only_leads_to_a_stuck_rank_is_no_cycle() -> None:
    trace = job({0: [IN_A], 1: [IN_B], 2: []}, Setting(config={"1": [(0, 1, 2)], "2": [(0, 1)]}))
    # Ranks 0 and 1 wait for each other, but rank 2 holds up rank 0 as well: which of them is first cannot be seen.
    assert wait_graph(trace).cycles() == []
    assert verdict(trace) == ("rank-stuck", (2,), "certain")


def test_two_sends_that_face_each_other_are_a_deadlock() -> None:
    programs = {
        0: ["pp:1 barrier done", "pp:1 send>1 @p.py:1", "pp:1 recv<1 @p.py:2"],
        1: ["pp:1 barrier done", "pp:1 send>0 @p.py:1", "pp:1 recv<0 @p.py:2"],
    }
    assert verdict(job(programs)) == ("order-deadlock", (0, 1), "certain")


# Transfers


def pipeline(n_steps: int) -> dict[int, list[str]]:
    """Two pipelines of two stages: two transfers, then an all_reduce of the world, step after step."""
    reduce = "w:0 all_reduce done @train.py:9"
    first = ["pp:{} send>1 done @stage.py:1", "pp:{} send>1 done @stage.py:2"]
    second = ["pp:{} recv<0 done @stage.py:5", "pp:{} recv<0 done @stage.py:6"]
    return {
        rank: [call.format(1 + rank // 2) for call in (first, second)[rank % 2] + [reduce]] * n_steps
        for rank in range(4)
    }


def waiting(calls: list[str]) -> list[str]:
    return [call.replace(" done", "") for call in calls]


def test_a_whole_pipeline_raises_no_alarm() -> None:
    assert alarms(job(pipeline(4))) == []


def test_a_receive_that_was_left_out_is_named() -> None:
    programs = pipeline(4)
    for rank in (0, 1):
        programs[rank][-1:] = waiting(programs[rank][-1:])
    programs[2][-2:] = waiting(programs[2][-2:-1])
    programs[3][-2:] = waiting(programs[3][-1:])  # no second receive in the last step
    trace = job(programs, Setting(config={"0": [range(4)], "1": [(0, 1)], "2": [(2, 3)]}))
    assert verdict(trace) == ("p2p-unmatched", (3,), "likely")
    cause = root_cause(trace)
    assert cause.title == "rank 3 skipped its receive from rank 2 in step (stage.py:6); rank 2 is waiting for it"
    assert cause.evidence.n_blocked == 3


def test_a_send_too_many_is_named() -> None:
    programs = pipeline(4)
    for rank in (0, 1, 3):
        programs[rank][-1:] = waiting(programs[rank][-1:])
    programs[2][-1:] = ["pp:2 send>1 @stage.py:2"]
    trace = job(programs, Setting(config={"0": [range(4)], "1": [(0, 1)], "2": [(2, 3)]}))
    assert verdict(trace) == ("p2p-unmatched", (2,), "likely")
    assert root_cause(trace).title == "rank 2 made an extra send to rank 3 in step (stage.py:2)"


def test_sides_of_a_transfer_that_do_not_fit_are_a_size_mismatch() -> None:
    programs = {0: ["pp:1 barrier done", "pp:1 send>1 [8]"], 1: ["pp:1 barrier done", "pp:1 recv<0 [4]"]}
    trace = job(programs)
    assert verdict(trace) == ("size-mismatch", (0, 1), "certain")
    assert root_cause(trace).title == "rank 0 sends [8], but rank 1 expects [4]"


# Nobody is missing


def test_a_call_that_all_joined_and_that_does_not_end_is_stalled() -> None:
    trace = job({rank: [DONE, NEXT] for rank in range(3)})
    assert verdict(trace) == ("collective-stalled", (0, 1, 2), "certain")


def test_with_timing_the_rank_that_has_not_started_is_named() -> None:
    started = "dp:1 all_reduce started @loop.py:20"
    trace = job({0: [DONE, started], 1: [DONE, NEXT], 2: [DONE, started]})
    assert verdict(trace) == ("collective-stalled", (1,), "certain")
    assert root_cause(trace).title.endswith(": it has not started on rank 1")


def test_a_stall_that_follows_from_a_stuck_rank_is_its_effect() -> None:
    programs = {0: [DONE, NEXT], 1: [DONE], 2: ["x:2 barrier"], 3: ["x:2 barrier"]}
    trace = job(programs)
    assert verdict(trace) == ("rank-stuck", (1,), "certain")
    assert "collective-stalled" in [effect.rule for effect in effects(trace)]


def test_a_stall_of_ranks_that_wait_for_nobody_stuck_stands_on_its_own() -> None:
    """A barrier of ten seconds does not just happen to run."""
    programs = {0: [DONE, f"{NEXT} +10000"], 1: [DONE], 2: ["x:2 barrier"], 3: ["x:2 barrier"]}
    told = {(finding.rule, finding.ranks) for finding in findings(job(programs)) if finding.severity == "error"}
    assert told == {("rank-stuck", (1,)), ("collective-stalled", (2, 3))}


def test_a_member_whose_call_was_evicted_may_have_made_another_one() -> None:
    setting = Setting(config={"1": [(0, 1, 2)]}, dropped={1: 50}, counters={(1, "1"): (6, 5)})
    call = "dp:1 all_reduce #6 @loop.py:20"
    assert verdict(job({0: [call], 1: [], 2: [call]}, setting)) == ("collective-stalled", (1,), "possible")
