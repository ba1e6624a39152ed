"""Edges of pairs that the simulator made, and of the samples: sound, and those that the job has."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from analyze.link.edge_traces import assert_sound
from rankscope.model.tables import Trace
from rankscope.pipeline import load
from rankscope.simulate.execution import PairOptions, write_pairs
from rankscope.simulate.profiler import ProfileSpec, simulate_profile

SAMPLES = Path(__file__).resolve().parents[4] / "shared" / "samples" / "execution_trace"
SMALL: dict[str, Any] = {"n_steps": 2, "n_layers": 1, "n_microbatches": 1}
PIPELINE: dict[str, Any] = {"stages": 2, "n_steps": 2, "n_layers": 2, "n_microbatches": 2}
PAIRS = {
    "data parallel": (ProfileSpec(data_parallel=2, **SMALL), PairOptions()),
    "pipeline": (ProfileSpec(data_parallel=2, **PIPELINE), PairOptions()),
    "without synchronisation": (ProfileSpec(data_parallel=1, with_sync=False, **PIPELINE), PairOptions()),
    "of 2023": (
        ProfileSpec(data_parallel=1, **PIPELINE),
        PairOptions(schema="1.0.1", with_record_ids=False, with_correlation_as_external=True),
    ),
    "observed longer": (ProfileSpec(data_parallel=2, **SMALL), PairOptions(observed_steps=(0, 2))),
    "observed shorter": (
        ProfileSpec(data_parallel=2, **SMALL),
        PairOptions(observed_steps=(2, 2), killed_ranks=(1,)),
    ),
}


def simulated(folder: Path, name: str) -> Trace:
    spec, options = PAIRS[name]
    write_pairs(simulate_profile(spec), folder, options)
    return load(folder, jobs=1)


def rows(trace: Trace, sql: str) -> list[tuple[Any, ...]]:
    trace.table("et_edges")
    return trace.sql(sql).rows()


@pytest.mark.cases
@pytest.mark.parametrize("name", PAIRS)
def test_simulated_pairs_have_sound_edges(tmp_path: Path, name: str) -> None:
    trace = simulated(tmp_path, name)
    n_edges = assert_sound(trace)
    assert set(n_edges) >= {"call", "thread", "launch", "stream", "sync", "backward", "data", "handover"}
    assert ("collective" in n_edges) == (name != "observed shorter")


def test_every_kernel_of_a_pair_is_launched_by_a_node_of_the_same_name(tmp_path: Path) -> None:
    """All steps, not the first one alone."""
    trace = simulated(tmp_path, "data parallel")
    launched = """
        SELECT k.step, count(*), count(*) FILTER (n.name = o.name)
        FROM kernels AS k JOIN ops AS o USING (file_id, op_id)
        LEFT JOIN et_edges AS e ON e.kind = 'launch' AND e.file_id = k.file_id AND e.target_id = k.kernel_id
        LEFT JOIN et_nodes AS n ON n.file_id = e.from_file_id AND n.node_id = e.source_id
        GROUP BY ALL ORDER BY 1"""
    n_kernels = rows(trace, "SELECT step, count(*) FROM kernels GROUP BY ALL ORDER BY 1")
    assert rows(trace, launched) == [(step, n, n) for step, n in n_kernels]
    assert len(n_kernels) == 2


def test_every_node_but_the_first_of_a_rank_comes_after_something(tmp_path: Path) -> None:
    trace = simulated(tmp_path, "data parallel")
    free = """
        SELECT name FROM et_nodes AS n WHERE kind = 'op' AND NOT EXISTS (
            FROM et_edges AS e WHERE e.target = 'node' AND e.file_id = n.file_id AND e.target_id = n.node_id
                AND e.kind <> 'collective')"""
    assert rows(trace, free) == [("ProfilerStep#1",)] * 2


def test_the_passes_release_each_other(tmp_path: Path) -> None:
    trace = simulated(tmp_path, "data parallel")
    released = """
        SELECT DISTINCT s.thread, t.thread, t.name FROM et_edges AS e
        JOIN et_nodes AS s ON s.file_id = e.from_file_id AND s.node_id = e.source_id
        JOIN et_nodes AS t ON t.file_id = e.file_id AND t.node_id = e.target_id
        WHERE e.kind = 'handover' ORDER BY 1"""
    assert rows(trace, released) == [
        (1, 2, "autograd::engine::evaluate_function: LogSoftmaxBackward0"),
        (2, 1, "Optimizer.step#AdamW.step"),
    ]


@pytest.mark.cases
@pytest.mark.skipif(not SAMPLES.is_dir(), reason="the samples are not beside the repository")
@pytest.mark.parametrize("name", ["linear_*", "simple_add"])
def test_the_samples_have_sound_edges(name: str) -> None:
    trace = load(sorted(SAMPLES.glob(name)), jobs=1)
    n_edges = assert_sound(trace)
    assert set(n_edges) >= {"call", "thread", "launch", "stream", "data"}
