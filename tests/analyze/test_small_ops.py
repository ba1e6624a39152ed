"""Steps that consist of Python and small operators, where there is no device."""

from __future__ import annotations

from typing import Any

import pytest

from analyze import host_events
from analyze.device_tables import findings
from rankscope.model.finding import Finding


def looping(n_operators: int = 8000, length: float = 2.0, pause: float = 3.0, rest: float = 0.0) -> list[Finding]:
    """Two steps of two ranks; times are microseconds."""
    processes = [host_events.Process(rank) for rank in range(2)]
    for process in processes:
        for step in range(2):
            begin = step * (n_operators * (length + pause) + rest)
            for number in range(n_operators):
                at = begin + number * (length + pause)
                process.op("aten::add_", at, at + length)
            process.step(step, begin, begin + n_operators * (length + pause) + rest)
    return findings(host_events.capture(*processes), "P315")


def test_many_short_operators_are_told() -> None:
    [finding] = looping(8000)
    assert (finding.severity, finding.ranks) == ("warning", (0, 1))
    assert "8,000 operators of 2 us" in finding.title


@pytest.mark.parametrize(
    "case",
    [
        {"n_operators": 200},
        {"n_operators": 2000, "length": 50.0},
        {"n_operators": 2000, "rest": 50_000.0},
        {"n_operators": 1500, "pause": 400.0},
    ],
    ids=["few", "long", "little of the step", "far apart"],
)
def test_other_steps_are_not(case: dict[str, Any]) -> None:
    assert looping(**case) == []


def test_inner_operators_count_with_their_caller() -> None:
    process = host_events.Process(0)
    for number in range(3000):
        process.op("aten::mm", number * 5, number * 5 + 2)
    process.op("aten::whole", 0, 15_000)
    process.step(0, 0, 15_000)
    assert findings(host_events.capture(process), "P315") == []


def test_with_a_device_it_is_launches_that_cost() -> None:
    process = host_events.Process(0)
    for number in range(3000):
        process.op("aten::add_", number * 5, number * 5 + 2)
    process.launch((10, 12), (13, 14))
    process.step(0, 0, 15_000)
    assert findings(host_events.capture(process), "P315") == []
