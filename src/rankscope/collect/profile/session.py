"""One recording of torch's profiler and its execution trace observer, over the same steps."""

from __future__ import annotations

import ctypes
import functools
import mmap
import os
import re
import threading
import time
from pathlib import Path
from typing import Any

from rankscope.collect.host.marks import PROFILED
from rankscope.collect.host.sampler import Host
from rankscope.collect.profile.ranges import mark_of_step
from rankscope.collect.run import Run
from rankscope.collect.settings import Settings

EXECUTION_TRACE = "execution_trace"
# What both kinds of file end with: the list of events is closed, then come plain fields. torch does not notice when
# the disk is full, so a file may lack its end.
_END = re.compile(rb'\]\s*(,\s*"\w+":\s*("[^"\n]*"|[\d.]+)\s*)*\}\s*\Z')
_N_END = 4096
_OPERATOR = re.compile(rb'"name": "\w+::')
_LITTLE_BYTES = 1 << 20  # with less of it free a disk is full
_NO_WORK = "record later steps (--wait), or call rankscope.step() at the end of each step"
_SECONDS_TO_GIVE_WAY = 30.0  # for the step that is being recorded to end in its own thread
_UNDER_NSYS = "NSYS_PROFILING_SESSION_ID"


class Session:
    """Prepared, started, marked at each step, then stopped and either kept or dropped. All in one thread."""

    def __init__(self, run: Run, execution_trace: str, kineto: str) -> None:
        self.n_steps = 0  # whole ones
        self.is_recording = False
        self.is_lost = False  # to a profiler of the job's own
        self._is_over = threading.Event()
        self._is_stuck = False
        self._run = run
        self._thread = threading.get_ident()
        self._names = {EXECUTION_TRACE: execution_trace, _kind(kineto): kineto}
        self._kineto: Any = None
        self._observer: Any = None
        self._mark: Any = None
        self._began_ns = 0

    def is_in_own_thread(self) -> bool:
        return threading.get_ident() == self._thread

    def names(self) -> str:
        return " and ".join(filter(None, self._names.values()))

    def prepare(self) -> None:
        """Kineto sets its buffers and the device up; nothing is recorded yet."""
        kineto = next(name for kind, name in self._names.items() if kind != EXECUTION_TRACE)
        if kineto:
            _let_children_end()
            self._kineto = _kineto(self._run.settings)
            self._kineto.prepare_trace()

    def start(self) -> None:
        if name := self._names[EXECUTION_TRACE]:
            self._observer = self._register(name)
        self.is_recording, self._began_ns = True, time.time_ns()
        if self._kineto is None:
            self._observer.start()
            return
        self._kineto.execution_trace_observer = self._observer
        self._kineto.start_trace()

    def mark(self, number: int) -> None:
        """A step begins."""
        mark = mark_of_step(number)
        mark.__enter__()
        self._mark = mark

    def end_step(self) -> None:
        self._unmark()
        self.n_steps += 1

    def stop(self) -> None:
        """Ends the recording, or what was prepared for it."""
        self._unmark()
        if self._is_stuck:
            self._be_quiet()
            return
        if self._kineto is not None:
            if not self.is_recording:  # as torch does it itself: what is prepared cannot be taken back otherwise
                self._kineto.start_trace()
            self._kineto.stop_trace()  # stops the observer before itself
        if self._observer is not None:
            self._observer.cleanup()
        self.is_recording = False
        self._is_over.set()
        host = self._run.part(Host.NAME)
        if self._began_ns and isinstance(host, Host):
            host.marks.add_ours(PROFILED, self._began_ns)

    def keep(self, cut: int = 0) -> None:
        """Puts the files into the folder; `cut` is the number of a step that did not end."""
        for kind, name in self._names.items():
            if not name:
                continue
            partial = self._aside(name)
            if kind != EXECUTION_TRACE:
                self._kineto.export_chrome_trace(str(partial))
            if is_whole(partial):
                if cut:
                    unmark_step(partial, cut)
                if not has_operators(partial):
                    self._run.problem(
                        kind, f"{name} has no operators: nothing ran in the steps that it covers", _NO_WORK
                    )
                self._run.publish_written(kind, name, partial, pack=self._run.settings.gzip, replace=True)
            else:
                _delete(partial)
                reason, hint = why_unwritten(partial.parent)
                self._run.problem(kind, f"{name} was not written: {reason}", hint)

    def drop(self) -> None:
        """Leaves nothing behind, neither in torch nor in the folder."""
        self.is_lost = True
        if self._is_over.is_set():
            return
        self.stop()
        if name := self._names[EXECUTION_TRACE]:
            _delete(self._aside(name))

    def give_way(self) -> None:
        """In any thread: returns when a profiler of the job's own can start."""
        self.is_lost = True
        if self.is_in_own_thread():
            self.drop()
        elif not self._is_over.wait(_SECONDS_TO_GIVE_WAY):
            self._is_stuck = True

    def _be_quiet(self) -> None:
        """Its thread came too late to give way. To stop it now would crash the process, so it records nothing more."""
        from torch.autograd import _toggle_collection_dynamic

        if self.is_recording and self._kineto is not None:
            _toggle_collection_dynamic(False, self._kineto.activities)
        if self._observer is not None:
            self._observer.cleanup()
        self.is_recording = False
        self._is_over.set()

    def _unmark(self) -> None:
        mark, self._mark = self._mark, None
        if mark is not None:
            mark.__exit__(None, None, None)

    def _register(self, name: str) -> Any:
        from torch.profiler import ExecutionTraceObserver

        observer = ExecutionTraceObserver()
        observer.register_callback(str(self._aside(name)))
        if not observer.is_registered:
            raise OSError(f"torch cannot write {name} to {self._run.folder}")
        return observer

    def _aside(self, name: str) -> Path:
        partial = self._run.aside(name)
        partial.parent.mkdir(exist_ok=True)
        return partial


