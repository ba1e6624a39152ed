"""How each kind of fault changes the programs at one place, and what the right verdict is on the run that follows.

Places where two verdicts would explain the dumps equally well are left out, since there would be no truth to check
against.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from rankscope.simulate.engine import Disturbance, RankRun, Run
from rankscope.simulate.groups import Group
from rankscope.simulate.places import Place
from rankscope.simulate.program import Call, Program
from rankscope.simulate.spec import Truth
from rankscope.simulate.uneven import with_wrong_size

LATE_NS = 80_000_000
_OTHER_DTYPE = {"BFloat16": "Half", "Float": "Double"}


@dataclass(frozen=True)
class Attempt:
    disturbance: Disturbance
    judge: Callable[[Run], Truth | None]
    """Reads the truth off the run; None if the fault does not show at this place."""


def _has_reference(place: Place, group: Group) -> bool:
    """Whether a majority, a sibling group or an earlier step shows which of the group's members is the odd one."""
    return len(group.ranks) > 2 or place.groups.n_with_desc[group.desc] > 1 or not place.is_first_step


def _where(place: Place) -> str:
    call = place.call
    return f"{call.op} on {call.group.desc} in step {place.step} ({call.site.location[2]})"


# --- a rank that goes away


def _plan_lost(place: Place) -> Attempt:
    return _plan_stop(place, "rank-lost", "died")


def _plan_stuck(place: Place) -> Attempt:
    return _plan_stop(place, "rank-stuck", "stopped in Python")


def _plan_stop(place: Place, rule: str, verb: str) -> Attempt:
    def judge(run: Run) -> Truth | None:
        waiting = _first_waiting_for(place, run)
        if waiting is None or len(run.ranks[place.rank].done_ns) < place.flat_index:
            return None
        made = place.flat_index
        last_site = place.program.calls()[made - 1].site if made and rule == "rank-stuck" else None
        return Truth(
            rule,
            (place.rank,),
            waiting.group.desc,
            waiting.op,
            last_site.location if last_site else None,
            waiting.site.location,
            f"Rank {place.rank} {verb} before its {_where(place)}.",
        )

    return Attempt(Disturbance(stops={place.rank: place.flat_index}), judge)


def _plan_node(place: Place) -> Attempt | None:
    """All ranks of the host die while its rank is at the place."""
    job, per_host = place.job, place.job.spec.ranks_per_host
    first = place.rank // per_host * per_host
    node = tuple(range(first, min(first + per_host, job.spec.mesh.world)))
    if len(node) == job.spec.mesh.world or len(node) == 1:
        return None
    stops = {}
    for rank in node:
        program = job.programs[rank]
        stops[rank] = program.step_starts()[place.step] + min(place.index, len(program.steps[place.step]))

    def judge(run: Run) -> Truth | None:
        waits = [
            (other.arrived_ns[-1], number, other.pending)
            for number, other in enumerate(run.ranks)
            if number not in node and other.pending is not None and not set(node).isdisjoint(other.pending.partners)
        ]
        if not waits:
            return None
        call = min(waits)[2]
        note = f"The host of ranks {node[0]} to {node[-1]} died in step {place.step}."
        return Truth("rank-lost", node, call.group.desc, call.op, None, call.site.location, note)

    return Attempt(Disturbance(stops=stops), judge)


def _first_waiting_for(place: Place, run: Run) -> Call | None:
    """The peers' call that waits for the first of the calls that the rank never made.

    None where the peers' clocks and the rank's program disagree on which call that is.
    """
    never_made = place.program.calls()[place.flat_index :]
    waits: list[tuple[int, int, Call]] = []
    for number, other in enumerate(run.ranks):
        call = other.pending
        if call is not None and number != place.rank and place.rank in call.partners:
            answers = [
                i for i, future in enumerate(never_made) if future.group is call.group and number in future.partners
            ]
            if answers:
                waits.append((answers[0], other.arrived_ns[-1], call))
    if not waits:
        return None
    first = min(waits, key=lambda wait: wait[:2])[2]
    earliest = min(waits, key=lambda wait: wait[1])[2]
    return first if earliest.site is first.site else None


# --- calls that do not fit together


def _plan_op(place: Place) -> Attempt | None:
    made = place.call.alternative
    return _plan_mismatch(place, made, "op-mismatch", f"called {made.op} in place of") if made else None


