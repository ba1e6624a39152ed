"""torch's Flight Recorder: what it holds of the last calls goes into nccl_trace_rank_<rank>."""

from __future__ import annotations

import contextlib
import importlib
import json
import sys
import threading
import time
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from rankscope.collect.part import Part
from rankscope.collect.run import EXIT, Run

_BINDINGS = "torch._C._distributed_c10d"
# One recorder per kind of device. NCCL's comes first: what a job does on the CPU beside it is seldom what hangs.
_DUMPERS = ("_dump_nccl_trace", "_dump_xccl_trace", "_dump_fr_trace")
_one_at_a_time = threading.Lock()
_SETTLE_SECONDS = 1.0  # at the end, for calls that have ended and are not yet recorded as such
_LOOK_SECONDS = 0.01
_CLEAN_UP_CALLS = 4  # that a rank may make after a stall without having moved on
STALLED = "no collective has finished for "  # begins the reason of a dump that the watchdog made
_LOST_WITHOUT_TRACKER = "use `rankscope record --desync` to record the calls of all backends"


class Counts(NamedTuple):
    """Calls of all groups, counted by torch since the job began."""

    enqueued: int = 0
    completed: int = 0


class Recorder(Part):
    NAME = "recorder"

    def __init__(self, run: Run) -> None:
        super().__init__(run)
        self._name = f"nccl_trace_rank_{run.rank}"
        self._found = self._look()  # of an earlier run
        self._written: tuple[int, ...] | None = None  # what the file looked like when this part had written it
        self._told = Counts()  # at the time of the last dump
        self._kept_earlier = False
        self._is_of_stall = False  # the file shows the first moment of a hang

    def joined(self) -> None:
        if not _dumpers():
            self.run.problem(self.NAME, "this version of torch has no readable Flight Recorder", _LOST_WITHOUT_TRACKER)

    def dump(self, reason: str) -> None:
        counts = count_calls()
        is_empty = counts is not None and not counts.enqueued
        if is_empty and (reason == EXIT or not is_initialized()):
            return
        if self._is_by_torch():
            # torch's own watchdog dumps before it aborts; afterwards the aborted calls look finished.
            self.run.got(self.NAME, self._name)
            return
        if self._is_told_better(reason, counts):
            return
        if reason == EXIT and not self.run.has_raised():  # then calls fail one after the other, and look finished
            self._settle(counts)
        trace = self.to_bytes()
        if trace and self.run.publish(self.NAME, self._name, lambda path: _write(path, trace), replace=True):
            self._written = self._look()
            self._told = counts or Counts()
            self._is_of_stall = STALLED in reason

    def to_bytes(self) -> bytes:
        """The dump; empty where torch has none. From any thread."""
        dumpers = _dumpers()
        used = [name for name in dumpers if _status(name) != {}]
        if len(used) > 1:
            unread = ", ".join(name.removeprefix("_dump_") for name in used[1:])
            problem = f"{self._name} has the calls of only one recorder; torch also has {unread}"
            self.run.problem(self.NAME, problem, _LOST_WITHOUT_TRACKER)
        chosen = next(iter(used or dumpers), None)
        return _dump(dumpers[chosen]) if chosen else b""

    def _settle(self, counts: Counts | None) -> None:
        """Waits until the last calls are recorded as ended: other threads do that, after the job has its results."""
        n_open = 0 if counts is None or counts.enqueued == counts.completed else _n_open()
        deadline = time.monotonic() + _SETTLE_SECONDS
        while n_open and is_initialized() and time.monotonic() < deadline:  # without groups nothing changes any more
            time.sleep(_LOOK_SECONDS)
            n_open = _n_open()
        if n_open:
            calls = "1 call" if n_open == 1 else f"{n_open} calls"
            problem = f"{self._name} was written at the end of the process, with {calls} not recorded as complete"
            self.run.problem(self.NAME, problem, "call wait() on the work that asynchronous collectives return")

    def _is_told_better(self, reason: str, counts: Counts | None) -> bool:
        """Keep the existing dump: calls that failed since, because a peer is missing, look finished now."""
        if self._written is None or counts is None:
            self._kept_earlier = False
        elif self._is_of_stall and self._is_end(reason) and counts.enqueued <= self._told.enqueued + _CLEAN_UP_CALLS:
            self._kept_earlier = True  # what a rank calls while it gives up says nothing about the hang
        elif counts.enqueued != self._told.enqueued:
            self._kept_earlier = False
        elif reason != EXIT and self._told.completed < self._told.enqueued:
            self._kept_earlier = True
        return self._kept_earlier

    def _is_end(self, reason: str) -> bool:
        return self.run.has_raised() or reason in ("SIGTERM", "SIGINT")

    def _is_by_torch(self) -> bool:
        """Another process wrote the file, or overwrote it, during this run."""
        look = self._look()
        return look is not None and look not in (self._found, self._written)

    def _look(self) -> tuple[int, ...] | None:
        try:
            status = (self.run.folder / self._name).stat()
        except OSError:
            return None
        return status.st_ino, status.st_mtime_ns, status.st_size


