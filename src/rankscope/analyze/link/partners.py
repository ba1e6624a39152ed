"""Which operator or annotation of a profiler's trace each node of an execution trace is.

Both may have noted the same number; the name has to be the same as well. Where a side has no numbers, the order of
names tells (see alignment).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from rankscope.analyze.derived import derived
from rankscope.analyze.link.nodes import EVENT_COLUMNS, EVENTS, NODE_ORDER, Events, nodes_of
from rankscope.analyze.link.runs import contradictions
from rankscope.analyze.link.tracks import align_threads, nodes_recording, profile_recording
from rankscope.model.tables import MISSING, Array, Trace

HOW = ["none", "id", "alignment"]
BY_ID, BY_ALIGNMENT = 1, 2
_FEW_WRONG = 0.02  # names that may differ: more of them, and the numbers are those of another run
_ALL_SPEAKS_AGAINST = 2  # equal numbers under equal names are enough, unless process and time are others
_MOSTLY = 0.5  # of what lies between the first and the last link has to be linked, or it is chance
_TOLD_APART = 2  # numbers of autograd that confirm an alignment

_BY_ID = f"""
    SELECT n.place AS node, n.name = e.name AS is_same, n.file_id, e.file_id AS profile_id, {EVENT_COLUMNS}
    FROM (
        SELECT file_id, rank, name, kind, record_id, row_number() OVER (ORDER BY {NODE_ORDER}) - 1 AS place
        FROM et_nodes
    ) AS n
    JOIN {EVENTS} AS e ON e.record_id = n.record_id AND e.rank IS NOT DISTINCT FROM n.rank
    WHERE n.kind = 'op'
"""
_CANDIDATES = f"""
    WITH events AS (
        SELECT file_id, rank, count(*) AS n_events, count(record_id) AS n_ids, bool_or(has_id_field) AS has_id_field,
               min(record_id) AS first_id, max(record_id) AS last_id
        FROM {EVENTS} GROUP BY ALL
    ), nodes AS (
        SELECT file_id, rank, min(record_id) AS first_id, max(record_id) AS last_id
        FROM et_nodes WHERE kind = 'op' GROUP BY ALL
    )
    SELECT n.file_id, e.file_id, coalesce(n.rank, {MISSING}), n_events, n_ids, has_id_field,
           e.first_id, e.last_id, n.first_id, n.last_id
    FROM nodes AS n JOIN events AS e ON e.rank IS NOT DISTINCT FROM n.rank ORDER BY ALL
"""


Against = Mapping[tuple[int, int], int]  # how much speaks against an execution trace and a profile being of one run


class Candidate(NamedTuple):
    """An execution trace, and a profiler's trace of the same rank that may be of the same steps."""

    file_id: int
    profile_id: int
    rank: int
    n_events: int
    n_ids: int
    has_id_field: bool
    first_id: int | None
    last_id: int | None
    first_node_id: int | None
    last_node_id: int | None

    @property
    def pair(self) -> tuple[int, int]:
        return self.file_id, self.profile_id

    @property
    def have_ids(self) -> bool:
        return self.first_node_id is not None and self.n_ids > 0

    @property
    def is_unobserved(self) -> bool:
        """The profiler knows such numbers, and notes 0 as long as no observer runs."""
        return self.has_id_field and not self.n_ids

    @property
    def is_apart(self) -> bool:
        """Both counted with the same counter, but at other times."""
        if self.first_id is None or self.last_id is None or self.first_node_id is None or self.last_node_id is None:
            return False
        return self.last_id < self.first_node_id or self.last_node_id < self.first_id


class Judged(NamedTuple):
    """What came of a candidate."""

    candidate: Candidate
    how: int  # 0 when it does not belong to the execution trace
    n_wrong: int  # equal numbers under other names
    why: str  # why it does not belong to it


class Links(NamedTuple):
    """Nodes, by their places, and what they are in profiler traces."""

    node: Array
    events: Events


@dataclass(frozen=True)
class Partners:
    """One entry per linked node."""

    node: Array
    how: Array  # BY_ID or BY_ALIGNMENT
    events: Events
    judged: list[Judged]


def partners_of(trace: Trace) -> Partners:
    """Made once per trace."""
    return derived(trace, _find_partners)


