"""Real traces of others, where they lie beside the repository: what is read equals what plain json counts in them."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from rankscope.model.tables import Trace
from rankscope.pipeline import load
from read.kineto_text import rows

SAMPLES = Path(__file__).resolve().parents[3] / "shared" / "samples"
PATHS = sorted([*SAMPLES.glob("kineto/**/*.json.gz"), *SAMPLES.glob("execution_trace/**/*.json.gz")])
TRACES = {path.relative_to(SAMPLES).as_posix(): path for path in PATHS if not path.name.endswith("_et.json.gz")}

pytestmark = [pytest.mark.slow, pytest.mark.skipif(not TRACES, reason="the samples are not beside the repository")]
each_trace = pytest.mark.parametrize("name", TRACES)

OPS = {"cpu_op"}
CALLS = {"cuda_runtime", "cuda_driver", "mtia_runtime"}
WORK = {"kernel", "gpu_memcpy", "gpu_memset", "mtia_ccp_events"}
DEVICE_TYPES = {"cpu_only": "cpu", "mtia_inference_trace": "mtia", "amd_trace": "rocm"}
WORLD_SIZES = {"cpu_only": 300, "nccl_parser_config": 2, "trace_filter": 128, "ns_resolution_trace": 1}


@dataclass(frozen=True)
class Events:
    """A trace as the standard library reads it, with times as exact as they are written."""

    complete: list[dict[str, Any]]
    base_ns: int

    def of(self, categories: set[str]) -> list[dict[str, Any]]:
        return [event for event in self.complete if event["cat"] in categories]

    def times(self, categories: set[str]) -> list[tuple[int, int]]:
        return sorted((self.base_ns + _nanoseconds(e["ts"]), _nanoseconds(e["dur"])) for e in self.of(categories))

    def count(self, categories: set[str], wanted: Callable[[str], bool]) -> int:
        return sum(wanted(str(event["name"])) for event in self.of(categories))


def _nanoseconds(microseconds: Decimal | int) -> int:
    exact = microseconds * 1000
    assert exact == int(exact)
    return int(exact)


@cache
def events_of(name: str) -> Events:
    with gzip.open(TRACES[name]) as file:
        document = json.load(file, parse_float=Decimal)
    complete = [event for event in document["traceEvents"] if event["ph"] == "X"]
    return Events(complete, document.get("baseTimeNanoseconds", 0))


@cache
def trace_of(name: str) -> Trace:
    return load(TRACES[name])


@each_trace
def test_it_is_read_without_a_problem(name: str) -> None:
    files = trace_of(name).table("files")
    assert (files.text("status").tolist(), files.text("problem").tolist()) == (["read"], [""])


@each_trace
def test_nothing_is_lost_and_nothing_made_up(name: str) -> None:
    events = events_of(name)
    profiles = trace_of(name).table("profiles")
    found = {column: profiles.array(column).tolist()[0] for column in ("n_ops", "n_calls", "n_kernels", "n_steps")}
    assert found == {
        "n_ops": len(events.of(OPS)),
        "n_calls": len(events.of(CALLS)),
        "n_kernels": len(events.of(WORK)),
        "n_steps": events.count({"user_annotation"}, lambda text: text.startswith("ProfilerStep#")),
    }


@each_trace
def test_communication_is_what_nccl_ran_on_the_device_or_gloo_on_the_host(name: str) -> None:
    events = events_of(name)
    on_device = events.count({"kernel"}, lambda text: text.startswith("nccl"))
    on_host = events.count({"user_annotation"}, lambda text: text.startswith("gloo:"))
    found = trace_of(name).table("profiles").array("n_comms").tolist()
    assert found == [on_device + on_host]


@each_trace
@pytest.mark.parametrize(("table", "categories"), [("ops", OPS), ("runtime_calls", CALLS), ("kernels", WORK)])
def test_times_are_those_that_were_written(name: str, table: str, categories: set[str]) -> None:
    expected = events_of(name).times(categories)
    trace = trace_of(name)
    found = rows(trace, f"SELECT start_ns, duration_ns FROM {table} ORDER BY ALL") if trace.has(table) else []
    assert found == expected


@each_trace
def test_a_kernel_has_its_launch_where_the_trace_has_one(name: str) -> None:
    events = events_of(name)
    launches = {event["args"]["correlation"]: event for event in events.of(CALLS) if "correlation" in event["args"]}
    expected = [
        (number, None if launch is None else events.base_ns + _nanoseconds(launch["ts"]))
        for number, launch in (
            (event["args"].get("correlation"), launches.get(event["args"].get("correlation")))
            for event in events.of(WORK)
        )
    ]
    trace = trace_of(name)
    found = rows(trace, "SELECT correlation, launch_start_ns FROM kernels") if trace.has("kernels") else []
    assert sorted(found, key=str) == sorted(expected, key=str)


@each_trace
def test_it_says_what_device_it_is_of_and_how_large_the_job_is(name: str) -> None:
    folder = TRACES[name].parent.name
    profiles = trace_of(name).table("profiles")
    assert profiles.text("device_type").tolist() == [DEVICE_TYPES.get(folder, "cuda")]
    assert profiles.array("world_size").tolist() == [WORLD_SIZES.get(folder, -1)]


@each_trace
def test_the_command_answers(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    from rankscope.cli import main

    exit_code = main(["diagnose", str(TRACES[name]), "--no-cache"])

    printed = capsys.readouterr()
    assert exit_code in (0, 1)
    assert printed.out.startswith("Read 1 profiler trace from ")
    assert "\nFound " in printed.out or "No problems found" in printed.out
    assert "Traceback" not in printed.out + printed.err


def test_two_ranks_of_a_job_are_read_as_one_capture() -> None:
    trace = load(SAMPLES / "kineto" / "trace_filter")
    assert trace.table("profiles").array("rank").tolist() == [0, 1]
    assert rows(trace, "SELECT rank, count(*) FROM comms GROUP BY rank ORDER BY rank") == [(0, 10), (1, 10)]
