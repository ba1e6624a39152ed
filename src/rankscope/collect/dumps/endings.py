"""How a job ends, or is asked how it is: SIGTERM, SIGUSR2 and uncaught exceptions trigger a dump of everything.

Handlers in Python run in the main thread only, and not while that is stuck in C. So the signals are read from the
interpreter's wake-up pipe by a thread of its own, and the handlers do what is left: they call those of the job.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
import threading
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Any

from rankscope.collect.dumps import worker_stacks
from rankscope.collect.dumps.c_printer import Descriptor, is_caught_in_c
from rankscope.collect.dumps.stacks import ON_REQUEST, Stacks
from rankscope.collect.part import Part
from rankscope.collect.run import Run

DUMP_SECONDS = 5.0  # a job that is told to end waits no longer for its dumps
_SIGNALS = (signal.SIGTERM, signal.SIGUSR2)
# Python itself handles SIGINT, if anybody does: it is only read from the pipe.
_REASONS = {signal.SIGTERM: "SIGTERM", signal.SIGUSR2: ON_REQUEST, signal.SIGINT: "SIGINT"}
_MAX_SAID = 300
_STOP = 0  # no signal has this number
_BEFORE_THE_RUN_ENDS = 200  # among multiprocessing's finalizers: higher goes first, and the run's own has 100
_Handler = Callable[[int, FrameType | None], Any] | int | None

_installed: Endings | None = None


class Endings(Part):
    NAME = "endings"

    def __init__(self, run: Run) -> None:
        super().__init__(run)
        self._pid = os.getpid()
        self._earlier: dict[int, _Handler] = {}  # signal -> what the job had set before
        self._pipe: _WakeUpPipe | None = None
        self._is_open = False
        self._thread_raised = False
        self._told_to_end = threading.Event()
        self._earlier_hook = sys.excepthook
        self._earlier_thread_hook = threading.excepthook

    def start(self) -> None:
        global _installed
        self._is_open = True
        self._earlier_hook, sys.excepthook = sys.excepthook, self._on_exception
        self._earlier_thread_hook, threading.excepthook = threading.excepthook, self._on_thread_exception
        _installed = self
        self._watch_worker()
        if threading.current_thread() is not threading.main_thread():
            hint = "start collecting from the main thread"
            problem = "signals do not trigger a dump: Python can set handlers only in the main thread"
            self.run.problem(self.NAME, problem, hint)
            return
        self._pipe = _WakeUpPipe(self._on_signal)
        for number in _SIGNALS:
            self._install(number)

    def close(self) -> None:
        global _installed
        self._is_open = False  # from here on what is still installed passes everything on
        _installed = None
        self._uninstall()
        if self._pipe is not None:
            self._pipe.close()

    def leave_child(self) -> None:
        """A forked child has the handlers but not the thread, and must not write into its parent's pipe."""
        self._is_open = False
        self._uninstall()
        if self._pipe is not None:
            self._pipe.leave_child()

    def _install(self, number: signal.Signals) -> None:
        if is_caught_in_c(number):
            self.run.problem(self.NAME, f"{number.name} does not trigger a dump: the job handles it outside of Python")
        elif signal.getsignal(number) != signal.SIG_IGN:
            self._earlier[number] = signal.signal(number, self._handle)
            if number == signal.SIGUSR2 and (stacks := self._stacks()):
                stacks.print_on(number)

    def _uninstall(self) -> None:
        if sys.excepthook == self._on_exception:
            sys.excepthook = self._earlier_hook
        if threading.excepthook == self._on_thread_exception:
            threading.excepthook = self._earlier_thread_hook
        stacks = self._stacks()
        is_ours = {signal.SIGTERM: True, signal.SIGUSR2: stacks is None or stacks.stop_printing_on(signal.SIGUSR2)}
        if threading.current_thread() is not threading.main_thread():
            return  # what stays installed passes everything on
        for number in is_ours.keys() & self._earlier.keys():
            if is_ours[number] and self._is_installed(number):
                signal.signal(number, self._earlier[number])

    def _is_installed(self, number: int) -> bool:
        return signal.getsignal(number) == self._handle

    def _is_fatal(self, number: int) -> bool:
        """The job leaves this signal to its default action; not so if a handler that it set later called this one."""
        is_default = number == signal.SIGTERM and self._earlier.get(number) == signal.SIG_DFL
        return is_default and self._is_installed(number)

    def _on_signal(self, number: int) -> None:
        """In the pipe's thread, at once, whatever the main thread does."""
        if number not in _REASONS or not self._is_open:
            return
        if self.run.is_finishing:  # in the main thread, which writes the last dump itself
            return
        is_fatal = self._is_fatal(number)
        try:
            self._dump(_REASONS[signal.Signals(number)], is_last=is_fatal)
        finally:
            if is_fatal:
                _die_by(number)
            elif number == signal.SIGTERM:
                self._told_to_end.set()

    def _handle(self, number: int, frame: FrameType | None) -> None:
        """In the main thread, as soon as that runs Python code again."""
        earlier = self._earlier.get(number)
        if self.run.is_finishing and self._is_fatal(number):
            self.run.when_finished = lambda: _die_by(number)
            return
        if self._is_open and os.getpid() == self._pid and self._pipe is not None:
            with contextlib.suppress(OSError, ValueError):
                self._pipe.ensure_sent(number)
            if number == signal.SIGTERM:  # whoever handles it may end the process: not before the dump is written
                self._told_to_end.wait(2 * DUMP_SECONDS)
        if callable(earlier):
            earlier(number, frame)
        elif self._is_fatal(number):
            _die_by(number)

    def _on_exception(self, kind: type[BaseException], error: BaseException, where: TracebackType | None) -> None:
        with contextlib.suppress(Exception, KeyboardInterrupt):
            self.run.mark_raised()
            self._tell_exception(threading.get_ident(), kind, error, where)
        self._earlier_hook(kind, error, where)

    def _on_thread_exception(self, raised: threading.ExceptHookArgs, /) -> None:
        """The job continues without this thread, and may hang because it is missing."""
        with contextlib.suppress(Exception, KeyboardInterrupt):
            if raised.exc_type is not SystemExit and not self._thread_raised:
                self._thread_raised = True  # threads may raise again and again: the first one is told
                self._tell_exception(
                    raised.thread.ident if raised.thread else None,
                    raised.exc_type,
                    raised.exc_value,
                    raised.exc_traceback,
                    raised.thread.name if raised.thread else "",
                )
        self._earlier_thread_hook(raised)

    def _watch_worker(self) -> None:
        """Exceptions of multiprocessing's workers never reach a hook, but its finalizers run while they pass by."""
        spawning = sys.modules.get("multiprocessing.process")
        if spawning is not None and spawning.parent_process() is not None:
            from multiprocessing.util import Finalize

            Finalize(None, self._on_worker_end, exitpriority=_BEFORE_THE_RUN_ENDS)

    def _on_worker_end(self) -> None:
        error = sys.exc_info()[1]
        if isinstance(error, SystemExit):
            error = error.__context__  # torch.multiprocessing tells the parent, and leaves with SystemExit
        with contextlib.suppress(Exception, KeyboardInterrupt):
            if error is not None:
                self.run.mark_raised()
                self._tell_exception(threading.get_ident(), type(error), error, error.__traceback__)

    def _tell_exception(
        self,
        thread: int | None,
        kind: type[BaseException],
        error: BaseException | None,
        where: TracebackType | None,
        helper: str = "",
    ) -> None:
        if not self._is_open or os.getpid() != self._pid:
            return
        text = str(error).strip()
        in_worker, frames = worker_stacks.raised_in_worker(text)
        if thread and (stacks := self._stacks()):
            stacks.raised(thread, where, frames)
        text = text.partition("\n")[0][:_MAX_SAID]
        said = in_worker[:_MAX_SAID] or (f"{kind.__name__}: {text}" if text else kind.__name__)
        said = "; ".join([said, *worker_stacks.killed_workers()[:1]])
        self._dump(f"{said} (in thread {helper})" if helper else said)

    def _dump(self, reason: str, *, is_last: bool = False) -> None:
        """In a thread, so that a dump that hangs itself, as disks do, holds up nothing else."""

        def write() -> None:
            self.run.dump(reason)
            if is_last:
                if stacks := self._stacks():
                    stacks.close()
                self.run.mark_ended()

        thread = threading.Thread(target=write, name="rankscope dump", daemon=True)
        thread.start()
        thread.join(DUMP_SECONDS)

    def _stacks(self) -> Stacks | None:
        part = self.run.part(Stacks.NAME)
        return part if isinstance(part, Stacks) else None


