"""The finding about a rank that keeps its peers waiting, whatever the cause is."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import PurePath

import numpy as np

from rankscope.analyze.late import causes
from rankscope.analyze.late.causes import Cause, causes_of
from rankscope.analyze.late.spending import Part
from rankscope.model.finding import Comparison, Evidence, Finding, Side, count_noun, format_duration, ranks_phrase
from rankscope.model.tables import Trace


def of_kind(trace: Trace, kind: str) -> list[Cause]:
    return [cause for cause in causes_of(trace) if cause.kind == kind]


def findings(trace: Trace, kind: str, why: str, fix: str) -> Iterator[Finding]:
    for cause in of_kind(trace, kind):
        yield finding(cause, why, fix)


def finding(cause: Cause, why: str, fix: str, more: tuple[str, ...] = ()) -> Finding:
    delays = cause.delays
    n_late, each = len(delays.late_ns), format_duration(int(np.median(delays.late_ns)))
    peers = ranks_phrase(delays.peers) if len(delays.peers) == 1 else f"its {count_noun(len(delays.peers), 'peer')}"
    often = f"{each} in {n_late:,} of {count_noun(delays.n_calls, 'collective')}" if n_late > 1 else f"{each}, once"
    often += f" ({100 * delays.share:.0f}% of the time)"
    before = "each of these calls" if n_late > 1 else "this call"
    rank_time, usual = (format_duration(int(ns / n_late)) for ns in (cause.own_ns, cause.peers_ns))
    return Finding(
        severity="warning" if n_late > 1 else "info",
        certainty="certain" if delays.is_habit and cause.spent.n_samples >= 10 else "likely",
        title=f"rank {delays.rank} keeps {peers} waiting {often}: {why}{_at(cause)}",
        ranks=(delays.rank,),
        location=cause.location,
        evidence=Evidence(
            certain=(
                f"{peers} lost {format_duration(delays.lost_ns)} each waiting for it",
                f"it spends {rank_time} on this before {before}, its median peer {usual}",
                *more,
            ),
            comparison=_comparison(cause),
            cost_pct=100 * delays.share,
            cost_ns=int(delays.lost_ns / n_late),
            facts={
                "cause": cause.kind,
                "lost_ns": delays.lost_ns,
                "n_late": n_late,
                "n_calls": delays.n_calls,
                "own_ns": int(cause.own_ns),
                "peers_ns": int(cause.peers_ns),
                "n_samples": cause.spent.n_samples,
            },
        ),
        help=fix,
    )


def _at(cause: Cause) -> str:
    location = cause.location
    return f" ({PurePath(location.file).name}:{location.line})" if location else ""


def _comparison(cause: Cause) -> Comparison:
    """The largest differences, per late call."""
    n_late = len(cause.delays.late_ns)
    parts = {part for spent in (cause.spent, *cause.peers_spent) for part in spent.parts}

    def usual(part: Part) -> float:
        return float(np.median([spent.parts.get(part, 0.0) for spent in cause.peers_spent]))

    def own(part: Part) -> float:
        return cause.spent.parts.get(part, 0.0)

    shown = sorted(parts, key=lambda part: (part != cause.part, -abs(own(part) - usual(part))))[:4]
    shown = [part for part in shown if max(own(part), usual(part)) >= 0.02 * cause.spent.total_ns]
    return Comparison(
        "per late call",
        tuple(_NAMES.get(part.kind) or short(part.site) for part in shown),
        (
            Side(
                "median peer", cause.delays.peers, tuple(format_duration(int(usual(part) / n_late)) for part in shown)
            ),
            Side(
                f"rank {cause.delays.rank}",
                (cause.delays.rank,),
                tuple(format_duration(int(own(part) / n_late)) for part in shown),
            ),
        ),
        mark=0 if shown and shown[0] == cause.part else -1,
    )


_NAMES = {
    causes.GC: "garbage collection",
    causes.COMPILE: "compiling",
    causes.SAVING: "saving a checkpoint",
    causes.LOADING: "data loading",
    causes.OPTIMIZER: "optimizer step",
    causes.EVALUATION: "evaluation (no_grad)",
}


def short(site: str) -> str:
    location = causes.location_of(site)
    return f"{PurePath(location.file).name}:{location.line} in {location.function}" if location else "unknown"
