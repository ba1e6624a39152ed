"""Steps, kernels, call sites, metrics and conditions, on hand-made tables."""

from __future__ import annotations

from typing import Any

from analyze.building import job
from analyze.device_tables import Row, at, kernel, on_ranks, span, step, trace_of
from rankscope.analyze.compare.collectives import collective_changes
from rankscope.analyze.compare.kernels import kernel_changes
from rankscope.analyze.compare.numbers import number_changes
from rankscope.analyze.compare.setup import setup_changes
from rankscope.analyze.compare.steps import part_changes, step_change
from rankscope.model.changes import TimeChange
from rankscope.model.finding import Capture
from rankscope.model.tables import Table, Trace, concat

PERIOD = 1000.0  # microseconds of a step
LEAST_NS = 5_000.0


def profiled(
    names: dict[str, float], n_steps: int = 3, ranks: tuple[int, ...] = (0, 1), period: float = PERIOD
) -> Trace:
    """Each step runs these kernels, each so many microseconds, one after the other."""
    steps, kernels = [], []
    for number in range(n_steps):
        start = number * period
        steps.append(step(number, start, start + period))
        for name, micros in names.items():
            kernels.append(kernel(start, start + micros, name=name, step=number))
            start += micros
    tables = {"steps": on_ranks(ranks, steps), "kernels": on_ranks(ranks, kernels)}
    profiles = [{"file_id": rank, "rank": rank, "source": "kineto"} for rank in ranks]
    return trace_of(profiles=profiles, **tables)


def by_name(old: Trace, new: Trace) -> dict[str, TimeChange]:
    return {change.name: change for change in kernel_changes(old, new, LEAST_NS)}


def test_kernels_that_came_went_and_got_slower() -> None:
    told = by_name(profiled({"gemm": 100, "relu": 50}), profiled({"gemm": 130, "softmax": 40}))
    assert {name: change.kind for name, change in told.items()} == {"gemm": "slower", "relu": "gone", "softmax": "new"}
    assert (told["gemm"].old_ns, told["gemm"].new_ns, told["gemm"].per) == (100_000, 130_000, "step")
    assert (told["gemm"].ranks, told["gemm"].new_count) == ((), 1.0)


def test_a_kernel_that_runs_more_often_takes_more_of_a_step() -> None:
    twice = profiled({"gemm": 100, "other": 1})
    again = [kernel(number * PERIOD + 500, number * PERIOD + 600, step=number) for number in range(3)]
    twice.tables["kernels"] = concat(
        "kernels", [twice.table("kernels"), Table.from_rows("kernels", on_ranks((0, 1), again))]
    )
    told = by_name(profiled({"gemm": 100, "other": 1}), twice)["gemm"]
    assert (told.kind, told.new_ns, told.old_count, told.new_count) == ("slower", 200_000, 1.0, 2.0)


def test_captures_of_other_lengths_and_sizes_compare_by_rank_and_step() -> None:
    told = by_name(profiled({"gemm": 100}, n_steps=2), profiled({"gemm": 100}, n_steps=6, ranks=(0, 1, 2, 3)))
    assert told["gemm"].kind == "same"
    assert told["gemm"].old_ns == told["gemm"].new_ns == 100_000


def test_without_steps_the_mean_call_is_compared() -> None:
    def unmarked(micros: float, n: int) -> Trace:
        return trace_of(kernels=[kernel(place * 200, place * 200 + micros) for place in range(n)])

    assert by_name(unmarked(100, 3), unmarked(100, 9))["gemm"].kind == "same"
    told = by_name(unmarked(100, 3), unmarked(120, 9))["gemm"]
    assert (told.kind, told.per, told.new_ns, told.new_count) == ("slower", "call", 120_000, None)


def test_generated_kernels_are_found_again_under_new_numbers() -> None:
    told = by_name(profiled({"triton_poi_fused_add_3": 100}), profiled({"triton_poi_fused_add_17": 150}))
    assert {name: change.kind for name, change in told.items()} == {"triton_poi_fused_add_17": "slower"}


def test_the_step_and_where_its_time_goes() -> None:
    old, new = profiled({"gemm": 500}), profiled({"gemm": 900}, period=1400)
    change = step_change(old, new)
    assert change is not None
    assert (change.kind, change.old_ns, change.new_ns, change.source) == ("slower", 1_000_000, 1_400_000, "profiler")
    parts = {part.name: part for part in part_changes(old, new, change)}
    assert (parts["computing"].kind, parts["computing"].change_ns) == ("slower", 400_000)
    assert [name for name, part in parts.items() if part.kind != "same"] == ["computing"]


