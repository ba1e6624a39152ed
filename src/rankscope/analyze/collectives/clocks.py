"""The table clocks: one clock per host from all sources, and how far off it may be.

Profilers know the ends of collectives to a microsecond, the Flight Recorder notices them by polling, and the collector
measured its clocks at the start of the job. Each gives offsets from its own zero. The best comes first; the next ones
fill in the hosts that it does not have, moved by what the two differ on the hosts of both. Ranks of one host share its
clock; a rank whose host is unknown has its own.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from statistics import median
from typing import NamedTuple

from rankscope.analyze.derived import table
from rankscope.model.tables import MISSING, Table, Trace

_Measured = list[tuple[int, int, int]]  # rank, offset, error


class _Clock(NamedTuple):
    offset_ns: int
    error_ns: int  # MISSING where the clock is used as it is


@table("clocks", needs=("ranks", "profiles", "manifests"))
def clocks(trace: Trace) -> Table:
    hosts = _hosts(trace)
    by_origin = [(origin, measured) for origin, measured in _by_quality(trace) if measured]
    clock_of = {rank: hosts.get(rank) or f"#{rank}" for _, measured in by_origin for rank, _, _ in measured}
    known: dict[str, tuple[_Clock, str]] = {}
    for origin, measured in by_origin:
        others = _by_host(measured, clock_of)
        shared = [known[name][0].offset_ns - clock.offset_ns for name, clock in others.items() if name in known]
        shift = int(median(shared)) if shared else 0
        spread = max((abs(each - shift) for each in shared), default=0)
        is_tied = not known or bool(shared)
        for name, clock in others.items():
            error = clock.error_ns + spread if clock.error_ns != MISSING and is_tied else MISSING
            known.setdefault(name, (_Clock(clock.offset_ns + shift, error), origin))
    # On a single host there is nothing to be wrong about.
    is_one = len(known) == 1 and not next(iter(known)).startswith("#")
    rows = []
    for rank, name in sorted(clock_of.items()):
        clock, origin = known[name]
        error = 0 if is_one else clock.error_ns
        rows.append({"rank": rank, "host": hosts.get(rank, ""), "offset_ns": clock.offset_ns, "error_ns": error})
        rows[-1]["origin"] = origin
    return Table.from_rows("clocks", rows)


def _by_host(measured: _Measured, clock_of: dict[int, str]) -> dict[str, _Clock]:
    together: dict[str, list[_Clock]] = defaultdict(list)
    for rank, offset, error in measured:
        together[clock_of[rank]].append(_Clock(offset, error))
    return {
        name: _Clock(
            int(median(clock.offset_ns for clock in same)),
            MISSING if any(clock.error_ns == MISSING for clock in same) else max(clock.error_ns for clock in same),
        )
        for name, same in together.items()
    }


def _by_quality(trace: Trace) -> Iterator[tuple[str, _Measured]]:
    if trace.has("comms"):
        profiles = "SELECT rank, offset_ns, error_ns FROM profile_clocks WHERE is_aligned ORDER BY ALL"
        yield "profiler", trace.sql(profiles).rows()
    for origin, name in (("recorder", "ranks"), ("collector", "manifests")):
        measurements = trace.table(name)
        columns = (measurements.array(column).tolist() for column in ("rank", "clock_offset_ns", "clock_error_ns"))
        measured = list(zip(*columns, strict=True))
        yield origin, [row for row in measured if origin == "recorder" or row[2] != MISSING]


def _hosts(trace: Trace) -> dict[int, str]:
    hosts: dict[int, str] = {}
    for name in ("manifests", "profiles", "ranks"):
        named_ranks = trace.table(name)
        known = zip(named_ranks.array("rank").tolist(), named_ranks.text("host").tolist(), strict=True)
        hosts.update({rank: host for rank, host in known if host})
    return hosts
