"""Call logs: CSV files with one line per collective that a rank called."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator

from rankscope.errors import BadFileError
from rankscope.model.tables import Table
from rankscope.read.files import Source

NAME = "call_log"
HEADER = "group,seq,op,created_ns,done"


def sniff(head: bytes, name: str) -> bool:
    return head.startswith(HEADER.encode())


def read(source: Source) -> Iterator[Table]:
    with io.TextIOWrapper(source.open(), encoding="utf-8", errors="replace", newline="") as text:
        lines = list(csv.DictReader(text))
    try:
        rows = [_row(source, line) for line in lines]
    except (TypeError, ValueError) as error:
        raise BadFileError(f"has a line that is not complete: {error}", "copy the file again") from error
    yield Table.from_rows("collectives", rows)


def _row(source: Source, line: dict[str, str]) -> dict[str, object]:
    return {
        "file_id": source.file_id,
        "rank": source.rank,
        "group_name": line["group"],
        "seq": int(line["seq"]),
        "op": line["op"],
        "created_ns": int(line["created_ns"]),
        "status": "done" if int(line["done"]) else "waiting",
    }
