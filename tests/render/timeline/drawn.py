"""A timeline as it was written, to be asked by tests."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

from rankscope.model.finding import Finding
from rankscope.model.tables import Trace
from rankscope.render.timeline.axis import prepare_axis
from rankscope.render.timeline.chrome import LEAD_NS
from rankscope.render.timeline.drawing import Cut
from rankscope.render.timeline.writer import Written, write_timeline

Event = dict[str, Any]


@dataclass(frozen=True)
class Drawn:
    document: dict[str, Any]
    written: Written

    @property
    def events(self) -> list[Event]:
        return list(self.document["traceEvents"])

    def of(self, phase: str, category: str = "") -> list[Event]:
        return [event for event in self.events if event["ph"] == phase and category in ("", event.get("cat"))]

    def process_names(self) -> dict[int, str]:
        return {event["pid"]: event["args"]["name"] for event in self.events if event["name"] == "process_name"}

    def track(self, event: Event) -> str:
        [name] = [
            other["args"]["name"]
            for other in self.events
            if other["name"] == "thread_name" and (other["pid"], other["tid"]) == (event["pid"], event["tid"])
        ]
        return str(name)

    def times(self, event: Event) -> tuple[int, int]:
        """Begin and end in nanoseconds since the beginning of the capture, to the last digit."""
        start, duration = (event["ts"] * 1000, event.get("dur", Decimal(0)) * 1000)
        assert start == int(start)
        assert duration == int(duration)
        return int(start) - LEAD_NS, int(start + duration) - LEAD_NS

    def chains(self) -> dict[str, list[tuple[int, str]]]:
        """Per flow the process and the name of each span, in the order of time."""
        found: dict[str, list[Event]] = defaultdict(list)
        for event in self.of("X"):
            if "bind_id" in event:
                found[event["bind_id"]].append(event)
        for events in found.values():
            events.sort(key=lambda event: (event["ts"], -event["dur"]))
            assert [event.get("flow_in", False) for event in events] == [False] + [True] * (len(events) - 1)
            assert [event.get("flow_out", False) for event in events] == [True] * (len(events) - 1) + [False]
        return {flow: [(event["pid"], event["name"]) for event in events] for flow, events in found.items()}


def draw(trace: Trace, folder: Path, findings: Sequence[Finding] = (), max_events: int = 10**6, **choice: Any) -> Drawn:
    path = folder / "trace.json"
    axis = prepare_axis(trace)
    for name in ("since_ns", "until_ns"):
        if name in choice:
            choice[name] += axis.base_ns
    written = write_timeline(trace, findings, str(path), Cut(axis, **choice), max_events)
    document = json.loads(path.read_bytes(), parse_float=Decimal, parse_constant=_refuse)
    assert len(document["traceEvents"]) == written.n_events
    return Drawn(document, written)


def _refuse(word: str) -> None:
    raise AssertionError(f"{word} is no JSON")
