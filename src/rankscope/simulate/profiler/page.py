"""The events of a step as texts with holes, which all ranks that run the same program fill in.

Every complete event begins with the holes for pid, tid, ts and dur; its arguments follow.
"""

from __future__ import annotations

from functools import cached_property

from rankscope.simulate.profiler.layout import FURTHER_FIELDS, INTEGER, TEXT, Fields, Layout, constant
from rankscope.simulate.profiler.program import RuntimeCall, Span, StepProgram, Work
from rankscope.simulate.profiler.schedule import STEP_NAME

SYNC_NAMES = {"cudaStreamWaitEvent": "Stream Wait Event", "cudaStreamSynchronize": "Stream Sync"}
"""What the device records of the runtime calls that make it or the host wait."""
_CALLBACK_IDS = {
    "cudaLaunchKernel": 211,
    "cudaLaunchKernelExC": 430,
    "cudaMemcpyAsync": 41,
    "cudaMemsetAsync": 51,
    "cudaEventRecord": 135,
    "cudaStreamWaitEvent": 147,
    "cudaStreamSynchronize": 131,
}


class StepPage:
    def __init__(self, program: StepProgram, layout: Layout, with_metadata: bool, record_id: str = "0") -> None:
        self.program = program
        self.layout = layout
        self.with_metadata = with_metadata
        self.record_id = record_id
        """The text of the number of an operator, or a hole for it; empty for none."""
        self._flows = {
            (category, is_start): self._flow(category, is_start)
            for category in ("ac2g", "fwdbwd")
            for is_start in (True, False)
        }

    def flow(self, category: str, is_start: bool) -> str:
        """Holes: id, pid, tid, ts."""
        return self._flows[category, is_start]

    @cached_property
    def spans(self) -> list[str]:
        """Holes: [number of the step, before all others,] External id, [Record function id,] [Sequence number,]
        [metadata,] Ev Idx."""
        return [self._span(span) for span in self.program.spans]

    @cached_property
    def calls(self) -> list[str]:
        """Holes: [External id,] correlation."""
        return [self._call(call) for call in self.program.calls]

    @cached_property
    def work(self) -> list[str]:
        """Holes: [External id,] device, correlation, [bandwidth or metadata]."""
        return [self._work(work) for work in self.program.work]

    @cached_property
    def syncs(self) -> dict[int, str]:
        """By runtime call. Holes: [External id,] [correlation of the recording call,] correlation, device."""
        return {index: self._sync(call) for index, call in enumerate(self.program.calls) if call.name in SYNC_NAMES}

    @cached_property
    def gpu_annotation(self) -> str:
        """Holes: name, before all others, External id."""
        return self._complete("gpu_user_annotation", f'"{TEXT}"', [("External id", INTEGER)])

    def _flow(self, category: str, is_start: bool) -> str:
        bound = [] if is_start else [("bp", '"e"')]
        return self.layout.event(
            [("ph", '"s"' if is_start else '"f"'), ("id", INTEGER), ("pid", INTEGER), ("tid", INTEGER), ("ts", TEXT)],
            [("cat", constant(category)), ("name", constant(category)), *bound],
        )

    def _complete(self, category: str, name: str, args: Fields) -> str:
        kind = [("ph", '"X"'), ("cat", constant(category)), ("name", name), ("pid", INTEGER), ("tid", INTEGER)]
        return self.layout.event(kind, [("ts", TEXT), ("dur", TEXT)], args=args)

    def _span(self, span: Span) -> str:
        if span.category == "python_function":
            ids = [("Python parent id", TEXT), ("Python id", INTEGER), ("Ev Idx", INTEGER)]
            return self._complete(span.category, constant(span.name), ids)
        args = [("External id", INTEGER)]
        if self.record_id:
            args.append(("Record function id", self.record_id))
        if span.sequence >= 0:
            args += [("Sequence number", INTEGER), ("Fwd thread id", str(span.thread))]
        if span.dims:
            args += [
                ("Input type", constant(["c10::BFloat16"] * len(span.dims))),
                ("Input Dims", constant([list(shape) for shape in span.dims])),
            ]
        if span.exchange is not None and self.with_metadata:
            args.append(FURTHER_FIELDS)
        name = f'"{STEP_NAME}{INTEGER}"' if span.name == STEP_NAME else constant(span.name)
        return self._complete(span.category, name, [*args, ("Ev Idx", INTEGER)])

    def _call(self, call: RuntimeCall) -> str:
        args = [*_external_id(call), ("cbid", str(_CALLBACK_IDS[call.name])), ("correlation", INTEGER)]
        return self._complete("cuda_runtime", constant(call.name), args)

    def _work(self, work: Work) -> str:
        args = list(_external_id(self.program.calls[work.call]))
        kernel = work.kernel
        if kernel is not None:
            args.append(("queued", "0"))
        args += [("device", INTEGER), ("context", "1"), ("stream", str(work.stream)), ("correlation", INTEGER)]
        if kernel is None:
            args += [("bytes", str(work.n_bytes)), ("memory bandwidth (GB/s)", TEXT)]
        else:
            args += [
                ("registers per thread", str(kernel.registers)),
                ("shared memory", str(kernel.shared)),
                ("blocks per SM", f"{kernel.blocks_per_sm:.6f}"),
                ("warps per SM", f"{kernel.blocks_per_sm * kernel.warps_per_block:.6f}"),
                ("grid", constant(list(kernel.grid))),
                ("block", constant(list(kernel.block))),
                ("est. achieved occupancy %", str(kernel.occupancy)),
            ]
        if work.exchange is not None and self.with_metadata:
            args.append(FURTHER_FIELDS)
        return self._complete(work.category, constant(work.name), args)

    def _sync(self, call: RuntimeCall) -> str:
        name = constant(SYNC_NAMES[call.name])
        args = [*_external_id(call), ("cuda_sync_kind", name)]
        if call.sync.record_call >= 0:
            args += [
                ("wait_on_stream", str(call.sync.waits_for_stream)),
                ("wait_on_cuda_event_record_corr_id", INTEGER),
                ("wait_on_cuda_event_id", str(call.sync.record_call)),
            ]
        args += [("stream", str(call.sync.stream)), ("correlation", INTEGER), ("device", INTEGER), ("context", "1")]
        return self._complete("cuda_sync", name, args)


def _external_id(call: RuntimeCall) -> Fields:
    """A call outside all operators has none."""
    return [("External id", INTEGER)] if call.operator >= 0 else []
