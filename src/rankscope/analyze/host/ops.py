"""Operators: where the host's time goes, which kernels they launch, and how long that takes."""

from __future__ import annotations

from rankscope.analyze.metric import Selection, metric
from rankscope.model.tables import Table, Trace


@metric("ops", "op_breakdown", needs=("ops",))
def op_breakdown(trace: Trace, selection: Selection) -> Table:
    """One row per rank and operator name: total host time, self time, and the device time it caused.

    total_ns leaves out calls inside another call of the same name, so that recursion counts once; self_ns is the time
    outside nested operators. Kernels count for the operator that launched them (n_kernels, kernel_ns) and, in the
    columns with `below`, for every operator around it.
    """
    sql = f"""
        SELECT rank, name, count(*) AS n, coalesce(sum(duration_ns) FILTER (NOT is_recursive), 0) AS total_ns,
               sum(self_ns) AS self_ns, avg(duration_ns) AS mean_ns, sum(n_kernels) AS n_kernels,
               sum(kernel_ns) AS kernel_ns,
               coalesce(sum(n_kernels_below) FILTER (NOT is_recursive), 0) AS n_kernels_below,
               coalesce(sum(kernel_below_ns) FILTER (NOT is_recursive), 0) AS kernel_below_ns
        FROM call_tree WHERE {selection.where()} GROUP BY rank, name ORDER BY rank, self_ns DESC, name
    """
    return trace.sql(sql).table("op_breakdown")


@metric("sequences", "kernel_sequences", needs=("ops", "kernels"), settings={"operator": "", "min_kernels": 3})
def kernel_sequences(trace: Trace, selection: Selection) -> Table:
    """One row per sequence of kernels under an operator, the most frequent first: what could become one kernel.

    Only the outermost operators count, if their name contains the setting `operator` and they launch at least
    `min_kernels` kernels, each with all kernels launched in it, in order of their start. Calls of an operator with the
    same kernels in the same order share one row.
    """
    sql = f"""
        WITH fitting AS (
            SELECT rank, name, position, last_position, duration_ns, max(last_position) OVER (
                       ORDER BY position ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS covered_to
            FROM call_tree WHERE {selection.where()} AND contains(name, $operator) AND n_kernels_below >= $min_kernels
        ), outermost AS (
            SELECT * FROM fitting WHERE position > coalesce(covered_to, -1)
        ), launched AS (
            SELECT t.position, k.name AS kernel, k.start_ns, k.duration_ns AS kernel_ns, k.kernel_id
            FROM kernels AS k JOIN call_tree AS t USING (file_id, rank, op_id)
        ), runs AS (
            SELECT any_value(o.rank) AS rank, any_value(o.name) AS operator, any_value(o.duration_ns) AS cpu_ns,
                   sum(l.kernel_ns) AS kernel_ns, list(l.kernel ORDER BY l.start_ns, l.kernel_id) AS kernels
            FROM launched AS l ASOF JOIN outermost AS o ON l.position >= o.position
            WHERE l.position <= o.last_position GROUP BY o.position
        )
        SELECT rank, operator, to_json(kernels)::VARCHAR AS kernels, len(kernels) AS n_kernels, count(*) AS n,
               sum(kernel_ns) AS kernel_ns, sum(cpu_ns) AS cpu_ns
        FROM runs GROUP BY rank, operator, runs.kernels ORDER BY rank, n DESC, kernel_ns DESC, operator, kernels
    """
    chosen = selection.settings
    wanted = trace.sql(sql, operator=str(chosen["operator"]), min_kernels=int(chosen["min_kernels"]))
    return wanted.table("kernel_sequences")


@metric("op_delays", "op_kernel_delays", needs=("ops", "kernels"))
def op_kernel_delays(trace: Trace, selection: Selection) -> Table:
    """One row per aten operator and the kernels of a call: how long until the launch, how long until the kernel.

    A kernel counts for the innermost aten operator around its launch; calls are grouped by the names of their kernels
    in order of their start. Both times are for the first launch of the call: from the start of the operator to the
    start of the launch, and from there to the start of the kernel. Kernels whose launch is not in the trace are left
    out.
    """
    sql = f"""
        WITH launched AS (
            SELECT t.file_id, t.rank, t.aten_id, k.name AS kernel, k.kernel_id, k.start_ns, k.launch_start_ns
            FROM kernels AS k JOIN call_tree AS t USING (file_id, rank, op_id)
            WHERE k.launch_start_ns IS NOT NULL AND t.aten_id IS NOT NULL
        ), runs AS (
            SELECT file_id, rank, aten_id, list(kernel ORDER BY start_ns, kernel_id) AS kernels,
                   min(launch_start_ns) AS launch_ns, arg_min(start_ns, launch_start_ns) AS kernel_ns
            FROM launched GROUP BY ALL
        )
        SELECT o.rank, o.name AS operator, to_json(r.kernels)::VARCHAR AS kernels, len(r.kernels) AS n_kernels,
               count(*) AS n, avg(r.launch_ns - o.start_ns) AS to_launch_ns,
               avg(r.kernel_ns - r.launch_ns) AS to_kernel_ns
        FROM runs AS r JOIN call_tree AS o ON o.file_id = r.file_id AND o.rank = r.rank AND o.op_id = r.aten_id
        WHERE {selection.where(alias="o")}
        GROUP BY o.rank, o.name, r.kernels ORDER BY o.rank, n DESC, operator, kernels
    """
    return trace.sql(sql).table("op_kernel_delays")
