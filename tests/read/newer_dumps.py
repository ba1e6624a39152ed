"""Dumps as newer recorders write them, modelled on their sources: torch's hook for any backend, torchcomms."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from read.dumps import Dump, make_dump, make_entry

SECOND = 1_000_000_000
STEP = ("all_reduce", "_all_gather_base", "all_reduce")


def config(ranks: Sequence[int], name: str = "0", desc: str = "default_pg") -> Dump:
    return {name: {"name": name, "desc": desc, "ranks": json.dumps(list(ranks))}}


def hooked_dump(ops: Sequence[str], ranks: Sequence[int], backend: str = "ucc", **fields: Any) -> Dump:
    """torch's hook on a backend without a completion hook: each call is let go of when it is made.

    Its counters are numbers of operations of the whole process, which another group's calls drive up.
    """
    entries = []
    n_collectives = n_transfers = 0
    for number, op in enumerate(ops):
        is_p2p = op.startswith(("send", "recv"))
        n_transfers, n_collectives = n_transfers + is_p2p, n_collectives + (not is_p2p)
        numbers = {"record_id": number, "op_id": 100 + 2 * number, "p2p_seq_id": n_transfers, "is_p2p": is_p2p}
        times = {"time_created_ns": (number + 1) * SECOND}
        name = f"{backend}:{op}" if backend else op
        entries.append(make_entry(n_collectives, profiling_name=name, retired=True, **{**numbers, **times, **fields}))
    last = entries[-1]["op_id"] if entries else -1
    counters = {"last_enqueued_collective": last, "last_started_collective": -1, "last_completed_collective": -1}
    return make_dump(entries, pg_config=config(ranks), pg_status={"0": counters}, comm_lib_version="")


def torchcomms_dump(calls: Iterable[tuple[str, str, bool]], groups: Mapping[str, Sequence[int]], cuda: bool) -> Dump:
    """Calls as (communicator, operation, has ended). Numbers run over all communicators; `retired` alone tells ends."""
    entries = []
    for number, (name, op, is_done) in enumerate(calls):
        times = {"time_created_ns": (number + 1) * SECOND}
        if cuda:  # the end of a call in flight is asked of an event that nobody has recorded yet, and looks complete
            times |= {
                "time_discovered_started_ns": (number + 1) * SECOND + 5,
                "time_discovered_completed_ns": 99 * SECOND,
            }
        numbers = {
            "record_id": number,
            "pg_id": sorted(groups).index(name),
            "op_id": number,
            "collective_seq_id": number,
        }
        entry = make_entry(**numbers, **times, process_group=(name, "ncclx"), profiling_name=f"ncclx:{op}")
        entries.append({**entry, "state": "completed" if cuda else "scheduled", "retired": is_done})
        if is_done:
            entries[-1]["duration_ms"] = 0.5
    told = {name: config(ranks, name, "ncclx")[name] for name, ranks in groups.items()}
    return make_dump(entries, pg_config=told, pg_status={}, comm_lib_version="2.28")


def as_json(dump: Dump) -> bytes:
    """The JSON form: no stacks, no `entries` when there are none, 0 for times that are not known, counters as text."""
    entries = []
    for entry in dump["entries"]:
        told = {name: value for name, value in entry.items() if name != "frames"}
        entries.append({name: 0 if value is None else value for name, value in told.items()})
    status = {pg: {name: str(value) for name, value in told.items()} for pg, told in dump["pg_status"].items()}
    content = {**dump, "entries": entries, "pg_status": status, "nccl_comm_state": {}}
    if not entries:
        del content["entries"]
    return json.dumps(content, sort_keys=True).encode()


def write_job(folder: Path, dumps: Mapping[int, Dump], name: str = "trace_{}.json") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for rank, dump in dumps.items():
        (folder / name.format(rank)).write_bytes(as_json(dump))
    return folder
