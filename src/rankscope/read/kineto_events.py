"""Kineto's events, by category, as the staged relations that all profiler formats share."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rankscope.model.sql import quote_path, quote_text
from rankscope.read.event_stream import MAX_EVENT_BYTES, PART_BYTES, Part, whole_events
from rankscope.read.profile_tables import STAGES, by_process

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
    return ", ".join(str(code) for code, code_stage in _STAGE_OF_CODE.items() if code_stage == stage)


def _kind(stage: str) -> str:
    kinds = {
        _CODES[category]: kind for category, (category_stage, kind) in _CATEGORIES.items() if category_stage == stage
    }
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
    "raw_ops": f"SELECT process, event AS id, name, pid, tid, start_ns, duration_ns, {', '.join(_OP_ARGS.values())} "
    f"FROM {_events('raw_ops', _OP_ARGS)}",
    "raw_comm_ops": "SELECT * EXCLUDE (event, code, kind, name, pid, duration_ns, flow, args) FROM "
    + _events("raw_ops", {**_COMM_ARGS, "External id": "external_id"}).replace(
        "WHERE", "WHERE name = 'record_param_comms' AND"
    ),
    "raw_calls": "SELECT process, event AS id, name, kind, pid, tid, start_ns, duration_ns, correlation, external_id "
    f"FROM {_events('raw_calls', _CALL_ARGS)}",
    "raw_kernels": f"SELECT process, event AS id, name, kind, start_ns, duration_ns, "
    f"{', '.join(_KERNEL_ARGS.values())}, coalesce(stream, tid) AS stream "
    f"FROM {_events('raw_kernels', {**_KERNEL_ARGS, 'stream': 'stream'})}",
    "raw_syncs": f"""
        SELECT process, CASE WHEN sync LIKE '%wait%' THEN 'stream-wait' WHEN sync LIKE '%stream%' THEN 'stream'
                    WHEN sync LIKE '%event%' THEN 'event' ELSE 'context' END AS kind,
               device, CASE WHEN stream < 4294967295 THEN stream END AS stream, correlation, wait_on_stream,
               wait_on_call, start_ns, duration_ns
        FROM (SELECT *, lower(coalesce(sync_kind, name)) AS sync FROM {_events("raw_syncs", _SYNC_ARGS)})""",
    "raw_annotations": f"""
        SELECT process, event AS id, name, kind, pid, CASE WHEN kind <> 'device' THEN tid END AS tid,
               CASE WHEN kind = 'device' THEN tid END AS stream, start_ns, duration_ns, external_id, record_id,
               input_dims, input_types
        FROM {_events("raw_annotations", _ANNOTATION_ARGS)}""",
    "raw_memory": f"""
        SELECT process, start_ns AS time_ns,
               [{", ".join(map(quote_text, _DEVICE_TYPES))}][type_number + 1] AS device_type,
               CASE WHEN device_number >= 0 THEN device_number END AS device, tid,
               printf('0x%x', address_number) AS address, n_bytes, allocated_bytes, reserved_bytes
        FROM {_events("raw_memory", _MEMORY_ARGS)}""",
    "raw_counters": f"""
        SELECT process, event AS range_id, name, start_ns, duration_ns, counter,
               try_cast(json_extract_string(args, '$."' || replace(counter, '"', '') || '"') AS DOUBLE) AS value
        FROM (SELECT *, unnest(json_keys(args)) AS counter FROM events WHERE code IN ({_codes("raw_counters")}))""",
    "raw_flows": f"SELECT process, try_cast(flow AS BIGINT) AS flow_id, code = {_FLOW_START_CODE} AS is_start, pid, "
    f"tid, start_ns AS time_ns FROM events WHERE code IN ({_codes('raw_flows')})",
    "raw_python_calls": "SELECT process, python_id, parent_id, name, tid, start_ns, duration_ns "
    f"FROM {_events('raw_python_calls', _PYTHON_ARGS)}",
}
_MADE_FROM = {"raw_comm_ops": "raw_ops"}  # the others are made from the events of their own name


# Threads and devices are numbers, but old traces write "stream 7" for them.
_NUMBER = "coalesce(try_cast({0} AS BIGINT), try_cast(regexp_extract({0}, '\\d+') AS BIGINT)) AS {0}"
_SELECT = f"""
SELECT {{process}} AS process,
       CASE ph
           WHEN 'X' THEN CASE lower(cat) {" ".join(f"WHEN '{name}' THEN {code}" for name, code in _CODES.items())} END
           WHEN 's' THEN CASE WHEN cat = 'fwdbwd' THEN {_FLOW_START_CODE} END
           WHEN 'f' THEN CASE WHEN cat = 'fwdbwd' THEN {_FLOW_END_CODE} END
           WHEN 'i' THEN CASE WHEN name = '[memory]' THEN {_MEMORY_CODE} END END::TINYINT AS code,
       name, {_NUMBER.format("pid")}, {_NUMBER.format("tid")}, {{start}} AS start_ns, {{duration}} AS duration_ns,
       id AS flow, args, row_number() OVER () AS event
