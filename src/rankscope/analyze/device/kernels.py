"""Which kernels took the device's time, and how well they filled it."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from rankscope.analyze.device.events import largest, percent, processes_of, with_process
from rankscope.analyze.device.losses import StepLoss, shared_losses
from rankscope.analyze.device.steps import step_windows
from rankscope.analyze.intervals import covered_ns, difference, union
from rankscope.analyze.metric import EVERYTHING, Selection, metric
from rankscope.analyze.registry import Effect, rule
from rankscope.model.finding import Evidence, Finding, count_noun
from rankscope.model.sql import quote_text
from rankscope.model.tables import Table, Trace

# Shapes of matrix instructions (884, 1688, 16816, ...) and names of libraries that use nothing else.
_TENSOR_CORES = (
    r"[hsicbdfe]\d?(884|1688|16816|16832|16864|8816|8832)|[hiwq]g?mma|gmma|tensorop|xmma|nvjet|mfma|_MI\d+x\d+"
    r"|flash_(fwd|bwd)|FlashAttn|fmha"
)
# Work that no step launched (warm-up before the first mark) is not part of any step's window.
IN_A_STEP = "(step IS NOT NULL OR (file_id, rank) NOT IN (SELECT (file_id, rank) FROM steps))"


@metric("kernels", "kernel_breakdown", needs=("kernels",))
def kernels(trace: Trace, selection: Selection) -> Table:
    """One row per rank and name of a kernel, copy or fill, the longest in total first.

    The total adds the durations of all calls, even if they overlap; shortest, longest, mean and (sample) standard
    deviation are those of single calls. The share is of the summed durations of all the rank's work.
    """
    return trace.sql(f"""
        SELECT rank, name, type, count(*) AS n_kernels, sum(duration_ns) AS total_ns, min(duration_ns) AS min_ns,
               max(duration_ns) AS max_ns, round(avg(duration_ns)) AS mean_ns,
               round(stddev_samp(duration_ns)) AS std_ns,
               100.0 * sum(duration_ns) / nullif(sum(sum(duration_ns)) OVER (PARTITION BY rank), 0) AS share_pct
        FROM kernels WHERE {selection.where()}
        GROUP BY rank, name, type ORDER BY rank, total_ns DESC, name
        """).table("kernel_breakdown")


@metric("utilisation", "device_utilisation", needs=("kernels",))
def utilisation(trace: Trace, selection: Selection) -> Table:
    """One row per traced process: how much of its steps the device was busy, and how full it was then.

    Busy is the share of the steps in which anything ran on the device. SM efficiency is estimated as the sum over
    kernels of duration times blocks per multiprocessor (at most 1), divided by the time of the steps: kernels that run
    at the same time add up. Occupancy is the mean of the kernels' estimated occupancy, weighted by duration. The tensor
    core share is of the time of compute kernels, and is judged by kernel names: those of Triton or user-written kernels
    do not show it. A value that the trace does not contain (ROCm has no blocks per multiprocessor) is NULL.

    The steps are those of `steps`; if none were marked, the whole trace counts.
    """
    work = with_process(
        trace,
        trace.sql(f"""
            SELECT file_id, rank, start_ns, start_ns + duration_ns AS end_ns
            FROM kernels WHERE {selection.where()} AND {IN_A_STEP}
        """).columns(),
    )
    uses_tensor_cores = f"regexp_matches(name, {quote_text(_TENSOR_CORES)})"
    sums = with_process(
        trace,
        trace.sql(f"""
            SELECT file_id, rank, count(*) AS n_kernels,
                   sum(CASE WHEN blocks_per_sm < 1 THEN blocks_per_sm * duration_ns
                            WHEN blocks_per_sm >= 1 THEN duration_ns END) AS filled,
                   sum(occupancy_pct * duration_ns)
                       / nullif(sum(duration_ns) FILTER (occupancy_pct IS NOT NULL), 0) AS occupancy_pct,
                   100.0 * sum(CASE WHEN {uses_tensor_cores} THEN duration_ns ELSE 0 END) FILTER (type = 'computation')
                       / nullif(sum(duration_ns) FILTER (type = 'computation'), 0) AS tensor_core_pct
            FROM kernels WHERE {selection.where()} AND {IN_A_STEP} GROUP BY file_id, rank ORDER BY file_id, rank
        """).columns(),
    )
    windows = step_windows(trace, selection)
    known = processes_of(trace)
    length = windows.per_process(windows.end - windows.start, len(known))
    busy = windows.per_process(windows.covered(union(work["start_ns"], work["end_ns"], work["process"])), len(known))
    process = sums["process"]
    return Table(
        "device_utilisation",
        {
            "file_id": known.file_id[process],
            "rank": known.rank[process],
            "n_kernels": sums["n_kernels"],
            "window_ns": length[process],
            "busy_ns": busy[process],
            "busy_pct": percent(busy[process], length[process]),
            "sm_efficiency_pct": percent(sums["filled"].astype(np.float64), length[process]),
            "occupancy_pct": sums["occupancy_pct"].astype(np.float64),
            "tensor_core_pct": sums["tensor_core_pct"].astype(np.float64),
        },
    )


# With less than half a block per multiprocessor, more than half of them have nothing to run.
_FEW_BLOCKS = 0.5
_MAX_SHOWN = 3
_MAX_NAME = 60


@rule("P306", "low-occupancy", needs=("kernels", "profiles"))
def low_occupancy(trace: Trace) -> Iterator[Finding | Effect]:
    """The device runs kernels that leave most of its multiprocessors empty.

    What it means: these kernels have fewer than one block for every two multiprocessors, and no fuller kernel runs at
    the same time. The cost is their time multiplied by the share of multiprocessors without a block: what would be
    gained if they filled the device. Communication kernels are meant to be small and do not count.

    Why it happens: small batches or tensors, reductions over a long dimension with few rows, kernels that work on one
    sample or one expert at a time, sequential scans.

    What to do: use larger batches, batched operators (bmm, grouped matrix multiplication, foreach) instead of loops
    over small ones, a different layout or algorithm for these kernels, streams that run independent kernels side by
    side.

    What could fool it: the rule counts blocks, not the work in them: a few blocks with much work each can be the right
    shape (persistent kernels have exactly one per multiprocessor and do not count as empty). ROCm traces do not have
    this data.
    """
    columns = "file_id, rank, start_ns, start_ns + duration_ns AS end_ns"
    few = with_process(
        trace,
        trace.sql(f"""
            SELECT {columns}, name, blocks_per_sm FROM kernels
            WHERE type = 'computation' AND blocks_per_sm < {_FEW_BLOCKS} AND {IN_A_STEP}
        """).columns(),
    )
    full = with_process(
        trace,
        trace.sql(
            f"SELECT {columns} FROM kernels WHERE type = 'computation' AND blocks_per_sm >= {_FEW_BLOCKS}"
        ).columns(),
    )
    alone = difference(*(union(rows["start_ns"], rows["end_ns"], rows["process"]) for rows in (few, full)))
    ran_ns = covered_ns(alone, few["start_ns"], few["end_ns"], few["process"])
    empty_ns = (ran_ns * (1 - few["blocks_per_sm"])).astype(np.int64)
    windows = step_windows(trace, EVERYTHING).with_device(trace)
    lost_ns = windows.added(empty_ns, few["start_ns"], few["process"])
    losses = shared_losses(StepLoss.of_windows(trace, windows, lost_ns))
    if losses is None:
        return
    kernels = largest(few["name"], empty_ns, _MAX_SHOWN)
    total = max(int(empty_ns.sum()), 1)
    yield Finding(
        severity=losses.severity,
        certainty="likely",
        title=f"kernels of {losses.who} leave most multiprocessors empty: filling them would save {losses.cost}",
        ranks=losses.culprits,
        evidence=Evidence(
            certain=tuple(
                f"{name[:_MAX_NAME]}: {count_noun(n, 'call')}, {100 * spent / total:.0f}% of the loss"
                for name, spent, n in kernels
            ),
            cost_pct=losses.cost_pct,
            cost_ns=losses.cost_ns,
            facts={**losses.facts, "kernels": [name for name, *_ in kernels]},
        ),
        help="give these kernels more work at once: larger batches, batched or grouped operators, independent work on "
        "separate streams",
    )
