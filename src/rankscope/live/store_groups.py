"""Finds the process groups whose collectives are tracked in a job's store, by rankscope or by torch itself."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import msgspec

from rankscope.collect.desync.report import Group, GroupState, MemberState, read_group
from rankscope.collect.desync.values import StateKey, detail_key, end_key, parse_key, start_key
from rankscope.model.numbers import integer, is_number, rank_number
from rankscope.read.tcp_store import TcpStore

_WORLD = "0"  # what torch calls the group of all ranks
_DEFAULT = "default_pg"
_ATTEMPT = re.compile(r"(?:^|/)attempt_(\d{1,6})/")
# The addresses that gloo's ranks leave for each other tell how many they are.
_GLOO_RANK = re.compile(r"(?P<prefix>(?:.*/)?)cpu//0/(?P<rank>\d{1,7})")
# What torchrun's agents agree on, where the job shares their store: of each node its first rank, and the world's size.
_AGENTS_RANKS = re.compile(r"(?:.*/)?torchelastic/assigned_ranks/\d{1,6}")
_MAX_SIZE = 1 << 17
_PROBED_RANKS = 64
_PROBED_ATTEMPTS = 8
_MAX_SIZES = 1 << 16
_MAX_STATES = 1 << 20  # ranks of all groups together: more is no job's store


class Wanted(NamedTuple):
    prefix: str = ""  # only keys that begin so
    group: str = ""  # only groups of this name or description
    world_size: int = 0


class Frame(msgspec.Struct):
    name: str = ""
    filename: str = ""
    line: int = 0


class Entry(msgspec.Struct):
    """A call as the Flight Recorder lays it out. Anything else that a store holds is refused."""

    profiling_name: str
    collective_seq_id: int
    record_id: int = 0
    pg_id: int = 0
    process_group: list[str] = []
    p2p_seq_id: int = 0
    op_id: int = 0
    time_created_ns: int = 0
    input_sizes: list[list[int]] = []
    output_sizes: list[list[int]] = []
    input_dtypes: list[str] = []
    output_dtypes: list[str] = []
    state: str = "started"
    time_discovered_started_ns: int | None = None
    time_discovered_completed_ns: int | None = None
    retired: bool = False
    timeout_ms: int = 0
    is_p2p: bool = False
    thread_name: str = ""
    frames: list[Frame] = []


class Counters(msgspec.Struct):
    last_enqueued: int = -1
    last_completed: int = -1


class Members(msgspec.Struct):
    name: str
    desc: str = ""
    ranks: list[int] = []


class Detail(msgspec.Struct):
    """What rankscope's own tracker writes about one rank in addition to torch's two keys."""

    rank: int
    group: Members
    world_size: int = 0
    host: str = ""
    pid: int = 0
    entry: Entry | None = None
    status: Counters = msgspec.field(default_factory=Counters)
    now: list[Frame] = []  # where its main thread is
    time_ns: int = 0


@dataclass(frozen=True)
class TrackedGroup:
    state: GroupState
    backend: str  # of torch's own tracker; empty for rankscope's
    details: dict[int, Detail]  # by rank in the group
    is_size_known: bool  # else it has as many ranks as made a call: one beyond them that never did is not missed

    @property
    def group(self) -> Group:
        return self.state.group

    @cached_property
    def members(self) -> dict[int, MemberState]:
        """Those that made a call, by their rank in the group."""
        return {member.rank: member for member in self.state.members}


class Tracker(NamedTuple):
    """Where the keys of one group are: `<prefix><key>_<rank>_trace_start`."""

    prefix: str
    key: str

    @property
    def path(self) -> list[str]:
        return [part for part in self.prefix.split("/") if part]

    @property
    def is_torch(self) -> bool:
        """torch's own tracker names its keys after the backend, below the group and the device."""
        return self.key.isupper() and len(self.path) > 1 and self.path[-1] != self.key

    @property
    def group(self) -> str:
        return self.path[-2] if self.is_torch else self.key

    @property
    def of_group(self) -> str:
        """The prefix of the group itself."""
        if not self.is_torch or not self.prefix.endswith("/"):
            return self.prefix
        return self.prefix[: self.prefix.rstrip("/").rfind("/") + 1]

    @property
    def attempt(self) -> int:
        match = _ATTEMPT.search(self.prefix)
        return rank_number(match.group(1)) if match else -1


