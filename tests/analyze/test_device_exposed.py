"""Communication that nothing hides."""

from __future__ import annotations

import pytest

from analyze.device_tables import Row, collective, findings, kernel, span, step, trace_of
from rankscope.model.tables import Trace


def communicating(exposed: dict[int, float], op: str = "all_reduce", n_steps: int = 3) -> Trace:
    """Steps of a millisecond: computation, then a collective of 300 us, of which the given part nothing hides."""
    rows: dict[str, list[Row]] = {"kernels": [], "comms": [], "steps": []}
    for rank, alone in exposed.items():
        own = {"rank": rank, "file_id": rank}
        for number in range(n_steps):
            begin = 1000 * number
            joins = begin + 600 + alone - 300
            rows["steps"].append(step(number, begin, begin + 1000, **own))
            rows["kernels"] += [
                kernel(begin, begin + 600, step=number, **own),
                collective(joins, joins + 300, step=number, kernel_id=number, **own),
            ]
            rows["comms"].append(span(joins, joins + 300, op=op, group_desc="dp", kernel_id=number, step=number, **own))
    return trace_of(**rows)


def test_the_rank_that_waits_least_tells_what_communication_costs() -> None:
    [finding] = findings(communicating({0: 280, 1: 120, 2: 250}), "P302")
    assert finding.severity == "warning"
    assert finding.certainty == "likely"
    assert finding.ranks == (0, 1, 2)
    assert "at least 12% of the step (120 us) on every rank" in finding.title
    assert finding.evidence.certain[0].startswith("all_reduce in dp: ")


def test_of_one_rank_alone_waiting_cannot_be_told_from_transferring() -> None:
    [finding] = findings(communicating({0: 50}), "P302")
    assert (finding.severity, finding.certainty) == ("info", "possible")


@pytest.mark.parametrize(
    ("exposed", "op"),
    [
        pytest.param({0: 280, 1: 20, 2: 250}, "all_reduce", id="only waiting for rank 1"),
        pytest.param({0: 280, 1: 0, 2: 250}, "all_reduce", id="rank 1 hides all of it"),
        pytest.param({0: 280, 1: 250}, "recv", id="transfers of a pipeline"),
    ],
)
def test_nothing_is_said_about_communication(exposed: dict[int, float], op: str) -> None:
    assert findings(communicating(exposed, op), "P302") == []


def gloo(*operators: Row) -> Trace:
    return trace_of(
        steps=[step(1, 0, 1000)], comms=[span(100, 500, op="all_reduce", tid=2, step=1)], ops=list(operators)
    )


def test_without_a_device_operators_hide_communication() -> None:
    [finding] = findings(gloo(span(0, 300, name="aten::mm", tid=1)), "P302")
    assert finding.severity == "info"  # no stream on which it could be hidden
    assert "20% of the step (200 us)" in finding.title
    assert findings(gloo(span(0, 490, name="aten::mm", tid=1)), "P302") == []


def test_the_operator_of_the_collective_hides_nothing() -> None:
    [finding] = findings(gloo(span(0, 500, name="c10d::allreduce_", tid=1)), "P302")
    assert "40% of the step" in finding.title
