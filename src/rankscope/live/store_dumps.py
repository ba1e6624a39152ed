"""What a job's store says about its ranks, as Flight Recorder dumps, so that the recorder's rules can judge it."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from rankscope.collect.dumps.stacks import section_header
from rankscope.live.store_groups import Detail, TrackedGroup
from rankscope.read.desync import P2P_OPS, LatestCall, recorder_entry

_VERSION = "2.10"
_MAIN_THREAD = "Thread 0x0000000000000001 [MainThread] (most recent call first):"
_MAX_ABSENT = 64
_SHAPES = ("input_sizes", "output_sizes", "input_dtypes", "output_dtypes")

Dump = dict[str, Any]


def make_dumps(groups: Sequence[TrackedGroup], time_ns: int) -> dict[int, Dump]:
    """One dump per global rank. Groups whose members the store does not show are left out."""
    dumps: dict[int, Dump] = defaultdict(_empty_dump)
    numbers: dict[int, dict[str, int]] = defaultdict(dict)  # of the groups that a rank is in, by their names
    # Where both trackers know a group, rankscope's comes first: it tells more.
    for tracked in sorted(groups, key=lambda each: bool(each.backend)):
        if not tracked.group.ranks:
            continue
        entries = []
        for member in _told_of(tracked):
            rank, name = tracked.group.ranks[member], tracked.group.name
            if name not in numbers[rank]:
                numbers[rank][name] = len(numbers[rank])
                entries += _add_rank(dumps[rank], tracked, member, numbers[rank][name], time_ns)
        _add_members(dumps, tracked)
        _drop_uneven_shapes(entries)
    for dump in dumps.values():
        dump["entries"].sort(key=lambda entry: entry["record_id"])
    return dict(sorted(dumps.items()))


def make_stacks(groups: Sequence[TrackedGroup]) -> dict[int, str]:
    """Per global rank: where its main thread was when it last wrote to the store, laid out as stacks_<rank>.txt."""
    newest: dict[int, Detail] = {}
    for tracked in groups:
        for detail in tracked.details.values():
            if detail.now and (detail.rank not in newest or newest[detail.rank].time_ns < detail.time_ns):
                newest[detail.rank] = detail
    return {rank: _section(detail) for rank, detail in sorted(newest.items())}


def _section(detail: Detail) -> str:
    lines = [section_header(detail.rank, detail.pid, detail.time_ns / 1e9, "from the job's store"), _MAIN_THREAD]
    lines += [
        f'  File "{_one_line(frame.filename)}", line {frame.line} in {_one_line(frame.name)}' for frame in detail.now
    ]
    return "\n".join(lines) + "\n"


def _one_line(text: str) -> str:
    return " ".join(text.replace('"', "'").split())


def write_files(dumps: Mapping[int, Dump], stacks: Mapping[int, str], folder: str) -> None:
    contents = {f"rankscope_trace_rank_{rank}.json": msgspec.json.encode(dump) for rank, dump in dumps.items()}
    contents |= {f"stacks_{rank}.txt": text.encode("utf-8", "replace") for rank, text in stacks.items()}
    for name, content in contents.items():
        with open(os.path.join(folder, name), "xb") as file:
            file.write(content)


def _empty_dump() -> Dump:
    return {"version": _VERSION, "comm_lib_version": "", "pg_config": {}, "pg_status": {}, "entries": []}


def _told_of(tracked: TrackedGroup) -> list[int]:
    """The ranks of the group that get a dump. So many that never joined anything are as good as lost."""
    absent = tracked.state.never_joined
    return [*tracked.members, *(absent if len(absent) <= _MAX_ABSENT else ())]


def _add_members(dumps: dict[int, Dump], tracked: TrackedGroup) -> None:
    """Adds the members to the dump of one rank that called in the group, and of those that did not."""
    group, members = tracked.group, _told_of(tracked)
    config = {"name": group.name, "desc": group.desc, "ranks": str(list(group.ranks))}
    for member in (*members[:1], *members[len(tracked.members) :]):
        dumps[group.ranks[member]]["pg_config"][group.name] = config


def _add_rank(dump: Dump, tracked: TrackedGroup, group_rank: int, pg_id: int, time_ns: int) -> list[dict[str, Any]]:
    """Adds a rank's progress in the group, and its latest call there, if it made one."""
    group, detail = tracked.group, tracked.details.get(group_rank)
    member = tracked.members.get(group_rank)
    # Sequence numbers count from 1: who never joined is known to stand at 0.
    last, finished = (member.seq, member.last_finished) if member else (0, 0)
    if detail:
        last, finished = max(last, detail.status.last_enqueued), max(finished, detail.status.last_completed)
        dump["rankscope"] = _about(detail, time_ns)
    counters = {"last_enqueued": last, "last_started": last, "last_completed": finished}
    dump["pg_status"][str(pg_id)] = {f"{name}_collective": value for name, value in counters.items()}
    if member is None:
        return []
    backend = tracked.backend or _backend(tracked)
    call = LatestCall(group.name, group.desc, member.seq, member.op, member.is_finished, backend)
    entry = _detailed(detail, call, pg_id) or recorder_entry(call, pg_id, time_ns)
    dump["entries"].append(entry)
    return [entry]


def _backend(tracked: TrackedGroup) -> str:
    names = (detail.entry.profiling_name for detail in tracked.details.values() if detail.entry)
    return next((name.rpartition(":")[0] for name in names), "")


def _about(detail: Detail, time_ns: int) -> dict[str, Any]:
    return {
        "rank": detail.rank,
        "host": detail.host,
        "world_size": detail.world_size,
        "pid": detail.pid,
        "written_ns": max(time_ns, detail.time_ns),
    }


def _detailed(detail: Detail | None, call: LatestCall, pg_id: int) -> dict[str, Any] | None:
    """The call in full; None if the details belong to an earlier call: they are written less often than the state."""
    entry = detail.entry if detail else None
    if (
        entry is None
        or entry.is_p2p != (call.op in P2P_OPS)
        or entry.collective_seq_id < call.seq
        or (entry.state == "completed" and not call.is_finished)
    ):
        return None
    full: dict[str, Any] = msgspec.to_builtins(entry)
    full.update(pg_id=pg_id, process_group=[call.group_name, call.group_desc])
    if call.is_finished and entry.collective_seq_id == call.seq:
        full.update(state="completed", retired=True)
    return full


def _drop_uneven_shapes(entries: Sequence[dict[str, Any]]) -> None:
    """Drops the sizes of a collective if only some ranks recorded them: absent is not different."""
    by_seq: dict[int, list[dict[str, Any]]] = defaultdict(list)
    for entry in entries:
        if not entry["is_p2p"]:
            by_seq[entry["collective_seq_id"]].append(entry)
    for alike in by_seq.values():
        is_told = [any(entry[name] for name in _SHAPES) for entry in alike]
        if any(is_told) and not all(is_told):
            for entry in alike:
                entry.update((name, []) for name in _SHAPES)
