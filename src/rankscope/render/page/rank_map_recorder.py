"""The cells of a map from Flight Recorder dumps."""

from __future__ import annotations

import numpy as np

from rankscope.model.tables import MISSING, Array, Table, Trace
from rankscope.render.page import rank_map_data as data
from rankscope.render.page.rank_map_choices import Choice
from rankscope.render.page.rank_map_data import Matrix, levels

_STATE_OF = {"done": data.DONE, "waiting": data.WAITING, "aborted": data.ABORTED, "failed": data.FAILED}
# Which side of a call has to be of one size on all ranks; of the others the inputs have to.
_BY_OUTPUT = ("all_gather", "scatter")
_OF_ANY_SIZE = ("all_to_all", "barrier", "coalesced")
_CALLS_AT_ONCE = 500_000
_FARTHEST = (1 << 31) - 2  # microseconds: more than half an hour is told as that
_NOT_THERE = -(1 << 31)


def recorded_matrix(trace: Trace, choice: Choice, pool_numbers: Array, stack_of: Array) -> Matrix:
    """`pool_numbers`: per row of collectives its number in the pool of calls; `stack_of` such a number its stack's."""
    matches = trace.table("matches")
    ranks, group_of_row = choice.row_ranks
    chosen, group_of_match = _matches_of(matches, choice)
    seqs, columns = _columns(matches, chosen, group_of_match, choice)
    starts = np.zeros((len(choice.groups), seqs.shape[1]), np.int64)
    starts[group_of_match, columns] = matches.array("first_created_ns")[chosen]
    has = np.zeros(starts.shape, bool)
    has[group_of_match, columns] = True
    if choice.noun == "transfer":
        state = _transfer_states(trace, matches, chosen, columns, ranks)
    else:
        state = _absent_states(trace, choice, ranks, group_of_row, seqs, has)
    layers = _Layers(state)
    # The slot behind the last is for calls without a match, whose number is -1.
    column_of = np.full(len(matches) + 1, MISSING, np.int32)
    column_of[chosen] = columns
    middle = layers.fill(trace, column_of, ranks, pool_numbers)
    middles = np.zeros(starts.shape, np.int64)
    middles[group_of_match, columns] = middle[chosen]
    layers.measure_lateness(middles[group_of_row] if len(choice.groups) > 1 else middles)
    if choice.noun == "collective":
        _mark_other_lines(layers, group_of_row, len(choice.groups), stack_of)
    return Matrix(ranks, group_of_row, seqs, state, layers.late, layers.duration, layers.calls, starts)


class _Layers:
    """The cells, filled from parts of the calls: whole columns of ten million calls would need gigabytes at a time."""

    def __init__(self, state: Array) -> None:
        self.state = state
        self.behind_us = np.full(state.shape, _NOT_THERE, np.int32)
        self.late = np.zeros(state.shape, np.uint8)
        self.duration = np.zeros(state.shape, np.uint8)
        self.calls = np.full(state.shape, data.UNKNOWN_CALL, np.uint16)

    def fill(self, trace: Trace, column_of: Array, ranks: Array, pool_numbers: Array) -> Array:
        """Per match, in microseconds: how far behind its first rank the middle of its ranks was."""
        calls, matches = trace.table("collectives"), trace.table("matches")
        place_of, offset_of = _rank_tables(trace, ranks)
        first_ns, n_signatures = matches.array("first_created_ns"), matches.array("n_signatures")
        state_of = np.array([_STATE_OF.get(value, data.WAITING) for value in calls.text("status").values], np.uint8)
        keys, n_keys = np.empty(len(calls), np.int64), 0
        uneven = [np.empty(0, np.int64)]
        for start in range(0, len(calls), _CALLS_AT_ONCE):
            part = slice(start, start + _CALLS_AT_ONCE)
            column, rank = column_of[calls.array("match_id")[part]], calls.array("rank")[part]
            # A rank may call on a group of which it is no member.
            rows = np.flatnonzero((column >= 0) & (place_of[rank] >= 0)) + start
            column, rank, match = column[rows - start], rank[rows - start], calls.array("match_id")[rows]
            cell = place_of[rank] * self.state.shape[1] + column
            behind = (calls.array("created_ns")[rows] - offset_of[rank] - first_ns[match]) // 1000
            behind = np.clip(behind, -_FARTHEST, _FARTHEST)
            status = state_of[calls.text("status").codes[rows]]
            self.state.ravel()[cell] = status
            self.behind_us.ravel()[cell] = behind
            self.duration.ravel()[cell] = _durations(calls, rows, status)
            self.calls.ravel()[cell] = pool_numbers[rows]
            keys[n_keys : n_keys + len(rows)] = match.astype(np.int64) << 32 | (behind + _FARTHEST)
            n_keys += len(rows)
            uneven.append(rows[n_signatures[match] > 1])
        self._mark_mismatches(calls, np.concatenate(uneven), column_of, place_of)
        return _middles(keys[:n_keys], len(matches))

    def _mark_mismatches(self, calls: Table, rows: Array, column_of: Array, place_of: Array) -> None:
        match = calls.array("match_id")[rows]
        odd = _is_odd(calls, rows, match)
        self.state[place_of[calls.array("rank")[rows[odd]]], column_of[match[odd]]] = data.MISMATCH

    def measure_lateness(self, middle: Array) -> None:
        """`middle` has one row for all, or one for each."""
        for row, behind in enumerate(self.behind_us):
            middles = middle[row if len(middle) > 1 else 0]
            self.late[row] = np.where(behind != _NOT_THERE, levels(behind - middles), 0)
        self.late[self.state == data.NOT_JOINED] = data.NEVER


