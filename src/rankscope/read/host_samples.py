"""What the collector sampled of a rank's training thread -> the tables of samples, marks and the machine."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Annotated

import msgspec

from rankscope.model.tables import Table
from rankscope.read.files import Source
from rankscope.read.rank_lines import Format, files_table, read_rank_lines
from rankscope.read.recorder_shapes import is_user_frame

NAME = "host_samples"
MARKS = ("rankscope.host/",)

_SCHEMA = re.compile(rb'\s*\{\s*"schema"\s*:\s*"rankscope\.host/')
_MAX_TEXT = 500

_Count = Annotated[int, msgspec.Meta(ge=-1, le=1 << 62)]
_Rank = Annotated[int, msgspec.Meta(ge=0, lt=1 << 31)]
_Frame = tuple[str, _Count, str]
# When in microseconds since the start, step, stack, how late in microseconds, state, wait; microseconds on a core,
# waiting for one, and of other threads on cores.
_Sample = tuple[_Count, _Count, _Count, _Count, str, _Count, _Count, _Count, _Count]
_Second = tuple[_Count, _Count, _Count, _Count, _Count, _Count, _Count, _Count, _Count, _Count]
_SECOND = (
    "read_bytes", "written_bytes", "memory_bytes", "n_threads", "n_major_faults", "cpu_ns", "available_bytes",
    "machine_busy_ns",
)  # fmt: skip
_US = 1000  # nanoseconds
_LAST_NS = 1 << 62


class _Header(msgspec.Struct):
    rank: _Rank
    began_ns: _Count = 0
    machine: dict[str, float] = {}


class _Line(msgspec.Struct):
    """One of these."""

    s: _Sample | None = None
    t: tuple[_Count, list[tuple[str, _Count, _Count]]] | None = None
    p: _Second | None = None
    worker: tuple[_Count, _Count, list[_Frame]] | None = None
    stack: tuple[_Count, list[_Frame]] | None = None
    wait: tuple[_Count, str] | None = None
    mark: tuple[str, _Count, _Count, str] | None = None
    machine: dict[str, float] | None = None


_decoder = msgspec.json.Decoder(_Line)
_FORMAT = Format(_SCHEMA, _Header, "does not start like a file of host samples", "the job ended before it was sampled")


def sniff(head: bytes, name: str) -> bool:
    return bool(_SCHEMA.match(head))


def read(source: Source) -> Iterator[Table]:
    content = read_rank_lines(source, _FORMAT)
    decoded = [_decoded(line) for line in content.whole.split(b"\n") if line.strip()]
    header = content.header
    yield from _tables({"file_id": source.file_id, "rank": header.rank}, header, [line for line in decoded if line])
    yield files_table(source, NAME, content, decoded.count(None), "that cannot be read")


def _decoded(content: bytes) -> _Line | None:
    try:
        line = _decoder.decode(content)
    except (msgspec.DecodeError, msgspec.ValidationError, UnicodeDecodeError, RecursionError):
        return None
    is_known = line.s or line.t or line.p or line.stack or line.wait or line.mark or line.worker
    return line if is_known or line.machine is not None else None


def _tables(keys: dict[str, int], header: _Header, lines: list[_Line]) -> Iterator[Table]:
    began = header.began_ns
    places = {line.stack[0]: (_site(line.stack[1]), _text(line.stack[1][:1])) for line in lines if line.stack}
    waits = {line.wait[0]: line.wait[1][:_MAX_TEXT] for line in lines if line.wait}
    samples = (_sample_row(began, line.s, places, waits) for line in lines if line.s)
    yield Table.from_rows("host_samples", [{**keys, **row} for row in samples])
    names = ("kind", "start_ns", "end_ns", "name")
    marks = (dict(zip(names, line.mark, strict=True)) for line in lines if line.mark)
    yield Table.from_rows("host_marks", [{**keys, **mark, "name": str(mark["name"])[:_MAX_TEXT]} for mark in marks])
    others = ((_when(began, line.t[0]), thread) for line in lines if line.t for thread in line.t[1])
    yield Table.from_rows("host_threads", [{**keys, **_thread_row(when, *thread, places)} for when, thread in others])
    yield Table.from_rows("host_seconds", [{**keys, **_second_row(began, line.p)} for line in lines if line.p])
    workers = [line.worker for line in lines if line.worker]
    rows = ({"time_ns": _when(began, when), "pid": pid, **_place(stack)} for when, pid, stack in workers)
    yield Table.from_rows("host_workers", [{**keys, **row} for row in rows])
    machine = header.machine
    for line in lines:
        machine = machine if line.machine is None else line.machine
    numbers = [{**keys, "name": name[:_MAX_TEXT], "value": value} for name, value in machine.items()]
    yield Table.from_rows("host_machine", numbers)


def _when(began_ns: int, us: int) -> int:
    return min(began_ns + us * _US, _LAST_NS)


def _sample_row(
    began_ns: int, sample: _Sample, places: dict[int, tuple[str, str]], waits: dict[int, str]
) -> dict[str, object]:
    when, step, stack, late, state, wait, cpu, delayed, others = sample
    site, frame = places.get(stack, ("", ""))
    return {
        "time_ns": _when(began_ns, when),
        "step": step,
        "site": site,
        "frame": frame,
        "late_ns": _when(0, late),
        "state": state[:1],
        "waits_in": waits.get(wait, ""),
        "cpu_ns": _when(0, cpu),
        "delayed_ns": _when(0, delayed),
        "others_cpu_ns": _when(0, others),
    }


def _thread_row(
    time_ns: int, name: str, stack: int, cpu_us: int, places: dict[int, tuple[str, str]]
) -> dict[str, object]:
    site, frame = places.get(stack, ("", ""))
    return {"time_ns": time_ns, "name": name[:_MAX_TEXT], "site": site, "frame": frame, "cpu_ns": _when(0, cpu_us)}


def _second_row(began_ns: int, second: _Second) -> dict[str, object]:
    row = dict(zip(_SECOND, second[1:], strict=False))
    row["n_threads"] = min(row["n_threads"], (1 << 31) - 1)
    return {"time_ns": _when(began_ns, second[0]), **row, "load": second[-1] / 100}


def _place(frames: list[_Frame]) -> dict[str, object]:
    return {"site": _site(frames), "frame": _text(frames[:1])}


def _site(frames: list[_Frame]) -> str:
    """The user's innermost frame; of a comprehension, which some versions of Python call, the function around it."""
    users = [frame for frame in frames if is_user_frame(frame[0])]
    while len(users) > 1 and users[0][2].startswith("<") and users[0][:2] == users[1][:2]:
        users.pop(0)
    return _text(users[:1])


def _text(frames: list[_Frame]) -> str:
    return "".join(f"{file}:{line} in {function}" for file, line, function in frames)[:_MAX_TEXT]
