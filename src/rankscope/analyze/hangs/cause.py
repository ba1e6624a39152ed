"""A candidate for why the job hangs, and those that the waits alone show.

These are calls that all have joined and that do not end, and ranks without a usable dump that others may wait for.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal

from rankscope.analyze.hangs.programs import Departure
from rankscope.analyze.hangs.view import JobView, may_hold_more, ranks_gone_on, ranks_unreadable
from rankscope.analyze.hangs.waits import Cycle, WaitGraph, WaitingCall
from rankscope.analyze.manifests import ranks_elsewhere
from rankscope.model.finding import Certainty
from rankscope.model.tables import MISSING

Kind = Literal["op", "size", "dtype", "skip", "extra"]
Basis = Literal["majority", "siblings", "history", "tie", "totals"]
_SAME_ATTEMPT_NS = 10 * 10**9
# Ops that some ranks may leave before others have come. Which rank is the root is not recorded.
ROOTED = frozenset(("broadcast", "reduce", "gather", "scatter"))
_SMALLEST_NODE = 4  # fewer ranks side by side may be gone by chance


@dataclass(frozen=True)
class Divergence:
    """One call that does not fit what the others of the group called at the same position."""

    kind: Kind
    ranks: tuple[int, ...]
    group: int
    seq: int
    culprit_row: int
    peer_row: int
    basis: Basis
    time_ns: int
    departure: Departure | None = None  # how the culprit's calls fit again, where they do
    may_be_skip: bool = False  # the culprit's call may as well be a later one of the program, reached too early


@dataclass(frozen=True)
class GroupOrder:
    """One number that stands for different groups."""

    name: str
    ranks: tuple[int, ...]  # those that are alone with what they mean
    meant: str
    usual: str
    usual_ranks: tuple[int, ...]
    group: int  # of that name, as most ranks mean it
    usual_name: str = ""  # where the others have another number for what these ranks mean: that number


@dataclass(frozen=True)
class Transfer:
    is_send: bool
    peer: int

    def as_fact(self) -> dict[str, object]:
        return {"op": "send" if self.is_send else "recv", "peer": self.peer}


@dataclass(frozen=True)
class ScheduleChange:
    """What a rank did otherwise than in its earlier steps, from its first difference on."""

    rank: int
    row: int  # the rank's call at the first difference; its last one where it made no more
    expected_row: int  # the call of the earlier step in its place
    number: int  # how many calls of the step came before
    is_proven: bool  # two or more earlier steps are the same
    missing: tuple[Transfer, ...]
    extra: tuple[Transfer, ...]


@dataclass(frozen=True)
class Cause:
    """One candidate: which rule it falls under, who did it and where."""

    rule: str
    ranks: tuple[int, ...]
    group: int
    seq: int
    certainty: Certainty
    time_ns: int
    match: int = MISSING
    culprit_row: int = MISSING
    peer_row: int = MISSING
    divergence: Divergence | None = None
    departure: Departure | None = None
    schedule: ScheduleChange | None = None
    order: GroupOrder | None = None
    calls: tuple[WaitingCall, ...] = ()
    cycle: Cycle | None = None
    blocked: frozenset[int] = frozenset()
    is_effect: bool = False
    also_possible: tuple[int, ...] = ()  # ranks without a dump that the data cannot tell from the culprit
    has_completed: tuple[int, ...] = ()  # members that the call ended for, while it does not end for the culprits


def blocked_by(graph: WaitGraph, cause: Cause) -> set[int]:
    matches = {call.match for call in cause.calls}
    if cause.match != MISSING:
        matches.add(cause.match)
    if cause.divergence is not None:  # from there on the group is out of step, wherever it then hangs
        matches.update(call.match for call in graph.calls.values() if call.group == cause.group and not call.is_p2p)
    return graph.blocked_by(set(cause.ranks), matches)


def first_join(view: JobView, call: WaitingCall) -> int:
    return int(view.created[view.rows_of_match(call.match)].min())


def from_complete(view: JobView, graph: WaitGraph, diverged: set[int]) -> Iterator[Cause]:
    """All members have joined, their calls fit, and still it does not end: the device or the network."""
    calls = [call for call in graph.complete_calls() if call.match not in diverged]
    for call in sorted(calls, key=lambda call: (first_join(view, call), call.match)):
        row = view.first_waiting[call.waiting[0]]
        joined = {int(view.rank[row]) for row in view.rows_of_match(call.match)}
        members = set(view.members[call.group]) if not call.is_p2p else joined
        # Counters show that they joined, but what they called is lost: it may not have fitted.
        unseen = members - joined
        lagging = _not_completed(view, call)
        if lagging:
            row = view.first_waiting[min(lagging)]
        yield Cause(
            rule=_rule_of_complete(view, call),
            ranks=tuple(sorted(lagging or unseen or _not_started(view, call) or members)),
            group=call.group,
            seq=call.seq,
            certainty=_certainty(view, call, is_partial=bool(lagging), is_seen=not unseen),
            time_ns=first_join(view, call),
            match=call.match,
            culprit_row=row,
            peer_row=row,
            calls=(call,),
            has_completed=completed_by(view, call.match) if lagging else (),
        )


def _certainty(view: JobView, call: WaitingCall, *, is_partial: bool, is_seen: bool) -> Certainty:
    if is_partial or _is_paired_by_count(view, call):
        return "likely"
    if not is_seen:
        return "possible"
    # A clock that is this far off may as well be a dump of another attempt, which says nothing about this call.
    offsets = view.trace.table("ranks").array("clock_offset_ns")
    return "likely" if len(offsets) and int(offsets.max()) - int(offsets.min()) > _SAME_ATTEMPT_NS else "certain"


def _rule_of_complete(view: JobView, call: WaitingCall) -> str:
    if view.trace.table("matches").array("n_signatures")[call.match] > 1:
        return _uneven_rule(view, call)
    is_counted = _is_paired_by_count(view, call) and not completed_by(view, call.match)
    return "p2p-unmatched" if is_counted else "collective-stalled"


def _is_paired_by_count(view: JobView, call: WaitingCall) -> bool:
    """Whether a ring has dropped transfers of the pair: which send belongs to which receive is then only likely."""
    ranks = view.trace.table("ranks")
    wrapped = set(ranks.array("rank")[ranks.array("n_dropped") > 0].tolist())
    return call.is_p2p and bool(wrapped & {int(view.rank[row]) for row in view.rows_of_match(call.match)})


def _not_completed(view: JobView, call: WaitingCall) -> set[int]:
    """The ranks that wait in a call which others of its ranks have completed."""
    return set(call.waiting) if completed_by(view, call.match) else set()


def completed_by(view: JobView, match: int) -> tuple[int, ...]:
    """The ranks whose own records say that they completed the call.

    One that is only `retired` may have failed. But a rank that made another call after a rooted one has left it.
    """
    rows = view.rows_of_match(match)
    has_completed = view.calls.text("state").equals("completed")[rows]
    if len(rows) and view.calls.text("op")[int(rows[0])] in ROOTED:
        has_completed |= [int(view.rows_of(int(view.rank[row]))[-1]) != row for row in rows.tolist()]
    return tuple(sorted(view.rank[rows[view.is_done[rows] & has_completed]].tolist()))


def _uneven_rule(view: JobView, call: WaitingCall) -> str:
    rows = view.rows_of_match(call.match)
    if not call.is_p2p and len(set(view.signatures.op[rows].tolist())) > 1:
        return "op-mismatch"
    sizes = set(view.signatures.size[rows].tolist())
    return "size-mismatch" if len(sizes) > 1 else "dtype-mismatch"


def _not_started(view: JobView, call: WaitingCall) -> set[int]:
    """With timing on, the ranks whose kernel has not even begun while others' has."""
    rows = view.rows_of_match(call.match)
    started = view.calls.array("started_ns")[rows] > 0
    return {int(rank) for rank in view.rank[rows[~started]]} if started.any() and not started.all() else set()


