"""P311 to P314: the device is idle, or the host waits, because of how work is launched."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from rankscope.analyze.device.losses import verb
from rankscope.analyze.device.lost_time import Losses, losses_of
from rankscope.analyze.host.python_frames import is_own, location_of
from rankscope.analyze.registry import Effect, rule
from rankscope.model.finding import Evidence, Finding, Location, count_noun, format_duration, ranks_phrase
from rankscope.model.tables import Trace

_MIN_LAUNCHES = 50  # per rank: fewer say nothing about a training loop
_MAX_SHOWN = 3
_REPEATED = 2
_NOTABLE_BLOCKED_PCT = 10.0
_MIN_DELAY_NS = 100_000  # a kernel begins 2 to 10 us after its launch; the first after a pause some tens of them
# Numbers of consecutive calls of a thread lie this close, calls that profilers leave out included. Where they lie
# farther apart, kernels may be missing from the trace, and what looks idle was not.
_MAX_CALLS_BETWEEN = 32
_SAMPLED_WAITS = 500


@rule("P311", "launch-bound", needs=("kernels", "runtime_calls"))
def launch_bound(trace: Trace) -> Iterator[Finding | Effect]:
    """The device is idle between short kernels because launching them takes longer than running them.

    What it means: the host launches without a pause, but each launch, including the Python and dispatch before it,
    takes longer than the previous kernel runs, so the device runs out of work in between. The cost is the sum of these
    gaps.

    Why it happens: many small operators: small batches or tensors, optimizers that go parameter by parameter,
    normalization and activation written as chains of elementwise operators, eager mode on a slow or shared CPU.

    What to do: launch fewer and larger kernels: torch.compile (mode="reduce-overhead" uses CUDA graphs),
    torch.cuda.graph, fused or foreach optimizers, larger batches. `rankscope metrics PATH sequences` lists recurring
    chains of kernels, `rankscope metrics PATH launches` the single launches.

    What could fool it: the profiler slows the host down, most of all with with_stack and record_shapes; without it the
    gaps are smaller. A gap counts if the thread launched something within the last 500 us and was not held up by a wait
    for the device.
    """
    losses = _gap_losses(trace, "SELECT file_id, rank, step, duration_ns AS lost_ns FROM gaps WHERE cause = 'launch'")
    if losses is None:
        return
    worst = losses.ranks[0]
    pace = _launch_pace(trace, worst.rank)
    operators = _gap_operators(trace, worst.rank)
    yield _finding(
        losses,
        title=f"{losses.who} {verb(losses, 'launches', 'launch')} kernels more slowly than the device runs them: "
        f"it is idle {losses.cost}",
        evidence=Evidence(
            certain=(
                f"{count_noun(worst.n, 'gap')} on rank {worst.rank}, median {format_duration(pace.gap_ns)}",
                f"around these gaps, the host launches a kernel every {format_duration(pace.interval_ns)}, "
                f"and a kernel takes {format_duration(pace.kernel_ns)} (medians)",
            ),
            likely=(f"most of the idle time is before kernels of {', '.join(operators)}",) if operators else (),
            notes=_profiler_note(trace),
            cost_pct=losses.cost_pct,
            cost_ns=losses.cost_ns,
            facts={**losses.facts, **pace._asdict(), "operators": operators},
        ),
        help="launch fewer, larger kernels: torch.compile(mode='reduce-overhead'), CUDA graphs, fused or foreach "
        "optimizers, larger batches",
    )


@rule("P312", "queue-full", needs=("kernels", "runtime_calls"))
def queue_full(trace: Trace) -> Iterator[Finding | Effect]:
    """The host is so far ahead that the device's launch queue is full, and it waits inside its launches.

    What it means: about a thousand launches are waiting for their stream, so every further launch blocks until one of
    them has started. The device has enough work; the host cannot do anything else in the meantime.

    Why it happens: the device is the bottleneck and nothing in the step makes the host wait earlier; or a stream waits
    for a collective while the host keeps launching behind it.

    What to do: nothing, as far as the device is concerned. If the same thread also loads data, logs or checks results,
    that work is delayed: move it to another thread, or launch fewer kernels (a CUDA graph counts as one launch).

    What could fool it: a launch counts as queued from the start of its call to the start of its kernel; the actual
    limit of the queue differs between drivers.
    """
    rows = trace.sql(
        "SELECT rank, device, stream, blocked_ns, blocked_pct FROM queue_blocked WHERE blocked_pct >= $least "
        "ORDER BY blocked_pct DESC, rank, stream",
        least=_NOTABLE_BLOCKED_PCT,
    ).rows()
    if not rows:
        return
    rank, device, stream, blocked_ns, blocked_pct = rows[0]
    culprits = tuple(sorted({row[0] for row in rows}))
    yield Finding(
        severity="info",
        certainty="certain",
        title=f"the launch queue of {ranks_phrase(culprits)} is full for up to {blocked_pct:.0f}% of the time: "
        "the host waits inside its launches",
        ranks=culprits,
        evidence=Evidence(
            certain=(f"stream {stream} of device {device}, rank {rank}: full for {format_duration(blocked_ns)}",),
            notes=("the device has enough work: this costs nothing unless the host has other things to do",),
            facts={
                "streams": [
                    dict(zip(("rank", "device", "stream", "blocked_ns", "blocked_pct"), row, strict=True))
                    for row in rows[:16]
                ]
            },
        ),
        help="move data loading, logging and checks off the launching thread; "
        "`rankscope metrics PATH blocked` lists all streams",
    )


@rule("P313", "host-syncs", needs=("kernels", "runtime_calls"))
def host_syncs(trace: Trace) -> Iterator[Finding | Effect]:
    """The host waits for the device inside the step, and the device then waits for the host.

    What it means: a call that needs a result from the device (a value, a shape, a copy, a synchronization) stops the
    host until the device has finished all its work. When the host continues, nothing is queued: the device is idle
    until the next launch. Only this idle time is counted, and for each wait no more than it lasted.

    Why it happens: calls of .item(), .cpu() or float(loss), printing a tensor, nonzero and boolean masks, an `if` on a
    tensor, copies from or to memory that is not pinned, torch.cuda.synchronize() for timing.

    What to do: read results later and less often (log every 100 steps), keep them on the device (torch.where instead of
    `if`), copy with non_blocking=True from pinned memory, remove synchronization for timing.

    What could fool it: a wait at the end of a step, if the next step starts with data loading: the device would have
    been idle anyway. The line of code is known only if Python calls were recorded (with_stack=True) and read
    (--stacks).
    """
    losses = _gap_losses(
        trace,
        """SELECT g.file_id, g.rank, g.step, least(g.duration_ns, w.duration_ns) AS lost_ns
           FROM gaps AS g JOIN host_waits AS w
               ON w.file_id = g.file_id AND w.rank = g.rank AND w.call_id = g.wait_call_id""",
    )
    if losses is None:
        return
    sites = _wait_sites(trace, losses)
    location = _line_of_waits(trace, losses)
    first = sites[0]
    yield _finding(
        losses,
        title=f"{losses.who} {verb(losses, 'waits', 'wait')} for the device in {first.what}, "
        f"and the device is then idle {losses.cost}",
        evidence=Evidence(
            certain=tuple(
                f"{site.what}: {count_noun(site.n, 'wait')}; the device was idle after {site.n_idle:,} of them, "
                f"{format_duration(site.idle_ns)} in total"
                for site in sites[:_MAX_SHOWN]
            ),
            notes=() if location else ("to see the line of code, record with with_stack=True and read with --stacks",),
            cost_pct=losses.cost_pct,
            cost_ns=losses.cost_ns,
            facts={**losses.facts, "sites": [site._asdict() for site in sites[:16]]},
        ),
        help="read results from the device later and less often; copy from pinned memory with non_blocking=True; "
        "`rankscope metrics PATH syncs` lists all waits",
        location=location,
    )


@rule("P314", "launch-delay", needs=("kernels", "runtime_calls"))
def launch_delay(trace: Trace) -> Iterator[Finding | Effect]:
    """Kernels start long after their launch although the device has nothing to do.

    What it means: the launch call had returned and no stream of this process was running anything, but the kernel
    started more than 100 us later. The cost is the sum of these delays.

    Why it happens: another process uses the same device (another job, a second rank on it by mistake, a display or
    inference server) and the device switches between them; power saving; a driver that gets too little CPU time.

    What to do: check nvidia-smi (or rocm-smi) for other processes on the device, make sure that each rank has its own
    device (LOCAL_RANK), set the device to exclusive mode, turn on persistence mode.

    What could fool it: kernels missing from the trace, because the profiler dropped events or the trace was sampled. A
    delay is not counted if the launch numbers show that other kernels may be missing in between.
    """
    losses = _gap_losses(
        trace,
        f"""SELECT g.file_id, g.rank, g.step, g.delay_ns AS lost_ns FROM gaps AS g JOIN (
                SELECT file_id, rank, kernel_id, correlation - lag(correlation) OVER (
                    PARTITION BY file_id, rank, launch_tid ORDER BY launch_start_ns, kernel_id) AS n_between
                FROM kernels WHERE call_id IS NOT NULL) AS k USING (file_id, rank, kernel_id)
            WHERE g.cause = 'device' AND g.delay_ns > {_MIN_DELAY_NS} AND k.n_between <= {_MAX_CALLS_BETWEEN}""",
    )
    if losses is None or losses.ranks[0].n < _REPEATED:  # one kernel may be late for any reason
        return
    worst = losses.ranks[0]
    yield _finding(
        losses,
        title=f"kernels of {losses.who} start late although the device is free: it is idle {losses.cost}",
        evidence=Evidence(
            certain=(
                f"{count_noun(worst.n, 'kernel')} of rank {worst.rank} started long after the launch had returned, "
                f"{format_duration(worst.lost_ns // worst.n)} on average",
            ),
            likely=("another process uses the same device",),
            cost_pct=losses.cost_pct,
            cost_ns=losses.cost_ns,
            facts=losses.facts,
        ),
        help="look for other processes on the device (nvidia-smi, rocm-smi); "
        "check that every rank has its own device (LOCAL_RANK)",
    )


def _finding(losses: Losses, **parts: Any) -> Finding:
    return Finding(severity=losses.severity, certainty="likely", ranks=losses.culprits, **parts)


def _gap_losses(trace: Trace, events: str) -> Losses | None:
    """What events over `gaps` cost: the idle gaps of those traces that have enough launches."""
    return losses_of(
        trace,
        f"""WITH busy AS (
                SELECT file_id, rank FROM kernels GROUP BY ALL HAVING count(DISTINCT call_id) >= {_MIN_LAUNCHES}
            ), gaps AS (SELECT * FROM idle_gaps SEMI JOIN busy USING (file_id, rank))
            {events}""",
    )


class _Pace(NamedTuple):
    """Medians: the gap, the time from one launch to the next of the same thread, and the kernel before a gap."""

    gap_ns: int
    interval_ns: int
    kernel_ns: int


def _launch_pace(trace: Trace, rank: int) -> _Pace:
    sql = """
        WITH launched AS (
            SELECT file_id, rank, kernel_id, launch_start_ns - lag(launch_start_ns) OVER in_order AS interval_ns,
                   lag(duration_ns) OVER in_order AS kernel_ns
            FROM kernels WHERE rank = $rank AND call_id IS NOT NULL
            WINDOW in_order AS (PARTITION BY file_id, rank, launch_tid ORDER BY launch_start_ns, kernel_id)
        )
        SELECT median(g.duration_ns)::BIGINT, median(l.interval_ns)::BIGINT, median(l.kernel_ns)::BIGINT
        FROM idle_gaps AS g JOIN launched AS l USING (file_id, rank, kernel_id) WHERE g.cause = 'launch'
    """
    [row] = trace.sql(sql, rank=rank).rows()
    return _Pace(*row)


def _gap_operators(trace: Trace, rank: int) -> list[str]:
    """The operators with the longest device idle time before their kernels."""
    sql = f"""
        SELECT o.name FROM idle_gaps AS g JOIN kernels AS k USING (file_id, rank, kernel_id)
        JOIN ops AS o ON o.file_id = k.file_id AND o.rank = k.rank AND o.op_id = k.op_id
        WHERE g.cause = 'launch' AND g.rank = $rank
        GROUP BY o.name ORDER BY sum(g.duration_ns) DESC, o.name LIMIT {_MAX_SHOWN}
    """
    return [name for (name,) in trace.sql(sql, rank=rank).rows()]


def _profiler_note(trace: Trace) -> tuple[str, ...]:
    profiles = trace.table("profiles")
    used = [
        setting
        for column, setting in (("has_stacks", "with_stack"), ("has_shapes", "record_shapes"))
        if profiles.array(column).any()
    ]
    return (f"the profiler itself slows launches down ({' and '.join(used)})",) if used else ()


class _Site(NamedTuple):
    """Waits of one kind, over all ranks that suffer."""

    name: str
    operator: str
    annotation: str
    n: int
    n_idle: int
    idle_ns: int

    @property
    def what(self) -> str:
        where = self.operator or self.annotation
        return f"{where} ({self.name})" if where else self.name


def _wait_sites(trace: Trace, losses: Losses) -> list[_Site]:
    sql = f"""
        SELECT name, coalesce(root_operator, '') AS root_operator, coalesce(annotation, '') AS annotation,
               sum(n)::BIGINT, sum(n_idle)::BIGINT, sum(idle_ns)::BIGINT AS idle_ns
        FROM sync_calls WHERE rank IN ({", ".join(map(str, losses.culprits))}) AND n_idle > 0
        GROUP BY ALL ORDER BY idle_ns DESC, name, root_operator, annotation
    """
    return [_Site(*row) for row in trace.sql(sql).rows()]


def _line_of_waits(trace: Trace, losses: Losses) -> Location | None:
    """The line of the user's code that most of the costliest waits share; known only if Python calls were read."""
    sql = f"""
        WITH costly AS (
            SELECT w.file_id, w.rank, w.tid, w.call_id, w.start_ns, least(g.duration_ns, w.duration_ns) AS idle_ns
            FROM idle_gaps AS g JOIN host_waits AS w
                ON w.file_id = g.file_id AND w.rank = g.rank AND w.call_id = g.wait_call_id
            WHERE g.rank IN ({", ".join(map(str, losses.culprits))})
            ORDER BY idle_ns DESC, w.call_id LIMIT {_SAMPLED_WAITS}
        ), around AS (
            SELECT c.file_id, c.rank, c.call_id, any_value(c.idle_ns) AS idle_ns, arg_max(p.name, p.start_ns) AS frame
            FROM costly AS c JOIN python_calls AS p ON p.file_id = c.file_id AND p.rank = c.rank AND p.tid = c.tid
                AND p.start_ns <= c.start_ns AND p.start_ns + p.duration_ns > c.start_ns
            WHERE {is_own("p.name")} GROUP BY c.file_id, c.rank, c.call_id
        )
        SELECT frame FROM around GROUP BY frame ORDER BY sum(idle_ns) DESC, frame LIMIT 1
    """
    frames = trace.sql(sql).rows()
    return location_of(frames[0][0]) if frames else None