FROM read_json([{{paths}}], format = 'array', maximum_object_size = {{max_bytes}}, columns = {{{{
    ph: 'VARCHAR', cat: 'VARCHAR', name: 'VARCHAR', pid: 'VARCHAR', tid: 'VARCHAR', ts: '{{time}}', dur: '{{time}}',
    id: 'VARCHAR', args: 'JSON'}}}})
WHERE (ph = 'X' OR ph = 'i' OR cat = 'fwdbwd') AND ts IS NOT NULL {{and_not_python}}
"""
# Microseconds as doubles are exact to the nanosecond up to 2^43 (102 days), with the fraction taken apart before it is
# scaled. Older traces count from 1970 and may have fractions: as text these stay as they are, though it takes longer.
_FAST = ("DOUBLE", "floor({0})::BIGINT * 1000 + round(({0} - floor({0})) * 1000)::BIGINT")
_EXACT = ("VARCHAR", "(try_cast({0} AS DECIMAL(20,3)) * 1000)::BIGINT")
_TIME = re.compile(rb'("ts"\s*:\s*)([0-9.]+)')
_COUNTS = f"""
SELECT process, code, count(*), min(event), max(start_ns) >= {2**43 * 1000} AND bool_or(start_ns % 1000 <> 0)
FROM read_events GROUP BY process, code
"""


_LOADS_IN_MEMORY = 2


class EventStage:
    """Takes part after part of the traces of some processes, and shows the staged relations when all are in.

    A statement costs about as much as reading a small trace: parts are read together until they are large.
    """

    def __init__(self, connection: DuckDBPyConnection, folder: Path, with_python: bool) -> None:
        self._connection = connection
        self._folder = folder
        self._and_not_python = "" if with_python else "AND cat IS DISTINCT FROM 'python_function'"
        self._waiting: list[tuple[int, Path]] = []
        self._n_waiting_bytes = 0
        self._n_loads = 0
        self._relations: dict[str, list[str]] = {name: [] for name in STAGES}
        self._is_fast = True
        self._codes: dict[int, set[int]] = {}
        self.n_events: Counter[int] = Counter()  # by process
        self.n_damaged_parts: Counter[int] = Counter()

    def add(self, process: int, part: Part) -> None:
        n_bytes = sum(map(len, part))
        if self._waiting and self._n_waiting_bytes + n_bytes > PART_BYTES:
            self._load_waiting()
        text = self._folder / f"part-{len(self._waiting)}.json"
        with text.open("wb") as stream:
            stream.writelines(part)
        self._waiting.append((process, text))
        self._n_waiting_bytes += n_bytes

    def _load_waiting(self) -> None:
        counts = self._read_events()
        present: set[str] = set()
        first_events: dict[int, int] = {}
        n_before = dict(self.n_events)
        for process, code, n_events, first, _ in counts:
            self.n_events[process] += n_events
            first_events[process] = min(first, first_events.get(process, first))
            if code is not None:
                self._codes.setdefault(process, set()).add(code)
                present.add(_STAGE_OF_CODE[code])
        if present:
            # Events are counted per process, in the order of its trace.
            moved = {process: n_before.get(process, 0) - first for process, first in first_events.items()}
            numbers = f"SELECT * REPLACE (event + {by_process(moved)} AS event) FROM read_events"
            self._connection.execute(f"CREATE OR REPLACE TEMP VIEW events AS {numbers}").fetchall()
        for name, select in _SELECTS.items():
            if _MADE_FROM.get(name, name) in present:
                self._relations[name].append(self._keep(f"{name}_{self._n_loads}", select))
        self._n_loads += 1
        self._waiting.clear()
        self._n_waiting_bytes = 0

    def _keep(self, name: str, select: str) -> str:
        """The first ones stay in memory, which is all that most traces need; the others go to disk."""
        if self._n_loads < _LOADS_IN_MEMORY:
            self._connection.execute(f"CREATE TEMP TABLE {name} AS {select}").fetchall()
            return name
        path = str(self._folder / f"{name}.parquet")
        target = f"{quote_text(path)} (FORMAT parquet, COMPRESSION lz4_raw)"
        self._connection.execute(f"COPY ({select}) TO {target}").fetchall()
        return f"read_parquet({quote_path(path)})"

    def _read_events(self) -> list[tuple[Any, ...]]:
        """How many events of which code the waiting parts hold, by process."""
        import duckdb

        try:
            if self._is_fast:
                self._read(self._waiting, _FAST)
                counts = self._connection.execute(_COUNTS).fetchall()
                if not any(is_inexact for *_, is_inexact in counts):
                    return counts
                self._is_fast = False
            for _, text in self._waiting:
                text.write_bytes(_TIME.sub(rb'\1"\2"', text.read_bytes()))
            self._read(self._waiting, _EXACT)
        except duckdb.Error:  # a time that is no number, or text that is no JSON: keep what can be kept
            for process, text in self._waiting:
                part = text.read_bytes()
                kept = whole_events(part)
                self.n_damaged_parts[process] += len(kept) < len(part) // 2
                text.write_bytes(kept)
            self._read(self._waiting, _EXACT)
        return self._connection.execute(_COUNTS).fetchall()

    def _read(self, parts: Sequence[tuple[int, Path]], how: tuple[str, str]) -> None:
        time, nanoseconds = how
        select = _SELECT.format(
            process=by_process({number: process for number, (process, _) in enumerate(parts)}, "file_index"),
            start=nanoseconds.format("ts"),
            duration=f"greatest(0, coalesce({nanoseconds.format('dur')}, 0))",
            paths=", ".join(quote_path(str(text)) for _, text in parts),
            max_bytes=max(self._n_waiting_bytes, MAX_EVENT_BYTES),
            time=time,
            and_not_python=self._and_not_python,
        )
        self._connection.execute(f"CREATE OR REPLACE TEMP TABLE read_events AS {select}").fetchall()

    @property
    def present(self) -> list[str]:
        """The staged relations that have rows."""
        return [name for name, relations in self._relations.items() if relations]

    def device_types(self) -> dict[int, str]:
        """Device types from the categories of events, which name the device, and from AMD's runtime names."""
        rocm = set()
        if self._relations["raw_calls"]:
            named = "SELECT DISTINCT process FROM raw_calls WHERE name LIKE 'hip%'"
            rocm = {process for (process,) in self._connection.execute(named).fetchall()}
        return {process: self._device_type(process, process in rocm) for process in self.n_events}

    def _device_type(self, process: int, is_rocm: bool) -> str:
        seen = {category for category, code in _CODES.items() if code in self._codes.get(process, ())}
        for maker in ("mtia", "xpu", "hpu", "privateuse1"):
            if any(category.startswith(maker) for category in seen):
                return maker
        if not any(_CATEGORIES[category][0] in ("raw_kernels", "raw_calls", "raw_counters") for category in seen):
            return "cpu"
        return "rocm" if is_rocm else "cuda"

    def show(self) -> None:
        """Makes the staged relations."""
        if self._waiting:
            self._load_waiting()
        self._connection.execute("DROP VIEW IF EXISTS events; DROP TABLE IF EXISTS read_events").fetchall()
        for name, columns in STAGES.items():
            if self._relations[name]:
                union = " UNION ALL BY NAME ".join(f"SELECT * FROM {relation}" for relation in self._relations[name])
                statement = f"CREATE TEMP VIEW {name} AS {union}"
            else:
                statement = f"CREATE TEMP TABLE {name} ({columns})"
            self._connection.execute(statement).fetchall()
