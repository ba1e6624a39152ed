"""Which process groups there are: identity is (name, ordered members), from whatever the dumps tell.

Yields the tables groups, group_members and group_progress, and fills group_id and peer in collectives.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

import msgspec
import numpy as np

from rankscope.analyze.hangs.view import ranks_cut
from rankscope.model.generations import Life, aligned, own_generations
from rankscope.model.numbers import integer, is_number
from rankscope.model.replicas import with_global_members
from rankscope.model.tables import MISSING, Array, Table, Text, Trace

Members = tuple[int, ...]
_Config = dict[tuple[int, str], Members]  # by rank and name
_Descs = dict[tuple[int, str], str]
_ORIGINS = ("config", "world", "name-hash", "use")
_SHA1 = re.compile(r"^[0-9a-f]{40}$")
# torch hashes the members with the number of groups it knows; no job has more groups of the same members than this.
_MAX_HASH_COUNTER = 4096


@dataclass(frozen=True)
class Group:
    name: str
    members: Members
    desc: str = field(compare=False)
    origin: str = field(compare=False)  # config, world, name-hash or use
    generation: int = 0  # how often a group of this name was destroyed and made again before, as far as is kept

    @property
    def inferred(self) -> bool:
        return self.origin == "use"


def resolve_groups(trace: Trace) -> dict[str, Table]:
    """The group tables, and collectives with group_id and global peers filled in."""
    calls = trace.table("collectives")
    pairs, pair_of_row = _rank_name_pairs(calls)
    config = _read_config(trace)
    descs = _descriptions(calls, trace)
    job = _Job(pairs, config, descs, _world_size(trace, config))
    group_of = {pair: job.group(*pair) for pair in pairs}
    for pair, members in config.items():  # groups that a rank registered but of which its ring kept nothing
        if pair[1] and pair not in group_of:
            group_of[pair] = Group(pair[1], members, descs.get(pair, ""), "config")
    generations = _generations(calls, [group_of[pair] for pair in pairs], pair_of_row)
    n_generations = int(generations.max(initial=0)) + 1
    lives, life_of_row = np.unique(pair_of_row * n_generations + generations, return_inverse=True)
    made = [replace(group_of[pairs[life // n_generations]], generation=life % n_generations) for life in lives.tolist()]
    # Ranks may know the members of one group from different sources: the best of them names it.
    best = sorted([*made, *group_of.values()], key=lambda group: (not group.desc, _ORIGINS.index(group.origin)))
    groups = sorted(dict.fromkeys(best), key=_group_order)
    number = {group: position for position, group in enumerate(groups)}
    group_ids = np.array([number[group] for group in made], np.int32)[life_of_row]
    peers = _global_peers(groups, group_ids, calls, trace)
    calls = calls.replaced({"group_id": group_ids, "peer": peers})
    status = _named_status(trace, group_of)
    return {
        "collectives": calls,
        "group_status": status,
        "groups": _group_table(groups),
        "group_members": _member_table(groups),
        "group_progress": _progress_table(groups, _group_counters(groups, calls, status, group_of), calls, trace),
    }


def _generations(calls: Table, group_of_pair: Sequence[Group], pair_of_row: Array) -> Array:
    """For each call, which generation of its group it was made in; 0 throughout where none was made again."""
    generation = own_generations(calls, calls.array("rank"))
    if not generation.any():
        return generation
    created = calls.array("created_ns")
    lives: dict[Group, dict[int, list[Life]]] = defaultdict(lambda: defaultdict(list))
    n_lives = int(generation.max()) + 1
    keys, inverse = np.unique(pair_of_row * n_lives + generation, return_inverse=True)
    first, last = np.full(len(keys), np.iinfo(np.int64).max), np.full(len(keys), MISSING, np.int64)
    np.minimum.at(first, inverse, created)
    np.maximum.at(last, inverse, created)
    for key, first_ns, last_ns in zip(keys.tolist(), first.tolist(), last.tolist(), strict=True):
        pair = key // n_lives
        lives[group_of_pair[pair]][pair].append(Life(first_ns, last_ns))
    places = {pair: numbers for those in lives.values() for pair, numbers in aligned(those).items()}
    result: Array = np.array([places[key // n_lives][key % n_lives] for key in keys.tolist()], np.int64)[inverse]
    return result


def _group_order(group: Group) -> tuple[int, str, Members, str, int]:
    return (
        integer(group.name, default=1 << 40),
        group.name,
        group.members,
        group.desc,
        group.generation,
    )


def _rank_name_pairs(calls: Table) -> tuple[list[tuple[int, str]], Array]:
    """The distinct (rank, group name) of the calls, and which of them each row has."""
    names = calls.text("group_name")
    keys = calls.array("rank").astype(np.int64) * max(len(names.values), 1) + names.codes
    distinct, inverse = np.unique(keys, return_inverse=True)
    n_names = max(len(names.values), 1)
    return [(int(key) // n_names, names.values[int(key) % n_names]) for key in distinct], inverse


def _read_config(trace: Trace) -> _Config:
    config: _Config = {}
    decoded: dict[str, Members] = {}
    table = with_global_members(trace.table("group_config"))
    for rank, name, members in zip(
        table.array("rank").tolist(), table.text("name").tolist(), table.text("members").tolist(), strict=True
    ):
        if members not in decoded:
            decoded[members] = tuple(msgspec.json.decode(members))
        if decoded[members]:
            config[rank, name] = decoded[members]
    return config


def _descriptions(calls: Table, trace: Trace) -> _Descs:
    config = trace.table("group_config")
    descs = dict(
        zip(
            zip(config.array("rank").tolist(), config.text("name").tolist(), strict=True),
            config.text("description").tolist(),
            strict=True,
        )
    )
    names, texts = calls.text("group_name"), calls.text("group_desc")
    keys = (calls.array("rank").astype(np.int64) * max(len(names.values), 1) + names.codes) * max(
        len(texts.values), 1
    ) + texts.codes
    _, rows = np.unique(keys, return_index=True)
    for row in rows.tolist():
        descs[int(calls.array("rank")[row]), names[row]] = texts[row]
    return {pair: "" if desc == "undefined" else desc for pair, desc in descs.items()}


def _world_size(trace: Trace, config: _Config) -> int:
    known = set(trace.table("ranks").array("rank").tolist())
    files = trace.table("files")
    known.update(files.array("rank")[~files.text("status").equals("ignored")].tolist())
    for members in set(config.values()):
        known.update(members)
    return max(known, default=-1) + 1


class _Job:
    """What all dumps together tell about the groups; each answer is made once, however many ranks ask for it."""

    def __init__(self, pairs: Iterable[tuple[int, str]], config: _Config, descs: _Descs, world: int) -> None:
        self._config, self._descs, self._world = config, descs, world
        self._users: dict[str, set[int]] = defaultdict(set)
        alike: dict[tuple[str, str], list[int]] = defaultdict(list)
        for rank, name in pairs:
            self._users[name].add(rank)
            alike[name, descs.get((rank, name), "")].append(rank)
        self._alike = {key: tuple(sorted(ranks)) for key, ranks in alike.items()}
        self._nameless = max((members for (_, key), members in config.items() if not key), key=len, default=())
        self._in_nameless = frozenset(self._nameless)
        self._told: dict[tuple[str, str], list[tuple[Members, frozenset[int]]]] = {}
        self._hashed: dict[tuple[str, str], Members | None] = {}

    def group(self, rank: int, name: str) -> Group:
        """Which group a rank means by a name."""
        desc = self._descs.get((rank, name), "")
        if (rank, name) in self._config:
            return Group(name, self._config[rank, name], desc, "config")
        is_world = desc == "default_pg" or (name == "0" and not desc)
        # gloo registers its groups before they have a name, and with a second one forgets the members
        if is_world and rank in self._in_nameless:
            return Group(name, self._nameless, desc, "world")
        for members, contained in self._members_told(name, desc):
            if rank in contained:
                return Group(name, members, desc, "config")
        users = self._alike[name, desc]
        if _SHA1.match(name):
            if (name, desc) not in self._hashed:
                self._hashed[name, desc] = _members_by_hash(name, users, self._world, self._users)
            hashed = self._hashed[name, desc]
            if hashed:
                return Group(name, hashed, desc, "name-hash")
        return Group(name, tuple(range(self._world)) if is_world else users, desc, "use")

    def _members_told(self, name: str, desc: str) -> list[tuple[Members, frozenset[int]]]:
        """The members as the dumps of other ranks that use the name tell them."""
        if (name, desc) not in self._told:
            lists = (self._config.get((other, name), ()) for other in self._alike[name, desc])
            self._told[name, desc] = [(members, frozenset(members)) for members in dict.fromkeys(lists)]
        return self._told[name, desc]


def _members_by_hash(name: str, users: Sequence[int], world: int, everyone: dict[str, set[int]]) -> Members | None:
    """torch names some groups by the sha1 of their members: a guess that gives the same hash is proven right."""
    import hashlib

    seen = set().union(*everyone.values())
    unseen = [rank for rank in range(world) if rank not in seen]
    guesses: list[Iterable[int]] = [users, *([*users, rank] for rank in unseen[:64]), [*users, *unseen]]
    for guess in guesses:
        members = sorted(set(guess))
        stem = "_".join(map(str, members)).encode()
        for counter in range(_MAX_HASH_COUNTER if guess is users else 256):
            if hashlib.sha1(stem + b"_%d" % counter, usedforsecurity=False).hexdigest() == name:
                return tuple(members)
    return None


def _global_peers(groups: Sequence[Group], group_ids: Array, calls: Table, trace: Trace) -> Array:
    """Dumps name the peer of a transfer by its position in the (unsorted) member list."""
    peers = calls.array("peer")
    rows = np.flatnonzero(peers >= 0)
    if not len(rows):
        return peers
    starts = np.cumsum([0, *(len(each.members) for each in groups)])
    members = np.array([rank for each in groups for rank in each.members] + [MISSING], np.int32)
    group = group_ids[rows]
    position = np.where(peers[rows] < np.diff(starts)[group], starts[:-1][group] + peers[rows], len(members) - 1)
    mapped = peers.copy()
    mapped[rows] = members[position]
    # Of members that only their calls show some may be absent, and then the positions are those of others. Nobody sends
    # to itself.
    is_wrong = np.zeros(len(groups), bool)
    is_wrong[group[(mapped[rows] == calls.array("rank")[rows]) | (mapped[rows] == MISSING)]] = True
    known = trace.table("ranks").array("rank")
    is_partial = len(np.unique(known)) <= int(known.max(initial=-1))
    is_inferred = np.array([each.inferred for each in groups], bool)
    mapped[rows[(is_inferred & (is_wrong | is_partial))[group]]] = MISSING
    return mapped


def _named_status(trace: Trace, group_of: dict[tuple[int, str], Group]) -> Table:
    """Counters are kept by process-local number; those whose calls were all evicted get their name by elimination."""
    status = trace.table("group_status")
    names = status.text("group_name").tolist()
    if all(names):
        return status
    unnamed: dict[int, list[tuple[int, int]]] = defaultdict(list)
    taken: dict[int, set[str]] = defaultdict(set)
    ranks, numbers = status.array("rank").tolist(), status.array("pg_id").tolist()
    for row, (rank, number, name) in enumerate(zip(ranks, numbers, names, strict=True)):
        if name:
            taken[rank].add(name)
        else:
            unnamed[rank].append((number, row))
    for rank, rows in unnamed.items():
        free = sorted((g for (r, n), g in group_of.items() if r == rank and n not in taken[rank]), key=_group_order)
        if len(free) == len(rows) and (len(free) == 1 or all(is_number(group.name) for group in free)):
            for (_, row), group in zip(sorted(rows), free, strict=True):
                names[row] = group.name
    return status.replaced({"group_name": Text.encode(names)})


def _group_table(groups: Sequence[Group]) -> Table:
    return Table.from_rows(
        "groups",
        [
            {
                "group_id": number,
                "name": group.name,
                "description": group.desc,
                "size": len(group.members),
                "origin": group.origin,
                "inferred": group.inferred,
                "generation": group.generation,
            }
            for number, group in enumerate(groups)
        ],
    )


def _member_table(groups: Sequence[Group]) -> Table:
    sizes = np.array([len(group.members) for group in groups], np.int64)
    return Table(
        "group_members",
        {
            "group_id": np.repeat(np.arange(len(groups), dtype=np.int32), sizes),
            "group_rank": np.array([index for group in groups for index in range(len(group.members))], np.int32),
            "rank": np.array([rank for group in groups for rank in group.members], np.int32),
        },
    )


Counters = dict[tuple[int, int], tuple[int, int]]  # by group and rank: newest enqueued, newest completed


def _group_counters(
    groups: Sequence[Group], calls: Table, status: Table, group_of: dict[tuple[int, str], Group]
) -> Counters:
    """Which group a process's counter is of: that of its newest call under the same pg_id, else that of its name."""
    keys = calls.array("rank").astype(np.int64) << 32 | calls.array("pg_id")
    known, newest = np.unique(keys[::-1], return_index=True)
    group_of_id = dict(zip(known.tolist(), calls.array("group_id")[::-1][newest].tolist(), strict=True))
    number = {group: position for position, group in enumerate(groups)}
    # In a group with transfers torch's counters hold the number of the last call of either kind: no frontier.
    mixed = set(calls.array("group_id")[calls.array("is_p2p")].tolist())
    counters: Counters = {}
    for row in status.rows():
        named = group_of.get((row["rank"], row["group_name"]))
        group_id = group_of_id.get(row["rank"] << 32 | row["pg_id"], number[named] if named is not None else MISSING)
        if group_id != MISSING and group_id not in mixed:
            counters[group_id, row["rank"]] = (row["last_enqueued"], row["last_completed"])
    return counters


