"""Memory over time: the peak, the operators at the peak, and growth from step to step."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from rankscope.analyze.metric import Selection, metric
from rankscope.analyze.registry import Effect, rule
from rankscope.model.finding import Evidence, Finding, Severity, format_size, ranks_phrase
from rankscope.model.tables import MISSING, Table, Trace

_MIN_STEPS = 4  # whose ends are compared: three growths in a row are a habit, two may be chance
_MIN_GROWTH_BYTES = 1 << 20  # the allocator rounds to 2 MiB, and a log entry is smaller than this
_SOON_STEPS = 10_000  # out of memory within so many steps: the job will not finish

# Where the trace does not record the bytes in use, they are counted from its start.
_TIMELINE = """
    SELECT m.file_id, m.rank, m.device_type, m.device, m.tid, m.time_ns, m.allocated_bytes, m.reserved_bytes,
           CASE WHEN m.time_ns < s.start_ns + s.duration_ns THEN s.step END AS step
    FROM (
        SELECT * REPLACE (coalesce(allocated_bytes, greatest(0, sum(n_bytes) OVER so_far)) AS allocated_bytes)
        FROM memory
        WINDOW so_far AS (PARTITION BY file_id, rank, device_type, device ORDER BY time_ns ROWS UNBOUNDED PRECEDING)
    ) AS m
    ASOF LEFT JOIN steps AS s ON s.file_id = m.file_id AND s.rank = m.rank AND m.time_ns >= s.start_ns
