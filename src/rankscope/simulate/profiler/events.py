"""The events that the profiler of one rank records in a step."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from random import Random

from rankscope.simulate.profiler.collective_args import kernel_args, operator_args
from rankscope.simulate.profiler.layout import INTEGER
from rankscope.simulate.profiler.mesh import Mesh
from rankscope.simulate.profiler.numbering import Numbering, first_record_id
from rankscope.simulate.profiler.page import StepPage
from rankscope.simulate.profiler.program import MAIN_THREAD, RuntimeCall, Span, Work
from rankscope.simulate.profiler.run import RankRun
from rankscope.simulate.profiler.schedule import STEP_NAME
from rankscope.simulate.profiler.truth import HostClock

_FIRST_CORRELATION = 1_000


@dataclass(frozen=True)
class Camera:
    """The profiler of one rank: what it is, what its clock shows, and what it misses."""

    rank: int
    pid: int
    device: int
    clock: HostClock
    base_ns: int
    """What the times in the trace count from."""
    shown: frozenset[str]
    """What it was asked for besides the operators."""
    dropped: float
    """Share of the communication kernels that it misses."""
    seed: int
    numbering: Numbering

    def tid(self, thread: int) -> int:
        return self.pid if thread == MAIN_THREAD else self.pid + 503

    def relative_ns(self, true_ns: int) -> int:
        return self.clock.recorded_ns(true_ns) - self.base_ns


def microseconds(ns: int) -> str:
    return f"{ns // 1000}.{ns % 1000:03d}"


class StepEvents:
    """One step of one rank, seen by its camera and written to a page."""

    def __init__(self, mesh: Mesh, camera: Camera, page: StepPage, run: RankRun, step: int) -> None:
        self.mesh = mesh
        self.camera = camera
        self.page = page
        self.run = run
        self.step = step
        self.program = run.program
        self.clock = [camera.relative_ns(ns) for ns in run.clock]
        self.starts = [camera.relative_ns(ns) for ns in run.starts]
        self.ends = [camera.relative_ns(ns) for ns in run.ends]
        self.first_id = step * len(self.program.spans) + 1
        self.first_correlation = step * len(self.program.calls) + _FIRST_CORRELATION
        self.first_sequence = step * self.program.n_sequences
        self.is_observed = camera.numbering.is_observed(camera.rank, step)
        self.first_record_id = first_record_id(camera.seed, camera.rank, len(self.program.spans), step)
        self.missed = self._draw_missed()

    def on_host(self) -> Iterator[str]:
        """Operators, annotations and Python frames, with the arrows from forward to backward."""
        shown = self.camera.shown | {self.run.pause}
        for index, (span, text) in enumerate(zip(self.program.spans, self.page.spans, strict=True)):
            if span.needs <= shown:
                title = (self.step,) if span.name == STEP_NAME else ()
                where = self._on_thread(span.thread, span.first_tick, span.end_tick)
                yield text % (*title, *where, *self._span_args(index, span))
                if span.is_linked:
                    flow = self.page.flow("fwdbwd", span.thread == MAIN_THREAD)
                    yield flow % (self.first_sequence + span.sequence + 1, *where[:3])

    def on_device(self) -> Iterator[str]:
        """Runtime calls, what they started or waited for, and the arrows between the two."""
        with_sync = "sync" in self.camera.shown
        for index, (call, text) in enumerate(zip(self.program.calls, self.page.calls, strict=True)):
            correlation = self.first_correlation + index
            is_sync = with_sync and index in self.page.syncs
            if call.work >= 0 and call.work not in self.missed:
                yield from self._work(call.work, correlation)
            elif is_sync:
                yield from self._sync(index, correlation)
            where = self._on_thread(call.thread, call.tick, call.tick + 1)
            yield text % (*where, *self._external_id(call, correlation), correlation)
            if call.work >= 0 or is_sync:
                yield self.page.flow("ac2g", True) % (correlation, *where[:3])
        yield from self._device_annotations()

    def _on_thread(self, thread: int, first_tick: int, end_tick: int) -> tuple[int, int, str, str]:
        start, end = self.clock[first_tick], self.clock[end_tick]
        return self.camera.pid, self.camera.tid(thread), microseconds(start), microseconds(end - start)

    def _on_stream(self, row: int, start: int, end: int) -> tuple[int, int, str, str]:
        return self.camera.device, row, microseconds(start), microseconds(end - start)

    def _span_args(self, index: int, span: Span) -> Iterator[object]:
        own_id = self.first_id + index
        if span.category == "python_function":
            yield "null" if span.parent < 0 else self.first_id + span.parent
        yield own_id
        if self.page.record_id == INTEGER and span.category != "python_function":
            yield self.first_record_id + 1 + index if self.is_observed else 0
        if span.sequence >= 0:
            yield self.first_sequence + span.sequence
        if span.exchange is not None and self.page.with_metadata:
            fields = operator_args(self.mesh, self.camera.rank, span.exchange, self.program, self.step)
            yield self.page.layout.fields(fields)
        yield own_id

    def _external_id(self, call: RuntimeCall, correlation: int) -> tuple[int, ...]:
        if call.operator < 0:
            return ()
        return (correlation if self.camera.numbering.has_correlation_as_external else self.first_id + call.operator,)

    def _work(self, index: int, correlation: int) -> Iterator[str]:
        work = self.program.work[index]
        start, end = self.starts[index], self.ends[index]
        where = self._on_stream(work.stream, start, end)
        external = self._external_id(self.program.calls[work.call], correlation)
        args = self._work_args(work, end - start)
        yield self.page.work[index] % (*where, *external, self.camera.device, correlation, *args)
        yield self.page.flow("ac2g", False) % (correlation, *where[:3])

    def _work_args(self, work: Work, duration_ns: int) -> Iterator[object]:
        if work.kernel is None:
            yield work.n_bytes / max(1, duration_ns)
        if work.exchange is not None and self.page.with_metadata:
            fields = kernel_args(self.mesh, self.camera.rank, work.exchange, self.program, self.step)
            yield self.page.layout.fields(fields)

    def _sync(self, index: int, correlation: int) -> Iterator[str]:
        """CUPTI dates a synchronization by the host's call, not by the time at which a stream really waits."""
        call = self.program.calls[index]
        start, end = self.clock[call.tick], self.clock[call.tick + 1]
        is_of_stream = call.sync.record_call >= 0
        row = call.sync.stream + (0 if is_of_stream else self.page.layout.sync_row_offset)
        where = self._on_stream(row, start + (end - start) // 4, end)
        event = (self.first_correlation + call.sync.record_call,) if is_of_stream else ()
        external = self._external_id(call, correlation)
        yield self.page.syncs[index] % (*where, *external, *event, correlation, self.camera.device)
        yield self.page.flow("ac2g", False) % (correlation, *where[:3])

    def _draw_missed(self) -> frozenset[int]:
        """The work that is left out of the trace."""
        random = Random(f"{self.camera.seed} missed {self.camera.rank} {self.step}")
        exchanges = [index for index, work in enumerate(self.program.work) if work.exchange is not None]
        return frozenset(index for index in exchanges if random.random() < self.camera.dropped)

    def _device_annotations(self) -> Iterator[str]:
        """The host's annotations once more: from the first to the last thing that they started on each stream."""
        reach: dict[tuple[int, int], tuple[int, int]] = {}
        for index, work in enumerate(self.program.work):
            if work.annotation < 0 or index in self.missed:
                continue
            start, end = self.starts[index], self.ends[index]
            first, last = reach.get((work.annotation, work.stream), (start, end))
            reach[work.annotation, work.stream] = min(first, start), max(last, end)
        for (annotation, stream), (start, end) in reach.items():
            span = self.program.spans[annotation]
            if span.needs <= self.camera.shown:
                title = f"{span.name}{self.step}" if span.name == STEP_NAME else span.name
                # Kineto widens them by a nanosecond on either side, so that viewers draw them around their kernels.
                where = self._on_stream(stream, start - 1, end + 1)
                yield self.page.gpu_annotation % (title, *where, self.first_id + annotation)
