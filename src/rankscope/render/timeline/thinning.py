"""Which rows are left out when there are too many: the shortest, and first those that say least."""

from __future__ import annotations

from collections.abc import Sequence

from rankscope.model.tables import Trace
from rankscope.render.timeline.chrome import JOIN_CLOCK, common_clock
from rankscope.render.timeline.drawing import Cut

_POOLS = (("ops", "python_calls"), ("runtime_calls",), ("memory",), ("kernels",))
_WITHOUT_LENGTH = ("memory",)  # left out wholly or not at all
_COUNTED = ("steps", "ops", "python_calls", "annotations", "runtime_calls", "kernels", "memory", "counters", "comms")
NOTHING = 1 << 53  # no row is as long


def least_durations(trace: Trace, cut: Cut, max_events: int) -> dict[str, int]:
    """Per table the duration below which rows are left out, so that about `max_events` remain."""
    recorded = sum(trace.n_rows(name) for name in ("collectives", "compile_events", "metrics", "thread_stacks"))
    if recorded + sum(trace.n_rows(name) for name in _COUNTED) <= max_events:
        return {}
    sizes = {name: _n_rows(trace, name, cut) for name in _COUNTED if trace.n_rows(name)}
    excess = recorded + sum(sizes.values()) - max_events
    least: dict[str, int] = {}
    for pool in _POOLS:
        present = [name for name in pool if name in sizes]
        size = sum(sizes[name] for name in present)
        if excess > 0 and size:
            has_length = size > excess and not {*present} & {*_WITHOUT_LENGTH}
            least |= dict.fromkeys(present, _shortest_left(trace, present, cut, excess) if has_length else NOTHING)
            excess -= size
    return least


def _in_window(name: str, cut: Cut) -> str:
    time = "time_ns" if name == "memory" else "start_ns"
    duration = "0" if name == "memory" else "e.duration_ns"
    start = common_clock(f"e.{time}")
    return f"FROM {name} AS e {JOIN_CLOCK} WHERE {cut.of_ranks()} AND {cut.of_time(start, f'({start} + {duration})')}"


def _n_rows(trace: Trace, name: str, cut: Cut) -> int:
    [(n_rows,)] = trace.sql(f"SELECT count(*) {_in_window(name, cut)}").rows()
    return int(n_rows)


def _shortest_left(trace: Trace, pool: Sequence[str], cut: Cut, excess: int) -> int:
    """One more than the duration of the last row that has to go: all of the same length go with it."""
    rows = " UNION ALL ".join(
        f"SELECT e.duration_ns, count(*) AS n {_in_window(name, cut)} GROUP BY e.duration_ns" for name in pool
    )
    total = "sum(n) OVER (ORDER BY duration_ns RANGE UNBOUNDED PRECEDING)"
    sql = (
        f"SELECT min(duration_ns) FROM (SELECT duration_ns, {total} AS n_up_to FROM ({rows})) WHERE n_up_to >= {excess}"
    )
    [(last,)] = trace.sql(sql).rows()
    return int(last) + 1