def from_unknown(view: JobView, graph: WaitGraph) -> Iterator[Cause]:
    """Ranks without a usable dump that others may wait for: the cause is the one that blocked the earliest call."""
    held: dict[int, list[WaitingCall]] = defaultdict(list)
    for call in graph.calls.values():
        for rank, reason in call.held_up_by.items():
            if reason == "unknown":
                held[rank].append(call)
    if not held or may_hold_more(view.trace):  # their dumps may be there: whether they are lost is unknown
        return
    # A rank that wrote a file, however damaged, was alive; it is suspected only where no other can be.
    possible = set(held) - view.has_file or set(held)
    far, unreadable = ranks_elsewhere(view.trace), ranks_unreadable(view.trace)
    gone = {rank for members in view.members for rank in members} - view.has_file - view.dumped
    while possible:
        calls = {call.match: call for rank in possible for call in held[rank]}.values()
        first = min(calls, key=lambda call: (first_join(view, call), call.match))
        suspects = sorted(possible & {rank for rank, reason in first.held_up_by.items() if reason == "unknown"})
        # Microseconds must not choose one rank of a node that is gone, of which no call may wait for some.
        for together in (gone, possible):
            if possible <= together and went_together(view, together):
                suspects = sorted(together)
                break
        is_open = len(view.dumped) == 1 < len(suspects) or set(suspects) <= far or set(suspects) <= unreadable
        cause = Cause(
            rule="rank-lost",
            ranks=tuple(suspects),
            group=first.group,
            seq=first.seq,
            certainty="possible" if is_open else "likely",
            time_ns=first_join(view, first),
            match=first.match,
            peer_row=view.first_waiting[first.waiting[0]],
            calls=tuple({call.match: call for rank in suspects for call in held[rank]}.values()),
        )
        blocked = blocked_by(graph, cause)
        others = {rank for rank in held if {other for call in held[rank] for other in call.waiting} <= blocked}
        yield replace(cause, also_possible=tuple(sorted(others - set(suspects))))
        possible -= others | set(suspects)


