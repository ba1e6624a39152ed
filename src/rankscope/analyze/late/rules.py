"""X602 to X613: why a rank keeps its peers waiting, from samples of its main thread in all steps."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import PurePath

import msgspec
import numpy as np

from rankscope.analyze.late import causes
from rankscope.analyze.late.causes import Cause, cause_of
from rankscope.analyze.late.spending import Part
from rankscope.analyze.registry import rule
from rankscope.model.finding import Comparison, Evidence, Finding, Side, count_noun, format_duration, ranks_phrase
from rankscope.model.tables import Trace


def _findings(trace: Trace, kind: str, why: str, fix: str, *more: str) -> Iterator[Finding]:
    cause = cause_of(trace)
    if cause is not None and cause.kind == kind:
        yield _finding(cause, f"{why}{_at(cause)}", fix, more)


def _finding(cause: Cause, why: str, fix: str, more: tuple[str, ...]) -> Finding:
    delays = cause.delays
    n_late, each = len(delays.late_ns), format_duration(int(np.median(delays.late_ns)))
    peers = ranks_phrase(delays.peers) if len(delays.peers) == 1 else f"its {count_noun(len(delays.peers), 'peer')}"
    often = f"{each} in {n_late:,} of {count_noun(delays.n_calls, 'collective')}"
    own, usual = (format_duration(int(ns / n_late)) for ns in (cause.own_ns, cause.peers_ns))
    return Finding(
        severity="warning",
        certainty="certain" if delays.is_habit and cause.spent.n_samples >= 10 else "likely",
        title=f"rank {delays.rank} keeps {peers} waiting {often} ({100 * delays.share:.0f}%): {why}",
        ranks=(delays.rank,),
        location=cause.location,
        evidence=Evidence(
            certain=(
                f"{peers} lost {format_duration(delays.lost_ns)} each waiting for it",
                f"it spends {own} on this before each of these calls, its median peer {usual}",
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
    place = cause.location
    return f" at {PurePath(place.file).name}:{place.line}" if place else ""


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
        tuple(_NAMES.get(part.kind) or _short(part.site) for part in shown),
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
}


def _short(site: str) -> str:
    place = causes.location_of(site)
    return f"{PurePath(place.file).name}:{place.line} in {place.function}" if place else "unknown"


@rule("X602", "late-collecting-garbage", needs=("host_samples", "collectives"))
def collecting(trace: Trace) -> Iterator[Finding]:
    """A rank keeps its peers waiting because Python collects garbage on it.

    What it means: Python's garbage collector stopped this rank's main thread before collectives in which its
    peers then waited. Each collection was recorded with its start and end.

    Why it happens: the rank keeps many objects alive, so each full collection takes long; ranks collect at
    different steps, and each time all others wait; the code calls gc.collect() on one rank.

    What to do: collect at the same step on all ranks: gc.disable() before the loop, gc.collect() every N steps on all
    of them; gc.freeze() after setup takes what lives forever out of the collections.

    What could fool it: the line is where the collection began. Unless it calls gc.collect(), it is only the line that
    happened to allocate.
    """
    fix = (
        "collect at the same step on all ranks: gc.disable() before the loop, gc.collect() every N steps; "
        "gc.freeze() after setup"
    )
    yield from _findings(trace, causes.GC, "it collects garbage", fix)


@rule("X603", "late-loading-data", needs=("host_samples", "collectives"))
def loading(trace: Trace) -> Iterator[Finding]:
    """A rank keeps its peers waiting because it waits for its next batch.

    What it means: the time that this rank spends in its DataLoader before a collective is what its peers wait for. Each
    wait was recorded with its start and end.

    Why it happens: the data is read and transformed in the main process (num_workers=0), the workers are too few or too
    slow, a worker died or restarts every epoch, or this rank's shard or storage is slower.

    What to do: if the line is in your dataset, it runs in the main process: set num_workers. Otherwise the workers are
    behind: more of them, a higher prefetch_factor, persistent_workers=True, faster storage, or cheaper transforms.

    What could fool it: batches that do not come from a torch DataLoader are not marked; the rank's line is then named
    by X605, X609 or X610.
    """
    cause = cause_of(trace)
    frame = cause.most(cause.spent.frames) if cause is not None and cause.kind == causes.LOADING else ""
    if any(name in frame for name in ("multiprocessing", "selectors.py", "queue.py", "threading.py")):
        why = "it waits for its DataLoader's workers"
        fix = (
            "use more workers (num_workers), a higher prefetch_factor and persistent_workers=True; "
            "check this rank's shard and storage"
        )
    else:
        why = "it loads data in the main process"
        fix = "load in workers: DataLoader(num_workers=4, persistent_workers=True); or make this line faster"
    yield from _findings(trace, causes.LOADING, why, fix)


@rule("X604", "late-saving", needs=("host_samples", "collectives"))
def saving(trace: Trace) -> Iterator[Finding]:
    """A rank keeps its peers waiting because it writes a checkpoint.

    What it means: this rank ran torch.save or torch.distributed.checkpoint.save before collectives in which its
    peers then waited. Each call was recorded with its start and end.

    Why it happens: one rank writes the checkpoint of all, on slow storage, in the training loop.

    What to do: write in the background (torch.distributed.checkpoint.async_save), let every rank write its own part,
    write less often, or to a local disk first.

    What could fool it: nothing known. Checkpoints that other functions write show up as the line that calls them.
    """
    fix = (
        "write in the background (torch.distributed.checkpoint.async_save), let every rank write its part, "
        "or write less often"
    )
    yield from _findings(trace, causes.SAVING, "it writes a checkpoint", fix)


@rule("X605", "late-transferring", needs=("host_samples", "collectives"))
def transferring(trace: Trace) -> Iterator[Finding]:
    """A rank keeps its peers waiting because a read, a write or a request blocks it.

    What it means: before the collectives in which its peers wait, this rank's main thread sleeps in a system call that
    transfers data or waits for another process. The call and its file, pipe or socket are named where the kernel shows
    them.

    Why it happens: synchronous logging, a pipe whose reader is slow, a request to a server, a network file system, a
    subprocess.

    What to do: move it off the training loop's thread (a queue and a thread, or a logging handler that does not block),
    do it less often, or check the other side.

    What could fool it: the system call is known only where /proc shows it (Linux, same user). A line that does many
    short transfers and computes in between is reported as X609 or X610.
    """
    cause = cause_of(trace)
    call = cause.most(cause.spent.waits_in) if cause is not None else ""
    fix = "move it to another thread or do it less often; check the other side: storage, pipe or server"
    yield from _findings(trace, causes.TRANSFER, f"it blocks in {call or 'I/O'}", fix)


@rule("X606", "late-waiting-for-lock", needs=("host_samples", "collectives"))
def locked(trace: Trace) -> Iterator[Finding]:
    """A rank keeps its peers waiting because its main thread waits for a lock or for another thread.

    What it means: before the collectives in which its peers wait, the main thread of this rank sleeps until another
    thread wakes it: in a lock, a queue, an event, or the join of a thread.

    Why it happens: another thread of the process holds the lock for a long time (logging, a prefetcher, a metrics
    client), or does not deliver in time.

    What to do: hold the lock for less time, hand data over through a queue that is filled ahead, or drop the wait.

    What could fool it: C++ threads of libraries also wake the main thread; the line shows which call waits.
    """
    cause = cause_of(trace)
    more: tuple[str, ...] = ()
    if cause is not None and cause.kind == causes.LOCK:
        more = tuple(_other_threads(trace, cause))
    fix = "hold the lock for less time on the other thread, or fill a queue ahead of the training loop"
    yield from _findings(trace, causes.LOCK, "it waits for a lock or another thread", fix, *more)


@rule("X607", "late-without-gil", needs=("host_samples", "collectives"))
def without_python_lock(trace: Trace) -> Iterator[Finding]:
    """A rank keeps its peers waiting because another thread of its process keeps the GIL busy.

    What it means: other threads of this rank's process use a core, and every thread that wants to run Python code there
    has to wait for the GIL. The collector's own thread waited too, which is how it was noticed.

    Why it happens: a thread computes in Python: it decodes, compresses, polls in a loop, or renders metrics.

    What to do: move that work to another process, or into functions that release the GIL.

    What could fool it: on a host with too few cores the collector's thread also comes late; that is reported as no
    free core if the main thread was delayed as well.
    """
    cause = cause_of(trace)
    more: tuple[str, ...] = ()
    if cause is not None and cause.kind == causes.PYTHON_LOCK:
        more = tuple(_other_threads(trace, cause))
    fix = "move the work of that thread into another process"
    yield from _findings(trace, causes.PYTHON_LOCK, "another thread keeps the GIL; it slows down most", fix, *more)


def _other_threads(trace: Trace, cause: Cause) -> Iterator[str]:
    """Where the other threads were in the meantime, those with most time on a core first."""
    windows = cause.delays.windows[cause.delays.rank]
    rows = trace.sql(
        """
        SELECT name, site, count(*) AS n, sum(cpu_ns) AS cpu_ns FROM host_threads
        WHERE rank = $rank AND time_ns BETWEEN $first AND $last AND site <> ''
        GROUP BY name, site ORDER BY cpu_ns DESC, n DESC LIMIT 2
        """,
        rank=cause.delays.rank,
        first=int(windows[:, 0].min()),
        last=int(windows[:, 1].max()),
    ).rows()
    for name, site, n_samples, _ in rows:
        yield f"thread {name} was at {_short(site)} in {count_noun(n_samples, 'sample')}"


@rule("X608", "late-without-core", needs=("host_samples", "collectives"))
def without_core(trace: Trace) -> Iterator[Finding]:
    """A rank is late because its main thread waits for a free core.

    What it means: the main thread was ready to run, and the kernel had no core for it, for at least half of what its
    peers waited. The code of this rank is not slower.

    Why it happens: more threads than cores: too many ranks per host, too many threads per rank (OMP_NUM_THREADS, data
    loading workers), another job on the host, a CPU limit of the container.

    What to do: set OMP_NUM_THREADS to the cores per rank, start fewer workers, bind ranks to cores, or move the other
    process away.

    What could fool it: which rank is delayed changes from run to run; the host is at fault, not the rank.
    """
    cause = cause_of(trace)
    if cause is None or cause.kind != causes.NO_CORE:
        return
    fix = "give each rank its cores: OMP_NUM_THREADS, fewer workers, fewer ranks or other processes on this host"
    threads, cores = _threads_and_cores(trace)
    own = (
        (f"the ranks run {threads} compute threads on {count_noun(cores, 'core')}",) if threads >= 2 * cores > 0 else ()
    )
    for finding in _findings(trace, causes.NO_CORE, "it has to wait for a free core", fix, *own):
        # Another process on the host is nothing that the job did: a note.
        yield finding if own else msgspec.structs.replace(finding, severity="info")


def _threads_and_cores(trace: Trace) -> tuple[int, int]:
    [(threads, cores)] = trace.sql("""
        SELECT sum(value) FILTER (name = 'n_torch_threads'), min(value) FILTER (name = 'n_usable_cores')
        FROM host_machine
    """).rows()
    return int(threads or 0), int(cores or 0)


@rule("X609", "late-same-line-longer", needs=("host_samples", "collectives"))
def longer(trace: Trace) -> Iterator[Finding]:
    """A rank keeps its peers waiting because the same line of code takes longer on it.

    What it means: all ranks run this line, but on this rank it computes for longer. The thread is running: it is not
    waiting for data, a lock or a core.

    Why it happens: a larger batch, longer sequences or a hot expert on this rank, another dtype or shape, a slower
    processor.

    What to do: compare what reaches the line on both ranks (shapes and dtypes), and balance it; if it is the same,
    compare the processors.

    What could fool it: a line that hands work to a device and waits for it shows here as the host sees it.
    """
    cause = cause_of(trace)
    times = cause.own_ns / cause.peers_ns if cause is not None and cause.peers_ns else 0
    fix = (
        "compare the shapes and dtypes that reach this line on both ranks "
        "(`rankscope metrics PATH late_causes`); if they are equal, compare the processors"
    )
    yield from _findings(trace, causes.LONGER, f"the same line takes it {times:.1f} times as long", fix)


@rule("X610", "late-extra-work", needs=("host_samples", "collectives"))
def extra(trace: Trace) -> Iterator[Finding]:
    """A rank keeps its peers waiting because it runs code that they do not run.

    What it means: before the collectives in which its peers wait, this rank computes at a line on which they spend less
    than a tenth of that time.

    Why it happens: an evaluation, logging, statistics or a debugging aid on one rank; a branch that only its data
    takes; a loop of `.item()` calls.

    What to do: move it out of the loop, spread it over all ranks, or do it less often.

    What could fool it: a line that is reached on all ranks but ends at once on the others looks the same.
    """
    fix = "move this line out of the training loop, spread its work over all ranks, or run it less often"
    yield from _findings(trace, causes.EXTRA, "it runs code that its peers do not", fix)


@rule("X611", "late-optimizer", needs=("host_samples", "collectives"))
def optimizer(trace: Trace) -> Iterator[Finding]:
    """A rank keeps its peers waiting because its optimizer step takes longer.

    What it means: the optimizer's step() takes longer on this rank than on its peers, before collectives in which they
    wait. Each step was recorded with its start and end.

    Why it happens: an optimizer hook, more parameters on this rank (uneven shards), denormal numbers, a loop over
    single parameters (foreach=False) on one rank.

    What to do: look at the hooks and at the number of parameters per rank; use the fused or foreach form.

    What could fool it: on a device, step() only launches the work.
    """
    fix = "compare the optimizer's hooks and the number of its parameters with a peer's; use fused=True or foreach=True"
    yield from _findings(trace, causes.OPTIMIZER, "its optimizer step takes longer", fix)


@rule("X612", "late-sleeping", needs=("host_samples", "collectives"))
def sleeping(trace: Trace) -> Iterator[Finding]:
    """A rank keeps its peers waiting because its code sleeps.

    What it means: before the collectives in which its peers wait, the main thread of this rank is in a sleep call.

    Why it happens: a retry with a pause, a loop that polls a file or a server, a rate limit, something left from
    debugging.

    What to do: wait for the event itself instead of polling, or do it in another thread.

    What could fool it: nothing known: the kernel names the call.
    """
    fix = "remove the sleep from the training loop, or wait for the event itself in another thread"
    yield from _findings(trace, causes.SLEEP, "it sleeps", fix)


@rule("X613", "late-compiling", needs=("host_samples", "collectives"))
def compiling(trace: Trace) -> Iterator[Finding]:
    """A rank keeps its peers waiting because torch.compile compiles on it.

    What it means: before the collectives in which its peers wait, torch.compile was at work on this rank. Each
    compilation was recorded with its start and end. Compiling at the start of the job is not counted.

    Why it happens: this rank meets new shapes or values and recompiles; its caches are cold.

    What to do: mark dynamic dimensions (torch._dynamo.mark_dynamic), give all ranks the same shapes, warm up before
    training; the findings about recompilation name the guard.

    What could fool it: compilations in other threads are not counted.
    """
    fix = (
        "give all ranks the same shapes or mark dimensions as dynamic (torch._dynamo.mark_dynamic); "
        "TORCH_LOGS=recompiles says why"
    )
    yield from _findings(trace, causes.COMPILE, "it compiles", fix)
