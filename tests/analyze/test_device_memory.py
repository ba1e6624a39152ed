"""Memory over time, its peak, and growth from step to step."""

from __future__ import annotations

import pytest

from analyze.device_tables import Row, at, findings, only_row, rows_of, span, step, trace_of
from rankscope.analyze.metric import Selection
from rankscope.model.tables import Trace

MIB = 1 << 20


def moment(time: float, allocated: int, **columns: object) -> Row:
    known = {"file_id": 0, "rank": 0, "device_type": "cuda", "device": 0, "tid": 1, "reserved_bytes": 64 * MIB}
    return {**known, "time_ns": at(time), "allocated_bytes": allocated, **columns}


def test_timeline_is_sorted_per_device() -> None:
    memory = [moment(20, 5), moment(10, 3), moment(15, 7, device=1)]
    rows = rows_of(trace_of(memory=memory), "memory")
    assert [(row["device"], row["time_ns"] - at(0), row["allocated_bytes"]) for row in rows] == [
        (0, 10_000, 3),
        (0, 20_000, 5),
        (1, 15_000, 7),
    ]


def test_bytes_in_use_are_counted_where_they_were_not_recorded() -> None:
    memory = [moment(time, -1, n_bytes=n_bytes) for time, n_bytes in ((1, 100), (2, 50), (3, -100))]
    assert [row["allocated_bytes"] for row in rows_of(trace_of(memory=memory), "memory")] == [100, 150, 50]


def test_the_peak_with_its_step_and_operators() -> None:
    trace = trace_of(
        memory=[moment(10, 3 * MIB), moment(55, 9 * MIB, reserved_bytes=80 * MIB), moment(90, MIB)],
        steps=[step(7, 0, 40), step(8, 40, 80)],
        ops=[
            span(50, 70, name="aten::linear", tid=1),
            span(52, 60, name="aten::addmm", tid=1),
            span(53, 54, name="aten::empty", tid=1),
            span(54, 70, name="aten::cat", tid=2),
        ],
    )
    row = only_row(trace, "memory_peaks")
    assert (row["peak_bytes"], row["peak_ns"], row["peak_step"]) == (9 * MIB, at(55), 8)
    assert (row["peak_op"], row["peak_top_op"]) == ("aten::addmm", "aten::linear")
    assert row["reserved_bytes"] == 80 * MIB


def test_a_peak_of_chosen_steps() -> None:
    trace = trace_of(memory=[moment(10, 9), moment(50, 4)], steps=[step(1, 0, 40), step(2, 40, 80)])
    assert only_row(trace, "memory_peaks", Selection(steps=[2]))["peak_bytes"] == 4


def test_without_steps_there_is_a_peak_and_no_growth() -> None:
    row = only_row(trace_of(memory=[moment(10, 9), moment(50, 4)]), "memory_peaks")
    assert (row["peak_bytes"], row["n_steps"], row["growth_bytes"], row["peak_step"]) == (9, 0, -1, -1)


def steps_ending_with(*in_use: int, **columns: object) -> Trace:
    """In the middle of each step twice as much is in use as at its end."""
    memory = [
        row
        for number, n_bytes in enumerate(in_use)
        for row in (moment(100 * number + 50, 2 * n_bytes, **columns), moment(100 * number + 90, n_bytes, **columns))
    ]
    steps = [step(number, 100 * number, 100 * number + 100) for number in range(len(in_use))]
    devices = [{"file_id": 0, "rank": 0, "device": 0, "n_bytes": 1024 * MIB}]
    return trace_of(memory=memory, steps=steps, devices=devices)


def test_growth_compares_the_ends_of_steps_without_the_first() -> None:
    row = only_row(steps_ending_with(MIB, 50 * MIB, 52 * MIB, 55 * MIB, 57 * MIB), "memory_peaks")
    assert (row["n_steps"], row["first_bytes"], row["last_bytes"]) == (4, 50 * MIB, 57 * MIB)
    assert (row["growth_bytes"], row["n_grown"]) == (2 * MIB, 3)


def test_memory_that_grows_in_every_step_is_told_with_the_steps_that_are_left() -> None:
    [finding] = findings(steps_ending_with(MIB, 50 * MIB, 52 * MIB, 54 * MIB, 56 * MIB), "P305")
    assert finding.severity == "warning"
    assert "rank 0 uses 2.0 MiB more device memory in every step" in finding.title
    assert finding.evidence.facts["steps_left"] == (1024 - 112) // 2


def test_memory_of_the_host_has_no_known_end() -> None:
    trace = steps_ending_with(MIB, 50 * MIB, 52 * MIB, 54 * MIB, 56 * MIB, device_type="cpu", device=-1)
    [finding] = findings(trace, "P305")
    assert finding.severity == "info"
    assert "more host memory" in finding.title
    assert finding.evidence.facts["steps_left"] is None


@pytest.mark.parametrize(
    "in_use",
    [
        pytest.param((MIB, 50 * MIB, 50 * MIB, 50 * MIB, 50 * MIB), id="level"),
        pytest.param((MIB, 50 * MIB, 60 * MIB, 55 * MIB, 70 * MIB), id="up and down"),
        pytest.param((MIB, 50 * MIB, 60 * MIB), id="too few steps"),
        pytest.param((100, 200, 300, 400, 500), id="some bytes"),
    ],
)
def test_nothing_is_said_about_memory(in_use: tuple[int, ...]) -> None:
    assert findings(steps_ending_with(*in_use), "P305") == []
