"""Exports of Nsight Systems made by hand: the tables and columns of its schema that matter, few rows of each."""

from __future__ import annotations

import sqlite3
import struct
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import duckdb

from rankscope.model.tables import Table, Trace
from rankscope.pipeline import load

Row = dict[str, Any]

STARTED_NS = 1_760_000_000_000_000_000
PUSH_POP, START_END, MARK = 59, 60, 34
_WORK = "start, end, deviceId, contextId, streamId, correlationId, globalPid"
_COLUMNS = {
    "StringIds": "id INTEGER PRIMARY KEY, value TEXT",
    "TARGET_INFO_SESSION_START_TIME": "utcEpochNs INTEGER, utcTime TEXT",
    "TARGET_INFO_SYSTEM_ENV": "name TEXT, value TEXT",
    "META_DATA_CAPTURE": "name TEXT, value TEXT",
    "TARGET_INFO_GPU": "id, name TEXT, smCount, totalMemory, maxWarpsPerSm, threadsPerWarp",
    "TARGET_INFO_CUDA_DEVICE": "gpuId, cudaId, pid",
    "CUPTI_ACTIVITY_KIND_KERNEL": f"{_WORK}, demangledName, shortName, registersPerThread, gridX, gridY, gridZ, blockX,"
    " blockY, blockZ, staticSharedMemory, dynamicSharedMemory, graphId, graphNodeId",
    "CUPTI_ACTIVITY_KIND_MEMCPY": f"{_WORK}, bytes, copyKind, srcKind, dstKind",
    "CUPTI_ACTIVITY_KIND_MEMSET": f"{_WORK}, bytes, memKind",
    "CUPTI_ACTIVITY_KIND_GRAPH_TRACE": f"{_WORK}, graphId",
    "CUPTI_ACTIVITY_KIND_RUNTIME": "start, end, globalTid, correlationId, nameId",
    "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION": f"{_WORK}, syncType, eventSyncId",
    "CUPTI_ACTIVITY_KIND_CUDA_EVENT": "streamId, correlationId, globalPid, eventSyncId",
    "CUPTI_ACTIVITY_KIND_OVERHEAD": "start, end, globalTid, nameId",
    "NVTX_EVENTS": "start, end, eventType, globalTid, text TEXT, textId, domainId, binaryData",
    "NVTX_PAYLOAD_SCHEMA_ENTRIES": "domainId, schemaId, idx, name TEXT, offset",
}
# Fields of NCCL's payloads: (name, format of the number, place).
_COMMUNICATOR = ("NCCL communicator ID", "Q", 0)
_SIZE = ("Message size [bytes]", "Q", 8)
_JOINED = (_COMMUNICATOR, ("No. of ranks", "i", 8), ("Rank", "i", 12), ("CUDA device", "i", 16))
_SCHEMAS = {
    16777218: _JOINED,
    16777220: (_COMMUNICATOR, _SIZE),
    16777223: (_COMMUNICATOR, _SIZE, ("Reduction operation", "i", 16)),
    16777225: (_COMMUNICATOR, _SIZE, ("Peer rank", "i", 16)),
    16777230: (_COMMUNICATOR,),
}


def global_pid(pid: int) -> int:
    return (1 << 48) | (pid << 24)


