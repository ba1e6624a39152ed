"""The step of the whole job, and where its time goes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from rankscope.analyze.compare.measured import measure
from rankscope.analyze.compare.noise import N_ERRORS, SAME_JOB_UNMEASURED, judge
from rankscope.model.changes import StepChange, TimeChange, TimeKind
from rankscope.model.tables import Array, Trace

SAME_STEP = 0.03  # a step averages over everything it does: it varies less than its parts
SLOW_STEP = 0.5  # of a step of A, beyond the longest that A has
WORTH_SHOWING = 0.005  # of a step
STEP_METRIC = "step_time_s"
PARTS = {
    "kernel_ns": "computing",
    "memcpy_ns": "copying",
    "memset_ns": "filling",
    "communication_ns": "exposed communication",
    "runtime_ns": "host: device runtime calls",
    "data_loader_ns": "host: data loading",
    "cpu_ns": "host: operators",
    "other_ns": "host: Python or waiting",
}
COMPUTING, COMMUNICATING = PARTS["kernel_ns"], PARTS["communication_ns"]


_JOB_STEPS = "SELECT step, median(duration_ns) AS ns FROM step_breakdown WHERE step IS NOT NULL GROUP BY step"
_REPORTED_STEPS = f"""
    SELECT step, median(value) * 1e9 AS ns FROM metrics
    WHERE name = '{STEP_METRIC}' AND value > 0 AND step IS NOT NULL GROUP BY step"""


class _Steps(NamedTuple):
    number: Array
    ns: Array


def step_change(old: Trace, new: Trace) -> StepChange | None:
    """From profiler traces if both have steps, else from the job's own metrics."""
    for source, times in (("profiler", _profiled), ("metrics", _reported)):
        before, after = times(old), times(new)
        if len(before.ns) and len(after.ns):
            return _compared(source, before, after)
    return None


def _profiled(trace: Trace) -> _Steps:
    return _job_steps(trace, "step_breakdown", _JOB_STEPS) if trace.has("steps") else _NO_STEPS


def _reported(trace: Trace) -> _Steps:
    return _job_steps(trace, "metrics", _REPORTED_STEPS)


_NO_STEPS = _Steps(np.empty(0, np.int64), np.empty(0))


def _job_steps(trace: Trace, table: str, sql: str) -> _Steps:
    if not trace.has(table):  # a derived table is made by asking for it
        return _NO_STEPS
    columns = trace.sql(f"{sql} ORDER BY step").columns()
    return _Steps(columns["step"], columns["ns"].astype(np.float64))


def _compared(source: str, before: _Steps, after: _Steps) -> StepChange:
    old, new = before.ns, after.ns
    middle, middle_new = float(np.median(old)), float(np.median(new))
    usual = SAME_STEP if min(len(old), len(new)) > 1 else SAME_JOB_UNMEASURED
    noise = max(usual * middle, N_ERRORS * float(np.hypot(_median_error(old), _median_error(new))))
    change = middle_new - middle
    kind: TimeKind = "same" if abs(change) <= noise else "slower" if change > 0 else "faster"
    is_slow = (new > old.max() + SLOW_STEP * middle) & (kind == "same")
    return StepChange(
        kind,
        source,
        old_ns=round(middle),
        new_ns=round(middle_new),
        noise_ns=round(noise),
        old_mean_ns=round(float(old.mean())),
        new_mean_ns=round(float(new.mean())),
        n_old=len(old),
        n_new=len(new),
        slow_steps=tuple(after.number[is_slow].tolist()),
        slow_ns=round(float(new[is_slow].mean())) if is_slow.any() else None,
    )


def _median_error(values: Array) -> float:
    """From the median deviation: single slow steps, reported separately, do not hide what all of them show."""
    deviation = 1.4826 * float(np.median(np.abs(values - np.median(values))))
    return 1.2533 * deviation / float(np.sqrt(len(values)))


def part_changes(old: Trace, new: Trace, step: StepChange | None) -> Iterator[TimeChange]:
    """Where the time of a step went before and goes now; where some steps of B are slow, where it goes in these."""
    if step is None or step.source != "profiler":
        return
    before = measure(old, _PART_VALUES, ("part",), "step")
    after = measure(new, _PART_VALUES, ("part",), "step", step.slow_steps)
    for column, name in PARTS.items():
        judgement = judge(before.get((column,)), after.get((column,)), WORTH_SHOWING * step.old_ns)
        times = judgement.old_ns, judgement.new_ns, judgement.noise_ns
        yield TimeChange(judgement.kind, name, "profiler", "step", *times, ranks=judgement.units)


_PART_VALUES = f"""
    SELECT part, rank AS unit, file_id, step, value
    FROM (SELECT file_id, rank, step, {", ".join(PARTS)} FROM step_breakdown)
    UNPIVOT (value FOR part IN ({", ".join(PARTS)}))"""
