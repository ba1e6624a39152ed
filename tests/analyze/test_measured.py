"""Metrics and rules about time say the same with and without execution traces and clean profiles beside a profile."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rankscope.analyze.measured import left_out, measured
from rankscope.analyze.metric import METRICS
from rankscope.model.tables import Trace
from rankscope.pipeline import diagnose, load
from rankscope.simulate.execution import write_pairs
from rankscope.simulate.profiler import ProfileFault, ProfileSpec, simulate_profile

SPEC = ProfileSpec(data_parallel=2, n_steps=3, n_layers=2, n_microbatches=2)
JOB = simulate_profile(SPEC, ProfileFault("data-loading"))
SLOWER = 3


@pytest.fixture(scope="module")
def captures(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Trace]:
    """The job by the profiler alone; with execution traces; and as recorded, with clean profiles as well."""
    folder = tmp_path_factory.mktemp("captures")
    JOB.write(folder / "alone", gzip=False, names="kineto_trace_{rank}.json")
    write_pairs(JOB, folder / "pairs")
    write_pairs(JOB, folder / "recorded")
    for rank in JOB.ranks:
        _slow_down(folder / "recorded" / f"kineto_trace_{rank}.json")
        _copy(folder / "alone" / f"kineto_trace_{rank}.json", folder / "recorded" / f"kineto_clean_{rank}.json")
    return {name: load(folder / name) for name in ("alone", "pairs", "recorded")}


def _copy(source: Path, target: Path) -> None:
    target.write_bytes(source.read_bytes())


def _slow_down(path: Path) -> None:
    """As the observer does: operators of these steps are not to be measured."""
    document = json.loads(path.read_text())
    for event in document["traceEvents"]:
        if event.get("cat") == "cpu_op":
            event["dur"] *= SLOWER
    path.write_text(json.dumps(document))


def _plain(row: dict[str, Any]) -> dict[str, Any]:
    """Numbers of files differ; what is missing is NaN, which is not equal to itself."""
    shown = {name: value for name, value in row.items() if name != "file_id"}
    return {name: None if isinstance(value, float) and math.isnan(value) else value for name, value in shown.items()}


@pytest.mark.slow
@pytest.mark.parametrize("beside", ["pairs", "recorded"])
@pytest.mark.parametrize("name", METRICS)
def test_every_metric_has_the_same_numbers(captures: dict[str, Trace], name: str, beside: str) -> None:
    alone, other = (
        [_plain(row) for row in METRICS[name].compute(measured(captures[which])).rows()] for which in ("alone", beside)
    )
    assert other == alone


@pytest.mark.slow
@pytest.mark.parametrize("beside", ["pairs", "recorded"])
def test_rules_about_time_find_the_same(captures: dict[str, Trace], beside: str) -> None:
    def about_time(trace: Trace) -> Iterator[tuple[str, ...]]:
        for finding in diagnose(trace).findings:
            if finding.code[0] in "SP":
                yield finding.code, finding.severity, finding.certainty, finding.title, finding.help

    found = list(about_time(captures["alone"]))
    assert {"S202", "P322"} <= {code for code, *_ in found}
    assert list(about_time(captures[beside])) == found


def test_linked_steps_stay_in_the_tables(captures: dict[str, Trace]) -> None:
    trace = captures["recorded"]
    assert {row["n_linked"] == row["n_linkable"] for row in trace.table("et_pairs").rows()} == {True}
    assert trace.n_rows("ops") == 2 * measured(trace).n_rows("ops")
    assert measured(captures["alone"]) is captures["alone"]


@pytest.mark.slow
def test_where_a_rank_has_no_clean_profile_all_are_measured_beside_the_observer(tmp_path: Path) -> None:
    """A rank beside the observer would look slow next to one without it."""
    write_pairs(JOB, tmp_path / "job")
    JOB.write(tmp_path / "clean", gzip=False, names="kineto_clean_{rank}.json")
    _copy(tmp_path / "clean" / "kineto_clean_0.json", tmp_path / "job" / "kineto_clean_0.json")
    trace = load(tmp_path / "job")
    names = {row["file_id"]: Path(row["path"]).name for row in trace.table("files").rows()}
    assert {names[file_id] for file_id in left_out(trace)} == {"kineto_clean_0.json"}
