"""Finds what is the same in two recordings of one thread by the order of names, as a text comparison finds equal lines.

What occurs once on both sides is an anchor. From anchors the match grows as long as the names agree; in the gaps that
remain, things that occur once in the gap are anchors again. Where a gap leaves two ways to match, neither is taken: a
wrong link is worse than none. Each round sorts and scans whole columns, and there are few rounds whatever the input.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import NamedTuple

import numpy as np

from rankscope.analyze.host.call_tree import nest
from rankscope.analyze.link.nodes import EVENT_COLUMNS, EVENTS, NODE_ORDER, Events
from rankscope.model.tables import MISSING, Array, Trace

_WINDOWS = (64, 16, 4)  # names in a row that are unique where no single one is: in a loop, say
_MAX_ROUNDS = 4  # of anchors within gaps
_COVERED = 0.95  # of both sides, where nothing but the ends says how they lie to each other
_NOT_MATCHED = -1
_N_CANDIDATES = 3  # threads of a profile that are tried for a thread of the execution trace
# Profilers leave out the shapes of lists, execution traces have them as empty ones: only dimensions are compared.
_SHAPES = r"hash(regexp_extract_all({}, '\[\d[\d,]*\]'))"
_NODES = f"""
    SELECT place, thread, hash(name) AS name, seq_id,
           {_SHAPES.format("coalesce(input_shapes, '')")} AS shapes
    FROM (SELECT *, row_number() OVER (ORDER BY {NODE_ORDER}) - 1 AS place FROM et_nodes)
    WHERE kind = 'op' AND file_id = $file AND thread IS NOT NULL ORDER BY thread, place
"""
_EVENTS = f"""
    SELECT e.file_id AS profile_id, {EVENT_COLUMNS}, dense_rank() OVER (ORDER BY tid) - 1 AS thread,
           hash({{name}}) AS name, seq_id,
           {_SHAPES.format("coalesce(input_dims, '')")} AS shapes
    FROM {EVENTS} AS e
    WHERE file_id = $file AND coalesce(rank, {MISSING}) = $rank AND tid IS NOT NULL
    ORDER BY op_id NULLS FIRST, annotation_id
"""


class Track(NamedTuple):
    """What one thread did, in the order of beginnings. Equal hashes mean equal texts."""

    name: Array  # hashes
    caller: Array  # hashes of the names of what they lie in
    shapes: Array  # hashes
    seq_id: Array  # autograd's number; MISSING where there is none

    @property
    def n_rows(self) -> int:
        return len(self.name)

    def take(self, rows: Array | slice) -> Track:
        return Track(*(column[rows] for column in self))


def align(left: Track, right: Track) -> Array:
    """For each element of the left track its place in the right one, or MISSING. Places rise.

    One track may be a small part of the other. In a loop whose passes all look alike, nothing is found.
    """
    partner = np.full(left.n_rows, _NOT_MATCHED)
    if not left.n_rows or not right.n_rows or _are_other_steps(left, right):
        return partner
    partner = _anchored(left, right, partner, (_numbered(left, 0), _numbered(right, 1)))
    for left_token, right_token in zip(_levels(left)[:2], _levels(right)[:2], strict=True):
        for width in _WINDOWS:
            if _is_done(partner, right.n_rows):
                break
            partner = _anchored(left, right, partner, (left_token, right_token), width)
    if not (partner >= 0).any():
        return partner
    return _without_doubtful(left, right, _fill_gaps(left, right, partner))


def align_ends(left: Track, right: Track, at_least: float = _COVERED) -> Array:
    """As align, for tracks that begin and end together. Nothing is found where less than a share of both matches."""
    if not left.n_rows or not right.n_rows or _are_other_steps(left, right):
        return np.full(left.n_rows, _NOT_MATCHED)
    ends = Track(*(np.full(1, value, column.dtype) for value, column in zip((0, 0, 0, MISSING), left, strict=True)))
    left, right = (Track(*map(np.concatenate, zip(ends, track, ends, strict=True))) for track in (left, right))
    partner = np.full(left.n_rows, _NOT_MATCHED)
    partner[[0, -1]] = 0, right.n_rows - 1
    partner = _without_doubtful(left, right, _fill_gaps(left, right, _extended(left, right, partner)))
    is_covered = (partner >= 0).sum() >= at_least * max(left.n_rows, right.n_rows)
    return np.where(is_covered & (partner >= 0), partner - 1, _NOT_MATCHED)[1:-1]


def _are_other_steps(left: Track, right: Track) -> bool:
    """Autograd counts on: where both sides have its numbers, but no number in common, they have no step in common."""
    if not (left.seq_id >= 0).any() or not (right.seq_id >= 0).any():
        return False
    return not np.isin(_numbered(left, 0), _numbered(right, 1)).any()


def _is_done(partner: Array, n_right: int) -> bool:
    n_matched = int((partner >= 0).sum())
    return n_matched in (len(partner), n_right)


def _levels(track: Track) -> tuple[Array, Array, Array]:
    """What distinguishes elements, the most distinctive first. Shapes are not always recorded, nor all callers."""
    return _mixed(track.name, track.caller, track.shapes), _mixed(track.name, track.caller), track.name


def _fill_gaps(left: Track, right: Track, partner: Array) -> Array:
    levels = _levels(left), _levels(right)
    for _ in range(_MAX_ROUNDS):
        n_before = int((partner >= 0).sum())
        for tokens in zip(*levels, strict=True):
            if _is_done(partner, right.n_rows):
                return partner
            partner = _anchored(left, right, partner, tokens)
        if int((partner >= 0).sum()) == n_before:
            break
    return partner


def _numbered(track: Track, side: int) -> Array:
    """Name and autograd's number; where there is no number nothing that the other side could have."""
    side_column = np.full(track.n_rows, side)
    return np.where(track.seq_id >= 0, _mixed(track.name, track.seq_id), _mixed(track.name, track.seq_id, side_column))


