"""Turns the history of a rank into the Flight Recorder dump that torch would have written."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from rankscope.simulate.engine import RankRun
from rankscope.simulate.groups import Group
from rankscope.simulate.program import Call, Shape, Transfer

TIMEOUT_MS = 600_000
_POLL_NS = 100_000_000
_SCALAR_TYPE = {"Half": 5, "Float": 6, "Double": 7, "BFloat16": 15}

_NEW_IN_2_10 = ("thread_name", "thread_id")
_NEW_SINCE_2_1 = ("timeout_ms", "is_p2p")
_NEW_SINCE_1_0 = (
    *("record_id", "op_id", "p2p_seq_id", "input_dtypes", "output_dtypes"),
    *("retired", "time_discovered_started_ns", "time_discovered_completed_ns"),
)


@dataclass(frozen=True)
class Camera:
    """How one rank is looked at: what its recorder was set to, and when it was dumped."""

    rank: int
    version: str
    ring: int
    dump_ns: int
    clock_offset_ns: int = 0
    timing: bool = False
    abort_ns: int | None = None
    """When the communicators were aborted, if they were."""
    n_unnoticed: int = 0
    """How many of the last completed calls still look scheduled."""
    same_ids: bool = False
    """The numbers of groups start again with each generation."""


@dataclass
class _Counters:
    """The numbers that one process group of one process hands out."""

    pg_id: int
    collective: int = 0
    p2p: int = 0
    op: int = 0
    status: dict[str, int] = field(
        default_factory=lambda: {
            "last_enqueued_collective": -1,
            "last_started_collective": -1,
            "last_completed_collective": -1,
        }
    )


class _Times(NamedTuple):
    """What the recorder knows of one call, in the host's clock."""

    created_ns: int
    started_ns: int | None
    completed_ns: int | None
    duration_ms: float | None

    @property
    def state(self) -> str:
        if self.completed_ns is not None:
            return "completed"
        return "scheduled" if self.started_ns is None else "started"


def take_dump(history: RankRun, generations: tuple[tuple[Group, ...], ...], camera: Camera) -> dict[str, Any]:
    counters = _number_groups(generations, camera.same_ids)
    entries = list(_record(history, counters, camera))
    # NCCL communicators are made on first use: a group that was never used is not in the dump.
    used = {group: counted for group, counted in counters.items() if counted.op}
    dump: dict[str, Any] = {
        "version": camera.version,
        "pg_config": {
            group.name: {
                "name": group.name,
                "desc": history.descs.get(group, group.desc),
                "ranks": str(list(group.ranks)),
            }
            for group in used
        },
        "comm_lib_version": "2.27.5",
        "pg_status": {str(counted.pg_id): counted.status for counted in used.values()},
        "entries": entries,
    }
    _downgrade(dump, camera.version)
    return dump


def _number_groups(generations: tuple[tuple[Group, ...], ...], same_ids: bool) -> dict[Group, _Counters]:
    counters: dict[Group, _Counters] = {}
    for groups in generations:
        first = 0 if same_ids else len(counters)
        counters.update({group: _Counters(first + index) for index, group in enumerate(groups)})
    return counters


def to_json(dump: dict[str, Any]) -> dict[str, Any]:
    """The variant that torch's JSON dump has: no stacks, 0 for unknown times, the status as text."""
    result = dict(dump)
    result["nccl_comm_state"] = {}
    if "pg_status" in dump:
        result["pg_status"] = {
            pg_id: {name: str(seq) for name, seq in status.items()} for pg_id, status in dump["pg_status"].items()
        }
    result["entries"] = [
        {
            key: 0 if value is None else list(value) if key == "process_group" else value
            for key, value in entry.items()
            if key != "frames"
        }
        for entry in dump["entries"]
    ]
    if not result["entries"]:
        del result["entries"]
    return result


def _record(history: RankRun, counters: dict[Group, _Counters], camera: Camera) -> Iterator[dict[str, Any]]:
    """Number all calls from the first one on, but build entries only for those that are still in the ring."""
    made = history.calls[: len(history.created_ns)]
    n_evicted = max(0, sum(call.n_entries for call in made) - camera.ring)
    process_groups = {group: (group.name, history.descs.get(group, group.desc)) for group in counters}
    record_id = 0
    for index, call in enumerate(made):
        counted = counters[call.group]
        first_op = counted.op + 1
        _count(call, counted)
        times = _observe(history, index, camera)
        _update_status(call, counted, times)
        if record_id + call.n_entries > n_evicted:
            common = {"pg_id": counted.pg_id, "process_group": process_groups[call.group]}
            for number, entry in enumerate(_entries_of(call, counted, times, camera)):
                if record_id + number >= n_evicted:
                    entry["record_id"] = record_id + number
                    entry["op_id"] = min(first_op + number, counted.op)
                    entry.update(common)
                    yield entry
        record_id += call.n_entries


def _count(call: Call, counted: _Counters) -> None:
    if call.transfers:
        counted.p2p += 1
        counted.op += len(call.transfers)
    else:
        counted.collective += 1
        counted.op += 1


