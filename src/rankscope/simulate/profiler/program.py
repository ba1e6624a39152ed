"""A step as the host of a rank runs it: what it spends its time on, what it calls, what it gives to the device.

Time on the host is counted in ticks. A tick is a stretch of work with a cost; everything that the profiler records
begins and ends between two ticks, so that one running sum over the costs dates all of it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NamedTuple

from rankscope.simulate.profiler.operators import Kernel

MAIN_THREAD = 0
BACKWARD_THREAD = 1

COMPUTE_STREAM = 7
ALL_REDUCE_STREAM = 40

_BYTES_PER_ELEMENT = 2
_OPEN_NS = 2_400
_CLOSE_NS = 1_300


class Exchange(NamedTuple):
    """A collective or one end of a transfer, as every rank of a stage makes it."""

    op: str
    """`allreduce`, `send` or `recv`."""
    towards: int
    """How many stages away the peer is; 0 for a collective."""
    ordinal: int
    """Among the exchanges of the step that have the same peer and direction."""
    local_ordinal: int
    """Among all sends and receives of the step, or among all collectives."""
    n_elements: int

    @property
    def is_p2p(self) -> bool:
        return self.towards != 0

    @property
    def n_bytes(self) -> int:
        return self.n_elements * _BYTES_PER_ELEMENT


class Span(NamedTuple):
    """An operator, an annotation or a Python frame on a host thread."""

    category: str
    name: str
    thread: int
    first_tick: int
    end_tick: int
    parent: int
    """For a Python frame the span of the frame that called it, else -1."""
    dims: tuple[tuple[int, ...], ...] = ()
    sequence: int = -1
    """Autograd's number, counted from the start of the step."""
    is_linked: bool = False
    """Whether this is the span that autograd's arrow from forward to backward starts or ends at."""
    exchange: Exchange | None = None
    needs: frozenset[str] = frozenset()
    """What must have been asked for, or have gone wrong, for the span to be seen."""


class Sync(NamedTuple):
    """The stream that a runtime call is about. If it makes the stream wait: for which one, up to which event."""

    stream: int
    waits_for_stream: int = -1
    record_call: int = -1
    """The call that recorded the event."""


_NO_SYNC = Sync(-1)


class RuntimeCall(NamedTuple):
    name: str
    thread: int
    tick: int
    operator: int
    """The span of the innermost operator around it."""
    work: int = -1
    """What it gives to the device."""
    sync: Sync = _NO_SYNC


class Work(NamedTuple):
    """Something that runs on a stream of the device: a kernel, a copy (`gpu_memcpy`) or a memset (`gpu_memset`)."""

    category: str
    name: str
    stream: int
    cost_ns: int
    after: tuple[int, ...]
    """Work of other streams that must be done before."""
    call: int
    annotation: int
    """The span of the innermost annotation around the call."""
    kernel: Kernel | None = None
    n_bytes: int = 0
    exchange: Exchange | None = None


@dataclass(frozen=True)
class StepProgram:
    costs_ns: tuple[int, ...]
    """One per tick."""
    spans: tuple[Span, ...]
    calls: tuple[RuntimeCall, ...]
    work: tuple[Work, ...]
    pauses: dict[str, int]
    """The ticks at which a fault of each kind holds the host up."""
    sync_tick: int
    """Where the host waits until the compute stream is done."""
    n_sequences: int
    n_transfers: int
    n_collectives: int


