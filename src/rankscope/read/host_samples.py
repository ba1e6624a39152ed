"""What the collector sampled of a rank's main thread -> the tables of samples, marks and the machine."""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterator
from typing import Annotated

import msgspec

from rankscope.errors import BadFileError
from rankscope.model.tables import Table
from rankscope.read.files import Source
from rankscope.read.recorder_shapes import is_user_frame

NAME = "host_samples"
MARKS = ("rankscope.host/",)

_SCHEMA = re.compile(rb'\s*\{\s*"schema"\s*:\s*"rankscope\.host/')
_CUT_HINT = "the job ended while writing it, or the copy is incomplete: copy it again if the original is complete"
_HINT = "pass the files that `rankscope record --host` wrote"
_MAX_HEADER = 1 << 16
_MAX_TEXT = 500

_Count = Annotated[int, msgspec.Meta(ge=-1, le=1 << 62)]
_Rank = Annotated[int, msgspec.Meta(ge=0, lt=1 << 31)]
_Small = Annotated[int, msgspec.Meta(ge=-1, lt=1 << 31)]
_Frame = tuple[str, _Count, str]
_Sample = tuple[_Count, _Count, _Count, _Count, str, str, _Count, _Count, _Count, _Count, _Count, _Count, _Small]
_COLUMNS = ("late_ns", "state", "waits_in", "cpu_ns", "delayed_ns", "others_cpu_ns", "read_bytes", "written_bytes")


class _Header(msgspec.Struct):
    rank: _Rank
    machine: dict[str, float] = {}


class _Line(msgspec.Struct):
    """One of these."""

    sample: _Sample | None = None
    stack: tuple[_Count, list[_Frame]] | None = None
    mark: tuple[str, _Count, _Count, str] | None = None
    machine: dict[str, float] | None = None
    threads: tuple[_Count, list[tuple[str, _Count, _Count]]] | None = None


_decoder = msgspec.json.Decoder(_Line)


def sniff(head: bytes, name: str) -> bool:
    return bool(_SCHEMA.match(head))


def read(source: Source) -> Iterator[Table]:
    if source.n_bytes == 0:
        raise BadFileError("is empty (0 bytes)", "the job ended before it was sampled")
    chunks: list[bytes] = []
    problem = ""
    try:
        with source.open() as stream:
            header = _header(stream.readline(_MAX_HEADER))
            while chunk := stream.read(1 << 14):
                chunks.append(chunk)
    except (OSError, EOFError, zlib.error) as error:
        if not chunks:
            raise BadFileError(f"cannot be decompressed ({error})", _CUT_HINT) from error
        problem = f"cannot be fully decompressed ({error})"
    whole, _, rest = b"".join(chunks).rpartition(b"\n")
    decoded = [_decoded(line) for line in whole.split(b"\n") if line.strip()]
    n_bad = decoded.count(None)
    if rest and not problem:
        problem = "ends in the middle of a line"
    if n_bad and not problem:
        problem = f"has {n_bad:,} {'line' if n_bad == 1 else 'lines'} that cannot be read"
    yield from _tables({"file_id": source.file_id, "rank": header.rank}, header, [line for line in decoded if line])
    row = {**source.file_columns(), "source": NAME, "rank": header.rank, "host": "", "status": "read"}
    if problem:
        row.update(status="damaged", problem=problem, hint=_CUT_HINT)
    yield Table.from_rows("files", [row])


def _header(line: bytes) -> _Header:
    if not _SCHEMA.match(line):
        raise BadFileError("does not start like a file of host samples", _HINT)
    try:
        return msgspec.json.decode(line, type=_Header)
    except (msgspec.DecodeError, msgspec.ValidationError, UnicodeDecodeError) as error:
        raise BadFileError(f"has no rank in its first line ({error})", _CUT_HINT) from error


def _decoded(content: bytes) -> _Line | None:
    try:
        line = _decoder.decode(content)
    except (msgspec.DecodeError, msgspec.ValidationError, UnicodeDecodeError, RecursionError):
        return None
    return line if line.sample or line.stack or line.mark or line.threads or line.machine is not None else None


def _tables(keys: dict[str, int], header: _Header, lines: list[_Line]) -> Iterator[Table]:
    stacks = [line.stack for line in lines if line.stack]
    places = {number: (_site(frames), _text(frames[:1])) for number, frames in stacks}
    samples = [line.sample for line in lines if line.sample]
    yield Table.from_rows("host_samples", [{**keys, **_sample_row(sample, places)} for sample in samples])
    marks = [line.mark for line in lines if line.mark]
    names = ("kind", "start_ns", "end_ns", "name")
    rows = [{**keys, **dict(zip(names, mark, strict=True)), "name": mark[3][:_MAX_TEXT]} for mark in marks]
    yield Table.from_rows("host_marks", rows)
    others = [(line.threads[0], thread) for line in lines if line.threads for thread in line.threads[1]]
    yield Table.from_rows("host_threads", [{**keys, **_thread_row(when, *thread, places)} for when, thread in others])
    machine = header.machine
    for line in lines:
        machine = machine if line.machine is None else line.machine
    numbers = [{**keys, "name": name[:_MAX_TEXT], "value": value} for name, value in machine.items()]
    yield Table.from_rows("host_machine", numbers)


def _sample_row(sample: _Sample, places: dict[int, tuple[str, str]]) -> dict[str, object]:
    site, frame = places.get(sample[2], ("", ""))
    row: dict[str, object] = {"time_ns": sample[0], "step": sample[1], "site": site, "frame": frame}
    row.update(zip((*_COLUMNS, "memory_bytes", "n_threads"), sample[3:], strict=True))
    return {**row, "state": sample[4][:1], "waits_in": sample[5][:_MAX_TEXT]}


def _thread_row(
    time_ns: int, name: str, stack: int, cpu_ns: int, places: dict[int, tuple[str, str]]
) -> dict[str, object]:
    site, frame = places.get(stack, ("", ""))
    return {"time_ns": time_ns, "name": name[:_MAX_TEXT], "site": site, "frame": frame, "cpu_ns": cpu_ns}


def _site(frames: list[_Frame]) -> str:
    return _text([frame for frame in frames if is_user_frame(frame[0])][:1])


def _text(frames: list[_Frame]) -> str:
    return "".join(f"{file}:{line} in {function}" for file, line, function in frames)[:_MAX_TEXT]
