"""What the collector does in one process: it learns its rank, starts the parts, and calls them until the job ends."""

from __future__ import annotations

import atexit
import dataclasses
import errno
import importlib
import os
import platform
import socket
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rankscope.collect import manifest
from rankscope.collect.files import Publisher
from rankscope.collect.part import Part
from rankscope.collect.settings import Settings
from rankscope.collect.telling import tell_line

TICK_SECONDS = 0.25
# What shows that a step has ended, see profile/steps.py.
OPTIMIZER, BY_HAND = "optimizer", "rankscope.step()"
EXIT = "exit"  # the reason of the dump that is made when the job ends by itself, and how that is called
EXCEPTION, SIGNAL = "exception", "signal"  # the other ways to end that a rank can still tell
LEFT = "left"  # it has destroyed its process groups, and was ended without notice afterwards
_LOCK_SECONDS = 30.0
_JOIN_SECONDS = 5.0
_HINTS = {
    errno.ENOSPC: "free disk space, or collect to another folder",
    errno.EROFS: "collect to a writable folder",
    errno.EACCES: "collect to a writable folder",
    errno.ENOENT: "the folder was removed while the job ran: keep it until the job has ended",
}

# Module, class, and the settings any of which asks for it. In the order in which they are started and dump; they
# close the other way round.
PARTS: tuple[tuple[str, str, tuple[str, ...]], ...] = (
    ("rankscope.collect.clock", "Clock", ("recorder", "desync", "kineto")),
    ("rankscope.collect.dumps.stacks", "Stacks", ("stacks",)),
    ("rankscope.collect.desync.tracker", "Tracker", ("desync",)),
    ("rankscope.collect.dumps.recorder", "Recorder", ("recorder",)),
    ("rankscope.collect.dumps.endings", "Endings", ("stacks", "recorder", "desync")),
    ("rankscope.collect.dumps.watchdog", "Watchdog", ("stacks", "recorder", "desync")),
    ("rankscope.collect.metrics", "Metrics", ("metrics",)),
    ("rankscope.collect.host.sampler", "Host", ("host",)),
    ("rankscope.collect.profile.profiling", "Profiling", ("execution_trace", "kineto")),
    ("rankscope.collect.launching.torch_logs", "TorchLogs", ("logs", "compile_log")),
    ("rankscope.collect.launching.nsys", "Nsys", ("nsys",)),
    ("rankscope.collect.debug.server", "DebugServer", ("debug_port",)),
    ("rankscope.collect.requests", "Requests", ("stacks", "recorder", "desync")),
    ("rankscope.collect.dumps.cpp_stacks", "CppStacks", ("cpp_stacks",)),  # takes longest: all else is written by then
)


