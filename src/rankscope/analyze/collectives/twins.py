"""Which call of the Flight Recorder a call in a profiler trace is, so that what one knows of it holds for the other.

A profiler writes group and number of NCCL's calls; gloo's calls have neither. But they run between the moments at which
the recorder of the same process saw the call begin and end. Where several recorded calls are possible, their size
decides, then the thread: each group has threads that run no other group's collectives. gloo's ends are not recorded:
there a call is the newest one of its group, where each was over before the next was made. What is left open stays open.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

from rankscope.analyze.derived import table
from rankscope.model.tables import MISSING, Table, Trace

_TOLERANCE_NS = 20_000  # by how much the profiler's clock may differ from the recorder's in one process
_NEVER = 2**62
_NUMBERED = """
    SELECT c.file_id, c.rank, c.comm_id, r.group_id, r.peer, r.file_id AS recorder_file_id, r.record_id
    FROM comms AS c JOIN collectives AS r USING (rank, group_name, seq, op)
    WHERE c.kernel_id IS NOT NULL AND NOT c.is_p2p AND NOT r.is_p2p AND r.role <> 'member'
    QUALIFY count(*) OVER (PARTITION BY c.file_id, c.rank, c.comm_id) = 1
        AND count(*) OVER (PARTITION BY c.file_id, r.file_id, r.rank, r.record_id) = 1
"""
_RECORDED = """
    SELECT rank, op, file_id, record_id, group_id, coalesce(peer, -1), coalesce(n_input_bytes, -1), created_ns,
           coalesce(completed_ns, $never)
    FROM collectives WHERE created_ns IS NOT NULL AND role <> 'batch' ORDER BY rank, op, created_ns
