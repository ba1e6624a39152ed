"""Reads a text as a job's output."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from rankscope.read import job_log
from rankscope.read.files import Source

WRITTEN_S = 1_795_000_000  # 18 November 2026


def events(path: Path, content: bytes | str) -> list[dict[str, Any]]:
    """Its rows, but for the last output of each rank."""
    data = content.encode() if isinstance(content, str) else content
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    os.utime(path, (WRITTEN_S, WRITTEN_S))
    source = Source(path, str(path), len(data), file_id=0)
    tables = job_log.read(source) if path.name == "error.json" else job_log.in_output(source)
    rows = [row for table in tables if table.name == "log_events" for row in table.rows()]
    return [{**row, "fields": json.loads(row["fields"])} for row in rows if row["kind"] != "last-output"]


def one(path: Path, content: bytes | str) -> dict[str, Any]:
    [event] = events(path, content)
    return event
