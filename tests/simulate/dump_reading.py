"""Questions that the tests ask of simulated dumps."""

from __future__ import annotations

import json
from typing import Any

from rankscope.simulate import Simulation

Dump = dict[str, Any]


def dumps_of(simulation: Simulation) -> dict[int, Dump]:
    return dict(simulation.dumps())


def own_location(entry: Dump) -> tuple[str, int, str]:
    frame = next(frame for frame in entry["frames"] if "/torch/" not in frame["filename"])
    return frame["filename"], frame["line"], frame["name"]


def works(dump: Dump) -> list[Dump]:
    """The entries that carry a state of their own: all but the members of batches."""
    batches = {(e["pg_id"], e["p2p_seq_id"]) for e in dump["entries"] if e["profiling_name"] == "nccl:coalesced"}
    return [e for e in dump["entries"] if not (e["is_p2p"] and (e["pg_id"], e["p2p_seq_id"]) in batches)]


def pending(dump: Dump) -> list[Dump]:
    return [entry for entry in works(dump) if entry["state"] != "completed"]


def collectives_on(dump: Dump, desc: str) -> dict[int, Dump]:
    return {
        e["collective_seq_id"]: e
        for e in dump["entries"]
        if e["process_group"][1] == desc and not e["is_p2p"] and e["profiling_name"] != "nccl:coalesced"
    }


def signature(entry: Dump) -> tuple[str, str, str]:
    return entry["profiling_name"], str(entry["input_sizes"]), str(entry["input_dtypes"])


def peers_in(simulation: Simulation, rank: int, desc: str) -> list[int]:
    dump = dict(simulation.dumps())[rank]
    config = next(c for c in dump["pg_config"].values() if c["desc"] == desc)
    return [peer for peer in json.loads(config["ranks"]) if peer != rank]
