"""Frames in C and C++ for the stacks of a dump: `#0 func from file:line`, first those in C++, then those in Python.

Only for stalls and on request: finding the names takes a second of CPU. Threads are neither stopped nor signaled; one
that runs, and does not wait in the kernel, keeps its frames in Python alone.
"""

from __future__ import annotations

import os
import re
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from types import FrameType

from rankscope.collect import api
from rankscope.collect.dumps.endings import Endings
from rankscope.collect.dumps.stacks import COLLECTOR, ON_REQUEST, Stacks
from rankscope.collect.native.frames import NativeFrame, native_stacks, prepare
from rankscope.collect.part import Part
from rankscope.collect.requests import ASKED

_STALLED = "no collective has finished"
_SECONDS = 10.0  # for all threads; after that functions stay without names
_MAX_THREADS = 32
_IDENT = re.compile(r"(?:Current thread|Thread) 0x(?P<ident>[0-9a-f]+)[ :]")
_FRAME = re.compile(r'  File "(?P<file>.*)", line (?P<line>\d+|\?+) in (?P<function>.*)$')
_INTERPRETER = "_PyEval_EvalFrame"
_WAITING_FOR_US = (api.dump.__code__, Endings._handle.__code__)
# Waits for the interpreter's lock, which whoever looks is holding: it would run if nobody looked.
_WANTS_TO_RUN = ("take_gil", "PyEval_RestoreThread", "PyEval_AcquireThread", "PyGILState_Ensure")


class CppStacks(Part):
    NAME = "cpp_stacks"

    _is_able = False

    def start(self) -> None:
        why_not = prepare()
        self._is_able = not why_not
        if why_not:
            self.run.problem(self.NAME, why_not, "to get them, install py-spy and run py-spy dump --native --pid PID")

    def dump(self, reason: str) -> None:
        stacks = self.run.part(Stacks.NAME)
        if isinstance(stacks, Stacks) and self._is_able and is_wanted(reason):
            stacks.deepen(with_native)


def is_wanted(reason: str) -> bool:
    """Not when the job is about to end: it must not wait for names."""
    return reason == ON_REQUEST or reason.startswith((_STALLED, ASKED))


def with_native(printed: str, print_again: Callable[[], str]) -> str:
    """The stacks as printed, those of threads that wait in C with their frames in C++.

    A thread that is elsewhere when all are printed again has moved: its two halves do not belong together.
    """
    before = _stacks(printed)
    threads = _native_ids()
    native_of = native_stacks([threads[ident] for ident in before if ident in threads][:_MAX_THREADS], _SECONDS)
    after = _stacks(print_again())
    kept = []
    for ident, stack in before.items():
        native = native_of.get(threads.get(ident, -1))
        kept.append(_mixed(stack, native) if native and after.get(ident) == stack else stack)
    return "\n".join(kept)


def _stacks(printed: str) -> dict[int, str]:
    stacks = {}
    for stack in printed.split("\n\n"):
        if header := _IDENT.match(stack):
            stacks[int(header["ident"], 16)] = stack.rstrip("\n") + "\n"
    return stacks


def _native_ids() -> Mapping[int | None, int]:
    """Of the job's threads, the main one first. After a fork Python may still have its number in the parent."""
    main = threading.main_thread()
    others = (thread for thread in threading.enumerate() if not thread.name.startswith(COLLECTOR))
    numbers = {thread.ident: thread.native_id for thread in others if thread.ident and thread.native_id}
    ordered: dict[int | None, int] = {
        main.ident: os.getpid(),
        **{ident: numbers[ident] for ident in numbers if ident != main.ident},
    }
    frames = sys._current_frames()
    return {ident: number for ident, number in ordered.items() if not _waits_for_us(frames.get(ident or 0))}


def _waits_for_us(frame: FrameType | None) -> bool:
    """It called rankscope.dump(), or handles a signal: how it waits for the collector is irrelevant."""
    while frame is not None:
        if frame.f_code in _WAITING_FOR_US:
            return True
        frame = frame.f_back
    return False


def _mixed(stack: str, native: Sequence[NativeFrame]) -> str:
    header, *lines = stack.rstrip("\n").split("\n")
    first = next((at for at, frame in enumerate(native) if frame.function.startswith(_INTERPRETER)), len(native))
    if any(frame.function.startswith(_WANTS_TO_RUN) for frame in native[:first]):
        return stack
    frames = [(frame.function, frame.file, "0") for frame in native[:first]]
    python = filter(None, map(_FRAME.match, lines))
    frames += [(match["function"], match["file"], match["line"].replace("?", "") or "0") for match in python]
    text = "".join(f"#{at} {function} from {file}:{line}\n" for at, (function, file, line) in enumerate(frames))
    return f"{header}\n{text}"
