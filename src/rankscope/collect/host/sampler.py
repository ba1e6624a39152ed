"""Samples of the training thread, from a thread of ours: where its Python code is, and whether it runs or waits.

The file is one JSON list per line. It stays below a fixed number of bytes per hour: near the limit, samples come less
often and short marks are left out, but they never stop. Stacks are written once, and samples refer to them.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from types import FrameType
from typing import Any

from rankscope.collect.host import frames, kernel
from rankscope.collect.host.frames import Numbers, Place
from rankscope.collect.host.machine import machine, second
from rankscope.collect.host.marks import LONGEST_SHORT_NS, SHORTEST_NS, Marks
from rankscope.collect.host.writing import Lines
from rankscope.collect.part import Part
from rankscope.collect.run import Run

SCHEMA = "rankscope.host/1"
_SECONDS = 0.05  # between two samples
_EARLY_SECONDS, _EARLY = 0.02, 30.0  # and in the first half minute, which may be all there is of a job
_FAST_SECONDS = 0.005  # while a step takes longer than usual
_MAX_FAST = 400  # samples in a row at that rate: a hang is no reason to go on like that
_OVERDUE = 1.5  # times the usual step
_OVERDUE_SECONDS = 0.05  # and so long: the slow pace misses less than that
_N_STEPS = 16  # recent ones that say what is usual
_MAX_THREADS = 8  # of Python, besides the one that trains
_OTHERS_EVERY = 10  # samples: where other threads are, if nothing makes them interesting
_LATE_NS = 2_000_000  # the sampler itself had to wait: another thread holds Python's lock, or no core was free
_SECOND = 1.0
_TASKS_SECONDS = 5.0  # between two looks at the threads that are not Python's
_N_TASKS = 3  # the busiest ones
_FLUSH_SECONDS = 2.0
_BYTES_PER_SECOND = (5 << 20) / 3600
_START_BYTES = 1 << 20  # free for the first minutes
_SHARE_OF_MARKS = 0.3  # of these bytes: marks of short steps must not take the place of samples
_SLOWEST_SECONDS = 5.0
_JOIN_SECONDS = 5.0
_OURS = "rankscope"  # the names of our threads begin so


class Host(Part):
    NAME = "host"

    def __init__(self, run: Run) -> None:
        super().__init__(run)
        self._name = f"host_{run.rank}.jsonl"
        self._file = Lines(run.aside(self._name))
        self._trains = threading.current_thread()
        self._counters = kernel.Counters(threading.get_native_id())
        self._stacks: Numbers[tuple[Place, ...]] = Numbers()
        self._waits: Numbers[str] = Numbers()
        self._lines: list[bytes] = []
        self._began_ns = time.time_ns()
        self._began = self._step_began = time.monotonic()
        self._steps: list[float] = []
        self._usual = 0.0
        self._n_fast = self._n_samples = self._mark_bytes = 0
        self._before = (0, 0, 0)  # counters of the last sample
        self._ran: dict[int, int] = {}  # time on a core of the other threads, by their number in the kernel
        self._next_second = self._next_tasks = 0.0
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
            "began_ns": self._began_ns,
            "machine": machine(),
        }
        self._file.create(json.dumps(header).encode() + b"\n")
        self.marks.install()
        self._thread.start()

    def step(self, number: int) -> None:
        now = time.monotonic()
        self._steps = [*self._steps[1 - _N_STEPS :], now - self._step_began]
        self._usual = sorted(self._steps)[len(self._steps) // 2]
        self._step_began, self._n_fast = now, 0
        if threading.get_ident() != self.marks.thread:
            self._follow()
        self.marks.install_imported()

    def _follow(self) -> None:
        """Some launchers train in a thread that they start later."""
        self._trains = threading.current_thread()
        self._counters, self._before = kernel.Counters(threading.get_native_id()), (0, 0, 0)
        self.marks.thread = threading.get_ident()

    def close(self) -> None:
        self.marks.remove()
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(_JOIN_SECONDS)
        if not self._file.is_open:
            return
        self._lines.append(_line("machine", machine()))
        self._flush()
        self._counters.close()
        self._file.is_open = False
        self.run.publish_written(self.NAME, self._name, self.run.aside(self._name))

    def _sample_on(self) -> None:
        """Never raises: the thread of a job's helper must not print into its output."""
        pause, flushed = _EARLY_SECONDS, time.monotonic()
        try:
            while True:
                due = time.monotonic() + pause
                if self._stop.wait(pause):
                    return
                now = time.monotonic()
                self._sample(int((now - due) * 1e9))
                if now >= self._next_second:
                    self._next_second = now + _SECOND
                    self._look_around(now)
                if now - flushed >= _FLUSH_SECONDS:
                    flushed = now
                    self._flush()
                pause = self._pause(now)
        except Exception as error:
            self.run.problem(self.NAME, f"sampling ended: {type(error).__name__}: {error}")

    def _pause(self, now: float) -> float:
        allowed = _START_BYTES + (now - self._began) * _BYTES_PER_SECOND
        excess = self._file.n_bytes - allowed
        shortest, has_many = self.marks.shortest_ns, self._mark_bytes > _SHARE_OF_MARKS * allowed
        self.marks.shortest_ns = min(2 * shortest, LONGEST_SHORT_NS) if has_many else max(shortest // 2, SHORTEST_NS)
        if excess > 0:  # as long as it takes until there is room for the next ones
            return min(max(_SECONDS, excess / _BYTES_PER_SECOND), _SLOWEST_SECONDS)
        due = max(_OVERDUE * self._usual, self._usual + _OVERDUE_SECONDS)
        is_overdue = len(self._steps) >= 3 and now - self._step_began > due
        if is_overdue and self._n_fast < _MAX_FAST:
            self._n_fast += 1
            return _FAST_SECONDS
        return _EARLY_SECONDS if now - self._began < _EARLY else _SECONDS

    def _sample(self, late_ns: int) -> None:
        """Cheap things first: what the kernel says is about the moment in which the stack was seen."""
        running = sys._current_frames()
        frame = running.get(self._trains.ident or 0)
        if frame is None:
            return
        now = self._now_us()
        stack = self._stacks.of(frames.places(frame))
        del frame  # it would keep the job's locals alive
        state, wait = self._counters.state()
        ran_ns, delayed_ns = self._counters.times()
        process_ns = kernel.cpu_of_process_ns()
        ran, delayed, process = self._before
        self._before = (ran_ns, delayed_ns, process_ns)
        is_odd = late_ns >= _LATE_NS or wait == "futex"
        if len(running) > 2 and (is_odd or self._n_samples % _OTHERS_EVERY == 0):
            self._sample_others(now, running)
        running.clear()
        self._n_samples += 1
        if not ran and not process:
            return  # the first one has nothing to compare with
        others_ns = max(process_ns - process - (ran_ns - ran), 0)
        number = self._waits.of(wait) if wait else -1
        spent = (max(ran_ns - ran, 0) // 1000, max(delayed_ns - delayed, 0) // 1000, others_ns // 1000)
        values = [now, self.run.n_steps, stack, max(late_ns, 0) // 1000, state, number, *spent]
        self._lines.append(_line("s", values))

    def _sample_others(self, now: int, running: dict[int, FrameType]) -> None:
        """Threads of Python that ran since they were last seen, or hold what the training thread waits for."""
        threads: list[list[Any]] = []
        for thread in threading.enumerate():
            frame = running.get(thread.ident or 0)
            is_ours = thread.name.startswith(_OURS) or thread is self._trains
            if frame is None or is_ours or thread.native_id is None:
                continue
            if len(threads) == _MAX_THREADS:
                break
            ran_ns = kernel.cpu_of(thread.native_id)
            before = self._ran.get(thread.native_id, ran_ns)
            self._ran[thread.native_id] = ran_ns
            stack = self._stacks.of(frames.places(frame))
            threads.append([thread.name[:80], stack, max(ran_ns - before, 0) // 1000])
        if threads:
            self._lines.append(_line("t", [now, threads]))

    def _look_around(self, now: float) -> None:
        """About once per second: the process, its machine, and the workers that it waited for a second ago."""
        self._lines.append(_line("p", [self._now_us(), *second()]))
        for process, stack in self.marks.workers.places():
            self._lines.append(_line("worker", [self._now_us(), process, stack]))
        self.marks.workers.ask(waits=self.marks.is_loading)
        if now >= self._next_tasks:
            self._next_tasks = now + _TASKS_SECONDS
            self._look_at_tasks()

    def _look_at_tasks(self) -> None:
        """The busiest threads that Python does not know: those of OpenMP, of gloo, of a library."""
        known = {thread.native_id for thread in threading.enumerate()}
        ran = {number: ns for number, ns in kernel.threads().items() if number not in known}
        used = {number: ns - self._ran[number] for number, ns in ran.items() if number in self._ran}
        self._ran = {**{number: ns for number, ns in self._ran.items() if number in known}, **ran}
        busiest = sorted(used, key=lambda number: -used[number])[:_N_TASKS]
        tasks = [[kernel.name_of(number), -1, used[number] // 1000] for number in busiest if used[number] > 0]
        if tasks:
            self._lines.append(_line("t", [self._now_us(), tasks]))

    def _now_us(self) -> int:
        return (time.time_ns() - self._began_ns) // 1000

    def _flush(self) -> None:
        lines, self._lines = self._lines, []
        stacks, self._stacks.new = self._stacks.new, []
        waits, self._waits.new = self._waits.new, []
        named = [_line("stack", [number, frames.texts(stack)]) for number, stack in stacks]
        named += [_line("wait", list(wait)) for wait in waits]
        marks = [_line("mark", list(mark)) for mark in self.marks.take()]
        self._mark_bytes += sum(map(len, marks))
        problem = self._file.append([*named, *lines, *marks])
        if problem:
            self.run.problem(self.NAME, f"{self._name} has a gap: {problem}", "free disk space")


def _line(kind: str, value: Any) -> bytes:
    return json.dumps({kind: value}, separators=(",", ":")).encode() + b"\n"
