"""Why streams idle, and the device that waits for a busy host."""

from __future__ import annotations

import pytest

from analyze.device_tables import Row, at, findings, kernel, on_ranks, rows_of, span, step, trace_of
from rankscope.analyze.metric import Selection
from rankscope.model.tables import Trace

US = 1000


def categories(kernels: list[Row], gap_us: float = 30) -> dict[tuple[int, str], tuple[int, int]]:
    """(stream, category) -> (gaps, microseconds)."""
    rows = rows_of(trace_of(kernels=kernels), "idle", Selection(settings={"gap_us": gap_us}))
    return {(row["stream"], row["category"]): (row["n_gaps"], row["idle_ns"] // US) for row in rows}


def test_the_three_kinds_of_gaps() -> None:
    kernels = [
        kernel(0, 10, launch=-5),
        kernel(15, 20, launch=-4),  # launched long ago, 5 us later: from kernel to kernel
        kernel(100, 110, launch=-3),  # launched long ago, 80 us later: it waited for something else
        kernel(150, 160, launch=140),  # launched after the stream had run dry
    ]
    assert categories(kernels) == {
        (7, "kernel_wait"): (1, 5),
        (7, "other"): (1, 80),
        (7, "host_wait"): (1, 40),
    }
    assert categories(kernels, gap_us=100)[7, "kernel_wait"] == (2, 85)


def test_streams_are_judged_alone_and_a_launch_that_is_missing_is_not_the_hosts_fault() -> None:
    kernels = [kernel(0, 10), kernel(100, 110), kernel(10, 100, stream=8)]
    assert categories(kernels) == {(7, "other"): (1, 90)}


def test_kernels_that_overlap_on_a_stream_leave_no_gap() -> None:
    """Programmatic launches start before the kernel ahead of them has ended."""
    kernels = [kernel(0, 50, launch=-1), kernel(10, 20, launch=-1), kernel(60, 70, launch=-1)]
    assert categories(kernels) == {(7, "kernel_wait"): (1, 10)}


def test_shares_are_of_the_streams_idle_time() -> None:
    kernels = [kernel(0, 10, launch=-5), kernel(20, 30, launch=-4), kernel(60, 70, launch=40)]
    rows = rows_of(trace_of(kernels=kernels), "idle")
    assert {row["category"]: row["share_pct"] for row in rows} == {"host_wait": 75.0, "kernel_wait": 25.0}


def test_time_between_chosen_steps_is_not_idle() -> None:
    kernels = [kernel(1000 * number, 1000 * number + 10, launch=1000 * number - 20, step=number) for number in range(3)]
    assert rows_of(trace_of(kernels=kernels), "idle", Selection(steps=[0, 2])) == []


def host_bound(ranks: tuple[int, ...], healthy: tuple[int, ...] = ()) -> Trace:
    """Steps of 10 ms: kernels for 4 ms, launched one by one; then, on `ranks`, 5 ms of logging with an idle device."""
    tables: dict[str, list[Row]] = {"kernels": [], "runtime_calls": [], "steps": [], "annotations": [], "ops": []}
    tables["profiles"] = [{"file_id": rank, "rank": rank} for rank in (*ranks, *healthy)]
    for number in range(4):
        begin = 10_000 * number
        launches = [begin + 40 * place for place in range(100)]
        for rank in (*ranks, *healthy):
            own = {"rank": rank, "file_id": rank}
            length = 39 if rank in ranks else 99
            tables["kernels"] += [
                kernel(begin + 2 + (length + 1) * place, begin + 2 + (length + 1) * place + length, launch=launch,
                       step=number, kernel_id=1000 * number + place, **own)
                for place, launch in enumerate(launches)
            ]  # fmt: skip
            for row, place in zip(tables["kernels"][-100:], range(100), strict=True):
                row["call_id"] = row["correlation"] = 1000 * number + place
            tables["runtime_calls"] += [
                span(launch, launch + 1, name="cudaLaunchKernel", tid=1, call_id=1000 * number + place,
                     correlation=1000 * number + place, step=number, **own)
                for place, launch in enumerate(launches)
            ]  # fmt: skip
        tables["steps"] += on_ranks((*ranks, *healthy), [step(number, begin, begin + 10_000)])
        tables["annotations"] += on_ranks(ranks, [span(begin + 4_500, begin + 9_800, name="log", kind="host", tid=1)])
    return trace_of(**tables)


def test_a_host_that_does_something_else_is_named_with_what_it_did() -> None:
    [finding] = findings(host_bound((0, 1)), "P301")
    assert finding.severity == "warning"
    assert finding.ranks == (0, 1)
    assert 40 <= finding.evidence.facts["per_rank"][0]["share_pct"] <= 60
    assert finding.evidence.facts["annotations"][0]["name"] == "log"
    assert finding.evidence.facts["outside_operators_pct"] > 95


def test_only_outermost_operators_of_the_launching_thread_are_named() -> None:
    rows = {name: list(table.rows()) for name, table in host_bound((0,)).tables.items() if name != "ops"}
    operators = [
        row
        for number in range(4)
        for row in (
            span(10_000 * number + 4_200, 10_000 * number + 9_000, name="aten::conv2d", tid=1),
            span(10_000 * number + 4_300, 10_000 * number + 8_900, name="aten::convolution", tid=1),
            span(10_000 * number + 4_200, 10_000 * number + 9_000, name="aten::elsewhere", tid=5),
        )
    ]
    [finding] = findings(trace_of(**rows, ops=operators), "P301")
    assert [row["name"] for row in finding.evidence.facts["operators"]] == ["aten::conv2d"]
    assert 75 <= finding.evidence.facts["operators"][0]["share_pct"] <= 85


def test_where_few_ranks_suffer_another_rule_speaks() -> None:
    assert findings(host_bound((3,), healthy=(0, 1, 2)), "P301") == []


def test_a_busy_device_is_no_finding() -> None:
    assert findings(host_bound((), healthy=(0, 1)), "P301") == []


def with_loading(until: float) -> Trace:
    """The same, but from the last kernel on the host first fetches data, to the given microsecond of the step."""
    trace = host_bound((0, 1))
    loader = {"name": "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__", "kind": "host", "tid": 1}
    loading = [span(10_000 * number + 4_000, 10_000 * number + until, **loader) for number in range(4)]
    rows = {
        name: list(table.rows())
        for name, table in trace.tables.items()
        if name in ("kernels", "runtime_calls", "steps")
    }
    return trace_of(**rows, annotations=on_ranks((0, 1), loading))


def share_pct(trace: Trace) -> float:
    [finding] = findings(trace, "P301")
    return float(finding.evidence.facts["per_rank"][0]["share_pct"])


def test_fetching_of_data_is_told_by_its_own_rule() -> None:
    assert findings(with_loading(until=10_000), "P301") == []
    # Three of the four steps are followed by another, whose first kernel ends the gap.
    assert share_pct(host_bound((0, 1))) - share_pct(with_loading(until=6_000)) == pytest.approx(20 * 3 / 4, abs=0.5)


def test_launching_without_pause_is_told_by_its_own_rule() -> None:
    launches = [40 * place for place in range(250)]
    kernels = [
        kernel(launch + 2, launch + 7, launch=launch, step=0, kernel_id=launch, call_id=launch) for launch in launches
    ]
    calls = [span(launch, launch + 1, name="cudaLaunchKernel", tid=1, call_id=launch, step=0) for launch in launches]
    trace = trace_of(kernels=kernels, runtime_calls=calls, steps=[step(0, 0, 10_000)])
    assert rows_of(trace, "temporal")[0]["idle_pct"] > 80
    assert findings(trace, "P301") == []


@pytest.mark.parametrize("table", ["steps", "annotations", "ops"])
def test_without_steps_annotations_or_operators_the_host_is_still_found(table: str) -> None:
    trace = host_bound((0, 1))
    rows = {name: list(own.rows()) for name, own in trace.tables.items() if name != table}
    if table == "steps":
        rows["kernels"] = [{**row, "step": -1} for row in rows["kernels"]]
    [finding] = findings(trace_of(**rows), "P301")
    assert finding.ranks == (0, 1)
    assert ("of the recorded time" in finding.title) == (table == "steps")


def test_gaps_begin_where_work_of_all_streams_ends() -> None:
    kernels = [kernel(0, 10, launch=-5), kernel(5, 40, launch=-4, stream=8), kernel(50, 60, launch=45)]
    row = rows_of(trace_of(kernels=kernels), "temporal")[0]
    assert row["idle_ns"] == at(50) - at(40)
