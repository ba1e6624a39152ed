"""A bug in a reader costs its file, a bug in a rule costs the rule; the rest of the report stays."""

from __future__ import annotations

import pickle
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import rankscope
from rankscope import analyze
from rankscope.errors import InputError, OutputError
from rankscope.model.border import raise_bugs
from rankscope.model.finding import Report
from rankscope.model.tables import Table, Trace
from rankscope.read import border, flight_recorder
from rankscope.read.files import Source
from rankscope.render import Options
from rankscope.render.terminal import render
from read.dumps import make_dump, make_entry

KINETO = Path(__file__).parents[1] / "data" / "kineto"


@pytest.fixture
def as_users_see_it() -> Iterator[None]:
    raise_bugs(False)
    yield
    raise_bugs()


@pytest.fixture
def capture(tmp_path: Path) -> Path:
    for rank in range(3):
        (tmp_path / f"nccl_trace_rank_{rank}").write_bytes(pickle.dumps(make_dump([make_entry(1)]), protocol=2))
    return tmp_path


def _failing_on_rank_1(read: Callable[[Source], Iterator[Table]]) -> Callable[[Source], Iterator[Table]]:
    def failing(source: Source) -> Iterator[Table]:
        if source.rank == 1:
            raise ZeroDivisionError("oops")
        yield from read(source)

    return failing


def _shown(report: Report) -> str:
    return "\n".join(render(report, Options(width=300)))


def test_a_reader_that_fails_costs_its_file(
    capture: Path, monkeypatch: pytest.MonkeyPatch, as_users_see_it: None
) -> None:
    monkeypatch.setattr(flight_recorder, "read", _failing_on_rank_1(flight_recorder.read))
    trace = rankscope.load(capture)
    assert sorted(trace.table("ranks").array("rank").tolist()) == [0, 2]
    damaged = [finding for finding in rankscope.diagnose(trace).findings if finding.code == "D902"]
    assert "nccl_trace_rank_1 could not be read: the reader flight_recorder failed" in damaged[0].title
    assert "ZeroDivisionError" in damaged[0].title
    assert "please report it" in damaged[0].help


@pytest.mark.parametrize("jobs", [1, 2])
def test_an_error_that_is_not_about_the_file_ends_the_command(jobs: int, tmp_path: Path, as_users_see_it: None) -> None:
    """Here in this process and in others; on a cluster: tests/scale/test_cluster.py."""
    job = tmp_path / "job"
    job.mkdir()
    for rank in range(2):
        shutil.copy(KINETO / "kineto_trace_0.json.gz", job / f"kineto_trace_{rank}.json.gz")
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError, match="cannot write the cache") as caught:
        rankscope.load(job, jobs=jobs, cache=str(tmp_path / "file" / "kept"))
    assert caught.value.hint


def test_in_tests_and_with_debug_a_reader_raises(capture: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flight_recorder, "read", _failing_on_rank_1(flight_recorder.read))
    with pytest.raises(ZeroDivisionError):
        rankscope.load(capture)


def _broken_rule(trace: Trace) -> Iterator[analyze.Skipped]:
    yield analyze.Skipped("about to fail")
    raise KeyError("no such column")


def _break(rule: str, monkeypatch: pytest.MonkeyPatch) -> None:
    declared = type(analyze.RULES[rule].part)
    load = declared.load
    monkeypatch.setattr(declared, "load", lambda part: _broken_rule if part.values[:1] == (rule,) else load(part))


def test_a_rule_that_fails_costs_the_rule(
    capture: Path, monkeypatch: pytest.MonkeyPatch, as_users_see_it: None
) -> None:
    trace = rankscope.load(capture)
    before = rankscope.diagnose(trace)
    _break("D902", monkeypatch)
    report = rankscope.diagnose(trace)
    assert report.findings == before.findings
    failed = [check for check in report.checks if check.status == "failed"]
    assert [check.rule for check in failed] == ["file-damaged"]
    shown = _shown(report)
    assert "1 check failed" in shown
    assert "Check failed: file-damaged: KeyError" in shown
    assert "please report it" in shown


def test_in_tests_a_rule_raises(capture: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trace = rankscope.load(capture)
    _break("D902", monkeypatch)
    with pytest.raises(KeyError):
        rankscope.diagnose(trace)


def test_a_reader_that_takes_too_long_is_ended(capture: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def endless(source: Source) -> Iterator[Table]:
        while source.rank == 1:
            try:
                time.process_time()
            except Exception:
                continue
        yield from read(source)

    read = flight_recorder.read
    monkeypatch.setattr(flight_recorder, "read", endless)
    monkeypatch.setattr(border, "CPU_S", 0.2)
    report = rankscope.diagnose(rankscope.load(capture))
    damaged = [finding for finding in report.findings if finding.code == "D902"]
    assert "takes longer to read than any file of its size" in damaged[0].title


@pytest.mark.parametrize(("limit", "words"), [("ROWS", "rows"), ("NAMES", "different names")])
def test_rows_and_names_are_limited_unless_lifted(
    limit: str, words: str, capture: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(border, limit, 0)
    monkeypatch.setattr(border, f"{limit}_PER_BYTE", 0)
    with pytest.raises(InputError, match=words):
        rankscope.load(capture)
    assert rankscope.load(capture, limits=False).n_rows("ranks") == 3
