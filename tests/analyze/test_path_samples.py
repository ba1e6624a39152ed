"""The critical path of real traces: it adds up, and says where these programs spend their time."""

from __future__ import annotations

from pathlib import Path

import pytest

import rankscope
from rankscope.analyze.metric import METRICS
from rankscope.model.tables import Trace

SAMPLES = Path(__file__).resolve().parents[3] / "shared" / "samples" / "kineto"
NSYS = SAMPLES.parent / "nsys" / "h100_2gpu_1s.sqlite"
NAMES = sorted({str(path.parent.relative_to(SAMPLES)) for path in SAMPLES.rglob("*.json.gz")})
if NSYS.exists():
    NAMES.append(str(Path("..", "nsys", NSYS.name)))
pytestmark = [pytest.mark.slow, pytest.mark.skipif(not NAMES, reason="needs the sample traces")]


def load(name: str) -> Trace:
    return rankscope.load(SAMPLES / name)


def shares_of(trace: Trace) -> dict[str, float]:
    shares: dict[str, float] = {}
    for row in METRICS["path_summary"].compute(trace).rows():
        shares[row["kind"]] = shares.get(row["kind"], 0.0) + row["share_pct"]
    return shares


@pytest.mark.parametrize("name", NAMES)
def test_pieces_add_up_and_the_replay_gives_back_the_step(name: str) -> None:
    trace = load(name)
    path = METRICS["critical_path"].compute(trace)
    start, duration = path.array("start_ns"), path.array("duration_ns")
    assert len(path) > 0
    assert (duration > 0).all()
    assert (start[:-1] + duration[:-1] == start[1:]).all()
    assert sum(shares_of(trace).values()) == pytest.approx(100)
    steps = {row["kind"]: row["step_ns"] for row in METRICS["whatif"].compute(trace).rows()}
    assert steps["replayed"] == pytest.approx(steps["recorded"], rel=0.001)


def test_device_bound_trace_without_sync_events_is_device_bound() -> None:
    """Other tools call such a trace bound by the host: its waits are told by nothing but the names of calls."""
    shares = shares_of(load("ns_resolution_trace"))
    assert shares["kernel"] > 95
    assert shares["host"] < 2


def test_host_bound_trace_is_host_bound() -> None:
    assert shares_of(load("nccl_parser_config"))["host"] > 95


@pytest.mark.parametrize("name", ["alexnet", "simple_add", "cuda_event_sync", "cuda_event_sync_multi_stream"])
def test_waits_of_the_host_lead_to_the_device(name: str) -> None:
    shares = shares_of(load(f"critical_path/{name}"))
    assert {"host", "launch", "sync"} <= set(shares)
    assert shares["host"] > 95  # they begin with the set-up of the device, which takes seconds


def test_event_of_another_stream_is_waited_for() -> None:
    trace = load("critical_path/cuda_event_sync")
    path = METRICS["critical_path"].compute(trace)
    kinds = [(row["kind"], row["waited_for"]) for row in path.rows()]
    assert ("sync", "work on the device") in kinds
    assert ("kernel", "launch") in kinds
