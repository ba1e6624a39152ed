"""P302: communication that no computation hides."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from rankscope.analyze.device.events import covered_by_name, with_process
from rankscope.analyze.device.losses import StepLoss, losses_by_rank
from rankscope.analyze.device.lost_time import NOTABLE_SHARE, Losses
from rankscope.analyze.device.steps import step_windows
from rankscope.analyze.intervals import Intervals, difference, overlap, union
from rankscope.analyze.metric import EVERYTHING
from rankscope.analyze.registry import Effect, rule
from rankscope.model.finding import Certainty, Evidence, Finding, format_duration
from rankscope.model.sql import quote_text
from rankscope.model.tables import Array, Trace

_MAX_SHOWN = 3
# Operators that hand over to a collective or wait for it: no computation that could hide one.
_COMM_OPERATOR = r"^(c10d|gloo|nccl|record_param_comms|torch\.distributed|_c10d_functional)"
_SPAN = "file_id, rank, start_ns, start_ns + duration_ns AS end_ns"


@rule("P302", "communication-exposed", needs=("comms", "profiles"))
def communication_exposed(trace: Trace) -> Iterator[Finding | Effect]:
    """Part of each step is communication with no computation at the same time.

    What it means: on every rank, even on the one that waits least, collectives run this long while no compute kernel
    runs (without a device: no operator). A rank that is early waits inside its collective for the late ones, so the
    rank with the least exposed communication shows what the communication itself costs.

    Why it happens: too little computation to hide it, collectives issued too late (at the end of the backward pass, one
    bucket for all gradients), no prefetching of parameters (FSDP), tensor or sequence parallelism over a slow link, a
    slow network.

    What to do: start collectives earlier and make them overlap: smaller first buckets (DDP's bucket_cap_mb),
    prefetching (FSDP's backward_prefetch and forward_prefetch), no synchronization inside accumulated batches
    (no_sync), larger batches per rank; keep the groups that communicate most within a host; compare the bandwidth with
    what the links can do.

    What could fool it: transfers between pipeline stages do not count, as they mostly wait. If only one rank was
    traced, waiting for the others cannot be distinguished from transferring data. Without a device, this is only a
    note: a host has no second stream to compute on in the meantime.
    """
    comms = _collectives(trace)
    exposed = _exposed(trace, comms)
    windows = step_windows(trace, EVERYTHING).of_processes(np.unique(comms["process"]))
    by_rank = losses_by_rank(StepLoss.of_windows(trace, windows, windows.covered(exposed)))
    if not by_rank or by_rank[-1].share < NOTABLE_SHARE:
        return
    least_first = Losses(tuple(reversed(by_rank)), len(by_rank))
    alone, most = len(by_rank) == 1, by_rank[0]
    certainty: Certainty = "possible" if alone else "likely"
    cost = least_first.amount if alone else f"at least {least_first.amount} on every rank"
    yield Finding(
        severity=least_first.severity if trace.has("kernels") else "info",
        certainty=certainty,
        title=f"exposed communication (no computation at the same time) takes {cost}",
        ranks=least_first.culprits,
        evidence=Evidence(
            certain=_by_kind(comms, overlap(exposed, windows.as_intervals())),
            notes=("only one rank was traced: this includes waiting for other ranks",)
            if alone
            else (f"rank {most.rank} has the most, {100 * most.share:.0f}%, including waiting for other ranks",),
            cost_pct=least_first.cost_pct,
            cost_ns=least_first.cost_ns,
            facts=least_first.facts,
        ),
        help="start collectives earlier, in smaller buckets, and prefetch (DDP bucket_cap_mb, FSDP backward_prefetch); "
        f"`rankscope metrics PATH {'overlap' if trace.has('kernels') else 'comm_waits'}` shows each rank",
    )


def _collectives(trace: Trace) -> dict[str, Array]:
    """Each with its name: all_reduce in dp, ... Transfers (send, recv) are left out.

    A rank that waits for a transfer waits for its neighbor in the pipeline: that is a bubble, not the cost of
    communication.
    """
    return with_process(
        trace,
        trace.sql(f"""
            SELECT {_SPAN}, concat_ws(' in ', coalesce(op, 'unknown'), group_desc) AS name
            FROM comms WHERE coalesce(op, '') NOT IN ('send', 'recv')
        """).columns(),
    )


def _exposed(trace: Trace, comms: dict[str, Array]) -> Intervals:
    """Communication without computation, per process: on the device, or on the host for those that have none."""
    computing = with_process(
        trace,
        trace.sql(f"""
            SELECT {_SPAN} FROM kernels WHERE type = 'computation'
            UNION ALL SELECT {_SPAN} FROM ops ANTI JOIN kernels USING (file_id, rank)
                      WHERE NOT regexp_matches(name, {quote_text(_COMM_OPERATOR)})
        """).columns(),
    )
    return difference(*(union(rows["start_ns"], rows["end_ns"], rows["process"]) for rows in (comms, computing)))


def _by_kind(comms: dict[str, Array], exposed: Intervals) -> tuple[str, ...]:
    """The collectives with the most exposed time."""
    total = max(int(exposed.length.sum()), 1)
    return tuple(
        f"{name}: {format_duration(spent)}, {100 * spent / total:.0f}% of the exposed time"
        for name, spent, _ in covered_by_name(exposed, comms, _MAX_SHOWN)
        if spent >= total / 100
    )
