"""X602 to X607: a rank keeps its peers waiting because its training thread pauses or waits."""

from __future__ import annotations

from collections.abc import Iterator

from rankscope.analyze.late import causes
from rankscope.analyze.late.causes import Cause
from rankscope.analyze.late.telling import finding, findings, of_kind, short
from rankscope.analyze.registry import rule
from rankscope.model.finding import Finding, count_noun
from rankscope.model.tables import Trace


@rule("X602", "late-collecting-garbage", needs=("host_samples", "collectives"))
def collecting(trace: Trace) -> Iterator[Finding]:
    """A rank keeps its peers waiting because of Python's garbage collection.

    What it means: Python's garbage collector stopped this rank's main thread before collectives in which its peers then
    waited. Each collection was recorded with its start and end.

    Why it happens: the rank keeps many objects alive, so each full collection takes long; ranks collect at different
    steps, and each time all others wait; the code calls gc.collect() on one rank only.

    What to do: collect at the same step on all ranks: gc.disable() before the loop, gc.collect() every N steps on all
    of them; gc.freeze() after setup excludes everything that lives forever.

    What could fool it: the line is where the collection began. Unless it calls gc.collect(), it is only the line that
    happened to allocate.
    """
    fix = (
        "collect at the same step on all ranks: gc.disable() before the loop, gc.collect() every N steps; "
        "gc.freeze() after setup"
    )
    yield from findings(trace, causes.GC, "it is collecting garbage", fix)


@rule("X603", "late-loading-data", needs=("host_samples", "collectives"))
def loading(trace: Trace) -> Iterator[Finding]:
    """A rank keeps its peers waiting because it waits for its next batch.

    What it means: the rank's peers wait as long as it spends in its DataLoader before the collective. Each wait was
    recorded with its start and end.

    Why it happens: the data is read and transformed in the main process (num_workers=0), the workers are too few or too
    slow, workers restart every epoch, or this rank's shard or storage is slower.

    What to do: if the line is in your dataset, it runs in the main process: set num_workers. Otherwise the workers
    cannot keep up: use more of them, a higher prefetch_factor, persistent_workers=True, faster storage, or cheaper
    transforms.

    What could fool it: batches that do not come from a torch DataLoader are not recorded as such; X605, X609 or X610
    names the line instead.
    """
    for cause in of_kind(trace, causes.LOADING):
        frame = cause.most(cause.spent.frames)
        if any(name in frame for name in _WAITING):
            fix = (
                "use more workers (num_workers), a higher prefetch_factor and persistent_workers=True; "
                "check this rank's shard and storage"
            )
            yield finding(cause, "it is waiting for its DataLoader workers", fix, tuple(_worker_places(trace, cause)))
        else:
            fix = "load in workers: DataLoader(num_workers=4, persistent_workers=True); or make this line faster"
            yield finding(cause, "it loads data in its main process", fix)


_WAITING = ("multiprocessing", "selectors.py", "queue.py", "threading.py")  # whose functions wait for workers


def _worker_places(trace: Trace, cause: Cause) -> Iterator[str]:
    rows = trace.sql(
        "SELECT coalesce(site, frame) AS place, count(*) AS n FROM host_workers WHERE rank = $rank AND place <> '' "
        "GROUP BY ALL ORDER BY n DESC, place LIMIT 2",
        rank=cause.delays.rank,
    ).rows()
    for site, n_samples in rows:
        yield f"its workers were at {short(site)} in {count_noun(n_samples, 'sample')}"


@rule("X604", "late-saving", needs=("host_samples", "collectives"))
def saving(trace: Trace) -> Iterator[Finding]:
    """A rank keeps its peers waiting because it writes a checkpoint.

    What it means: this rank ran torch.save or torch.distributed.checkpoint.save before collectives in which its peers
    then waited. Each call was recorded with its start and end.

    Why it happens: one rank writes the whole checkpoint, to slow storage, inside the training loop.

    What to do: write in the background (torch.distributed.checkpoint.async_save), let every rank write its own part,
    write less often, or write to a local disk first.

    What could fool it: nothing known. Checkpoints written by other functions show up as the line that calls them.
    """
    fix = (
        "write in the background (torch.distributed.checkpoint.async_save), let every rank write its part, "
        "or write less often"
    )
    yield from findings(trace, causes.SAVING, "it is writing a checkpoint", fix)


@rule("X605", "late-transferring", needs=("host_samples", "collectives"))
def transferring(trace: Trace) -> Iterator[Finding]:
    """A rank keeps its peers waiting because it is blocked in a read, a write or a request.

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
    fix = "move it to another thread or do it less often; check the other side: storage, pipe or server"
    for cause in of_kind(trace, causes.TRANSFER):
        yield finding(cause, f"it is blocked in {cause.most(cause.spent.waits_in) or 'I/O'}", fix)


@rule("X606", "late-waiting-for-lock", needs=("host_samples", "collectives"))
def locked(trace: Trace) -> Iterator[Finding]:
    """A rank keeps its peers waiting because its main thread waits for a lock or for another thread.

    What it means: before the collectives in which its peers wait, the main thread of this rank sleeps until another
    thread wakes it: it waits for a lock, a queue, an event, or another thread to end.

    Why it happens: another thread of the process holds the lock for a long time (logging, a prefetcher, a metrics
    client), or does not deliver in time.

    What to do: hold the lock for less time, pass data through a queue that is filled ahead of time, or remove the wait.

    What could fool it: C++ threads of libraries also wake the main thread; the line shows which call waits.
    """
    fix = "hold the lock for less time on the other thread, or fill a queue ahead of the training loop"
    for cause in of_kind(trace, causes.LOCK):
        yield finding(cause, "it is waiting for a lock or another thread", fix, tuple(_other_threads(trace, cause)))


@rule("X607", "late-without-gil", needs=("host_samples", "collectives"))
def without_python_lock(trace: Trace) -> Iterator[Finding]:
    """A rank keeps its peers waiting because another thread of its process holds the GIL.

    What it means: another thread of this rank's process keeps a core busy, and every other thread that wants to run
    Python code has to wait for the GIL. The collector's own thread had to wait too, which is how this is known.

    Why it happens: a thread computes in pure Python: it decodes, compresses, polls in a loop, or renders metrics.

    What to do: move that work to another process, or into functions that release the GIL.

    What could fool it: on a host with too few cores the collector's thread is late as well; if the main thread was
    delayed too, that is reported as X608 instead.
    """
    fix = "move the work of that thread into another process"
    for cause in of_kind(trace, causes.PYTHON_LOCK):
        yield finding(cause, "another thread holds the GIL", fix, tuple(_other_threads(trace, cause)))


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
        yield f"thread {name} was at {short(site)} in {count_noun(n_samples, 'sample')}"
