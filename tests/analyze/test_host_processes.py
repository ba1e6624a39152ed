"""Numbers of events are unique in a process only: a report may hold several ranks, a rank may have several files."""

from __future__ import annotations

from typing import Any

import pytest

from analyze.host_events import BACKWARD, Process, capture, measure
from rankscope.analyze.host import rules as host_rules
from rankscope.model.finding import Finding

pytestmark = pytest.mark.slow

METRICS = (
    "call_tree",
    "ops",
    "sequences",
    "op_delays",
    "modules",
    "launches",
    "launch_summary",
    "queue",
    "queue_summary",
    "blocked",
    "host_waits",
    "gaps",
    "syncs",
)


def busy(process: Process, pace: float) -> Process:
    """Something of everything, at a pace that differs between the processes."""
    process.step(1, 0, 80 * pace)
    process.annotation("layers.0.mlp", 0, 70 * pace)
    process.annotation("enumerate(DataLoader)#next", 71 * pace, 78 * pace)
    now = 0.0
    for number in range(60):
        outer = process.op("aten::linear", now, now + 0.9 * pace, sequence_number=number + 1, forward_tid=0, step=1)
        inner = process.op("aten::mm", now + 0.1 * pace, now + 0.6 * pace, step=1)
        for op in (outer, inner, inner):
            process.launch((now + 0.2 * pace, now + 0.3 * pace), (now + 0.4 * pace, now + 0.5 * pace), op_id=op, step=1)
        if number % 10 == 9:
            process.call("cudaStreamSynchronize", now, now + 0.5 * pace, step=1)
        now += pace
    back = process.op("MmBackward0", now, now + pace, BACKWARD, sequence_number=7, forward_tid=1)
    process.launch((now, now + 1), (now + 5 * pace, now + 6 * pace), op_id=back, tid=BACKWARD, step=1)
    return process


def without_file(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Places count through the whole capture, so that only their differences mean the same."""
    kept = []
    for row in rows:
        own = {name: value for name, value in row.items() if name != "file_id"}
        if "position" in own:
            own["last_position"] -= own.pop("position")
        kept.append(own)
    return kept


@pytest.mark.parametrize("name", METRICS)
def test_two_ranks_in_one_file_are_two_processes(name: str) -> None:
    together = capture(busy(Process(0, 0), 40), busy(Process(1, 0), 70))
    apart = capture(busy(Process(0, 0), 40), busy(Process(1, 1), 70))
    assert without_file(measure(together, name)) == without_file(measure(apart, name))
    assert {row["rank"] for row in measure(together, name)} == {0, 1}


def test_rules_see_two_ranks_in_one_file() -> None:
    def told(second_file: int) -> list[Finding]:
        trace = capture(busy(Process(0, 0), 40), busy(Process(1, second_file), 70))
        rules = (host_rules.launch_bound, host_rules.queue_full, host_rules.host_syncs, host_rules.launch_delay)
        return [finding for rule in rules for finding in rule(trace)]  # type: ignore[misc]

    assert told(0) == told(1)
    assert {rank for finding in told(0) for rank in finding.ranks} == {0, 1}


@pytest.mark.parametrize("name", ["ops", "sequences", "op_delays", "modules", "launch_summary", "syncs"])
def test_two_files_of_one_rank_are_one_rank(name: str) -> None:
    once = measure(capture(busy(Process(0, 0), 40)), name)
    twice = measure(capture(busy(Process(0, 0), 40), busy(Process(0, 1), 40)), name)
    assert len(once) == len(twice)
    counted = "n" if "n" in once[0] else "n_launches"
    assert [row[counted] for row in twice] == [2 * row[counted] for row in once]
