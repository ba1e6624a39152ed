"""The table et_pairs: which profiler trace belongs to each execution trace, and why nodes are missing in it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from rankscope.analyze.derived import table
from rankscope.analyze.link.nodes import Nodes, file_slices, nodes_of
from rankscope.analyze.link.partners import BY_ALIGNMENT, BY_ID, HOW, Judged, Partners, partners_of
from rankscope.model.tables import MISSING, Array, Table, Trace

# What is told of several profiles that do not fit: first those that are of the same run.
_REASONS = ("no-overlap", "no-observer", "different-run", "no-profile")


@table("et_pairs", needs=("et_nodes",))
def et_pairs(trace: Trace) -> Table:
    """One row per execution trace."""
    nodes, partners = nodes_of(trace), partners_of(trace)
    by_file: dict[int, list[Judged]] = {}
    for judged in partners.judged:
        by_file.setdefault(judged.candidate.file_id, []).append(judged)
    partner_row = np.full(len(nodes), MISSING)
    partner_row[partners.node] = np.arange(len(partners.node))
    rows = []
    for place in file_slices(nodes.file_id):
        own = _taken(nodes, place)
        file_id, rank = int(own.file_id[0]), int(own.rank[0])
        row = _described(own, partner_row[place], partners, by_file.get(file_id, []))
        rows.append({"file_id": file_id, "rank": rank, **row})
    return Table.from_rows("et_pairs", rows)


def _taken(nodes: Nodes, own: slice) -> Nodes:
    return Nodes(*(getattr(nodes, name)[own] for name in nodes.__dataclass_fields__))


def _described(nodes: Nodes, partner_row: Array, partners: Partners, judged: Sequence[Judged]) -> dict[str, Any]:
    linked = partner_row[partner_row >= 0]
    n_linkable = int(nodes.is_linkable.sum())
    row = {
        "n_nodes": len(nodes),
        "n_operators": int(nodes.is_operator.sum()),
        "n_linkable": n_linkable,
        "n_linked": len(linked),
        "link_pct": 100 * len(linked) / n_linkable if n_linkable else np.nan,
    }
    chosen = [each for each in judged if each.how]
    if not chosen:
        n_wrong = max((each.n_wrong for each in judged), default=0)
        reasons = {each.why for each in judged} or {"no-profile"}
        why = min(reasons, key=_REASONS.index)
        return row | {"method": HOW[0], "n_outside": 0, "n_wrong_names": n_wrong, "why": why}
    profiles, n_linked = np.unique(partners.events.profile_id[linked], return_counts=True)
    n_by_profile = dict(zip(profiles.tolist(), n_linked.tolist(), strict=True))
    best = max(chosen, key=lambda each: n_by_profile.get(each.candidate.profile_id, 0))
    n_outside = _n_outside(nodes, partner_row, chosen)
    return row | {
        "profile_id": best.candidate.profile_id,
        "method": HOW[best.how],
        "n_wrong_names": sum(each.n_wrong for each in chosen),
        "n_outside": n_outside,
        "covered_pct": 100 * n_by_profile[best.candidate.profile_id] / best.candidate.n_events,
        "why": "partial" if n_outside else "no-ids" if best.how == BY_ALIGNMENT else "",
    }


def _n_outside(nodes: Nodes, partner_row: Array, chosen: Sequence[Judged]) -> int:
    """Nodes that began before the profilers did, or after: by numbers, or by what is linked where there are none."""
    is_missing = nodes.is_linkable & (partner_row < 0)
    if chosen[0].how != BY_ID:
        linked = np.flatnonzero(partner_row >= 0)
        return int(is_missing[: linked[0]].sum() + is_missing[linked[-1] :].sum())
    is_missing &= nodes.record_id >= 0
    for each in chosen:
        first, last = each.candidate.first_id or 0, each.candidate.last_id or 0
        is_missing &= (nodes.record_id < first) | (nodes.record_id > last)
    return int(is_missing.sum())
