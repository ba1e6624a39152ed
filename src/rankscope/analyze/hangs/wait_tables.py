"""The graph of waits and the places where ranks stand, as tables that SQL and the views of a report read."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from rankscope.analyze.derived import table
from rankscope.analyze.hangs.cause import Cause
from rankscope.analyze.hangs.standing import is_current, standings_of
from rankscope.analyze.hangs.verdict import causes_of
from rankscope.analyze.hangs.view import JobView, job_view
from rankscope.analyze.hangs.waits import WaitGraph, WaitingCall, wait_graph
from rankscope.analyze.hangs.wording import waited_ns
from rankscope.model.tables import MISSING, Table, Trace

Row = dict[str, Any]


@table("waits", needs=("collectives",))
def waits(trace: Trace) -> Table:
    view, graph = job_view(trace), wait_graph(trace)
    roots = [cause for cause in causes_of(trace) if not cause.is_effect]
    in_cycle = {(call.match, rank) for cycle in graph.cycles() for call in cycle.calls for rank in cycle.ranks}
    rows = []
    for _, call in sorted(graph.calls.items()):
        shared = _call_columns(view, call)
        for holder, why in _holders(view, call, roots):
            itself = graph.call_of_rank.get(holder, ())
            rows.append(
                {
                    **shared,
                    "holder": holder,
                    "why": why,
                    "holder_match_id": min(itself, default=MISSING),
                    "is_cause": any(_is_root(call, holder, root) for root in roots),
                    "in_cycle": (call.match, holder) in in_cycle,
                }
            )
    rows += _unpaired_rows(view, graph, roots)
    return Table.from_rows("waits", rows)


def _call_columns(view: JobView, call: WaitingCall) -> Row:
    rows = [view.first_waiting[rank] for rank in call.waiting]
    waiting = set(call.waiting)
    ops = [view.calls.text("op")[row] for row in view.rows_of_match(call.match) if int(view.rank[row]) in waiting]
    return {
        "match_id": call.match,
        "group_id": call.group,
        "seq": call.seq,
        "op": Counter(ops).most_common(1)[0][0],
        "is_p2p": call.is_p2p,
        **_waiting_columns(view, rows),
        "waited_ns": _or_missing(waited_ns(view, call.match)),
    }


def _waiting_columns(view: JobView, rows: list[int]) -> Row:
    ranks = sorted(view.rank[rows].tolist())
    [(site, _)] = Counter(view.calls.array("site_id")[rows].tolist()).most_common(1)
    return {
        "n_waiting": len(ranks),
        "waiting": msgspec.json.encode(ranks).decode(),
        "site_id": site,
        "since_ns": int(view.created[rows].min()),
    }


def _holders(view: JobView, call: WaitingCall, roots: Sequence[Cause]) -> list[tuple[int, str]]:
    """(rank, why); of a call that no rank is missing from, those whose own call does not fit."""
    if call.held_up_by:
        return list(call.held_up_by.items())
    root = next((root for root in roots if _is_misfit(view, call, root)), None)
    if root is not None:
        odd = sorted(set(root.ranks) & set(call.waiting))
        return [(rank, "mismatch") for rank in odd] if len(odd) < len(call.waiting) else [(MISSING, "mismatch")]
    return [(MISSING, "stalled")]


def _is_misfit(view: JobView, call: WaitingCall, root: Cause) -> bool:
    """Ranks that left the common order make calls of their group that never fit again, from the first one on."""
    if root.group != call.group or call.is_p2p or not set(root.ranks) & set(call.waiting):
        return False
    n_signatures = int(view.trace.table("matches").array("n_signatures")[call.match])
    return root.divergence is not None or (root.match == call.match and n_signatures > 1)


def _is_root(call: WaitingCall, holder: int, root: Cause) -> bool:
    return holder in root.ranks if holder != MISSING else call.match == root.match


def _unpaired_rows(view: JobView, graph: WaitGraph, roots: Sequence[Cause]) -> Iterator[Row]:
    """Transfers whose other side is not recorded (a receive from anyone): nothing tells for whom they wait."""
    for rank, row in sorted(view.first_waiting.items()):
        if rank not in graph.call_of_rank:
            yield {
                "group_id": int(view.group[row]),
                "seq": int(view.seq[row]),
                "op": view.calls.text("op")[row],
                "is_p2p": bool(view.is_p2p[row]),
                **_waiting_columns(view, [row]),
                "why": "unpaired",
                "is_cause": any(root.culprit_row == row for root in roots),
            }


@table("standings", needs=("ranks", "collectives", "thread_stacks"))
def standings(trace: Trace) -> Table:
    """The main thread tells where a rank stands, unless the rank has made calls since."""
    view, threads = job_view(trace), standings_of(trace)
    rows = []
    for rank in sorted({*view.ranks, *threads}):
        thread, call = threads.get(rank), _newest_call(view, rank)
        if thread is not None and (call is None or is_current(view, thread)):
            newest = {"source": "thread", "time_ns": thread.time_ns, "reason": thread.reason}
            rows.append({"rank": rank, **newest, "stack_id": thread.stack, "site_id": thread.site})
        elif call is not None:
            rows.append({"rank": rank, **call})
    return Table.from_rows("standings", rows)


def _newest_call(view: JobView, rank: int) -> Row | None:
    """The stack of the oldest call that has not ended, else of the newest call."""
    waiting = view.first_waiting.get(rank)
    made = view.rows_of(rank)
    row = waiting if waiting is not None else int(made[-1]) if len(made) else None
    if row is None or view.calls.array("stack_id")[row] == MISSING:
        return None
    columns = {name: int(view.calls.array(name)[row]) for name in ("match_id", "stack_id", "site_id")}
    return {"source": "last" if waiting is None else "waiting", "time_ns": int(view.created[row]), **columns}


def _or_missing(number: int | None) -> int:
    return MISSING if number is None else number
