"""Samples of the main thread, from a thread of ours: where its Python code is, and whether it runs or waits.

The file is one JSON list per line. It stays below a fixed number of bytes per hour: near the limit, samples come less
often, but they never stop. Stacks are written once, and samples refer to them.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from types import CodeType, FrameType
from typing import Any, BinaryIO

from rankscope.collect.host.kernel import Counters, cpu_of_process_ns, machine
from rankscope.collect.host.marks import Mark, Marks
from rankscope.collect.part import Part
from rankscope.collect.run import Run

SCHEMA = "rankscope.host/1"
_SECONDS = 0.05  # between two samples
_FAST_SECONDS = 0.005  # while a step takes longer than usual
_MAX_FAST = 400  # samples in a row at that rate: a hang is no reason to go on like that
_OVERDUE = 1.5  # times the usual step
_OVERDUE_SECONDS = 0.05  # and so long: the slow pace misses less than that
_PROCESS_EVERY = 10  # samples: what counts for the whole process is read less often
_N_STEPS = 16  # recent ones that say what is usual
_MAX_DEPTH = 40  # frames
_MAX_STACKS = 20_000
_MAX_THREADS = 8  # of Python, besides the main one
_FLUSH_SECONDS = 2.0
_BYTES_PER_SECOND = (5 << 20) / 3600
_START_BYTES = 1 << 20  # free for the first minutes
_JOIN_SECONDS = 5.0
_OURS = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep

Place = tuple[CodeType, int]


class Host(Part):
    NAME = "host"

    def __init__(self, run: Run) -> None:
        super().__init__(run)
        self._name = f"host_{run.rank}.jsonl"
        self._file: BinaryIO | None = None
        self._main = threading.main_thread()
        self._counters = Counters(os.getpid())
        self._stacks: dict[tuple[Place, ...], int] = {}
        self._lines: list[bytes] = []
        self._n_bytes = 0
        self._began = self._step_began = time.monotonic()
        self._steps: list[float] = []
        self._usual = 0.0
        self._n_fast = 0
        self._before = (0, 0, 0)  # counters of the last sample
        self._process = (0, 0, 0, 0)
        self._n_samples = 0
        self._ran: dict[int, int] = {}  # time on a core of the other threads, by their number in the kernel
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._sample_on, name="rankscope-host", daemon=True)
        self.marks = Marks()

    def start(self) -> None:
        header = {
            "schema": SCHEMA,
            "rank": self.run.rank,
            "world_size": self.run.world_size,
            "host": self.run.host,
            "pid": os.getpid(),
            "machine": machine(),
        }
        # Unbuffered: a process that the job forks must not write what waits here a second time.
        self._file = self.run.aside(self._name).open("wb", buffering=0)
        self._write([json.dumps(header).encode() + b"\n"])
        self.marks.install()
        self._thread.start()

    def step(self, number: int) -> None:
        now = time.monotonic()
        self._steps = [*self._steps[1 - _N_STEPS :], now - self._step_began]
        self._usual = sorted(self._steps)[len(self._steps) // 2]
        self._step_began, self._n_fast = now, 0
        self.marks.install_imported()

    def close(self) -> None:
        self.marks.remove()
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(_JOIN_SECONDS)
        if self._file is None:
            return
        self._lines.append(_line("machine", machine()))
        self._flush()
        self._file.close()
        self._file = None
        self.run.publish_written(self.NAME, self._name, self.run.aside(self._name))

    def _sample_on(self) -> None:
        """Never raises: the thread of a job's helper must not print into its output."""
        pause, flushed = _SECONDS, time.monotonic()
        try:
            while True:
                due = time.monotonic() + pause
                if self._stop.wait(pause):
                    return
                now = time.monotonic()
                self._sample(int((now - due) * 1e9))
                if now - flushed >= _FLUSH_SECONDS:
                    flushed = now
                    self._flush()
                pause = self._pause(now)
        except Exception as error:
            self.run.problem(self.NAME, f"sampling ended: {type(error).__name__}: {error}")

    def _pause(self, now: float) -> float:
        allowed = _START_BYTES + (now - self._began) * _BYTES_PER_SECOND
        if self._n_bytes > allowed:  # as long as it takes until there is room for the next ones
            return min(max(_SECONDS, (self._n_bytes - allowed) / _BYTES_PER_SECOND), 5.0)
        due = max(_OVERDUE * self._usual, self._usual + _OVERDUE_SECONDS)
        is_overdue = len(self._steps) >= 3 and now - self._step_began > due
        if is_overdue and self._n_fast < _MAX_FAST:
            self._n_fast += 1
            return _FAST_SECONDS
        return _SECONDS

    def _sample(self, late_ns: int) -> None:
        frames = sys._current_frames()
        frame = frames.get(self._main.ident or 0)
        if frame is None:
            return
        now = time.time_ns()
        stack = self._number(_places(frame))
        del frame  # it would keep the job's locals alive
        if len(frames) > 2:  # the main thread, ours, and more
            self._sample_others(now, frames)
        frames.clear()
        state, ran_ns, delayed_ns = self._counters.main_thread()
        process_ns = cpu_of_process_ns()
        ran, delayed, process = self._before
        self._before = (ran_ns, delayed_ns, process_ns)
        if not ran and not process:
            return  # the first one has nothing to compare with
        wchan = self._counters.waits_in() if state in ("S", "D") else ""
        values = [now, self.run.n_steps, stack, max(late_ns, 0), state, wchan, max(ran_ns - ran, 0)]
        values.append(max(delayed_ns - delayed, 0))
        others_ns = max(process_ns - process - (ran_ns - ran), 0)
        if self._n_samples % _PROCESS_EVERY == 0:
            self._process = self._counters.process()
        self._n_samples += 1
        self._lines.append(_line("sample", [*values, others_ns, *self._process]))

    def _sample_others(self, now: int, frames: dict[int, FrameType]) -> None:
        """Threads of Python that ran since the last sample or hold what the main thread waits for."""
        threads = []
        for thread in threading.enumerate()[:_MAX_THREADS]:
            frame = frames.get(thread.ident or 0)
            if frame is None or thread in (self._main, self._thread) or thread.native_id is None:
                continue
            places = _places(frame)
            if not places:
                continue  # one of ours
            ran_ns = self._counters.cpu_of(thread.native_id)
            before = self._ran.get(thread.native_id, ran_ns)
            self._ran[thread.native_id] = ran_ns
            threads.append([thread.name[:80], self._number(places), max(ran_ns - before, 0)])
        if threads:
            self._lines.append(_line("threads", [now, threads]))

    def _number(self, places: tuple[Place, ...]) -> int:
        number = self._stacks.get(places)
        if number is None:
            if len(self._stacks) >= _MAX_STACKS:
                return -1
            number = self._stacks[places] = len(self._stacks)
            frames = [[code.co_filename[-400:], line, code.co_name[:200]] for code, line in places]
            self._lines.append(_line("stack", [number, frames]))
        return number

    def _flush(self) -> None:
        lines, self._lines = self._lines, []
        self._write([*lines, *map(_mark_line, self.marks.take())])

    def _write(self, lines: list[bytes]) -> None:
        content = b"".join(lines)
        if self._file is None or not content:
            return
        try:
            n_written = self._file.write(content)
        except OSError as error:
            n_written = 0
            self.run.problem(self.NAME, f"{self._name} has a gap: {error.strerror or error}", "free disk space")
        if n_written == len(content):
            self._n_bytes += n_written
        else:
            self._file.truncate(self._n_bytes)  # half a line is of no use
            self._file.seek(self._n_bytes)


def _places(frame: FrameType | None) -> tuple[Place, ...]:
    """From the innermost frame on, without those of the collector."""
    places: list[Place] = []
    while frame is not None and len(places) < _MAX_DEPTH:
        if not frame.f_code.co_filename.startswith(_OURS):
            places.append((frame.f_code, frame.f_lineno or 0))  # None between two lines
        frame = frame.f_back
    return tuple(places)


def _line(kind: str, value: Any) -> bytes:
    return json.dumps({kind: value}, separators=(",", ":")).encode() + b"\n"


def _mark_line(mark: Mark) -> bytes:
    return _line("mark", list(mark))