def test_single_slow_steps_are_told_apart_from_a_slow_job() -> None:
    old = profiled({"gemm": 500}, n_steps=5)
    starts = [0.0, 1000.0, 2000.0, 5000.0, 6000.0]
    ends = [*starts[1:], 7000.0]
    steps = [step(number, *times) for number, times in enumerate(zip(starts, ends, strict=True))]
    loading = [span(2100, 4100, name="enumerate(DataLoader)", kind="host", tid=1, step=2)]
    kernels = [kernel(start, start + 500, step=number) for number, start in enumerate(starts)]
    tables: dict[str, list[Row]] = {"steps": steps, "annotations": loading, "kernels": kernels}
    profiles = [{"file_id": rank, "rank": rank} for rank in (0, 1)]
    new = trace_of(profiles=profiles, **{name: on_ranks((0, 1), rows) for name, rows in tables.items()})
    change = step_change(old, new)
    assert change is not None
    assert (change.kind, change.slow_steps, change.slow_ns, change.is_worse) == ("same", (2,), 3_000_000, True)
    slower = [part for part in part_changes(old, new, change) if part.kind == "slower"]
    assert "host: data loading" in [part.name for part in slower]


def told_by_job(seconds: list[float], **more: float) -> Trace:
    rows = [{"rank": 0, "step": n, "name": "step_time_s", "value": value} for n, value in enumerate(seconds)]
    rows += [{"rank": 0, "step": n, "name": name, "value": value} for n in range(5) for name, value in more.items()]
    return trace_of(metrics=[{"file_id": 0, "time_ns": at(0), **row} for row in rows])


def test_without_profiles_the_job_tells_its_step() -> None:
    change = step_change(told_by_job([9.0, 1.0, 1.01, 0.99]), told_by_job([8.0, 1.3, 1.29, 1.31, 1.3]))
    assert change is not None
    assert (change.kind, change.source, change.n_old, change.n_new) == ("slower", "metrics", 4, 5)


def test_numbers_know_which_way_is_worse() -> None:
    old = told_by_job([1.0, 1.0], samples_per_s=100, loss=2.0, host_memory_bytes=1000)
    new = told_by_job([1.0, 1.0], samples_per_s=80, loss=1.5, host_memory_bytes=1001)
    kinds = {change.name: change.kind for change in number_changes(old, new)}
    expected = {"step_time_s": "same", "samples_per_s": "worse", "loss": "lower", "host_memory_bytes": "same"}
    assert kinds == expected


def calls(late_ms: float, line: int = 10, n: int = 6) -> Trace:
    """Rank 1 comes so late to each of its calls."""
    programs: dict[int, list[str]] = {}
    for rank in (0, 1, 2):
        late = late_ms if rank == 1 else 0
        programs[rank] = [
            f"dp:1 all_reduce [8] f32 done @loop.py:{line} +{place * 1000 + late:g} ={place * 1000 + late_ms + 5:g}"
            for place in range(n)
        ]
    return job(programs)


def arrivals(old: Trace, new: Trace) -> list[TimeChange]:
    return [change for change in collective_changes(old, new, 0.0) if change.part == "arrival"]


def test_a_call_site_whose_members_join_further_apart_names_who_comes_last() -> None:
    [told] = arrivals(calls(1), calls(60, line=14))
    assert (told.kind, told.name, told.group, told.per) == ("slower", "all_reduce", "dp", "call")
    assert told.waits_for == (1,)
    assert told.location is not None
    assert told.old_location is not None
    assert (told.location.line, told.old_location.line) == (14, 10)
    assert told.change_ns > 50_000_000


def test_members_that_join_as_before_are_no_change() -> None:
    assert [told.kind for told in arrivals(calls(10, n=6), calls(10, n=30))] == ["same"]


def test_conditions_that_differ_are_told_without_what_differs_by_rank() -> None:
    def run(torch: str, variable: str, ranks: int) -> tuple[Trace, Capture]:
        manifests: list[dict[str, Any]] = [
            {"rank": rank, "torch": torch, "environment": f'{{"NCCL_ALGO": "{variable}", "SEED": "{torch} {rank}"}}'}
            for rank in range(ranks)
        ]
        return trace_of(manifests=manifests), Capture(("x",), tuple(range(ranks)), ranks, {})

    (old, before), (new, after) = run("2.8.0", "Ring", 2), run("2.9.0", "Tree", 4)
    told = {change.name: (change.old, change.new) for change in setup_changes(old, new, (before, after))}
    assert told == {"ranks": ("2", "4"), "torch": ("2.8.0", "2.9.0"), "$NCCL_ALGO": ("Ring", "Tree")}