class _WakeUpPipe:
    """Signals as bytes, written by the interpreter's C code when they arrive; a thread reads them.

    The interpreter writes into one pipe only. If other code has it, as asyncio may, the handlers write.
    """

    def __init__(self, on_signal: Callable[[int], None]) -> None:
        self._on_signal = on_signal
        self._ends = tuple(map(Descriptor, os.pipe()))
        self._read, self._write = (end.number for end in self._ends)
        os.set_blocking(self._write, False)
        self._is_ours()
        self._thread = threading.Thread(target=self._listen, name="rankscope signals", daemon=True)
        self._thread.start()

    def ensure_sent(self, number: int) -> None:
        """In the main thread, after a signal."""
        if self._ends[1].is_intact() and not self._is_ours():
            os.write(self._write, bytes([number]))

    def close(self) -> None:
        is_unused = self._give_back()
        if self._ends[1].is_intact():
            os.write(self._write, bytes([_STOP]))
            self._thread.join(1.0)
        if is_unused and not self._thread.is_alive():
            self._close_ends()

    def leave_child(self) -> None:
        if self._give_back():
            self._close_ends()

    def _listen(self) -> None:
        with contextlib.suppress(OSError):  # a job that becomes a daemon closes all files, this pipe too
            while (read := os.read(self._read, 1)) and read[0] != _STOP:
                with contextlib.suppress(Exception):
                    self._on_signal(read[0])

    def _is_ours(self) -> bool:
        """Whether the interpreter writes into this pipe; takes it if nobody has it."""
        used = signal.set_wakeup_fd(self._write, warn_on_full_buffer=False)
        if used not in (-1, self._write):
            signal.set_wakeup_fd(used)
        return used == self._write

    def _give_back(self) -> bool:
        """False if the interpreter may go on writing here: only the main thread can stop it."""
        if threading.current_thread() is not threading.main_thread():
            return False
        used = signal.set_wakeup_fd(-1)
        if used not in (-1, self._write):
            signal.set_wakeup_fd(used)
        return True

    def _close_ends(self) -> None:
        for end in self._ends:
            end.close()


def _die_by(number: int) -> None:
    """Ends the process as the signal does by default; Python sets handlers in the main thread only, C in any."""
    set_handler = ctypes.CDLL(None).signal
    set_handler.argtypes, set_handler.restype = (ctypes.c_int, ctypes.c_void_p), ctypes.c_void_p
    set_handler(number, None)
    os.kill(os.getpid(), number)


# A signal that reached a forked child before the handlers are taken out there would be told in the parent's pipe.
_forking = threading.local()


def _before_fork() -> None:
    if _installed is not None:
        _forking.mask = signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)


def _after_fork() -> None:
    if (mask := vars(_forking).pop("mask", None)) is not None:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def _in_child() -> None:
    global _installed
    if _installed is not None:
        _installed.leave_child()
        _installed = None
    _after_fork()


os.register_at_fork(before=_before_fork, after_in_parent=_after_fork, after_in_child=_in_child)