def _matches_of(matches: Table, choice: Choice) -> tuple[Array, Array]:
    """Rows of the logical calls, and the position of their group in the choice."""
    position = np.full(max(int(matches.array("group_id").max(initial=0)), *(g.key for g in choice.groups)) + 1, MISSING)
    position[[group.key for group in choice.groups]] = np.arange(len(choice.groups))
    group_row = position[matches.array("group_id")]
    chosen = np.flatnonzero((group_row >= 0) & (matches.array("is_p2p") == (choice.noun == "transfer")))
    return chosen, group_row[chosen]


def _columns(matches: Table, chosen: Array, group: Array, choice: Choice) -> tuple[Array, Array]:
    """Numbers per group and column, and the column of each match. Transfers are in the order in which they began."""
    seq = matches.array("seq")[chosen]
    if choice.noun == "collective":
        distinct, columns = np.unique(seq, return_inverse=True)
        return distinct[None, :], columns.astype(np.int32)
    return ordinal_columns(group, seq, matches.array("first_created_ns")[chosen], len(choice.groups))


def ordinal_columns(group: Array, seq: Array, began: Array, n_groups: int) -> tuple[Array, Array]:
    """The k-th of each group in the k-th column; the numbers per group and column are -1 where a group has fewer."""
    order = np.lexsort((began, group))
    counts = np.bincount(group, minlength=n_groups)
    columns = np.empty(len(group), np.int32)
    columns[order] = np.arange(len(group)) - np.repeat(np.cumsum(counts) - counts, counts)
    seqs = np.full((n_groups, int(counts.max(initial=0))), MISSING, np.int64)
    seqs[group, columns] = seq
    return seqs, columns


def _absent_states(trace: Trace, choice: Choice, ranks: Array, group_of_row: Array, seqs: Array, has: Array) -> Array:
    """What is known of a rank's part in a collective that its dump does not hold."""
    progress = trace.table("group_progress")
    keys = np.array([group.key for group in choice.groups])
    wanted = keys[group_of_row].astype(np.int64) << 32 | ranks
    held = progress.array("group_id").astype(np.int64) << 32 | progress.array("rank")
    order = np.argsort(held, kind="stable")
    position = np.minimum(np.searchsorted(held[order], wanted), max(len(held) - 1, 0))
    row = order[position] if len(held) else position
    is_held = held[row] == wanted if len(held) else np.zeros(len(ranks), bool)
    known = is_held & (progress.array("known")[row] if len(held) else False)
    last = np.where(known, progress.array("last_seq")[row], MISSING) if len(held) else np.full(len(ranks), MISSING)
    has_dump = np.isin(ranks, trace.table("ranks").array("rank"))
    state = np.full((len(ranks), seqs.shape[1]), data.DROPPED, np.uint8)
    state[~known & ~has_dump] = data.NO_DUMP
    if len(seqs) == 1:
        state[known[:, None] & (seqs[0][None, :] > last[:, None])] = data.NOT_JOINED
    state[~has[group_of_row]] = data.NOTHING
    return state


def _transfer_states(trace: Trace, matches: Table, chosen: Array, columns: Array, ranks: Array) -> Array:
    """Only two ranks take part in a transfer."""
    state = np.full((len(ranks), int(columns.max(initial=-1)) + 1), data.NOTHING, np.uint8)
    has_dump = np.isin(ranks, trace.table("ranks").array("rank"))
    n_ranks = int(max(ranks.max(initial=0), *(matches.array(side).max(initial=0) for side in ("src", "dst")))) + 1
    place_of = np.full(n_ranks, MISSING, np.int64)
    place_of[ranks] = np.arange(len(ranks))
    is_missing = matches.array("n_missing")[chosen] > 0
    for side in ("src", "dst"):
        rank_row = place_of[matches.array(side)[chosen]]
        is_member = rank_row >= 0
        row = rank_row[is_member]
        absence = np.where(is_missing[is_member], data.NOT_JOINED, data.DROPPED)
        state[row, columns[is_member]] = np.where(has_dump[row], absence, data.NO_DUMP)
    return state


