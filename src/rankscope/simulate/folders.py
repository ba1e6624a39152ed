"""Folders as they are found: dumps of other moments, runs and attempts beside each other, clocks that are off."""

from __future__ import annotations

import pickle
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rankscope.simulate.simulation import Simulation

_TIMES = ("time_created_ns", "time_discovered_started_ns", "time_discovered_completed_ns")


@dataclass(frozen=True)
class Part:
    """Some dumps of one run, and where they are in the folder."""

    run: Simulation
    ranks: Collection[int] | None = None
    """None: all that left a dump."""
    later_ns: int = 0
    """How much later the run was, or how far the clock of these ranks is ahead."""
    folder: str = ""
    """`{host}` stands for the rank's host."""
    first_rank: int = 0
    """Added to the rank in the file's name: replicas each count their ranks from 0."""
    n_unmade: Mapping[int, int] = field(default_factory=dict)
    """For single ranks, how many of the last calls had not been made when the dump was taken."""


def write_parts(folder: Path, parts: Sequence[Part], prefix: str = "nccl_trace_rank_") -> None:
    for part in parts:
        for rank, dump in part.run.dumps():
            if part.ranks is not None and rank not in part.ranks:
                continue
            part_folder = folder / part.folder.format(host=part.run.host_of(rank))
            part_folder.mkdir(parents=True, exist_ok=True)
            seen = _taken_earlier(dump, part.n_unmade[rank]) if rank in part.n_unmade else dump
            for entry in seen["entries"]:
                entry.update({name: entry[name] + part.later_ns for name in _TIMES if entry[name]})
            (part_folder / f"{prefix}{part.first_rank + rank}").write_bytes(pickle.dumps(seen, protocol=2))


def _taken_earlier(dump: dict[str, Any], n_unmade: int) -> dict[str, Any]:
    entries = dump["entries"][: len(dump["entries"]) - n_unmade]
    newest = {entry["pg_id"]: entry["collective_seq_id"] for entry in entries}
    status = {
        pg_id: {name: min(value, newest.get(int(pg_id), -1)) for name, value in counters.items()}
        for pg_id, counters in dump["pg_status"].items()
    }
    return {**dump, "entries": entries, "pg_status": status}