class NsysExport:
    """Collects rows; tables that stay empty are not written, as nsys does."""

    def __init__(self, pid: int = 4000, device: int = 0) -> None:
        self.tables: dict[str, list[Row]] = {}
        self.pid, self.device = pid, device
        self._strings: dict[str, int] = {}
        self.string("")
        self.add("TARGET_INFO_SESSION_START_TIME", utcEpochNs=STARTED_NS)
        self.add("TARGET_INFO_SYSTEM_ENV", name="Hostname", value="node07")

    def add(self, table: str, **row: Any) -> None:
        self.tables.setdefault(table, []).append(row)

    def string(self, text: str) -> int:
        if text not in self._strings:
            self._strings[text] = len(self._strings) + 1
            self.add("StringIds", id=self._strings[text], value=text)
        return self._strings[text]

    def environment(self, **variables: object) -> None:
        for name, value in variables.items():
            self.add("META_DATA_CAPTURE", name="PROCESS_0:ENVIRONMENT_VARIABLE", value=f'{name}="{value}"')

    def process(self, pid: int, device: int) -> None:
        """What is added from now on belongs to this process."""
        self.pid, self.device = pid, device

    def tid(self, thread: int = 0) -> int:
        return global_pid(self.pid) | (self.pid + thread)

    def range(self, text: str | None, start: int, end: int | None, thread: int = 0, **row: Any) -> None:
        base = {"eventType": PUSH_POP, "globalTid": self.tid(thread), "domainId": 0}
        self.add("NVTX_EVENTS", start=start, end=end, **{**base, "text": text, **row})

    def call(self, name: str, start: int, end: int, correlation: int, thread: int = 0) -> None:
        row = {"globalTid": self.tid(thread), "correlationId": correlation, "nameId": self.string(name)}
        self.add("CUPTI_ACTIVITY_KIND_RUNTIME", start=start, end=end, **row)

    def work(self, kind: str, start: int, end: int, correlation: int, **row: Any) -> None:
        base = {"deviceId": self.device, "contextId": 1, "streamId": 7, "globalPid": global_pid(self.pid)}
        base |= {"correlationId": correlation}
        self.add(f"CUPTI_ACTIVITY_KIND_{kind}", start=start, end=end, **{**base, **row})

    def kernel(self, name: str, start: int, end: int, correlation: int, **row: Any) -> None:
        size = dict.fromkeys(("gridX", "gridY", "gridZ", "blockX", "blockY", "blockZ"), 1) | {
            "gridX": 136,
            "blockX": 64,
        }
        shared = {"staticSharedMemory": 16, "dynamicSharedMemory": 1024, "registersPerThread": 32}
        names = {"demangledName": self.string(name), "shortName": self.string(name.split("(")[0])}
        self.work("KERNEL", start, end, correlation, **{**names, **size, **shared, **row})

    def launch(self, name: str, start: int, correlation: int, thread: int = 0, **row: Any) -> None:
        """A call of 10 ns and, 100 ns after its start, the kernel of 50 ns."""
        self.call("cudaLaunchKernel_v7000", start, start + 10, correlation, thread)
        self.kernel(name, start + 100, start + 150, correlation, **row)

    def nccl(self, name: str, start: int, end: int, schema: int = 0, values: Sequence[int] = ()) -> None:
        """A range of NCCL; `values` are the fields of the payload, none: an export without blobs."""
        payload = _payload(schema, values) if values else None
        if values and "NVTX_PAYLOAD_SCHEMA_ENTRIES" not in self.tables:
            for number, fields in _SCHEMAS.items():
                for place, (field, _, offset) in enumerate(fields):
                    entry = {"domainId": 1, "schemaId": number, "idx": place, "offset": offset or None}
                    self.add("NVTX_PAYLOAD_SCHEMA_ENTRIES", name=field, **entry)
        self.range(None, start, end, textId=self.string(name), domainId=1, binaryData=payload)

    def write(self, path: Path, without: Mapping[str, Sequence[str]] | None = None) -> Path:
        """As SQLite; `without` leaves out columns, as older versions of nsys do."""
        path.unlink(missing_ok=True)
        with closing(sqlite3.connect(path)) as connection:
            for table, rows in self.tables.items():
                columns = _columns(table, (without or {}).get(table, ()))
                _fill(connection, table, columns, rows)
            connection.commit()
        return path

    def write_parquet(self, folder: Path, payloads: str = "BLOB") -> Path:
        """As a folder of Parquet tables; nsys declares payloads as text, though they are none."""
        folder.mkdir()
        with duckdb.connect() as connection:
            for table, rows in self.tables.items():
                declared = {name: kind.replace("INTEGER", "BIGINT") for name, kind in _columns(table).items()}
                columns = {name: payloads if name == "binaryData" else kind for name, kind in declared.items()}
                _fill(connection, table, columns, rows)
                target = f"'{folder}/{table}.parquet' (FORMAT parquet, COMPRESSION uncompressed)"
                connection.execute(f"COPY {table} TO {target}")
        return folder


def _columns(table: str, hidden: Sequence[str] = ()) -> dict[str, str]:
    declared = (column.strip().partition(" ") for column in _COLUMNS[table].split(","))
    return {name: kind or "INTEGER" for name, _, kind in declared if name not in hidden}


def _fill(connection: Any, table: str, columns: Mapping[str, str], rows: Sequence[Row]) -> None:
    listed = ", ".join(f'"{name}" {kind}' for name, kind in columns.items())
    connection.execute(f"CREATE TABLE {table} ({listed})")
    marks = ", ".join("?" * len(columns))
    connection.executemany(
        f"INSERT INTO {table} VALUES ({marks})", [[row.get(name) for name in columns] for row in rows]
    )


