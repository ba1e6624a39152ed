"""S201: ranks that are regularly late to collectives."""

from __future__ import annotations

import math
from collections.abc import Iterator
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
from rankscope.model.clock import median
from rankscope.model.finding import Evidence, Finding, count_noun, format_duration
from rankscope.model.tables import Array, Trace

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
    Lateness is measured when calls are enqueued. Host clocks are aligned by the completions that hosts share.

    Why it happens: a slower device (heat, power, other jobs on the host), a slower host (data loading, garbage
    collection, logging on one rank), more work on one rank.

    What to do: profile one step of this rank and of another rank. Swap the host and see whether the lateness moves
    with it.

    What could fool it: a rank that is late because it was itself delayed in another group; that is why the group with
    the largest loss is reported. Across hosts, only lateness beyond the uncertainty of their clocks counts; without
    completion times (gloo), the clocks of different hosts are used as they are. On a host with too few cores, ranks are
    late by chance: if the collector saw ranks wait for a core that long, a rank is named only if it is almost always
    the last. If the ring buffer kept only a few steps, the rule is listed as not checked, with the ring size to use.
    """
    view = job_view(trace)
    matrices = list(_group_matrices(view))
    late_ranks = [late for rows in matrices if (late := _late_rank(view, rows)) is not None]
    if late_ranks:
        yield _finding(view, max(late_ranks, key=lambda late: late.lost_ns))
        return
    too_little = _too_little(view, n_most=max((rows.shape[1] for rows in matrices), default=0))
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


def _group_matrices(view: JobView) -> Iterator[Array]:
    """Per group: rows[member, collective] of the collectives that all members joined and finished."""
    matches = view.trace.table("matches")
    op = matches.text("op")
    synchronises = np.fromiter((name in SYNCHRONISING for name in op.values), bool, len(op.values))[op.codes]
    n_members, n_joined = matches.array("n_members"), matches.array("n_joined")
    usable = np.flatnonzero(
        synchronises
        & ~matches.array("is_p2p")
        & (n_members > 1)
        & (n_joined == n_members)
        & (matches.array("n_done") == n_joined)
    )
    groups = matches.array("group_id")[usable]
    rows, starts = view.match_rows
    for group in sorted(set(groups.tolist())):
        chosen = usable[groups == group]
        members = np.arange(int(n_members[chosen[0]]))
        yield rows[starts[chosen][:, None] + members].T


def _too_little(view: JobView, n_most: int) -> str:
    """Why there is too little data to find a straggler, and what to record; empty if there is enough."""
    ranks = view.trace.table("ranks")
    short = ranks.array("rank")[ranks.array("n_dropped") > 0].tolist()
    # Who dropped calls and kept few steps needs a larger ring; for all others the ring is not to blame.
    kept = [(_n_steps(view, rank), len(view.rows_of(rank))) for rank in short]
    n_steps, n_calls = min(kept, default=(_MIN_EVENTS, 0))
    if n_steps < _MIN_EVENTS:
        size = max(_USUAL_RING, math.ceil(n_calls * _ENOUGH_STEPS / max(n_steps, 1) / 1000) * 1000)
        about = f"the ring buffer kept only {count_noun(n_calls, 'call')} per rank"
        steps = f"about {count_noun(max(n_steps, 1), 'step')}; {_MIN_EVENTS} are needed"
        return f"{about}, {steps}: record with TORCH_FR_BUFFER_SIZE={size}"
    if n_most < _MIN_EVENTS:
        most = f"no group has more than {count_noun(n_most, 'collective')} that completed on all its ranks"
        return f"{most}; {_MIN_EVENTS} are needed"
    return ""


def _n_steps(view: JobView, rank: int) -> int:
    """How many steps of the rank were kept: how often it made its recent calls, ignoring those of the startup."""
    tokens = programs_of(view.trace).token[view.rows_of(rank)]
    recent = np.unique(tokens[len(tokens) // 2 :])
    _, counts = np.unique(tokens[np.isin(tokens, recent)], return_counts=True)
    return int(np.median(counts)) if len(counts) else 0


def _late_rank(view: JobView, rows: Array) -> Late | None:
    """The rank that most of the delayed collectives of a group waited for.

    After the first collective of a step all ranks run together again, so the delays that count are those of the few
    collectives that were delayed at all, not the average over all of them.
    """
    arrival = view.created[rows].astype(np.float64)
    ordered = np.sort(arrival, axis=0)
    middle = ordered[: len(rows) - 1].mean(axis=0) if len(rows) < 4 else median(ordered[:-1], axis=0)
    delay = ordered[-1] - middle
    # What the others lost is the time from the second to last arrival to the last.
    alone = ordered[-1] - ordered[-2]
    is_delayed = alone > max(_MIN_LATE_NS, 6 * _clock_error_ns(view, rows[:, 0]))
    if np.count_nonzero(is_delayed) < _MIN_EVENTS:
        return None
    latest = np.argmax(arrival, axis=0)
    columns = np.arange(rows.shape[1])
    # Who was itself held up in another group passes the delay on, but is not its origin.
    own = _own_time_ns(view)[rows]
    others = median(np.sort(own, axis=0)[:-1], axis=0)
    is_delayed &= own[latest, columns] - others > alone / 2
    if np.count_nonzero(is_delayed) < _MIN_EVENTS:
        return None
    last = view.rank[rows[latest, columns]]
    ranks, counts = np.unique(last[is_delayed], return_counts=True)
    top = int(np.argmax(counts))
    mine = np.flatnonzero(is_delayed & (last == ranks[top]))
    lost_share = float(alone[mine].sum() / max(np.ptp(ordered[-1]), 1.0))
    bounds = _bounds_of_luck(view.trace, int(ranks[top]), lost_share)
    if not _is_habit(int(counts[top]), int(np.count_nonzero(is_delayed)), len(rows), bounds):
        return None
    middle_delay = median(delay[mine])
    spread = median(np.abs(delay[mine] - middle_delay))
    if spread > _MAX_SPREAD * middle_delay or lost_share < _MIN_SHARE_OF_TIME:
        return None
    own_rows = rows[np.argmax(arrival[:, mine], axis=0), mine]
    lost = int(alone[mine].sum()) * (len(rows) - 1)
    return Late(int(ranks[top]), delay[mine], own_rows, rows.shape[1], int(np.count_nonzero(is_delayed)), lost)


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
    """Time of each call since the rank's previous one, counted from when the last member joined that one."""
    return derived(view.trace, _measure_own_time)


def _measure_own_time(trace: Trace) -> Array:
    view = job_view(trace)
    program = view.program
    previous = np.full(len(view.calls), -1, np.int64)
    follows = view.rank[program[1:]] == view.rank[program[:-1]]
    previous[program[1:][follows]] = program[:-1][follows]
    released = view.created[previous]
    is_matched = view.match[previous] >= 0
    joined = trace.table("matches").array("last_created_ns")
    released[is_matched] = np.maximum(released[is_matched], joined[view.match[previous[is_matched]]])
    own = np.where(previous >= 0, view.created - released, 0).astype(np.float64)
    return np.maximum(own, 0.0)


def _clock_error_ns(view: JobView, rows: Array) -> float:
    """The uncertainty of these ranks' clocks against each other; 0 on one host."""
    table = view.trace.table("ranks")
    members = np.isin(table.array("rank"), view.rank[rows])
    hosts = set(table.text("host").take(np.flatnonzero(members)).tolist())
    errors = table.array("clock_error_ns")[members]
    if len(hosts) == 1 and "" not in hosts:
        return 0.0
    return float(errors.max(initial=0))


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
