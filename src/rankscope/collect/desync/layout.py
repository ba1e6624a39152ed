"""The ring of calls in the layout of torch's Flight Recorder: plain dicts, lists, text and numbers."""

from __future__ import annotations

import functools
import os
import pickle
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from types import CodeType
from typing import Any, NamedTuple

from rankscope.collect.desync.calls import Call, Calls, Frames, Shape
from rankscope.collect.desync.groups import Group
from rankscope.collect.desync.values import op_type

VERSION = "2.10"
_PROTOCOL = 2  # as torch writes it
_MAX_STORED_FRAMES = 12  # a store is no place for long texts
_OWN_FOLDER = os.path.dirname(__file__) + os.sep
_CAPTURING = ("torch::unwind", "torch::CapturedTraceback", "pybind11::", "std::")
# As the Flight Recorder calls them: by the names of C++.
_DTYPES = {
    "torch.float64": "Double",
    "torch.float32": "Float",
    "torch.float16": "Half",
    "torch.bfloat16": "BFloat16",
    "torch.int64": "Long",
    "torch.int32": "Int",
    "torch.int16": "Short",
    "torch.int8": "Char",
    "torch.uint8": "Byte",
    "torch.uint16": "UInt16",
    "torch.uint32": "UInt32",
    "torch.uint64": "UInt64",
    "torch.bool": "Bool",
    "torch.complex32": "ComplexHalf",
    "torch.complex64": "ComplexFloat",
    "torch.complex128": "ComplexDouble",
}


class Rank(NamedTuple):
    """Who writes."""

    rank: int
    world_size: int
    host: str
    pid: int


def dump(calls: Calls, speaker: Rank) -> dict[str, Any]:
    """What a Flight Recorder dump of this rank would hold, and who wrote it."""
    ring = calls.all()
    n_dropped = min((call.number for call in ring if call.number >= 0), default=0)
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    return {
        "version": VERSION,
        "comm_lib_version": "",
        "pg_config": {
            group.name: {"name": group.name, "desc": group.desc, "ranks": str(list(group.ranks))}
            for group in calls.groups
        },
        "pg_status": {str(group.local_id): _status(group) for group in calls.groups},
        "entries": [
            {**entry(call), "record_id": n_dropped + index, "thread_name": names.get(call.thread, "")}
            for index, call in enumerate(ring)
        ],
        "rankscope": {**speaker._asdict(), "written_ns": time.time_ns()},
    }


def to_bytes(calls: Calls, speaker: Rank) -> bytes:
    return pickle.dumps(dump(calls, speaker), protocol=_PROTOCOL)


def detail(group: Group, call: Call, speaker: Rank) -> dict[str, Any]:
    """What goes into the store about the group's latest call, next to its number and name."""
    status = _status(group)
    newest = entry(call)
    return {
        **speaker._asdict(),
        "group": {"name": group.name, "desc": group.desc, "ranks": list(group.ranks)},
        "entry": {**newest, "frames": newest["frames"][:_MAX_STORED_FRAMES]},
        "status": {name: status[f"{name}_collective"] for name in ("last_enqueued", "last_completed")},
        "now": main_thread_frames()[:_MAX_STORED_FRAMES],
        "time_ns": time.time_ns(),
    }


def entry(call: Call) -> dict[str, Any]:
    group = call.group
    known: dict[str, Any] = {
        "record_id": max(call.number, 0),
        "pg_id": group.local_id,
        "process_group": (group.name, group.desc),
        "collective_seq_id": call.seq,
        "p2p_seq_id": call.p2p_seq,
        "op_id": call.op_id,
        "profiling_name": profiling_name(call),
        "time_created_ns": call.created_ns,
        "input_sizes": _sizes(call.inputs),
        "input_dtypes": _dtypes(call.inputs),
        "output_sizes": _sizes(call.outputs),
        "output_dtypes": _dtypes(call.outputs),
        "state": "completed" if call.ended_ns else "started",
        "time_discovered_started_ns": call.created_ns,
        "time_discovered_completed_ns": None,
        "retired": not call.is_pending,
        "timeout_ms": group.timeout_ms,
        "is_p2p": call.operation.is_p2p,
        "frames": frames(call.frames),
        "thread_id": str(call.thread),
        "thread_name": "",
    }
    if call.ended_ns > call.created_ns:
        known["time_discovered_completed_ns"] = call.ended_ns
        known["duration_ms"] = (call.ended_ns - call.created_ns) / 1e6
    return known


