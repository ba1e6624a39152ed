"""What torch's own recorder saw and the hooks did not: calls made from C++ (DDP's reducer, compiled graphs), and
whether calls on a device have ended.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from itertools import zip_longest
from typing import Any

from rankscope.collect.desync.calls import Call, Calls, Operation
from rankscope.collect.desync.groups import Group

_READERS = ("_dump_fr_trace_json", "_dump_nccl_trace_json")  # newer and older versions of torch
_UNWATCHED = ("gloo:",)  # torch writes no states for it: a call that was retired has ended
_FRESH_NS = 20_000_000_000  # a call that waits is looked at every few seconds

Key = tuple[int, bool, int]  # group, whether it is a transfer between two ranks, number


def adopt(calls: Calls) -> None:
    """Brings the calls up to date with torch's recorder. It takes some milliseconds: for quiet moments only."""
    groups = {group.name: group for group in calls.groups}
    ring = tuple(calls.ring)
    seen = {_key(call.group, call.operation.is_p2p, call): call for call in ring}
    oldest_ns = ring[0].created_ns if ring and ring[0].number > 0 else 0
    open_before = {
        _key(call.group, call.operation.is_p2p, call): call for call in calls.seen_by_torch_only if not call.ended_ns
    }
    is_fresh = time.time_ns() - calls.read_torch_ns < _FRESH_NS
    calls.read_torch_ns = time.time_ns()
    unseen: dict[Key, Call] = {}
    for recorded in _entries():
        group = groups.get(str(recorded["process_group"][0]))
        name = str(recorded["profiling_name"])
        if group is None or name.endswith("coalesced") or recorded["time_created_ns"] < oldest_ns:
            continue
        call = _call(group, name, recorded)
        key = _key(group, call.operation.is_p2p, call)
        if key not in seen:
            if key in open_before and call.seq >= group.newest_seq():
                _doubt_end(call, open_before[key], is_fresh)
            unseen[key] = call
        elif call.ended_ns and seen[key].is_pending and not seen[key].is_on_cpu:
            calls.end(seen[key], max(call.ended_ns, seen[key].created_ns))
    calls.seen_by_torch_only = tuple(unseen.values())
    for call in calls.seen_by_torch_only:
        _put_in_place(call)


def _put_in_place(call: Call) -> None:
    group = call.group
    if call.operation.is_p2p:
        return
    if group.latest is None or group.latest.seq <= call.seq:
        group.latest = call
    if call.ended_ns and (group.finished is None or group.finished.seq <= call.seq):
        group.finished = call


def _doubt_end(call: Call, before: Call, is_fresh: bool) -> None:
    """gloo also retires what has failed. If the newest call still waited a moment ago, and is retired now that its time
    is up, then it has failed.
    """
    is_told = call.ended_ns > call.created_ns
    is_overdue = 0 < call.group.timeout_ms * 1_000_000 < time.time_ns() - call.created_ns
    if call.ended_ns and not is_told and (before.error or (is_fresh and is_overdue)):
        call.ended_ns, call.error = 0, before.error or "retired when its time was up"


def _key(group: Group, is_p2p: bool, call: Call) -> Key:
    return group.local_id, is_p2p, call.p2p_seq if is_p2p else call.seq


def _entries() -> list[dict[str, Any]]:
    from torch._C import _distributed_c10d

    read = next((getattr(_distributed_c10d, name) for name in _READERS if hasattr(_distributed_c10d, name)), None)
    entries = json.loads(read()).get("entries") if read is not None else None
    return entries or []


def _call(group: Group, name: str, recorded: Mapping[str, Any]) -> Call:
    backend, _, operation = name.partition(":")
    call = Call(group, Operation(operation.split()[0], is_p2p=bool(recorded["is_p2p"])), number=-1)
    call.seq, call.p2p_seq, call.op_id = recorded["collective_seq_id"], recorded["p2p_seq_id"], recorded["op_id"]
    call.inputs = _shapes(recorded, "input")
    call.outputs = _shapes(recorded, "output")
    call.is_on_cpu = backend == group.backend(True)
    call.thread = int(recorded.get("thread_id") or 0)
    call.created_ns = recorded["time_created_ns"]
    is_ended = recorded["state"] == "completed" or (name.startswith(_UNWATCHED) and recorded["retired"])
    if is_ended:
        call.ended_ns = recorded.get("time_discovered_completed_ns") or call.created_ns
    elif recorded["retired"]:
        call.error = "torch gave it up"
    return call


def _shapes(recorded: Mapping[str, Any], which: str) -> tuple[tuple[tuple[int, ...], object], ...]:
    sizes, dtypes = recorded[f"{which}_sizes"], recorded[f"{which}_dtypes"]
    return tuple((tuple(size), dtype) for size, dtype in zip_longest(sizes, dtypes[: len(sizes)], fillvalue=""))
