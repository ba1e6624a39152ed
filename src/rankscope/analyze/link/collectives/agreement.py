"""Do the ranks of a group call the same collectives? A simulator that replays the traces hangs where they do not."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from rankscope.analyze.path.work import numbered
from rankscope.model.tables import Array, Table, Trace

# What the members have in common: all that is given, or all that is taken. all_to_all has neither.
_COMMON_OUTPUT = ("all_gather", "scatter")
_NOTHING_COMMON = ("all_to_all",)


class RankCall(NamedTuple):
    rank: int
    file_id: int
    node_id: int
    op: str
    dtype: str
    n_bytes: int
    root: int


class Disagreement(NamedTuple):
    """The first place in the calls of a group at which its members do not do the same."""

    group_name: str
    group_ranks: str
    is_inferred: bool  # which group the calls belong to was not recorded
    place: int  # as in et_collectives
    calls: tuple[RankCall, ...]


def disagreements(trace: Trace) -> list[Disagreement]:
    """Where operation, type, size or root differ; what comes after the first place is a consequence.

    A rank that has no call at a place may have been recorded for a shorter time, and disagrees with nobody. Calls of
    unknown groups cannot be compared.
    """
    table = trace.table("et_collectives")
    table = table.take(np.flatnonzero(~table.array("is_p2p") & ~table.text("group_name").equals("")))
    if not len(table):
        return []
    group = numbered(table.text("group_name").codes, table.text("group_ranks").codes)
    place, signature = table.array("place"), _signatures(table)
    order = np.lexsort((table.array("rank"), place, group))
    group, place, signature = group[order], place[order], signature[order]
    starts = np.flatnonzero(np.append(True, (group[1:] != group[:-1]) | (place[1:] != place[:-1])))
    differs = np.minimum.reduceat(signature, starts) != np.maximum.reduceat(signature, starts)
    ends = np.append(starts[1:], len(order))
    firsts = starts[differs]
    _, first = np.unique(group[firsts], return_index=True)
    bounds = zip(firsts[first].tolist(), ends[differs][first].tolist(), strict=True)
    return [_described(table.take(order[start:end]), int(place[start])) for start, end in bounds]


def _signatures(table: Table) -> Array:
    op = table.text("op").to_objects()
    size = np.where(np.isin(op, _COMMON_OUTPUT), table.array("n_out"), table.array("n_in"))
    size = np.where(np.isin(op, _NOTHING_COMMON), 0, size)
    return numbered(table.text("op").codes, table.text("dtype").codes, size, table.array("root"))


def _described(calls: Table, place: int) -> Disagreement:
    rows = list(calls.rows())
    return Disagreement(
        rows[0]["group_name"],
        rows[0]["group_ranks"],
        any(row["is_inferred"] for row in rows),
        place,
        tuple(RankCall(**{name: row[name] for name in RankCall._fields}) for row in rows),
    )