"""
_PROFILED = """
    SELECT rank, op, file_id, comm_id, is_p2p, coalesce(tid, -1),
           coalesce(n_in * n_bytes // nullif(greatest(n_in, n_out), 0), -1), start_ns,
           start_ns + coalesce(duration_ns, 0)
    FROM comms WHERE kernel_id IS NULL AND start_ns IS NOT NULL ORDER BY rank, op, start_ns
"""


class _Recorded(NamedTuple):
    rank: int
    op: str
    file_id: int
    record_id: int
    group_id: int
    peer: int
    n_bytes: int
    start_ns: int
    end_ns: int


class _Profiled(NamedTuple):
    rank: int
    op: str
    file_id: int
    comm_id: int
    is_p2p: bool
    tid: int
    n_bytes: int
    start_ns: int
    end_ns: int


_Candidates = dict[_Profiled, list[_Recorded]]


@table("call_twins", needs=("comms",))
def call_twins(trace: Trace) -> Table:
    if not trace.has("collectives"):
        return Table.from_rows("call_twins", [])
    names = ("file_id", "rank", "comm_id", "group_id", "peer", "recorder_file_id", "record_id")
    rows = [dict(zip(names, row, strict=True)) for row in trace.sql(_NUMBERED).rows()]
    rows = [{name: value for name, value in row.items() if value is not None} for row in rows]
    rows += _twins_by_time(
        [_Recorded(*row) for row in trace.sql(_RECORDED, never=_NEVER).rows()],
        [_Profiled(*row) for row in trace.sql(_PROFILED).rows()],
    )
    return Table.from_rows("call_twins", rows)


def _twins_by_time(recorded: Sequence[_Recorded], profiled: Sequence[_Profiled]) -> Iterator[dict[str, int]]:
    candidates = _newest(_by_thread(_settled(_open_at_the_time(recorded, profiled))), recorded)
    for call, possible in candidates.items():
        if len({(twin.group_id, twin.peer) for twin in possible}) != 1:
            continue
        twin, is_one = possible[0], len(possible) == 1
        yield {
            "file_id": call.file_id,
            "rank": call.rank,
            "comm_id": call.comm_id,
            "group_id": twin.group_id,
            "peer": twin.peer,
            "recorder_file_id": twin.file_id if is_one else MISSING,
            "record_id": twin.record_id if is_one else MISSING,
        }


def _open_at_the_time(recorded: Sequence[_Recorded], profiled: Sequence[_Profiled]) -> _Candidates:
    """For each profiled call the recorded ones of its operation that were open all the time; of these, its size."""
    known: dict[tuple[int, str], list[_Recorded]] = defaultdict(list)
    for twin in recorded:
        known[twin.rank, twin.op].append(twin)
    first: dict[tuple[int, int, str], int] = defaultdict(int)
    candidates: _Candidates = {}
    for call in profiled:
        own, place = known[call.rank, call.op], first[call.file_id, call.rank, call.op]
        while place < len(own) and own[place].end_ns + _TOLERANCE_NS < call.start_ns:
            place += 1  # calls come in the order of their start: what ended before this one is over for the next
        first[call.file_id, call.rank, call.op] = place
        possible = []
        for twin in own[place:]:
            if twin.start_ns > call.start_ns + _TOLERANCE_NS:
                break
            if call.end_ns <= twin.end_ns + _TOLERANCE_NS:
                possible.append(twin)
        candidates[call] = [twin for twin in possible if twin.n_bytes == call.n_bytes] or possible
    return candidates


def _settled(candidates: _Candidates) -> _Candidates:
    """A recorded call that is the only one possible for some profiled call is none of the others of that trace."""
    while True:
        taken = {(call.file_id, possible[0]): call for call, possible in candidates.items() if len(possible) == 1}
        settled = {
            call: [twin for twin in possible if taken.get((call.file_id, twin), call) is call]
            if len(possible) > 1
            else possible
            for call, possible in candidates.items()
        }
        if settled == candidates:
            return settled
        candidates = settled


def _by_thread(candidates: _Candidates) -> _Candidates:
    """gloo runs the collectives of a group on threads that only this group has."""
    groups: dict[tuple[int, int, int], set[int]] = defaultdict(set)
    for call, possible in candidates.items():
        if not call.is_p2p and len({twin.group_id for twin in possible}) == 1:
            groups[call.file_id, call.rank, call.tid].add(possible[0].group_id)
    return {
        call: possible
        if call.is_p2p or len(groups[call.file_id, call.rank, call.tid]) != 1
        else [twin for twin in possible if twin.group_id in groups[call.file_id, call.rank, call.tid]]
        for call, possible in candidates.items()
    }


def _newest(candidates: _Candidates, recorded: Sequence[_Recorded]) -> _Candidates:
    """Where a process made the next call of a group only after the one before was over, each is the newest made.

    An idle thread does not leave work of its group waiting until the next call is made.
    """
    made: dict[tuple[int, int], list[_Recorded]] = defaultdict(list)
    for twin in sorted(recorded, key=lambda twin: (twin.start_ns, twin.record_id)):
        if twin.peer == MISSING:
            made[twin.rank, twin.group_id].append(twin)
    seen: dict[tuple[int, int, int], list[_Profiled]] = defaultdict(list)
    for call, possible in candidates.items():
        if not call.is_p2p and len({twin.group_id for twin in possible}) == 1:
            seen[call.file_id, call.rank, possible[0].group_id].append(call)
    newest = dict(candidates)
    for (_, rank, group_id), calls in seen.items():
        calls.sort(key=lambda call: call.start_ns)
        history = made[rank, group_id]
        starts = [twin.start_ns for twin in history] + [_NEVER]
        places = [bisect_right(starts, call.start_ns + _TOLERANCE_NS) - 1 for call in calls]
        is_each_alone = all(b == a + 1 for a, b in pairwise(places)) and all(
            place >= 0 and history[place] in candidates[call] and starts[place + 1] + _TOLERANCE_NS >= call.end_ns
            for call, place in zip(calls, places, strict=True)
        )
        if is_each_alone:
            newest.update({call: [history[place]] for call, place in zip(calls, places, strict=True)})
    return newest
