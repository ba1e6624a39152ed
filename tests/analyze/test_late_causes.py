"""Why a rank is late: the cause that is named, on hand-made tables and on simulated jobs with each kind of fault."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import rankscope
from analyze.comm_jobs import call, job
from analyze.device_tables import Row, findings, rows_of, span, step, trace_of
from rankscope.model.finding import Finding
from rankscope.model.tables import Trace
from rankscope.simulate.profiler import ProfileFault, ProfileNoise, ProfileSpec, simulate_profile

pytestmark = pytest.mark.slow  # simulated jobs, read and diagnosed

GROUP = {"group_name": "0", "group_ranks": "[0, 1, 2]"}
LATE = 1  # the rank that is late in the hand-made jobs
WORK, DELAY, TAIL = 20_000.0, 15_000.0, 1_000.0


def host_job(delay: list[Row], late_steps: tuple[int, ...] = (0, 1, 2, 3), **tables: Any) -> Trace:
    """Three ranks on the host work and reduce, step by step; one does what `delay` says before, in some steps."""
    calls, steps, begin = [], [], 0.0
    made: dict[str, Any] = {"ops": [], **{name: [] for name in tables}}
    for number in range(4):
        is_late = number in late_steps
        arrival = begin + WORK + (DELAY if is_late else 0)
        for rank in range(3):
            owner = {"rank": rank, "file_id": rank}
            after = DELAY if is_late and rank == LATE else 0.0
            made["ops"].append(span(begin + after, begin + after + WORK, name="aten::mm", tid=1, step=number, **owner))
            start = arrival if rank == LATE else begin + WORK
            calls.append(call(rank, start, arrival + TAIL, kernel_id=-1, step=number, **GROUP))
            steps.append(step(number, begin, arrival + TAIL, **owner))
        if is_late:
            for row in delay:
                made[row["table"]].append(moved(row, begin, number))
        begin = arrival + TAIL
    return job(calls, hosts=["a"] * 3, steps=steps, **made)


def moved(row: Row, begin: float, number: int) -> Row:
    """The row in its step, as one of the late rank."""
    shifted = {**row, "start_ns": row["start_ns"] + round(begin * 1000), "rank": LATE, "file_id": LATE, "step": number}
    return {name: value for name, value in shifted.items() if name != "table"}


def only(trace: Trace) -> Finding:
    [finding] = findings(trace, "S202")
    return finding


def test_a_longer_data_loader_is_named() -> None:
    loader = span(
        0, DELAY, table="annotations", name="enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", kind="host"
    )
    finding = only(host_job([loader], annotations=()))
    assert (finding.ranks, finding.evidence.facts["cause"]) == ((LATE,), "data-loading")
    assert "waits 15 ms longer for data" in finding.title
    assert finding.severity == "warning"
    assert finding.evidence.comparison is not None
    keys = finding.evidence.comparison.keys
    assert keys[finding.evidence.comparison.mark] == "data loading"


def test_a_range_that_the_job_named_is_the_cause() -> None:
    inner = span(0, DELAY, table="annotations", name="tokenize", kind="host")
    outer = span(0, DELAY + WORK, table="annotations", name="prepare", kind="host")
    finding = only(host_job([outer, inner], annotations=()))
    assert finding.evidence.facts["cause"] == "range"
    assert finding.title.endswith("it spends 15 ms more in 'tokenize'")


def test_compiling_is_named() -> None:
    compiling = span(0, DELAY, table="ops", name="entire_frame_compile", tid=1)
    assert only(host_job([compiling], late_steps=(2,))).evidence.facts["cause"] == "compile"


def test_running_compiled_code_is_not_compiling() -> None:
    running = span(0, DELAY, table="ops", name="Torch-Compiled Region: 0/0", tid=1)
    assert only(host_job([running])).evidence.facts["cause"] == "more-work"


def test_a_pause_in_every_step_is_no_garbage_collection() -> None:
    finding = only(host_job([]))
    assert finding.evidence.facts["cause"] == "pause"
    assert "--stacks" in finding.help


def test_a_pause_in_some_steps_has_no_cause_either() -> None:
    finding = only(host_job([], late_steps=(1, 3)))
    assert finding.evidence.facts["cause"] == "pause"
    assert finding.evidence.facts["late_steps"] == [1, 3]


@pytest.mark.parametrize(
    ("name", "cause"),
    [
        ("<built-in function sleep>", "sleeping"),
        ("<built-in method collect of module object at 0x7f>", "garbage-collection"),
        ("Python GC", "garbage-collection"),
    ],
)
def test_what_python_did_is_named_with_its_line(name: str, cause: str) -> None:
    frame = span(0, DELAY + 1, table="python_calls", name="train.py(41): wait_for_lock", python_id=1, tid=1)
    inside = span(1, DELAY, table="python_calls", name=name, python_id=2, tid=1)
    foreign = span(0.5, DELAY, table="python_calls", name="/usr/lib/python3.11/gc.py(1): helper", python_id=3, tid=1)
    finding = only(host_job([frame, foreign, inside], python_calls=()))
    assert finding.evidence.facts["cause"] == cause
    assert finding.location is not None
    assert (finding.location.file, finding.location.line, finding.location.function) == (
        "train.py",
        41,
        "wait_for_lock",
    )


def test_more_operators_are_more_work() -> None:
    more = [span(at, at + 5_000, table="ops", name="aten::mm", tid=1) for at in (0, 5_000, 10_000)]
    finding = only(host_job(more))
    assert finding.evidence.facts["cause"] == "more-work"
    assert any("more of them" in line for line in finding.evidence.certain)


def with_op_columns(trace: Trace, **columns: Any) -> Trace:
    rows = [
        {**row, **(columns if row["rank"] == LATE else {"input_dims": "[[8, 8]]"})} for row in trace.table("ops").rows()
    ]
    merged = []
    for row in rows:
        if row["rank"] == LATE:  # one operator that takes as long as both
            row |= {"start_ns": row["start_ns"] - round(DELAY * 1000), "duration_ns": round((WORK + DELAY) * 1000)}
        merged.append(row)
    return trace_of(**{name: list(table.rows()) for name, table in trace.tables.items()} | {"ops": merged})


def test_the_same_operators_on_larger_inputs_are_more_work() -> None:
    finding = only(with_op_columns(host_job([]), input_dims="[[14, 8]]"))
    assert finding.evidence.facts["cause"] == "more-work"
    assert any("larger" in line for line in finding.evidence.certain)


def test_the_same_operators_on_the_same_inputs_are_slower() -> None:
    finding = only(with_op_columns(host_job([]), input_dims="[[8, 8]]"))
    assert finding.evidence.facts["cause"] == "slow-operators"
    assert "75%" in finding.title


def test_parts_are_a_table_too() -> None:
    rows = rows_of(host_job([], late_steps=(1, 3)), "late_causes")
    assert {row["rank"] for row in rows} == {LATE}
    [main] = [row for row in rows if row["is_main"]]
    assert (main["part"], main["excess_ns"]) == ("nothing recorded", pytest.approx(DELAY * 1000))


PARALLEL = ProfileSpec(data_parallel=4, ranks_per_host=2, n_layers=2, n_microbatches=2, n_steps=3)
PIPELINE = ProfileSpec(data_parallel=3, stages=2, ranks_per_host=3, n_layers=2, n_microbatches=3, n_steps=3)
FAULTS = ("slow-kernels", "host-bound", "data-loading", "garbage-collection", "more-work", "compile")


def simulated(
    folder: Path, spec: ProfileSpec, fault: ProfileFault | None, noise: ProfileNoise, **options: Any
) -> Trace:
    simulate_profile(spec, fault, noise).write(folder, gzip=False)
    return rankscope.load(folder, jobs=1, **options)


@pytest.mark.parametrize("kind", FAULTS)
def test_simulated_fault_is_named_with_its_rank(kind: str, tmp_path: Path) -> None:
    finding = only(simulated(tmp_path, PARALLEL, ProfileFault(kind, rank=2), ProfileNoise()))
    seen = "range" if kind == "garbage-collection" else kind  # without stacks only the range around it is known
    assert (finding.ranks, finding.evidence.facts["cause"]) == ((2,), seen)


@pytest.mark.parametrize("kind", ["slow-kernels", "data-loading", "more-work"])
def test_simulated_fault_of_a_pipeline_is_named(kind: str, tmp_path: Path) -> None:
    simulation = simulate_profile(PIPELINE, ProfileFault(kind, rank=1))
    simulation.write(tmp_path, gzip=False)
    truth = simulation.truth
    finding = only(rankscope.load(tmp_path, jobs=1))
    assert (finding.ranks, finding.evidence.facts["cause"]) == (truth.ranks, kind)


def test_the_cost_is_what_the_job_would_gain(tmp_path: Path) -> None:
    simulation = simulate_profile(PARALLEL, ProfileFault("slow-kernels", rank=2))
    simulation.write(tmp_path, gzip=False)
    truth = simulation.truth
    gained = sum(truth.step_ns.values()) - sum(truth.healthy_step_ns.values())
    cost = only(rankscope.load(tmp_path, jobs=1)).evidence.facts["cost_ns"]
    assert cost == pytest.approx(gained / len(truth.step_ns), rel=0.03)


@pytest.mark.parametrize(
    ("options", "noise"),
    [
        ({"with_seq": False}, ProfileNoise(window_offset=1, drop_collectives=0.2)),
        ({"with_metadata": False}, ProfileNoise(drift_ppm=20)),
        ({"with_steps": False}, ProfileNoise()),
        ({"with_sync": False}, ProfileNoise(clock_skew_ms=50, mixed_bases=True)),
    ],
    ids=["sampled", "no-metadata", "no-steps", "skewed"],
)
def test_the_late_rank_is_named_whatever_the_traces_lack(options: Any, noise: ProfileNoise, tmp_path: Path) -> None:
    spec = ProfileSpec(data_parallel=4, ranks_per_host=2, n_layers=2, n_microbatches=2, n_steps=4, **options)
    finding = only(simulated(tmp_path, spec, ProfileFault("slow-kernels", rank=3), noise))
    assert (finding.ranks, finding.evidence.facts["cause"]) == ((3,), "slow-kernels")


def test_stacks_show_the_collection_of_garbage(tmp_path: Path) -> None:
    spec = ProfileSpec(data_parallel=4, n_layers=2, n_microbatches=1, n_steps=4, with_stack=True)
    trace = simulated(tmp_path, spec, ProfileFault("garbage-collection", rank=1), ProfileNoise(), with_stacks=True)
    finding = only(trace)
    assert finding.title.endswith("in garbage collection")
    assert finding.location is not None
    assert finding.location.file == "train.py"


@pytest.mark.parametrize("spec", [PARALLEL, PIPELINE], ids=["dp", "pp"])
@pytest.mark.parametrize("kind", [None, "slow-link", "stage-imbalance"])
def test_nobody_is_called_late_where_no_rank_is(kind: str | None, spec: ProfileSpec, tmp_path: Path) -> None:
    if kind == "stage-imbalance" and spec.stages == 1:
        pytest.skip("needs stages")
    trace = simulated(tmp_path, spec, ProfileFault(kind) if kind else None, ProfileNoise())
    assert findings(trace, "S202") == []
