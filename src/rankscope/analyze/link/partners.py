"""The table et_pairs: which profiler trace belongs to each execution trace, and which of its events each node is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any, NamedTuple

import numpy as np

from rankscope.analyze.derived import derived, table
from rankscope.analyze.link.alignment import align_threads, nodes_recording, profile_recording
from rankscope.analyze.link.nodes import EVENT_COLUMNS, EVENTS, NODE_ORDER, Events, Nodes, file_slices, nodes_of
from rankscope.model.tables import MISSING, Array, Table, Trace

# What is told of several profiles that do not fit: first those that are of the same run.
_REASONS = ("no-overlap", "no-observer", "different-run", "no-profile")
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
_SECOND_NS = 10**9
_ZONE_NS = 15 * 60 * _SECOND_NS  # zones differ from UTC by multiples of it
_MAX_ZONE_NS = 14 * 60 * 60 * _SECOND_NS
_TOLERANCE_NS = 5 * _SECOND_NS  # the execution trace has whole seconds
_EPOCH_SINCE_NS = 10**18  # before it (2001): a clock that does not count from the epoch

_PAIRS = f"""
    SELECT t.file_id, p.file_id AS profile_id, NOT list_contains(pids, t.pid) AS is_other_process, t.recorded,
           t.finish_ms - t.start_ms AS lasted_ms, p.start_ns, p.end_ns
    FROM et_traces AS t JOIN profiles AS p ON p.rank IS NOT DISTINCT FROM t.rank
    LEFT JOIN (
        SELECT file_id, rank, list(DISTINCT pid) AS pids FROM {EVENTS} WHERE pid IS NOT NULL GROUP BY ALL
    ) AS e ON e.file_id = p.file_id AND e.rank IS NOT DISTINCT FROM p.rank
"""


@table("et_pairs", needs=("et_nodes",))
def et_pairs(trace: Trace) -> Table:
    """One row per execution trace."""
    nodes, partners = nodes_of(trace), partners_of(trace)
    by_file: dict[int, list[Judged]] = {}
    for judged in partners.judged:
        by_file.setdefault(judged.candidate.file_id, []).append(judged)
    partner_row = np.full(len(nodes), MISSING)
    partner_row[partners.node] = np.arange(len(partners.node))
    rows = []
    for node_rows in file_slices(nodes.file_id):
        trace_nodes = _taken(nodes, node_rows)
        file_id, rank = int(trace_nodes.file_id[0]), int(trace_nodes.rank[0])
        row = _described(trace_nodes, partner_row[node_rows], partners, by_file.get(file_id, []))
        rows.append({"file_id": file_id, "rank": rank, **row})
    return Table.from_rows("et_pairs", rows)


def _taken(nodes: Nodes, rows: slice) -> Nodes:
    return Nodes(*(getattr(nodes, name)[rows] for name in nodes.__dataclass_fields__))


def _described(nodes: Nodes, partner_row: Array, partners: Partners, judged: Sequence[Judged]) -> dict[str, Any]:
    linked = partner_row[partner_row >= 0]
    n_linkable = int(nodes.is_linkable.sum())
    row = {
        "n_nodes": len(nodes),
        "n_operators": int(nodes.is_operator.sum()),
        "n_linkable": n_linkable,
        "n_linked": len(linked),
        "link_pct": 100 * len(linked) / n_linkable if n_linkable else np.nan,
    }
    chosen = [each for each in judged if each.how]
    if not chosen:
        n_wrong = max((each.n_wrong for each in judged), default=0)
        reasons = {each.why for each in judged} or {"no-profile"}
        why = min(reasons, key=_REASONS.index)
        return row | {"method": HOW[0], "n_outside": 0, "n_wrong_names": n_wrong, "why": why}
    profiles, n_linked = np.unique(partners.events.profile_id[linked], return_counts=True)
    n_by_profile = dict(zip(profiles.tolist(), n_linked.tolist(), strict=True))
    best = max(chosen, key=lambda each: n_by_profile.get(each.candidate.profile_id, 0))
    n_outside = _n_outside(nodes, partner_row, chosen)
    return row | {
        "profile_id": best.candidate.profile_id,
        "method": HOW[best.how],
        "n_wrong_names": sum(each.n_wrong for each in chosen),
        "n_outside": n_outside,
        "covered_pct": 100 * n_by_profile[best.candidate.profile_id] / best.candidate.n_events,
        "why": "partial" if n_outside else "no-ids" if best.how == BY_ALIGNMENT else "",
    }


def _n_outside(nodes: Nodes, partner_row: Array, chosen: Sequence[Judged]) -> int:
    """Nodes that began before the profilers did, or after: by numbers, or by what is linked where there are none."""
    is_missing = nodes.is_linkable & (partner_row < 0)
    if chosen[0].how != BY_ID:
        linked = np.flatnonzero(partner_row >= 0)
        return int(is_missing[: linked[0]].sum() + is_missing[linked[-1] :].sum())
    is_missing &= nodes.record_id >= 0
    for each in chosen:
        first, last = each.candidate.first_id or 0, each.candidate.last_id or 0
        is_missing &= (nodes.record_id < first) | (nodes.record_id > last)
    return int(is_missing.sum())


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
    recording, node = nodes_recording(trace, candidate.file_id, parent)
    profile = profile_recording(trace, candidate.profile_id, candidate.rank)
    start, end = profile.events.start_ns, profile.events.start_ns + profile.events.duration_ns
    partner = align_threads(recording, profile.recording, start, end)
    linked = np.flatnonzero(partner >= 0)
    if not _is_convincing(candidate, recording.track.seq_id[linked], node, linked):
        linked = linked[:0]
    return Links(node[linked], profile.events.take(partner[linked]))


def _is_convincing(candidate: Candidate, seq_id: Array, node: Array, linked: Array) -> bool:
    if not len(linked):
        return False
    # It takes more than names to contradict a profiler that saw no observer.
    if candidate.is_unobserved and len(np.unique(seq_id[seq_id >= 0])) < _TOLD_APART:
        return False
    first, last = node[linked].min(), node[linked].max()
    n_between = int(((node >= first) & (node <= last)).sum())
    return len(linked) >= _MOSTLY * n_between


def contradictions(trace: Trace) -> dict[tuple[int, int], int]:
    """For every execution trace and profile of one rank, how many of the two speak against one run."""
    return {
        (file_id, profile_id): bool(is_other_process) + is_other_time(recorded, lasted_ms, start_ns, end_ns)
        for file_id, profile_id, is_other_process, recorded, lasted_ms, start_ns, end_ns in trace.sql(_PAIRS).rows()
    }


def is_other_time(recorded: str | None, lasted_ms: int | None, start_ns: int | None, end_ns: int | None) -> bool:
    """True when no time zone makes the two overlap: the execution trace has local time, and does not say where."""
    if start_ns is None or end_ns is None or start_ns < _EPOCH_SINCE_NS:
        return False
    try:
        begun = datetime.strptime(recorded or "", "%Y-%m-%d %H:%M:%S").replace(tzinfo=timezone.utc)
    except ValueError:
        return False
    begun_ns = int(begun.timestamp()) * _SECOND_NS
    latest = min(end_ns - begun_ns + _TOLERANCE_NS, _MAX_ZONE_NS)
    earliest = -_MAX_ZONE_NS
    if lasted_ms is not None:  # else it was cut off, and may have gone on for long
        earliest = max(earliest, start_ns - begun_ns - lasted_ms * 10**6 - _TOLERANCE_NS)
    return latest // _ZONE_NS * _ZONE_NS < earliest