def _windows(token: Array, width: int) -> Array:
    """Hashes of so many tokens in a row, from each place on; none where fewer are left."""
    if len(token) < width:
        return token[:0]
    reach = 1
    while reach < width:
        token = _mixed(token[:-reach], token[reach:])
        reach *= 2
    return token


def _mixed(*columns: Array) -> Array:
    """One hash for each row."""
    mixed = np.full(len(columns[0]), 0x9E3779B97F4A7C15, np.uint64)
    for column in columns:
        mixed = (mixed ^ column.astype(np.uint64)) * np.uint64(0xFF51AFD7ED558CCD)
        mixed ^= mixed >> np.uint64(32)
    return mixed


def _anchored(left: Track, right: Track, partner: Array, tokens: tuple[Array, Array], width: int = 1) -> Array:
    """The match, grown from what occurs once in the same gap on both sides: a token, or so many of them in a row."""
    taken = np.zeros(right.n_rows, bool)
    taken[partner[partner >= 0]] = True
    left_free, left_key = _keys_in_gaps(tokens[0], partner >= 0, width)
    right_free, right_key = _keys_in_gaps(tokens[1], taken, width)
    left_once, right_once = _once(left_key), _once(right_key)
    _, left_found, right_found = np.intersect1d(
        left_key[left_once], right_key[right_once], assume_unique=True, return_indices=True
    )
    left_place, right_place = left_free[left_once[left_found]], right_free[right_once[right_found]]
    fits = _fit(left, right, left_place, right_place)
    order = np.argsort(left_place[fits])
    left_place, right_place = left_place[fits][order], right_place[fits][order]
    rising = _longest_rising(right_place)
    if not len(rising):
        return partner
    partner = partner.copy()
    partner[left_place[rising]] = right_place[rising]
    return _extended(left, right, partner)


def _keys_in_gaps(token: Array, is_matched: Array, width: int) -> tuple[Array, Array]:
    """The places where as many tokens lie in one gap, and a hash of these tokens and the gap."""
    key = _windows(token, width)
    n_before = np.cumsum(is_matched)
    n_places = len(key)
    is_free = ~is_matched[:n_places] & (n_before[:n_places] == n_before[width - 1 : width - 1 + n_places])
    free = np.flatnonzero(is_free)
    return free, _mixed(key[free], n_before[free])


def _once(key: Array) -> Array:
    """Where the keys are that occur once."""
    _, first, n_times = np.unique(key, return_index=True, return_counts=True)
    once: Array = first[n_times == 1]
    return once


def _fit(left: Track, right: Track, left_place: Array, right_place: Array) -> Array:
    left_seq, right_seq = left.seq_id[left_place], right.seq_id[right_place]
    is_other_number = (left_seq >= 0) & (right_seq >= 0) & (left_seq != right_seq)
    fits: Array = (left.name[left_place] == right.name[right_place]) & ~is_other_number
    return fits


