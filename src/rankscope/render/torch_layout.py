"""The flat database in the layout that torchfrtrace writes: named rows in a pickle, for scripts that read its output.

What that program leaves open is filled in: tracebacks, the ranks on both sides of a mismatch by majority, transfers
between the two ranks that made them, and the merged sizes of coalesced collectives.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from functools import cached_property
from itertools import pairwise
from typing import Any

import msgspec
import numpy as np

from rankscope.model.call_text import count_elements, decode_shapes
from rankscope.model.tables import MISSING, Trace
from rankscope.render.torch_types import (
    Collective,
    Database,
    Group,
    MatchInfo,
    MatchState,
    Membership,
    NCCLCall,
    Traceback,
)

_COLUMNS = ("rank", "match_id", "group_id", "group_name", "group_desc", "seq", "p2p_seq", "record_id", "op", "name",
            "state", "status", "input_sizes", "output_sizes", "input_dtypes", "output_dtypes", "stack_id",
            "role", "is_p2p")  # fmt: skip
_VARIANT = ("op", "input_sizes", "output_sizes", "input_dtypes", "output_dtypes")


def torch_database(trace: Trace) -> Database:
    return _Builder(trace).build()


class _Builder:
    def __init__(self, trace: Trace) -> None:
        self._trace = trace
        calls = trace.table("collectives")
        self._calls: dict[str, list[Any]] = {name: calls.columns[name].tolist() for name in _COLUMNS}
        matches = trace.table("matches")
        self._matches = {name: matches.array(name).tolist() for name in ("is_p2p", "src", "dst", "n_signatures")}
        self._shapes: dict[str, list[list[int]]] = {}

    def build(self) -> Database:
        groups, memberships = self._groups()
        collectives: list[Collective] = []
        ncclcalls: list[NCCLCall] = []
        for match, rows in self._in_program_order():
            collective = self._collective(len(collectives), match, rows)
            collectives.append(collective)
            whose = collective.id if collective.pass_check else None
            ncclcalls += [self._ncclcall(len(ncclcalls) + index, whose, row) for index, row in enumerate(rows)]
        for row in self._unmatched():
            ncclcalls.append(self._ncclcall(len(ncclcalls), None, row))
        tracebacks = [Traceback(stack, _text(frames)) for stack, frames in self._frames.items()]
        return Database(groups, memberships, tracebacks, collectives, ncclcalls)

    # Groups

    def _groups(self) -> tuple[list[Group], list[Membership]]:
        """As the dumps describe them, rank by rank; then those known only from their calls."""
        config = self._trace.table("group_config")
        described = sorted(config.rows(), key=lambda row: int(row["rank"]))
        descs = {
            (row["name"], tuple(msgspec.json.decode(row["members"]))): row["description"]
            for row in reversed(described)
            if row["name"]
        }
        ordered = dict.fromkeys((row["name"], tuple(msgspec.json.decode(row["members"]))) for row in described)
        table = self._trace.table("groups")
        for number, (name, desc) in enumerate(
            zip(table.text("name").tolist(), table.text("description").tolist(), strict=True)
        ):
            key = (name, self._members[number])
            ordered.setdefault(key)
            descs.setdefault(key, desc)
        groups, memberships = [], []
        for name, members in ordered:
            if (name, members) in descs:
                guid = name + str(hash(frozenset(members)))  # as torch makes it: the hash of integers is the same
                groups.append(Group(guid, descs[name, members], len(members)))
                memberships += [Membership(guid, rank) for rank in members]
        return groups, memberships

    @cached_property
    def _members(self) -> list[tuple[int, ...]]:
        table = self._trace.table("group_members")
        ranks = table.array("rank").tolist()
        bounds = np.searchsorted(table.array("group_id"), np.arange(len(self._trace.table("groups")) + 1)).tolist()
        return [tuple(ranks[first:last]) for first, last in pairwise(bounds)]

    # Calls

    def _in_program_order(self) -> Iterator[tuple[int, list[int]]]:
        """Each match with its calls by rank, in the order in which the lowest of its ranks made them."""
        rank, match_id = self._calls["rank"], self._calls["match_id"]
        rows_of: dict[int, list[int]] = {}
        for row in sorted(range(len(rank)), key=lambda row: (rank[row], row)):
            if match_id[row] != MISSING:
                rows_of.setdefault(match_id[row], []).append(row)
        yield from rows_of.items()

    def _unmatched(self) -> list[int]:
        """Transfers without a known peer, and the trailers of batches; a coalesced collective is one call."""
        calls = self._calls
        return [
            row
            for row, match in enumerate(calls["match_id"])
            if match == MISSING and (calls["role"][row] != "member" or calls["is_p2p"][row])
        ]

    def _ncclcall(self, number: int, collective: int | None, row: int) -> NCCLCall:
        calls = self._calls
        name, rank, stack = calls["group_name"][row], calls["rank"][row], calls["stack_id"][row]
        sizes = self._sizes(calls["input_sizes"][row])
        return NCCLCall(number, collective, name, rank, stack, calls["name"][row], sizes)  # type: ignore[arg-type]

    def _sizes(self, encoded: str) -> list[list[int]]:
        if encoded not in self._shapes:  # one object for equal shapes: a pickle stores it once
            self._shapes[encoded] = decode_shapes(encoded)
        return self._shapes[encoded]

    @cached_property
    def _frames(self) -> dict[int, list[dict[str, Any]]]:
        """The frames of every stack that a call has, innermost first."""
        stacks, frames = self._trace.table("stacks"), self._trace.table("frames")
        made = [{"name": row["function"], "filename": row["file"], "line": row["line"]} for row in frames.rows()]
        frames_by_stack: dict[int, list[dict[str, Any]]] = {
            stack: [] for stack in sorted(set(self._calls["stack_id"])) if stack != MISSING
        }
        for stack, frame in zip(stacks.array("stack_id").tolist(), stacks.array("frame_id").tolist(), strict=True):
            if stack in frames_by_stack:
                frames_by_stack[stack].append(made[frame])
        return frames_by_stack

    # Collectives

    def _collective(self, number: int, match: int, rows: Sequence[int]) -> Collective:
        speaker = self._speaker(match, rows)
        collective = self._row_of(number, speaker, self._expected(match, speaker))
        missing = self._missing(match, rows)
        odd = self._odd(match, speaker, rows)
        totals = self._unbalanced(rows) if not missing else None
        if totals:
            odd = {rows[0]: MatchInfo(MatchState.SIZE_OR_SYNTAX_MISMATCH)}
            collective = collective._replace(input_numel=totals[0], output_numel=totals[1])
        if missing:
            collective = collective._replace(pass_check=False, missing_ranks=missing)
        if odd:
            others = {
                self._calls["rank"][row]: self._row_of(number, row, collective.expected_ranks)._replace(
                    pass_check=False, type_of_mismatch=how
                )
                for row, how in odd.items()
            }
            collective = collective._replace(pass_check=False, mismatch_collectives=others)
        return collective

    def _row_of(self, number: int, row: int, expected: set[int]) -> Collective:
        calls = self._calls
        name, desc = calls["group_name"][row], calls["group_desc"][row]
        return Collective(
            id=number,
            group_id=name,
            pass_check=True,
            collective_seq_id=calls["seq"][row],
            p2p_seq_id=calls["p2p_seq"][row],
            record_id=calls["record_id"][row],
            pg_desc=f"{name}:{desc}" if desc != "undefined" else name,
            collective_name=calls["name"][row],
            input_sizes=self._sizes(calls["input_sizes"][row]),
            output_sizes=self._sizes(calls["output_sizes"][row]),
            expected_ranks=expected,
            collective_state=calls["state"][row],
            collective_frames=self._frames.get(calls["stack_id"][row], []),
        )

    def _speaker(self, match: int, rows: Sequence[int]) -> int:
        """The call that stands for all: the first that is like most of the others."""
        if self._matches["n_signatures"][match] == 1:
            return next((row for row in rows if self._calls["status"][row] == "done"), rows[0])
        variants = {row: tuple(self._calls[name][row] for name in _VARIANT) for row in rows}
        [(usual, _)] = Counter(variants.values()).most_common(1)
        return next(row for row in rows if variants[row] == usual)

    def _expected(self, match: int, speaker: int) -> set[int]:
        if self._matches["is_p2p"][match]:
            return {self._matches["src"][match], self._matches["dst"][match]}
        return set(self._members[self._calls["group_id"][speaker]])

    @cached_property
    def _last_joined(self) -> dict[int, dict[int, int]]:
        """Per group, how far each rank came, where known."""
        table = self._trace.table("group_progress")
        names = ("group_id", "rank", "last_seq", "known")
        last_by_group: dict[int, dict[int, int]] = {}
        for group, rank, last, known in zip(*(table.array(name).tolist() for name in names), strict=True):
            if known:
                last_by_group.setdefault(group, {})[rank] = last
        return last_by_group

    def _missing(self, match: int, rows: Sequence[int]) -> set[int]:
        calls, first = self._calls, rows[0]
        if self._matches["is_p2p"][match]:
            sides = {self._matches["src"][match], self._matches["dst"][match]}
            has_ended = any(calls["status"][row] == "done" for row in rows)  # the other ring has dropped its side
            return set() if has_ended else sides - {calls["rank"][row] for row in rows}
        seq = calls["seq"][first]
        return {rank for rank, last in self._last_joined.get(calls["group_id"][first], {}).items() if last < seq}

    def _odd(self, match: int, speaker: int, rows: Sequence[int]) -> dict[int, MatchInfo]:
        """The calls that do not fit the speaker's, and how."""
        differ = call_mismatch if self._matches["n_signatures"][match] > 1 else state_mismatch
        differences = {row: differ(self._call(speaker), self._call(row)) for row in rows if row != speaker}
        return {row: how for row, how in differences.items() if how is not None}

    def _call(self, row: int) -> dict[str, Any]:
        return {name: self._calls[name][row] for name in (*_VARIANT, "name", "state", "status")}

    def _unbalanced(self, rows: Sequence[int]) -> tuple[int, int] | None:
        """The totals of an all_to_all whose ranks send something else than they receive."""
        calls = self._calls
        is_whole = len(rows) == len(self._members[calls["group_id"][rows[0]]])
        if not is_whole or {calls["op"][row] for row in rows} != {"all_to_all"}:
            return None
        sides = (calls["input_sizes"], calls["output_sizes"])
        sent, received = (sum(count_elements(self._sizes(side[row])) for row in rows) for side in sides)
        return (sent, received) if sent and received and sent != received else None