def count_calls() -> Counts | None:
    """How far the job has come, for some 30 microseconds. None if this torch does not report it."""
    statuses = [status for name in _dumpers() if (status := _status(name)) is not None]
    groups = [group for status in statuses for group in status.values()]
    if not statuses:
        return None
    return Counts(
        sum(max(0, int(group.get("last_enqueued_collective", 0))) for group in groups),
        sum(max(0, int(group.get("last_completed_collective", 0))) for group in groups),
    )


def _dumpers() -> dict[str, Callable[..., bytes]]:
    bindings = sys.modules.get(_BINDINGS)
    return {name: dumper for name in _DUMPERS if (dumper := getattr(bindings, name, None)) is not None}


def _json_dumper(name: str) -> Callable[[bool, bool], str] | None:
    """Called with: whether calls are included, and whether only those that have not ended are."""
    return getattr(sys.modules[_BINDINGS], f"{name}_json", None)


def _status(name: str) -> dict[str, dict[str, str]] | None:
    """Per group what was last enqueued and last completed; empty before the first call, None if unknown."""
    dump_json = _json_dumper(name)
    if dump_json is None:
        return None
    status: dict[str, dict[str, str]] = json.loads(dump_json(False, False)).get("pg_status", {})
    return status


def _n_open() -> int:
    """Calls that are not recorded as ended. Calls that end out of order leave the counters behind."""
    dumpers = [dump_json for name in _dumpers() if (dump_json := _json_dumper(name)) is not None]
    entries = [entry for dump_json in dumpers for entry in json.loads(dump_json(True, False)).get("entries", ())]
    return sum(not entry.get("retired", True) and entry.get("state") != "completed" for entry in entries)


def _dump(dumper: Callable[..., bytes]) -> bytes:
    with _one_at_a_time, inductor_left_out():
        try:
            return dumper(includeCollectives=True, includeStackTraces=True, onlyActive=False)
        except TypeError:
            return dumper()
        except RuntimeError:  # the frames could not be named; the calls alone tell who waits for whom
            return dumper(includeCollectives=True, includeStackTraces=False, onlyActive=False)


def _write(path: Path, trace: bytes) -> None:
    path.write_bytes(trace)


def is_initialized() -> bool:
    distributed = sys.modules.get("torch.distributed")
    return distributed is not None and distributed.is_available() and distributed.is_initialized()


class _NotImportedYet(types.ModuleType):
    """Stands for torch._inductor while a dump is made: not there for the dumping thread, the real one for others."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.__dict__["dumping_thread"] = threading.get_ident()

    def __getattr__(self, name: str) -> Any:
        if threading.get_ident() == self.__dict__["dumping_thread"]:
            raise AttributeError(name)
        return getattr(importlib.import_module("torch._inductor"), name)


@contextlib.contextmanager
def inductor_left_out() -> Iterator[None]:
    """Keeps torch from importing its compiler to look for frames of compiled code, where nothing was compiled.

    The look at the attribute torch._inductor alone imports it: two seconds of CPU, in a job that may be dying, and for
    ever if a thread that hangs holds one of the import locks.
    """
    torch = sys.modules["torch"]
    if "torch._inductor" in sys.modules or "_inductor" in vars(torch):
        yield
        return
    stand_in = _NotImportedYet("torch._inductor")
    vars(torch)["_inductor"] = stand_in
    try:
        yield
    finally:
        stand_in.__dict__["dumping_thread"] = None
        if vars(torch).get("_inductor") is stand_in:
            del vars(torch)["_inductor"]
