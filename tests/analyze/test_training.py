"""Losses, throughput and memory over a run: faults are told, and healthy runs, however noisy, are not."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest

from rankscope.analyze import table_makers
from rankscope.analyze.metric import METRICS
from rankscope.analyze.registry import RULES, Skipped
from rankscope.analyze.training.losses import is_training_loss
from rankscope.model.finding import Finding
from rankscope.model.tables import Table, Text, Trace

START_NS = 1_763_294_400_000_000_000
MIB = 1 << 20
NAN = float("nan")
RULES_OF_TRAINING = ("S211", "S212", "P331", "P332")

Values = Any  # as numpy takes them
Told = Mapping[tuple[str, int], Values]  # (name, rank) -> one value per step, from step 1; None where nothing is told


def trace_of(told: Told, seconds_per_step: float = 1.0, makers: bool = False) -> Trace:
    parts = []
    for (name, rank), values in told.items():
        array = np.asarray(values, float)
        step = np.arange(1, len(array) + 1)
        n_rows = len(array)
        parts.append(
            (
                np.full(n_rows, max(rank, 0), np.int32),
                np.full(n_rows, rank, np.int32),
                START_NS + (step * seconds_per_step * 1e9).astype(np.int64),
                step,
                [name] * n_rows,
                array,
            )
        )
    columns = [np.concatenate([np.asarray(part[place]) for part in parts]) for place in (0, 1, 2, 3, 5)]
    names = Text.encode([name for part in parts for name in part[4]])
    keys = ("file_id", "rank", "time_ns", "step", "value")
    table = Table("metrics", {**dict(zip(keys, columns, strict=True)), "name": names})
    trace = Trace((), {"metrics": table})
    trace.makers = table_makers() if makers else {}
    return trace


def findings(told: Told, seconds_per_step: float = 1.0) -> list[Finding]:
    trace = trace_of(told, seconds_per_step)
    results = [result for code in RULES_OF_TRAINING for result in RULES[code].function(trace)]
    return [result for result in results if isinstance(result, Finding)]


def one(told: Told, seconds_per_step: float = 1.0) -> Finding:
    (finding,) = findings(told, seconds_per_step)
    return finding


def noise(seed: int, n_values: int, scale: float) -> Any:
    return np.random.default_rng(seed).normal(0, scale, n_values)


def curve(seed: int, n_values: int = 400) -> Any:
    """A loss as losses are: it falls, and scatters."""
    return 3 / np.sqrt(1 + np.arange(n_values) / 10) + noise(seed, n_values, 0.15)


def broken(values: Any, start: int, stop: int | None = None, value: float = NAN) -> Any:
    changed = values.copy()
    changed[start:stop] = value
    return changed


# Losses


def test_the_rank_whose_loss_went_first_is_named() -> None:
    """Its gradients reach all others in the next step."""
    finding = one({("loss", rank): broken(curve(rank), 119 if rank == 3 else 120) for rank in range(8)})
    assert (finding.code, finding.ranks, finding.severity, finding.certainty) == ("S211", (3,), "error", "certain")
    assert finding.title == "loss of rank 3 is NaN from step 120 on"
    assert finding.evidence.certain == (
        "the last finite value of rank 3 is at step 119",
        "7 ranks (0-2,4-7) were still finite at step 120, but not from 121 on",
    )
    assert finding.evidence.facts["step"] == 120


def test_peers_that_train_on_are_told() -> None:
    finding = one(
        {("loss", rank): broken(curve(rank), 200, value=np.inf) if rank == 1 else curve(rank) for rank in range(4)}
    )
    assert (finding.ranks, finding.title) == ((1,), "loss of rank 1 is infinite from step 201 on")
    assert "ranks 0,2,3 stayed finite" in finding.evidence.certain


def test_where_all_go_at_once_nobody_is_blamed() -> None:
    finding = one({("loss", rank): broken(curve(rank), 50) for rank in range(4)})
    assert (finding.ranks, finding.title) == ((), "loss of all 4 ranks is NaN from step 51 on")


def test_ranks_that_were_not_recorded_at_that_step_may_be_as_guilty() -> None:
    """Of a device only some steps are known: those of rank 1 end before the first NaN of rank 0."""
    told = {("loss", 0): broken(curve(0, 100), 60), ("loss", 1): curve(1, 50), ("loss", 2): curve(2, 100)}
    assert one(told).ranks == (0,)
    told = {("loss", 0): broken(curve(0, 100), 60), ("loss", 1): curve(1, 50)}
    assert one(told).ranks == ()


def test_a_log_without_a_rank_tells_it_too() -> None:
    finding = one({("train/loss", -1): broken(curve(0), 0), ("val/loss", -1): curve(1)})
    assert (finding.ranks, finding.title) == ((), "train/loss is NaN from its first value on")


def test_a_run_that_ends_with_its_first_nan_is_a_warning() -> None:
    assert one({("loss", 0): broken(curve(0), 399)}).severity == "warning"


@pytest.mark.parametrize(
    ("name", "is_one"),
    [
        ("loss", True),
        ("train/loss", True),
        ("loss_total", True),
        ("trainer.nll", True),
        ("val_loss", False),
        ("loss/eval", False),
        ("glossary", False),
        ("accuracy", False),
    ],
)
def test_names_of_losses(name: str, is_one: bool) -> None:
    assert is_training_loss(name) is is_one


@pytest.mark.parametrize("factor", [2.5, 8.0])
def test_a_rank_that_leaves_the_curve_is_named(factor: float) -> None:
    told = {("loss", rank): curve(rank, 800) for rank in range(8)}
    told["loss", 5][400:] *= factor
    finding = one(told)
    assert (finding.code, finding.ranks, finding.severity) == ("S212", (5,), "warning")
    assert 350 <= finding.evidence.facts["step"] <= 450


# Throughput


def steps(n_steps: int = 1000, seed: int = 0) -> Any:
    return 0.5 * np.exp(noise(seed, n_steps, 0.08))


@pytest.mark.parametrize("slower", [np.where(np.arange(1000) < 500, 1, 1.5), np.linspace(1, 1.8, 1000)])
def test_steps_that_become_longer_are_told(slower: Any) -> None:
    finding = one({("step_time_s", rank): steps(seed=rank) * slower for rank in range(4)})
    assert (finding.code, finding.ranks, finding.severity) == ("P331", (), "warning")
    assert finding.evidence.cost_pct == pytest.approx(33, abs=10)
    assert 300 < finding.evidence.facts["step"] <= 700


def test_a_rank_whose_loader_falls_behind_is_the_cause() -> None:
    late = np.where(np.arange(1000) < 500, 0, 0.3)
    told = {("step_time_s", rank): steps(seed=rank) + late for rank in range(4)}
    told |= {("loader_wait_s", rank): np.full(1000, 0.01) + (late if rank == 2 else 0) for rank in range(4)}
    finding = one(told)
    assert finding.ranks == (2,)
    assert "rank 2 spends 300 ms more per step on waiting for its DataLoader" in finding.evidence.likely[0]
    assert "num_workers" in finding.help


def test_a_rate_that_a_log_tells_is_judged() -> None:
    finding = one({("perf/tokens_per_sec", -1): 1000 / steps() / np.linspace(1, 2, 1000)})
    assert finding.title.startswith("perf/tokens_per_sec falls from ")


# Memory


def samples(n_samples: int = 600, seed: int = 0) -> Any:
    return 4096 * MIB + noise(seed, n_samples, 2 * MIB)


def test_memory_that_grows_to_the_end_is_told() -> None:
    told = {("host_memory_bytes", 1): samples() + np.arange(600) * MIB, ("host_memory_bytes", 0): samples(seed=1)}
    finding = one(told)
    assert (finding.code, finding.ranks, finding.severity) == ("P332", (1,), "info")
    assert re.fullmatch(r"rank 1 uses (59|60)\.\d MiB more host memory every minute", finding.title)
    told["host_memory_available_bytes", 1] = np.full(600, 3600 * MIB)
    finding = one(told)
    assert finding.severity == "warning"
    assert re.search(r"every minute; the memory is full in (59 min|1 h 0 min)", finding.title)
    assert 3300 < finding.evidence.facts["seconds_left"] < 3900


def test_memory_of_a_device_is_judged_between_steps() -> None:
    swing = np.abs(noise(3, 600, 1)) * 2048 * MIB
    finding = one({("device_memory_bytes", 0): samples() + swing + np.arange(600) * 2 * MIB})
    assert (finding.code, finding.evidence.facts["metric"]) == ("P332", "device_memory_bytes")
    assert findings({("device_memory_bytes", 0): samples() + swing}) == []


# Healthy runs

RAMP = np.arange(1000)
HEALTHY: dict[str, Callable[[], Told]] = {
    "noisy losses": lambda: {("loss", rank): curve(rank, 800) * np.exp(noise(rank, 800, 0.5)) for rank in range(8)},
    "spikes that come back": lambda: {
        ("loss", rank): curve(rank) + 50 * (np.arange(400) % 97 == rank) for rank in range(4)
    },
    "a batch without targets": lambda: {("loss", rank): broken(curve(rank), 50 + rank, 52 + rank) for rank in range(4)},
    "an evaluation that is not made": lambda: {("val_loss", 0): np.full(400, NAN), ("loss", 0): curve(0)},
    "a rank with harder data": lambda: {("loss", rank): curve(rank, 800) * (1 + (rank == 2)) for rank in range(4)},
    "a new learning rate": lambda: {
        ("loss", rank): curve(rank, 800) + 0.8 * (np.arange(800) > 400) for rank in range(4)
    },
    "two ranks": lambda: {("loss", 0): curve(0, 800), ("loss", 1): curve(1, 800) + (np.arange(800) > 400)},
    "identical losses": lambda: {("loss", rank): curve(0, 800) for rank in range(4)},
    "noisy steps": lambda: {("step_time_s", rank): 0.5 * np.exp(noise(rank, 1000, 0.6)) for rank in range(4)},
    "warm-up": lambda: {("step_time_s", 0): steps() * np.where(RAMP < 80, 8, 1)},
    "evaluations late in the run": lambda: {("step_time_s", 0): steps() + 30 * ((RAMP % 20 == 0) & (RAMP > 600))},
    "a busy spell": lambda: {("step_time_s", 0): steps() * np.where((RAMP > 450) & (RAMP < 800), 2, 1)},
    "a busy end": lambda: {("step_time_s", 0): steps() * np.where(RAMP > 850, 2, 1)},
    "slow and quick by turns": lambda: {("step_time_s", 0): steps() * np.where(RAMP // 100 % 2, 1.6, 1)},
    "a little slower": lambda: {("step_time_s", 0): steps() * np.linspace(1, 1.15, 1000)},
    "a few steps": lambda: {("step_time_s", 0): steps(60) * np.linspace(1, 3, 60)},
    "longer sequences": lambda: {
        ("step_time_s", 0): steps() * np.linspace(1, 3, 1000),
        ("tokens_per_s", 0): 1000 * np.exp(noise(1, 1000, 0.1)),
    },
    "a cache that fills": lambda: {
        ("host_memory_bytes", 0): samples() + 900 * MIB * (1 - np.exp(-np.arange(600) / 120))
    },
    "a cache that is full": lambda: {("host_memory_bytes", 0): samples() + 3 * MIB * np.minimum(np.arange(600), 400)},
    "buffers at first": lambda: {("host_memory_bytes", 0): samples() + 5 * MIB * np.minimum(np.arange(600), 100)},
    "saw teeth": lambda: {("host_memory_bytes", 0): samples() + 8 * MIB * (np.arange(600) % 150)},
    "one step up": lambda: {("host_memory_bytes", 0): samples() + 900 * MIB * (np.arange(600) > 300)},
    "a short run": lambda: {("host_memory_bytes", 0): samples(60) + 50 * MIB * np.arange(60)},
}


@pytest.mark.parametrize("told", HEALTHY.values(), ids=list(HEALTHY))
def test_healthy_runs_are_left_alone(told: Callable[[], Told]) -> None:
    assert findings(told()) == []


def test_quick_steps_are_too_short_a_time_to_judge() -> None:
    assert findings({("step_time_s", 0): steps() * np.linspace(1, 3, 1000) / 50}, seconds_per_step=0.02) == []


def test_what_cannot_be_checked_is_said() -> None:
    trace = trace_of({("accuracy", 0): [1, 2]})
    assert all(isinstance(result, Skipped) for code in RULES_OF_TRAINING for result in RULES[code].function(trace))


# The table


def test_every_metric_at_a_glance() -> None:
    trace = trace_of({("loss", 0): [3.0, NAN, 1.0], ("loss", -1): [2.0]}, makers=True)
    told, unknown = sorted(METRICS["training"].compute(trace).rows(), key=lambda row: -row["rank"])
    assert {
        name: told[name] for name in ("rank", "n_values", "first_step", "last_step", "first_value", "last_value")
    } == {
        "rank": 0,
        "n_values": 3,
        "first_step": 1,
        "last_step": 3,
        "first_value": 3.0,
        "last_value": 1.0,
    }
    assert (told["min_value"], told["median_value"], told["max_value"]) == (1.0, 2.0, 3.0)
    assert (told["n_not_finite"], told["first_not_finite_step"]) == (1, 2)
    assert (unknown["rank"], unknown["n_values"]) == (-1, 1)