"""


@metric("memory", "memory_timeline", needs=("memory",))
def memory(trace: Trace, selection: Selection) -> Table:
    """One row per allocation or free: the device's memory afterward.

    Allocated is what tensors use, reserved what torch's allocator holds for them. If the trace does not record the
    bytes in use, they are counted from the start of the trace.
    """
    return trace.sql(f"""
            SELECT * FROM ({_TIMELINE}) WHERE {selection.where("time_ns")}
            ORDER BY file_id, rank, device_type, device, time_ns
        """).table("memory_timeline")


# The device as one text: NULL (the host has no number) takes part in joins then.
_DEVICE = "concat_ws(':', device_type, device::VARCHAR) AS place"


@metric("memory_peaks", "memory_peaks", needs=("memory",))
def memory_peaks(trace: Trace, selection: Selection) -> Table:
    """One row per traced process and device: its peak memory in use, and the growth from step to step.

    The operators at the peak are those that were open then on the allocating thread. Growth compares the bytes in use
    at the end of consecutive steps and is the median of the differences; the first step is left out if there are more
    than two, because it allocates what stays (optimizer states, buffers).
    """
    return trace.sql(f"""
        WITH timeline AS (SELECT *, {_DEVICE} FROM ({_TIMELINE}) WHERE {selection.where("time_ns")}),
        peaks AS (
            SELECT file_id, rank, place, any_value(device_type) AS device_type, any_value(device) AS device,
                   max(allocated_bytes) AS peak_bytes, arg_max(time_ns, allocated_bytes) AS peak_ns,
                   arg_max(step, allocated_bytes) AS peak_step, arg_max(tid, allocated_bytes) AS tid,
                   max(reserved_bytes) AS reserved_bytes
            FROM timeline GROUP BY file_id, rank, place
        ), open AS (
            SELECT p.file_id, p.rank, p.place, arg_max(o.name, o.start_ns) AS peak_op,
                   arg_min(o.name, o.start_ns) AS peak_top_op
            FROM peaks AS p JOIN ops AS o ON o.file_id = p.file_id AND o.rank = p.rank AND o.tid = p.tid
                AND o.start_ns <= p.peak_ns AND o.start_ns + o.duration_ns > p.peak_ns
            GROUP BY p.file_id, p.rank, p.place
        ), ends AS (
            SELECT file_id, rank, place, step, arg_max(allocated_bytes, time_ns) AS n_bytes,
                   row_number() OVER steps_of AS number, count(*) OVER (PARTITION BY file_id, rank, place) AS n_steps
            FROM timeline WHERE step IS NOT NULL GROUP BY file_id, rank, place, step
            WINDOW steps_of AS (PARTITION BY file_id, rank, place ORDER BY step)
        ), compared AS (
            SELECT *, n_bytes - lag(n_bytes) OVER (PARTITION BY file_id, rank, place ORDER BY step) AS growth
            FROM ends WHERE number > 1 OR n_steps <= 2
        ), growths AS (
            SELECT file_id, rank, place, count(*) AS n_steps, arg_min(n_bytes, step) AS first_bytes,
                   arg_max(n_bytes, step) AS last_bytes, round(greatest(0, median(growth)))::BIGINT AS growth_bytes,
                   count(*) FILTER (growth > 0) AS n_grown
            FROM compared GROUP BY file_id, rank, place
        )
        SELECT p.*, o.peak_op, o.peak_top_op, coalesce(g.n_steps, 0) AS n_steps, g.first_bytes, g.last_bytes,
               CASE WHEN g.n_steps > 1 THEN g.growth_bytes END AS growth_bytes, coalesce(g.n_grown, 0) AS n_grown
        FROM peaks AS p
        LEFT JOIN open AS o USING (file_id, rank, place) LEFT JOIN growths AS g USING (file_id, rank, place)
        ORDER BY p.file_id, p.rank, p.place
        """).table("memory_peaks")


@rule("P305", "memory-growing", needs=("memory", "steps"))
def memory_growing(trace: Trace) -> Iterator[Finding | Effect]:
    """The memory in use at the end of a step grows from step to step.

    What it means: in every recorded step (except the first, which allocates what stays), more bytes were in use at the
    end than at the end of the previous step. If that continues, the device runs out of memory.

    Why it happens: stored tensors keep their graphs alive: losses added up without .item() or .detach(), lists of
    outputs, hooks that store activations, retain_graph=True; caches that grow with each new shape.

    What to do: detach what you keep (loss.detach(), or .item() once in a while), empty lists after each step, compare
    torch.cuda.memory._snapshot() of two steps: look at what is in the second but not in the first.

    What could fool it: batches that grow (longer sequences), or a schedule that allocates more for several steps and
    frees it only after the recorded ones.
    """
    peaks = trace.table("memory_peaks")
    n_steps, growth = peaks.array("n_steps"), peaks.array("growth_bytes")
    grows = (n_steps >= _MIN_STEPS) & (peaks.array("n_grown") == n_steps - 1) & (growth >= _MIN_GROWTH_BYTES)
    growing = list(peaks.take(np.flatnonzero(grows)).rows())
    for device_type in sorted({row["device_type"] for row in growing}):
        yield _finding(trace, [row for row in growing if row["device_type"] == device_type])


def _finding(trace: Trace, growing: list[dict[str, Any]]) -> Finding:
    worst = max(growing, key=lambda row: row["growth_bytes"])
    n_left = _steps_left(trace, worst)
    peak_at = f"in {worst['peak_op']}" if worst["peak_op"] else "outside any operator"
    ranks = tuple(sorted({row["rank"] for row in growing}))
    where = "host" if worst["device_type"] == "cpu" else "device"
    severity: Severity = "warning" if n_left is not None and n_left <= _SOON_STEPS else "info"
    end = f"; the memory is full in {n_left:,} steps" if n_left is not None else ""
    return Finding(
        severity=severity,
        certainty="likely",
        title=f"{ranks_phrase(ranks)} {'uses' if len(ranks) == 1 else 'use'} {format_size(worst['growth_bytes'])} more "
        f"{where} memory in every step{end}",
        ranks=ranks,
        evidence=Evidence(
            certain=(
                f"rank {worst['rank']}: {format_size(worst['first_bytes'])} in use at the end of the first step "
                f"compared, {format_size(worst['last_bytes'])} at the end of the last, "
                f"more in each of {worst['n_steps']} steps",
                f"peak: {format_size(worst['peak_bytes'])}, {peak_at}",
            ),
            facts={
                "growth_bytes": worst["growth_bytes"],
                "n_steps": worst["n_steps"],
                "device_type": worst["device_type"],
                "steps_left": n_left,
            },
        ),
        help="detach what you keep from step to step (losses, outputs), empty lists; "
        "`rankscope metrics PATH memory_peaks` lists all devices",
    )


def _steps_left(trace: Trace, row: dict[str, Any]) -> int | None:
    """Until the device's memory is full; None if its size is unknown."""
    rows = trace.sql(
        "SELECT max(n_bytes) FROM devices WHERE file_id = $file AND rank = $rank AND device = $device",
        file=row["file_id"],
        rank=row["rank"],
        device=row["device"],
    ).rows()
    n_bytes = rows[0][0]
    if n_bytes is None or row["device"] == MISSING:
        return None
    return max(0, int((n_bytes - row["peak_bytes"]) // row["growth_bytes"]))
