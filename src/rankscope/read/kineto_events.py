"""Kineto's events, by category, as the staged relations that all profiler formats share."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from rankscope.model.sql import quote_path, quote_text
from rankscope.read.event_stream import MAX_EVENT_BYTES, PART_BYTES, Part, whole_events
from rankscope.read.profile_tables import STAGES

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

# Which staged relation a category of events goes to, and as what. Old traces write "Kernel" or "Operator".
_CATEGORIES: dict[str, tuple[str, str]] = {
    "cpu_op": ("raw_ops", ""),
    "operator": ("raw_ops", ""),
    **{f"{maker}_runtime": ("raw_calls", "runtime") for maker in ("cuda", "hip", "xpu", "mtia", "privateuse1", "glow")},
    **{f"{maker}_driver": ("raw_calls", "driver") for maker in ("cuda", "xpu", "privateuse1")},
    "runtime": ("raw_calls", "runtime"),
    "kernel": ("raw_kernels", "kernel"),
    "concurrent_kernel": ("raw_kernels", "kernel"),
    "mtia_ccp_events": ("raw_kernels", "kernel"),
    "mtia_workloadd": ("raw_kernels", "kernel"),
    "hpu_op": ("raw_kernels", "kernel"),
    "gpu_memcpy": ("raw_kernels", "memcpy"),
    "memcpy": ("raw_kernels", "memcpy"),
    "gpu_memset": ("raw_kernels", "memset"),
    "memset": ("raw_kernels", "memset"),
    "cuda_sync": ("raw_syncs", ""),
    "xpu_sync": ("raw_syncs", ""),
    "user_annotation": ("raw_annotations", "host"),
    "gpu_user_annotation": ("raw_annotations", "device"),
    "overhead": ("raw_annotations", "overhead"),
    "cuda_profiler_range": ("raw_counters", ""),
    "python_function": ("raw_python_calls", ""),
}
_COMM_ARGS = {
    "Collective name": "collective",
    "dtype": "dtype",
    "In msg nelems": "n_in",
    "Out msg nelems": "n_out",
    "Group size": "group_size",
    "Process Group Name": "group_name",
    "Process Group Description": "group_desc",
    "Process Group Ranks": "group_ranks",
    "Seq": "seq",
    "Comms Id": "comms_id",
    "Src Rank": "src",
    "Dst Rank": "dst",
    "In split size": "in_split",
    "Out split size": "out_split",
}
_KERNEL_ARGS = {
    "device": "device",
    "context": "context",
    "correlation": "correlation",
    "External id": "external_id",
    "bytes": "n_bytes",
    "memory bandwidth (GB/s)": "bandwidth_gbps",
    "grid": "grid",
    "block": "block",
    "registers per thread": "registers",
    "shared memory": "shared_bytes",
    "blocks per SM": "blocks_per_sm",
    "warps per SM": "warps_per_sm",
    "est. achieved occupancy %": "occupancy_pct",
    "graph id": "graph_id",
    "graph node id": "graph_node_id",
    **_COMM_ARGS,
}
_OP_ARGS = {
    "External id": "external_id",
    "Record function id": "record_id",
    "Sequence number": "sequence_number",
    "Fwd thread id": "forward_tid",
    "Input Dims": "input_dims",
    "Input type": "input_types",
    "Concrete Inputs": "concrete_inputs",
}
_CALL_ARGS = {"correlation": "correlation", "External id": "external_id"}
_ANNOTATION_ARGS = {name: _OP_ARGS[name] for name in ("External id", "Record function id", "Input Dims", "Input type")}
_SYNC_ARGS = {
    "cuda_sync_kind": "sync_kind",
    "device": "device",
    "stream": "stream",
    "correlation": "correlation",
    "wait_on_stream": "wait_on_stream",
    "wait_on_cuda_event_record_corr_id": "wait_on_call",
}
_MEMORY_ARGS = {
    "Device Type": "type_number",
    "Device Id": "device_number",
    "Addr": "address_number",
    "Bytes": "n_bytes",
    "Total Allocated": "allocated_bytes",
    "Total Reserved": "reserved_bytes",
}
_PYTHON_ARGS = {"Python id": "python_id", "Python parent id": "parent_id"}
_NOT_INTEGERS = {
    **dict.fromkeys(("bandwidth_gbps", "blocks_per_sm", "warps_per_sm", "occupancy_pct"), "DOUBLE"),
    **dict.fromkeys(("collective", "dtype", "group_name", "group_desc", "group_ranks", "comms_id"), "VARCHAR"),
    **dict.fromkeys(("in_split", "out_split", "sync_kind", "grid", "block"), "VARCHAR"),
    **dict.fromkeys(("input_dims", "input_types", "concrete_inputs"), "VARCHAR"),
}
# As c10::DeviceType numbers them.
_DEVICE_TYPES = ("cpu", "cuda", "mkldnn", "opengl", "opencl", "ideep", "hip", "fpga", "maia", "xla", "vulkan", "metal",
                 "xpu", "mps", "meta", "hpu", "ve", "lazy", "ipu", "mtia", "privateuseone")  # fmt: skip


# One small number per category: comparing it is cheaper than comparing names, for every event of a trace.
_CODES = {category: code for code, category in enumerate(_CATEGORIES)}
_MEMORY_CODE, _FLOW_START_CODE, _FLOW_END_CODE = range(len(_CODES), len(_CODES) + 3)
_STAGE_OF_CODE = {code: _CATEGORIES[category][0] for category, code in _CODES.items()}
_STAGE_OF_CODE |= {_MEMORY_CODE: "raw_memory", _FLOW_START_CODE: "raw_flows", _FLOW_END_CODE: "raw_flows"}


def _codes(stage: str) -> str:
    return ", ".join(str(code) for code, own in _STAGE_OF_CODE.items() if own == stage)


def _kind(stage: str) -> str:
    kinds = {_CODES[category]: kind for category, (own, kind) in _CATEGORIES.items() if own == stage}
    branches = " ".join(f"WHEN {code} THEN {quote_text(kind)}" for code, kind in kinds.items())
    return f"CASE code {branches} END" if branches else "NULL"


def _events(stage: str, arguments: Mapping[str, str]) -> str:
    """The events of a stage, with arguments as columns; what is absent or of another type is NULL."""
    structure = {name: _NOT_INTEGERS.get(column, "BIGINT") for name, column in arguments.items()}
    columns = ", ".join(f'a."{name}" AS {column}' for name, column in arguments.items())
    return f"""(SELECT * EXCLUDE (a), {columns} FROM (
        SELECT *, {_kind(stage)} AS kind, json_transform(args, {quote_text(json.dumps(structure))}) AS a
        FROM events WHERE code IN ({_codes(stage)}) AND start_ns IS NOT NULL))"""


_SELECTS: dict[str, str] = {
    "raw_ops": f"SELECT event AS id, name, pid, tid, start_ns, duration_ns, {', '.join(_OP_ARGS.values())} "
    f"FROM {_events('raw_ops', _OP_ARGS)}",
    "raw_comm_ops": "SELECT * EXCLUDE (event, code, kind, name, pid, duration_ns, flow, args) FROM "
    + _events("raw_ops", {**_COMM_ARGS, "External id": "external_id"}).replace(
        "WHERE", "WHERE name = 'record_param_comms' AND"
    ),
    "raw_calls": "SELECT event AS id, name, kind, pid, tid, start_ns, duration_ns, correlation, external_id "
    f"FROM {_events('raw_calls', _CALL_ARGS)}",
    "raw_kernels": f"SELECT event AS id, name, kind, start_ns, duration_ns, {', '.join(_KERNEL_ARGS.values())}, "
    f"coalesce(stream, tid) AS stream FROM {_events('raw_kernels', {**_KERNEL_ARGS, 'stream': 'stream'})}",
    "raw_syncs": f"""
        SELECT CASE WHEN sync LIKE '%wait%' THEN 'stream-wait' WHEN sync LIKE '%stream%' THEN 'stream'
                    WHEN sync LIKE '%event%' THEN 'event' ELSE 'context' END AS kind,
               device, CASE WHEN stream < 4294967295 THEN stream END AS stream, correlation, wait_on_stream,
               wait_on_call, start_ns, duration_ns
        FROM (SELECT *, lower(coalesce(sync_kind, name)) AS sync FROM {_events("raw_syncs", _SYNC_ARGS)})""",
    "raw_annotations": f"""
        SELECT event AS id, name, kind, pid, CASE WHEN kind <> 'device' THEN tid END AS tid,
               CASE WHEN kind = 'device' THEN tid END AS stream, start_ns, duration_ns, external_id, record_id,
               input_dims, input_types
        FROM {_events("raw_annotations", _ANNOTATION_ARGS)}""",
    "raw_memory": f"""
        SELECT start_ns AS time_ns, [{", ".join(map(quote_text, _DEVICE_TYPES))}][type_number + 1] AS device_type,
               CASE WHEN device_number >= 0 THEN device_number END AS device, tid,
               printf('0x%x', address_number) AS address, n_bytes, allocated_bytes, reserved_bytes
        FROM {_events("raw_memory", _MEMORY_ARGS)}""",
    "raw_counters": f"""
        SELECT event AS range_id, name, start_ns, duration_ns, counter,
               try_cast(json_extract_string(args, '$."' || replace(counter, '"', '') || '"') AS DOUBLE) AS value
        FROM (SELECT *, unnest(json_keys(args)) AS counter FROM events WHERE code IN ({_codes("raw_counters")}))""",
    "raw_flows": f"SELECT try_cast(flow AS BIGINT) AS flow_id, code = {_FLOW_START_CODE} AS is_start, pid, tid, "
    f"start_ns AS time_ns FROM events WHERE code IN ({_codes('raw_flows')})",
    "raw_python_calls": "SELECT python_id, parent_id, name, tid, start_ns, duration_ns "
    f"FROM {_events('raw_python_calls', _PYTHON_ARGS)}",
}
_MADE_FROM = {"raw_comm_ops": "raw_ops"}  # the others are made from the events of their own name


# Threads and devices are numbers, but old traces write "stream 7" for them.
_NUMBER = "coalesce(try_cast({0} AS BIGINT), try_cast(regexp_extract({0}, '\\d+') AS BIGINT)) AS {0}"
_READ = f"""
CREATE OR REPLACE TEMP TABLE events AS
SELECT CASE ph
           WHEN 'X' THEN CASE lower(cat) {" ".join(f"WHEN '{name}' THEN {code}" for name, code in _CODES.items())} END
           WHEN 's' THEN CASE WHEN cat = 'fwdbwd' THEN {_FLOW_START_CODE} END
           WHEN 'f' THEN CASE WHEN cat = 'fwdbwd' THEN {_FLOW_END_CODE} END
           WHEN 'i' THEN CASE WHEN name = '[memory]' THEN {_MEMORY_CODE} END END::TINYINT AS code,
       name, {_NUMBER.format("pid")}, {_NUMBER.format("tid")}, {{start}} AS start_ns, {{duration}} AS duration_ns,
       id AS flow, args, row_number() OVER () - 1 + {{n_before}} AS event
