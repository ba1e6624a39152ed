"""P321 and P322: how long a step would take with even pipeline stages, and without ranks slower than their peers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from rankscope.analyze.registry import Effect, rule
from rankscope.model.clock import median
from rankscope.model.finding import Comparison, Evidence, Finding, Severity, Side, format_duration, ranks_phrase
from rankscope.model.tables import Array, Trace

_WARNING_SHARE = 0.10  # of the step
_INFO_SHARE = 0.03
_SLOWED = 1.10  # studies of large fleets call a job slowed from here on
_SLOW_ALONE = 1.03  # a rank that alone makes an ideal step this much longer is named
_MAX_REPLAY_ERROR = 0.05  # a model that does not reproduce the recorded step says nothing about other cases
_MAX_NAMED_SHARE = 0.5  # if more of the ranks are slow, they are not the exception


@rule("P321", "stage-imbalance", needs=("profiles", "comms"))
def stage_imbalance(trace: Trace) -> Iterator[Finding | Effect]:
    """One pipeline stage has more work than the others, which wait for it in every microbatch.

    What it means: a pipeline moves at the pace of its slowest stage. The time the other stages wait, beyond what the
    schedule costs anyway, would be saved if the work were divided evenly; the gain is found by replaying the step with
    equal work in all stages.

    Why it happens: the output layer and the loss with a large vocabulary on the last stage, the embedding on the first,
    layers of different cost, or a number of layers that is not a multiple of the number of stages.

    What to do: move layers from this stage to the others, give the last stage fewer layers to make up for the output
    layer, or split the output layer's vocabulary over ranks.

    What could fool it: a stage whose ranks are all on slower devices looks like one with more work. If transfers could
    not be matched, the stages are unknown and nothing is reported.
    """
    outcome = _outcome(trace)
    if outcome is None or "balance" not in outcome.by_kind:
        return
    saved = outcome.replayed_ns - outcome.by_kind["balance"]["step_ns"]
    share = saved / outcome.replayed_ns
    stages = _stages(trace)
    if share < _INFO_SHARE or len(stages) < 2:
        return
    slow = max(stages, key=lambda stage: stage.compute_ns)
    others = [stage for stage in stages if stage is not slow]
    usual = int(median(np.array([stage.compute_ns for stage in others], np.float64)))
    longer = slow.compute_ns / usual - 1 if usual else 0.0
    balanced = outcome.by_kind["balance"]["step_ns"]
    yield Finding(
        severity=_severity(share),
        certainty="likely",
        title=(
            f"pipeline stage {slow.number} ({ranks_phrase(slow.ranks)}) computes {100 * longer:.0f}% longer than the "
            "others: with even stages, "
            f"a step would take {format_duration(balanced)} instead of {format_duration(outcome.replayed_ns)}"
        ),
        ranks=slow.ranks,
        evidence=Evidence(
            certain=(
                f"stage {slow.number} computes {format_duration(slow.compute_ns)} per step, "
                f"the other {'stage' if len(others) == 1 else f'{len(others)} (median)'} {format_duration(usual)}",
            ),
            likely=(f"even stages would save {100 * share:.0f}% of the step: a replay with equal work shows it",),
            comparison=_compare_stages(slow, others),
            cost_pct=100 * share,
            cost_ns=saved,
            facts={
                "step_ns": outcome.replayed_ns,
                "balanced_step_ns": balanced,
                "replay_error_pct": round(outcome.error_pct, 3),
                "stages": [
                    {"stage": stage.number, "compute_ns": stage.compute_ns, "bubble_ns": stage.bubble_ns}
                    for stage in stages
                ],
            },
        ),
        help=f"move work away from stage {slow.number}; `rankscope metrics PATH bubbles` shows every rank and step",
    )


@rule("P322", "job-slowed", needs=("profiles", "comms"))
def job_slowed(trace: Trace) -> Iterator[Finding | Effect]:
    """A step would be at least a tenth shorter if no rank were slower than its peers.

    What it means: the recorded step was replayed with each rank's computation and host time replaced by the median of
    the ranks that have the same part of the model. The rest of the step stays as it was. The named ranks are those that
    alone make such a step at least 3% longer.

    Why it happens: slower devices or hosts, data loading, garbage collection, longer sequences on some ranks: late-rank
    (S202) says which.

    What to do: see S202 for the cause. The type of operation that loses the time shows where to look: kernels (forward,
    backward, optimizer) or the host.

    What could fool it: waits for ranks that were not traced stay as they were, so the real gain may be larger. Nothing
    is reported if more than half of the ranks are slow, or if the replay does not reproduce the recorded step to within
    5%.
    """
    outcome = _outcome(trace)
    if outcome is None:
        return
    ideal = outcome.by_kind["ranks"]["step_ns"]
    slowdown = outcome.replayed_ns / ideal if ideal else 1.0
    slow = [row for row in outcome.rows if row["kind"] == "rank" and row["slowdown"] >= _SLOW_ALONE]
    if slowdown < _SLOWED or not 0 < len(slow) <= _MAX_NAMED_SHARE * outcome.n_ranks:
        return
    ranks = tuple(sorted(row["rank"] for row in slow))
    others = "others" if outcome.n_ranks - len(ranks) > 1 else "other rank"
    types = [row for row in outcome.rows if row["kind"] == "type"]
    main = max(types, key=lambda row: row["saved_ns"])
    yield Finding(
        severity="info",
        certainty="likely",
        title=(
            f"{'a step' if trace.has('steps') else 'the job'} would take {format_duration(ideal)} "
            f"instead of {format_duration(outcome.replayed_ns)} "
            f"if {ranks_phrase(ranks)} were as fast as the {others}"
        ),
        ranks=ranks,
        evidence=Evidence(
            notes=(f"the replay reproduces the recorded step to within {max(outcome.error_pct, 0.1):.1f}%",),
            likely=(
                *(f"rank {row['rank']} alone makes the step {row['slowdown']:.2f} times as long" for row in slow[:4]),
                f"most of the time is lost in: {main['what']} ({format_duration(main['saved_ns'])} per step)",
            ),
            cost_pct=100 * (1 - ideal / outcome.replayed_ns),
            cost_ns=outcome.replayed_ns - ideal,
            facts={
                "step_ns": outcome.replayed_ns,
                "ideal_step_ns": ideal,
                "slowdown": round(slowdown, 4),
                "replay_error_pct": round(outcome.error_pct, 3),
                "ranks": [{"rank": row["rank"], "slowdown": round(row["slowdown"], 4)} for row in slow],
                "types": [{"type": row["what"], "saved_ns": row["saved_ns"]} for row in types],
            },
        ),
        help="`rankscope metrics PATH whatif` shows what every rank, type of operation and stage costs",
    )


class _Outcome(NamedTuple):
    """The table what_if, and the values the rules need from it."""

    rows: list[dict[str, Any]]
    by_kind: dict[str, dict[str, Any]]
    replayed_ns: int
    error_pct: float
    n_ranks: int


def _outcome(trace: Trace) -> _Outcome | None:
    """None if there is no replay, or none that can be trusted."""
    rows = list(trace.table("what_if").rows())
    if not rows:
        return None
    by_kind = {row["kind"]: row for row in rows}
    replayed, recorded = by_kind["replayed"]["step_ns"], by_kind["recorded"]["step_ns"]
    error = abs(replayed - recorded) / recorded if recorded > 0 else 1.0
    n_ranks = len(np.unique(trace.table("profiles").array("rank")))
    return _Outcome(rows, by_kind, replayed, 100 * error, n_ranks) if error <= _MAX_REPLAY_ERROR else None


def _severity(share: float) -> Severity:
    return "warning" if share >= _WARNING_SHARE else "info"


class _Stage(NamedTuple):
    number: int
    ranks: tuple[int, ...]
    compute_ns: int
    """Per step, the median over ranks and steps."""
    bubble_ns: int


def _stages(trace: Trace) -> list[_Stage]:
    table = trace.table("pipeline_bubbles")
    stage, rank = table.array("stage"), table.array("rank")

    def usual(column: str, rows: Array) -> int:
        return int(median(table.array(column)[rows].astype(np.float64)))

    stages = []
    for number in np.unique(stage).tolist():
        rows = np.flatnonzero(stage == number)
        ranks = tuple(np.unique(rank[rows]).tolist())
        stages.append(_Stage(number, ranks, usual("compute_ns", rows), usual("bubble_ns", rows)))
    return stages


def _compare_stages(slow: _Stage, others: list[_Stage]) -> Comparison:
    def side(label: str, stages: list[_Stage]) -> Side:
        times = np.array([(stage.compute_ns, stage.bubble_ns) for stage in stages], np.float64)
        ranks = tuple(sorted(rank for stage in stages for rank in stage.ranks))
        return Side(label, ranks, tuple(format_duration(int(time)) for time in median(times)))

    sides = (side(f"stage {slow.number}", [slow]), side("other stages", others))
    return Comparison("per step", ("computing", "waiting for neighbors"), sides, mark=0)
