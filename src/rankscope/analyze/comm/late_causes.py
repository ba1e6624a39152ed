"""Why a rank is late: what it spends more time on than its peers in the steps in which they wait for it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from rankscope.analyze.comm.late_time import (
    COLLECTING,
    COMPILING,
    COMPUTATION,
    COPIES,
    DEVICE_IDLE,
    FREE,
    LOADING,
    SLEEPING,
    WORKING,
    spending,
)
from rankscope.analyze.comm.named_ranges import NamedRange, named_range
from rankscope.analyze.comm.stragglers import CLEARLY, Standing, standings_of
from rankscope.analyze.comm.work import Work, compare_work
from rankscope.analyze.metric import Selection, metric
from rankscope.model.tables import Table, Trace

_MAX_PEERS = 8  # compared in detail: more do not move the median
_MAX_STEPS = 16
_EXPLAINS = 0.4  # of the delay: a cause that accounts for less is not the cause
_MORE_WORK = 0.5  # of the longer time explained by number or size: then the calls are not slower, but more or larger
_REGULAR = 0.8  # of the steps: what happens less often is not part of the loop itself

_ON_DEVICE = (COMPUTATION, COPIES, DEVICE_IDLE)
_ON_HOST = {
    COMPILING: "compile",
    LOADING: "data-loading",
    COLLECTING: "garbage-collection",
    SLEEPING: "sleeping",
    WORKING: "host-bound",
    FREE: "pause",
}
UNKNOWN = "unknown"
_WITHOUT_NAME = ("pause", "slow-operators", UNKNOWN)  # causes of which the job may have a name


class Part(NamedTuple):
    """What the rank and its median peer spend on one thing, per step."""

    name: str
    own_ns: float
    peers_ns: float

    @property
    def excess_ns(self) -> float:
        return self.own_ns - self.peers_ns


class LateCause(NamedTuple):
    cause: str
    main: str  # the part that explains the delay; empty when none does
    parts: tuple[Part, ...]
    late_ns: float  # per step in which it is late
    work: Work | None  # how its kernels or operators compare, where they are the reason
    is_regular: bool  # late in nearly all steps
    named: NamedRange | None = None  # the job's own name for what takes longer


def explain(trace: Trace, standing: Standing) -> LateCause:
    late_steps = standing.late_steps[:_MAX_STEPS]
    peers = standing.peers[:: -(-len(standing.peers) // _MAX_PEERS)]
    spent = spending(trace, [standing.rank, *peers], late_steps)
    late, theirs = spent.typical([standing.rank]), spent.typical(peers)
    parts = tuple(Part(name, late[name], theirs[name]) for name in spent.names)
    late_ns = standing.mean_cost_ns * standing.n_compared / max(len(standing.late_steps), 1)
    is_regular = len(standing.late_steps) >= _REGULAR * standing.n_compared
    main = _main_part(parts, late_ns)
    cause = _ON_HOST.get(main, UNKNOWN)
    work = None
    if main in (COMPUTATION, WORKING):
        work = compare_work(trace, main == COMPUTATION, standing.rank, peers, late_steps)
        cause = _cause_of_work(parts, main, work)
    elif main == COPIES:
        cause = "slow-copies"
    elif main == DEVICE_IDLE:
        cause = "host-bound"
    named = named_range(trace, standing, peers, late_ns) if cause in _WITHOUT_NAME else None
    return LateCause("range" if named else cause, main, parts, late_ns, work, is_regular, named)


def _main_part(parts: Sequence[Part], late_ns: float) -> str:
    """The device first: idle time there is then traced back to the host."""
    on_device = [part for part in parts if part.name in _ON_DEVICE]
    main = _largest(on_device, late_ns)
    if main not in ("", DEVICE_IDLE):
        return main
    return _largest([part for part in parts if part.name in _ON_HOST], late_ns) or main


def _largest(parts: Sequence[Part], late_ns: float) -> str:
    part = max(parts, key=lambda part: part.excess_ns, default=None)
    return part.name if part is not None and part.excess_ns >= _EXPLAINS * late_ns else ""


def _cause_of_work(parts: Sequence[Part], main: str, work: Work) -> str:
    has_device = any(part.name == DEVICE_IDLE for part in parts)
    if main == WORKING and has_device:
        return "host-bound"
    if max(work.count_share, work.size_share) >= _MORE_WORK:
        return "more-work"
    return "slow-kernels" if main == COMPUTATION else "slow-operators"


@metric("late_causes", "late_causes", needs=("comms",))
def late_causes(trace: Trace, selection: Selection) -> Table:
    """One row per part of the step, for each rank that others wait for: where it takes longer than its peers.

    Covers the ranks whose cost (see stragglers) is at least 3% of the step, in the steps where they are late. On the
    device, time is split into computation, copies and idle; communication is not counted as the rank's own time. On the
    host, overlapping activities are counted once, in this order: waiting for the device, compiling, data loading,
    garbage collection or sleeping (only if Python calls were read), operators and launches, communicating, nothing
    recorded.

    The cause is the part with the largest excess over the median peer, if that is at least 40% of the delay. Device
    idle time is traced back to the host. Longer computation counts as more work if the number of kernels or their
    blocks (on the host: the elements of the operators' inputs) explain at least half of it; otherwise the kernels are
    slower. If a range that the job itself named (record_function) takes that much longer, that range is the cause.
    """
    rows = []
    for standing in standings_of(trace):
        if standing.share < CLEARLY or (selection.ranks is not None and standing.rank not in selection.ranks):
            continue
        reason = explain(trace, standing)
        rows += [
            {
                "rank": standing.rank,
                "part": part.name,
                "cause": reason.cause,
                "is_main": part.name == reason.main,
                "own_ns": part.own_ns,
                "peers_ns": part.peers_ns,
                "excess_ns": part.excess_ns,
                "late_ns": reason.late_ns,
            }
            for part in reason.parts
        ]
    return Table.from_rows("late_causes", rows)