def _find_partners(trace: Trace) -> Partners:
    candidates = [Candidate(*row) for row in trace.sql(_CANDIDATES).rows()]
    against = contradictions(trace)
    judged, by_id = _by_ids(trace, candidates, against)
    settled = {verdict.candidate.file_id for verdict in judged if verdict.how}
    parts = [by_id]
    for file_id in sorted({candidate.file_id for candidate in candidates} - settled):
        without_ids = [each for each in candidates if each.file_id == file_id and not each.have_ids]
        verdicts, links = _by_names(trace, without_ids, against)
        judged += verdicts
        parts += links
    how = np.repeat(np.array([BY_ID, *[BY_ALIGNMENT] * (len(parts) - 1)], np.int8), [len(each.node) for each in parts])
    events = Events(*map(np.concatenate, zip(*(links.events for links in parts), strict=True)))
    return Partners(np.concatenate([links.node for links in parts]), how, events, judged)


def _by_ids(trace: Trace, candidates: Sequence[Candidate], against: Against) -> tuple[list[Judged], Links]:
    columns = trace.sql(_BY_ID).columns()
    keys, number = np.unique(columns["file_id"].astype(np.int64) << 32 | columns["profile_id"], return_inverse=True)
    pairs = [(key >> 32, key & 0xFFFFFFFF) for key in keys.tolist()]
    n_shared = dict(zip(pairs, np.bincount(number).tolist(), strict=True))
    n_same = dict(zip(pairs, np.bincount(number, columns["is_same"]).astype(int).tolist(), strict=True))
    judged = [
        _judged_by_ids(each, n_same.get(each.pair, 0), n_shared.get(each.pair, 0), against.get(each.pair, 0))
        for each in candidates
        if each.have_ids
    ]
    # Two may have the same nodes: a copy, or two profilers. The one with less against it, then with more nodes.
    fitting = [each.candidate.pair for each in judged if each.how]
    fitting.sort(key=lambda pair: (against.get(pair, 0), -n_same[pair], pair))
    choice = {pair: index for index, pair in enumerate(fitting)}
    order = np.array([choice.get(pair, MISSING) for pair in pairs], np.int64)[number]
    rows = np.flatnonzero(columns["is_same"] & (order >= 0))
    rows = rows[np.lexsort((columns["start_ns"][rows], order[rows], columns["node"][rows]))]
    node = columns["node"][rows]
    is_first = np.ones(len(node), bool)
    is_first[1:] = node[1:] != node[:-1]
    return judged, Links(node[is_first], Events(*(columns[name] for name in Events._fields)).take(rows[is_first]))


def _judged_by_ids(candidate: Candidate, n_same: int, n_shared: int, n_against: int) -> Judged:
    n_wrong = n_shared - n_same
    if n_same and n_wrong <= _FEW_WRONG * n_shared and n_against < _ALL_SPEAKS_AGAINST:
        return Judged(candidate, BY_ID, n_wrong, "")
    is_of_run = candidate.is_apart and not n_against
    return Judged(candidate, 0, n_wrong, "no-overlap" if is_of_run else "different-run")


def _by_names(trace: Trace, candidates: Sequence[Candidate], against: Against) -> tuple[list[Judged], list[Links]]:
    """The one of the candidates in which most of an execution trace is found, if there is one."""
    parent = nodes_of(trace).parent
    # Names alone are weak: a model gives the same ones in each of its runs.
    possible = [each for each in candidates if not against.get(each.pair, 0)]
    aligned = {each.pair: _aligned(trace, each, parent) for each in possible}
    best = max(aligned, key=lambda pair: len(aligned[pair].node), default=None)
    if best is not None and not len(aligned[best].node):
        best = None
    judged = []
    for each in candidates:
        why = "no-observer" if each.is_unobserved and each.pair in aligned else "different-run"
        is_best = each.pair == best
        judged.append(Judged(each, BY_ALIGNMENT if is_best else 0, 0, "" if is_best else why))
    return judged, [aligned[best]] if best is not None else []


def _aligned(trace: Trace, candidate: Candidate, parent: Array) -> Links:
    recording, place = nodes_recording(trace, candidate.file_id, parent)
    profile = profile_recording(trace, candidate.profile_id, candidate.rank)
    start, end = profile.events.start_ns, profile.events.start_ns + profile.events.duration_ns
    partner = align_threads(recording, profile.recording, start, end)
    linked = np.flatnonzero(partner >= 0)
    if not _is_convincing(candidate, recording.track.seq_id[linked], place, linked):
        linked = linked[:0]
    return Links(place[linked], profile.events.take(partner[linked]))


def _is_convincing(candidate: Candidate, seq_id: Array, place: Array, linked: Array) -> bool:
    if not len(linked):
        return False
    # It takes more than names to contradict a profiler that saw no observer.
    if candidate.is_unobserved and len(np.unique(seq_id[seq_id >= 0])) < _TOLD_APART:
        return False
    first, last = place[linked].min(), place[linked].max()
    n_between = int(((place >= first) & (place <= last)).sum())
    return len(linked) >= _MOSTLY * n_between
