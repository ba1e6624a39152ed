"""Metrics: lines as the collector writes them, and what a job that dies leaves of them."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rankscope.analyze.covered import describe_capture
from rankscope.errors import BadFileError
from rankscope.model.tables import Table
from rankscope.pipeline import load
from rankscope.read import metrics
from rankscope.read.files import Source, name_source
from read.collected_files import START_NS, metric_lines

HEADER = '{"schema":"rankscope.metrics/1","rank":0,"world_size":2,"host":"h","pid":1}\n'


def read_text(folder: Path, text: str) -> dict[str, Table]:
    path = folder / "metrics_0.jsonl"
    path.write_text(text, encoding="utf-8")
    source = name_source(Source(path, str(path), path.stat().st_size))
    assert source is not None
    return {table.name: table for table in metrics.read(replace(source, file_id=4))}


def line(**fields: Any) -> str:
    return json.dumps({"time_ns": START_NS, "step": 1, "name": "loss", "value": 0.5, **fields}) + "\n"


def problem(tables: dict[str, Table]) -> tuple[str, str]:
    (row,) = tables["files"].rows()
    return row["status"], row["problem"]


def test_a_line_is_a_row(tmp_path: Path) -> None:
    tables = read_text(tmp_path, HEADER + line() + line(name="tokens", value=3, step=2))
    first, second = tables["metrics"].rows()
    assert first == {"file_id": 4, "rank": 0, "time_ns": START_NS, "step": 1, "name": "loss", "value": 0.5}
    assert (second["name"], second["step"], second["value"]) == ("tokens", 2, 3.0)
    assert problem(tables) == ("read", "")


@pytest.mark.parametrize(("value", "is_kept"), [(float("nan"), math.isnan), (float("inf"), math.isinf)])
def test_a_loss_that_is_no_number_is_still_a_row(value: float, is_kept: Any, tmp_path: Path) -> None:
    tables = read_text(tmp_path, HEADER + line() + line(value=value))
    assert is_kept(tables["metrics"].array("value")[1])
    assert problem(tables) == ("read", "")


def test_what_a_line_leaves_out_is_missing(tmp_path: Path) -> None:
    (row,) = read_text(tmp_path, HEADER + '{"name":"loss","value":null}\n')["metrics"].rows()
    assert (row["step"], row["time_ns"]) == (-1, -1)
    assert math.isnan(row["value"])


@pytest.mark.parametrize("bad", ["no json", '{"value": 1}', '{"name": "a", "value": "b"}', '["name"]', "[" * 100_000])
def test_a_bad_line_costs_only_itself(bad: str, tmp_path: Path) -> None:
    tables = read_text(tmp_path, HEADER + line() + bad + "\n" + line(step=2))
    assert tables["metrics"].array("step").tolist() == [1, 2]
    assert problem(tables) == ("damaged", "has 1 line without metrics")


def test_values_of_one_moment_share_a_line(tmp_path: Path) -> None:
    text = HEADER + '{"time_ns":7,"step":2,"values":{"loss":0.5,"gc_time_s":null}}\n{"step":1,"values":{}}\n'
    tables = read_text(tmp_path, text)
    first, second = tables["metrics"].rows()
    assert (first["name"], first["value"], first["step"], first["time_ns"]) == ("loss", 0.5, 2, 7)
    assert (second["name"], second["step"]) == ("gc_time_s", 2)
    assert math.isnan(second["value"])
    assert problem(tables) == ("damaged", "has 1 line without metrics")


def test_a_cut_line_is_told(tmp_path: Path) -> None:
    tables = read_text(tmp_path, (HEADER + line() + line(step=2))[:-4])
    assert tables["metrics"].array("step").tolist() == [1]
    assert problem(tables) == ("damaged", "ends in the middle of a line")


def test_a_job_that_told_nothing_yet_is_in_order(tmp_path: Path) -> None:
    tables = read_text(tmp_path, HEADER)
    assert len(tables["metrics"]) == 0
    assert problem(tables) == ("read", "")


@pytest.mark.parametrize("header", [line(), '{"schema":"rankscope.metrics/1","rank":"no"}\n', HEADER[:30]])
def test_a_file_that_does_not_say_whose_it_is_is_refused(header: str, tmp_path: Path) -> None:
    with pytest.raises(BadFileError) as caught:
        read_text(tmp_path, header + line())
    assert caught.value.hint


def test_metrics_alone_are_a_capture(tmp_path: Path) -> None:
    for rank in (0, 1):
        (tmp_path / f"metrics_{rank}.jsonl").write_text(metric_lines(rank, 2), encoding="utf-8")
    trace = load(tmp_path)
    assert len(trace.table("metrics")) == 12
    capture = describe_capture(trace)
    assert (capture.ranks, capture.sources) == ((0, 1), {"metrics": 2})
    assert capture.first_ns == START_NS + 120_000_000
