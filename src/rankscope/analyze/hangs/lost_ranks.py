"""Ranks without a usable dump that other ranks may be waiting for."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace

from rankscope.analyze.hangs.cause import Cause, blocked_by, first_join
from rankscope.analyze.hangs.dump_files import may_hold_more, ranks_gone_on
from rankscope.analyze.hangs.view import JobView
from rankscope.analyze.hangs.waits import WaitGraph, WaitingCall

_SMALLEST_NODE = 4  # fewer ranks side by side may be gone by chance


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
        cause = Cause(
            rule="rank-lost",
            ranks=tuple(suspects),
            group=first.group,
            seq=first.seq,
            certainty="possible" if len(view.dumped) == 1 < len(suspects) else "likely",
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
    missing = sorted(members - view.dumped - ranks_gone_on(view.trace))
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