class Found(NamedTuple):
    groups: list[TrackedGroup]
    notes: list[str]
    n_keys: int


class _Source(NamedTuple):
    store: TcpStore
    listed: frozenset[str] | None  # all keys, where the server tells

    def fetch(self, keys: Iterable[str]) -> dict[str, bytes]:
        return self.store.fetch([key for key in keys if self.listed is None or key in self.listed])


def find_groups(store: TcpStore, wanted: Wanted) -> Found:
    """Every tracked group with the state of its ranks, in the order of their names."""
    listed = store.list_keys()
    source = _Source(store, None if listed is None else frozenset(listed))
    keys = [*_state_keys(listed if listed is not None else _probed(store, wanted), wanted.prefix)]
    n_keys = store.n_keys() if listed is None else len(listed)
    trackers = {Tracker(key.prefix, key.group) for key in keys}
    newest = max((tracker.attempt for tracker in trackers), default=-1)
    notes = []
    if any(tracker.attempt < newest for tracker in trackers):
        notes.append(f"the job was restarted: only attempt {newest} is shown")
    n_ranks: dict[Tracker, int] = {}
    for key in keys:
        tracker = Tracker(key.prefix, key.group)
        if tracker.attempt == newest and key.rank < _MAX_SIZE:
            n_ranks[tracker] = max(n_ranks.get(tracker, 0), key.rank + 1)
    sizes = _gloo_sizes(listed or ())
    if not wanted.world_size:
        wanted = wanted._replace(world_size=_agents_size(source, newest))
    groups: list[TrackedGroup] = []
    n_states = 0
    for tracker, n_seen in sorted(n_ranks.items()):
        recorded_size = sizes.get(tracker.of_group, 0)
        size = max(n_seen, recorded_size)
        n_states += size
        if n_states > _MAX_STATES:
            notes.append(f"{len(n_ranks) - len(groups)} groups are left out: the store has more than any job's")
            break
        groups.append(_read_tracker(source, tracker, _Size(size, bool(recorded_size)), wanted))
    chosen = [each for each in groups if wanted.group in ("", each.group.name, each.group.desc)]
    notes += _unseen(chosen)
    return Found(sorted(chosen, key=_order), notes, n_keys)


def _unseen(groups: Iterable[TrackedGroup]) -> Iterator[str]:
    """A report must not look complete where the last ranks may be missing from it."""
    for tracked in groups:
        group = tracked.group
        if not tracked.is_size_known:
            hint = ": give --world-size" if group.name == _WORLD else ""
            last = f"one after rank {group.size - 1} of it that never joined a collective cannot be seen{hint}"
            yield f"the store does not say how many ranks group {group.name} has; {last}"


def _order(tracked: TrackedGroup) -> tuple[int, str, str]:
    name = tracked.group.name
    return (integer(name) if is_number(name) else 1 << 40, name, tracked.group.key)


def _state_keys(keys: Iterable[str], prefix: str) -> Iterator[StateKey]:
    for key in keys:
        if key.lstrip("/").startswith(prefix.lstrip("/")):
            parsed = parse_key(key)
            if parsed:
                yield parsed


def _gloo_sizes(keys: Iterable[str]) -> dict[str, int]:
    sizes: dict[str, int] = {}
    for key in keys:
        match = _GLOO_RANK.fullmatch(key)
        if match and 0 <= rank_number(match["rank"]) < _MAX_SIZE:
            sizes[match["prefix"]] = max(sizes.get(match["prefix"], 0), rank_number(match["rank"]) + 1)
    return sizes


def _agents_size(source: _Source, attempt: int) -> int:
    """The number of ranks that torchrun's agents assigned; 0 if they do not say, or disagree."""
    keys = [key for key in source.listed or () if _AGENTS_RANKS.fullmatch(key)]
    if attempt > 0:  # the agents leave what they agreed on before: it may have been of another size
        return 0
    sizes = set()
    for value in source.fetch(sorted(keys)[:_PROBED_RANKS]).values():
        try:
            sizes.add(msgspec.json.decode(value, type=tuple[int, int, int, int])[1])
        except (msgspec.DecodeError, RecursionError):
            return 0
    return next(iter(sizes)) if len(sizes) == 1 and 0 < min(sizes) < _MAX_SIZE else 0


