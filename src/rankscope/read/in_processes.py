"""Reading files side by side in processes, each of which may take only as much memory as honest files need."""

from __future__ import annotations

import gc
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import ModuleType
from typing import TYPE_CHECKING, TypeVar

from rankscope.model.border import bugs_are_raised, raise_bugs
from rankscope.model.numbers import MAX_LONG, integer

if TYPE_CHECKING:
    from concurrent.futures import ProcessPoolExecutor

Batch = TypeVar("Batch")
Result = TypeVar("Result")
_MEMORY = 1 << 30  # what any file may need, and more than a small honest one does
_MEMORY_PER_FILE = 200  # times its size: what the largest honest file may need while it is read


def read_in_processes(
    read: Callable[[Batch], Result], batches: Sequence[Batch], n_jobs: int, n_largest: int
) -> Iterator[Result]:
    """In processes: unpickling holds the interpreter's lock. Forked where possible, as that imports nothing again."""
    import multiprocessing
    import warnings
    from concurrent.futures import ProcessPoolExecutor

    # A process that has threads, of the database or of a store, must not be forked: a lock could stay held for ever.
    can_fork = sys.platform == "linux" and not {"duckdb", "fsspec"} & sys.modules.keys()
    context = multiprocessing.get_context("fork" if can_fork else "spawn")
    chunk = max(1, min(16, len(batches) // (4 * n_jobs)))
    with warnings.catch_warnings():
        # The child only unpickles and makes arrays: no lock that another thread may hold is ever taken there.
        warnings.simplefilter("ignore", DeprecationWarning)
        with ProcessPoolExecutor(n_jobs, context, _set_up_process, (n_largest, bugs_are_raised())) as pool:
            try:
                with _without_main_module():
                    results = pool.map(read, batches, chunksize=chunk)
                yield from results
            except (KeyboardInterrupt, GeneratorExit):
                _end_processes(pool)
                raise


def _end_processes(pool: ProcessPoolExecutor) -> None:
    """What is still being read is not waited for."""
    import threading
    from concurrent.futures import InvalidStateError

    usual = threading.excepthook

    def complain(failure: threading.ExceptHookArgs) -> None:
        # The pool's own thread trips over futures that were canceled before their process ended.
        if failure.exc_type is not InvalidStateError:
            usual(failure)

    threading.excepthook = complain
    for process in list((pool._processes or {}).values()):
        process.terminate()


@contextmanager
def _without_main_module() -> Iterator[None]:
    """A spawned process would first run the caller's script again, which fails unless the script guards against it."""
    main = sys.modules["__main__"]
    sys.modules["__main__"] = ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main


def _set_up_process(n_largest: int, is_strict: bool) -> None:
    raise_bugs(is_strict)
    gc.disable()  # a collection would copy every page that the process shares with its parent
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all processes: the parent ends them
    limited_memory(n_largest).__enter__()


@contextmanager
def limited_memory(n_largest: int) -> Iterator[None]:
    """The process may grow by what honest files need, many times over, and no further.

    Ten bytes suffice to make an unpickler reserve 64 GB. The limit is enforced on Linux alone.
    """
    if sys.platform != "linux":
        yield
        return
    import resource

    with open("/proc/self/statm") as status:
        n_now = integer(status.read().split()[5], MAX_LONG) * resource.getpagesize()
    # What it may write to, not its addresses: of those, threads reserve far more than they use.
    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    wanted = n_now + max(_MEMORY, _MEMORY_PER_FILE * n_largest)
    limits = [limit for limit in (wanted, soft, hard) if limit != resource.RLIM_INFINITY]
    resource.setrlimit(resource.RLIMIT_DATA, (min(limits), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))
