"""Where the time of a step goes, and steps that wait for their data."""

from __future__ import annotations

import pytest

from analyze.device_tables import (
    Row,
    at,
    collective,
    copy,
    findings,
    kernel,
    on_ranks,
    only_row,
    rows_of,
    span,
    step,
    trace_of,
)
from rankscope.analyze.metric import Selection
from rankscope.model.tables import Trace

US = 1000
PARTS = ("kernel", "memcpy", "memset", "communication", "runtime", "data_loader", "cpu", "other")
LOADER: Row = {"name": "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__", "kind": "host", "tid": 1}


def parts(row: Row) -> dict[str, int]:
    """What the step is made of, in microseconds; the empty parts left out."""
    assert sum(row[f"{name}_ns"] for name in PARTS) == row["duration_ns"]
    return {name: row[f"{name}_ns"] // US for name in PARTS if row[f"{name}_ns"]}


def test_each_moment_counts_for_the_most_important_of_what_goes_on() -> None:
    trace = trace_of(
        steps=[step(1, 0, 200)],
        kernels=[
            kernel(20, 50, step=1),
            copy(40, 60, step=1),
            kernel(55, 70, step=1, kind="memset", type="memory", name="Memset (Device)"),
            collective(65, 90, step=1),
        ],
        runtime_calls=[span(10, 95, name="cudaLaunchKernel", tid=1)],
        annotations=[span(92, 110, **LOADER), span(0, 200, name="train", kind="host", tid=1)],
        ops=[span(105, 150, name="aten::mm", tid=1), span(120, 140, name="aten::empty", tid=1)],
    )
    row = only_row(trace, "steps")
    assert parts(row) == {
        "kernel": 30,
        "memcpy": 10,
        "memset": 10,
        "communication": 20,
        "runtime": 15,
        "data_loader": 15,
        "cpu": 40,
        "other": 60,
    }
    assert (row["step"], row["duration_ns"], row["device_busy_ns"]) == (1, 200 * US, 70 * US)
    assert row["device_busy_pct"] == pytest.approx(35)


def test_a_step_lasts_until_its_last_kernel_and_the_next_begins_there() -> None:
    """The host runs ahead: step 1 is over for it at 50, for the device at 130."""
    trace = trace_of(
        steps=[step(1, 0, 50), step(2, 50, 100), step(3, 100, 260)],
        kernels=[kernel(10, 130, step=1), kernel(130, 220, step=2), kernel(220, 250, step=3)],
    )
    rows = rows_of(trace, "steps")
    assert [(row["start_ns"] - at(0), row["duration_ns"]) for row in rows] == [
        (0, 130 * US),
        (130 * US, 90 * US),
        (220 * US, 40 * US),
    ]
    assert [row["kernel_ns"] // US for row in rows] == [120, 90, 30]


def test_without_steps_the_row_is_the_whole_trace() -> None:
    trace = trace_of(kernels=[kernel(20, 50)], ops=[span(0, 30, name="aten::mm", tid=1)])
    row = only_row(trace, "steps")
    assert row["step"] == -1
    assert parts(row) == {"kernel": 30, "cpu": 20}


def test_processes_with_and_without_steps_in_one_capture() -> None:
    trace = trace_of(steps=[step(1, 0, 10)], kernels=[kernel(0, 10, step=1), kernel(5, 30, rank=1, file_id=1)], ops=[])
    assert [(row["rank"], row["step"], row["duration_ns"] // US) for row in rows_of(trace, "steps")] == [
        (0, 1, 10),
        (1, -1, 25),
    ]


def test_a_trace_without_a_device_has_loader_operators_communication_and_other() -> None:
    trace = trace_of(
        steps=[step(551, 0, 100)],
        comms=[span(40, 60, op="all_reduce", name="gloo:all_reduce", tid=2)],
        annotations=[span(0, 10, **LOADER), span(40, 60, name="gloo:all_reduce", kind="host", tid=2)],
        ops=[span(10, 50, name="aten::mm", tid=1)],
    )
    row = only_row(trace, "steps")
    assert parts(row) == {"communication": 20, "data_loader": 10, "cpu": 30, "other": 40}
    assert row["device_busy_ns"] == 0


def test_two_traces_of_one_rank_may_have_steps_of_the_same_number() -> None:
    trace = trace_of(
        steps=[step(1, 0, 10), step(1, 1000, 1020, file_id=1)],
        kernels=[kernel(0, 5, step=1), kernel(1000, 1015, step=1, file_id=1)],
    )
    assert [row["kernel_ns"] // US for row in rows_of(trace, "steps")] == [5, 15]


def test_chosen_steps_and_ranks() -> None:
    trace = trace_of(steps=on_ranks((0, 1), [step(1, 0, 10), step(2, 10, 20)]))
    rows = rows_of(trace, "steps", Selection(ranks=[1], steps=[2]))
    assert [(row["rank"], row["step"]) for row in rows] == [(1, 2)]


@pytest.mark.parametrize(
    ("name", "is_loader"),
    [
        ("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", True),
        ("enumerate(DataPipe)#IterableWrapper", True),
        ("[pl][profile][_TrainingEpochLoop].train_dataloader_next", True),
        ("## next_batch ##", True),
        ("data_loading", True),
        ("## forward ##", False),
        ("aten::_to_copy", False),
        ("DistributedDataParallel.forward", False),
        ("load_state_dict", False),
    ],
)
def test_loaders_are_known_by_name(name: str, is_loader: bool) -> None:
    trace = trace_of(steps=[step(1, 0, 100)], annotations=[span(0, 50, name=name, kind="host", tid=1)])
    assert parts(only_row(trace, "steps")) == ({"data_loader": 50, "other": 50} if is_loader else {"other": 100})


def loading(ranks: tuple[int, ...], fetched: float, name: str = LOADER["name"], healthy: tuple[int, ...] = ()) -> Trace:
    """Four steps of a millisecond, which begin with fetching data; the device computes after that."""
    rows: dict[str, list[Row]] = {"profiles": [], "steps": [], "annotations": [], "kernels": []}
    for rank in (*ranks, *healthy):
        length = fetched if rank in ranks else 1
        rows["profiles"] += on_ranks([rank], [{"source": "kineto"}])
        for number in range(4):
            begin = 1000 * number
            rows["steps"] += on_ranks([rank], [step(number, begin, begin + 1000)])
            rows["annotations"] += on_ranks([rank], [span(begin, begin + length, **{**LOADER, "name": name})])
            rows["kernels"] += on_ranks(
                [rank], [kernel(begin + length, begin + 999, launch=begin + length, step=number)]
            )
    return trace_of(**rows)


def test_steps_that_wait_for_data_on_all_ranks() -> None:
    [finding] = findings(loading((0, 1, 2, 3), fetched=400), "P303")
    assert finding.severity == "warning"
    assert finding.certainty == "likely"
    assert finding.ranks == (0, 1, 2, 3)
    assert "up to 40% of the step (400 us, rank 0)" in finding.title


def test_a_loader_without_workers_is_told_as_such() -> None:
    [finding] = findings(
        loading((0,), fetched=50, name="enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"), "P303"
    )
    assert (finding.severity, finding.certainty) == ("info", "certain")
    assert any("num_workers=0" in line for line in finding.evidence.certain)


def test_little_fetching_and_one_slow_rank_of_many_are_not_told() -> None:
    assert findings(loading((0, 1), fetched=20), "P303") == []
    assert findings(loading((0,), fetched=400, healthy=(1, 2, 3)), "P303") == []


def test_fetching_that_the_device_hides_costs_nothing() -> None:
    trace = trace_of(steps=[step(1, 0, 1000)], kernels=[kernel(0, 1000, step=1)], annotations=[span(0, 500, **LOADER)])
    assert findings(trace, "P303") == []
