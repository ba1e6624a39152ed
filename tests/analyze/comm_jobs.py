"""Communication of many ranks as tables: made by hand, or from the truth of a simulated job."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

from analyze.device_tables import Row, span, trace_of
from rankscope.analyze.comm.matching import Matching
from rankscope.analyze.comm.profile_clocks import matching_of
from rankscope.model.tables import MISSING, Trace
from rankscope.simulate.profiler import ProfileSimulation

SAMPLES = Path(__file__).resolve().parents[3] / "shared" / "samples" / "kineto"


def call(rank: int, start: float, end: float, **columns: Any) -> Row:
    """An all_reduce on the device, in microseconds; its number in the trace is filled in by job()."""
    known = {"op": "all_reduce", "kernel_id": 0, "dtype": "Float", "n_bytes": 4096, "stream": 20}
    return span(start, end, **{**known, "rank": rank, "file_id": rank, **columns})


def job(
    calls: Sequence[Row], *, hosts: Sequence[str] = (), groups: Any = (), world_size: int = MISSING, **tables: Any
) -> Trace:
    """A capture of these calls: a profile per rank, on the host of its number if any are given."""
    comms = [{**row, "comm_id": number} for number, row in enumerate(calls)]
    spans: dict[tuple[int, int], list[int]] = {}
    for row in [*comms, *(row for rows in tables.values() for row in rows)]:
        spans.setdefault((row["file_id"], row["rank"]), []).extend(
            (row["start_ns"], row["start_ns"] + row["duration_ns"])
        )
    profiles = [
        {
            "file_id": file_id,
            "rank": rank,
            "host": hosts[rank] if hosts else "",
            "world_size": world_size,
            "groups": json.dumps(groups),
            "start_ns": min(times),
            "end_ns": max(times),
        }
        for (file_id, rank), times in sorted(spans.items())
    ]
    return trace_of(comms=comms, profiles=profiles, **tables)


@dataclass(frozen=True)
class Recorded:
    """What the traces of a simulated job say about its communication, and what it really was."""

    trace: Trace
    truth: list[int]  # per row of comms the number of its logical call


def recorded(simulation: ProfileSimulation, words: str = "seq", drop: float = 0.0, spread_us: float = 0.0) -> Recorded:
    """`words`: what each call says of itself: its sequence number, only its group, or nothing at all.

    `spread_us` is how long after the others a member ends on average, beyond what the simulation lets them differ.
    """
    random = Random(f"{simulation.spec.seed} drop")
    calls, truth = [], []
    for met in simulation.truth.collectives:
        for place, rank in enumerate(met.ranks):
            first, last = simulation.truth.windows[rank]
            if first <= met.step <= last and random.random() >= drop and rank in simulation.ranks:
                row = _as_recorded(simulation, met.id, place, words)
                row["duration_ns"] += int(random.expovariate(1.0) * spread_us * 1000)
                calls.append(row)
                truth.append(met.id)
    hosts = [simulation.host_of(rank) for rank in range(simulation.world_size)]
    return Recorded(job(calls, hosts=hosts), truth)


def _as_recorded(simulation: ProfileSimulation, number: int, place: int, words: str) -> Row:
    met = simulation.truth.collectives[number]
    rank = met.ranks[place]
    clock = simulation.truth.clocks[simulation.host_of(rank)]
    start, end = (clock.recorded_ns(times[place]) for times in (met.arrivals_ns, met.ends_ns))
    row: Row = {"file_id": rank, "rank": rank, "kernel_id": 0, "start_ns": start, "duration_ns": end - start}
    row |= {"step": met.step, "is_p2p": met.is_p2p, "stream": 40 + met.is_p2p}
    if words == "nothing":
        return row | {"op": "send_recv" if met.is_p2p else "all_reduce"}
    op = ("send", "recv")[place] if met.is_p2p else "all_reduce"
    ends = {"send": {"dst": met.ranks[-1]}, "recv": {"src": met.ranks[0]}}.get(op, {})
    group = {"group_name": met.group, "group_desc": met.desc, "dtype": "BFloat16", "n_bytes": met.n_bytes}
    return row | group | ends | {"op": op} | ({"seq": met.seqs[place]} if words == "seq" else {})


def n_wrong(found: Recorded) -> int:
    """Calls that were put together with calls of another collective."""
    truth = _true_ids(found)
    match = matching_of(found.trace).match
    wrong = 0
    for number in np.unique(match[match != MISSING]).tolist():
        ids = truth[match == number]
        wrong += len(ids) - int(np.bincount(ids).max())
    return wrong


def n_missed(found: Recorded) -> int:
    """Calls without a match though another member's call is there."""
    truth = _true_ids(found)
    match = matching_of(found.trace).match
    return int(np.count_nonzero((match == MISSING) & (np.bincount(truth)[truth] > 1)))


def _true_ids(found: Recorded) -> Any:
    return np.asarray(found.truth)[matching_of(found.trace).rows.comm_id]


def clock_errors_ns(simulation: ProfileSimulation, matching: Matching) -> Any:
    """How far each rank's clock is off at the edges and in the middle of the window, relative to the median rank."""
    rows, clocks = matching.rows, matching.clocks
    low, high = int(rows.start_ns.min()), int(rows.end_ns.max())
    errors = []
    for process in np.unique(rows.process).tolist():
        rank = int(rows.rank[np.argmax(rows.process == process)])
        truth = simulation.truth.clocks[simulation.host_of(rank)]
        moments = np.array([low, (low + high) // 2, high])
        found = clocks.correction_ns(np.repeat(clocks.of_process[process], 3), moments)
        errors += [
            truth.recorded_ns(int(moment)) - int(moment) - int(own) for moment, own in zip(moments, found, strict=True)
        ]
    return np.abs(np.asarray(errors) - np.median(errors))


def matched_sets(trace: Trace) -> list[tuple[tuple[int, int], ...]]:
    """The matches as (rank, comm_id) of their calls, in order of their ends."""
    matching = matching_of(trace)
    rows = matching.rows
    numbers: Iterable[int] = np.unique(matching.match[matching.match != MISSING]).tolist()
    return [
        tuple(
            sorted(
                zip(rows.rank[matching.match == n].tolist(), rows.comm_id[matching.match == n].tolist(), strict=True)
            )
        )
        for n in numbers
    ]