def _payload(schema: int, values: Sequence[int]) -> bytes:
    body = bytearray(24)
    for (_, form, offset), value in zip(_SCHEMAS[schema], values, strict=False):
        struct.pack_into(f"<{form}", body, offset, value)
    return struct.pack("<4Q", 1, schema, len(body), 32 + len(body)) + bytes(body)


JOIN, GATHER, REDUCE, TRANSFER, MARKER = sorted(_SCHEMAS)
COMMUNICATOR = 0xF00D_0000_0000_0007


def training_export(rank: int, n_ranks: int = 2) -> NsysExport:
    """Two steps of a rank of a data-parallel job: operators with shapes, NCCL with payloads, a graph, copies, waits."""
    export = NsysExport(pid=4000 + rank, device=rank)
    export.environment(RANK=rank, LOCAL_RANK=rank, WORLD_SIZE=n_ranks)
    for gpu in range(n_ranks):
        size = {"smCount": 68, "totalMemory": 80 << 30, "maxWarpsPerSm": 64, "threadsPerWarp": 32}
        export.add("TARGET_INFO_GPU", id=gpu, name="NVIDIA H100", **size)
        export.add("TARGET_INFO_CUDA_DEVICE", gpuId=gpu, cudaId=gpu, pid=4000 + rank)
    export.nccl("ncclCommInitRankConfig", 100, 900, JOIN, (COMMUNICATOR, n_ranks, rank, rank))
    for step in range(2):
        _training_step(export, 10_000 * (step + 1) + 17 * rank, step)
    return export


def _training_step(export: NsysExport, start: int, step: int) -> None:
    number = 100 * (step + 1)
    export.range(f"step {step}", start, start + 9_000)
    export.range("forward", start + 100, start + 3_000)
    shapes = "sizes = [[8, 16], [32, 16], [32]], input_op_ids = [(5,0), (6,0)]"
    export.range(f"aten::linear, seq = {number}, op_id = {number}, {shapes}", start + 200, start + 1_000)
    export.range(f"aten::t, op_id = {number + 1}", start + 250, start + 300)
    export.range(f"aten::addmm, op_id = {number + 2}, sizes = [[32], [8, 16], [16, 32]]", start + 310, start + 900)
    export.range(f"aten::expand, op_id = {number + 3}", start + 350, start + 400)
    export.launch("sm80_gemm_f32", start + 500, number)
    export.call("cudaMemcpyAsync_v3020", start + 1_100, start + 1_150, number + 1)
    copied = {"bytes": 4096, "copyKind": 1, "srcKind": 1, "dstKind": 2}
    export.work("MEMCPY", start + 1_200, start + 1_300, number + 1, **copied)
    export.call("cudaMemsetAsync_v3020", start + 1_160, start + 1_180, number + 2)
    export.work("MEMSET", start + 1_310, start + 1_320, number + 2, bytes=128, memKind=2)
    export.call("cudaGraphLaunch_v10000", start + 1_400, start + 1_450, number + 3)
    export.work("GRAPH_TRACE", start + 1_500, start + 1_900, number + 3, graphId=3)
    export.nccl("ncclAllReduce", start + 3_100, start + 3_400, REDUCE, (COMMUNICATOR, 2048, 0))
    name = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096>)"
    export.launch(name, start + 3_200, number + 4, streamId=20)
    export.call("cudaStreamSynchronize_v3020", start + 4_000, start + 4_500, number + 5)
    export.work("SYNCHRONIZATION", start + 4_010, start + 4_490, number + 5, syncType=3)
    export.add("CUPTI_ACTIVITY_KIND_OVERHEAD", start=start + 5_000, end=start + 5_100,
               globalTid=export.tid(), nameId=export.string("Command Buffer Full"))  # fmt: skip


def load_export(export: NsysExport, folder: Path, name: str = "nsys_0.sqlite") -> Trace:
    return load(export.write(folder / name))


def rows_of(trace: Trace, table: str) -> list[Row]:
    """In the order of time, and of ranks where times are equal."""
    rows = list(Table.rows(trace.table(table)))
    return sorted(rows, key=lambda row: (row.get("start_ns", 0), row["rank"]))
