"""torch.profiler traces (Kineto's Chrome JSON) -> operators, kernels, runtime calls, communication, steps, memory."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rankscope.errors import BadFileError
from rankscope.model.tables import MISSING, Part, Table
from rankscope.read.event_stream import EventStream
from rankscope.read.files import Source
from rankscope.read.kineto_events import EventStage
from rankscope.read.profile_store import Profile, store_profiles
from rankscope.read.profile_tables import write_profile
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


def _convert(source: Source, folder: Path) -> Iterator[Profile]:
    with staging() as connection:
        stage = EventStage(connection, folder, with_python=source.with_stacks)
        with source.open() as stream:
            events = EventStream(stream)
            for part in events:
                stage.add(part)
        stage.show()
        if not stage.n_events:
            raise BadFileError(
                events.problem or "has no events", "record at least one whole step; rankscope help traces shows how"
            )
        around = events.around
        first_ns = _first_time(connection)
        base_ns, is_inferred = _base_time(around, first_ns, source)
        device_type = stage.device_type
        written = write_profile(connection, folder, base_ns)
    problem = _problem(events.problem, stage.n_damaged_parts, is_inferred)
    distributed = _mapping(around.get("distributedInfo"))
    yield Profile(
        rank=_rank(distributed, source),
        host=str(around.get("host_name") or ""),
        columns={**_description(around, distributed), "device_type": device_type},
        devices=_devices(around),
        written=written,
        problem=problem,
    )


def _first_time(connection: Any) -> int:
    times = " UNION ALL ".join(
        f"SELECT min({column}) AS t FROM {stage}"
        for stage, column in (("raw_ops", "start_ns"), ("raw_kernels", "start_ns"), ("raw_annotations", "start_ns"))
    )
    [(first,)] = connection.execute(f"SELECT min(t) FROM ({times})").fetchall()
    return int(first or 0)


def _base_time(around: dict[str, Any], first_ns: int, source: Source) -> tuple[int, bool]:
    """What times are counted from. A truncated trace lost it: then it is the boundary before the file's own time."""
    if first_ns >= _EPOCH_TS_NS:
        return 0, False
    base = around.get("baseTimeNanoseconds")
    if isinstance(base, int) and 0 <= base < 2**62:
        return base, False
    return max(0, source.modified_ns - first_ns) // _QUARTER_NS * _QUARTER_NS, True


def _problem(streamed: str, n_damaged: int, is_inferred: bool) -> str:
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
    if isinstance(rank, int) and 0 <= rank < 2**31:
        return rank
    found = _RANK_IN_NAME.search(source.shown.rsplit("/", 1)[-1])
    return int(found.group(1)[:9]) if found else 0


def _description(around: dict[str, Any], distributed: dict[str, Any]) -> dict[str, Any]:
    import json

    world = distributed.get("world_size")
    return {
        "backend": str(distributed.get("backend") or ""),
        "world_size": world if isinstance(world, int) and 0 < world < 2**31 else MISSING,
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