FROM read_json({{path}}, format = 'array', maximum_object_size = {PART_BYTES + MAX_EVENT_BYTES}, columns = {{{{
    ph: 'VARCHAR', cat: 'VARCHAR', name: 'VARCHAR', pid: 'VARCHAR', tid: 'VARCHAR', ts: '{{time}}', dur: '{{time}}',
    id: 'VARCHAR', args: 'JSON'}}}})
WHERE (ph = 'X' OR ph = 'i' OR cat = 'fwdbwd') AND ts IS NOT NULL {{and_not_python}}
"""
# Microseconds as doubles are exact to the nanosecond up to 2^43 (102 days), with the fraction taken apart before it is
# scaled. Older traces count from 1970 and may have fractions: as text these stay as they are, though it takes longer.
_FAST = "floor({0})::BIGINT * 1000 + round(({0} - floor({0})) * 1000)::BIGINT"
_EXACT = "(try_cast({0} AS DECIMAL(20,3)) * 1000)::BIGINT"
_TIME = re.compile(rb'("ts"\s*:\s*)([0-9.]+)')
_IS_INEXACT = f"SELECT max(start_ns) >= {2**43 * 1000} AND bool_or(start_ns % 1000 <> 0) FROM events"


_PARTS_IN_MEMORY = 2


class EventStage:
    """Takes part after part of a trace, and shows the staged relations when all are in."""

    def __init__(self, connection: DuckDBPyConnection, folder: Path, with_python: bool) -> None:
        self._connection = connection
        self._folder = folder
        self._and_not_python = "" if with_python else "AND cat IS DISTINCT FROM 'python_function'"
        self._n_parts = 0
        self._relations: dict[str, list[str]] = {name: [] for name in STAGES}
        self._is_fast = True
        self._codes: set[int] = set()
        self.n_events = 0
        self.n_damaged_parts = 0

    def add(self, part: Part) -> None:
        text = self._folder / "part.json"
        with text.open("wb") as stream:
            stream.writelines(part)
        self._read_events(text)
        counts = self._connection.execute("SELECT code, count(*) FROM events GROUP BY code").fetchall()
        codes = {code for code, _ in counts if code is not None}
        present = {_STAGE_OF_CODE[code] for code in codes}
        self._codes |= codes
        self.n_events += sum(n_events for _, n_events in counts)
        for name, select in _SELECTS.items():
            if _MADE_FROM.get(name, name) in present:
                self._relations[name].append(self._keep(f"{name}_{self._n_parts}", select))
        self._n_parts += 1

    def _keep(self, name: str, select: str) -> str:
        """The first parts stay in memory, which is all that most traces need; the others go to disk."""
        if self._n_parts < _PARTS_IN_MEMORY:
            self._connection.execute(f"CREATE TEMP TABLE {name} AS {select}").fetchall()
            return name
        path = str(self._folder / f"{name}.parquet")
        target = f"{quote_text(path)} (FORMAT parquet, COMPRESSION lz4_raw)"
        self._connection.execute(f"COPY ({select}) TO {target}").fetchall()
        return f"read_parquet({quote_path(path)})"

    def _read_events(self, text: Path) -> None:
        import duckdb

        try:
            if self._is_fast:
                self._load(text, "DOUBLE", _FAST)
                [(is_inexact,)] = self._connection.execute(_IS_INEXACT).fetchall()
                self._is_fast = not is_inexact
            if not self._is_fast:
                text.write_bytes(_TIME.sub(rb'\1"\2"', text.read_bytes()))
                self._load(text, "VARCHAR", _EXACT)
        except duckdb.Error:  # a time that is no number, or text that is no JSON: keep what can be kept
            part = text.read_bytes()
            kept = whole_events(part)
            self.n_damaged_parts += len(kept) < len(part) // 2
            text.write_bytes(kept)
            self._load(text, "VARCHAR", _EXACT)

    def _load(self, text: Path, time: str, nanoseconds: str) -> None:
        self._connection.execute(
            _READ.format(
                start=nanoseconds.format("ts"),
                duration=f"greatest(0, coalesce({nanoseconds.format('dur')}, 0))",
                n_before=self.n_events,
                path=quote_path(str(text)),
                time=time,
                and_not_python=self._and_not_python,
            )
        ).fetchall()

    @property
    def device_type(self) -> str:
        """By the categories of events, which name the device, and by the names of AMD's runtime, which do not."""
        seen = {category for category, code in _CODES.items() if code in self._codes}
        for maker in ("mtia", "xpu", "hpu", "privateuse1"):
            if any(category.startswith(maker) for category in seen):
                return maker
        if not any(_CATEGORIES[category][0] in ("raw_kernels", "raw_calls", "raw_counters") for category in seen):
            return "cpu"
        [(is_rocm,)] = self._connection.execute("SELECT bool_or(name LIKE 'hip%') FROM raw_calls").fetchall()
        return "rocm" if is_rocm else "cuda"

    def show(self) -> None:
        """Makes the staged relations."""
        self._connection.execute("DROP TABLE IF EXISTS events").fetchall()
        for name, columns in STAGES.items():
            if self._relations[name]:
                union = " UNION ALL BY NAME ".join(f"SELECT * FROM {relation}" for relation in self._relations[name])
                statement = f"CREATE TEMP VIEW {name} AS {union}"
            else:
                statement = f"CREATE TEMP TABLE {name} ({columns})"
            self._connection.execute(statement).fetchall()
