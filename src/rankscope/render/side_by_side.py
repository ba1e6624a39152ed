"""Every call of every rank, side by side: one row per logical call, one column per rank or per set of equal ranks.

Groups that play the same part (the 32 tensor-parallel pairs of a job) share their rows, so that ranks which do the
same in different groups become one column, and a rank that differs gets its own column.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from itertools import chain
from typing import NamedTuple

import numpy as np

from rankscope.model.call_text import describe_shapes, describe_types
from rankscope.model.finding import Comparison, Side, count_noun, format_ranks, ranks_phrase
from rankscope.model.tables import MISSING, Array, Table, Trace
from rankscope.render.compare import comparison_lines

_COLLECTIVE, _TRANSFER, _UNMATCHED = range(3)
_SHAPE_TEXTS = ("input_sizes", "output_sizes", "input_dtypes", "output_dtypes")
_JUDGED = ("op", "status")  # what rankscope calls a call and its end
_AS_RECORDED = ("name", "state")  # what torch does

Part = frozenset[tuple[str, int]]
Words = tuple[str, str]  # the columns that name a call and say how it ended


class Family(NamedTuple):
    """Groups of one description and one part in the pipeline, of which no rank is in two."""

    label: str
    names: tuple[str, ...]
    sizes: tuple[int, ...]


class Row(NamedTuple):
    family: int
    label: str


class SideBySide(NamedTuple):
    families: tuple[Family, ...]
    rows: tuple[Row, ...]
    columns: tuple[tuple[int, ...], ...]
    """The ranks of each column."""
    cells: tuple[tuple[str, ...], ...]
    """Column by column; empty where the rank has no record of the call."""


def place_side_by_side(
    trace: Trace, calls: Array, *, with_stacks: bool = False, as_recorded: bool = False
) -> SideBySide:
    """Lines up the given rows of `collectives`, on request with torch's own names and states of the calls."""
    families, family_of_group = group_families(trace)
    if not len(calls):
        return SideBySide(families, (), (), ())
    family = family_of_group[trace.table("collectives").array("group_id")[calls]]
    keys, examples, kinds, numbers = _row_keys(trace, calls, family)
    position = _program_order(trace, calls, keys, len(examples))
    order = np.argsort(position)
    rows = tuple(
        Row(int(family[at]), f"p2p {numbers[at]}" if kinds[at] else str(numbers[at])) for at in examples[order].tolist()
    )
    words = _AS_RECORDED if as_recorded else _JUDGED
    codes, texts = _cell_codes(trace, calls, words, with_stacks=with_stacks)
    columns = _equal_ranks(trace.table("collectives").array("rank")[calls], position[keys], codes)
    cells = []
    for ranks, (places, cell_codes) in columns:
        column = [""] * len(rows)
        for at, code in zip(places.tolist(), cell_codes.tolist(), strict=True):
            column[at] = texts.of(code, ranks)
        cells.append(tuple(column))
    return SideBySide(families, rows, tuple(ranks for ranks, _ in columns), tuple(cells))


def side_by_side_lines(table: SideBySide, width: int | None) -> Iterator[str]:
    """The groups, then the table; columns that do not fit beside the others follow below."""
    yield from family_lines(table.families, {row.family for row in table.rows})
    yield ""
    n_label = max((len(table.families[row.family].label) for row in table.rows), default=0)
    keys = tuple(f"{table.families[row.family].label:{n_label}}  {row.label}" for row in table.rows)
    sides = tuple(
        Side(ranks_phrase(ranks), ranks, cells) for ranks, cells in zip(table.columns, table.cells, strict=True)
    )
    heading = f"{'group':{n_label}}  seq"
    for text, _ in comparison_lines(Comparison(heading, keys, sides), width):
        yield text


def family_lines(families: Sequence[Family], used: Collection[int]) -> Iterator[str]:
    for number, family in enumerate(families):
        if number not in used:
            continue
        sizes = format_ranks(set(family.sizes))
        if len(family.names) == 1:
            yield f"group {family.label}: {family.names[0]} ({count_noun(family.sizes[0], 'rank')})"
        else:
            named = ", ".join(family.names[:3]) + (", ..." if len(family.names) > 3 else "")
            yield f"group {family.label}: {count_noun(len(family.names), 'group')} of {sizes} ranks ({named})"