def profiling_name(call: Call) -> str:
    """`gloo:all_reduce`, `gloo:send 0->1`; the numbers are the group's."""
    group, name = call.group, call.operation.name
    if call.peer >= 0:
        name += f" {group.rank}{'<-' if name == 'recv' else '->'}{call.peer}"
    return f"{group.backend(call.is_on_cpu)}:{name}"


def op_name(call: Call) -> str:
    """As torch's tracker calls it in the store."""
    return op_type(call.operation.name)


def frames(stack: Frames) -> list[dict[str, Any]]:
    """Innermost first. torch's own frames at the inner end are left out: they repeat what the entry says."""
    entries: list[dict[str, Any]] = [
        {"name": code.co_name, "filename": code.co_filename, "line": _line(code, offset)}
        for code, offset in zip(stack[::2], stack[1::2], strict=True)
        if isinstance(code, CodeType) and isinstance(offset, int)
    ]
    foreign = (_torch_folder(), _OWN_FOLDER)
    first = next((index for index, frame in enumerate(entries) if not frame["filename"].startswith(foreign)), 0)
    return entries[first:]


def main_thread_frames() -> list[dict[str, Any]]:
    """Where the main thread is now, innermost first."""
    frame = sys._current_frames().get(threading.main_thread().ident or 0)
    entries: list[dict[str, Any]] = []
    while frame is not None:
        code = frame.f_code
        entries.append({"name": code.co_name, "filename": code.co_filename, "line": frame.f_lineno or 0})
        frame = frame.f_back
    return entries


def native_frames(captured: Any) -> list[dict[str, Any]]:
    """The frames in C++ of what gather_traceback has captured, without those of the interpreter and of capturing.

    To have torch put them among the frames in Python would import its compiler, and since Python 3.11 it does not know
    where they belong.
    """
    from torch._C._profiler import symbolize_tracebacks

    entries: list[dict[str, Any]] = symbolize_tracebacks([captured])[0]
    return [frame for frame in entries if "::" in frame["name"] and not frame["name"].startswith(_CAPTURING)]


def combined_frames() -> list[dict[str, Any]]:
    """The frames of the calling thread, innermost first, C++ and Python together, in torch's order."""
    from torch._C._profiler import gather_traceback, symbolize_tracebacks

    from rankscope.collect.dumps.recorder import inductor_left_out

    captured = gather_traceback(python=True, script=True, cpp=True)
    with inductor_left_out():
        entries: list[dict[str, Any]] = symbolize_tracebacks([captured])[0]
    return entries


def stack_lines(entries: Sequence[Mapping[str, Any]]) -> list[str]:
    return [f"#{index} {frame['name']} from {frame['filename']}:{frame['line']}" for index, frame in enumerate(entries)]


def _status(group: Group) -> dict[str, int]:
    latest = group.latest.seq if group.latest is not None else 0  # all that is known of a group that was destroyed
    newest = max(group.newest_seq(), latest) or -1
    finished = group.finished.seq if group.finished is not None else -1
    return {
        "last_enqueued_collective": newest,
        "last_started_collective": newest,
        "last_completed_collective": finished,
    }


def _sizes(shapes: Sequence[Shape]) -> list[list[int]]:
    return [list(sizes) for sizes, _ in shapes]


def _dtypes(shapes: Sequence[Shape]) -> list[str]:
    return [_dtype(str(dtype)) for _, dtype in shapes]


def _dtype(name: str) -> str:
    known = _DTYPES.get(name)
    return known or name.removeprefix("torch.").capitalize()


@functools.lru_cache(maxsize=4096)
def _line(code: CodeType, offset: int) -> int:
    for start, end, line in code.co_lines():
        if start <= offset < end and line is not None:
            return line
    return code.co_firstlineno


@functools.cache
def _torch_folder() -> str:
    file = getattr(sys.modules.get("torch"), "__file__", None)
    return os.path.dirname(file) + os.sep if file else _OWN_FOLDER
