"""Which operator of torch called a collective that gloo ran, as profilers record both.

gloo runs collectives on its own threads under annotations that name neither group nor peer, and reduce_scatter as an
all_reduce. The operators of torch's library of collectives (c10d::...) say what was called, and when.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import msgspec

from rankscope.analyze.collectives.names import IN_PLACE, P2P, PARTNER_AT, op_sql
from rankscope.analyze.derived import derived
from rankscope.model.tables import Trace

_RUN_AS = {"reduce_scatter": "all_reduce"}
_PARTNERS = " ".join(f"WHEN '{op}' THEN {at}" for op, at in PARTNER_AT.items())
_CALLS = f"""
    SELECT file_id, rank, op_id, op, tid, start_ns, start_ns + duration_ns, coalesce(nullif(record_id, 0), -1),
           coalesce(try_cast(CASE WHEN name <> 'c10d::recv_any_source_' THEN
               json_extract_string(concrete_inputs, '$[' || (CASE op {_PARTNERS} END - 1) || ']') END AS INTEGER), -1),
           coalesce(input_dims, '')
    FROM (SELECT *, {op_sql("name[7:]")} AS op FROM ops WHERE name LIKE 'c10d::%')
    WHERE op IS NOT NULL ORDER BY file_id, rank, start_ns, op_id
"""
_RUNS = """
    SELECT c.file_id, c.rank, c.comm_id, c.op, coalesce(c.n_in, -1), c.tid, c.start_ns,
           coalesce(nullif(a.record_id, 0), -1)
    FROM comms AS c LEFT JOIN (SELECT * FROM annotations WHERE kind = 'host' AND name LIKE 'gloo:%') AS a
        ON a.file_id = c.file_id AND a.rank IS NOT DISTINCT FROM c.rank AND a.tid = c.tid AND a.start_ns = c.start_ns
           AND a.name = c.name
    WHERE c.kernel_id IS NULL AND c.start_ns IS NOT NULL ORDER BY c.file_id, c.rank, c.start_ns, c.comm_id
"""
UNKNOWN = -1


class HostCall(NamedTuple):
    """A call of torch's library of collectives."""

    file_id: int
    rank: int
    op_id: int
    op: str
    tid: int
    start_ns: int
    end_ns: int
    turn: int  # numbers that grow in the order of calls; UNKNOWN where no observer ran
    partner: int  # root or peer by its place in the group
    n_elements: int

    @property
    def run_as(self) -> str:
        return _RUN_AS.get(self.op, self.op)


class _Run(NamedTuple):
    file_id: int
    rank: int
    comm_id: int
    op: str
    n_elements: int
    tid: int
    start_ns: int
    turn: int


Process = tuple[int, int]  # trace and rank
Callers = dict[tuple[int, int, int], list[HostCall]]  # by trace, rank and comm_id: the call, or those it may be


def host_calls(trace: Trace) -> dict[Process, list[HostCall]]:
    """In the order in which they began."""
    return derived(trace, _load_calls)


def _load_calls(trace: Trace) -> dict[Process, list[HostCall]]:
    calls: dict[Process, list[HostCall]] = defaultdict(list)
    if trace.has("ops") and trace.sql("SELECT 1 FROM comms WHERE kernel_id IS NULL LIMIT 1").rows():
        for row in trace.sql(_CALLS).rows():
            calls[row[0], row[1]].append(HostCall._make((*row[:-1], _given(row[3], row[-1]))))
    return dict(calls)


def _given(op: str, dims: str) -> int:
    arguments = decoded_list(dims)
    position = 0 if op in IN_PLACE else 1
    return n_elements(arguments[position]) if len(arguments) > position else UNKNOWN


def decoded_list(text: str) -> list[Any]:
    try:
        decoded = msgspec.json.decode(text or "[]")
    except msgspec.DecodeError:
        return []
    return decoded if isinstance(decoded, list) else []


def n_elements(shape: Any) -> int:
    """Of a tensor or of a list of them; UNKNOWN where nothing is said, which is also how a single number is written."""
    if not isinstance(shape, list) or not shape:
        return UNKNOWN
    if isinstance(shape[0], list):
        parts = [n_elements(part) for part in shape]
        return sum(parts) if min(parts) >= 0 else UNKNOWN
    product = 1
    for size in shape:
        product *= size if isinstance(size, int) else 0
    return product


def callers(trace: Trace) -> Callers:
    return derived(trace, _find_callers)


def _find_callers(trace: Trace) -> Callers:
    calls = host_calls(trace)
    runs: dict[Process, list[_Run]] = defaultdict(list)
    for row in trace.sql(_RUNS).rows() if calls else []:
        runs[row[0], row[1]].append(_Run(*row))
    possible_callers: Callers = {}
    for process, process_runs in runs.items():
        made = calls.get(process, [])
        by_number = [run for run in process_runs if run.turn != UNKNOWN]
        possible_callers.update(_by_number(by_number, made))
        possible_callers.update(_by_time([run for run in process_runs if run.turn == UNKNOWN], made))
    return possible_callers


def _key(run: _Run) -> tuple[int, int, int]:
    return run.file_id, run.rank, run.comm_id


def _by_number(runs: Sequence[_Run], calls: Iterable[HostCall]) -> Callers:
    """Annotations are made on the caller's thread, right after the operator began. Of several runs the first counts."""
    ordered = sorted((call for call in calls if call.turn != UNKNOWN), key=lambda call: call.turn)
    turns = [call.turn for call in ordered]
    possible_callers: Callers = {}
    taken = set()
    for run in sorted(runs, key=lambda run: run.turn):
        position = bisect_left(turns, run.turn) - 1
        if position >= 0 and position not in taken and ordered[position].run_as == run.op:
            taken.add(position)
            possible_callers[_key(run)] = [ordered[position]]
    return possible_callers


def _by_time(runs: Sequence[_Run], calls: Sequence[HostCall]) -> Callers:
    """A transfer runs on the caller's thread, within the call. A collective runs after it began, each once."""
    possible_callers: Callers = {}
    waiting: dict[tuple[str, int], list[HostCall]] = defaultdict(list)
    unclear: dict[tuple[str, int], int] = defaultdict(int)
    n_started = 0
    for run in runs:
        while n_started < len(calls) and calls[n_started].start_ns <= run.start_ns:
            waiting[calls[n_started].run_as, calls[n_started].n_elements].append(calls[n_started])
            n_started += 1
        kind = next((key for key in ((run.op, run.n_elements), (run.op, UNKNOWN)) if waiting[key]), None)
        if kind is None:
            continue
        possible = waiting[kind]
        if run.op in P2P:
            possible = [call for call in possible if call.tid == run.tid and call.end_ns >= run.start_ns]
        possible_callers[_key(run)] = list(possible)
        if len(possible) == 1:
            waiting[kind].remove(possible[0])
        elif possible and run.op not in P2P:
            unclear[kind] += 1
            if unclear[kind] == len(possible):  # as many runs as calls: none of them is left for later ones
                waiting[kind], unclear[kind] = [], 0
    return possible_callers