def group_families(trace: Trace) -> tuple[tuple[Family, ...], Array]:
    """The families, and the family of each group."""
    groups = trace.table("groups")
    names, descs = groups.text("name").tolist(), groups.text("description").tolist()
    sizes = groups.array("size").tolist()
    labeled_groups: list[tuple[str, list[int]]] = []
    by_desc: dict[str, dict[Part, list[int]]] = {}
    members, parts = _members_and_parts(trace)
    for group, desc in enumerate(descs):
        part = frozenset(position for rank in members[group] for position in parts.get(rank, ()))
        by_desc.setdefault(desc, {}).setdefault(part, []).append(group)
    for desc, by_part in by_desc.items():
        for alike in by_part.values():
            ranks = [rank for group in alike for rank in members[group]]
            if desc and len(ranks) == len(set(ranks)):
                labeled_groups.append((desc, alike))
            else:
                labeled_groups += [(f"{desc} {names[group]}".strip(), [group]) for group in alike]
    family_of_group = np.zeros(len(names), np.int64)
    for number, (_, alike) in enumerate(labeled_groups):
        family_of_group[alike] = number
    labels = _told_apart([label for label, _ in labeled_groups])
    families = (
        Family(label, tuple(names[group] for group in alike), tuple(sizes[group] for group in alike))
        for label, (_, alike) in zip(labels, labeled_groups, strict=True)
    )
    return tuple(families), family_of_group


def _told_apart(labels: Sequence[str]) -> list[str]:
    """tp:0, tp:1 for two families that are both called tp."""
    counts, seen = Counter(labels), Counter[str]()
    distinct = []
    for label in labels:
        distinct.append(f"{label}:{seen[label]}" if counts[label] > 1 else label)
        seen[label] += 1
    return distinct


def _members_and_parts(trace: Trace) -> tuple[list[list[int]], dict[int, set[tuple[str, int]]]]:
    """The ranks of each group, and each rank's positions in groups that send and receive: its pipeline stage.

    Stages call the same things at different points of the program, so their groups cannot share rows.
    """
    groups, table, calls = trace.table("groups"), trace.table("group_members"), trace.table("collectives")
    sending = set(calls.array("group_id")[calls.array("is_p2p")].tolist())
    members: list[list[int]] = [[] for _ in range(len(groups))]
    parts: dict[int, set[tuple[str, int]]] = {}
    columns = (table.array(name).tolist() for name in ("group_id", "group_rank", "rank"))
    for group, position, rank in zip(*columns, strict=True):
        members[group].append(rank)
        if group in sending:
            parts.setdefault(rank, set()).add((groups.text("description")[group], position))
    return members, parts


# Which calls stand in one row


def _row_keys(trace: Trace, calls: Array, family: Array) -> tuple[Array, Array, Array, Array]:
    """The key of each call, one call of each key, and for each call its kind and the number that people know it by."""
    table, matches = trace.table("collectives"), trace.table("matches")
    rank, group, match = (table.array(name)[calls] for name in ("rank", "group_id", "match_id"))
    is_p2p = table.array("is_p2p")[calls]
    kind = np.where(is_p2p, np.where(match == MISSING, _UNMATCHED, _TRANSFER), _COLLECTIVE)
    number = np.where(is_p2p, table.array("p2p_seq")[calls], table.array("seq")[calls])
    pair = np.where(kind == _UNMATCHED, _group_ranks(trace, group, rank), 0)
    moved = np.flatnonzero(kind == _TRANSFER)
    if len(moved):
        of_match = match[moved]
        number[moved] = matches.array("seq")[of_match]
        src, dst = (_group_ranks(trace, group[moved], matches.array(side)[of_match]) for side in ("src", "dst"))
        pair[moved] = (src << 24) + dst
    base = _combined([family, kind, number, pair])
    keys = _combined([base, _occurrence(rank, base)])
    _, examples = np.unique(keys, return_index=True)
    return keys, examples, kind, number


def _combined(columns: Sequence[Array]) -> Array:
    """One dense code for each distinct combination."""
    codes = np.zeros(len(columns[0]), np.int64)
    for column in columns:
        _, codes_of_column = np.unique(column, return_inverse=True)
        _, codes = np.unique(codes * (int(codes_of_column.max(initial=0)) + 1) + codes_of_column, return_inverse=True)
    return codes


