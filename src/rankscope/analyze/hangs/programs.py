"""Compares what ranks did as sequences of calls: what follows a call, where a rank leaves the common path, and how.

A token stands for one call of the program (group role, operation, sizes, type, user's lines). Ranks of equal role run
the same sequence of tokens, so a reference for one rank is found among its siblings or in its own earlier steps.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import islice
from operator import eq
from typing import Any, Literal

import numpy as np

from rankscope.analyze.derived import derived
from rankscope.analyze.hangs.shifts import ALL, Shift, explain_shift, since_mark
from rankscope.analyze.hangs.view import JobView
from rankscope.model.tables import Array, Trace

Basis = Literal["siblings", "history"]
_CONTEXT = 6  # calls before a divergence that must agree for two ranks to count as running the same program
_LOOK_AHEAD = 64  # calls after a divergence that are looked into for one
_COMPARED = 1024  # calls after a divergence that are compared
_SHARED_PAST = 512  # calls of common past by which the step before is told from an earlier layer
_MAX_STEPS = 4  # earlier steps whose continuation is compared
_ENOUGH_SIBLINGS = 8  # ranks of the same role that are asked
_ALIKE = (12, 8, 6, 4, 3, 2)  # calls of common past that make an earlier call a precedent: as many as any has
_MAX_PRECEDENTS = 64
_MEMORY = 4096  # calls of its own past that a rank is compared with
_MAX_CANDIDATES = 64
_HASH_FACTOR = np.uint64(0x9E3779B97F4A7C15)


@dataclass(frozen=True)
class Reference:
    """What the program does from some call on, first the call itself, and who says so."""

    tokens: tuple[int, ...]
    rows: tuple[int, ...]
    basis: Basis
    period: int | None = None  # calls after which it repeats itself


@dataclass(frozen=True)
class Departure:
    """The call at which a rank left the common path, what was expected there, and how it fits again."""

    row: int
    expected: Reference
    shift: Shift
    is_seen_beside: bool = False  # a rank of the same role shows where it left the path, whoever shows the rest


class Programs:
    """All ranks' calls in program order as tokens."""

    def __init__(self, trace: Trace) -> None:
        self.view = derived(trace, JobView)
        view = self.view
        groups = trace.table("groups")
        classes: dict[tuple[str, int], int] = {}
        sizes = groups.array("size").tolist()
        descs = groups.text("description").tolist()
        # Groups without a description are siblings only of themselves: nothing says that they play the same role.
        self.group_class = np.array(
            [
                classes.setdefault((desc or f"#{number}", size), len(classes))
                for number, (desc, size) in enumerate(zip(descs, sizes, strict=True))
            ]
            or [0],
            np.int64,
        )
        row_class = self.group_class[view.group]
        self.row_class = row_class
        self._generation = np.append(groups.array("generation").astype(np.int64), 0)
        # Recoded to stay small: the class times the token would overflow on jobs with many groups and sites.
        _, token = np.unique(_with_neighbors(view), return_inverse=True)
        self._past_departures: dict[int, Departure | None] = {}
        self._beside: dict[int, Departure | Literal["same"] | None] = {}
        self.token: Array = token.astype(np.int64) * (int(row_class.max(initial=0)) + 1) + row_class

    @cached_property
    def _position(self) -> Array:
        """Row -> its place in view.program."""
        places = np.full(len(self.view.calls), -1, np.int64)
        places[self.view.program] = np.arange(len(self.view.program))
        return places

    @cached_property
    def _collectives_by_key(self) -> tuple[Array, Array]:
        view = self.view
        rows = np.flatnonzero(~view.is_p2p & ~view.is_member)
        keys = self._keys(rows)
        order = np.argsort(keys, kind="stable")
        return keys[order], rows[order]

    def rows_at(self, group: int, seq: int) -> Array:
        """Calls with this sequence number in the group and in its siblings (same description and size)."""
        keys, rows = self._collectives_by_key
        key = self._key(int(self._generation[group]), int(self.group_class[group]), seq)
        return rows[np.searchsorted(keys, key, "left") : np.searchsorted(keys, key, "right")]

    def following(self, row: int, limit: int = _COMPARED) -> Array:
        """The row and the calls that its rank made after it."""
        start = int(self._position[row])
        _, end = self.view._program_bounds[int(self.view.rank[row])]
        return self.view.program[start : min(start + limit, end)]

    def preceding(self, row: int, limit: int = _CONTEXT) -> Array:
        """The calls that the rank made before it, oldest first."""
        end = int(self._position[row])
        start, _ = self.view._program_bounds[int(self.view.rank[row])]
        return self.view.program[max(start, end - limit) : end]

    def same_context(self, row: int, other: int) -> bool:
        """True when the two ranks' calls right before these agree, as far as both kept them."""
        mine, theirs = self.token[self.preceding(row)], self.token[self.preceding(other)]
        n_both = min(len(mine), len(theirs))
        return bool(np.array_equal(mine[len(mine) - n_both :], theirs[len(theirs) - n_both :]))

    def explain(self, row: int, normal_rows: Sequence[int]) -> Departure | None:
        """How the rank left the common path, by the time it made `row` where others made the calls `normal_rows`.

        Ranks of the same role that went on are asked first, then the earlier steps of the rank itself and of its peer.
        """
        peer = normal_rows[0]
        is_own = {other: bool(self.view.group[other] == self.view.group[row]) for other in normal_rows}
        # Members of the same group play the same role more often than those of its siblings.
        ahead = [
            *self._furthest(row, [other for other in normal_rows if is_own[other]]),
            *self._furthest(row, [other for other in normal_rows if not is_own[other]]),
        ]
        wanted = int(self.token[peer])
        repeated = [*self._same_place(row, wanted), *self._same_place(peer, wanted)]
        departure = self._best_explained(row, [*ahead, *repeated])
        if departure is not None:
            return departure
        steps = [step for start in (row, peer) for step in self.earlier_steps(start) if step.tokens[:1] == (wanted,)]
        candidates = [*ahead, *repeated, *steps, self._reference(peer, "siblings")]
        departure = self._best_explained(row, candidates)
        whole = self.view.signatures.whole
        if steps or departure is not None or whole[row] == whole[peer]:
            return departure
        # After a step that comes seldom: what followed that call wherever the rank made it.
        before = self.preceding(row, limit=_MEMORY)
        made = before[self.token[before] == self.token[peer]][::-1][:_MAX_PRECEDENTS]
        past = [self._past(other, row) for other in made.tolist()]
        return self._best_explained(row, [*candidates, *past])

    def _same_place(self, row: int, wanted: int) -> list[Reference]:
        """What followed the earlier calls `wanted` whose past is the longest in common with that of `row`.

        Equal layers look alike for a while; one step ago everything before was the same. From there to `row` is a whole
        step, or several, so the same is to be expected after it once more.
        """
        before = self.preceding(row, limit=_MEMORY)
        tokens = self.token[before]
        places = np.flatnonzero(tokens == wanted)
        for n_alike in range(1, min(_SHARED_PAST, len(tokens))):
            longer = places[places >= n_alike]
            longer = longer[tokens[longer - n_alike] == tokens[-n_alike]]
            if not len(longer):
                break
            places = longer
        nearest = np.lexsort((-places, np.abs(since_mark(tokens, places) - since_mark(tokens, len(tokens)))))
        pasts = [self._past(int(before[position]), row) for position in places[nearest[:_MAX_STEPS]]]
        return [replace(past, tokens=past.tokens * 2, rows=past.rows * 2, period=len(past.rows)) for past in pasts]

    def _furthest(self, row: int, others: Sequence[int]) -> list[Reference]:
        """Of those that reached the call the same way, the two that continued longest after it."""
        alike = (other for other in others[:_MAX_CANDIDATES] if self.same_context(row, other))
        return sorted(
            (self._reference(other, "siblings") for other in alike), key=lambda reference: -len(reference.rows)
        )[:2]

    def _best_explained(self, row: int, candidates: Sequence[Reference]) -> Departure | None:
        """None where nothing explains the rank's calls, or where it made one other call and then went on as usual."""
        shifts = [(reference, self.shift(row, reference)) for reference in candidates]
        explained = [(reference, shift) for reference, shift in shifts if shift is not None]
        if not explained:
            return None
        best, shift = max(explained, key=lambda pair: (pair[1].n_explained, pair[1].kind == "replaced", -pair[1].cost))
        return None if shift.kind == "replaced" else Departure(row, best, shift)

    def precedents(self, row: int) -> list[int]:
        """What the rank called in its past after the same few calls: the newest first."""
        before = self.preceding(row, limit=_MEMORY)
        tokens = self.token[before]
        for n_alike in _ALIKE:
            if len(tokens) <= n_alike:
                continue
            is_alike = np.ones(len(tokens) - n_alike, bool)
            for back in range(1, n_alike + 1):
                is_alike &= tokens[n_alike - back : len(tokens) - back] == tokens[-back]
            if is_alike.any():
                return [int(before[start + n_alike]) for start in np.flatnonzero(is_alike)[::-1][:_MAX_PRECEDENTS]]
        return []

    def earlier_steps(self, row: int) -> list[Reference]:
        """What followed the same few calls in the rank's past, up to but without `row` itself."""
        return [self._past(start, row) for start in self.precedents(row)]

    def _past(self, start: int, row: int) -> Reference:
        rows = self.following(start)
        rows = rows[rows < row]
        return Reference(tuple(self.token[rows].tolist()), tuple(rows.tolist()), "history")

    def is_usual(self, row: int) -> bool:
        """True when the rank made this very call after the same calls before."""
        return any(self.token[other] == self.token[row] for other in self.precedents(row))

    def _recurs(self, row: int) -> bool:
        """True when the rank reaches this very call the same way again: then its program is another one."""
        before, after = self.preceding(row, _ALIKE[0]), self.following(row)
        pattern = [*self.token[before].tolist(), int(self.token[row])]
        later = self.token[after]
        n_places = len(later) - len(pattern) + 1
        if n_places < 2 or len(before) < _ALIKE[0]:
            return False
        is_alike = np.ones(n_places, bool)
        for index, token in enumerate(pattern):
            is_alike &= later[index : index + n_places] == token
        return bool(is_alike.any())

    def is_known(self, row: int) -> bool:
        """True when the rank made this very call at all before."""
        return bool((self.token[self.preceding(row, limit=_MEMORY)] == self.token[row]).any())

    def _reference(self, row: int, basis: Basis) -> Reference:
        rows = self.following(row)
        return Reference(tuple(self.token[rows].tolist()), tuple(rows.tolist()), basis)

    def departure(self, rank: int) -> Departure | None:
        """Where the rank left the path of its siblings, else of its own earlier steps, if a shift explains it."""
        beside = self._compared(rank)
        if beside is None and rank not in self._past_departures:
            self._past_departures[rank] = self._departure_from_past(rank)
        return self._past_departures[rank] if beside is None else self.departure_beside(rank)

    def departure_beside(self, rank: int) -> Departure | None:
        """Where the rank left the path of the ranks of its role."""
        beside = self._compared(rank)
        return beside if isinstance(beside, Departure) else None

    def _compared(self, rank: int) -> Departure | Literal["same"] | None:
        if rank not in self._beside:
            self._beside[rank] = self._find_departure_beside(rank)
        return self._beside[rank]

    def _siblings(self, rank: int) -> list[int]:
        """Ranks that may run the same program: those of the rank's smallest groups first."""
        groups = sorted((self.view.members[group] for group in self.view.groups_of[rank]), key=lambda m: (len(m), m))
        ordered = dict.fromkeys(other for members in groups for other in members if other != rank)
        return [other for other in ordered if other in self.view.dumped]

    def _find_departure_beside(self, rank: int) -> Departure | Literal["same"] | None:
        """The departure; "same" where the rank kept to the path; None where no rank of its role is known."""
        compared = (self._compare(rank, sibling) for sibling in self._siblings(rank)[:_MAX_CANDIDATES])
        of_same_role = list(islice((result for result in compared if result is not None), _ENOUGH_SIBLINGS))
        if not of_same_role:
            return None
        departures = [result for result in of_same_role if isinstance(result, Departure)]
        if 2 * len(departures) < len(of_same_role) or not departures:
            return "same"
        # With as many siblings on its side as against it, the rank's own past decides who left the path.
        is_even = len(of_same_role) < 2 or 2 * len(departures) == len(of_same_role)
        # The sibling that went on longest shows most of what was left out.
        best = max(departures, key=lambda departure: departure.shift.n_agreeing)
        return "same" if is_even and self.is_usual(best.row) else best

    def next_class(self, row: int) -> int | None:
        """The class of group in which siblings, or the rank's own past, made the call after this one."""
        rank, tokens = int(self.view.rank[row]), self.token[self.preceding(row)]
        same = np.flatnonzero((self.token == self.token[row]) & (self.view.rank != rank) & ~self.view.is_member)
        others = [other for other in same[-_MAX_CANDIDATES:].tolist() if self.view.seq[other] == self.view.seq[row]]
        for other in [*others, *same[-_MAX_CANDIDATES:].tolist()]:
            after = self.following(other, 2)
            if len(after) > 1 and np.array_equal(self.token[self.preceding(other)], tokens):
                return int(self.row_class[after[1]])
        return None

    def usual_successor(self, row: int) -> int | None:
        """The token that most ranks have after the call before this one; None without a majority."""
        before = self.preceding(row, 1)
        if not len(before) or self.view.is_p2p[before[0]]:
            return None
        anchor = int(before[0])
        same = self.rows_at(int(self.view.group[anchor]), int(self.view.seq[anchor]))
        same = same[(self.token[same] == self.token[anchor]) & (self.view.rank[same] != self.view.rank[anchor])]
        nexts = Counter(
            int(self.token[rows[1]]) for other in same.tolist() if len(rows := self.following(other, 2)) > 1
        )
        top = nexts.most_common(2)
        return top[0][0] if top and (len(top) == 1 or top[0][1] > top[1][1]) and top[0][1] > 1 else None

    def _departure_from_past(self, rank: int) -> Departure | None:
        departures: list[Departure] = []
        for row in self.view.rows_of(rank)[-_LOOK_AHEAD:].tolist():
            steps = self.earlier_steps(row)
            if not steps or self.is_usual(row):
                continue
            departure = self._best_explained(row, steps)
            if departure is not None:
                departures.append(departure)
        return max(
            departures, key=lambda departure: (self._fits_to_end(departure), departure.shift.n_agreeing), default=None
        )

    def _fits_to_end(self, departure: Departure) -> bool:
        """A step that comes seldom also differs from the past, but then what follows it does not fit to the end."""
        n_after = len(self.following(departure.row))
        n_extra = departure.shift.n_calls if departure.shift.kind == "repeated" else 0
        return departure.shift.n_agreeing >= n_after - n_extra

    def _compare(self, rank: int, sibling: int) -> Departure | Literal["same"] | None:
        """Where the rank leaves the sibling's path; "same" when it does not; None when they cannot be compared."""
        mine, theirs = self.view.rows_of(rank), self.view.rows_of(sibling)
        start = self._common_start(mine, theirs)
        if start is None:
            return None
        mine, theirs = mine[start[0] :], theirs[start[1] :]
        n_both = min(len(mine), len(theirs))
        differs = np.flatnonzero(self.token[mine[:n_both]] != self.token[theirs[:n_both]])
        if not len(differs):
            # A sibling whose record ends earlier says nothing about the rest.
            return "same" if _CONTEXT <= len(mine) <= len(theirs) else None
        # Ranks of another role differ right away: they are no measure for this one.
        row, other = int(mine[differs[0]]), int(theirs[differs[0]])
        if differs[0] < _CONTEXT or self._recurs(row):
            return None
        beside = self._reference(other, "siblings")
        # The sibling hangs soon after: the steps before show what would have followed.
        wanted = int(self.token[other])
        past = [*self._same_place(row, wanted), *self._same_place(other, wanted)]
        fitting = [step for step in past if all(map(eq, step.tokens, beside.tokens))]
        departure = self._best_explained(row, [beside, *fitting])
        return replace(departure, is_seen_beside=True) if departure is not None else None

    def shift(self, row: int, expected: Reference) -> Shift | None:
        before = self.preceding(row, 1)
        previous = int(self.token[before[0]]) if len(before) else None
        # Earlier steps may have gone on otherwise (an evaluation every so often): there, what follows at once counts.
        n_enough = ALL if expected.basis == "siblings" else 2
        shift = explain_shift(self.token[self.following(row)].tolist(), expected.tokens, previous, n_enough)
        if shift is None or expected.period is None or shift.kind != "skipped":
            return shift
        # Almost a whole step left out is the same as a few calls made again; more than one is not left out in one go.
        n_again = expected.period - shift.n_calls
        if 0 < n_again < shift.n_calls and n_again <= shift.n_agreeing:
            return Shift("repeated", n_again, shift.n_agreeing - n_again, n_again)
        return shift if n_again >= 0 else None

    def _common_start(self, mine: Array, theirs: Array) -> tuple[int, int] | None:
        """The oldest collective that both still have, by role of the group and sequence number."""
        if len(mine) and len(theirs) and self._keys(mine[:1])[0] == self._keys(theirs[:1])[0] >= 0:
            return 0, 0
        keys_mine, keys_theirs = self._keys(mine), self._keys(theirs)
        shared, first_mine, first_theirs = np.intersect1d(keys_mine, keys_theirs, return_indices=True)
        usable = np.flatnonzero(shared >= 0)
        if not len(usable):
            return None
        start = usable[np.argmin(first_mine[usable])]
        return int(first_mine[start]), int(first_theirs[start])

    def _keys(self, rows: Array) -> Array:
        keys = self._key(self._generation[self.view.group[rows]], self.row_class[rows], self.view.seq[rows])
        return np.where(self.view.is_p2p[rows], -1, keys)

    @staticmethod
    def _key(generation: Any, group_class: Any, seq: Any) -> Any:
        """Of a collective: the same on all ranks, and in all groups of one role."""
        return (generation << 16 | group_class) << 40 | seq


def _with_neighbors(view: JobView) -> Array:
    """The tokens of the calls, those of transfers and of their batches with the neighbors that they go to."""
    tokens = view.signatures.token.astype(np.uint64)
    peers = view.calls.array("peer")
    distance = np.where(view.is_p2p & (peers >= 0), peers - view.rank + (1 << 20), 0).astype(np.uint64)
    tokens = tokens * _HASH_FACTOR + distance
    rows = np.flatnonzero(view.is_p2p & view.calls.text("role").equals("batch"))
    if not len(rows):
        return tokens
    position = np.arange(len(tokens))
    # The newest call up to here that is no member.
    before = np.maximum.accumulate(np.where(view.is_member, -1, position))
    first = np.append(-1, before)[rows] + 1
    of_member = np.where(view.is_member, tokens * (distance + _HASH_FACTOR), np.uint64(0))
    running = np.append(np.uint64(0), np.cumsum(of_member))
    tokens[rows] += running[rows] - running[first]
    return tokens


def programs_of(trace: Trace) -> Programs:
    return derived(trace, Programs)
