"""Device error logs: CSV files with one line per error that a host's driver reported for the device of a rank."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator

from rankscope.errors import BadFileError
from rankscope.model.schema import spec
from rankscope.model.tables import Table
from rankscope.read.files import Source

NAME = "device_errors"
HEADER = "time_ns,rank,xid,message"
TABLES = (
    spec(
        "device_errors",
        "Errors that the driver reported, one row each.",
        """
        file_id  int32  The log.
        rank     int32  Global rank that used the device.
        time_ns  int64  When it was reported.
        xid      int32  The driver's number for the error.
        message  text   What the driver said.
        """,
        missing="no device error logs in this capture: put those of the hosts beside the traces",
    ),
)


def sniff(head: bytes, name: str) -> bool:
    return head.startswith(HEADER.encode())


def read(source: Source) -> Iterator[Table]:
    with io.TextIOWrapper(source.open(), encoding="utf-8", errors="replace", newline="") as text:
        lines = list(csv.DictReader(text))
    try:
        rows = [_row(source, line) for line in lines]
    except (TypeError, ValueError) as error:
        raise BadFileError(f"has a line that is not complete: {error}", "copy the file again") from error
    yield Table.from_rows("device_errors", rows)


def _row(source: Source, line: dict[str, str]) -> dict[str, object]:
    numbers = {name: int(line[name]) for name in ("time_ns", "rank", "xid")}
    return {"file_id": source.file_id, **numbers, "message": line["message"]}