def _occurrence(rank: Array, key: Array) -> Array:
    """0, 1, ... for the calls of one rank that share a key: the members of a coalesced group do."""
    order = np.lexsort((np.arange(len(key)), key, rank))
    is_new = np.append(True, (rank[order][1:] != rank[order][:-1]) | (key[order][1:] != key[order][:-1]))
    position = np.arange(len(key))
    result = np.empty(len(key), np.int64)
    result[order] = position - np.maximum.accumulate(np.where(is_new, position, 0))
    return result


def _group_ranks(trace: Trace, group: Array, rank: Array) -> Array:
    """Positions in the group; MISSING for a rank that is no member."""
    members = trace.table("group_members")
    known = members.array("group_id").astype(np.int64) << 32 | members.array("rank")
    order = np.argsort(known)
    wanted = group.astype(np.int64) << 32 | rank
    at = np.minimum(np.searchsorted(known[order], wanted), len(known) - 1)
    return np.where(known[order][at] == wanted, members.array("group_rank")[order][at], MISSING).astype(np.int64)


# In which order the rows stand


def _program_order(trace: Trace, calls: Array, keys: Array, n_keys: int) -> Array:
    """The place of each key: after whatever any rank called before it, and by time where that leaves a choice."""
    table = trace.table("collectives")
    order = np.lexsort((calls, table.array("rank")[calls]))
    rank, key = table.array("rank")[calls[order]], keys[order]
    before, after = _steps(rank, table.text("role").equals("member")[calls[order]])
    edges = np.unique(key[before] * n_keys + key[after])
    time = np.full(n_keys, np.iinfo(np.int64).max)
    np.minimum.at(time, key, table.array("created_ns")[calls[order]] - _clock_offsets(trace, rank))
    return _sorted_topologically(edges // n_keys, edges % n_keys, time)


def _steps(rank: Array, is_member: Array) -> tuple[Array, Array]:
    """Which call follows which, by position. The members of a batch are made at once: no order holds among them."""
    position = np.arange(len(rank))
    earlier = np.maximum.accumulate(np.where(is_member, MISSING, position))
    earlier = np.append(MISSING, earlier[:-1])
    later = np.minimum.accumulate(np.where(is_member, len(rank), position)[::-1])[::-1]
    into = np.flatnonzero((earlier != MISSING) & (rank[earlier] == rank))
    members = np.flatnonzero(is_member & (later < len(rank)))
    members = members[rank[later[members]] == rank[members]]
    return np.concatenate((earlier[into], members)), np.concatenate((into, later[members]))


def _clock_offsets(trace: Trace, rank: Array) -> Array:
    ranks = trace.table("ranks")
    offsets = np.zeros(int(max(ranks.array("rank").max(initial=0), rank.max(initial=0))) + 1, np.int64)
    offsets[ranks.array("rank")] = ranks.array("clock_offset_ns")
    return offsets[rank]


def _sorted_topologically(before: Array, after: Array, time: Array) -> Array:
    """The place of each node. Ranks that called in opposite orders make a cycle: its earliest node then goes first."""
    times: list[int] = time.tolist()
    n_nodes = len(times)
    followers: list[list[int]] = [[] for _ in times]
    leaders: list[list[int]] = [[] for _ in times]
    for one, other in zip(before.tolist(), after.tolist(), strict=True):
        followers[one].append(other)
        leaders[other].append(one)
    n_pending = [len(nodes) for nodes in leaders]
    ready = [(times[node], node) for node in range(n_nodes) if not n_pending[node]]
    heapq.heapify(ready)
    by_time = iter(np.argsort(time, kind="stable").tolist())
    sorted_position = [MISSING] * n_nodes
    for position in range(n_nodes):
        if not ready:
            blocked = next(node for node in by_time if sorted_position[node] == MISSING)
            cycle = _cycle_behind(blocked, leaders, sorted_position)
            ready.append(min((times[node], node) for node in cycle))
            by_time = chain([blocked], by_time)
        _, node = heapq.heappop(ready)
        sorted_position[node] = position
        for follower in followers[node]:
            n_pending[follower] -= 1
            if not n_pending[follower] and sorted_position[follower] == MISSING:
                heapq.heappush(ready, (times[follower], follower))
    return np.array(sorted_position, np.int64)


def _cycle_behind(node: int, leaders: Sequence[Sequence[int]], position: Sequence[int]) -> list[int]:
    """The nodes that wait for each other, found by going back from one that waits."""
    path: dict[int, int] = {}
    while node not in path:
        path[node] = len(path)
        node = next(leader for leader in leaders[node] if position[leader] == MISSING)
    return list(path)[path[node] :]


# What stands in the cells


class CellTexts:
    """The words for each cell code; made once per code, as calls repeat."""

    def __init__(self, table: Table, examples: Array, words: Words, stacks: Collection[int]) -> None:
        self._table = table
        self._words = words
        self._examples = examples.tolist()
        self._stacks = stacks  # those whose numbers are to be shown
        self._made: dict[tuple[int, int], str] = {}

    def of(self, code: int, ranks: tuple[int, ...]) -> str:
        """In a column of several ranks the other side of a transfer is shown by its distance."""
        whose = ranks[0] if len(ranks) == 1 else MISSING
        if (code, whose) not in self._made:
            self._made[code, whose] = self._make(self._examples[code], whose)
        return self._made[code, whose]

    def _make(self, row: int, whose: int) -> str:
        called, ending = (self._table.text(name)[row] for name in self._words)
        inputs, outputs, in_types, out_types = (self._table.text(name)[row] for name in _SHAPE_TEXTS)
        if self._words == _JUDGED and self._table.array("status_inferred")[row]:
            ending += " (inferred)"
        stack = int(self._table.array("stack_id")[row])
        parts = (
            called,
            self._peer(row, self._table.text("op")[row], whose),
            describe_shapes(inputs, outputs),
            describe_types(in_types, out_types),
            ending,
            f"#{stack}" if stack in self._stacks else "",
        )
        return " ".join(filter(None, parts))

    def _peer(self, row: int, op: str, whose: int) -> str:
        peer, rank = int(self._table.array("peer")[row]), int(self._table.array("rank")[row])
        if peer == MISSING:
            return ""
        direction = "to" if op == "send" else "from"
        return f"{direction} {whose + peer - rank}" if whose != MISSING else f"{direction} rank{peer - rank:+d}"


def _cell_codes(trace: Trace, calls: Array, words: Words, *, with_stacks: bool) -> tuple[Array, CellTexts]:
    """Equal codes for calls that read the same, seen from their own rank."""
    table = trace.table("collectives")
    peer, rank = table.array("peer")[calls].astype(np.int64), table.array("rank")[calls]
    columns: list[Array] = [table.text(name).codes[calls] for name in (*words, "op", *_SHAPE_TEXTS)]
    if words == _JUDGED:
        columns.append(table.array("status_inferred")[calls].astype(np.int64))
    columns.append(np.where(peer == MISSING, 0, (peer - rank) * 2 + 1))
    if with_stacks:
        columns.append(table.array("stack_id")[calls])
    codes = _combined(columns)
    _, examples = np.unique(codes, return_index=True)
    # A dump without stacks gives its calls the stack without frames, which is not worth a number.
    stacks = set(trace.table("stacks").array("stack_id").tolist()) if with_stacks else set()
    return codes, CellTexts(table, calls[examples], words, stacks)


def _equal_ranks(rank: Array, position: Array, codes: Array) -> list[tuple[tuple[int, ...], tuple[Array, Array]]]:
    """Ranks with the same cells in the same rows, with these rows and cells; in the order of their first rank."""
    order = np.lexsort((position, rank))
    rank, position, codes = rank[order], position[order], codes[order]
    starts = np.flatnonzero(np.append(True, rank[1:] != rank[:-1]))
    ranks_by_content: dict[bytes, tuple[list[int], tuple[Array, Array]]] = {}
    for start, end in zip(starts.tolist(), [*starts[1:].tolist(), len(rank)], strict=True):
        content = position[start:end], codes[start:end]
        key = content[0].tobytes() + b"|" + content[1].tobytes()
        ranks_by_content.setdefault(key, ([], content))[0].append(int(rank[start]))
    return [(tuple(ranks), content) for ranks, content in ranks_by_content.values()]
