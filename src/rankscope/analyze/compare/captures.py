"""Two captures and the findings in each -> what changed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from rankscope.analyze.compare.collectives import collective_changes
from rankscope.analyze.compare.compiling import compare_runs
from rankscope.analyze.compare.findings import finding_changes, pair_findings
from rankscope.analyze.compare.kernels import kernel_changes
from rankscope.analyze.compare.numbers import number_changes
from rankscope.analyze.compare.setup import setup_changes
from rankscope.analyze.compare.steps import WORTH_SHOWING, part_changes, step_change
from rankscope.analyze.compare.verdict import Compared, verdict, worst_change
from rankscope.model.changes import SCHEMA_NAME, Changes, StepChange, TimeChange
from rankscope.model.finding import Report, count_noun
from rankscope.model.tables import Trace

# What each kind of trace is needed for.
_SOURCES = {
    "profiles": ("profiler traces", "steps, kernels and collective times are"),
    "collectives": ("Flight Recorder dumps", "call sites of collectives are"),
    "compile_logs": ("torch.compile logs", "compilations are"),
    "metrics": ("metrics", "the job's own numbers are"),
    "manifests": ("manifests", "versions and environment are"),
}
_NUMBER_ORDER = ("worse", "better", "higher", "lower", "same")


class Side(NamedTuple):
    trace: Trace
    report: Report


def compare_captures(old: Side, new: Side) -> Changes:
    """A is `old`, B is `new`."""
    traces = old.trace, new.trace
    step = step_change(*traces)
    least = WORTH_SHOWING * step.old_ns if step else 0.0
    has_logs = all(trace.has("compile_logs") for trace in traces)
    compared = Compared(
        findings=finding_changes(old.report, new.report),
        step=step,
        parts=_largest_first(part_changes(*traces, step)),
        collectives=_largest_first(collective_changes(*traces, least)),
        kernels=_largest_first(kernel_changes(*traces, least)),
        compile=compare_runs(*traces) if has_logs else None,
        shared=[one for ours, one in pair_findings(old.report.findings, new.report.findings) if ours and one],
    )
    numbers = sorted(number_changes(*traces), key=lambda change: (_NUMBER_ORDER.index(change.kind), change.name))
    return Changes(
        schema=SCHEMA_NAME,
        old=old.report.capture,
        new=new.report.capture,
        verdict=verdict(compared),
        worst=worst_change(compared),
        findings=tuple(compared.findings),
        step=step,
        parts=tuple(compared.parts),
        collectives=tuple(compared.collectives),
        kernels=tuple(compared.kernels),
        compile=compared.compile,
        numbers=tuple(numbers),
        setup=tuple(setup_changes(*traces, (old.report.capture, new.report.capture))),
        not_compared=tuple(_not_compared(*traces)),
        notes=tuple(_notes(old, new, step)),
    )


def has_common_source(old: Trace, new: Trace) -> bool:
    return any(old.has(table) and new.has(table) for table in (*_SOURCES, "et_traces", "thread_stacks"))


def _largest_first(times: Iterable[TimeChange]) -> list[TimeChange]:
    """What got slower before what got faster, the largest change first."""
    return sorted(
        times,
        key=lambda time: (time.kind == "same", time.change_ns < 0, -abs(time.change_ns), time.name, time.part),
    )


def _not_compared(old: Trace, new: Trace) -> Iterator[str]:
    for table, (what, needed) in _SOURCES.items():
        absent = [name for name, trace in (("A", old), ("B", new)) if not trace.has(table)]
        if len(absent) == 1:
            yield f"{absent[0]} has no {what}: {needed} not compared"


def _notes(old: Side, new: Side, step: StepChange | None) -> Iterator[str]:
    sizes = [len(side.report.capture.ranks) for side in (old, new)]
    if sizes[0] != sizes[1]:
        yield (
            f"A has traces of {count_noun(sizes[0], 'rank')}, B of {sizes[1]:,}: "
            "ranks of B are compared with the largest and the smallest value of any rank of A"
        )
    both_profiled = old.trace.has("kernels") and new.trace.has("kernels")
    unmarked = [name for name, side in (("A", old), ("B", new)) if not side.trace.has("steps")]
    if both_profiled and unmarked:
        yield f"no steps are marked in {' and '.join(unmarked)}: kernels and collectives are compared per call"
    if step and min(step.n_old, step.n_new) == 1:
        yield "a single step does not show how much steps vary: only changes of more than 10% count"
    rings = [int(side.trace.table("ranks").array("n_dropped").max(initial=0)) for side in (old, new)]
    if max(rings) > 0 and all(side.trace.has("collectives") for side in (old, new)):
        yield "the Flight Recorder keeps only the newest calls, so a call site may be missing from one side"