def _longest_rising(values: Array) -> Array:
    """Places of the longest part of the values that rises."""
    if (values[1:] > values[:-1]).all():
        return np.arange(len(values))
    tails: list[int] = []  # the smallest value that ends a rising part of each length
    places: list[int] = []
    before: list[int] = []
    for position, value in enumerate(values.tolist()):
        length = bisect_left(tails, value)
        before.append(places[length - 1] if length else _NOT_MATCHED)
        tails[length : length + 1] = [value]
        places[length : length + 1] = [position]
    rising = []
    position = places[-1]
    while position >= 0:
        rising.append(position)
        position = before[position]
    return np.array(rising[::-1])


def _extended(left: Track, right: Track, partner: Array) -> Array:
    """What is matched, and all that follows it or comes before it as long as it fits and there is no other way."""
    places = np.arange(left.n_rows)
    anchors = np.flatnonzero(partner >= 0)
    gap = np.cumsum(partner >= 0)  # the first one lies before all anchors
    left_before, left_after = np.append(-1, anchors), np.append(anchors, left.n_rows)
    right_before, right_after = np.append(-1, partner[anchors]), np.append(partner[anchors], right.n_rows)
    from_front, from_back = places - left_before[gap], left_after[gap] - places
    is_free = partner < 0
    forward, backward = right_before[gap] + from_front, right_after[gap] - from_back
    n_forward = _run_lengths(
        left, right, gap, from_front, np.where(is_free & (forward < right_after[gap]), forward, -1)
    )
    n_backward = _run_lengths(
        left, right, gap, from_back, np.where(is_free & (backward > right_before[gap]), backward, -1)
    )
    n_forward[0] = n_backward[-1] = 0  # nothing is matched there to start from
    n_left, n_right = left_after - left_before - 1, right_after - right_before - 1
    # Something is missing on one side, and it may be anywhere in what both runs cover.
    n_both = np.minimum(n_left, n_right)
    is_open = (n_left != n_right) & (n_forward + n_backward > n_both)
    n_forward, n_backward = (
        np.where(is_open, np.maximum(n_both - n_backward, 0), n_forward),
        np.where(is_open, np.maximum(n_both - n_forward, 0), n_backward),
    )
    grown = np.where(is_free & (from_back <= n_backward[gap]), backward, partner)
    return np.where(is_free & (from_front <= n_forward[gap]), forward, grown)


def _run_lengths(left: Track, right: Track, gap: Array, distance: Array, target: Array) -> Array:
    """Per gap, how far from its border everything fits. Targets are places on the right, or none."""
    fits = target >= 0
    fits[fits] = _fit(left, right, np.flatnonzero(fits), target[fits])
    n_gaps = int(gap[-1]) + 1
    first_misfit = np.bincount(gap, minlength=n_gaps) + 1
    is_misfit = ~fits & (distance > 0)
    np.minimum.at(first_misfit, gap[is_misfit], distance[is_misfit])
    return first_misfit - 1


def _without_doubtful(left: Track, right: Track, partner: Array) -> Array:
    """The match without what may as well be matched otherwise: in `xx` with `x`, which x is missing?

    Where one side has more between two runs, the gap may lie earlier or later, as long as the names let it.
    """
    matched = np.flatnonzero(partner >= 0)
    there = partner[matched]
    is_border = (np.diff(matched) > 1) | (np.diff(there) > 1)
    run = np.append(0, np.cumsum(is_border))
    n_left, n_right = np.diff(matched)[is_border] - 1, np.diff(there)[is_border] - 1
    is_one_sided = (n_left == 0) != (n_right == 0)
    n_left, n_right = np.where(is_one_sided, n_left, 0), np.where(is_one_sided, n_right, 0)
    first, last = np.append(0, np.flatnonzero(is_border) + 1), np.append(np.flatnonzero(is_border), len(matched) - 1)
    rows = np.arange(len(matched))
    is_doubtful = np.zeros(len(matched), bool)
    gaps_after, gaps_before = (
        (np.append(n_left, 0), np.append(n_right, 0)),
        (np.append(0, n_left), np.append(0, n_right)),
    )
    for sign, gaps, distance in ((1, gaps_after, last[run] - rows + 1), (-1, gaps_before, rows - first[run] + 1)):
        shift_left, shift_right = sign * gaps[0][run], sign * gaps[1][run]
        may = (shift_left != 0) | (shift_right != 0)
        may[may] = _fits_as_well(left, right, (matched[may], there[may]), (shift_left[may], shift_right[may]))
        first_misfit = last - first + 2
        np.minimum.at(first_misfit, run[~may], distance[~may])
        is_doubtful |= distance < first_misfit[run]
    kept = partner.copy()
    kept[matched[is_doubtful]] = _NOT_MATCHED
    return kept