class Run:
    """One per process. It sleeps until the process turns out to be a rank: only then is anything written."""

    def __init__(self, settings: Settings, *, begins_with_step: bool = True) -> None:
        self.settings = settings
        self.begins_with_step = begins_with_step  # False: nobody knows where the first step begins
        self.rank = -1
        self.world_size = 1
        self.local_rank = 0
        self.host = socket.gethostname()
        self.n_steps = 0
        self.steps_by: dict[str, int] = {}  # by which sign how many were found; the last one is the current sign
        self.n_samples: float | None = None  # in the step that ended last, if the job tells
        self.clock_offset_ns: int | None = None
        self.clock_error_ns: int | None = None
        self.folder = Path(settings.folder)
        self.has_begun = self.has_ended = False
        self._has_left = False  # all process groups
        self.is_finishing = False
        self.when_finished: Callable[[], object] | None = None  # a signal came meanwhile
        self.is_joining = False  # init_process_group was called and has not returned
        self._ending: str | None = None  # how; None while it runs, and for ever if it is killed
        self._files = Publisher(self.folder, settings.max_bytes)
        self._parts: tuple[Part, ...] = ()
        self._got: dict[str, str] = {}  # file -> what it is
        self._problems: dict[tuple[str, str], str] = {}  # (what, problem) -> hint
        self._pid = os.getpid()
        self._started_ns = time.time_ns()
        self._begin_lock, self._busy = threading.Lock(), threading.RLock()
        self._wake = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="rankscope", daemon=True)
        self._requested: list[tuple[str, Callable[[], object] | None]] = []
        self._dumped: dict[str, Any] | None = None  # the last dump, as the manifest tells it

    def begin(self, rank: int, world_size: int, local_rank: int) -> None:
        """The process is a rank of the job. Everything that was requested starts; a second call changes nothing."""
        with self._begin_lock:
            if self.has_begun or self.has_ended:
                return
            self.has_begun = True
        self.rank, self.world_size, self.local_rank = rank, world_size, local_rank
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            self._write_manifest()
        except OSError as error:
            self._end_silently(f"cannot write to {self.folder}: {error.strerror or error}")
            return
        self._parts = tuple(filter(None, map(self._make, PARTS)))
        for part in self._parts:
            self._call(part, part.start, is_fatal=True)
        if _is_joined():
            self.joined()
        self._thread.start()
        atexit.register(self.finish)
        _finish_with_multiprocessing(self.finish)

    def part(self, name: str) -> Part | None:
        return next((part for part in self._parts if name == part.NAME), None)

    def step(self, samples: float | None = None) -> None:
        """A step has ended, as the job says itself."""
        self._steps_ended(BY_HAND, 1, samples)

    def step_found(self, sign: str, n_ended: int = 1) -> None:
        """A step has ended, or several until the sign that shows them was believed."""
        self._steps_ended(sign, n_ended, None)

    def _steps_ended(self, sign: str, n_ended: int, samples: float | None) -> None:
        if not self._is_ours():
            return
        n_before, changes = self.n_steps, _are_other_steps(next(reversed(self.steps_by), ""), sign)
        self.n_steps += n_ended
        self.steps_by[sign] = self.steps_by.pop(sign, 0) + n_ended
        self.n_samples = samples
        for part in self._parts:
            if changes:
                self._call(part, part.steps_change, n_before, is_fatal=True)
            self._call(part, part.step, self.n_steps, is_fatal=True)

    def left(self) -> None:
        """The last process group was destroyed. The process may be ended without notice now: files are complete."""
        if self._is_ours():
            self._has_left = True
            self.dump(EXIT)

    def begin_joining(self) -> Callable[[], None]:
        """init_process_group has been called; to be called when it has returned, or raised."""
        self.is_joining = True

        def end() -> None:
            self.is_joining = False

        return end

    def joined(self) -> None:
        """torch.distributed has been initialized."""
        if self._is_ours():
            for part in self._parts:
                self._call(part, part.joined, is_fatal=True)

    def request_dump(self, reason: str, done: Callable[[], object] | None = None) -> None:
        """Has the collector's thread dump soon, and call `done`. Safe in a signal handler."""
        self._requested.append((reason, done))
        self._wake.set()

    def dump(self, reason: str, request: str = "") -> bool:
        """Writes what every part knows now. When all is written the manifest names it, and the request it answers.

        False if nothing was dumped: the run has ended, or another dump does not.
        """
        if not self._is_ours() or not self._busy.acquire(timeout=_LOCK_SECONDS):
            return False
        try:
            for part in self._parts:
                self._call(part, part.dump, reason)
            self._dumped = {"reason": reason[:500], "request": request, "time_ns": time.time_ns()}
            self._write_manifest_or_tell()
        finally:
            self._busy.release()
        return True

    def finish(self) -> None:
        """The job ends: the last dump, then every part closes. A second call changes nothing."""
        if not self._is_ours():
            return
        self.is_finishing = True
        self.dump(EXIT)
        self.has_ended = True
        self._ending = EXCEPTION if self.has_raised() else EXIT
        self._wake.set()
        if threading.current_thread() is not self._thread:
            self._thread.join(_JOIN_SECONDS)  # a thread that outlives the interpreter can take the process down with it
        acquired = self._busy.acquire(timeout=_LOCK_SECONDS)
        try:
            for part in reversed(self._parts):
                self._call(part, part.close)
            self._parts = ()
            self._write_manifest_or_tell()
        finally:
            if acquired:
                self._busy.release()
        if self.when_finished is not None:
            self.when_finished()

    def mark_raised(self) -> None:
        """An uncaught exception ends the process: noted even where no hook of the interpreter reports it."""
        self._ending = EXCEPTION

    def has_raised(self) -> bool:
        """Whether an exception ends the process: the interpreter keeps the one that it has printed."""
        return self._ending == EXCEPTION or hasattr(sys, "last_type")

    def mark_ended(self) -> None:
        """The process is about to be ended by a signal: its parts cannot be closed, but the manifest can say so."""
        if self._is_ours():
            self.has_ended = True
            self._ending = SIGNAL
            self._write_manifest_or_tell()

    def publish(self, what: str, name: str, write: Callable[[Path], object], *, replace: bool = False) -> bool:
        """Has `write` fill a file and puts it into the folder; what goes wrong is noted, never raised."""
        return self._keep(what, name, lambda: self._files.publish(name, write, replace=replace))

    def publish_written(
        self, what: str, name: str, partial: Path, *, pack: bool = False, replace: bool = False
    ) -> bool:
        """As publish, for a file that torch has written aside."""
        return self._keep(what, name, lambda: self._files.publish_written(name, partial, pack=pack, replace=replace))

    def aside(self, name: str) -> Path:
        return self._files.aside(name)

    def wrote(self, name: str) -> bool:
        return self._files.wrote(name)

    def got(self, what: str, name: str) -> None:
        """The file is in the folder, whoever wrote it."""
        self._got[name] = what

    def problem(self, what: str, problem: str, hint: str = "") -> None:
        """Something that was requested is missing or incomplete: noted in the manifest."""
        self._problems[what, problem[:500]] = hint

    def _keep(self, what: str, name: str, publish: Callable[[], str]) -> bool:
        try:
            self.got(what, publish())
        except Exception as error:
            self.problem(what, f"{name} was not written: {_told(error)}", _hint(error))
            return False
        return True

    def _make(self, choice: tuple[str, str, tuple[str, ...]]) -> Part | None:
        module, name, asked_by = choice
        if not any(getattr(self.settings, setting) for setting in asked_by):
            return None
        try:
            part: Part = getattr(importlib.import_module(module), name)(self)
        except Exception as error:
            self.problem(name, f"did not start: {_told(error)}")
            return None
        return part

    def _call(self, part: Part, method: Callable[..., None], *arguments: Any, is_fatal: bool = False) -> None:
        try:
            method(*arguments)
        except Exception as error:
            self.problem(part.NAME, f"{method.__name__} failed: {_told(error)}", _hint(error))
            if is_fatal:  # a part that failed once would fail, and cost, again at every step
                self._parts = tuple(other for other in self._parts if other is not part)

    def _watch(self) -> None:
        while not self.has_ended:
            self._wake.wait(TICK_SECONDS)
            self._wake.clear()
            while self._requested and not self.has_ended:
                reason, done = self._requested.pop(0)
                if self.dump(reason) and done is not None:
                    done()
            with self._busy:
                for part in () if self.has_ended else self._parts:
                    self._call(part, part.tick, is_fatal=True)

    def _is_ours(self) -> bool:
        """False in a process that was forked from a rank: it has the rank's objects, but is not the rank."""
        return self.has_begun and not self.has_ended and os.getpid() == self._pid

    def _end_silently(self, problem: str) -> None:
        self.has_ended = True
        tell_line(f"nothing is collected on rank {self.rank}: {problem}")

    def _write_manifest_or_tell(self) -> None:
        try:
            self._write_manifest()
        except OSError as error:
            tell_line(f"rank {self.rank} cannot write its manifest: {_told(error)}")

    def _write_manifest(self) -> None:
        manifest.write_part(self.folder, self.rank, self.describe())
        manifest.write_whole(self.folder)

    def describe(self) -> dict[str, Any]:
        """The rank's part of the manifest."""
        torch = sys.modules.get("torch")
        got = self._got.copy()
        return {
            "rank": self.rank,
            "world_size": self.world_size,
            "local_rank": self.local_rank,
            "host": self.host,
            "pid": self._pid,
            "python": platform.python_version(),
            "torch": str(getattr(torch, "__version__", "")),
            "platform": platform.platform(),
            "command": manifest.telling_command(sys.orig_argv),
            "environment": manifest.telling_environment(os.environ),
            "started_ns": self._started_ns,
            "ended_ns": time.time_ns() if self.has_ended else None,
            "ending": self._ending if self.has_ended else LEFT if self._has_left else None,
            "clock_offset_ns": self.clock_offset_ns,
            "clock_error_ns": self.clock_error_ns,
            "n_steps": self.n_steps,
            "dumped": self._dumped,
            "steps_by": self.steps_by.copy(),
            "asked": dataclasses.asdict(self.settings),
            "got": [{"what": what, "file": name, "n_bytes": self._size(name)} for name, what in got.items()],
            "problems": [
                {"what": what, "problem": problem, "hint": hint}
                for (what, problem), hint in self._problems.copy().items()
            ],
        }

    def _size(self, name: str) -> int:
        try:
            return self._files.size(name) or (self.folder / name).stat().st_size
        except OSError:
            return 0


_current: Run | None = None


def current() -> Run | None:
    """The run of this process, if there is one."""
    return _current


def set_current(run: Run | None) -> None:
    global _current
    _current = run


def _are_other_steps(before: str, sign: str) -> bool:
    """The steps of an optimizer continue when the job starts to mark them itself. Both count from the very first one;
    any other sign has to be seen a few times first, so that what was begun before has no whole step.
    """
    return sign != before and not (before in ("", OPTIMIZER) and sign in (OPTIMIZER, BY_HAND))


def _is_joined() -> bool:
    distributed = sys.modules.get("torch.distributed")
    return distributed is not None and distributed.is_available() and distributed.is_initialized()


def _told(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"


def _hint(error: Exception) -> str:
    return _HINTS.get(error.errno or 0, "") if isinstance(error, OSError) else ""


def _finish_with_multiprocessing(finish: Callable[[], None]) -> None:
    """Processes of multiprocessing end without running what atexit was given."""
    spawning = sys.modules.get("multiprocessing.process")
    if spawning is not None and spawning.parent_process() is not None:
        from multiprocessing.util import Finalize

        Finalize(None, finish, exitpriority=100)
