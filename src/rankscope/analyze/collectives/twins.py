"""Which call of the Flight Recorder a call of another source is, so that what one knows of it holds for the other.

NCCL's calls have group and number in both. What gloo does has neither, but the operator that called it has: the
recorder of the same process notes each call while its operator runs or right before. Traces without times are compared
by the order of calls. Where several recorded calls are possible and they differ, the answer stays open.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from rankscope.analyze.collectives.host_calls import UNKNOWN, HostCall, callers, decoded_list, host_calls, n_elements
from rankscope.analyze.collectives.names import P2P
from rankscope.analyze.derived import derived, table
from rankscope.model.tables import MISSING, Table, Trace

_TOLERANCE_NS = 20_000  # by how much the profiler's clock may differ from the recorder's in one process
_LONGEST_AHEAD_NS = 5_000_000  # of the first operator in a trace: how long before it the call may have been noted
_MADE_AFTER_NS = 1_000_000  # its kernel has ended: what the clocks of device and recorder may differ by
_NEVER = 2**62
# A group that was made again counts from 1 again: of two calls it is the last that was noted before the kernel ended. A
# process counts its transfers in a group by themselves. Versions of torch differ in whether a profiler shows that
# number: it counts where it leads to the same operation and peer throughout.
_NUMBERED = """
WITH pairs AS (
    SELECT c.file_id, c.rank, c.comm_id, c.op, c.group_name, c.is_p2p, r.group_id, r.peer,
           r.file_id AS recorder_file_id, r.record_id,
           NOT c.is_p2p OR (r.op = c.op AND r.peer = CASE c.op WHEN 'send' THEN c.dst ELSE c.src END) AS is_same
    FROM comms AS c JOIN collectives AS r ON r.rank = c.rank AND r.group_name = c.group_name AND r.is_p2p = c.is_p2p
        AND CASE WHEN r.is_p2p THEN r.p2p_seq ELSE r.seq END = c.seq AND (r.op = c.op OR c.is_p2p)
    WHERE c.kernel_id IS NOT NULL AND r.role <> 'member'
        AND coalesce(r.created_ns <= c.start_ns + c.duration_ns + $tolerance, true)
    QUALIFY rank() OVER (PARTITION BY c.file_id, c.rank, c.comm_id ORDER BY r.created_ns DESC NULLS LAST) = 1
), trusted AS (
    SELECT * FROM pairs
    QUALIFY coalesce(bool_and(is_same) OVER (PARTITION BY file_id, rank, group_name, is_p2p), false)
)
SELECT file_id, rank, comm_id, op, -1, group_id, coalesce(peer, -1), recorder_file_id, record_id FROM trusted
QUALIFY count(*) OVER (PARTITION BY file_id, rank, comm_id) = 1
    AND count(*) OVER (PARTITION BY file_id, recorder_file_id, rank, record_id) = 1
"""
_RECORDED = """
    SELECT rank, file_id, record_id, op, group_id, coalesce(peer, -1), coalesce(created_ns, -1),
           coalesce(completed_ns, $never), input_sizes, output_sizes
    FROM collectives WHERE role <> 'batch' AND group_id IS NOT NULL ORDER BY rank, file_id, record_id
"""
_NAMES = ("file_id", "rank", "row_id", "op", "partner", "group_id", "peer", "recorder_file_id", "record_id")


class Recorded(NamedTuple):
    rank: int
    file_id: int
    record_id: int
    op: str
    group_id: int
    peer: int
    created_ns: int
    completed_ns: int
    n_elements: int

    def can_be(self, op: str, size: int) -> bool:
        """gloo has no reduce_scatter: torch records the all_reduce that it does instead."""
        is_same = op == self.op or (op == "reduce_scatter" and self.op == "all_reduce")
        return is_same and (size == self.n_elements or UNKNOWN in (size, self.n_elements))


class Twin(NamedTuple):
    """What the Flight Recorder knows of a call."""

    group_ids: tuple[int, ...] = ()  # of all calls that it may be
    peer: int = MISSING  # where they agree
    file_id: int = MISSING
    record_id: int = MISSING  # where there is only one

    @property
    def group_id(self) -> int:
        return self.group_ids[0] if len(self.group_ids) == 1 else MISSING


_Candidates = dict[HostCall, list[Recorded]]


@table("call_twins", needs=("comms",))
def call_twins(trace: Trace) -> Table:
    rows = (
        [tuple(row) for row in trace.sql(_NUMBERED, tolerance=_MADE_AFTER_NS).rows()]
        if trace.has("collectives")
        else []
    )
    known = recorded_twins(trace)
    for (file_id, rank, comm_id), possible in callers(trace).items():
        rank_twins = known.get((file_id, rank), {})
        twin = _agreed([rank_twins.get(call.op_id, Twin()) for call in possible])
        if len({(call.op, call.partner) for call in possible}) == 1:
            called = (possible[0].op, possible[0].partner)
            rows.append((file_id, rank, comm_id, *called, twin.group_id, *twin[1:]))
    return Table.from_rows("call_twins", [dict(zip(_NAMES, row, strict=True)) for row in rows])


def _agreed(twins: Sequence[Twin]) -> Twin:
    """What is known of a call that is one of these."""
    if len(twins) == 1 or not all(twin.group_ids for twin in twins):
        return twins[0] if len(twins) == 1 else Twin()
    group_ids = dict.fromkeys(group_id for twin in twins for group_id in twin.group_ids)
    peers = {twin.peer for twin in twins}
    return Twin(tuple(group_ids), peers.pop() if len(peers) == 1 else MISSING)


def recorded_twins(trace: Trace) -> Mapping[tuple[int, int], Mapping[int, Twin]]:
    """By profiler trace and rank, and by op_id: the recorded calls that operators of torch's library are."""
    return derived(trace, _find_twins)


