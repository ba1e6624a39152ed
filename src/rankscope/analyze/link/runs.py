"""What speaks against an execution trace and a profiler's trace being of the same run: the process, and the time."""

from __future__ import annotations

from datetime import datetime, timezone

from rankscope.analyze.link.nodes import EVENTS
from rankscope.model.tables import Trace

_SECOND_NS = 10**9
_ZONE_NS = 15 * 60 * _SECOND_NS  # zones differ from UTC by multiples of it
_MAX_ZONE_NS = 14 * 60 * 60 * _SECOND_NS
_TOLERANCE_NS = 5 * _SECOND_NS  # the execution trace has whole seconds
_EPOCH_SINCE_NS = 10**18  # before it (2001): a clock that does not count from the epoch

_PAIRS = f"""
    SELECT t.file_id, p.file_id AS profile_id, NOT list_contains(pids, t.pid) AS is_other_process, t.recorded,
           t.finish_ms - t.start_ms AS lasted_ms, p.start_ns, p.end_ns
    FROM et_traces AS t JOIN profiles AS p ON p.rank IS NOT DISTINCT FROM t.rank
    LEFT JOIN (
        SELECT file_id, rank, list(DISTINCT pid) AS pids FROM {EVENTS} WHERE pid IS NOT NULL GROUP BY ALL
    ) AS e ON e.file_id = p.file_id AND e.rank IS NOT DISTINCT FROM p.rank
"""


def contradictions(trace: Trace) -> dict[tuple[int, int], int]:
    """For every execution trace and profile of one rank, how many of the two speak against one run."""
    return {
        (file_id, profile_id): bool(is_other_process) + is_other_time(recorded, lasted_ms, start_ns, end_ns)
        for file_id, profile_id, is_other_process, recorded, lasted_ms, start_ns, end_ns in trace.sql(_PAIRS).rows()
    }


def is_other_time(recorded: str | None, lasted_ms: int | None, start_ns: int | None, end_ns: int | None) -> bool:
    """True when no time zone makes the two overlap: the execution trace has local time, and does not say where."""
    if start_ns is None or end_ns is None or start_ns < _EPOCH_SINCE_NS:
        return False
    try:
        begun = datetime.strptime(recorded or "", "%Y-%m-%d %H:%M:%S").replace(tzinfo=timezone.utc)
    except ValueError:
        return False
    begun_ns = int(begun.timestamp()) * _SECOND_NS
    latest = min(end_ns - begun_ns + _TOLERANCE_NS, _MAX_ZONE_NS)
    earliest = -_MAX_ZONE_NS
    if lasted_ms is not None:  # else it was cut off, and may have gone on for long
        earliest = max(earliest, start_ns - begun_ns - lasted_ms * 10**6 - _TOLERANCE_NS)
    return latest // _ZONE_NS * _ZONE_NS < earliest