def is_whole(path: Path) -> bool:
    try:
        with path.open("rb") as stream:
            n_bytes = stream.seek(0, os.SEEK_END)
            stream.seek(max(n_bytes - _N_END, 0))
            return _END.search(stream.read()) is not None
    except OSError:
        return False


def has_operators(path: Path) -> bool:
    with path.open("rb") as stream, mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as content:
        return _OPERATOR.search(content) is not None


def unmark_step(path: Path, number: int) -> None:
    """Renames its mark, in place: a truncated step would be mistaken for a short one."""
    mark, tail = (f'"Profiler{word}#{number}"'.encode() for word in ("Step", "Tail"))
    with path.open("r+b") as stream, mmap.mmap(stream.fileno(), 0) as content:
        at = content.find(mark)
        while at >= 0:
            content[at : at + len(mark)] = tail
            at = content.find(mark, at)


@functools.cache
def _let_children_end() -> None:
    """Once Kineto has run, a forked child that ends by itself would wait for ever for a thread that it does not have.

    It waits where C++ frees what is static, so the child leaves before, after its output has been written.
    """
    libc = ctypes.CDLL(None)
    if not all(hasattr(libc, name) for name in ("on_exit", "fcloseall")):
        return  # not the library of GNU

    def leave_early() -> None:
        libc.on_exit(libc._exit, None)  # called last, and given the exit code
        libc.on_exit(libc.fcloseall, None)

    os.register_at_fork(after_in_child=leave_early)


def why_unwritten(folder: Path) -> tuple[str, str]:
    """torch tells nobody what stopped it: what the folder shows, and what to do."""
    try:
        status = os.statvfs(folder)
    except OSError:
        return "the folder is gone", "keep the folder until the job has ended"
    if status.f_bavail * status.f_frsize < _LITTLE_BYTES:
        return "the disk is full", "free disk space, or collect to another folder"
    return (
        "torch could not write it completely",
        "check that the job does not close descriptors that it did not open, and its limits (ulimit -f, ulimit -n)",
    )


def _delete(partial: Path) -> None:
    """Kineto itself writes aside, and leaves that behind when the disk is full."""
    for path in (partial, partial.with_name(f"{partial.name}.tmp")):
        path.unlink(missing_ok=True)


def _kind(kineto: str) -> str:
    return "kineto_clean" if "kineto_clean" in kineto else "kineto"


def _kineto(settings: Settings) -> Any:
    from torch.profiler import ProfilerActivity, _KinetoProfile, supported_activities

    # Where Nsight Systems watches the device torch cannot: CUPTI serves one of them.
    activities = {ProfilerActivity.CPU} if _UNDER_NSYS in os.environ else supported_activities()
    return _KinetoProfile(
        activities=activities,
        record_shapes=settings.shapes,
        profile_memory=settings.memory,
        with_stack=settings.with_stack,
    )