def _plan_size(place: Place) -> Attempt | None:
    if place.call.agreement is not None and place.call.op != "all_to_all":
        made = with_wrong_size(place.call, place.rank)
        return _plan_mismatch(place, made, "size-mismatch", "miscounted its rows in")
    if place.call.op != "all_reduce":
        return None
    # Not a multiple of any other size in the job, so that it cannot be mistaken for another call's tensor.
    shape = place.call.input_sizes[0]
    sizes = ((shape[0] + 3, *shape[1:]),)
    made = replace(place.call, input_sizes=sizes, output_sizes=sizes)
    return _plan_mismatch(place, made, "size-mismatch", f"passed a tensor of size {list(sizes[0])} to")


def _plan_dtype(place: Place) -> Attempt | None:
    if place.call.op != "all_reduce":
        return None
    made = replace(place.call, dtype=_OTHER_DTYPE[place.call.dtype])
    return _plan_mismatch(place, made, "dtype-mismatch", f"passed a tensor of type {made.dtype} to")


def _plan_mismatch(place: Place, made: Call, rule: str, did: str) -> Attempt | None:
    call = place.call
    if not _has_reference(place, call.group):
        return None

    def judge(run: Run) -> Truth | None:
        if run.ranks[place.rank].pending is not made:
            return None
        note = f"Rank {place.rank} {did} the {_where(place)}."
        return Truth(rule, (place.rank,), call.group.desc, call.op, made.site.location, call.site.location, note)

    return Attempt(place.changes(place.replace_calls(1, made)), judge)


# --- calls too few or too many


def _plan_skip(place: Place) -> Attempt | None:
    left_out = [replace(place, index=place.index + number) for number in range(place.n_calls)]
    if left_out[-1].index >= len(place.calls) or not all(_may_be_shifted(each) for each in left_out):
        return None
    if any(each.call.group is not place.call.group for each in left_out):
        return None
    further = f" and {place.n_calls - 1} more" if place.n_calls > 1 else ""
    note = f"Rank {place.rank} skipped the {_where(place)}{further}."
    return _plan_shift(place, place.replace_calls(place.n_calls), place.position, note)


def _plan_repeat(place: Place) -> Attempt | None:
    if not _may_be_shifted(place):
        return None
    repeated = place.replace_calls(1, place.call, place.call)
    return _plan_shift(place, repeated, place.position + 1, f"Rank {place.rank} made the {_where(place)} twice.")


def _may_be_shifted(place: Place) -> bool:
    call = place.call
    if call.transfers or not _has_reference(place, call.group):
        return False
    if place.job.spec.program == "random":
        return True
    # The loss is reduced last: without another world call in the step nothing would show at its position.
    if call.op != "all_reduce" or call.site.location[2] == "sync_loss":
        return False
    # Buckets share one line: only an earlier step tells a missing bucket from one of a wrong size.
    return call.group.desc != "dp" or not place.is_first_step


def _plan_shift(place: Place, program: Program, position: int, note: str) -> Attempt | None:
    """A program in which the rank's calls on one group are shifted against its peers' from a position on."""
    group = place.call.group
    calls = _collectives_on(group, program)
    normal = _collectives_on(group, place.program)
    # In a row of equal calls the shift shows only at the end of the row.
    while position < min(len(calls), len(normal)) and calls[position].looks_like(normal[position]):
        position += 1
    if position >= len(calls):
        return None
    made = calls[position]
    is_repeat = len(calls) > len(normal)

    def judge(run: Run) -> Truth | None:
        if not run.is_hung or _n_enqueued(group, run.ranks[place.rank]) <= position:
            return None
        peers_came = any(_n_enqueued(group, run.ranks[peer]) > position for peer in group.ranks if peer != place.rank)
        if not peers_came and (not is_repeat or place.is_first_step):
            return None
        peer_site = normal[position].site if peers_came else None
        return Truth(
            "call-skipped",
            (place.rank,),
            group.desc,
            place.call.op,
            made.site.location,
            peer_site.location if peer_site else None,
            note,
        )

    return Attempt(place.changes(program), judge)


def _collectives_on(group: Group, program: Program) -> list[Call]:
    return [call for call in program.calls() if call.group is group and not call.transfers]


def _n_enqueued(group: Group, rank: RankRun) -> int:
    made = rank.calls[: len(rank.created_ns)]
    return sum(call.group is group and not call.transfers for call in made)


# --- calls in the wrong order, transfers without a partner


