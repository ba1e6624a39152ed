"""Execution traces and profiler traces as tracks, one per thread, and the nodes found by aligning them."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from rankscope.analyze.host.call_tree import nest
from rankscope.analyze.link.alignment import Track, align, align_ends
from rankscope.analyze.link.nodes import EVENT_COLUMNS, EVENTS, NODE_ORDER, Events
from rankscope.model.tables import MISSING, Array, Trace

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
    place = columns["place"]
    name_of = np.zeros(len(parent), np.uint64)
    name_of[place] = columns["name"]
    caller = np.where(parent[place] >= 0, name_of[parent[place]], np.uint64(0))
    _, thread = np.unique(columns["thread"], return_inverse=True)
    return Recording(Track(columns["name"], caller, columns["shapes"], columns["seq_id"]), thread), place


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
        for own in threads.tolist():
            own_places = np.flatnonzero(left.thread == own)
            if (partner[own_places] >= 0).any():
                continue
            n_found, other = 0, 0
            score = np.where(is_free, n_common[own], 0)
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
    return np.stack([np.minimum(of_right, own).sum(axis=1) for own in of_left])
