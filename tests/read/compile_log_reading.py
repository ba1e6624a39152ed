"""Reads TORCH_TRACE files for tests: one through the reader alone, or a folder as the command would."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

from rankscope.errors import BadFileError
from rankscope.model.payloads import mapped_log
from rankscope.model.tables import Table, Trace
from rankscope.pipeline import load
from rankscope.read import compile_log
from rankscope.read.cache import entry_name
from rankscope.read.files import Source, name_source
from rankscope.simulate.compile_log import LogBuilder

Row = dict[str, Any]


def read_tables(path: Path) -> dict[str, Table]:
    """The tables of one file, through the reader alone."""
    source = name_source(Source(path, str(path), path.stat().st_size))
    assert source is not None
    scratch = Path(os.environ["RANKSCOPE_CACHE"], f"{entry_name(source.identity)}-plain")
    return {table.name: table for table in compile_log.read(replace(source, file_id=0, scratch=str(scratch)))}


def refusal(path: Path) -> BadFileError | None:
    """Why the reader refused the file; None when it was read. Any other exception is a failure of the test."""
    try:
        read_tables(path)
    except BadFileError as error:
        return error
    return None


def load_logs(folder: Path, *logs: LogBuilder) -> Trace:
    """What the logs, written into the folder under torch's names, tell together."""
    for number, log in enumerate(logs):
        log.write(folder / f"process{number}")
    return load(folder, jobs=1)


def rows_of(trace: Trace, table: str) -> list[Row]:
    return list(trace.table(table).rows())


def records_of(trace: Trace, kind: str) -> list[Row]:
    return [row for row in rows_of(trace, "compile_records") if row["kind"] == kind]


def payload_of(trace: Trace, row: Row) -> bytes:
    return mapped_log(trace, row["file_id"]).payload(row)


def the_log(trace: Trace) -> Row:
    """The row of the only log."""
    [row] = rows_of(trace, "compile_logs")
    return row


def the_file(trace: Trace) -> Row:
    [row] = rows_of(trace, "files")
    return row
