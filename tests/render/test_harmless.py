"""Text from a trace on a terminal and in a spreadsheet: it stays text."""

from __future__ import annotations

import csv
import sys
from pathlib import Path

import duckdb
import pytest

from rankscope.commands import output
from rankscope.render.database_files import guarded_tables
from rankscope.render.escape import harmless
from rankscope.render.query_rows import csv_lines

EVIL = "\x1b]0;title\x07\x1b[2J\x1b[1;31mred\u202eabc\x9b5n"


def test_a_line_keeps_colors_and_nothing_else() -> None:
    shown = harmless(f"\x1b[1mbold\x1b[0m\t{EVIL}")
    assert shown.startswith("\x1b[1mbold\x1b[0m\t\\x1b]0;title\\x07\\x1b[2J")
    assert "\u202e" not in shown
    assert "\x9b" not in shown


def test_a_terminal_gets_no_escape_sequence(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    output.print_lines([EVIL])
    output.tell(EVIL)
    written = capsys.readouterr()
    assert "\x1b]" not in written.out
    assert "\x1b[2J" not in written.out
    assert "\x1b" not in written.err


@pytest.mark.parametrize("text", ["=cmd()", "+1", "-1+2", "@x", "\t=1", "\r=1"])
def test_csv_has_no_formulas_unless_it_is_raw(text: str) -> None:
    row = (text, -1, -0.5, None)
    guarded, raw = (list(csv.reader(csv_lines("abcd", [row], is_raw=is_raw)))[1] for is_raw in (False, True))
    assert guarded == [f"'{text}", "-1", "-0.5", ""]
    assert raw[0] == text


def test_exported_csv_has_no_formulas(tmp_path: Path) -> None:
    connection = duckdb.connect()
    connection.execute("CREATE TABLE t AS SELECT '=cmd()' AS a, -1 AS b UNION ALL SELECT 'plain', 2")
    guarded = guarded_tables(connection, {"t": "t"})
    assert connection.execute(f"FROM {guarded['t']}").fetchall() == [("'=cmd()", -1), ("plain", 2)]
