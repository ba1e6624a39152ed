"""A whole trace file: its head, the names of its rows, the events of all steps, its tail."""

from __future__ import annotations

from collections.abc import Iterator

from rankscope.simulate.profiler.events import Camera, microseconds
from rankscope.simulate.profiler.layout import Fields, Layout, constant
from rankscope.simulate.profiler.mesh import Mesh
from rankscope.simulate.profiler.operators import N_SMS
from rankscope.simulate.profiler.program import BACKWARD_THREAD, COMPUTE_STREAM, MAIN_THREAD

_GPU_SORT_INDEX = 16_777_216
_SPANS_SORT_INDEX = 536_870_912
_SPAN_NAME = "PyTorch Profiler"


def make_head(mesh: Mesh, camera: Camera, host: str) -> dict[str, object]:
    spec = mesh.spec
    head: dict[str, object] = {
        "schemaVersion": 1,
        "deviceProperties": [_device_properties(device) for device in range(spec.ranks_per_host)],
        "record_shapes": 1,
        "distributedInfo": _distributed_info(mesh, camera.rank),
        "host_name": host,
        "displayTimeUnit": "ms",
        "baseTimeNanoseconds": camera.base_ns,
    }
    if spec.with_stack:
        head["with_stack"] = 1
    return head


def _device_properties(device: int) -> dict[str, object]:
    return {
        "id": device,
        "name": "NVIDIA H100 80GB HBM3",
        "totalGlobalMem": 84_942_979_072,
        "computeMajor": 9,
        "computeMinor": 0,
        "maxThreadsPerBlock": 1024,
        "maxThreadsPerMultiprocessor": 2048,
        "regsPerBlock": 65536,
        "warpSize": 32,
        "sharedMemPerBlock": 49152,
        "numSms": N_SMS,
        "regsPerMultiprocessor": 65536,
        "sharedMemPerBlockOptin": 232_448,
        "sharedMemPerMultiprocessor": 233_472,
    }


def _distributed_info(mesh: Mesh, rank: int) -> dict[str, object]:
    info: dict[str, object] = {"backend": "nccl", "rank": rank, "world_size": mesh.spec.world_size}
    if mesh.spec.with_metadata:
        groups = mesh.of_rank[rank]
        info["pg_count"] = len(groups)
        info["pg_config"] = [
            {
                "pg_name": group.name,
                "pg_desc": group.desc,
                "backend_config": "cuda:nccl",
                "pg_size": len(group.ranks),
                "ranks": list(group.ranks),
            }
            for group in groups
        ]
        info["nccl_version"] = "2.27.5"
    return info


class RowNames:
    """The metadata events that name processes, threads and streams."""

    def __init__(self, layout: Layout, start_ns: int) -> None:
        self.layout = layout
        self.start = microseconds(start_ns)

    def all(self, mesh: Mesh, camera: Camera, streams: list[int]) -> Iterator[str]:
        yield from self._process(camera.pid, "CPU", camera.pid)
        for device in range(mesh.spec.ranks_per_host):
            yield from self._process(device, f"GPU {device}", _GPU_SORT_INDEX + device)
        for stream in streams:
            yield from self._thread(camera.device, stream, f"stream {stream} ", stream)
        offset = self.layout.sync_row_offset
        if offset and mesh.spec.with_sync:
            sync_row = COMPUTE_STREAM + offset
            yield from self._thread(camera.device, sync_row, f"stream {COMPUTE_STREAM} (sync)", COMPUTE_STREAM)
        for thread, name in ((MAIN_THREAD, "pt_main_thread"), (BACKWARD_THREAD, "pt_autograd_0")):
            tid = camera.tid(thread)
            yield from self._thread(camera.pid, tid, f"thread {tid} ({name})", tid)

    def _event(self, name: str, pid: object, tid: int, args: Fields) -> str:
        kind = [("name", constant(name)), ("ph", '"M"')]
        if self.layout.metadata_first:
            kind.reverse()
        return self.layout.event([*kind, ("ts", self.start), ("pid", constant(pid)), ("tid", str(tid))], args=args)

    def _process(self, pid: int, label: str, sort_index: int) -> Iterator[str]:
        yield self._event("process_name", pid, 0, [("name", '"python3"')])
        yield self._event("process_labels", pid, 0, [("labels", constant(label))])
        yield self._event("process_sort_index", pid, 0, [("sort_index", str(sort_index))])

    def _thread(self, pid: int, tid: int, name: str, sort_index: int) -> Iterator[str]:
        yield self._event("thread_name", pid, tid, [("name", constant(name))])
        yield self._event("thread_sort_index", pid, tid, [("sort_index", str(sort_index))])

    def spans(self) -> str:
        return self._event("process_sort_index", "Spans", 0, [("sort_index", str(_SPANS_SORT_INDEX))])


def closing_events(layout: Layout, start_ns: int, end_ns: int) -> Iterator[str]:
    """The profiler's own row and the marks of its window."""
    start, end = microseconds(start_ns), microseconds(end_ns)
    yield layout.event(
        [("ph", '"X"'), ("cat", '"Trace"'), ("ts", start), ("dur", microseconds(end_ns - start_ns))],
        [("pid", '"Spans"'), ("tid", constant(_SPAN_NAME))],
        [("name", constant(f"{_SPAN_NAME} (0)"))],
        args=[("Op count", "0")],
    )
    yield RowNames(layout, start_ns).spans()
    for name, pid, tid, when in (
        (f"Iteration Start: {_SPAN_NAME}", "Traces", f"Trace {_SPAN_NAME}", start),
        ("Record Window End", "", "", end),
    ):
        yield layout.event(
            [("name", constant(name)), ("ph", '"i"'), ("s", '"g"')],
            [("pid", constant(pid)), ("tid", constant(tid)), ("ts", when)],
        )
