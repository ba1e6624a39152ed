"""Which ranks the others wait for: those that spend clearly less time in communication than their peers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from rankscope.analyze.comm.measures import Measures, measures_of
from rankscope.analyze.comm.rows import numbered
from rankscope.analyze.derived import derived
from rankscope.analyze.device.events import processes_of, with_process
from rankscope.analyze.metric import Selection, metric
from rankscope.model.clock import median
from rankscope.model.tables import MISSING, Array, Table, Trace

CLEARLY = 0.03  # of a step: less is within the normal variation of steps
_PART_OF_WORST = 0.1  # of the cost of the worst step: where some steps are late by far, the others' is noise
_NEXT_TO_NOTHING = 0.05  # of the bytes that a rank's collectives carry


@dataclass(frozen=True)
class Exposure:
    """How long each rank spent in communication in each step, call by call."""

    ranks: Array
    steps: Array
    step_ns: Array  # per step
    rank_place: Array  # per call, in `ranks`
    step_place: Array  # per call, in `steps`
    group: Array  # per call
    exposed_ns: Array  # per call

    def totals(self, group: int | None = None) -> Array:
        """[rank, step] in the calls of the group, or in all; NaN where the rank was not traced in the step."""
        totals = np.full((len(self.ranks), len(self.steps)), np.nan)
        totals[self.rank_place, self.step_place] = 0.0
        chosen = slice(None) if group is None else np.flatnonzero(self.group == group)
        np.add.at(totals, (self.rank_place[chosen], self.step_place[chosen]), self.exposed_ns[chosen])
        return totals


@dataclass(frozen=True)
class Standing:
    """One rank against its peers."""

    rank: int
    group: int
    peers: tuple[int, ...]
    cost_ns: Array  # per step of Exposure, NaN where it cannot be compared
    exposed_ns: float
    peers_exposed_ns: float
    late_steps: tuple[int, ...]  # in which the cost is a clear part of the step, and of its cost in the worst one
    n_compared: int
    step_ns: float

    @property
    def mean_cost_ns(self) -> float:
        return float(np.nansum(self.cost_ns)) / max(self.n_compared, 1)

    @property
    def share(self) -> float:
        """The share of the step that its peers lose."""
        return self.mean_cost_ns / self.step_ns if self.step_ns > 0 else 0.0


@metric("stragglers", "stragglers", needs=("comms",))
def stragglers(trace: Trace, selection: Selection) -> Table:
    """One row per rank: how much less time per step it spends in communication than its peers.

    All ranks of a job have the same step time: the time that a rank does not need for its own work, it spends in
    communication. So the rank that spends the least time there is the one the others wait for, even if it looks idle: a
    rank with little computation and communication is not fast, its host is late. A rank that is late because it was
    held up in another group spends as long in communication as its peers, and is not blamed.

    Peers are the other traced members of a group with which the rank makes collectives; if there are several groups, it
    is the one in which it differs most. Groups whose collectives carry less than 5% of the rank's bytes, or of what
    their members send each other, are left out. cost_ns is the exposed communication (see comm_calls) of the median
    peer minus the rank's own, averaged over steps. It is the smaller of two numbers: over all calls (a rank that was
    held up elsewhere waited there) and over the calls of this group alone (a rank with time to spare keeps no one
    waiting). Calls that are missing from a trace count as the median of the members that were found. n_late_steps
    counts the steps in which the cost is at least 3% of the step and a tenth of the cost in the worst step. Without
    steps, the time that all traces have in common counts as one step.
    """
    rows = []
    n_last = _times_last(measures_of(trace))
    for standing in standings_of(trace):
        if selection.ranks is not None and standing.rank not in selection.ranks:
            continue
        rows.append(
            {
                "rank": standing.rank,
                "group_key": standing.group,
                "n_peers": len(standing.peers),
                "n_steps": standing.n_compared,
                "n_late_steps": len(standing.late_steps),
                "n_last": n_last.get(standing.rank, 0),
                "exposed_ns": int(standing.exposed_ns),
                "peers_exposed_ns": int(standing.peers_exposed_ns),
                "cost_ns": standing.mean_cost_ns,
                "step_ns": int(standing.step_ns),
                "cost_pct": 100 * standing.share,
            }
        )
    return Table.from_rows("stragglers", rows)


def _times_last(measures: Measures) -> dict[int, int]:
    ranks, counts = np.unique(measures.matching.rows.rank[measures.matches.last_row], return_counts=True)
    return dict(zip(ranks.tolist(), counts.tolist(), strict=True))


def standings_of(trace: Trace) -> list[Standing]:
    """All ranks that have peers; the one the others wait for most comes first."""
    return derived(trace, _compare_ranks)


def _compare_ranks(trace: Trace) -> list[Standing]:
    exposure = exposure_of(trace)
    companies = _companies(measures_of(trace))
    best: dict[int, Standing] = {}
    for group, members in companies:
        for standing in _compare_members(exposure, group, members):
            known = best.get(standing.rank)
            if known is None or standing.share > known.share:
                best[standing.rank] = standing
    return sorted(best.values(), key=lambda standing: (-standing.share, standing.rank))


def _compare_members(exposure: Exposure, group: int, members: Sequence[int]) -> Iterator[Standing]:
    places = np.flatnonzero(np.isin(exposure.ranks, members))
    everywhere, here = exposure.totals()[places], exposure.totals(group)[places]
    for row, position in enumerate(places.tolist() if len(places) > 1 else ()):
        others = np.arange(len(places)) != row
        usual = median(everywhere[others])
        # Held up elsewhere, it stood there; where it had time to spare, its peers did not have to stand here.
        cost = np.minimum(usual - everywhere[row], median(here[others]) - here[row])
        compared = ~np.isnan(cost)
        n_compared = int(np.count_nonzero(compared))
        worst = float(cost[compared].max(initial=0.0))
        is_late = compared & (cost >= np.maximum(CLEARLY * exposure.step_ns, _PART_OF_WORST * worst))
        yield Standing(
            rank=int(exposure.ranks[position]),
            group=group,
            peers=tuple(exposure.ranks[places[others]].tolist()),
            cost_ns=cost,
            exposed_ns=float(everywhere[row][compared].sum()) / max(n_compared, 1),
            peers_exposed_ns=float(usual[compared].sum()) / max(n_compared, 1),
            late_steps=tuple(exposure.steps[is_late].tolist()),
            n_compared=n_compared,
            step_ns=float(exposure.step_ns[compared].mean()) if n_compared else 0.0,
        )


def _companies(measures: Measures) -> list[tuple[int, tuple[int, ...]]]:
    """The groups whose members do the same work, each with the members that were traced.

    These are the groups of collectives, except for ranks to which they carry almost nothing (compared with the rank's
    other collectives, or with what the members pass on to each other): a last small reduction or a barrier over all
    ranks also joins pipeline stages, whose work differs. For the same reason transfers do not count, except between two
    ranks about which nothing else is known.
    """
    matching = measures.matching
    rows = matching.rows
    is_nameless = np.asarray([not group.name for group in matching.groups] or [False], bool)
    counts = np.flatnonzero((matching.match != MISSING) & (~rows.is_p2p | is_nameless[matching.group]))
    first, pair = numbered(matching.group[counts], rows.rank[counts])
    pairs = np.column_stack((matching.group[counts[first]], rows.rank[counts[first]]))
    n_bytes = np.maximum(rows.n_bytes[counts], 0)
    traffic = np.bincount(pair, n_bytes if n_bytes.any() else None, len(pairs))
    total = np.bincount(pairs[:, 1], traffic) if len(pairs) else np.empty(0)
    kept = traffic >= _NEXT_TO_NOTHING * np.maximum(total[pairs[:, 1]], _handed_on(measures, pairs))
    members: dict[int, list[int]] = {}
    for group, rank in pairs[kept].tolist():
        members.setdefault(group, []).append(rank)
    return [(group, tuple(ranks)) for group, ranks in members.items()]


def _handed_on(measures: Measures, pairs: Array) -> Array:
    """Bytes that transfers within the group carry, per group and rank: its members are stages, which hand on."""
    matching = measures.matching
    rows = matching.rows
    transfers = np.flatnonzero(rows.is_p2p)
    n_ranks = int(rows.rank.max(initial=0)) + 1
    keys, pair = np.unique(
        matching.group[transfers].astype(np.int64) * n_ranks + rows.rank[transfers], return_inverse=True
    )
    carried = dict(
        zip(keys.tolist(), np.bincount(pair, np.maximum(rows.n_bytes[transfers], 0), len(keys)), strict=True)
    )
    return np.array([carried.get(group * n_ranks + rank, 0.0) for group, rank in pairs.tolist()])


def exposure_of(trace: Trace) -> Exposure:
    return derived(trace, _measure_exposure)


def _measure_exposure(trace: Trace) -> Exposure:
    measures = measures_of(trace)
    rows = measures.matching.rows
    durations = _step_durations(trace)
    has_steps = np.isin(rows.process, [process for process, _ in durations])
    window = _common_window(measures)
    is_inside = (measures.end_ns > window[0]) & (measures.start_ns < window[1])
    usable = np.where(has_steps, rows.step != MISSING, is_inside)
    rank_of = processes_of(trace).rank
    marked = {(int(rank_of[process]), step) for process, step in durations}
    columns = (rows.rank, rows.step, measures.matching.group, measures.exposed_ns)
    rank, step, group, exposed = (
        np.concatenate((column[usable], filled))
        for column, filled in zip(columns, _missing_calls(measures, marked, window).T, strict=True)
    )
    ranks, rank_place = np.unique(rank, return_inverse=True)
    steps, step_place = np.unique(step, return_inverse=True)
    step_ns = np.array([_typical_step(durations, number, window) for number in steps.tolist()])
    return Exposure(ranks, steps, step_ns, rank_place.reshape(-1), step_place.reshape(-1), group, exposed)


def _step_durations(trace: Trace) -> dict[tuple[int, int], int]:
    """By process and step."""
    steps = with_process(
        trace, trace.sql("SELECT file_id, rank, step, duration_ns FROM steps WHERE step IS NOT NULL").columns()
    )
    columns = (steps[name].tolist() for name in ("process", "step", "duration_ns"))
    return {(process, step): duration for process, step, duration in zip(*columns, strict=True)}


def _typical_step(durations: dict[tuple[int, int], int], number: int, window: tuple[int, int]) -> float:
    step_durations = [duration for (_, step), duration in durations.items() if step == number]
    if not step_durations:
        return float(max(window[1] - window[0], 0))
    return float(median(np.array(step_durations, np.float64)))


def _common_window(measures: Measures) -> tuple[int, int]:
    """The time in which all traces saw communication."""
    process = measures.matching.rows.process
    if not len(process):
        return 0, 0
    first = np.flatnonzero(np.diff(process, prepend=-2) != 0)
    starts, ends = (
        reduce.reduceat(times, first)
        for reduce, times in ((np.minimum, measures.start_ns), (np.maximum, measures.end_ns))
    )
    return int(starts.max()), int(ends.min())


def _missing_calls(measures: Measures, marked: set[tuple[int, int]], window: tuple[int, int]) -> Array:
    """Rank, step, group and exposed time of calls that are missing from a trace: as the middle of the other members'.

    `marked` are the steps that each rank recorded; without any it recorded the common window.
    """
    matching, matches = measures.matching, measures.matches
    rows = matching.rows
    incomplete = np.flatnonzero(~matches.is_complete & ~rows.is_p2p[matches.last_row])
    marking, traced = {rank for rank, _ in marked}, set(rows.rank.tolist())
    alone = np.flatnonzero(matching.match == MISSING)  # a call without partners may be the one that is missed
    spare = set(zip(*(column[alone].tolist() for column in (rows.rank, rows.step, matching.group)), strict=True))
    filled: list[tuple[int, int, int, int]] = []
    calls = np.flatnonzero(np.isin(matching.match, incomplete) & (matching.match != MISSING))
    calls = calls[np.lexsort((measures.exposed_ns[calls], matching.match[calls]))]
    edges = (
        np.searchsorted(matching.match[calls], incomplete),
        np.searchsorted(matching.match[calls], incomplete, "right"),
    )
    for match, low, high in zip(incomplete.tolist(), *(edge.tolist() for edge in edges), strict=True):
        seen = calls[low:high]
        usual, step = int(measures.exposed_ns[seen[(high - low - 1) // 2]]), int(rows.step[matches.last_row[match]])
        moment = int(matches.end_ns[match])
        group = int(matching.group[seen[0]])
        absent = set(matching.groups[group].ranks) - set(rows.rank[seen].tolist())
        for rank in absent & traced:
            is_recorded = (rank, step) in marked if rank in marking else window[0] <= moment <= window[1]
            if is_recorded and (rank, step, group) not in spare:
                filled.append((rank, step, group, usual))
    return np.asarray(filled, np.int64).reshape(-1, 4)
