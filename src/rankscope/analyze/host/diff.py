"""Two captures side by side: which operators and kernels are new, gone, or take a different time."""

from __future__ import annotations

from typing import Any, NamedTuple

from rankscope.analyze.metric import EVERYTHING, Selection
from rankscope.model.tables import Table, Trace


class _Use(NamedTuple):
    n: int
    total_ns: int


_UNUSED = _Use(0, 0)


def compare_captures(before: Trace, after: Trace, selection: Selection = EVERYTHING) -> Table:
    """One row per operator and kernel name of either capture, the largest change in time first.

    Counts and times are sums over the selected ranks and steps of each capture. If the captures have different numbers
    of ranks or steps, select the same number of each: nothing is scaled.
    """
    old, new = _uses(before, selection), _uses(after, selection)
    rows = [_row(*key, old.get(key, _UNUSED), new.get(key, _UNUSED)) for key in old.keys() | new.keys()]
    rows.sort(key=lambda row: (-abs(row["diff_ns"]), row["kind"], row["name"]))
    return Table.from_rows("trace_diff", rows)


def _uses(trace: Trace, selection: Selection) -> dict[tuple[str, str], _Use]:
    sql = " UNION ALL ".join(
        f"""SELECT '{kind}', name, count(*), coalesce(sum(duration_ns), 0)::BIGINT
            FROM {table} WHERE {selection.where()} GROUP BY name"""
        for kind, table in (("op", "ops"), ("kernel", "kernels"))
    )
    return {(kind, name): _Use(n, total) for kind, name, n, total in trace.sql(sql).rows()}


def _row(kind: str, name: str, old: _Use, new: _Use) -> dict[str, Any]:
    return {
        "name": name,
        "kind": kind,
        "n_before": old.n,
        "n_after": new.n,
        "total_before_ns": old.total_ns,
        "total_after_ns": new.total_ns,
        "diff_count": new.n - old.n,
        "diff_ns": new.total_ns - old.total_ns,
        "count_change": _change(old.n, new.n),
    }


def _change(n_before: int, n_after: int) -> str:
    if not n_before:
        return "added"
    if not n_after:
        return "deleted"
    return "unchanged" if n_before == n_after else "increased" if n_after > n_before else "decreased"