def _plan_order(place: Place) -> Attempt | None:
    if place.index + 1 >= len(place.calls):
        return None
    first, second = place.call, place.calls[place.index + 1]
    # A rank that is in both groups closes the cycle: it waits in the first call for the one that waits in the second.
    shared = set(first.group.ranks) & set(second.group.ranks) - {place.rank}
    if first.transfers or second.transfers or first.group is second.group or not shared:
        return None
    if not _has_reference(place, first.group):
        return None

    def judge(run: Run) -> Truth | None:
        if run.ranks[place.rank].pending is not second:
            return None
        note = f"Rank {place.rank} called {second.op} on {second.group.desc} before its {_where(place)}."
        location, peer_location = second.site.location, first.site.location
        return Truth("order-deadlock", (place.rank,), first.group.desc, first.op, location, peer_location, note)

    return Attempt(place.changes(place.replace_calls(2, second, first)), judge)


def _plan_p2p(place: Place) -> Attempt | None:
    call = place.call
    if not call.transfers or not _has_reference(place, call.group):
        return None
    dropped = call.transfers[(place.rank + place.step) % len(call.transfers)]
    kept = [transfer for transfer in call.transfers if transfer is not dropped]
    program = place.replace_calls(1, replace(call, transfers=tuple(kept))) if kept else place.replace_calls(1)
    op, preposition = ("send", "to") if dropped.is_send else ("recv", "from")

    def judge(run: Run) -> Truth | None:
        waiting = run.ranks[dropped.peer].pending
        if waiting is None or (not dropped.is_send, place.rank) not in waiting.transfers:
            return None
        pending = run.ranks[place.rank].pending
        return Truth(
            "p2p-unmatched",
            (place.rank,),
            call.group.desc,
            op,
            pending.site.location if pending else None,
            waiting.site.location,
            f"Rank {place.rank} skipped its {op} {preposition} rank {dropped.peer} in step {place.step}.",
        )

    return Attempt(place.changes(program), judge)


def _plan_groups(place: Place) -> Attempt | None:
    """The rank takes the dp group for the ep group and the other way round, in the whole generation."""
    dp, ep = place.groups.dp.get(place.rank), place.groups.ep.get(place.rank)
    if dp is None or ep is None or len(dp.ranks) < 3:
        return None
    other = {dp: ep, ep: dp}
    spec = place.job.spec
    steps = tuple(
        tuple(replace(call, group=other.get(call.group, call.group)) for call in step) for step in place.program.steps
    )
    program = replace(place.program, steps=steps, descs={dp: ep.desc, ep: dp.desc})
    made_in = max(step for step in range(place.step + 1) if spec.starts_generation(step))

    def judge(run: Run) -> Truth | None:
        pending = run.ranks[place.rank].pending
        if pending is None or pending.group not in other:
            return None
        note = f"Rank {place.rank} created its groups dp and ep in the opposite order, before step {made_in}."
        return Truth("group-order", (place.rank,), pending.group.desc, pending.op, pending.site.location, None, note)

    return Attempt(place.changes(program), judge)


# --- nobody's mistake


def _plan_stall(place: Place) -> Attempt | None:
    call = place.call
    if call.transfers:
        return None

    def judge(run: Run) -> Truth | None:
        if any(run.ranks[member].pending is not call for member in call.group.ranks):
            return None
        note = f"All members joined the {_where(place)}, but it never completed."
        return Truth("collective-stalled", call.group.ranks, call.group.desc, call.op, call.site.location, None, note)

    return Attempt(Disturbance(stalled=frozenset({(call.group, place.position + 1)})), judge)


def _plan_straggler(place: Place) -> Attempt | None:
    starts = place.program.step_starts()
    # Before a transfer the delay would hide in the pipeline's own waiting; before a collective the peers see it.
    late = [next(i for i, call in enumerate(step) if not call.transfers) for step in place.program.steps]
    first = place.program.steps[0][late[0]]
    delays = {start + offset: LATE_NS for start, offset in zip(starts, late, strict=True)}

    def judge(run: Run) -> Truth | None:
        if run.is_hung:
            return None
        note = f"Rank {place.rank} joined its first {first.op} 80 ms late in every step."
        return Truth("straggler", (place.rank,), first.group.desc, first.op, first.site.location, None, note)

    return Attempt(Disturbance(delays={place.rank: delays}), judge)


PLANNERS: dict[str, Callable[[Place], Attempt | None]] = {
    "lost": _plan_lost,
    "node": _plan_node,
    "stuck": _plan_stuck,
    "op": _plan_op,
    "size": _plan_size,
    "dtype": _plan_dtype,
    "skip": _plan_skip,
    "repeat": _plan_repeat,
    "order": _plan_order,
    "p2p": _plan_p2p,
    "groups": _plan_groups,
    "stall": _plan_stall,
    "straggler": _plan_straggler,
}
