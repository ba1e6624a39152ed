"""The events of one process of an nsys export, as the staged relations that all profiler formats share."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rankscope.model.numbers import whole
from rankscope.model.sql import quote_text
from rankscope.read.nsys_nccl import describe_nccl_launches, dtype_bytes, kernel_dtype
from rankscope.read.profile_tables import STAGES

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

# CUDA's own enumerations, by number, in the words that torch.profiler uses for them.
_COPIES = ("", "HtoD", "DtoH", "HtoA", "AtoH", "AtoA", "AtoD", "DtoA", "DtoD", "HtoH", "PtoP", "HtoD", "DtoH", "DtoD")
_MEMORIES = ("Pageable", "Pinned", "Device", "Array", "Managed", "Device Static", "Managed Static", "Unknown")
_SYNCS = ("", "event", "stream-wait", "stream", "context")
_PUSH_POP, _START_END = 59, 60  # the types of NVTX events that have a duration

# A global thread number is made of a machine, a process and a thread, the last two of 24 bits each; the global number
# of a process has no thread. What is called `process` here is the machine and the process.
_PROCESS_OF_PID = '"globalPid" >> 24'
_PROCESS_OF_TID = '"globalTid" >> 24'
_THREAD = '("globalTid" >> 24) & 16777215 AS pid, "globalTid" & 16777215 AS tid'
_TIME = 'start AS start_ns, greatest("end" - start, 0) AS duration_ns'
_WORK = f"deviceId AS device, contextId AS context, streamId AS stream, correlationId AS correlation, {_TIME}"


def _word(number: str, words: tuple[str, ...]) -> str:
    return f"[{', '.join(map(quote_text, words))}][{number} + 1]"


def _moved(table: str, kind: str, name: str) -> str:
    return f"""
        SELECT {name} AS name, '{kind}' AS kind, {_WORK}, "bytes" AS n_bytes, graphNodeId AS graph_node_id,
               CASE WHEN "end" > start THEN "bytes" / ("end" - start) END AS bandwidth_gbps
        FROM "{table}" WHERE {_PROCESS_OF_PID} = $process AND "end" IS NOT NULL
    """


_COPY_NAME = f"""rtrim('Memcpy ' || coalesce({_word("copyKind", _COPIES)}, ''))
    || coalesce(' (' || {_word("srcKind", _MEMORIES)} || ' -> ' || {_word("dstKind", _MEMORIES)} || ')', '')"""
_FILL_NAME = f"'Memset' || coalesce(' (' || {_word('memKind', _MEMORIES)} || ')', '')"
# With --cuda-graph-trace=graph, the default, the run of a graph is one event, and its kernels are not told apart.
_DEVICE_WORK = f"""
    SELECT coalesce(long.value, short.value, 'unknown') AS name, 'kernel' AS kind, {_WORK},
           printf('[%d, %d, %d]', gridX, gridY, gridZ) AS grid, printf('[%d, %d, %d]', blockX, blockY, blockZ) AS block,
           gridX::DOUBLE * gridY * gridZ AS n_blocks, blockX::DOUBLE * blockY * blockZ AS n_threads,
           registersPerThread AS registers, staticSharedMemory + dynamicSharedMemory AS shared_bytes,
           graphId AS graph_id, graphNodeId AS graph_node_id
    FROM "CUPTI_ACTIVITY_KIND_KERNEL" LEFT JOIN "StringIds" AS long ON long.id = demangledName
    LEFT JOIN "StringIds" AS short ON short.id = shortName
    WHERE {_PROCESS_OF_PID} = $process AND "end" IS NOT NULL
    UNION ALL BY NAME
    SELECT 'CUDA graph' || coalesce(' ' || graphId, '') AS name, 'kernel' AS kind, {_WORK}, graphId AS graph_id
    FROM "CUPTI_ACTIVITY_KIND_GRAPH_TRACE" WHERE {_PROCESS_OF_PID} = $process AND "end" IS NOT NULL
    UNION ALL BY NAME {_moved("CUPTI_ACTIVITY_KIND_MEMCPY", "memcpy", _COPY_NAME)}
    UNION ALL BY NAME {_moved("CUPTI_ACTIVITY_KIND_MEMSET", "memset", _FILL_NAME)}