class StepWriter:
    """Writes a StepProgram in the order in which the host runs it."""

    def __init__(self) -> None:
        self.costs_ns: list[int] = []
        self.spans: list[Span] = []
        self.calls: list[RuntimeCall] = []
        self.work: list[Work] = []
        self.pauses: dict[str, int] = {}
        self.thread = MAIN_THREAD
        self.n_sequences = 0
        self._open: list[int] = []
        self._last_on_stream: dict[int, int] = {}
        self._recorded: dict[int, tuple[int, int | None]] = {}
        """For each recorded event its stream and the last work that was given to it."""
        self._waits_of_stream: dict[int, list[int]] = {}
        self._n_exchanges: dict[tuple[str, int], int] = {}

    def spend(self, cost_ns: int) -> int:
        self.costs_ns.append(cost_ns)
        return len(self.costs_ns) - 1

    def pause(self, kind: str) -> None:
        """A place where a fault of this kind would hold the host up."""
        self.pauses[kind] = self.spend(0)

    @contextmanager
    def span(self, span: Span, cost_ns: int = _OPEN_NS) -> Iterator[None]:
        index = len(self.spans)
        self.spans.append(span._replace(thread=self.thread, first_tick=len(self.costs_ns)))
        self._open.append(index)
        self.spend(cost_ns)
        yield
        self.spend(min(cost_ns, _CLOSE_NS))
        self._open.pop()
        self.spans[index] = self.spans[index]._replace(end_tick=len(self.costs_ns))

    @contextmanager
    def operator(
        self,
        name: str,
        dims: tuple[tuple[int, ...], ...] = (),
        *,
        sequence: int = -1,
        is_linked: bool = False,
        exchange: Exchange | None = None,
        needs: str = "",
    ) -> Iterator[None]:
        seen = frozenset([needs] if needs else [])
        # What only a fault makes visible must cost nothing without it.
        cost_ns = 0 if needs else _OPEN_NS
        with self.span(Span("cpu_op", name, 0, 0, 0, -1, dims, sequence, is_linked, exchange, seen), cost_ns):
            yield

    @contextmanager
    def annotation(self, name: str, needs: str = "") -> Iterator[None]:
        with self.span(Span("user_annotation", name, 0, 0, 0, -1, needs=frozenset([needs] if needs else []))):
            yield

    @contextmanager
    def frame(self, name: str, *needs: str) -> Iterator[None]:
        """A Python frame. It costs nothing, so that a job runs alike whether its frames are recorded or not."""
        parent = self._innermost("python_function")
        with self.span(Span("python_function", name, 0, 0, 0, parent, needs=frozenset(["stack", *needs])), 0):
            yield

    def call(self, name: str, cost_ns: int, work: int = -1, sync: Sync = _NO_SYNC) -> int:
        tick = self.spend(cost_ns)
        self.calls.append(RuntimeCall(name, self.thread, tick, self._innermost("cpu_op"), work, sync))
        return len(self.calls) - 1

    def launch(self, kernel: Kernel, stream: int = COMPUTE_STREAM, exchange: Exchange | None = None) -> int:
        runtime = "cudaLaunchKernel" if exchange is None else "cudaLaunchKernelExC"
        work = Work("kernel", kernel.name, stream, kernel.cost_ns, (), -1, -1, kernel, exchange=exchange)
        return self._enqueue(work, runtime, 7_000)

    def copy_to_device(self, n_bytes: int) -> int:
        return self._transfer("Memcpy HtoD (Pinned -> Device)", "gpu_memcpy", n_bytes, 25.0)

    def copy_to_host(self, n_bytes: int) -> int:
        return self._transfer("Memcpy DtoH (Device -> Pageable)", "gpu_memcpy", n_bytes, 12.0)

    def fill(self, n_bytes: int) -> int:
        return self._transfer("Memset (Device)", "gpu_memset", n_bytes, 1_800.0)

    def record_event(self, stream: int) -> int:
        """Returns the call; wait_for_event() takes it."""
        call = self.call("cudaEventRecord", 1_800, sync=Sync(stream))
        self._recorded[call] = stream, self._last_on_stream.get(stream)
        return call

    def wait_for_event(self, record_call: int, stream: int) -> None:
        """Make the stream's next work wait for what had been given to the event's stream when it was recorded."""
        recorded_stream, last = self._recorded[record_call]
        if last is not None:
            self._waits_of_stream.setdefault(stream, []).append(last)
        self.call("cudaStreamWaitEvent", 1_500, sync=Sync(stream, recorded_stream, record_call))

    def synchronize(self, stream: int) -> int:
        """Returns the tick at which the host waits."""
        return self.calls[self.call("cudaStreamSynchronize", 2_000, sync=Sync(stream))].tick

    def next_exchange(self, op: str, towards: int, n_elements: int) -> Exchange:
        is_p2p = towards != 0
        local_ordinal = sum(count for (_, peer), count in self._n_exchanges.items() if (peer != 0) == is_p2p)
        ordinal = self._n_exchanges.get((op, towards), 0)
        self._n_exchanges[op, towards] = ordinal + 1
        return Exchange(op, towards, ordinal, local_ordinal, n_elements)

    def finish(self, sync_tick: int) -> StepProgram:
        n_transfers = sum(count for (_, peer), count in self._n_exchanges.items() if peer)
        return StepProgram(
            costs_ns=tuple(self.costs_ns),
            spans=tuple(self.spans),
            calls=tuple(self.calls),
            work=tuple(self.work),
            pauses=self.pauses,
            sync_tick=sync_tick,
            n_sequences=self.n_sequences,
            n_transfers=n_transfers,
            n_collectives=sum(self._n_exchanges.values()) - n_transfers,
        )

    def _innermost(self, category: str) -> int:
        return next((index for index in reversed(self._open) if self.spans[index].category == category), -1)

    def _transfer(self, name: str, category: str, n_bytes: int, gigabytes_per_second: float) -> int:
        cost_ns = 1_200 + round(n_bytes / gigabytes_per_second)
        runtime = "cudaMemsetAsync" if category == "gpu_memset" else "cudaMemcpyAsync"
        work = Work(category, name, COMPUTE_STREAM, cost_ns, (), -1, -1, n_bytes=n_bytes)
        return self._enqueue(work, runtime, 6_000)

    def _enqueue(self, work: Work, runtime: str, cost_ns: int) -> int:
        index = len(self.work)
        call = self.call(runtime, cost_ns, work=index)
        after = tuple(self._waits_of_stream.pop(work.stream, ()))
        self._last_on_stream[work.stream] = index
        self.work.append(work._replace(after=after, call=call, annotation=self._innermost("user_annotation")))
        return index