def went_together(view: JobView, ranks: set[int]) -> str:
    """What the ranks have in common: all of a host, of a node (by their numbers) or of a group; empty if nothing."""
    if len(ranks) < 2:
        return ""
    manifests = view.trace.table("manifests")
    hosts = {
        host
        for rank, host in zip(manifests.array("rank").tolist(), manifests.text("host").tolist(), strict=True)
        if rank in ranks
    }
    if len(hosts) == 1 and "" not in hosts:
        return f"all ranks of host {hosts.pop()}"
    first, size, world = min(ranks), len(ranks), max(max(members, default=0) for members in view.members) + 1
    is_block = max(ranks) - first + 1 == size and first % size == 0 and world % size == 0
    per_host = _ranks_per_host(view)
    if is_block and size == per_host:
        return f"all {size} ranks of one host: each other host has {per_host} as well"
    if is_block and size >= _SMALLEST_NODE and not per_host:
        return f"all {size} ranks of one node, judging by their numbers"
    group = next((number for number, members in enumerate(view.members) if set(members) == ranks), None)
    return f"all ranks of group {view.trace.table('groups').text('name')[group]}" if group is not None else ""


def _ranks_per_host(view: JobView) -> int:
    """How many ranks each host has, numbered in a row, if the hosts of all ranks with a dump show it; else 0."""
    ranks_of: dict[str, list[int]] = defaultdict(list)
    table = view.trace.table("ranks")
    for rank, host in zip(table.array("rank").tolist(), table.text("host").tolist(), strict=True):
        ranks_of[host].append(rank)
    size = len(next(iter(ranks_of.values()), []))
    is_even = all(sorted(ranks) == list(range(min(ranks), min(ranks) + size)) for ranks in ranks_of.values())
    is_aligned = size > 0 and all(min(ranks) % size == 0 for ranks in ranks_of.values())
    return size if is_even and is_aligned and "" not in ranks_of else 0


def silent_losses(view: JobView) -> Iterator[Cause]:
    """Ranks that left no dump and likely died, where the backend does not record how calls end."""
    backends = set(view.calls.text("backend").values)
    members = {rank for members in view.members for rank in members}
    known = view.dumped | ranks_gone_on(view.trace) | ranks_elsewhere(view.trace) | ranks_unreadable(view.trace)
    missing = sorted(members - known)
    if may_hold_more(view.trace):
        return
    if not missing or not backends <= {"gloo", "", *view.blind_groups.values()} or not len(view.calls):
        return
    rows = [int(view.rows_of(rank)[-1]) for rank in view.ranks if len(view.rows_of(rank))]
    last = max(rows, key=lambda row: int(view.created[row]))
    yield Cause(
        rule="rank-lost",
        ranks=tuple(missing),
        group=int(view.group[last]),
        seq=int(view.seq[last]),
        certainty="likely",
        time_ns=int(view.created[last]),
        match=int(view.match[last]),
        peer_row=last,
    )