def _observe(history: RankRun, index: int, camera: Camera) -> _Times:
    offset = camera.clock_offset_ns
    n_done = len(history.done_ns)
    arrived_ns = history.arrived_ns[index] if index < len(history.arrived_ns) else None
    noticed = index < n_done - camera.n_unnoticed
    completed_ns = _noticed_at(history.done_ns[index], camera) + offset if noticed else None
    if index >= n_done and camera.abort_ns is not None:
        completed_ns = camera.abort_ns + offset
    started_ns = duration_ms = None
    if camera.timing and arrived_ns is not None:
        started_ns = _noticed_at(arrived_ns, camera) + offset
        if noticed:
            duration_ms = (history.done_ns[index] - arrived_ns) / 1e6
    return _Times(history.created_ns[index] + offset, started_ns, completed_ns, duration_ms)


def _noticed_at(event_ns: int, camera: Camera) -> int:
    """The watchdog polls ten times a second, at a phase of its own on every rank; a dump looks once more."""
    phase_ns = camera.rank * 7_919_000 % _POLL_NS
    return min(event_ns + _POLL_NS - (event_ns + phase_ns) % _POLL_NS, camera.dump_ns)


def _update_status(call: Call, counted: _Counters, times: _Times) -> None:
    # torch takes the number of the last work of any kind, so for transfers this is their own count.
    seq = counted.p2p if call.transfers else counted.collective
    counted.status["last_enqueued_collective"] = seq
    if times.started_ns is not None:
        counted.status["last_started_collective"] = seq
    if times.completed_ns is not None:
        counted.status["last_completed_collective"] = seq


def _entries_of(call: Call, counted: _Counters, times: _Times, camera: Camera) -> Iterator[dict[str, Any]]:
    if not call.transfers:
        yield _entry(call, counted, times, camera)
        return
    # The members of a batch have no events of their own: for ever scheduled, and the trailer tells how it went.
    seen = _Times(times.created_ns, None, None, None) if call.is_batch else times
    for transfer in call.transfers:
        entry = _entry(call, counted, seen, camera)
        entry["profiling_name"] = _transfer_name(call.group, camera.rank, transfer)
        entry["is_p2p"] = True
        yield entry
    if call.is_batch:
        trailer = _entry(call, counted, times, camera)
        for name in ("input_sizes", "input_dtypes", "output_sizes", "output_dtypes"):
            trailer[name] = []
        yield trailer


def _entry(call: Call, counted: _Counters, times: _Times, camera: Camera) -> dict[str, Any]:
    site = call.site
    thread_id = 7_000 + camera.rank * 16 + (site.thread_name != "python")
    entry: dict[str, Any] = {
        "frames": list(site.frames),
        "record_id": 0,
        "pg_id": 0,
        "process_group": (),
        "thread_name": site.thread_name,
        "thread_id": str(thread_id),
        "collective_seq_id": counted.collective,
        "p2p_seq_id": counted.p2p,
        "op_id": 0,
        "profiling_name": "nccl:" + call.op,
        "time_created_ns": times.created_ns,
        "input_sizes": _sizes(call.input_sizes),
        "input_dtypes": [call.dtype] * len(call.input_sizes),
        "output_sizes": _sizes(call.output_sizes),
        "output_dtypes": [call.dtype] * len(call.output_sizes),
        "state": times.state,
        "time_discovered_started_ns": times.started_ns,
        "time_discovered_completed_ns": times.completed_ns,
        "retired": times.completed_ns is not None,
        "timeout_ms": TIMEOUT_MS,
        "is_p2p": False,
    }
    if times.duration_ms is not None:
        entry["duration_ms"] = times.duration_ms
    return entry


def _sizes(shapes: tuple[Shape, ...]) -> list[list[int]]:
    return [list(shape) for shape in shapes]


def _transfer_name(group: Group, rank: int, transfer: Transfer) -> str:
    sender, peer = group.ranks.index(rank), group.ranks.index(transfer.peer)
    return f"nccl:send {sender}->{peer}" if transfer.is_send else f"nccl:recv {sender}<-{peer}"


def _downgrade(dump: dict[str, Any], version: str) -> None:
    """Take away and rename what older versions of the format did not have or called otherwise."""
    if version == "2.10":
        return
    comm_lib_version = dump.pop("comm_lib_version")
    if version == "2.7":
        dump["nccl_version"] = comm_lib_version
    gone: tuple[str, ...] = _NEW_IN_2_10
    if version in ("2.1", "1.0"):
        del dump["pg_status"]
        gone += _NEW_SINCE_2_1
    if version == "1.0":
        del dump["pg_config"]
        # Point-to-point traffic was not recorded at all then.
        dump["entries"] = [e for e in dump["entries"] if not e["is_p2p"] and e["profiling_name"] != "nccl:coalesced"]
        gone += _NEW_SINCE_1_0
    for entry in dump["entries"]:
        for name in gone:
            del entry[name]
        if version == "2.1":
            for name in ("input_dtypes", "output_dtypes"):
                entry[name] = [_SCALAR_TYPE[dtype] for dtype in entry[name]]
        elif version == "1.0":
            entry["seq_id"] = entry.pop("collective_seq_id")
