"""The examples that CONTRIBUTING.md shows do what it says they do."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest

from rankscope.analyze import registry
from rankscope.errors import BadFileError
from rankscope.model.finding import SCHEMA_NAME, Capture, Finding, Report
from rankscope.model.tables import Table, Trace
from rankscope.read.files import Source
from rankscope.render import Options

sys.path.insert(0, str(Path(__file__).parent / "examples"))

import call_log
import tab_separated


def call_log_source(folder: Path, *lines: str) -> Source:
    path = folder / "calls_3.csv"
    path.write_text("\n".join((call_log.HEADER, *lines)) + "\n", encoding="utf-8")
    return Source(path, str(path), path.stat().st_size, rank=3, file_id=0)


def test_reader_yields_declared_columns(tmp_path: Path) -> None:
    source = call_log_source(tmp_path, "dp,7,all_reduce,1000,1", "dp,8,all_gather,2000,0")
    assert call_log.sniff(source.head(), "calls_3.csv")
    assert not call_log.sniff(b"\x80\x02}", "nccl_trace_rank_3")
    (table,) = call_log.read(source)
    rows = [(row["rank"], row["seq"], row["op"], row["status"]) for row in table.rows()]
    assert rows == [(3, 7, "all_reduce", "done"), (3, 8, "all_gather", "waiting")]


def test_reader_names_what_is_wrong_with_a_cut_file(tmp_path: Path) -> None:
    with pytest.raises(BadFileError) as caught:
        list(call_log.read(call_log_source(tmp_path, "dp,7,all_re")))
    assert caught.value.hint


def test_rule_speaks_of_the_wrong_clock_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "RULES", {})  # the example must not join the rules that users see
    monkeypatch.delitem(sys.modules, "clock_off", raising=False)
    importlib.import_module("clock_off")
    offsets = {0: 0, 1: 20_000_000, 2: -3_000_000_000}
    rows = [{"rank": rank, "clock_offset_ns": offset} for rank, offset in offsets.items()]
    trace = Trace((), {"ranks": Table.from_rows("ranks", rows)})
    findings = list(registry.RULES["D990"].function(trace))
    assert [(finding.title, finding.ranks) for finding in findings if isinstance(finding, Finding)] == [
        ("the clock of rank 2 is off by 3.0 s", (2,))
    ]


def test_output_keeps_one_line_per_finding() -> None:
    finding = Finding("H102", "op-mismatch", "error", "certain", "rank 3 called all_gather\nhere", ranks=(3,))
    report = Report(SCHEMA_NAME, Capture(("job",), (0, 3), 4, {}), (finding,), ())
    lines = list(tab_separated.render(report, Options()))
    assert len(lines) == 2
    assert lines[1].startswith("error\tH102\t3\trank 3 called all_gather")
    assert "\n" not in lines[1]
