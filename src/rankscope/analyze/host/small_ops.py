"""P315: without a device, a step that consists of Python and of many small operators."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from rankscope.analyze.device.losses import StepLoss, shared_losses
from rankscope.analyze.registry import Effect, rule
from rankscope.model.finding import Evidence, Finding, Location, format_duration
from rankscope.model.numbers import integer, is_number
from rankscope.model.tables import Trace

_SHORT_NS = 20_000  # an operator that takes less than calling it costs
_NEXT_NS = 100_000  # the Python between two of them; more is something else
_MANY = 1000  # per step
_MOST = 0.5  # of the step
# The outermost operators of the thread that marked the step, and the time from each to the next one.
_PER_STEP = """
    WITH outermost AS (
        SELECT o.file_id, o.rank, s.step, o.start_ns, o.duration_ns
        FROM ops AS o JOIN steps AS s ON s.file_id = o.file_id AND s.tid = o.tid
             AND o.start_ns >= s.start_ns AND o.start_ns < s.start_ns + s.duration_ns
        WHERE s.step IS NOT NULL AND o.name NOT LIKE 'ProfilerStep%' AND o.rank NOT IN (SELECT rank FROM kernels)
        QUALIFY coalesce(o.start_ns >= max(o.start_ns + o.duration_ns) OVER (
            PARTITION BY o.file_id, o.tid, s.step ORDER BY o.start_ns, o.duration_ns DESC
            ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING), true)
    ), timed AS (
        SELECT *, coalesce(lead(start_ns) OVER (PARTITION BY file_id, step ORDER BY start_ns)
                           - start_ns - duration_ns, 0) AS after_ns
        FROM outermost
    )
    SELECT t.rank, t.step, count(*) AS n, median(t.duration_ns) AS median_ns,
           sum(t.duration_ns + CASE WHEN t.after_ns BETWEEN 0 AND $next THEN t.after_ns ELSE 0 END)::BIGINT AS spent_ns,
           any_value(s.duration_ns) AS step_ns
    FROM timed AS t JOIN steps AS s ON s.file_id = t.file_id AND s.step = t.step
    WHERE t.duration_ns < $short GROUP BY t.file_id, t.rank, t.step ORDER BY t.rank, t.step
"""
_LINES = """
    SELECT site, sum(cpu_ns) / sum(sum(cpu_ns)) OVER () AS share FROM host_samples
    WHERE site <> '' AND step > 0 GROUP BY site ORDER BY share DESC, site LIMIT 1
"""


@rule("P315", "small-operators", needs=("ops", "steps"))
def small_operators(trace: Trace) -> Iterator[Finding | Effect]:
    """The step consists of many operators so short that calling them takes longer than running them.

    What it means: without a device, most of the step goes into operators of a few microseconds and into the Python
    between them: more than 1,000 of them in each step, and more than half of its time. The CPU is busy, but does little
    arithmetic.

    Why it happens: a loop over samples, tokens, parameters or time steps in Python; an optimizer that updates one
    parameter at a time (foreach=False); metrics that are computed element by element.

    What to do: replace the loop with one operator over a whole tensor (batch it, torch.stack, torch.vmap), use
    torch.compile, which fuses small operators, and foreach=True or fused=True for the optimizer.

    What could fool it: the profiler makes each operator take longer, by about a microsecond, most of all with
    record_shapes. With a device, the same problem is reported as launch-bound (P311).
    """
    rows = trace.sql(_PER_STEP, short=_SHORT_NS, next=_NEXT_NS).rows()
    many = [row for row in rows if row[2] >= _MANY]
    if not many or 2 * len(many) < len(rows):
        return
    rank, step, n, median_ns, spent, length = (np.asarray(column) for column in zip(*many, strict=True))
    losses = shared_losses(StepLoss(rank, step, length, np.minimum(spent, length)))
    if losses is None or losses.ranks[0].share < _MOST:
        return
    each, count = format_duration(int(np.median(median_ns))), int(np.median(n))
    yield Finding(
        severity=losses.severity,
        certainty="likely",
        title=f"Python and small operators take {losses.cost}: {count:,} operators of {each} in each step of "
        f"{losses.who}",
        ranks=losses.culprits,
        location=_line(trace),
        evidence=Evidence(
            certain=(f"{count:,} operators per step end within {format_duration(_SHORT_NS)}, half of them in {each}",),
            cost_pct=losses.cost_pct,
            cost_ns=losses.cost_ns,
            facts={**losses.facts, "n_operators": count, "median_ns": int(np.median(median_ns))},
        ),
        help="replace the loop by operators over whole tensors, or let torch.compile fuse them; "
        "foreach=True or fused=True for the optimizer",
    )


def _line(trace: Trace) -> Location | None:
    """Where the collector found the ranks most of the time, if it did."""
    for site, share in trace.sql(_LINES).rows():
        place, _, function = site.partition(" in ")
        file, _, line = place.rpartition(":")
        if share >= _MOST and file and is_number(line):
            return Location(file, integer(line), function)
    return None
