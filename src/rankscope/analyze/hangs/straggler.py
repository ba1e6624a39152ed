"""S201: ranks that are regularly late to collectives."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from rankscope.analyze.chance import explains, likelihood, without_core
from rankscope.analyze.derived import derived
from rankscope.analyze.hangs.evidence import call_text, collective_ref, group_ref, group_text, location_of
from rankscope.analyze.hangs.programs import programs_of
from rankscope.analyze.hangs.signatures import SYNCHRONISING
from rankscope.analyze.hangs.view import JobView, job_view
from rankscope.analyze.hangs.wording import peers_phrase
from rankscope.analyze.registry import Effect, Skipped, rule
from rankscope.model.clock import POLL_NS, median
from rankscope.model.finding import Evidence, Finding, count_noun, format_duration, ranks_phrase
from rankscope.model.tables import MISSING, Array, Trace

_MIN_EVENTS = 4
_ENOUGH_STEPS = 10  # for a ring to show a habit beside what is not delayed
_USUAL_RING = 2000  # what torch keeps unless told otherwise
_MIN_LATE_NS = 10_000_000
_MIN_SHARE_OF_TIME = 0.1  # less than this of the group's time lost is not worth a finding
_MAX_SPREAD = 0.5  # lateness that varies more than this around its median is noise, not a habit
# Which share of the delayed collectives one rank must have delayed, and how likely it may be at most that some rank
# is last so often by luck.
_HABIT = (0.6, 0.13)  # four of four, in a group of two
_HABIT_IF_RECORDED = (0.6, 1e-3)  # by the collector: it keeps so many calls that luck need not be believed
_HABIT_IF_CROWDED = (0.9, 1e-6)  # on a host with too few cores, where delays come in runs


@rule("S201", "straggler", needs=("collectives", "groups", "matches"))
def straggler(trace: Trace) -> Iterator[Finding | Effect | Skipped]:
    """A rank joins its collectives late, step after step, and the others wait for it.

    What it means: all other ranks lose the time between their own arrival and this rank's arrival, in every step.
    Lateness is measured when calls are enqueued. Host clocks are aligned by the completion times of calls that hosts
    share.

    Why it happens: a slower device (heat, power, other jobs on the host), a slower host (data loading, garbage
    collection, logging on one rank), more work on one rank.

    What to do: profile one step of this rank and of another rank. Swap the host and see whether the lateness moves
    with it.

    What could fool it: a rank that is late because it was itself delayed in another group; that is why the group with
    the largest loss is reported. Across hosts, only lateness beyond the uncertainty of their clocks counts; without
    completion times (gloo), the clocks of different hosts are used as they are. On a host with too few cores, ranks are
    late by chance: if the collector saw ranks wait for a core that long, a rank is named only if it is almost always
    the last. A broadcast counts only if all members left it together. If the ring buffer kept only a few steps, the
    rule is listed as not checked, with the ring size to use.
    """
    view = job_view(trace)
    matrices = list(_group_matrices(view))
    late_ranks = [late for rows in matrices if (late := _late_rank(view, rows)) is not None]
    if late_ranks:
        worst = max(late_ranks, key=lambda late: late.lost_ns)
        # A delay may last over several groups' calls: the one that it comes right before shows the line.
        same = [late for late in late_ranks if late.rank == worst.rank]
        yield _finding(view, max(same, key=lambda late: (_is_origin(view, late), late.lost_ns)))
        return
    too_little = _too_little(view, matrices)
    if too_little:
        yield Skipped(too_little)


@dataclass(frozen=True)
class Late:
    """A rank that delayed most of the delayed collectives of a group."""

    rank: int
    lateness_ns: Array  # per collective that it delayed, against the median arrival of the others
    rows: Array  # its calls there
    n_collectives: int
    n_delayed: int
    lost_ns: int


def _is_origin(view: JobView, late: Late) -> bool:
    """Whether the rank took most of the time right before these calls, not before earlier ones of other groups."""
    rows, total = view.rows_of(late.rank), _own_time_ns(view)
    before = rows[np.maximum(np.searchsorted(rows, late.rows) - 1, 0)]
    return bool(median(total[late.rows] - total[before]) > median(late.lateness_ns) / 2)


def _group_matrices(view: JobView) -> Iterator[Array]:
    """Per set of ranks: rows[member, collective] of the collectives that all joined, waited in and finished.

    Groups of the same ranks, and those that were made again, show the same habit.
    """
    matches = view.trace.table("matches")
    n_members, n_joined = matches.array("n_members"), matches.array("n_joined")
    is_whole = (n_joined == n_members) & (matches.array("n_done") == n_joined)
    usable = np.flatnonzero(~matches.array("is_p2p") & (n_members > 1) & is_whole)
    groups = matches.array("group_id")[usable]
    op = matches.text("op")
    waits = np.fromiter((name in SYNCHRONISING for name in op.values), bool, len(op.values))[op.codes][usable]
    rows, starts = view.match_rows
    together: dict[tuple[int, ...], list[int]] = defaultdict(list)
    for group in sorted(set(groups.tolist())):
        together[view.members[group]].append(group)
    for members, same in together.items():
        chosen = np.isin(groups, same)
        calls = rows[starts[usable[chosen]][:, None] + np.arange(len(members))].T
        calls = calls[:, waits[chosen] | _left_together(view, calls)]
        if calls.shape[1]:
            yield calls[:, np.argsort(view.created[calls[0]], kind="stable")]


def _left_together(view: JobView, calls: Array) -> Array:
    """Whether all made their next call only after the last had joined, and at the same time.

    A broadcast need not wait for all of its members. Where it did not, who is late to it is late to the next call too.
    """
    after = _next_created_ns(view)[calls]
    arrival = np.sort(view.created[calls], axis=0)
    is_close = np.ptp(after, axis=0) < (arrival[-1] - arrival[-2]) / 2
    has_waited: Array = is_close & (after > arrival[-1]).all(axis=0)
    return has_waited


def _next_created_ns(view: JobView) -> Array:
    """When the rank made the call after each call; 0 after its last one."""
    after = np.zeros(len(view.calls), np.int64)
    follows = view.rank[view.program[1:]] == view.rank[view.program[:-1]]
    after[view.program[:-1][follows]] = view.created[view.program[1:][follows]]
    return after


def _too_little(view: JobView, matrices: Sequence[Array]) -> str:
    """Why there is too little data to find a straggler, and what to record; empty if there is enough."""
    ranks = view.trace.table("ranks")
    short = ranks.array("rank")[ranks.array("n_dropped") > 0].tolist()
    # Who dropped calls and kept few steps needs a larger ring; for all others the ring is not to blame.
    kept = [(_n_steps(view, rank), len(view.rows_of(rank))) for rank in short]
    n_steps, n_calls = min(kept, default=(_MIN_EVENTS, 0))
    if n_steps < _MIN_EVENTS:
        about = f"the ring buffer kept only {count_noun(n_calls, 'call')} per rank"
        steps = f"about {count_noun(max(n_steps, 1), 'step')}; {_MIN_EVENTS} are needed"
        return f"{about}, {steps}: {_larger_ring(n_calls, n_steps)}"
    n_most = max((rows.shape[1] for rows in matrices), default=0)
    if n_most < _MIN_EVENTS:
        most = f"no set of ranks has more than {count_noun(n_most, 'collective')} that completed on all its ranks"
        missing = sorted({rank for members in view.members for rank in members} - view.dumped)
        return f"{most}; {_MIN_EVENTS} are needed{f': add the dump of {ranks_phrase(missing)}' if missing else ''}"
    n_delayed = max(len(_delays(view, rows).late) for rows in matrices)
    is_partial = min((_n_steps(view, rank) for rank in (*short, *view.cut)), default=_ENOUGH_STEPS) < _ENOUGH_STEPS
    if is_partial and 0 < n_delayed < _MIN_EVENTS:
        seen = f"the dumps show only {count_noun(n_delayed, 'delayed collective')}; {_MIN_EVENTS} are needed"
        again = f"copy the truncated dump of {ranks_phrase(sorted(view.cut))} again" if view.cut else ""
        return f"{seen}: {again or _larger_ring(n_calls, n_delayed)}"
    return ""


def _larger_ring(n_calls: int, n_steps: int) -> str:
    size = max(_USUAL_RING, math.ceil(n_calls * _ENOUGH_STEPS / max(n_steps, 1) / 1000) * 1000)
    return f"record with TORCH_FR_BUFFER_SIZE={size}"


def _n_steps(view: JobView, rank: int) -> int:
    """How many steps of the rank were kept: how often it made its recent calls, ignoring those of the startup.

    Many calls are made several times per step, and a few only in some steps: the first quarter is between them.
    """
    tokens = programs_of(view.trace).token[view.rows_of(rank)]
    recent = np.unique(tokens[len(tokens) // 2 :])
    _, counts = np.unique(tokens[np.isin(tokens, recent)], return_counts=True)
    return int(np.sort(counts)[len(counts) // 4]) if len(counts) else 0


@dataclass(frozen=True)
class Delays:
    """The collectives of a group that waited for one rank, which had not been held up itself."""

    arrival: Array  # [member, collective]
    latest: Array  # per collective, the index of the member that came last
    alone_ns: Array  # per collective, the time from the second to last arrival to the last: what the others lost
    late: Array  # the collectives that were delayed


def _delays(view: JobView, rows: Array) -> Delays:
    """After the first collective of a step all ranks run together again: only few collectives are delayed at all."""
    arrival = view.created[rows].astype(np.float64)
    ordered = np.sort(arrival, axis=0)
    alone = ordered[-1] - ordered[-2]
    latest = np.argmax(arrival, axis=0)
    # Who was itself held up in another group passes the delay on, but is not its origin; and a delay that lasts over
    # several collectives has its origin before the first of them.
    working = np.diff(_own_time_ns(view)[rows], axis=1, prepend=0.0)
    others = median(np.sort(working, axis=0)[:-1], axis=0)
    is_late = alone > max(_MIN_LATE_NS, _clock_error_ns(view, rows[:, 0]))
    is_late &= working[latest, np.arange(rows.shape[1])] - others > alone / 2
    return Delays(arrival, latest, alone, np.flatnonzero(is_late))


def _late_rank(view: JobView, rows: Array) -> Late | None:
    """The rank that most of the delayed collectives of a group waited for."""
    delays = _delays(view, rows)
    if len(delays.late) < _MIN_EVENTS:
        return None
    members, counts = np.unique(delays.latest[delays.late], return_counts=True)
    top = int(members[np.argmax(counts)])
    rank = int(view.rank[rows[top, 0]])
    mine = delays.late[delays.latest[delays.late] == top]
    ordered, alone = np.sort(delays.arrival, axis=0), delays.alone_ns[mine]
    lost_share = float(alone.sum()) / _time_together_ns(ordered[-1], mine)
    if not _is_habit(len(mine), len(delays.late), len(rows), _bounds_of_luck(view.trace, rank, lost_share)):
        return None
    middle = ordered[:-1].mean(axis=0) if len(rows) < 4 else median(ordered[:-1], axis=0)
    delay = (ordered[-1] - middle)[mine]
    spread = median(np.abs(delay - median(delay)))
    if spread > _MAX_SPREAD * median(delay) or lost_share < _MIN_SHARE_OF_TIME:
        return None
    lost = int(alone.sum()) * (len(rows) - 1)
    return Late(rank, delay, rows[top, mine], rows.shape[1], len(delays.late), lost)


def _time_together_ns(ends: Array, late: Array) -> float:
    """The time in which the group worked: a pause longer than from one delay to the next counts as one such time."""
    usual = float(median(np.diff(ends[late]))) if len(late) > 1 else float(np.ptp(ends))
    return max(float(np.minimum(np.diff(ends), usual).sum()), 1.0)


def _bounds_of_luck(trace: Trace, rank: int, lost_share: float) -> tuple[float, float]:
    waited = without_core(trace, rank)
    if waited is None:
        return _HABIT
    return _HABIT_IF_CROWDED if explains(waited, lost_share) else _HABIT_IF_RECORDED


def _is_habit(n_last: int, n_delayed: int, n_ranks: int, bounds: tuple[float, float]) -> bool:
    share, by_luck = bounds
    is_often = n_last >= max(_MIN_EVENTS, share * n_delayed)
    return is_often and likelihood(n_last, n_delayed, n_ranks) <= by_luck


def _own_time_ns(view: JobView) -> Array:
    """Up to each call, the time that the rank itself took: between its calls, without waiting for others to join."""
    return derived(view.trace, _measure_own_time)


def _measure_own_time(trace: Trace) -> Array:
    view = job_view(trace)
    matched = np.flatnonzero(view.match >= 0)
    joined = trace.table("matches").array("last_created_ns")[view.match[matched]]
    by_rank = np.lexsort((joined, view.rank[matched]))
    matched, joined = matched[by_rank], joined[by_rank]
    starts = np.searchsorted(view.rank[matched], view.ranks, "left").tolist()
    ends = np.searchsorted(view.rank[matched], view.ranks, "right").tolist()
    working = np.zeros(len(view.calls), np.float64)
    for rank, start, end in zip(view.ranks, starts, ends, strict=True):
        rows = view.rows_of(rank)
        created = view.created[rows]
        # A rank that enqueues ahead waits for an older call than its previous one: what counts is who came when.
        joins = np.concatenate(([0], joined[start:end]))
        released = np.maximum(created[:-1], joins[np.searchsorted(joins, created[1:], "left") - 1])
        # Before the first call nothing is recorded.
        working[rows[1:]] = np.cumsum(np.maximum(created[1:] - released, 0))
    return working


def _clock_error_ns(view: JobView, rows: Array) -> float:
    """How far the clocks of these ranks may be from each other, generously; 0 on one host."""
    table = view.trace.table("ranks")
    members = np.isin(table.array("rank"), view.rank[rows])
    hosts = set(table.text("host").take(np.flatnonzero(members)).tolist())
    errors = table.array("clock_error_ns")[members]
    if len(hosts) == 1 and "" not in hosts:
        return 0.0
    largest = float(errors.max(initial=0))
    # Beside a clock that was corrected, one that was left alone may be wrong by a polling period.
    is_mixed = largest > 0 and bool((errors == MISSING).any())
    return max(6 * largest, POLL_NS + 3 * largest if is_mixed else 0.0)


def _finding(view: JobView, late: Late) -> Finding:
    typical = format_duration(int(median(late.lateness_ns)))
    worst = int(late.rows[int(np.argmax(late.lateness_ns))])
    sites, counts = np.unique(view.calls.array("site_id")[late.rows], return_counts=True)
    usual = int(late.rows[np.argmax(view.calls.array("site_id")[late.rows] == sites[np.argmax(counts)])])
    group = int(view.group[worst])
    peers = [rank for rank in view.members[group] if rank != late.rank]
    lost = format_duration(late.lost_ns)
    worst_late = format_duration(int(late.lateness_ns.max()))
    advice = f"profile one step of rank {late.rank} and of a peer; check its host for load, heat and data loading"
    waiting = f"{peers_phrase(peers, 'its')} in {group_text(view, group)}"
    return Finding(
        severity="warning",
        certainty="likely",
        title=f"rank {late.rank} keeps {waiting} waiting, {typical} each time",
        ranks=(late.rank,),
        group=group_ref(view, group),
        collective=collective_ref(view, usual),
        location=location_of(view, usual),
        evidence=Evidence(
            certain=(
                f"it was the last to join {len(late.rows)} of {late.n_delayed} delayed collectives "
                f"({late.n_collectives} in total)",
                f"worst: {worst_late} at seq {int(view.seq[worst])}, {call_text(view, worst)}",
            ),
            likely=(f"{peers_phrase(peers, 'its')} lost {lost}{' in total' * (len(peers) > 1)} waiting for it",),
            facts={
                "lateness_ns": int(median(late.lateness_ns)),
                "n_late": len(late.rows),
                "n_collectives": late.n_collectives,
                "lost_ns": late.lost_ns,
            },
        ),
        help=advice,
    )
