"""Collectives and transfers by call site: waiting for others and moving data, before and now.

A call is the same when operation, description of the group and, where it is known, the user's line are the same. Only
the Flight Recorder knows lines; a profiler's calls get the line where exactly one is known for operation and group.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from rankscope.analyze.compare.measured import Key, common_basis, measure
from rankscope.analyze.compare.noise import Samples, judge
from rankscope.analyze.compare.pairing import Spot, paired_spots
from rankscope.model.changes import Basis, TimeChange
from rankscope.model.finding import Location
from rankscope.model.tables import MISSING, Trace

LEAST_ARRIVAL_NS = 2_000_000.0  # members never join at once, and hosts' clocks are known no better
LEAST_PER_CALL_NS = 20_000.0
MOSTLY = 0.5  # of the waiting: who causes so much of it is waited for
WAITING, TRANSFER, DURATION, ARRIVAL = "waiting", "transfer", "duration", "arrival"

# What is known of a call whose partners are not in the traces is how long it took in all.
_PROFILED = """
    SELECT c.op, coalesce(g.desc, c.group_desc, '') AS group_desc, part, c.rank AS unit, file_id, step, value
    FROM (SELECT file_id, rank, comm_id, group_key, step, wait_ns AS waiting, transfer_ns AS transfer,
                 CASE WHEN match_id IS NULL THEN end_ns - start_ns END AS duration FROM comm_calls)
         UNPIVOT (value FOR part IN (waiting, transfer, duration))
    JOIN (SELECT file_id, rank, comm_id, op, group_desc FROM comms) AS c USING (file_id, rank, comm_id)
    LEFT JOIN comm_groups AS g USING (group_key)"""
_CALLS = """
    SELECT c.* REPLACE (coalesce(c.group_desc, '') AS group_desc), coalesce(f.file, '') AS file,
           coalesce(f.line, -1)::VARCHAR AS line, coalesce(f.function, '') AS function,
           c.created_ns - coalesce(r.clock_offset_ns, 0) AS joined_ns
    FROM collectives AS c LEFT JOIN frames AS f ON f.frame_id = c.site_id LEFT JOIN ranks AS r ON r.rank = c.rank
    WHERE c.status = 'done' AND c.role IS DISTINCT FROM 'member'"""
# The members of a group join together: the group is what is compared, under its first rank.
_ARRIVALS = f"""
    SELECT op, group_desc, 'arrival' AS part, file, line, function, first_rank AS unit, 0 AS file_id, 0 AS step,
           max(joined_ns) - min(joined_ns) AS value, arg_max(rank, joined_ns) AS last_rank
    FROM ({_CALLS}) JOIN (SELECT group_id, min(rank) AS first_rank FROM group_members GROUP BY ALL) USING (group_id)
    WHERE match_id IS NOT NULL AND NOT is_p2p
    GROUP BY match_id, op, group_desc, file, line, function, first_rank HAVING count(*) > 1"""
_DURATIONS = f"""
    SELECT op, group_desc, 'duration' AS part, file, line, function, rank AS unit, 0 AS file_id, 0 AS step,
           duration_ns AS value
    FROM ({_CALLS}) WHERE duration_ns > 0"""
_SITE_KEYS = ("op", "group_desc", "part", "file", "line", "function")

_NO_SITE = ("", MISSING, "")


class _Call(NamedTuple):
    op: str
    group: str
    part: str


def collective_changes(old: Trace, new: Trace, least_per_step: float) -> Iterator[TimeChange]:
    yield from _profiled_changes(old, new, least_per_step)
    if old.has("collectives") and new.has("collectives"):
        for values, least in ((_ARRIVALS, LEAST_ARRIVAL_NS), (_DURATIONS, LEAST_PER_CALL_NS)):
            before, after = (_by_spot(measure(trace, values, _SITE_KEYS, "call")) for trace in (old, new))
            yield from _compared(before, after, _Reading("flight_recorder", "call", least, new, values))


def _profiled_changes(old: Trace, new: Trace, least_per_step: float) -> Iterator[TimeChange]:
    if not (old.has("comm_calls") and new.has("comm_calls")):
        return
    per = common_basis(old, new)
    least = least_per_step if per == "step" else LEAST_PER_CALL_NS
    yield from _compared(_profiled(old, per), _profiled(new, per), _Reading("profiler", per, least, new, ""))


def _profiled(trace: Trace, per: Basis) -> dict[Spot, Samples]:
    sites = _only_sites(trace)
    samples_of = measure(trace, _PROFILED, ("op", "group_desc", "part"), per)
    return {
        Spot(*sites.get((op, group), _NO_SITE), _Call(op, group, part)): samples
        for (op, group, part), samples in samples_of.items()
    }


class _Reading(NamedTuple):
    """How the samples were taken, and where to look up who came last."""

    source: str
    per: Basis
    least: float
    new: Trace
    arrivals: str


def _by_spot(samples_of: Mapping[Key, Samples]) -> dict[Spot, Samples]:
    return {
        Spot(file, int(line), function, _Call(op, group, part)): samples
        for (op, group, part, file, line, function), samples in samples_of.items()
    }


def _compared(old: Mapping[Spot, Samples], new: Mapping[Spot, Samples], reading: _Reading) -> Iterator[TimeChange]:
    for ours, theirs in paired_spots(old, new):
        spot = theirs or ours
        if spot is None:
            continue
        judgement = judge(old.get(ours) if ours else None, new.get(theirs) if theirs else None, reading.least)
        call = spot.detail
        assert isinstance(call, _Call)
        last = _waited_for(reading, theirs, judgement.units) if theirs and judgement.kind in ("slower", "new") else ()
        yield TimeChange(
            judgement.kind,
            call.op,
            reading.source,
            reading.per,
            judgement.old_ns,
            judgement.new_ns,
            judgement.noise_ns,
            ranks=() if call.part == ARRIVAL else judgement.units,
            part=call.part,
            group=call.group,
            location=_location(theirs),
            old_location=_location(ours),
            old_count=judgement.old_count,
            new_count=judgement.new_count,
            waits_for=last,
        )


def _location(spot: Spot | None) -> Location | None:
    return Location(*spot[:3]) if spot and spot.file else None


def _only_sites(trace: Trace) -> dict[Key, tuple[str, int, str]]:
    """By operation and group, the line of the calls, where it is one only."""
    if not trace.has("collectives"):
        return {}
    sql = f"""
        SELECT op, group_desc, min(file), min(line)::BIGINT, min(function) FROM ({_CALLS}) WHERE file <> ''
        GROUP BY op, group_desc HAVING count(DISTINCT (file, line, function)) = 1"""
    return {(op, group): (file, line, name) for op, group, file, line, name in trace.sql(sql).rows()}


def _waited_for(reading: _Reading, spot: Spot, units: tuple[int, ...]) -> tuple[int, ...]:
    """The rank that causes most of the waiting, if there is one."""
    call = spot.detail
    assert isinstance(call, _Call)
    if call.part == WAITING:
        sql, values = _LAST_IN_PROFILE, {}
    elif call.part == ARRIVAL:
        wanted = f"AND unit IN ({', '.join(map(str, units))})" if units else ""
        sql = f"""
            SELECT last_rank, sum(value) FROM ({reading.arrivals})
            WHERE op = $op AND group_desc = $group AND file = $file AND line = $line AND function = $function {wanted}
            GROUP BY last_rank"""
        values = {"file": spot.file, "line": str(spot.line), "function": spot.function}
    else:
        return ()
    waits: dict[int, int] = dict(reading.new.sql(sql, op=call.op, group=call.group, **values).rows())
    whole = sum(waits.values())
    return tuple(rank for rank, wait in waits.items() if wait > MOSTLY * whole)


_LAST_IN_PROFILE = """
    SELECT last_rank, sum(wait_ns) FROM comm_matches JOIN comm_groups USING (group_key)
    WHERE op = $op AND coalesce("desc", '') = $group AND last_rank IS NOT NULL GROUP BY last_rank"""
