"""The examples that CONTRIBUTING.md shows do what it says they do. test_parts.py installs them as a package."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from rankscope.errors import BadFileError
from rankscope.model.finding import SCHEMA_NAME, Capture, Finding, Report
from rankscope.model.tables import SCHEMA, Table, Trace
from rankscope.read.files import Source
from rankscope.render import Options

sys.path.insert(0, str(Path(__file__).parent / "examples"))

import device_errors
import device_failed
import last_errors
import tab_separated


@pytest.fixture(autouse=True)
def tables(monkeypatch: pytest.MonkeyPatch) -> None:
    """The tables of the examples must not join those that users see."""
    for table in (*device_errors.TABLES, *last_errors.TABLES):
        monkeypatch.setitem(SCHEMA, table.name, table)


def log_source(folder: Path, *lines: str) -> Source:
    path = folder / "errors.csv"
    path.write_text("\n".join((device_errors.HEADER, *lines)) + "\n", encoding="utf-8")
    return Source(path, str(path), path.stat().st_size, file_id=0)


def test_reader_yields_declared_columns(tmp_path: Path) -> None:
    source = log_source(tmp_path, "1000,3,79,fallen off the bus", "2000,1,13,page fault")
    assert device_errors.sniff(source.head(), "errors.csv")
    assert not device_errors.sniff(b"\x80\x02}", "nccl_trace_rank_3")
    (table,) = device_errors.read(source)
    rows = [(row["rank"], row["time_ns"], row["xid"], row["message"]) for row in table.rows()]
    assert rows == [(3, 1000, 79, "fallen off the bus"), (1, 2000, 13, "page fault")]


def test_reader_names_what_is_wrong_with_a_cut_file(tmp_path: Path) -> None:
    with pytest.raises(BadFileError) as caught:
        list(device_errors.read(log_source(tmp_path, "1000,")))
    assert caught.value.hint


def test_rule_names_the_rank_that_failed_and_not_the_one_that_went_on() -> None:
    errors = [{"rank": rank, "time_ns": 1000, "xid": 79} for rank in (0, 1)]
    calls = [{"rank": 0, "op": "all_reduce", "status": "done"}, {"rank": 1, "op": "all_reduce", "status": "waiting"}]
    trace = Trace((), {"device_errors": Table.from_rows("device_errors", errors)}, makers={"last_errors": _last})
    trace.tables["collectives"] = Table.from_rows("collectives", calls)
    [finding] = device_failed.device_failed(trace)
    assert isinstance(finding, Finding)
    assert (finding.code, finding.rule, finding.ranks) == ("X690", "device-failed", (1,))
    assert finding.title == "the device of rank 1 failed, and its all_reduce never completed"


def _last(trace: Trace) -> Table:
    return last_errors.last_errors(trace)


def test_output_keeps_one_line_per_finding() -> None:
    title = "rank 3 called all_gather\nhere"
    finding = Finding(code="H102", severity="error", certainty="certain", title=title, ranks=(3,))
    report = Report(SCHEMA_NAME, Capture(("job",), (0, 3), 4, {}), (finding,), ())
    lines = list(tab_separated.render(report, Options()))
    assert len(lines) == 2
    assert lines[1].startswith("error\tH102\t3\trank 3 called all_gather")
    assert "\n" not in lines[1]
