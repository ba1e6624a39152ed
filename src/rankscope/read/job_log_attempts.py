"""Where one attempt of a job ends and the next begins, if no line says so."""

from __future__ import annotations

from typing import Any

from rankscope.model.tables import MISSING

Row = dict[str, Any]


def count_unannounced_restarts(rows: list[Row]) -> None:
    """torchrun says that it restarts only at level INFO. But one agent reports one failure per attempt.

    Two jobs in one file are two attempts, too: each launcher of a host prints its table at its end.
    """
    if any(row["kind"] == "restart" for row in rows):
        return
    ends = _ends_by_agent(rows) or _ends_by_table(rows)
    for row in rows:
        row["attempt"] += len(ends) if row["kind"] == "last-output" else sum(end < row["line"] for end in ends)


def _ends_by_agent(rows: list[Row]) -> list[int]:
    failures: dict[int, list[int]] = {}
    for row in rows:
        if row["kind"] == "exit" and "local_rank" in row["fields"] and row["speaker"].pid != MISSING:
            failures.setdefault(row["speaker"].pid, []).append(row["line"])
    return max(failures.values(), key=len)[:-1] if failures else []


def _ends_by_table(rows: list[Row]) -> list[int]:
    tables: dict[str, list[int]] = {}
    for row in rows:
        if row["kind"] == "exit" and row["fields"].get("is_root"):
            tables.setdefault(str(row["fields"].get("node")), []).append(row["line"])
    return max(tables.values(), key=len)[:-1] if tables else []