def _text(frames: Sequence[dict[str, Any]]) -> str:
    return "\n".join(f"{frame['name']} at {frame['filename']}:{frame['line']}" for frame in frames)


# Mismatches


Call = dict[str, Any]
_TRANSFERS = ("send", "recv")


def call_mismatch(expected: Call, actual: Call) -> MatchInfo | None:
    """None where the two fit: both as they were recorded, the expected one being what most ranks called."""
    if expected["op"] in _TRANSFERS:
        return None if _fits_transfer(expected, actual) else MatchInfo(MatchState.SIZE_OR_SYNTAX_MISMATCH)
    if expected["op"] != actual["op"]:
        kinds = f"'{_kind(expected)}' does not match found collective type: '{_kind(actual)}'"
        return MatchInfo(MatchState.COLLECTIVE_TYPE_MISMATCH, f"Expected collective type: {kinds}")
    size = _size_mismatch(expected, actual)
    if size:
        return MatchInfo(MatchState.SIZE_OR_SYNTAX_MISMATCH, size)
    dtype = _dtype_mismatch(expected, actual)
    if dtype:
        return MatchInfo(MatchState.COLLECTIVE_DTYPE_MISMATCH, dtype)
    return state_mismatch(expected, actual)


def state_mismatch(expected: Call, actual: Call) -> MatchInfo | None:
    """A call that did not end although it did for others; what a rank has only not noticed yet counts as ended."""
    if expected["status"] == "done" != actual["status"]:
        states = f"'{expected['state']}' does not match found state: '{actual['state']}'"
        return MatchInfo(MatchState.COLLECTIVE_STATE_MISMATCH, f"Expected state: {states}")
    return None


