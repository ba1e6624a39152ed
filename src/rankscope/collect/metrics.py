"""Numbers over the time of the job: steps, throughput, loss, memory, traffic, pauses, and what the job adds itself."""

from __future__ import annotations

import contextlib
import json
import math
import os
import sys
import time
from typing import Any, BinaryIO

from rankscope.collect.measures.device import DeviceSampler, current_device
from rankscope.collect.measures.learning import RATE as LEARNING_RATE
from rankscope.collect.measures.machine import Machine
from rankscope.collect.measures.training import Training
from rankscope.collect.part import Part
from rankscope.collect.run import Run

SCHEMA = "rankscope.metrics/1"
_FLUSH_SECONDS = 2.0
_SAMPLE_SECONDS = 1.0
_MORE_SECONDS = 5.0  # between two samples of the rest: what is left of memory, traffic, how busy the device is
_MAX_WAITING = 200_000  # rows between two flushes; more come only from a loop that tells numbers without any work
_MAX_BYTES = 256 << 20
_MAX_NAMES = 1000
# After so many steps the numbers of a step are kept this often: a loop of 1,000 steps a second would fill the disk.
_N_STEPS_KEPT = 1000
_SECONDS_BETWEEN_KEPT = 0.05
_THREADS = "/proc/self/task"
_MAX_THREADS = 256  # looked at once a second

# Time, step, and a value with its name; or several values that belong together, which take less space so.
_Row = tuple[int, int, str | dict[str, float], float]


class Metrics(Part):
    NAME = "metrics"

    def __init__(self, run: Run) -> None:
        super().__init__(run)
        self._name = f"metrics_{run.rank}.jsonl"
        self._max_bytes = min(_MAX_BYTES, run.settings.max_bytes)
        self._waiting: list[_Row] = []
        self._file: BinaryIO | None = None
        self._n_bytes = 0
        self._is_full = False
        self._step_ended_ns: int | None = None  # on the monotonic clock
        self._sampled_ns, self._n_steps_sampled = time.monotonic_ns(), run.n_steps
        self._flushed_ns = self._sampled_ns
        self._kept_ns = self._more_ns = 0
        self._rate = math.nan
        self._by_job: set[str] = set()  # what the job tells itself is not measured, too
        self._is_finite = True  # as was all that the last step told
        self._training = Training()
        self._machine = Machine()
        self._device: DeviceSampler | None = None
        self._waited_ns: dict[str, int] = {}  # by thread, for a core, when it was last looked at

    def start(self) -> None:
        header = {
            "schema": SCHEMA,
            "rank": self.run.rank,
            "world_size": self.run.world_size,
            "host": self.run.host,
            "pid": os.getpid(),
        }
        # Unbuffered: a process that the job forks must not write what waits here a second time.
        self._file = self.run.aside(self._name).open("wb", buffering=0)
        self._waited_ns = _waited_for_a_core()
        self._write(json.dumps(header).encode() + b"\n")
        for what, error in self._training.install():
            self.run.problem(self.NAME, f"{what} is not measured: {error}")

    def steps_change(self, n_before: int) -> None:
        self._step_ended_ns = None  # what ends now did not begin where the one before ended

    def step(self, number: int) -> None:
        now, before = time.monotonic_ns(), self._step_ended_ns
        self._step_ended_ns = now
        try:
            values = self._training.take(number)
            if before is None:
                self._begin_device()
            else:
                self._add_step(values, now, before)
            self._add_arrived()
        except Exception:
            self._training.remove()
            raise

    def _add_arrived(self) -> None:
        for name, step, value in self._training.arrived():
            if name not in self._by_job:
                self._add(name, value, step)

    def _begin_device(self) -> None:
        device = current_device()
        self._device = None if device is None else DeviceSampler(device)

    def _add_step(self, values: dict[str, float], now: int, before: int) -> None:
        number, seconds = self.run.n_steps, (now - before) / 1e9
        self._add("step_time_s", seconds, number)
        counts = {f"{name}_per_s": values.pop(name, None) for name in ("samples", "tokens")}
        if seconds > 0:
            values |= {name: count / seconds for name, count in counts.items() if count}
            if self.run.n_samples is not None:  # the job knows best
                values.pop("samples_per_s", None)
                self._add("samples_per_s", self.run.n_samples / seconds, number)
        values = {name: value for name, value in values.items() if name not in self._by_job}
        is_finite = all(map(math.isfinite, values.values()))
        is_due = number <= _N_STEPS_KEPT or now - self._kept_ns >= _SECONDS_BETWEEN_KEPT * 1e9
        if is_due or is_finite != self._is_finite:
            self._kept_ns, self._is_finite = now, is_finite
            if values.get(LEARNING_RATE) == self._rate:
                del values[LEARNING_RATE]  # it was written when it changed
            self._rate = values.get(LEARNING_RATE, self._rate)
            self._add_all(values, number)

    def tell(self, name: str, value: Any, step: int) -> None:
        """One of the job's own numbers, in the job's thread."""
        number = _number(value)
        if number is None:
            kind = f"a tensor on {value.device}" if hasattr(value, "device") else f"of type {type(value).__name__}"
            self.run.problem(
                self.NAME,
                f"metric {str(name)[:100]!r} was dropped: its value is {kind}",
                "pass a number, or a CPU tensor with one element: reading one from a device would block",
            )
            return
        if len(self._by_job) < _MAX_NAMES:
            self._by_job.add(str(name))
        self._add(str(name), number, int(step))

    def leave_out(self, nanoseconds: int) -> None:
        """Time that the collector itself took between two steps is not part of the next one."""
        if self._step_ended_ns is not None:
            self._step_ended_ns += nanoseconds

    def tick(self) -> None:
        now = time.monotonic_ns()
        if now - self._sampled_ns >= _SAMPLE_SECONDS * 1e9:
            self._sample(now)
        if now - self._flushed_ns >= _FLUSH_SECONDS * 1e9:
            self._flushed_ns = now
            self._flush()

    def dump(self, reason: str) -> None:
        self._flush()

    def close(self) -> None:
        self._training.remove()
        self._add_arrived()
        self._sample(time.monotonic_ns(), is_last=True)
        self._flush()
        if self._device is not None:
            self._device.close()
        if self._file is not None:
            self._file.close()
            self._file = None
            self.run.publish_written(self.NAME, self._name, self.run.aside(self._name))

    def _add(self, name: str, value: float, step: int) -> None:
        if len(self._waiting) < _MAX_WAITING:
            self._waiting.append((time.time_ns(), step, name, value))
        else:
            self.run.problem(self.NAME, f"more than {_MAX_WAITING:,} numbers came at once: some were dropped")

    def _add_all(self, values: dict[str, float], step: int) -> None:
        if values and len(self._waiting) < _MAX_WAITING:
            self._waiting.append((time.time_ns(), step, values, 0.0))

    def _sample(self, now: int, is_last: bool = False) -> None:
        step = self.run.n_steps
        if step > self._n_steps_sampled:
            self._add("steps_per_s", (step - self._n_steps_sampled) * 1e9 / (now - self._sampled_ns), step)
        self._sample_waiting(now)
        self._sampled_ns, self._n_steps_sampled = now, step
        for name, value in self._machine.memory():
            self._add(name, value, step)
        for name, value in self._device.memory() if self._device is not None else ():
            self._add(name, value, step)
        if now - self._more_ns >= _MORE_SECONDS * 1e9 or is_last:
            self._more_ns = now
            more = dict(self._machine.sample(now))
            more |= dict(self._device.sample()) if self._device is not None else {}
            self._add_all(more, step)

    def _sample_waiting(self, now: int) -> None:
        """How many threads wanted to run and found no free core, on average: above 0 others use this host too."""
        before, self._waited_ns = self._waited_ns, _waited_for_a_core()
        waited = sum(max(ns - before.get(thread, 0), 0) for thread, ns in self._waited_ns.items())
        if self._waited_ns and now > self._sampled_ns:
            self._add("threads_without_core", waited / (now - self._sampled_ns), self.run.n_steps)

    def _flush(self) -> None:
        rows = self._waiting[:]
        del self._waiting[: len(rows)]  # the job's thread may have added more meanwhile
        if rows:
            self._write("".join(map(_line, rows)).encode())

    def _write(self, lines: bytes) -> None:
        if self._file is None or self._is_full:
            return
        if self._n_bytes + len(lines) > self._max_bytes:
            self._stop_writing(f"it reached {self._max_bytes:,} bytes", "")
            return
        try:
            n_written = self._file.write(lines)
        except OSError as error:
            self._stop_writing(str(error.strerror or error), "free disk space, or collect to another folder")
            return
        if n_written == len(lines):
            self._n_bytes += n_written
        else:
            self._stop_writing("only part of it could be written to disk", "free disk space")

    def _stop_writing(self, why: str, hint: str) -> None:
        self._is_full = True
        self.run.problem(self.NAME, f"{self._name} ends early: {why}", hint)
        if self._file is not None:
            self._file.truncate(self._n_bytes)  # half a line is of no use


