"""Ranks of one group that did not make the same call: which of them is odd, and what it did."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from analyze.building import Setting, alarms, effects, findings, found, job, lines, root_cause, verdict
from rankscope.analyze.hangs.divergence import find_divergences

DONE = "dp:1 all_reduce [8] done @loop.py:10"
NEXT = "dp:1 all_reduce [8] @loop.py:20"
# One training step of a group: three calls that only their lines tell apart.
STEP = [f"dp:1 all_reduce [8] done @loop.py:{line}" for line in (10, 11, 12)]


def open_end(calls: Sequence[str], n_open: int = 1) -> list[str]:
    """The same calls, of which the last ones have not ended."""
    return [*calls[:-n_open], *(call.replace(" done", "") for call in calls[-n_open:])]


# One call that does not fit

ODD_CALLS = [
    ("dp:1 all_gather [8]->[32] @loop.py:15", "op-mismatch", "called all_gather where its 3 peers called all_reduce"),
    ("dp:1 all_reduce [7] @loop.py:15", "size-mismatch", "called all_reduce with [7] where its 3 peers passed [8]"),
    (
        "dp:1 all_reduce [8] bf16 @loop.py:15",
        "dtype-mismatch",
        "called all_reduce with bf16 where its 3 peers passed f32",
    ),
]


@pytest.mark.parametrize("odd_rank", [0, 2])
@pytest.mark.parametrize(("call", "rule", "title"), ODD_CALLS)
def test_the_odd_rank_is_named_by_majority(odd_rank: int, call: str, rule: str, title: str) -> None:
    trace = job({rank: [DONE, call if rank == odd_rank else NEXT] for rank in range(4)})
    assert verdict(trace) == (rule, (odd_rank,), "certain")
    cause = root_cause(trace)
    assert cause.title == f"rank {odd_rank} {title}"
    assert lines(cause) == (15, 20)
    assert cause.collective is not None
    assert (cause.collective.seq, cause.collective.op) == (2, "all_reduce")
    assert cause.evidence.facts["basis"] == "majority"
    assert [(stack.label, len(stack.ranks)) for stack in cause.evidence.stacks] == [("culprit", 1), ("peers", 3)]


def test_ranks_that_made_the_same_odd_call_share_the_verdict() -> None:
    odd = [DONE, "dp:1 broadcast [8] @loop.py:15"]
    trace = job({0: [DONE, NEXT], 1: odd, 2: [DONE, NEXT], 3: odd, 4: [DONE, NEXT]})
    assert verdict(trace) == ("op-mismatch", (1, 3), "certain")


@pytest.mark.parametrize("call", [call.replace(":15", ":30") for call, _, _ in ODD_CALLS])
def test_a_call_from_a_later_line_may_follow_a_skipped_one(call: str) -> None:
    """Defect: an op-mismatch, for certain, where a rank left out a call before one that comes seldom."""
    trace = job({rank: [DONE, call if rank == 2 else NEXT] for rank in range(4)})
    assert (verdict(trace)[1], verdict(trace)[2]) == ((2,), "likely")


@pytest.mark.parametrize("size", [7, 8])
def test_the_same_mistake_in_two_groups_is_not_a_part_of_the_program(size: int) -> None:
    """Defect: one of two wrong sizes was told as a skipped call, since another rank made such a call too."""
    wrong = f"{{}}:{{}} all_reduce [{size}] {'bf16 ' * (size == 8)}@tp.py:4"
    programs = pairs(0, n_pairs=4)
    for rank in (0, 6):
        programs[rank] = [programs[1][0].replace("tp:0", f"tp:{rank // 2}"), wrong.format("tp", rank // 2)]
    causes = [(cause.rule, cause.ranks) for cause in findings(job(programs)) if cause.code[0] == "H"]
    rule = "size-mismatch" if size == 7 else "dtype-mismatch"
    assert sorted(causes) == [(rule, (0,)), (rule, (6,))]


def test_another_call_where_peers_repeat_one_may_follow_a_skipped_one() -> None:
    """Defect: an op-mismatch, for certain, where a rank left out the last of several equal calls."""
    odd = [DONE, "dp:1 broadcast [8] @loop.py:30"]
    repeated = [DONE, DONE.replace(" done", "")]
    trace = job({0: repeated, 1: repeated, 2: odd, 3: repeated})
    assert verdict(trace) == ("op-mismatch", (2,), "likely")


def test_shapes_of_equal_size_are_no_mismatch() -> None:
    trace = job({0: ["dp:1 all_reduce [2,4] done"], 1: ["dp:1 all_reduce [8] done"]})
    assert alarms(trace) == []


def test_a_mismatch_in_the_window_of_all_is_seen_although_one_ring_has_dropped_it() -> None:
    whole = [DONE, DONE, NEXT]
    odd = [DONE, DONE, "dp:1 broadcast [8] @loop.py:15"]
    dropped = ["dp:1 all_reduce [8] #3 @loop.py:20"]
    trace = job({0: whole, 1: whole, 2: odd, 3: dropped}, Setting(dropped={3: 2}))
    assert verdict(trace) == ("op-mismatch", (2,), "certain")


# Uneven exchanges


def test_an_uneven_exchange_that_adds_up_is_fine() -> None:
    programs = {0: ["ep:1 all_to_all [6]->[4] done"], 1: ["ep:1 all_to_all [2]->[4] done"]}
    assert alarms(job(programs)) == []


def test_an_exchange_that_does_not_add_up_names_the_odd_rank() -> None:
    call = "ep:1 all_to_all [8]->[8]"
    trace = job({0: [call], 1: [call], 2: ["ep:1 all_to_all [6]->[8]"], 3: [call]})
    assert verdict(trace)[:2] == ("size-mismatch", (2,))
    assert root_cause(trace).evidence.facts["basis"] == "totals"


def test_an_exchange_is_not_judged_while_a_member_is_unknown() -> None:
    programs = {0: ["ep:1 all_to_all [6]->[4] done"], 1: ["ep:1 all_to_all [2]->[5] done"]}
    trace = job(programs, Setting(config={"1": [(0, 1, 2)]}))
    assert "size-mismatch" not in [finding.rule for finding in (*findings(trace), *effects(trace))]


# Ties


def test_a_tie_is_said_to_be_a_tie() -> None:
    trace = job({0: [DONE, NEXT], 1: [DONE, "dp:1 all_gather [8]->[16] @loop.py:30"]})
    assert verdict(trace) == ("op-mismatch", (0, 1), "likely")
    cause = root_cause(trace)
    assert cause.evidence.facts["basis"] == "tie"
    assert "the data does not show which side is right, so both are named" in cause.evidence.likely[0]
    assert cause.title.endswith("at the same position of group 1 (dp)")


def test_two_against_two_is_a_tie_as_well() -> None:
    odd = [DONE, "dp:1 broadcast [8] @loop.py:30"]
    trace = job({0: [DONE, NEXT], 1: odd, 2: [DONE, NEXT], 3: odd})
    assert verdict(trace) == ("op-mismatch", (0, 1, 2, 3), "likely")


def pairs(odd_rank: int, n_pairs: int, desc: str = "tp") -> dict[int, list[str]]:
    """Tensor-parallel pairs of which one rank makes another call in the second step."""
    first, second = "{}:{} all_reduce [8] done @tp.py:1", "{}:{} all_reduce [8] @tp.py:4"
    odd = "{}:{} all_gather [8]->[16] @tp.py:3"
    return {
        rank: [text.format(desc, rank // 2) for text in (first, odd if rank == odd_rank else second)]
        for rank in range(2 * n_pairs)
    }


@pytest.mark.parametrize("odd_rank", [0, 1, 3])
def test_a_tie_is_broken_by_sibling_groups(odd_rank: int) -> None:
    trace = job(pairs(odd_rank, n_pairs=3))
    assert verdict(trace) == ("op-mismatch", (odd_rank,), "certain")
    assert root_cause(trace).evidence.facts["basis"] == "siblings"


def test_groups_of_another_role_break_no_tie() -> None:
    programs = pairs(0, n_pairs=1)
    programs.update({2 + rank: calls for rank, calls in enumerate(pairs(9, n_pairs=1, desc="other").values())})
    renamed = {rank: [call.replace("other:0", "other:7") for call in calls] for rank, calls in programs.items()}
    assert root_cause(job(renamed)).evidence.facts["basis"] == "tie"


@pytest.mark.parametrize("odd_rank", [0, 1])
def test_a_tie_is_broken_by_the_ranks_own_earlier_steps(odd_rank: int) -> None:
    step = ["tp:1 all_reduce [8] done @tp.py:1", "tp:1 all_reduce [4] done @tp.py:2"]
    odd = "tp:1 all_gather [8]->[16] @tp.py:3"
    usual = [*step * 3, step[0].replace(" done", "")]
    trace = job({rank: [*step * 3, odd] if rank == odd_rank else usual for rank in (0, 1)})
    assert verdict(trace) == ("op-mismatch", (odd_rank,), "likely")
    assert root_cause(trace).evidence.facts["basis"] == "history"


# Calls left out or made once more


def test_a_skipped_call_is_named_with_its_line_and_where_the_hang_shows() -> None:
    whole = STEP * 3
    skipping = [*whole[:4], *whole[5:]]
    trace = job({rank: skipping if rank == 1 else open_end(whole) for rank in range(4)})
    assert verdict(trace) == ("call-skipped", (1,), "likely")
    cause = root_cause(trace)
    assert cause.title == "rank 1 skipped all_reduce [8] f32 in step (loop.py:11)"
    assert lines(cause) == (12, 11)
    facts = cause.evidence.facts
    assert (facts["what"], facts["n_calls"], facts["call"]["line"]) == ("skipped", 1, 11)
    assert facts["hangs_at"] == {"group": "1", "seq": 9}
    assert cause.collective is not None
    assert cause.collective.seq == 5


def test_two_skipped_calls_are_counted() -> None:
    whole = STEP * 3
    skipping = [*whole[:4], *whole[6:]]
    cause = root_cause(job({rank: skipping if rank == 1 else open_end(whole, 2) for rank in range(4)}))
    assert (cause.rule, cause.ranks, cause.evidence.facts["n_calls"]) == ("call-skipped", (1,), 2)


def test_a_repeated_call_is_named() -> None:
    whole = STEP * 3
    repeating = open_end([*whole[:5], whole[4], *whole[5:]])
    trace = job({rank: repeating if rank == 2 else whole for rank in range(4)})
    assert verdict(trace) == ("call-skipped", (2,), "likely")
    cause = root_cause(trace)
    assert cause.evidence.facts["what"] == "repeated"
    assert cause.title == "rank 2 made an extra call: all_reduce [8] f32 in step (loop.py:11)"
    assert lines(cause)[0] == 11
    assert [divergence.kind for divergence in find_divergences(trace)] == ["extra"]


def test_a_skip_that_shows_as_a_mismatch_is_still_a_skip() -> None:
    step = [STEP[0], "dp:1 all_gather [8]->[32] done @loop.py:11", STEP[2]]
    whole = step * 3
    skipping = open_end([*whole[:4], *whole[5:]], 4)
    trace = job({rank: skipping if rank == 1 else open_end(whole, 5) for rank in range(4)})
    assert verdict(trace) == ("call-skipped", (1,), "likely")
    assert root_cause(trace).evidence.facts["call"]["line"] == 11


def test_the_hang_may_show_later_than_the_skipped_call() -> None:
    step = [STEP[0], STEP[1], "dp:1 all_gather [8]->[32] done @loop.py:12"]
    whole = step * 3
    # Without its fourth call rank 1 still fits at seq 4; only at seq 5 does it gather where the others reduce.
    skipping = open_end([*whole[:3], *whole[4:]], 4)
    trace = job({rank: skipping if rank == 1 else open_end(whole, 5) for rank in range(4)})
    assert verdict(trace) == ("call-skipped", (1,), "likely")
    cause = root_cause(trace)
    assert (cause.evidence.facts["call"]["line"], cause.evidence.facts["hangs_at"]["seq"]) == (10, 5)
    assert cause.evidence.n_blocked == 3


def test_in_a_pair_the_sibling_pairs_tell_who_skipped() -> None:
    def pair_program(name: int) -> list[str]:
        return [call.replace("dp:1", f"tp:{name}") for call in STEP * 3]

    programs = {rank: open_end(pair_program(rank // 2)) for rank in range(6)}
    whole = pair_program(1)
    programs[3] = [*whole[:4], *whole[5:]]
    cause = root_cause(job(programs))
    assert (cause.rule, cause.ranks) == ("call-skipped", (3,))


def test_in_a_lone_pair_earlier_steps_tell_who_skipped() -> None:
    whole = STEP * 4
    trace = job({0: open_end(whole), 1: [*whole[:7], *whole[8:]]})
    assert verdict(trace)[:2] == ("call-skipped", (1,))


# What is no divergence


@pytest.mark.parametrize("n_steps", [1, 4])
def test_lines_that_differ_by_role_are_no_finding(n_steps: int) -> None:
    def program(rank: int) -> list[str]:
        line = 5 if rank == 0 else 7
        return [STEP[0], f"dp:1 broadcast [8] done @load.py:{line}", STEP[1]] * n_steps

    assert alarms(job({rank: program(rank) for rank in range(4)})) == []


def test_a_role_of_its_own_does_not_hide_another_ranks_fault() -> None:
    def program(rank: int) -> list[str]:
        return [STEP[0], f"dp:1 broadcast [8] done @load.py:{5 if rank == 0 else 7}", STEP[1], STEP[2]] * 3

    programs = {rank: open_end(program(rank)) for rank in range(4)}
    whole = program(2)
    programs[2] = [*whole[:6], *whole[7:]]
    cause = root_cause(job(programs))
    assert (cause.rule, cause.ranks, cause.evidence.facts["call"]["line"]) == ("call-skipped", (2,), 11)


def test_a_difference_in_state_is_no_finding() -> None:
    assert alarms(job({0: [DONE, DONE], 1: [DONE, NEXT.replace("20", "10")], 2: [DONE, DONE]})) == []


# Cause and effects


def test_the_earliest_divergence_is_the_cause_and_a_later_mismatch_its_effect() -> None:
    whole = STEP * 3
    after = "w:0 all_reduce [16] @loop.py:40"
    odd = "w:0 barrier @loop.py:41"
    programs = {rank: [*whole, after] for rank in range(4)}
    programs[1] = [*whole[:4], *whole[5:], after]
    programs[3] = [*whole, odd]
    trace = job(programs)
    assert verdict(trace)[:2] == ("call-skipped", (1,))
    assert ("op-mismatch", (3,)) in [(effect.rule, effect.ranks) for effect in effects(trace)]
    # By time, not by number of the group.
    assert [divergence.kind for divergence in find_divergences(trace)] == ["skip", "op"]


def test_ranks_blocked_behind_the_group_are_counted() -> None:
    programs = {rank: [DONE, NEXT] for rank in (0, 1, 2)}
    programs[2] = [DONE, "dp:1 broadcast [8] @loop.py:30"]
    programs[3] = ["tp:2 all_reduce [8]"]
    programs[4] = ["tp:3 all_reduce [8]"]
    setting = Setting(config={"1": [(0, 1, 2)], "2": [(0, 3)], "3": [(3, 4)]})
    cause = root_cause(job(programs, setting))
    assert (cause.rule, cause.ranks) == ("op-mismatch", (2,))
    # Two peers in the same call, one rank that waits for a peer, and one that waits for that one.
    assert cause.evidence.n_blocked == 4
    assert cause.evidence.notes == ("2 more ranks are blocked by this",)


def test_an_abort_after_a_mismatch_changes_nothing() -> None:
    aborted = [DONE, NEXT.replace(" @", " aborted @")]
    trace = job({0: aborted, 1: aborted, 2: [DONE, "dp:1 broadcast [8] aborted @loop.py:15"]})
    assert verdict(trace) == ("op-mismatch", (2,), "certain")
    assert found(trace, "H110").severity == "info"


def test_gloo_records_no_ends_and_is_judged_all_the_same() -> None:
    done, waits = "dp:1 all_reduce gloo done @a.py:1", "dp:1 all_reduce gloo @a.py:4"
    trace = job({0: [done, waits], 1: [done, waits], 2: [done, "dp:1 all_gather [8]->[24] gloo @a.py:3"]})
    assert verdict(trace) == ("op-mismatch", (2,), "certain")


# Sizes that may differ


def gathering(*parts: int, whole: int, state: str = "") -> dict[int, list[str]]:
    """Each rank gathers its own part into one flat tensor."""
    return {rank: [DONE, f"dp:1 all_gather [{part}]->[{whole}] {state}"] for rank, part in enumerate(parts)}


@pytest.mark.parametrize("parts", [(7, 3, 4), (2, 5, 7), (0, 7, 7)])
@pytest.mark.parametrize("state", ["done", ""])
def test_parts_that_make_up_what_is_gathered_fit_whatever_divides_it(parts: tuple[int, ...], state: str) -> None:
    told = [finding.rule for finding in findings(job(gathering(*parts, whole=14, state=state)))]
    assert "size-mismatch" not in told


def test_a_part_that_leaves_a_hole_does_not_fit() -> None:
    assert verdict(job(gathering(8, 8, 5, whole=24))) == ("size-mismatch", (2,), "certain")


def test_uneven_parts_are_not_blamed_for_a_rank_without_a_dump() -> None:
    setting = Setting(config={"1": [(0, 1, 2, 3)]})
    assert verdict(job(gathering(7, 9, 8, whole=32), setting))[0] == "rank-lost"
    assert verdict(job(gathering(8, 8, 5, whole=32), setting))[:2] == ("size-mismatch", (2,))


def test_sizes_that_differ_in_a_call_that_ended_and_was_followed_by_others_are_no_error() -> None:
    ended = {rank: [DONE, f"dp:1 all_reduce [{8 + rank}] done", DONE] for rank in range(3)}
    assert alarms(job(ended)) == []
    hangs = {rank: [DONE, f"dp:1 all_reduce [{8 + (rank == 2)}]"] for rank in range(3)}
    assert verdict(job(hangs))[:2] == ("size-mismatch", (2,))


def test_a_difference_behind_the_first_tensor_is_told_and_marked() -> None:
    programs = {rank: [DONE, "dp:1 all_reduce_coalesced [8][4]"] for rank in range(3)}
    programs[2] = [DONE, "dp:1 all_reduce_coalesced [8][5]"]
    cause = root_cause(job(programs))
    assert cause.title == "rank 2 called all_reduce_coalesced with input 2 [5] where its 2 peers passed input 2 [4]"
    assert cause.evidence.comparison is not None
    peers, odd = (side.cells[-1] for side in cause.evidence.comparison.sides)
    assert peers.endswith("<- input 2 [4]")
    assert odd.endswith("<- input 2 [5]")


def test_a_single_peer_is_called_by_its_rank() -> None:
    programs = {0: [DONE, NEXT], 1: [DONE, "dp:1 broadcast [8]"]}
    programs |= {2 + rank: [call.replace("dp:1", "dp:2") for call in programs[0]] for rank in range(2)}
    assert root_cause(job(programs)).title == "rank 1 called broadcast where rank 0 called all_reduce"