def _kind(call: Call) -> str:
    return str(call["name"]).rpartition(":")[2]


def _fits_transfer(one: Call, other: Call) -> bool:
    moved = [
        {count_elements(decode_shapes(call[side])) for side in ("input_sizes", "output_sizes")} - {0}
        for call in (one, other)
    ]
    return moved[0] == moved[1] and not _dtype_mismatch(one, other)


def _size_mismatch(expected: Call, actual: Call) -> str:
    op = expected["op"]
    for side, free in (("input", "scatter"), ("output", "gather")):
        mine, theirs = (decode_shapes(call[f"{side}_sizes"]) for call in (expected, actual))
        if op not in ("all_to_all", free) and mine != theirs:
            return f"Expected {side} sizes: '{mine}' does not match found {side} sizes: '{theirs}'"
    return ""


def _dtype_mismatch(expected: Call, actual: Call) -> str:
    """A call of a layout without types fits any."""
    kinds = [
        set(msgspec.json.decode(call[f"{side}_dtypes"])) for call in (expected, actual) for side in ("input", "output")
    ]
    mine, theirs = (kinds[0] or kinds[1]), (kinds[2] or kinds[3])
    if not mine or not theirs or mine == theirs:
        return ""
    return f"Expected dtypes: '{kinds[0]}' does not match found dtype: '{kinds[1]}/{kinds[2]}/{kinds[3]}'"