def _find_twins(trace: Trace) -> dict[tuple[int, int], dict[int, Twin]]:
    records = recorded_calls(trace)
    twins = {}
    for (file_id, rank), calls in host_calls(trace).items():
        candidates = _settled(_noted_at_the_time(calls, records.get(rank, [])))
        twins[file_id, rank] = {call.op_id: _known(possible) for call, possible in candidates.items() if possible}
    return twins


def _known(possible: Sequence[Recorded]) -> Twin:
    return _agreed([Twin((each.group_id,), each.peer, each.file_id, each.record_id) for each in possible])


def recorded_calls(trace: Trace) -> dict[int, list[Recorded]]:
    """By rank, in the order in which they were made."""
    return derived(trace, _load_recorded)


def _load_recorded(trace: Trace) -> dict[int, list[Recorded]]:
    calls: dict[int, list[Recorded]] = defaultdict(list)
    for *row, given, taken in trace.sql(_RECORDED, never=_NEVER).rows() if trace.has("collectives") else ():
        size = n_elements(decoded_list(given or taken or ""))
        calls[row[0]].append(Recorded._make((*row, size)))
    return dict(calls)


def _noted_at_the_time(calls: Sequence[HostCall], records: Sequence[Recorded]) -> _Candidates:
    """A recorder notes a call after the operator before it on the same thread began, and before its own has ended.

    Where one thread makes all calls, each is the next record after that of the call before.
    """
    noted = sorted((record for record in records if record.created_ns > 0), key=lambda record: record.created_ns)
    created = [record.created_ns for record in noted]
    is_one_thread = len({call.tid for call in calls}) == 1
    previous: dict[int, int] = {}
    n_passed = 0
    candidates: _Candidates = {}
    for call in calls:
        is_first = call.tid not in previous
        earliest = previous.get(call.tid, call.start_ns - _LONGEST_AHEAD_NS) - _TOLERANCE_NS
        previous[call.tid] = call.start_ns
        first = max(bisect_right(created, earliest), n_passed)
        last = bisect_right(created, call.end_ns + (0 if is_first else _TOLERANCE_NS))
        fitting = [
            position
            for position in range(first, last)
            if noted[position].can_be(call.op, call.n_elements) and noted[position].completed_ns >= call.start_ns
        ]
        if is_one_thread and fitting:
            fitting = fitting[-1:] if is_first else fitting[:1]
            n_passed = fitting[0] + 1
        candidates[call] = [noted[position] for position in fitting]
    return candidates


def _settled(candidates: _Candidates) -> _Candidates:
    """A recorded call that is the only one possible for some call is none of the others."""
    while True:
        taken = {possible[0]: call for call, possible in candidates.items() if len(possible) == 1}
        settled = {
            call: [record for record in possible if taken.get(record, call) is call] if len(possible) > 1 else possible
            for call, possible in candidates.items()
        }
        if settled == candidates:
            return settled
        candidates = settled


def twins_by_order(records: Sequence[Recorded], ops: Sequence[str], sizes: Sequence[int]) -> Iterator[Twin]:
    """Of calls without times, in order: what all places agree on at which the same calls were recorded in this order.

    Some recorders keep no transfers. The whole program of the rank has to be recorded, or they may be of a lost part.
    """
    has_transfers = any(record.op in P2P for record in records)
    chosen = [position for position, op in enumerate(ops) if has_transfers or op not in P2P]
    starts = [
        start
        for start in range(len(records) - len(chosen) + 1)
        if all(records[start + at].can_be(ops[position], sizes[position]) for at, position in enumerate(chosen))
    ]
    twins = {
        position: _known([records[start + at] for start in starts]) for at, position in enumerate(chosen) if starts
    }
    for position in range(len(ops)):
        yield twins.get(position, Twin())