def _is_odd(calls: Table, rows: Array, match: Array) -> Array:
    """Which calls differ from those of most ranks, in the operation or, where that is the same, in size or type."""
    if not len(rows):
        return np.empty(0, bool)
    op = calls.text("op")
    is_odd = _in_minority(match, op.codes[rows].astype(np.int64))
    differs = np.zeros(int(match.max()) + 1, bool)
    differs[match[is_odd]] = True
    same = np.flatnonzero(~differs[match])
    is_odd[same] = _in_minority(match[same], _size_and_type(calls, rows[same]))
    return is_odd


def _size_and_type(calls: Table, rows: Array) -> Array:
    op, inputs, outputs = (calls.text(name) for name in ("op", "input_sizes", "output_sizes"))
    types = calls.text("input_dtypes")
    by_output = np.array([name.startswith(_BY_OUTPUT) for name in op.values])[op.codes[rows]]
    is_free = np.array([name.startswith(_OF_ANY_SIZE) for name in op.values])[op.codes[rows]]
    size = np.where(by_output, outputs.codes[rows].astype(np.int64) + len(inputs.values), inputs.codes[rows])
    return np.where(is_free, 0, size + 1) * len(types.values) + types.codes[rows]


def _in_minority(match: Array, key: Array) -> Array:
    """Where there is no majority, all differ from each other, and nobody can say who is right."""
    if not len(match):
        return np.empty(0, bool)
    n_keys = int(key.max()) + 1
    pairs, code, counts = np.unique(match.astype(np.int64) * n_keys + key, return_inverse=True, return_counts=True)
    minority: Array = (2 * counts <= np.bincount(match)[pairs // n_keys])[code]
    return minority


def _rank_tables(trace: Trace, ranks: Array) -> tuple[Array, Array]:
    """By rank: its row, -1 for those that are not shown, and how far its clock is ahead."""
    known = trace.table("ranks")
    callers = trace.table("collectives").array("rank")
    n_ranks = int(max(ranks.max(initial=0), known.array("rank").max(initial=0), callers.max(initial=0))) + 2
    row, offset = np.full(n_ranks, MISSING, np.int64), np.zeros(n_ranks, np.int64)
    row[ranks] = np.arange(len(ranks))
    offset[known.array("rank")] = known.array("clock_offset_ns")
    return row, offset


def _middles(keys: Array, n_matches: int) -> Array:
    """The median time of each match; a key has the match in its upper bits and a time below."""
    keys.sort()
    counts = np.bincount(keys >> 32, minlength=n_matches)
    first = np.cumsum(counts) - counts
    middles = np.zeros(n_matches, np.int64)
    has = counts > 0
    middles[has] = (keys[(first + (counts - 1) // 2)[has]] & 0xFFFFFFFF) - _FARTHEST
    return middles


def _durations(calls: Table, rows: Array, status: Array) -> Array:
    """On the device where that was recorded, else as the watchdog noticed it."""
    recorded, completed = calls.array("duration_ns")[rows], calls.array("completed_ns")[rows]
    started, created = calls.array("started_ns")[rows], calls.array("created_ns")[rows]
    noticed = np.where(completed > 0, completed - np.where(started > 0, started, created), 0)
    duration_levels: Array = levels(np.where(recorded >= 0, recorded, noticed) // 1000)
    duration_levels[(recorded < 0) & (completed <= 0)] = 0
    duration_levels[status != data.DONE] = data.NEVER
    return duration_levels


def _mark_other_lines(layers: _Layers, group_of_row: Array, n_groups: int, stack_of: Array) -> None:
    """Calls that fit the others but were made at another line than those of most: the programs have parted.

    The line of the majority is found by letting the rows vote: each either backs the candidate or cancels one vote.
    """
    n_columns = layers.state.shape[1]
    usual, votes = np.full((n_groups, n_columns), MISSING, np.int32), np.zeros((n_groups, n_columns), np.int32)
    for row, group in enumerate(group_of_row.tolist()):
        lines = stack_of[layers.calls[row]]
        known, is_free = lines != MISSING, votes[group] == 0
        usual[group] = np.where(is_free & known, lines, usual[group])
        votes[group] += np.where(known, np.where(lines == usual[group], 1, -1), 0)
    n_known, n_usual = np.zeros_like(votes), np.zeros_like(votes)
    for row, group in enumerate(group_of_row.tolist()):
        lines = stack_of[layers.calls[row]]
        n_known[group] += lines != MISSING
        n_usual[group] += (lines != MISSING) & (lines == usual[group])
    has_majority = 2 * n_usual > n_known
    for row, group in enumerate(group_of_row.tolist()):
        lines = stack_of[layers.calls[row]]
        is_odd = (lines != MISSING) & (lines != usual[group]) & has_majority[group]
        layers.state[row][is_odd & (layers.state[row] == data.DONE)] = data.OTHER_LINE
