"""The rows of a query as lines of CSV and JSON."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator
from typing import Any

from rankscope.render.query_rows import csv_lines, json_lines
from render.snapshot import check_snapshot

HEADS = ["rank", "name", "value", "is_late", "ranks"]
ROWS: list[tuple[Any, ...]] = [
    (0, "plain", 0.5, True, [1, 2]),
    (None, "", None, None, None),
    (2**63 - 1, 'it\'s "quoted", with comma', float("nan"), False, []),
    (3, "line\nbreak \x1b[2J \u202e na\u00efve \x7f", float("inf"), False, [{"x": "\u202e"}]),
]


def test_both_forms() -> None:
    parts = ["\n".join(csv_lines(HEADS, ROWS)), "\n".join(json_lines(HEADS, ROWS))]
    check_snapshot("query_rows.txt", "\n\n".join(parts) + "\n")


def test_csv_reads_back() -> None:
    rows = [*ROWS, (4, "carriage\rreturn", 0.0, False, None)]
    read = list(csv.reader(io.StringIO("\n".join(csv_lines(HEADS, rows)), newline="")))
    assert read[0] == HEADS
    assert [row[1] for row in read[1:]] == [row[1] for row in rows]
    assert read[3][0] == str(2**63 - 1)


def test_json_reads_back() -> None:
    records = json.loads("\n".join(json_lines(HEADS, ROWS)))
    assert [record["name"] for record in records] == [row[1] for row in ROWS]
    assert [record["value"] for record in records] == [0.5, None, None, None]
    assert records[2]["rank"] == 2**63 - 1


def test_a_terminal_gets_no_control_characters() -> None:
    printed = "".join(csv_lines(HEADS, ROWS, to_terminal=True))
    assert printed.isprintable()


def test_lines_come_one_at_a_time() -> None:
    """An answer of any size passes through: no row is asked for before the one ahead of it was written."""
    asked = []

    def rows() -> Iterator[tuple[int]]:
        for number in range(3):
            asked.append(number)
            yield (number,)

    lines = csv_lines(["n"], rows())
    assert [next(lines), next(lines)] == ["n", "0"]
    assert asked == [0]
