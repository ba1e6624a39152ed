"""P301: the device is idle because the host, busy with something else, gives it no work."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from rankscope.analyze.device.events import covered_by_name, with_process
from rankscope.analyze.device.losses import StepLoss, shared_losses, verb
from rankscope.analyze.device.steps import loading_time, step_windows
from rankscope.analyze.intervals import Intervals, difference, overlap, union
from rankscope.analyze.metric import EVERYTHING
from rankscope.analyze.registry import Effect, rule
from rankscope.model.finding import Evidence, Finding
from rankscope.model.tables import Array, Trace

_MAX_SHOWN = 3
_SHOWN_SHARE = 0.1  # of the idle time: what the host did for less explains nothing


@rule("P301", "device-idle-host", needs=("kernels", "runtime_calls"))
def device_idle_host(trace: Trace) -> Iterator[Finding | Effect]:
    """The device is idle because the host is busy with something other than launching work.

    What it means: the device had finished all its work, and the next kernel was launched only later. In between, the
    launching thread did none of these: launch without a pause (P311), return from a wait for the device (P313), or load
    data (P303). The cost is the time when nothing ran on any stream. It is reported if most ranks are affected.

    Why it happens: Python between the operators (logging, metrics, checkpoints, preparing batches), garbage collection,
    operators that run on the CPU, compilation at the first use of a shape, allocating and freeing device memory
    (cudaMalloc, cudaFree), a CPU that other programs use.

    What to do: look at the operators and annotations the finding names. Move logging and checkpoints off the training
    thread or do them less often, use gc.freeze() and gc.disable() with a gc.collect() at a chosen step, keep tensors on
    the device, warm up before measuring.

    What could fool it: the profiler slows the host down, most of all with with_stack and record_shapes. If no steps
    were marked, the time before and after the training loop counts too.
    """
    gaps = with_process(
        trace,
        trace.sql(
            "SELECT file_id, rank, start_ns, start_ns + duration_ns AS end_ns FROM idle_gaps WHERE cause = 'host'"
        ).columns(),
    )
    idle = difference(union(gaps["start_ns"], gaps["end_ns"], gaps["process"]), loading_time(trace))
    windows = step_windows(trace, EVERYTHING).with_device(trace)
    losses = shared_losses(StepLoss.of_windows(trace, windows, windows.covered(idle)))
    if losses is None:
        return
    worst = losses.ranks[0]
    host = _host_activity(trace, overlap(idle, windows.as_intervals()))
    yield Finding(
        severity=losses.severity,
        certainty="likely",
        title=f"{losses.who} {verb(losses, 'leaves its device', 'leave their devices')} idle {losses.cost}: "
        "the host is busy with something other than launching work",
        ranks=losses.culprits,
        evidence=Evidence(
            certain=(
                f"in total, the device of rank {worst.rank} is idle {100 - _busy_pct(trace, worst.rank):.0f}% of the "
                "time: this finding does not count launching, waiting, data loading, or the time around the first and "
                "last kernel",
            ),
            likely=_what_the_host_did(host),
            cost_pct=losses.cost_pct,
            cost_ns=losses.cost_ns,
            facts={**losses.facts, **host.facts},
        ),
        help="move work that the next kernel does not need off the launching thread; "
        "`rankscope metrics PATH steps` and `rankscope metrics PATH idle` show where the host time goes",
    )


def _busy_pct(trace: Trace, rank: int) -> float:
    steps = trace.table("step_breakdown")
    rows = steps.array("rank") == rank
    return float(100 * steps.array("device_busy_ns")[rows].sum() / max(steps.array("duration_ns")[rows].sum(), 1))


class HostActivity(NamedTuple):
    """What launching threads did in the idle time: names and their shares of it, the largest first."""

    operators: list[tuple[str, float]]
    calls: list[tuple[str, float]]
    annotations: list[tuple[str, float]]
    python: float  # outside any operator and call

    @property
    def facts(self) -> dict[str, object]:
        listed = {"operators": self.operators, "calls": self.calls, "annotations": self.annotations}
        shown = {
            name: [{"name": one, "share_pct": round(100 * share, 1)} for one, share in rows]
            for name, rows in listed.items()
        }
        return {**shown, "outside_operators_pct": round(100 * self.python, 1)}


_SPAN = "file_id, rank, tid, name, start_ns, start_ns + duration_ns AS end_ns"
_LAUNCHING = "(file_id, tid) IN (SELECT DISTINCT (file_id, launch_tid) FROM kernels)"
# Only the outermost operators: what runs inside them is part of their time.
_OUTERMOST = f"""
    SELECT {_SPAN} FROM ops WHERE {_LAUNCHING}
    QUALIFY coalesce(start_ns >= max(start_ns + duration_ns) OVER (
        PARTITION BY file_id, rank, tid ORDER BY start_ns, duration_ns DESC
        ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING), true)
"""


def _host_activity(trace: Trace, idle: Intervals) -> HostActivity:
    operators = with_process(trace, trace.sql(_OUTERMOST).columns())
    calls = with_process(trace, trace.sql(f"SELECT {_SPAN} FROM runtime_calls WHERE {_LAUNCHING}").columns())
    marks = "SELECT (file_id, name) FROM steps"
    annotations = with_process(
        trace,
        trace.sql(
            f"SELECT {_SPAN} FROM annotations WHERE kind = 'host' AND {_LAUNCHING} AND (file_id, name) NOT IN ({marks})"
        ).columns(),
    )
    total = max(int(idle.length.sum()), 1)
    busy = union(*(np.concatenate((operators[name], calls[name])) for name in ("start_ns", "end_ns", "process")))
    outside = difference(idle, busy)
    return HostActivity(
        operators=_shares(idle, operators, total),
        calls=_shares(idle, calls, total),
        annotations=_shares(idle, annotations, total),
        python=float(outside.length.sum() / total),
    )


def _shares(idle: Intervals, events: dict[str, Array], total: int) -> list[tuple[str, float]]:
    """Per name, the share of the idle time that its events cover."""
    covered = covered_by_name(idle, events, _MAX_SHOWN)
    return [(name, spent / total) for name, spent, _ in covered if spent >= _SHOWN_SHARE * total]


def _what_the_host_did(host: HostActivity) -> tuple[str, ...]:
    lines = []
    if host.python >= _SHOWN_SHARE:
        lines.append(f"for {100 * host.python:.0f}% of it, the launching threads ran Python code outside any operator")
    for what, rows in (("operators", host.operators), ("runtime calls", host.calls), ("annotations", host.annotations)):
        if rows:
            lines.append(f"{what} at that time: " + ", ".join(f"{name} ({100 * share:.0f}%)" for name, share in rows))
    return tuple(lines)
