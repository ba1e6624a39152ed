"""The table clocks: one clock per rank from all sources, and how far off it may be.

Profilers know the ends of collectives to a microsecond, the Flight Recorder notices them by polling, and the collector
measured its clocks at the start of the job. Each gives offsets from its own zero. The best comes first; the next ones
fill in the ranks that it does not have, moved by what the two differ on the ranks of both.
"""

from __future__ import annotations

from collections.abc import Iterator
from statistics import median
from typing import NamedTuple

from rankscope.analyze.derived import table
from rankscope.model.tables import MISSING, Table, Trace


class _Clock(NamedTuple):
    host: str
    offset_ns: int
    error_ns: int  # MISSING where the clock is used as it is


_Clocks = dict[int, _Clock]


@table("clocks", needs=("ranks", "profiles", "manifests"))
def clocks(trace: Trace) -> Table:
    known: dict[int, tuple[_Clock, str]] = {}
    for origin, others in _by_quality(trace):
        shared = [known[rank][0].offset_ns - clock.offset_ns for rank, clock in others.items() if rank in known]
        shift = int(median(shared)) if shared else 0
        spread = max((abs(each - shift) for each in shared), default=0)
        for rank, clock in others.items():
            if rank in known:
                continue
            is_tied = not known or bool(shared)
            error = clock.error_ns + spread if clock.error_ns != MISSING and is_tied else MISSING
            known[rank] = clock._replace(offset_ns=clock.offset_ns + shift, error_ns=error), origin
    rows = [{"rank": rank, "origin": origin, **clock._asdict()} for rank, (clock, origin) in sorted(known.items())]
    return Table.from_rows("clocks", rows)


def _by_quality(trace: Trace) -> Iterator[tuple[str, _Clocks]]:
    hosts = _hosts(trace)
    if trace.has("comms"):
        profiles = trace.sql(
            "SELECT rank, offset_ns, error_ns FROM profile_clocks WHERE is_aligned ORDER BY error_ns DESC"
        )
        yield "profiler", {rank: _Clock(hosts.get(rank, ""), *known) for rank, *known in profiles.rows()}
    for origin, name in (("recorder", "ranks"), ("collector", "manifests")):
        own = trace.table(name)
        columns = (own.array(column).tolist() for column in ("rank", "clock_offset_ns", "clock_error_ns"))
        measured = {rank: _Clock(hosts.get(rank, ""), *known) for rank, *known in zip(*columns, strict=True)}
        if origin == "collector":
            measured = {rank: clock for rank, clock in measured.items() if clock.error_ns != MISSING}
        yield origin, measured


def _hosts(trace: Trace) -> dict[int, str]:
    hosts: dict[int, str] = {}
    for name in ("manifests", "profiles", "ranks"):
        own = trace.table(name)
        known = zip(own.array("rank").tolist(), own.text("host").tolist(), strict=True)
        hosts.update({rank: host for rank, host in known if host})
    return hosts