"""
# Blocks and warps per multiprocessor as torch.profiler counts them.
_KERNELS = f"""
    SELECT row_number() OVER (ORDER BY k.start_ns, k.device, k.stream, k.name) - 1 AS id,
           k.* EXCLUDE (n_bytes, n_blocks, n_threads), n.* EXCLUDE (correlation, message_bytes),
           k.n_blocks / d.n_sms AS blocks_per_sm, blocks_per_sm * k.n_threads / d.n_warp AS warps_per_sm,
           coalesce(k.n_bytes, n.message_bytes) AS n_bytes,
           CASE WHEN k.name LIKE '%nccl%' THEN {kernel_dtype("k.name")} END AS dtype,
           n.message_bytes // {dtype_bytes("dtype")} AS n_in,
           CASE WHEN collective = 'reduce_scatter' THEN n_in // group_size ELSE n_in END AS n_out
    FROM ({_DEVICE_WORK}) AS k
    LEFT JOIN nccl_launches AS n ON n.correlation = k.correlation AND k.name LIKE '%nccl%'
    LEFT JOIN device_sizes AS d ON d.device = k.device
"""

# torch's emit_nvtx writes "aten::mul, seq = 6, op_id = 872, sizes = [[4, 256], []], input_op_ids = [(867,0)]". Its
# ranges are operators; so are functions of autograd and of compiled code. What reads like a label or counts steps was
# put there by record_function, and is an annotation, as in a trace of torch.profiler. There may be millions of ranges:
# regular expressions are left to the few that need them.
_RANGES = f"""
    SELECT pid, tid, start_ns, duration_ns, payload, record_id, sequence_number, input_dims,
           left(label, coalesce(least(seq_place, id_place) - 1, length(label))) AS name,
           is_nested AND coalesce(record_id, sequence_number) IS NOT NULL AND CASE
               WHEN contains(name, '::') THEN true
               ELSE regexp_matches(name, '^[A-Za-z_]\\w*$') AND NOT regexp_matches(name, 'step|iter', 'i') END AS is_op
    FROM (SELECT *, nullif(strpos(label, ', seq = '), 0) AS seq_place,
                 nullif(strpos(label, ', op_id = '), 0) AS id_place,
                 try_cast(split_part(split_part(label, ', op_id = ', 2), ',', 1) AS BIGINT) AS record_id,
                 try_cast(split_part(split_part(label, ', seq = ', 2), ',', 1) AS BIGINT) AS sequence_number,
                 nullif(split_part(split_part(label, ', sizes = ', 2), ', input_op_ids', 1), '') AS input_dims
          FROM (SELECT coalesce(text, s.value, '') AS label, {_THREAD}, {_TIME}, binaryData AS payload,
                       eventType = {_PUSH_POP} AS is_nested
                FROM "NVTX_EVENTS" LEFT JOIN "StringIds" AS s ON s.id = textId
                WHERE {_PROCESS_OF_TID} = $process AND eventType IN ({_PUSH_POP}, {_START_END}) AND "end" IS NOT NULL))
"""
_OPS = """
    SELECT row_number() OVER (ORDER BY start_ns, duration_ns DESC, tid) - 1 AS id, name, pid, tid, start_ns,
           duration_ns, record_id, sequence_number, CASE WHEN json_valid(input_dims) THEN input_dims END AS input_dims
    FROM ranges WHERE is_op
"""
# Which operator made a call is not told: write_profiles finds the innermost one around a launch. The names of runtime
# functions end in the version that brought them: cudaLaunchKernel_v7000.
_CALLS = f"""
    SELECT row_number() OVER (ORDER BY start, correlationId) - 1 AS id,
           regexp_replace(coalesce(s.value, 'unknown'), '(_pts[dz])?_v\\d\\d\\d\\d+$', '') AS name,
           CASE WHEN regexp_matches(name, '^cu[A-Z]') THEN 'driver' ELSE 'runtime' END AS kind, {_THREAD}, {_TIME},
           correlationId AS correlation
    FROM "CUPTI_ACTIVITY_KIND_RUNTIME" LEFT JOIN "StringIds" AS s ON s.id = nameId
    WHERE {_PROCESS_OF_TID} = $process AND "end" IS NOT NULL
"""
# Since CUDA 12.6 a wait knows which record of the event it was for.
_WAITS = f"""
    SELECT {_word("syncType", _SYNCS)} AS kind, deviceId AS device, correlationId AS correlation, {_TIME},
           CASE WHEN streamId < 4294967295 THEN streamId END AS stream, e.wait_on_stream, e.wait_on_call
    FROM "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION" AS w
    LEFT JOIN (SELECT eventSyncId, any_value(streamId) AS wait_on_stream, any_value(correlationId) AS wait_on_call
               FROM "CUPTI_ACTIVITY_KIND_CUDA_EVENT" WHERE {_PROCESS_OF_PID} = $process GROUP BY eventSyncId) AS e
        ON e.eventSyncId = w.eventSyncId AND w.syncType IN (1, 2)
    WHERE {_PROCESS_OF_PID} = $process AND syncType BETWEEN 1 AND 4 AND "end" IS NOT NULL
    ORDER BY start_ns
