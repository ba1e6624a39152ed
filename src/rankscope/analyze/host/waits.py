"""Where the host waits for the device: the calls, the operators that made them, and the idle time that followed."""

from __future__ import annotations

import numpy as np

from rankscope.analyze.host.call_tree import Nesting, nest, op_tree, thread_numbers
from rankscope.analyze.metric import Selection, metric
from rankscope.model.sql import quote_text
from rankscope.model.tables import MISSING, Array, Table, Text, Trace

# cudaStreamSynchronize, hipDeviceSynchronize, cuCtxSynchronize, zeEventHostSynchronize, MTIA's synchronizeStream; and
# what SYCL calls the same.
_SYNCHRONISES = r"[sS]ynchronize|^(ur|pi)(EventsWait|EventWait|QueueFinish)"
_COPIES = r"^(cuda|hip|cu|mu)Memcpy"
# A copy to the host's ordinary memory blocks even when the call is named Async: seen by its coming back after the copy.
_TO_HOST = r"(?i)DtoH|DeviceToHost|Device\s*->\s*(Pageable|Pinned|Host)"
_WAITS = f"""
    SELECT file_id, rank, call_id, name, tid, start_ns, coalesce(duration_ns, 0) AS duration_ns, step
    FROM runtime_calls
    WHERE regexp_matches(name, {quote_text(_SYNCHRONISES)})
       OR (regexp_matches(name, {quote_text(_COPIES)}) AND NOT contains(name, 'Async'))
    UNION ALL
    SELECT c.file_id, c.rank, c.call_id, c.name, c.tid, c.start_ns, c.duration_ns, c.step
    FROM runtime_calls AS c JOIN kernels AS k USING (file_id, rank, call_id)
    WHERE contains(c.name, 'Async') AND k.kind = 'memcpy' AND regexp_matches(k.name, {quote_text(_TO_HOST)})
      AND k.launch_end_ns >= k.start_ns + k.duration_ns
"""
_RANGES = """
    SELECT file_id, rank, tid, name, start_ns, coalesce(duration_ns, 0) AS duration_ns FROM annotations
    WHERE kind = 'host' AND name NOT IN (SELECT DISTINCT name FROM steps WHERE name IS NOT NULL)
"""


@metric("host_waits", "host_waits", needs=("runtime_calls",))
def host_waits(trace: Trace, selection: Selection) -> Table:
    """One row per call in which the host waited for the device, with the operator and the annotation around it.

    These are calls that synchronize with a stream, an event or the whole device, copies that block by definition
    (cudaMemcpy), and copies from the device to the host whose call returned only after the copy had ended, as a copy to
    pageable memory does.
    """
    sql = f"""
        SELECT w.file_id, w.rank, w.call_id, w.name, w.tid, w.start_ns, w.duration_ns,
               w.step, o.thread AS op_thread,
               a.thread AS range_thread
        FROM ({_WAITS}) AS w
        LEFT JOIN {thread_numbers("FROM ops")} AS o USING (file_id, rank, tid)
        LEFT JOIN {thread_numbers(_RANGES)} AS a USING (file_id, rank, tid)
        WHERE {selection.where(alias="w")} ORDER BY w.rank, w.start_ns, w.file_id, w.call_id
    """
    waits = trace.sql(sql).columns()
    tree = op_tree(trace)
    inner = tree.nesting.enclosing(waits["op_thread"], waits["start_ns"])
    outer = _outermost(tree.nesting, inner)
    return Table(
        "host_waits",
        {name: waits[name] for name in ("call_id", "tid", "start_ns", "duration_ns", "step")}
        | {
            "file_id": waits["file_id"].astype(np.int32),
            "rank": waits["rank"].astype(np.int32),
            "name": Text.encode(waits["name"].tolist()),
            "op_id": np.where(inner >= 0, tree.columns["op_id"][inner], MISSING) if len(tree.names) else inner,
            "operator": Text.encode(tree.name_of(inner)),
            "root_operator": Text.encode(tree.name_of(outer)),
            "annotation": Text.encode(_annotations_around(trace, waits["range_thread"], waits["start_ns"])),
        },
    )


def _outermost(nesting: Nesting, places: Array) -> Array:
    outer = places.copy()
    below = np.flatnonzero(outer >= 0)
    while len(below := below[nesting.parent[outer[below]] >= 0]):
        outer[below] = nesting.parent[outer[below]]
    return outer


def _annotations_around(trace: Trace, thread: Array, time: Array) -> list[str]:
    sql = f"""
        SELECT r.name, r.start_ns, r.duration_ns, t.thread
        FROM ({_RANGES}) AS r JOIN {thread_numbers(_RANGES)} AS t USING (file_id, rank, tid)
    """
    ranges = trace.sql(sql).columns()
    nesting = nest(ranges["thread"], ranges["start_ns"], ranges["duration_ns"])
    names = ranges["name"][nesting.order].tolist()
    return [names[position] if position >= 0 else "" for position in nesting.enclosing(thread, time).tolist()]


@metric("syncs", "sync_calls", needs=("runtime_calls",))
def sync_calls(trace: Trace, selection: Selection) -> Table:
    """One row per rank, waiting call and operator: how long the host waited, and how long the device was idle after it.

    A wait does no harm as long as the device has work. It costs the time the device is idle afterward because nothing
    was queued, and no more than the wait itself lasted, since without it the host would have been only that much
    earlier. n_idle and idle_ns count that over the gaps in the table idle_gaps whose cause is the wait. See the metric
    `host_waits` for what counts as a wait.
    """
    sql = f"""
        WITH idle AS (
            SELECT file_id, rank, wait_call_id AS call_id, sum(duration_ns) AS idle_ns
            FROM idle_gaps WHERE wait_call_id IS NOT NULL GROUP BY ALL
        )
        SELECT rank, name, operator, root_operator, annotation, count(*) AS n, sum(duration_ns) AS total_ns,
               max(duration_ns) AS max_ns, count(idle_ns) AS n_idle,
               coalesce(sum(least(idle_ns, duration_ns)) FILTER (idle_ns IS NOT NULL), 0) AS idle_ns
        FROM host_waits LEFT JOIN idle USING (file_id, rank, call_id) WHERE {selection.where()}
        GROUP BY rank, name, operator, root_operator, annotation
        ORDER BY rank, idle_ns DESC, total_ns DESC, name, operator, annotation
    """
    return trace.sql(sql).table("sync_calls")
