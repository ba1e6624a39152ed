"""Which calls of different ranks are one collective or transfer, and how far the ranks' clocks are apart.

Both need each other. Calls with an id or a sequence number are matched first, then those of steps in which all ranks
made the same calls; these give the clocks. All others are placed on these clocks by order and end, which sharpens the
clocks, and so once more.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from rankscope.analyze.collectives.groups import UNKNOWN_GROUP, CommGroup, inferred_groups
from rankscope.analyze.comm.alignment import BY_ORDER, TOLERANCE_NS, Aligner, Calls, Placement, Timeline, Track
from rankscope.analyze.comm.clocks import ClockFit, Moments, fit_clocks, in_main_component
from rankscope.analyze.comm.order import match_by_step
from rankscope.analyze.comm.rows import CommRows, extremes, load_rows, numbered, occurrence
from rankscope.analyze.device.events import processes_of
from rankscope.model.tables import MISSING, Array, Table, Trace

METHODS = ("", "time", "order", "seq", "comms-id")  # the weakest first
BY_SEQ, BY_COMMS_ID = 3, 4
_ROUNDS = 2
_MAX_OP_MISMATCH = 0.2  # more calls of one number with different operations: the numbers mean something else
_TRANSFER_WEIGHT = 0.05  # a receiver ends a little after its sender: it counts where nothing better ties two clocks
_MAX_MOMENTS = 200_000
_MIN_ENDS = 40
_TIMES_APART = 10.0
_CLOSEST_NS, _FARTHEST_NS = 1e5, 5e6  # between which that is believed


@dataclass(frozen=True)
class Clocks:
    """Per traced process the clock that it was recorded with, and the fit of all clocks since `origin_ns`."""

    of_process: Array
    hosts: list[str]  # per clock; empty where the host is not known
    fit: ClockFit
    origin_ns: int
    moments: Moments  # what the fit rests on

    def correction_ns(self, clock: Array, time_ns: Array) -> Array:
        """What to subtract from times of these clocks."""
        since = (time_ns - self.origin_ns).astype(np.float64)
        return np.rint(self.fit.offset[clock] + self.fit.drift[clock] * since).astype(np.int64)


@dataclass(frozen=True)
class Matching:
    rows: CommRows
    match: Array  # per row the number of the logical call, MISSING without partners
    method: Array  # per row, an index into METHODS
    group: Array  # per row, concluded groups included
    groups: list[CommGroup]
    clocks: Clocks


def match_calls(trace: Trace) -> Matching:
    rows = load_rows(trace)
    clocks = _clocks_of(trace, rows)
    event, method = _by_number(rows)
    ordered = match_by_step(rows, event, clocks.of_process[rows.process])
    method[event != ordered] = BY_ORDER
    event = ordered
    clocks = _fitted(rows, event, clocks)
    placement = Placement(event, method, rows.domain)
    tolerance = TOLERANCE_NS
    for _ in range(_ROUNDS if np.any(_to_place(rows, event)) else 0):
        placement = _placed(rows, event, method, clocks, tolerance)
        clocks = _fitted(rows, placement.event, clocks)
        tolerance = _tolerance(rows, placement.event, clocks)
    group, groups = _with_concluded_groups(rows, placement)
    method = _confirmed_by_seq(rows, placement)
    return Matching(rows, _with_partners(rows, placement.event), method, group, groups, clocks)


def _clocks_of(trace: Trace, rows: CommRows) -> Clocks:
    """Ranks of one host share a clock; a rank whose host is not known has its own."""
    profiles: Table = trace.table("profiles")
    described = zip(*(profiles.columns[name].tolist() for name in ("file_id", "rank", "host")), strict=True)
    host_of = {(file_id, rank): host for file_id, rank, host in described}
    names: dict[str, int] = {}
    known = processes_of(trace)
    traced = zip(known.file_id.tolist(), known.rank.tolist(), strict=True)
    of_process = [names.setdefault(host_of.get((file_id, rank)) or f"#{rank}", len(names)) for file_id, rank in traced]
    nothing = Moments(*(np.empty(0, kind) for kind in (np.int64, np.int64, np.float64, np.float64)))
    origin = int(rows.start_ns.min(initial=np.iinfo(np.int64).max)) if len(rows) else 0
    shown = [name if not name.startswith("#") else "" for name in names]
    return Clocks(np.asarray(of_process, np.int64), shown, fit_clocks(nothing, len(names)), origin, nothing)


def _by_number(rows: CommRows) -> tuple[Array, Array]:
    """Collectives with an id or a sequence number. Transfers are counted by each process alone: that proves nothing."""
    event = np.full(len(rows), MISSING, np.int64)
    method = np.zeros(len(rows), np.int8)
    for kind, number in ((BY_SEQ, rows.seq), (BY_COMMS_ID, rows.comms_key)):
        chosen = np.flatnonzero((number != MISSING) & ~rows.is_p2p & (rows.domain != MISSING))
        if not len(chosen):
            continue
        domain = np.zeros(len(chosen), np.int64) if kind == BY_COMMS_ID else rows.domain[chosen]
        again = occurrence(rows.process[chosen], domain, number[chosen])
        _, call = numbered(domain, number[chosen], again)
        trusted = _is_consistent(rows, chosen, call)
        event[chosen[trusted]] = call[trusted] + (event.max(initial=-1) + 1)
        method[chosen[trusted]] = kind
    return event, method


def _is_consistent(rows: CommRows, chosen: Array, event: Array) -> Array:
    """False for the domains in which calls of one number often are different operations."""
    first = np.full(int(event.max()) + 1, -1, np.int64)
    first[event[::-1]] = rows.op[chosen[::-1]]
    differs = rows.op[chosen] != first[event]
    domain = rows.domain[chosen]
    share = np.bincount(domain, differs) / np.maximum(np.bincount(domain), 1)
    is_consistent: Array = (share <= _MAX_OP_MISMATCH)[domain]
    return is_consistent


def _to_place(rows: CommRows, event: Array) -> Array:
    """Those without a number. Transfers that do not name the other end would fit anywhere, and so would what runs
    on the host in unknown groups: its members end at different times."""
    is_open: Array = (event == MISSING) & ((rows.domain != MISSING) | ~(rows.is_p2p | rows.is_on_host))
    return is_open


def _tolerance(rows: CommRows, event: Array, clocks: Clocks) -> float:
    """How close the ends of one call must be: a few times what those of the matches so far are apart."""
    chosen = np.flatnonzero((event != MISSING) & rows.ends_together)
    _, call = np.unique(event[chosen], return_inverse=True)
    call = call.reshape(-1)
    end = _since(clocks, clocks.of_process[rows.process[chosen]], rows.end_ns[chosen])
    n_calls = np.bincount(call)
    apart = np.sort(np.abs(end - (np.bincount(call, end) / np.maximum(n_calls, 1))[call])[n_calls[call] > 1])
    if len(apart) < _MIN_ENDS:
        return TOLERANCE_NS
    return min(max(_TIMES_APART * float(apart[int(0.9 * len(apart))]), _CLOSEST_NS), _FARTHEST_NS)


def _placed(rows: CommRows, event: Array, method: Array, clocks: Clocks, tolerance: float) -> Placement:
    """`event` and `method` are known of the calls that need not be placed."""
    chosen = np.flatnonzero(_to_place(rows, event))
    clock = clocks.of_process[rows.process]
    start, end = (_since(clocks, clock, times) for times in (rows.start_ns, rows.end_ns))
    columns = (rows.process, clock, rows.domain, rows.lane, rows.signature, start, end, rows.ends_together)
    calls = Calls(*(column[chosen] for column in columns))
    # Stages of a pipeline reduce at different times but in the same rhythm: without names only a common clock tells.
    has_nameless_transfers = bool(np.any(rows.is_p2p & (rows.domain == MISSING)))
    aligner = Aligner(
        calls,
        _timelines(rows, event, start, end),
        int(event.max(initial=-1)) + 1,
        may_join_clocks=not has_nameless_transfers,
        tolerance=tolerance,
    )
    placed = aligner.place(_is_known(clocks))
    whole_event, whole_method, domain = event.copy(), method.copy(), rows.domain.copy()
    whole_event[chosen], whole_method[chosen], domain[chosen] = placed.event, placed.method, placed.domain
    return Placement(whole_event, whole_method, domain)


def _since(clocks: Clocks, clock: Array, time_ns: Array) -> Array:
    since: Array = (time_ns - clocks.correction_ns(clock, time_ns) - clocks.origin_ns).astype(np.float64)
    return since


def _timelines(rows: CommRows, event: Array, start: Array, end: Array) -> dict[int, Timeline]:
    """What the numbered calls already show."""
    numbered = np.flatnonzero(event != MISSING)
    _, first = np.unique(event[numbered], return_index=True)
    first = numbered[first]
    timelines: dict[int, Timeline] = {}
    for domain in np.unique(rows.domain[first]).tolist():
        in_domain = first[rows.domain[first] == domain]
        timelines[domain] = Timeline()
        track = Track(
            rows.signature[in_domain].astype(np.int64), start[in_domain], end[in_domain], rows.ends_together[in_domain]
        )
        timelines[domain].add(track, event[in_domain])
    return timelines


def _is_known(clocks: Clocks) -> Array:
    """The clocks that shared moments tie to most others; none as long as no two share any."""
    is_main = in_main_component(clocks.fit)
    return is_main if np.count_nonzero(is_main) > 1 or len(is_main) == 1 else np.zeros(len(is_main), bool)


def _fitted(rows: CommRows, event: Array, clocks: Clocks) -> Clocks:
    """The clocks by the ends of the calls that several of them share."""
    is_end_shared = rows.synchronises | (rows.is_p2p & ~rows.is_on_host)
    chosen = np.flatnonzero((event != MISSING) & is_end_shared)
    clock = clocks.of_process[rows.process[chosen]]
    _, match = np.unique(event[chosen], return_inverse=True)
    match = match.reshape(-1)
    lowest, highest = extremes(match, clock)
    spans = (highest > lowest)[match]
    chosen, clock, match = chosen[spans], clock[spans], match[spans]
    if len(chosen) > _MAX_MOMENTS:
        kept = match % -(-len(chosen) // _MAX_MOMENTS) == 0
        chosen, clock, match = chosen[kept], clock[kept], match[kept]
    _, match = np.unique(match, return_inverse=True)
    weight = np.where(rows.is_p2p[chosen], _TRANSFER_WEIGHT, 1.0)
    time = (rows.end_ns[chosen] - clocks.origin_ns).astype(np.float64)
    moments = Moments(match.reshape(-1), clock, time, weight)
    return replace(clocks, fit=fit_clocks(moments, len(clocks.hosts)), moments=moments)


def _with_concluded_groups(rows: CommRows, placement: Placement) -> tuple[Array, list[CommGroup]]:
    concluded = np.flatnonzero((rows.group == UNKNOWN_GROUP) & (placement.domain != MISSING))
    if not len(concluded):
        return rows.group, rows.groups
    domains, number = np.unique(placement.domain[concluded], return_inverse=True)
    members = [rows.rank[concluded[number.reshape(-1) == index]].tolist() for index in range(len(domains))]
    group = rows.group.copy()
    group[concluded] = len(rows.groups) + number.reshape(-1)
    return group, [*rows.groups, *inferred_groups(members)]


def _confirmed_by_seq(rows: CommRows, placement: Placement) -> Array:
    """Transfers found by order or end whose two ends were also counted alike."""
    chosen = np.flatnonzero(rows.is_p2p & (rows.seq != MISSING) & (placement.event != MISSING))
    if not len(chosen):
        return placement.method
    _, call = np.unique(placement.event[chosen], return_inverse=True)
    call = call.reshape(-1)
    lowest, highest = extremes(call, rows.seq[chosen])
    method = placement.method.copy()
    method[chosen[(lowest == highest)[call] & (np.bincount(call) > 1)[call]]] = BY_SEQ
    return method


def _with_partners(rows: CommRows, event: Array) -> Array:
    """Numbers of the logical calls that more than one rank was found in, in the order of their ends."""
    matched = np.flatnonzero(event != MISSING)
    if not len(matched):
        return event
    _, call = np.unique(event[matched], return_inverse=True)
    call = call.reshape(-1)
    lowest, highest = extremes(call, rows.rank[matched])
    _, last_end = extremes(call, rows.end_ns[matched])
    is_match = highest > lowest
    number = np.full(len(lowest), MISSING, np.int64)
    number[is_match] = np.argsort(np.argsort(last_end[is_match], kind="stable"), kind="stable")
    match = np.full(len(event), MISSING, np.int64)
    match[matched] = number[call]
    return match
