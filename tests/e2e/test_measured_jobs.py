"""What the collector measures of real trainings is what they know themselves, and they are none the worse for it."""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any

import pytest
from collected_jobs import Script, problems_of, run_scripts

pytest.importorskip("torch")
pytestmark = pytest.mark.e2e

CASES = ("trains", "scales", "compiles", "patches", "holds_nothing")
N_STEPS = 6  # three batches of ten samples by four, twice


class Measured:
    def __init__(self, folder: Path, printed: str) -> None:
        self.folder = folder
        self.known: dict[str, list[float]] = json.loads(printed.splitlines()[-1])
        lines = (folder / "metrics_0.jsonl").read_text().splitlines()[1:]
        rows = [json.loads(line) for line in lines]
        self._values = [(row["step"], row.get("values") or {row["name"]: row["value"]}) for row in rows]

    def by_step(self, name: str) -> dict[int, float]:
        return {step: values[name] for step, values in self._values if name in values}

    def check(self, name: str) -> None:
        """The first step ends before anything is measured from its beginning."""
        known = dict(enumerate(self.known[name], start=1))
        known.pop(1)
        assert self.by_step(name) == pytest.approx(known)


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Any:
    scratch = tmp_path_factory.mktemp("measured")
    ended = run_scripts(scratch, [Script("measured_training", [case, str(scratch / case)]) for case in CASES])
    assert [each.code for each in ended] == [0] * len(CASES)
    outputs = {case: each.out for case, each in zip(CASES, ended, strict=True)}
    return functools.cache(lambda case: Measured(scratch / case, outputs[case]))


@pytest.mark.parametrize("case", ["trains", "patches"])
def test_loss_norm_and_rate_are_those_of_the_job(measured: Any, case: str) -> None:
    for name in ("loss", "grad_norm", "learning_rate"):
        measured(case).check(name)


def test_samples_are_counted_where_they_are_those_of_the_step(measured: Any) -> None:
    """Batches of 4, 4 and 2. The fourth step has those of an evaluation, too: it is left out."""
    job = measured("trains")
    times, rates = job.by_step("step_time_s"), job.by_step("samples_per_s")
    assert {step: round(rate * times[step]) for step, rate in rates.items()} == {2: 4, 3: 2, 5: 4, 6: 2}
    assert job.by_step("tokens_per_s") == {}


def test_waits_pauses_and_the_machine_are_measured(measured: Any) -> None:
    job = measured("trains")
    assert set(job.by_step("loader_wait_s")) == set(range(2, N_STEPS + 1))
    assert all(0 < wait <= job.by_step("step_time_s")[step] for step, wait in job.by_step("loader_wait_s").items())
    assert 4 in job.by_step("gc_time_s")
    assert all(job.by_step(name) for name in ("host_memory_bytes", "host_memory_available_bytes"))


def test_a_scaled_loss_is_recorded_unscaled(measured: Any) -> None:
    measured("scales").check("loss")


def test_compiled_jobs_keep_their_graphs(measured: Any) -> None:
    job = measured("compiles")
    job.check("loss")
    assert job.known["own_breaks"] == [0]


def test_what_the_job_has_wrapped_stays_wrapped(measured: Any) -> None:
    job = measured("patches")
    assert job.known["n_calls"] == [N_STEPS]
    assert job.known["restored"] == [0, 1, 1]


def test_no_graph_is_kept_alive(measured: Any) -> None:
    assert measured("holds_nothing").known["alive"] == [0, 0, 0, 0]


@pytest.mark.parametrize("case", CASES)
def test_nothing_is_left_in_torch(measured: Any, case: str) -> None:
    job = measured(case)
    assert job.known["restored"][1:] == [1, 1]
    assert problems_of(job.folder) == []