def _line(row: _Row) -> str:
    at, step, name, value = row
    if isinstance(name, dict):
        values = ",".join(f"{json.dumps(each)}:{_short(number)}" for each, number in name.items())
        return f'{{"time_ns":{at},"step":{step},"values":{{{values}}}}}\n'
    return f'{{"time_ns":{at},"step":{step},"name":{json.dumps(name)},"value":{_json(value)}}}\n'


def _json(value: float) -> str:
    """JSON has no word for what is no number, and none for infinity, but every parser takes these."""
    if math.isfinite(value):
        return repr(value)
    return "null" if math.isnan(value) else "1e999" if value > 0 else "-1e999"


def _short(value: float) -> str:
    """What we measure is no finer than this, and most of it was a float of 32 bits."""
    return f"{value:.9g}" if math.isfinite(value) and abs(value) < 1e9 else _json(value)


def _number(value: Any) -> float | None:
    """A number as it is; a tensor only if reading it does not make the job wait for its device."""
    device = getattr(value, "device", None)
    try:
        if device is not None and getattr(device, "type", device) != "cpu":
            return None
        if not hasattr(value, "detach"):
            return float(value)
        torch = sys.modules["torch"]  # a kind of tensor that is spread over ranks would start a collective
        return float(value.detach()) if type(value) in (torch.Tensor, torch.nn.Parameter) else None
    except Exception:  # text, tensors of several elements, objects that only look like numbers
        return None


def _waited_for_a_core() -> dict[str, int]:
    """Nanoseconds per thread of this process, since it began. Empty where the kernel does not report it."""
    waited: dict[str, int] = {}
    try:
        for thread in os.listdir(_THREADS)[:_MAX_THREADS]:
            with contextlib.suppress(OSError), open(f"{_THREADS}/{thread}/schedstat", "rb") as stream:
                waited[thread] = int(stream.read().split()[1])
    except (OSError, ValueError, IndexError):  # not on Linux, or a kernel without these numbers
        return {}
    return waited
