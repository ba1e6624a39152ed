"""The forms in which Nsight Systems hands out a report, brought to one: Parquet files under the names of its tables.

SQLite (`nsys export --type=sqlite`) is copied, a folder of Parquet tables (`--type=parquetdir`) is read in place,
and a report itself (`.nsys-rep`, a closed format) is exported first, if the command `nsys` is installed.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from rankscope.errors import BadFileError
from rankscope.model.sql import quote_name, quote_text
from rankscope.read.archives import copy_limited
from rankscope.read.files import Source

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

SQLITE_MAGIC = b"SQLite format 3\x00"
REPORT_MAGIC = b"NVIDIA Tegra Profiler Report"
PARQUET_MAGIC = b"PAR1"
STRINGS = "StringIds"  # the one table that every export has; its file stands for the folder of Parquet tables
EXPORT_HINT = "export the report again: nsys export --type=sqlite --include-blobs=true REPORT.nsys-rep"
_EXPORT_SECONDS = 3600


def _integers(*names: str) -> dict[str, str]:
    return dict.fromkeys(names, "BIGINT")


_WORK = _integers("start", "end", "deviceId", "contextId", "streamId", "correlationId", "globalPid")
_SIZE = ("gridX", "gridY", "gridZ", "blockX", "blockY", "blockZ", "staticSharedMemory", "dynamicSharedMemory")
# The large tables and what is needed of them. Each is there only when something of its kind was recorded, and each
# column only since some version.
TABLES: dict[str, dict[str, str]] = {
    STRINGS: {**_integers("id"), "value": "VARCHAR"},
    "CUPTI_ACTIVITY_KIND_KERNEL": {
        **_WORK,
        **_integers("demangledName", "shortName", "registersPerThread", "graphId", "graphNodeId", *_SIZE),
    },
    "CUPTI_ACTIVITY_KIND_MEMCPY": {**_WORK, **_integers("bytes", "copyKind", "srcKind", "dstKind", "graphNodeId")},
    "CUPTI_ACTIVITY_KIND_MEMSET": {**_WORK, **_integers("bytes", "memKind", "graphNodeId")},
    "CUPTI_ACTIVITY_KIND_GRAPH_TRACE": {**_WORK, **_integers("graphId")},
    "CUPTI_ACTIVITY_KIND_RUNTIME": _integers("start", "end", "globalTid", "correlationId", "nameId"),
    "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION": {**_WORK, **_integers("syncType", "eventSyncId")},
    "CUPTI_ACTIVITY_KIND_CUDA_EVENT": _integers("streamId", "correlationId", "globalPid", "eventSyncId"),
    "CUPTI_ACTIVITY_KIND_OVERHEAD": _integers("start", "end", "globalTid", "nameId"),
    "NVTX_EVENTS": {
        **_integers("start", "end", "eventType", "globalTid", "textId"),
        "text": "VARCHAR",
        "binaryData": "BLOB",
    },
    "NVTX_PAYLOAD_SCHEMA_ENTRIES": {**_integers("schemaId", "idx", "offset"), "name": "VARCHAR"},
}
# What describes the capture; read as rows.
SMALL_TABLES = (
    "TARGET_INFO_SESSION_START_TIME",
    "TARGET_INFO_SYSTEM_ENV",
    "TARGET_INFO_GPU",
    "TARGET_INFO_CUDA_DEVICE",
    "META_DATA_CAPTURE",
)
Parts = Mapping[str, Sequence[Path]]


class Export(Protocol):
    columns: dict[str, frozenset[str]]  # table -> its columns

    def rows(self, table: str, columns: Sequence[str]) -> list[tuple[Any, ...]]: ...

    def parts(
        self, table: str, kinds: Mapping[str, str], folder: Path, connection: DuckDBPyConnection
    ) -> Iterator[Path]: ...

    def close(self) -> None: ...


class ParquetExport:
    def __init__(self, folder: Path, connection: DuckDBPyConnection) -> None:
        self._connection = connection
        named = {table: folder / f"{table}.parquet" for table in (*TABLES, *SMALL_TABLES)}
        self._paths = {table: path for table, path in named.items() if path.is_file()}
        self.columns = {table: frozenset(_described(connection, [path])) for table, path in self._paths.items()}

    def close(self) -> None:
        pass

    def rows(self, table: str, columns: Sequence[str]) -> list[tuple[Any, ...]]:
        known = self.columns.get(table, frozenset())
        if not known:
            return []
        selected = ", ".join(quote_name(column) if column in known else "NULL" for column in columns)
        return _query(self._connection, f"SELECT {selected} FROM {_parquet([self._paths[table]])}")

    def parts(
        self, table: str, _kinds: Mapping[str, str], _folder: Path, _connection: DuckDBPyConnection
    ) -> Iterator[Path]:
        if table in self._paths:
            yield self._paths[table]


@contextmanager
def opened_export(source: Source, folder: Path, connection: DuckDBPyConnection) -> Iterator[Export]:
    """The export behind a source; `folder` takes what has to be unpacked or exported first."""
    from rankscope.read.nsys_sqlite import SqliteExport

    head = source.head()
    if head.startswith(PARQUET_MAGIC):
        if not _is_plain(source):
            raise BadFileError(
                "is a Parquet export inside an archive or an object store", "copy its folder to this machine, unpacked"
            )
        export: Export = ParquetExport(source.path.parent, connection)
    elif head.startswith(REPORT_MAGIC):
        export = SqliteExport(_exported_report(source, folder))
    else:
        export = SqliteExport(_on_disk(source, head, folder / "raw_export.sqlite"))
    try:
        if "value" not in export.columns.get(STRINGS, ()):
            raise BadFileError("is not an Nsight Systems export: its tables are missing", EXPORT_HINT)
        yield export
    finally:
        export.close()


def _is_plain(source: Source) -> bool:
    return not source.member and source.offset < 0 and source.remote is None


def _on_disk(source: Source, head: bytes, aside: Path) -> Path:
    """The content as a file of its own: SQLite and nsys read neither archives nor compressed files nor stores."""
    if _is_plain(source):
        with open(source.path, "rb") as file:
            if file.read(16) == head[:16]:
                return source.path
    try:
        with source.open() as stream, open(aside, "wb") as plain:
            copy_limited(stream, plain)
    except (OSError, EOFError, zlib.error) as error:
        raise BadFileError(
            f"cannot be unpacked: {error}", "copy it again, or unpack it to a disk with enough space"
        ) from error
    return aside


def _exported_report(source: Source, folder: Path) -> Path:
    import shutil
    import subprocess

    command = shutil.which("nsys")
    if command is None:
        raise BadFileError(
            "is a report in Nsight Systems' own format, which only nsys can read",
            f"on a machine with nsys: nsys export --type=sqlite --include-blobs=true {source.path.name}",
        )
    report = _on_disk(source, source.head(), folder / "raw_report.nsys-rep")
    exported = folder / "raw_export.sqlite"
    problem = ""
    for options in (["--include-blobs=true"], []):  # early versions do not know the option
        arguments = [command, "export", "--type=sqlite", "--force-overwrite=true", *options, f"--output={exported}"]
        try:
            done = subprocess.run(
                [*arguments, str(report.resolve())],  # absolute: no name is taken for an option
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=_EXPORT_SECONDS,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            problem = str(error)
            continue
        if done.returncode == 0 and exported.exists():
            return exported
        output = (done.stderr or done.stdout).decode(errors="replace").split("\n")
        problem = next((line.strip() for line in reversed(output) if line.strip()), f"exit code {done.returncode}")
    raise BadFileError(f"could not be exported by nsys: {problem[:200]}", EXPORT_HINT)


def show_tables(connection: DuckDBPyConnection, parts: Parts) -> None:
    """Makes a view of each table, with all columns of TABLES; what the export does not have is empty or NULL."""
    for table, kinds in TABLES.items():
        existing = _described(connection, parts[table]) if parts[table] else {}
        columns = ", ".join(
            f"{_cast(column, kind, existing)} AS {quote_name(column)}" for column, kind in kinds.items()
        )
        origin = f"FROM {_parquet(parts[table])}" if parts[table] else "WHERE false"
        connection.execute(f"CREATE TEMP VIEW {quote_name(table)} AS SELECT {columns} {origin}").fetchall()


def _cast(column: str, kind: str, existing: Mapping[str, str]) -> str:
    # nsys writes payloads into Parquet as text that is none, which DuckDB refuses: then there are no payloads.
    if column not in existing or (kind == "BLOB" and existing[column] != "BLOB"):
        return f"NULL::{kind}"
    return f"try_cast({quote_name(column)} AS {kind})"


def _described(connection: DuckDBPyConnection, paths: Sequence[Path]) -> dict[str, str]:
    return {row[0]: row[1] for row in _query(connection, f"DESCRIBE SELECT * FROM {_parquet(paths)}")}


def _query(connection: DuckDBPyConnection, sql: str) -> list[tuple[Any, ...]]:
    import duckdb

    try:
        return connection.execute(sql).fetchall()
    except duckdb.Error as error:
        raise BadFileError(f"has a damaged Parquet table: {str(error).splitlines()[0][:200]}", EXPORT_HINT) from error


def _parquet(paths: Sequence[Path]) -> str:
    return f"read_parquet([{', '.join(quote_text(str(path)) for path in paths)}])"
