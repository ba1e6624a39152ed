"""Questions that the tests ask of simulated profiler traces."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Any

from rankscope.simulate.profiler import ProfileSimulation

Event = dict[str, Any]
DEVICE_CATEGORIES = ("kernel", "gpu_memcpy", "gpu_memset")


def exact_events(simulation: ProfileSimulation, rank: int, layout: str = "classic") -> list[Event]:
    """The events with ts and dur as whole nanoseconds; ts counts from the epoch."""
    # Kineto writes three decimals, always: without the point the digits are nanoseconds.
    trace = json.loads(simulation.text(rank, layout), parse_float=lambda digits: int(digits.replace(".", "")))
    for event in trace["traceEvents"]:
        event["ts"] += trace["baseTimeNanoseconds"]
    events: list[Event] = trace["traceEvents"]
    return events


def complete(events: Iterable[Event], *categories: str) -> list[Event]:
    return [event for event in events if event["ph"] == "X" and event["cat"] in categories]


def named(events: Iterable[Event], start: str) -> list[Event]:
    return [event for event in events if event["name"].startswith(start)]


def end_of(event: Event) -> int:
    end: int = event["ts"] + event["dur"]
    return end


def is_communication(event: Event) -> bool:
    return event["cat"] == "kernel" and str(event["name"]).startswith("nccl")


def compute_kernels(events: Iterable[Event]) -> list[Event]:
    return [event for event in complete(events, "kernel") if not is_communication(event)]


def steps_of(events: Iterable[Event]) -> dict[int, Event]:
    annotations = named(complete(events, "user_annotation"), "ProfilerStep#")
    return {int(event["name"].partition("#")[2]): event for event in annotations}


def inside(events: Iterable[Event], around: Event) -> list[Event]:
    return [event for event in events if around["ts"] <= event["ts"] and end_of(event) <= end_of(around)]


def by_row(events: Iterable[Event]) -> Iterator[list[Event]]:
    """The events of each thread or stream in the order of time; of two that start together, the longer one first."""
    rows: dict[tuple[int, int], list[Event]] = {}
    for event in events:
        rows.setdefault((event["pid"], event["tid"]), []).append(event)
    for row in rows.values():
        yield sorted(row, key=lambda event: (event["ts"], -event["dur"]))


def covered_ns(events: list[Event]) -> int:
    """How long at least one of the events is under way: counted by entries and exits."""
    marks = sorted([(event["ts"], 1) for event in events] + [(end_of(event), -1) for event in events])
    total, depth, since = 0, 0, 0
    for when, change in marks:
        if depth:
            total += when - since
        depth, since = depth + change, when
    return total
