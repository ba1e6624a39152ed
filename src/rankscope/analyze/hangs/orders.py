"""Orders that one rank left: that of its transfers in a pipeline's schedule, and that in which all ranks make groups.

A receive that is left out shifts all later transfers of the pair, so the hang shows somewhere else. But a schedule
repeats: from one call that comes once per step to the next, a rank makes the same transfers with the same neighbors.
And torch numbers groups in the order in which a rank makes them: whether all ranks mean the same group by its number.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence

import msgspec
import numpy as np

from rankscope.analyze.derived import derived
from rankscope.analyze.hangs.cause import Cause, GroupOrder, ScheduleChange, Transfer, first_join
from rankscope.analyze.hangs.programs import Programs, programs_of
from rankscope.analyze.hangs.shifts import explain_shift
from rankscope.analyze.hangs.view import JobView
from rankscope.analyze.hangs.waits import Cycle, WaitGraph, wait_graph
from rankscope.model.numbers import is_number
from rankscope.model.replicas import with_global_members
from rankscope.model.tables import MISSING, Array, Trace

_MAX_ANCHORS = 16  # kinds of collectives that are tried as the mark of a step
_MAX_STEPS = 32  # earlier steps that are compared
_MIN_ALIKE = 6  # calls that a step has in common with the only earlier one
_MAX_RANKS = 64  # of a cycle that are compared with their earlier steps


def _schedule_changes(trace: Trace) -> list[ScheduleChange]:
    """Of all ranks that make transfers; none where all of them changed, as then it is another schedule, not a fault."""
    view, programs = derived(trace, JobView), programs_of(trace)
    users = np.unique(view.rank[view.is_p2p]).tolist()
    compared = [rank for rank in users if rank in view.first_waiting or view.is_idle(rank)]
    changes = [change for rank in compared if (change := _change_of(view, programs, rank)) is not None]
    proven = [change for change in changes if change.is_proven]
    if proven:
        return proven if 4 * len(proven) <= len(compared) or len(proven) == 1 else []
    # One earlier step may be a part of one: it counts where a single rank differs, and only after a good while.
    return changes if len(changes) == 1 and changes[0].number >= _MIN_ALIKE else []


def _change_of(view: JobView, programs: Programs, rank: int) -> ScheduleChange | None:
    """The difference from the most similar earlier step; None where some earlier step begins in the same way."""
    rows = view.rows_of(rank)
    tokens = programs.token[rows]
    closest: tuple[bool, int, Array, Array] | None = None
    for current, earlier in _steps(view, rows, tokens, rank):
        repeats = Counter(programs.token[step].tobytes() for step in earlier)
        for step in earlier:
            n_same = _common_prefix(programs.token[current], programs.token[step])
            if n_same == len(current):
                return None
            is_proven = repeats[programs.token[step].tobytes()] > 1
            if closest is None or (is_proven, n_same) > closest[:2]:
                closest = (is_proven, n_same, current, step)
    if closest is None:
        return None
    is_proven, n_same, current, step = closest
    missing, extra = _difference(view, programs, current[n_same:], step[n_same:])
    if not missing and not extra:
        return None
    position = min(n_same, len(step) - 1)
    return ScheduleChange(rank, int(current[n_same]), int(step[position]), n_same, is_proven, missing, extra)


def _steps(view: JobView, rows: Array, tokens: Array, rank: int) -> Iterator[tuple[Array, list[Array]]]:
    """The step in which the rank hangs, and those before it, as each kind of collective would divide them."""
    first_open = view.first_waiting.get(rank, MISSING)
    n_done = int(np.searchsorted(rows, first_open)) if first_open != MISSING else len(rows)
    is_collective = ~view.is_p2p[rows]
    ranks = view.trace.table("ranks")
    is_whole = not ranks.array("n_dropped")[ranks.array("rank") == rank].any()
    for anchor in np.unique(tokens[is_collective]).tolist()[:_MAX_ANCHORS]:
        marks = np.flatnonzero(tokens == anchor)
        before = marks[marks < n_done]
        if not len(before):
            continue
        after = marks[marks >= n_done]
        current = rows[before[-1] + 1 : (after[0] + 1 if len(after) else len(rows))]
        starts = [*([0] if is_whole else []), *(before[:-1] + 1).tolist()]
        ends = [*([before[0] + 1] if is_whole else []), *(before[1:] + 1).tolist()]
        earlier = [rows[start:end] for start, end in zip(starts, ends, strict=True)][-_MAX_STEPS:]
        if len(current) and view.is_p2p[current].any() and earlier:
            yield current, earlier[::-1]


def _common_prefix(one: Array, other: Array) -> int:
    n_both = min(len(one), len(other))
    differs = np.flatnonzero(one[:n_both] != other[:n_both])
    return int(differs[0]) if len(differs) else n_both


def _difference(
    view: JobView, programs: Programs, made: Array, expected: Array
) -> tuple[tuple[Transfer, ...], tuple[Transfer, ...]]:
    """The transfers that were left out and those that were added, from the first difference on."""
    tokens = programs.token[made].tolist(), programs.token[expected].tolist()
    # In a row of equal calls one in place of another looks right for a while: what fits to the end comes first.
    shift = explain_shift(*tokens, None) or explain_shift(*tokens, None, n_enough=2)
    n_missing = shift.n_calls if shift is not None and shift.kind == "skipped" else 0
    n_extra = shift.n_calls if shift is not None and shift.kind == "repeated" else 0
    if not n_missing and not n_extra:  # one call in place of the other: a batch with a transfer less, or more
        n_missing = n_extra = 1
    before, after = Counter(_transfers(view, expected[:n_missing])), Counter(_transfers(view, made[:n_extra]))
    return tuple((before - after).elements()), tuple((after - before).elements())


def _transfers(view: JobView, rows: Sequence[int] | Array) -> list[Transfer]:
    ops, peers = view.calls.text("op"), view.calls.array("peer")
    parts = (part for row in rows for part in view.parts_of(int(row)) if peers[part] != MISSING)
    return [Transfer(ops[part] == "send", int(peers[part])) for part in parts]


def unmatched_transfer(view: JobView, graph: WaitGraph, programs: Programs, cycle: Cycle) -> Cause | None:
    """The rank that left a transfer of the cycle out; both ranks where the dumps cannot separate them."""
    if not any(call.is_p2p and "absent" in call.held_up_by.values() for call in cycle.calls):
        return None
    return _passed_by(view, cycle) or _left_schedule(view, graph, programs, cycle) or _both_halves(view, cycle)


def _passed_by(view: JobView, cycle: Cycle) -> Cause | None:
    """A transfer whose other rank went on to a collective without it, where there is only one such rank."""
    passed = [
        (call, rank)
        for call in cycle.calls
        for rank, reason in call.held_up_by.items()
        if call.is_p2p
        and reason == "absent"
        and not view.is_p2p[view.first_waiting.get(rank, call.match)]
        and rank in view.first_waiting
    ]
    if len({rank for _, rank in passed}) != 1:
        return None
    call, rank = passed[0]
    return Cause(
        rule="p2p-unmatched",
        ranks=(rank,),
        group=call.group,
        seq=call.seq,
        certainty="likely",
        time_ns=first_join(view, call),
        match=call.match,
        culprit_row=view.first_waiting[rank],
        peer_row=view.first_waiting[call.waiting[0]],
        calls=tuple(call for call, _ in passed),
    )


def _left_schedule(view: JobView, graph: WaitGraph, programs: Programs, cycle: Cycle) -> Cause | None:
    """The only rank of the cycle whose step differs from its earlier ones, by transfers that it left out or added.

    A single earlier step is enough here: that one of these ranks is wrong is known.
    """
    changes = [change for rank in cycle.ranks[:_MAX_RANKS] if (change := _change_of(view, programs, rank)) is not None]
    if len(changes) != 1 or (changes[0].missing and changes[0].extra):
        return None
    return _from_change(view, graph, changes[0])


def _from_change(view: JobView, graph: WaitGraph, change: ScheduleChange) -> Cause:
    peers = {transfer.peer for transfer in (*change.missing, *change.extra)}
    calls = tuple(call for call in graph.calls.values() if change.rank in call.held_up_by)
    first = next((call for call in calls if call.is_p2p and peers & set(call.waiting)), None)
    peer = next((rank for rank in sorted(peers) if rank in view.first_waiting), None)
    return Cause(
        rule="p2p-unmatched",
        ranks=(change.rank,),
        group=int(view.group[change.expected_row]),
        seq=first.seq if first is not None else int(view.seq[change.row]),
        certainty="likely",
        time_ns=int(view.created[change.row]),
        match=first.match if first is not None else MISSING,
        culprit_row=change.row,
        peer_row=view.first_waiting[peer] if peer is not None else MISSING,
        schedule=change,
        calls=calls,
    )


def _both_halves(view: JobView, cycle: Cycle) -> Cause | None:
    """Two ranks that each wait for a transfer of the other, after others between them worked.

    Had they only been in another order, the other half of one would be there, or none would have worked before.
    """
    is_pair = len(cycle.ranks) == 2 and all(call.is_p2p for call in cycle.calls)
    if not is_pair or all(call.seq == 1 for call in cycle.calls):
        return None
    call = min(cycle.calls, key=lambda call: first_join(view, call))
    culprit, peer = (view.first_waiting[rank] for rank in cycle.ranks)
    return Cause(
        rule="p2p-unmatched",
        ranks=cycle.ranks,
        group=call.group,
        seq=call.seq,
        certainty="likely",
        time_ns=first_join(view, call),
        match=call.match,
        culprit_row=culprit,
        peer_row=peer,
        calls=cycle.calls,
        cycle=cycle,
    )


def _group_orders(trace: Trace) -> list[GroupOrder]:
    """The lowest number that ranks disagree about: what follows is shifted by it."""
    config = with_global_members(trace.table("group_config"))
    meant: dict[str, dict[int, tuple[str, frozenset[int]]]] = defaultdict(dict)
    decoded: dict[str, frozenset[int]] = {}
    for row in config.rows():
        if is_number(row["name"]) and row["description"] not in ("", "undefined"):
            if row["members"] not in decoded:
                decoded[row["members"]] = frozenset(msgspec.json.decode(row["members"], type=list[int]))
            meant[row["name"]][row["rank"]] = (row["description"], decoded[row["members"]])
    for name in sorted(meant, key=int):
        order = _disagreement(trace, name, meant[name])
        if order is not None:
            return [order]
    return _renumbered(trace, meant) or _by_calls(trace)


def _renumbered(trace: Trace, meant: dict[str, dict[int, tuple[str, frozenset[int]]]]) -> list[GroupOrder]:
    """One group by description and members that has another number on some of them; no rank has it twice."""
    names_of: dict[tuple[str, frozenset[int]], dict[int, list[str]]] = defaultdict(lambda: defaultdict(list))
    for name, by_rank in meant.items():
        for rank, described in by_rank.items():
            names_of[described][rank].append(name)
    for (description, _), by_member in names_of.items():
        if len(by_member) < 3 or any(len(names) > 1 for names in by_member.values()):
            continue
        votes = Counter(names[0] for names in by_member.values())
        (usual_name, n_usual), *others = votes.most_common()
        if not others or 2 * n_usual <= len(by_member):
            continue
        name = others[0][0]
        odd = tuple(sorted(rank for rank, names in by_member.items() if names == [name]))
        usual_ranks = tuple(sorted(rank for rank, names in by_member.items() if names == [usual_name]))
        group = trace.table("groups").text("name").tolist().index(name)
        return [GroupOrder(name, odd, description, "", usual_ranks, group, usual_name)]
    return []


def _by_calls(trace: Trace) -> list[GroupOrder]:
    """Where no dump has the members, as on gloo: ranks that wait in a group of one role under different numbers.

    Only where no call of that role ever ended under either number, every rank has a dump, and all of them make their
    first call: the groups of one role that a job has by design do not all hang in their first call.
    """
    calls, groups = trace.table("collectives"), trace.table("groups")
    by_role: dict[str, list[int]] = defaultdict(list)
    for row in groups.rows():
        if row["inferred"] and is_number(row["name"]) and row["description"] not in ("", "default_pg"):
            by_role[row["description"]].append(row["group_id"])
    known, names = set(trace.table("ranks").array("rank").tolist()), groups.text("name")
    for role in sorted(role for role, numbers in by_role.items() if len(numbers) == 2):
        rows = np.flatnonzero(np.isin(calls.array("group_id"), by_role[role]))
        is_first = calls.array("seq")[rows].max(initial=0) <= 1 and not calls.text("status").equals("done")[rows].any()
        pairs = set(zip(calls.array("group_id")[rows].tolist(), calls.array("rank")[rows].tolist(), strict=True))
        if is_first and {rank for _, rank in pairs} == known == _everyone(trace):
            users = {group: tuple(sorted(rank for each, rank in pairs if each == group)) for group in by_role[role]}
            odd, usual = sorted(users, key=lambda group: len(users[group]))
            if len(users[odd]) < len(users[usual]):
                return [GroupOrder(names[odd], users[odd], role, "", users[usual], usual, names[usual])]
    return []


def _everyone(trace: Trace) -> set[int]:
    return set(trace.table("group_members").array("rank").tolist())


def _disagreement(trace: Trace, name: str, meant: dict[int, tuple[str, frozenset[int]]]) -> GroupOrder | None:
    """Ranks that take each other for members, and call the group by different descriptions."""
    votes = Counter(description for description, _ in meant.values())
    if len(votes) < 2:
        return None
    usual = votes.most_common(1)[0][0]
    usual_ranks = [rank for rank, (description, _) in meant.items() if description == usual]
    odd = [
        rank
        for rank, (description, members) in meant.items()
        if description != usual and any(other in members and rank in meant[other][1] for other in usual_ranks)
    ]
    if not odd or 2 * len(odd) >= len(odd) + len(usual_ranks):
        return None
    same = [rank for rank in odd if meant[rank][0] == meant[odd[0]][0]]
    names = trace.table("groups").text("name").tolist()
    group = names.index(name) if name in names else 0
    return GroupOrder(name, tuple(sorted(same)), meant[odd[0]][0], usual, tuple(sorted(usual_ranks)), group)


def from_group_order(view: JobView, trace: Trace) -> Iterator[Cause]:
    """Ranks that made their groups in another order: what others call a group by its number is another one there."""
    for order in derived(trace, _group_orders):
        rows = np.flatnonzero(np.isin(view.rank, order.ranks) & (view.calls.text("group_name").equals(order.name)))
        if not view.first_waiting:
            return
        row = int(rows[0]) if len(rows) else MISSING
        group = int(view.group[row]) if row != MISSING else order.group
        yield Cause(
            rule="group-order",
            ranks=order.ranks,
            group=group,
            seq=1,
            certainty="likely" if order.usual_name else "certain",
            time_ns=int(view.created[row]) if row != MISSING else 0,
            culprit_row=row,
            calls=tuple(call for call in wait_graph(trace).calls.values() if call.group in (group, order.group)),
            order=order,
        )


def from_schedules(view: JobView, graph: WaitGraph, trace: Trace) -> Iterator[Cause]:
    """Ranks that left their own schedule of transfers, where transfers or what depends on them wait."""
    if any(call.is_p2p for call in graph.calls.values()):
        yield from (_from_change(view, graph, change) for change in derived(trace, _schedule_changes))