def _fits_as_well(left: Track, right: Track, match: tuple[Array, Array], shift: tuple[Array, Array]) -> Array:
    """Whether the places that are so far away from matched ones fit each other no worse than these do."""
    here, other = match, (match[0] + shift[0], match[1] + shift[1])
    n_same, n_same_there = (
        (left.caller[at] == right.caller[its]).astype(int) + (left.shapes[at] == right.shapes[its])
        for at, its in (here, other)
    )
    as_well: Array = _fit(left, right, *other) & (n_same_there >= n_same)
    return as_well


class Recording(NamedTuple):
    """All threads of a trace, one after the other, each in the order of beginnings."""

    track: Track
    thread: Array  # from 0


class Profile(NamedTuple):
    recording: Recording
    events: Events


def nodes_recording(trace: Trace, file_id: int, parent: Array) -> tuple[Recording, Array]:
    """The nodes of an execution trace, and their places among all nodes."""
    columns = trace.sql(_NODES, file=file_id).columns()
    node = columns["place"]
    name_of = np.zeros(len(parent), np.uint64)
    name_of[node] = columns["name"]
    caller = np.where(parent[node] >= 0, name_of[parent[node]], np.uint64(0))
    _, thread = np.unique(columns["thread"], return_inverse=True)
    return Recording(Track(columns["name"], caller, columns["shapes"], columns["seq_id"]), thread), node


def profile_recording(trace: Trace, profile_id: int, rank: int, name: str = "name") -> Profile:
    """The operators and annotations of a profiler's trace; `name` is what counts as their name, in SQL."""
    columns = trace.sql(_EVENTS.format(name=name), file=profile_id, rank=rank).columns()
    nesting = nest(columns["thread"], columns["start_ns"], columns["duration_ns"])
    columns = {key: values[nesting.order] for key, values in columns.items()}
    caller = np.where(nesting.parent >= 0, columns["name"][nesting.parent], np.uint64(0))
    track = Track(columns["name"], caller, columns["shapes"], columns["seq_id"])
    return Profile(Recording(track, columns["thread"]), Events(*(columns[key] for key in Events._fields)))


def align_threads(left: Recording, right: Recording, start: Array, end: Array) -> Array:
    """For each element of the left recording its place in the right one, or MISSING.

    `start` and `end` are those of the right elements. What the threads find that have something to go by says when the
    left recording was made: all that the others did in that time is theirs.
    """
    partner = np.full(left.track.n_rows, MISSING)
    n_common = common_names(left, right)
    threads = np.argsort(-np.bincount(left.thread), kind="stable")  # the busiest choose first
    is_free = np.ones(n_common.shape[1], bool)
    is_within = np.ones(right.track.n_rows, bool)
    for find in (align, align_ends):
        for thread in threads.tolist():
            own_places = np.flatnonzero(left.thread == thread)
            if (partner[own_places] >= 0).any():
                continue
            n_found, other = 0, 0
            score = np.where(is_free, n_common[thread], 0)
            for candidate in np.argsort(-score, kind="stable")[:_N_CANDIDATES].tolist():
                if score[candidate] <= n_found:  # it cannot have more in common than that
                    break
                places = np.flatnonzero((right.thread == candidate) & is_within)
                partners = find(left.track.take(own_places), right.track.take(places))
                if (partners >= 0).sum() > n_found:
                    n_found, other = int((partners >= 0).sum()), candidate
                    partner[own_places] = np.where(partners >= 0, places[partners], MISSING)
            is_free[other] &= not n_found
        if (linked := partner[partner >= 0]).size:
            is_within = (start >= start[linked].min()) & (end <= end[linked].max())
    return partner


def common_names(left: Recording, right: Recording) -> Array:
    """How many elements each thread of the left could share with each thread of the right, by their names."""
    names, code = np.unique(np.concatenate((left.track.name, right.track.name)), return_inverse=True)
    n_left = left.track.n_rows

    def counts(recording: Recording, codes: Array) -> Array:
        n_threads = int(recording.thread.max(initial=-1)) + 1
        counted: Array = np.bincount(recording.thread * len(names) + codes, minlength=n_threads * len(names))
        return counted.reshape(n_threads, len(names))

    of_left, of_right = counts(left, code[:n_left]), counts(right, code[n_left:])
    common = np.zeros((len(of_left), len(of_right)), np.int64)
    for thread, left_counts in enumerate(of_left):
        common[thread] = np.minimum(of_right, left_counts).sum(axis=1)
    return common
