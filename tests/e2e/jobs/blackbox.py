"""The black box of a job: when training hangs, fails or ends, every rank leaves torch's own Flight Recorder dump."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
import traceback
from collections.abc import Callable, Collection, Iterator
from pathlib import Path

import torch
import torch.distributed as dist
from torch._C import _distributed_c10d

# A step takes milliseconds, so seconds without one are a hang even on a busy machine.
PATIENCE_S = 3.0
PEERS_DUMP_WITHIN_S = 120.0
EXIT_AFTER_DUMP = 3
LIFETIME_S = 330

# torchrun puts every rank into a session of its own; should torchrun be killed, the rank has to end by itself.
signal.alarm(LIFETIME_S)

# To name the frames of compiled code, the first dump looks at torch._inductor, and the look alone imports the compiler:
# two seconds of CPU per rank. These jobs compile nothing.
vars(torch).setdefault("_inductor", None)

# The stubs that torch ships do not know this function.
dump_trace: Callable[[], bytes] = vars(_distributed_c10d)["_dump_fr_trace"]


class BlackBox:
    def __init__(self, folder: Path, dumping_ranks: Collection[int]) -> None:
        self._folder = folder
        self._dumping_ranks = dumping_ranks
        self._last_progress = time.monotonic()
        # Taken once and never given back: of the watchdog and the main thread, only the first may dump.
        self._only_dump = threading.Lock()

    def progress(self) -> None:
        self._last_progress = time.monotonic()

    def watch(self) -> None:
        while time.monotonic() - self._last_progress < PATIENCE_S:
            time.sleep(0.05)
        self.dump_and_leave()

    def dump(self) -> None:
        self._only_dump.acquire()
        aside = self._folder / f".rank_{dist.get_rank()}.partial"
        aside.write_bytes(dump_trace())
        aside.rename(self._dump_of(dist.get_rank()))

    def dump_and_leave(self) -> None:
        self.dump()
        # Leaving closes this rank's connections: peers that have not dumped yet would record that instead of the hang.
        deadline = time.monotonic() + PEERS_DUMP_WITHIN_S
        while time.monotonic() < deadline and not self._all_have_dumped():
            time.sleep(0.05)
        os._exit(EXIT_AFTER_DUMP)

    def _all_have_dumped(self) -> bool:
        return all(self._dump_of(rank).exists() for rank in self._dumping_ranks)

    def _dump_of(self, rank: int) -> Path:
        return self._folder / f"nccl_trace_rank_{rank}"


@contextlib.contextmanager
def recording(folder: Path, dying_ranks: Collection[int] = ()) -> Iterator[BlackBox]:
    # torchrun ends the survivors of a dead rank within a tenth of a second: too soon for their dumps.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    box = BlackBox(folder, [rank for rank in range(dist.get_world_size()) if rank not in dying_ranks])
    dist.barrier()
    box.progress()
    threading.Thread(target=box.watch, name="blackbox", daemon=True).start()
    try:
        yield box
    except RuntimeError:
        traceback.print_exc()
        box.dump_and_leave()
    # gloo's thread marks a call as done only after it has woken the caller.
    time.sleep(0.2)
    box.dump()
