"""torch.profiler traces (Kineto's Chrome JSON) -> operators, kernels, runtime calls, communication, steps, memory."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from rankscope.errors import BadFileError
from rankscope.model.numbers import MAX_RANKS, rank_number
from rankscope.model.tables import MISSING, Part, Table
from rankscope.read.event_stream import EventStream
from rankscope.read.files import Source
from rankscope.read.kineto_events import EventStage
from rankscope.read.profile_store import Profile, store_profiles, store_together
from rankscope.read.profile_tables import StagedRows, staged_rows, write_profiles
from rankscope.read.staging import staging

NAME = "kineto"
ORDER = 2
COST = 20

_KEYS = (
    b'"schemaVersion"',
    b'"deviceProperties"',
    b'"distributedInfo"',
    b'"displayTimeUnit"',
    b'"baseTimeNanoseconds"',
)
_OWN_OUTPUT = b'"writer":"rankscope"'
_TRACE_NAME = re.compile(r"kineto|\.pt\.trace\.json|libkineto", re.IGNORECASE)
_RANK_IN_NAME = re.compile(r"(?:rank|kineto_trace|kineto_clean|trace|worker)[-_.]?(\d+)", re.IGNORECASE)
# Kineto counts microseconds from a boundary of three months (a quarter of the mean Gregorian year).
_QUARTER_NS = 7_889_238 * 10**9
_EPOCH_TS_NS = 10**18  # times beyond are already counted from 1970 (that is after 2001)


def sniff(head: bytes, name: str) -> bool:
    if _OWN_OUTPUT in head:
        return False  # a timeline that we made of traces is none of them
    start = head.lstrip()[:1]
    if start == b"{":
        return (
            b'"traceEvents"' in head
            or sum(key in head for key in _KEYS) >= 2
            or (b'"schemaVersion"' in head and b'"nodes"' not in head)
        )
    if start == b"[":
        return b'"ph"' in head and b'"ts"' in head
    return not start and bool(_TRACE_NAME.search(name))


def read(source: Source) -> Iterator[Table | Part]:
    return store_profiles(source, NAME, _convert)


def read_together(sources: Sequence[Source]) -> list[list[Table | Part]]:
    """The tables of each file. What is wrong with one of them shows when it is read alone."""
    return store_together(sources, NAME, _convert)


def _convert(sources: Sequence[Source], folder: Path) -> Iterator[Profile]:
    """One profile per file: a file holds one process, and its number is that of the process."""
    with staging() as connection:
        stage = EventStage(connection, folder, with_python=sources[0].with_stacks)
        streams = [_staged(stage, number, source) for number, source in enumerate(sources)]
        stage.show()
        for number, events in enumerate(streams):
            if not stage.n_events[number]:
                raise BadFileError(
                    events.problem or "has no events", "record at least one whole step; rankscope help traces shows how"
                )
        staged = staged_rows(connection, stage.present)
        times = [
            _base_time(events.around, staged.get(number, {}), source)
            for number, (events, source) in enumerate(zip(streams, sources, strict=True))
        ]
        device_types = stage.device_types()
        bases = {number: base_ns for number, (base_ns, _) in enumerate(times)}
        written = write_profiles(connection, folder, staged, bases)
    for number, (source, events) in enumerate(zip(sources, streams, strict=True)):
        distributed = _mapping(events.around.get("distributedInfo"))
        yield Profile(
            rank=_rank(distributed, source),
            host=str(events.around.get("host_name") or ""),
            columns={**_description(events.around, distributed), "device_type": device_types[number]},
            devices=_devices(events.around),
            written=written[number],
            problem=_problem(events.problem, stage.n_damaged_parts[number], is_inferred=times[number][1]),
            process=number,
        )


def _staged(stage: EventStage, number: int, source: Source) -> EventStream:
    with source.open() as stream:
        events = EventStream(stream)
        for part in events:
            stage.add(number, part)
    return events


def _base_time(around: dict[str, Any], staged: StagedRows, source: Source) -> tuple[int, bool]:
    """What times are counted from. A truncated trace lost it: then it is the boundary before the file's own time."""
    timed = ("raw_ops", "raw_kernels", "raw_annotations")
    first_ns = min((staged[stage].first_ns for stage in timed if stage in staged), default=0)
    if first_ns >= _EPOCH_TS_NS:
        return 0, False
    base = around.get("baseTimeNanoseconds")
    if isinstance(base, int) and 0 <= base < 2**62:
        return base, False
    return max(0, source.modified_ns - first_ns) // _QUARTER_NS * _QUARTER_NS, True


def _problem(streamed: str, n_damaged: int, *, is_inferred: bool) -> str:
    problems = [streamed + ": read up to the last complete event"] if streamed else []
    if n_damaged:
        problems.append("has text that is not JSON: the events around it were left out")
    if problems and is_inferred:
        problems.append("its start time was inferred from the file's date")
    return "; ".join(problems)


def _mapping(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _rank(distributed: dict[str, Any], source: Source) -> int:
    """From the trace; else from the name, by the words before a rank, and finally any number in it."""
    rank = distributed.get("rank")
    if type(rank) is int and 0 <= rank < MAX_RANKS:
        return rank
    match = _RANK_IN_NAME.search(source.shown.rsplit("/", 1)[-1])
    return max(rank_number(match.group(1)), 0) if match else 0


def _description(around: dict[str, Any], distributed: dict[str, Any]) -> dict[str, Any]:
    import json

    world = distributed.get("world_size")
    return {
        "backend": str(distributed.get("backend") or ""),
        "world_size": world if type(world) is int and 0 < world <= MAX_RANKS else MISSING,
        "groups": json.dumps(distributed.get("pg_config") or []),
        "has_shapes": bool(around.get("record_shapes")),
        "has_stacks": bool(around.get("with_stack")),
    }


def _devices(around: dict[str, Any]) -> list[dict[str, Any]]:
    listed = around.get("deviceProperties")
    if not isinstance(listed, list):
        return []
    names = {"id": "device", "numSms": "n_sms", "totalGlobalMem": "n_bytes"}
    names |= {"maxThreadsPerMultiprocessor": "max_threads", "warpSize": "n_warp"}
    return [
        {"name": str(device.get("name", ""))}
        | {column: device[key] for key, column in names.items() if isinstance(device.get(key), int)}
        for device in map(_mapping, listed)
    ]
