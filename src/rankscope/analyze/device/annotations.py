"""Named ranges (record_function, NVTX): their time, and the device's work for them."""

from __future__ import annotations

import numpy as np

from rankscope.analyze.device.events import with_process
from rankscope.analyze.intervals import Moments, added_within
from rankscope.analyze.metric import Selection, metric
from rankscope.model.tables import Array, Table, Trace

# Backward passes launch from autograd's own threads while the thread that called backward() waits.
_AUTOGRAD = "SELECT DISTINCT file_id, rank, tid FROM ops WHERE starts_with(name, 'autograd::engine::evaluate_function')"
# Where and when each kernel was given to the device, as annotations see it: on a thread of the host, or on a stream.
_PLACED = f"""
    SELECT file_id, rank, false AS on_device, launch_tid AS place, launch_start_ns AS time_ns, duration_ns FROM kernels
    WHERE launch_tid IS NOT NULL AND launch_start_ns IS NOT NULL
    UNION ALL
    SELECT k.file_id, k.rank, false, t.tid, k.launch_start_ns, k.duration_ns
    FROM kernels AS k
    JOIN ({_AUTOGRAD}) AS a ON a.file_id = k.file_id AND a.rank = k.rank AND a.tid = k.launch_tid
    JOIN (SELECT DISTINCT file_id, rank, tid FROM annotations WHERE kind = 'host') AS t
        ON t.file_id = k.file_id AND t.rank = k.rank AND t.tid <> k.launch_tid
    UNION ALL
    SELECT file_id, rank, true, stream, start_ns, duration_ns FROM kernels
    WHERE stream IS NOT NULL AND EXISTS (SELECT 1 FROM annotations WHERE kind = 'device')
"""
_RANGES = """
    SELECT *, coalesce(tid, stream, 0) AS place, start_ns + duration_ns AS end_ns
    FROM annotations WHERE kind IN ('host', 'device') AND {where}
"""
_NUMBERED = """
    SELECT rank, name, kind, count(*) AS n_ranges, sum(duration_ns) AS total_ns, min(duration_ns) AS min_ns,
           max(duration_ns) AS max_ns, round(avg(duration_ns)) AS mean_ns,
           row_number() OVER (ORDER BY rank, sum(duration_ns) DESC, name, kind) - 1 AS number
    FROM ({ranges}) GROUP BY rank, name, kind
"""
_OUTERMOST = """
    SELECT r.file_id, r.rank, r.kind = 'device' AS on_device, r.place, r.start_ns, r.end_ns, n.number
    FROM ({ranges}) AS r JOIN ({numbered}) AS n ON n.rank = r.rank AND n.name = r.name AND n.kind = r.kind
    QUALIFY coalesce(r.start_ns >= max(r.end_ns) OVER (
        PARTITION BY r.file_id, r.rank, r.kind, r.place, r.name ORDER BY r.start_ns, r.duration_ns DESC
        ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING), true)
"""


@metric("annotations", "annotation_breakdown", needs=("annotations",))
def annotation_breakdown(trace: Trace, selection: Selection) -> Table:
    """One row per rank, name and side (host or device) of annotated ranges, the longest in total first.

    Count, total, shortest, longest and mean describe the ranges themselves. On the host, the kernels are those launched
    while the range was open, from its own thread or from an autograd thread, and their time is the sum of their
    durations; a range inside another of the same name does not count its kernels again. On the device, the kernels are
    those that started in the range on its stream.
    """
    ranges = _RANGES.format(where=selection.where())
    numbered = _NUMBERED.format(ranges=ranges)
    table = trace.sql(f"SELECT *, 0 AS n_kernels, 0 AS kernel_ns FROM ({numbered}) ORDER BY number").table(
        "annotation_breakdown"
    )
    outermost = with_process(trace, trace.sql(_OUTERMOST.format(ranges=ranges, numbered=numbered)).columns())
    work = with_process(trace, trace.sql(_PLACED).columns())
    group_of_range, group_of_kernel = _common_groups(outermost, work)
    n_inside, ns_inside = added_within(
        Moments(group_of_kernel, work["time_ns"], work["duration_ns"]),
        outermost["start_ns"],
        outermost["end_ns"],
        group_of_range,
    )
    n_kernels, kernel_ns = np.zeros(len(table), np.int64), np.zeros(len(table), np.int64)
    np.add.at(n_kernels, outermost["number"], n_inside)
    np.add.at(kernel_ns, outermost["number"], ns_inside)
    return table.replaced({"n_kernels": n_kernels, "kernel_ns": kernel_ns})


def _common_groups(ranges: dict[str, Array], work: dict[str, Array]) -> tuple[Array, Array]:
    """Numbers the threads and streams of all processes, the same in both."""
    places = np.unique(np.concatenate((ranges["place"], work["place"])))

    def group(rows: dict[str, Array]) -> Array:
        sides = rows["process"] * 2 + rows["on_device"]
        return np.asarray(sides * len(places) + np.searchsorted(places, rows["place"]))

    return group(ranges), group(work)