def _progress_table(groups: Sequence[Group], counters: Counters, calls: Table, trace: Trace) -> Table:
    """Per member: the window of sequence numbers that its ring kept, widened by the counters that never wrap."""
    windows = _kept_windows(calls)
    ranks = trace.table("ranks")
    n_dropped = dict(zip(ranks.array("rank").tolist(), ranks.array("n_dropped").tolist(), strict=True))
    cut = ranks_cut(trace)
    rows = []
    made_before: set[tuple[str, Members, int]] = set()  # groups come in the order of their generations
    for group_id, group in enumerate(groups):
        for rank in group.members:
            first, last, n_kept = windows.get((group_id, rank), (MISSING, MISSING, 0))
            enqueued, completed = counters.get((group_id, rank), (MISSING, MISSING))
            has_counter = (group_id, rank) in counters
            # A cut dump has lost its newest calls: only its counters tell how far the rank came.
            # The newest calls are kept: whoever has some of an earlier generation has made none in this one.
            is_whole = n_kept > 0 or n_dropped.get(rank) == 0 or (group.name, group.members, rank) in made_before
            known = rank in n_dropped and (has_counter or (rank not in cut and is_whole))
            if n_kept:
                made_before.add((group.name, group.members, rank))
            rows.append((group_id, rank, first, max(last, enqueued), completed, n_kept, known))
    columns = np.array(rows, np.int64).reshape(-1, 7)
    names = ("group_id", "rank", "first_seq", "last_seq", "last_completed", "n_kept", "known")
    kinds = (np.int32, np.int32, np.int64, np.int64, np.int64, np.int64, np.bool_)
    return Table(
        "group_progress",
        {name: columns[:, index].astype(kind) for index, (name, kind) in enumerate(zip(names, kinds, strict=True))},
    )


def _kept_windows(calls: Table) -> dict[tuple[int, int], tuple[int, int, int]]:
    is_collective = np.flatnonzero(~calls.array("is_p2p") & ~calls.text("role").equals("member"))
    groups = calls.array("group_id")[is_collective].astype(np.int64)
    ranks, seqs = calls.array("rank")[is_collective], calls.array("seq")[is_collective]
    keys = groups << 32 | ranks
    order = np.argsort(keys, kind="stable")
    keys, seqs = keys[order], seqs[order]
    starts = np.flatnonzero(np.append(True, keys[1:] != keys[:-1])) if len(keys) else np.empty(0, np.int64)
    if not len(starts):
        return {}
    first, last = np.minimum.reduceat(seqs, starts), np.maximum.reduceat(seqs, starts)
    counts = np.diff(np.append(starts, len(keys)))
    return {
        (key >> 32, key & 0xFFFFFFFF): (low, high, count)
        for key, low, high, count in zip(
            keys[starts].tolist(), first.tolist(), last.tolist(), counts.tolist(), strict=True
        )
    }