"""
_ANNOTATIONS = f"""
WITH annotations AS (
    SELECT name, 'host' AS kind, pid, tid, start_ns, duration_ns FROM ranges WHERE NOT is_op AND name <> ''
    UNION ALL BY NAME
    SELECT coalesce(s.value, 'unknown') AS name, 'overhead' AS kind, {_THREAD}, {_TIME}
    FROM "CUPTI_ACTIVITY_KIND_OVERHEAD" LEFT JOIN "StringIds" AS s ON s.id = nameId
    WHERE {_PROCESS_OF_TID} = $process AND "end" IS NOT NULL
)
SELECT row_number() OVER (ORDER BY start_ns) - 1 AS id, * FROM annotations ORDER BY start_ns
"""


def list_processes(connection: DuckDBPyConnection) -> list[int]:
    """Those that worked on a device, in the order of devices; where none did, those that called CUDA, or used NVTX.

    The launcher and the workers that load data have ranges of their own, but are no ranks.
    """
    worked = " UNION ALL ".join(
        f'SELECT {_PROCESS_OF_PID} AS process, deviceId AS device FROM "CUPTI_ACTIVITY_KIND_{kind}"'
        for kind in ("KERNEL", "MEMCPY", "MEMSET", "GRAPH_TRACE")
    )
    called = f'SELECT {_PROCESS_OF_TID} AS process, 0 AS device FROM "CUPTI_ACTIVITY_KIND_RUNTIME"'
    marked = f'SELECT {_PROCESS_OF_TID} AS process, 0 AS device FROM "NVTX_EVENTS" WHERE "end" IS NOT NULL'
    for origin in (worked, called, marked):
        processes = connection.execute(
            f"SELECT process, min(device) FROM ({origin}) WHERE process IS NOT NULL GROUP BY process ORDER BY 2, 1"
        ).fetchall()
        if processes:
            return [whole(process) for process, _ in processes]
    return []


def stage_process(
    connection: DuckDBPyConnection, folder: Path, process: int, rank: int, devices: Sequence[dict[str, Any]]
) -> None:
    """Makes the staged relations of one process from the views of the export; large ones as Parquet in `folder`."""
    connection.execute("CREATE TEMP TABLE device_sizes (device BIGINT, n_sms DOUBLE, n_warp DOUBLE)").fetchall()
    for device in devices:
        sizes = [device["device"], device.get("n_sms"), device.get("n_warp")]
        connection.execute("INSERT INTO device_sizes VALUES (?, ?, ?)", sizes).fetchall()
    _keep(connection, "ranges", folder / "raw_ranges.parquet", _RANGES.replace("$process", str(process)))
    for name, select in {"raw_ops": _OPS, "raw_calls": _CALLS}.items():
        _stage(connection, folder, name, select.replace("$process", str(process)))
    describe_nccl_launches(connection, process, rank)
    for name, select in {"raw_kernels": _KERNELS, "raw_syncs": _WAITS, "raw_annotations": _ANNOTATIONS}.items():
        _stage(connection, folder, name, select.replace("$process", str(process)))
    for name in ("raw_comm_ops", "raw_memory", "raw_counters", "raw_flows", "raw_python_calls"):
        connection.execute(f"CREATE TEMP TABLE {name} ({STAGES[name]})").fetchall()


def _stage(connection: DuckDBPyConnection, folder: Path, name: str, select: str) -> None:
    """A staged relation, with exactly the columns of STAGES."""
    connection.execute(f"CREATE TEMP TABLE empty_stage ({STAGES[name]})").fetchall()
    staged = f"FROM empty_stage UNION ALL BY NAME (SELECT 0 AS process, * FROM ({select}))"
    _keep(connection, name, folder / f"{name}.parquet", staged)
    connection.execute("DROP TABLE empty_stage").fetchall()


def _keep(connection: DuckDBPyConnection, name: str, path: Path, select: str) -> None:
    """On disk: it is read several times, and may be larger than memory."""
    target = quote_text(str(path))
    connection.execute(f"COPY ({select}) TO {target} (FORMAT parquet, COMPRESSION lz4_raw)").fetchall()
    connection.execute(f"CREATE TEMP VIEW {name} AS FROM read_parquet({target})").fetchall()