# Servers that do not list their keys are asked for those that torch's and rankscope's trackers are known to write


def _probed(store: TcpStore, wanted: Wanted) -> Iterator[str]:
    for path in dict.fromkeys(_known_paths(wanted)):
        first, step = 0, max(wanted.world_size, _PROBED_RANKS)
        while first < _MAX_SIZE:
            asked = [start_key(path, rank) for rank in range(first, first + step)]
            present = store.fetch(asked)
            yield from present
            if not present or wanted.world_size:
                break
            first += step


def _known_paths(wanted: Wanted) -> Iterator[str]:
    attempts = (f"/worker/attempt_{number}/" for number in reversed(range(_PROBED_ATTEMPTS)))
    name = wanted.group or _WORLD
    if wanted.prefix:
        yield from (f"{wanted.prefix}{name}", f"{wanted.prefix}NCCL")
    for root in ("", *attempts):
        for stem in (f"{root}{_DEFAULT}/{name}//", f"{root}{_DEFAULT}/{_WORLD}//{name}//", f"{root}{name}//"):
            yield from (f"{stem}{name}", f"{stem}cuda//NCCL")


# One group


class _Size(NamedTuple):
    n_ranks: int  # at least
    is_known: bool


def _read_tracker(source: _Source, tracker: Tracker, told_size: _Size, wanted: Wanted) -> TrackedGroup:
    path, size = tracker.prefix + tracker.key, told_size.n_ranks
    details: dict[int, Detail] = {}
    if not tracker.is_torch:
        details = _read_details(source, path, size)
    known_groups = [detail.group for detail in details.values() if detail.group.ranks]
    members = tuple(max(known_groups, key=lambda group: len(group.ranks)).ranks) if known_groups else ()
    desc = next((group.desc for group in known_groups if group.desc), "")
    is_world = tracker.group == _WORLD and (not members or members == tuple(range(len(members))))
    size = max([size, len(members), *(detail.world_size for detail in details.values() if is_world)])
    if is_world:
        size = min(max(size, wanted.world_size), _MAX_SIZE)
        members, desc = tuple(range(size)), desc or (_DEFAULT if _DEFAULT in tracker.path else "")
    is_size_known = told_size.is_known or bool(known_groups) or (is_world and wanted.world_size > 0)
    group = Group(tracker.group, desc, size, members if len(members) == size else (), path)
    values = source.fetch(make(path, rank) for rank in range(size) for make in (start_key, end_key))
    backend = tracker.key.lower() if tracker.is_torch else ""
    return TrackedGroup(read_group(_Values(values), group), backend, _of_group(details, group), is_size_known)


def _read_details(source: _Source, path: str, size: int) -> dict[int, Detail]:
    details: dict[int, Detail] = {}
    values = source.fetch(detail_key(path, rank) for rank in range(size))
    for rank in range(size):
        value = values.get(detail_key(path, rank))
        try:
            detail = msgspec.json.decode(value, type=Detail) if value else None
        except (msgspec.DecodeError, RecursionError):  # then torch's two keys speak alone
            continue
        if detail and _is_sane(detail):
            details[rank] = detail
    return details


def _is_sane(detail: Detail) -> bool:
    numbers = (*detail.group.ranks, detail.rank, detail.world_size)
    entry = detail.entry
    n_sizes = sum(map(len, (*entry.input_sizes, *entry.output_sizes))) if entry else 0
    return all(0 <= number < _MAX_SIZE for number in numbers) and n_sizes < _MAX_SIZES


def _of_group(details: dict[int, Detail], group: Group) -> dict[int, Detail]:
    """Those whose rank is the one that the group has at their place."""
    return {
        rank: detail for rank, detail in details.items() if rank < len(group.ranks) and group.ranks[rank] == detail.rank
    }


class _Values:
    """What was read of a store, as a store."""

    def __init__(self, values: dict[str, bytes]) -> None:
        self._values = values

    def check(self, keys: Sequence[str]) -> bool:
        return all(key in self._values for key in keys)

    def get(self, key: str) -> bytes:
        return self._values[key]
