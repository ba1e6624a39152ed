"""The cause of a rank's delays: the part of its time that its median peer does not spend."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from rankscope.analyze.derived import derived
from rankscope.analyze.late.arrivals import Delays, delays_of
from rankscope.analyze.late.spending import FUTEX, LINE, RUNS, SLEEPS, TRANSFERS, Part, Spent, spent_in
from rankscope.model.finding import Location
from rankscope.model.numbers import integer, is_number
from rankscope.model.tables import Trace

GC, COMPILE, SAVING, LOADING, OPTIMIZER = "gc", "compile", "saving", "loading", "optimizer"
TRANSFER, LOCK, PYTHON_LOCK, NO_CORE, LONGER, EXTRA, SLEEP = (
    "transfer",
    "lock",
    "python-lock",
    "no-core",
    "longer",
    "extra",
    "sleep",
)
_OF_EVERY_LINE = ("", LOCK, LONGER, EXTRA, OPTIMIZER, GC, COMPILE)  # what looks like these may be a shortage
_EXPLAINS = 0.5  # of the delay
_MOSTLY = 0.5  # of the samples at a line
_NEEDS_MORE = 0.25  # of the delay, on a core
_COMPUTES = 0.4  # of the delay, on a core
_NOT_AT_ALL = 0.1  # of what the rank spends at a line: peers that spend less do not run it
_MAX_PEERS = 8  # more do not move the median
_MIN_SAMPLES = 3
_HELD_NS = 1_000_000  # that the sampler comes later than on other ranks: Python hands its lock on after up to 5 ms
_BUSY = 0.3  # of a core that other Python threads need to keep Python's lock from the main thread


class Cause(NamedTuple):
    kind: str
    delays: Delays
    part: Part
    own_ns: float  # in all late calls together
    peers_ns: float  # its median peer
    spent: Spent
    peers_spent: tuple[Spent, ...]

    @property
    def location(self) -> Location | None:
        site = self.part.site
        if self.kind == NO_CORE:
            return None
        if self.kind == LOADING:  # the dataset's own line, where it runs in this process
            site = self.most(self.spent.inside)
        return location_of(site or self.most(self.spent.sites))

    def most(self, sums: dict[Part, dict[str, float]]) -> str:
        """The name that most of the samples of the part have."""
        names = {name: ns for name, ns in sums.get(self.part, {}).items() if name}
        return max(names, key=lambda name: names[name], default="")


def location_of(site: str) -> Location | None:
    place, _, function = site.partition(" in ")
    file, _, line = place.rpartition(":")
    return Location(file, integer(line), function) if file and is_number(line) else None


def cause_of(trace: Trace) -> Cause | None:
    """Of the rank that the others wait for; None where none is late or nothing explains half of it."""
    return derived(trace, _cause)


def _cause(trace: Trace) -> Cause | None:
    delays = delays_of(trace)
    if delays is None:
        return None
    own = spent_in(trace, delays.rank, delays.windows[delays.rank])
    chosen = delays.peers[:: -(-len(delays.peers) // _MAX_PEERS)]
    peers = tuple(spent_in(trace, peer, delays.windows[peer]) for peer in chosen)
    if own.n_samples < _MIN_SAMPLES and not any(part.kind != LINE for part in own.parts):
        return None
    excess = own.total_ns - float(np.median([each.total_ns for each in peers]))
    if excess <= 0:
        return None
    part = max(own.parts, key=lambda part: own.parts[part] - _typical(peers, part))
    own_ns, peers_ns = own.parts[part], _typical(peers, part)
    kind = ""
    if own_ns - peers_ns >= _EXPLAINS * excess:
        kind = part.kind if part.kind != LINE else _kind_of_line(own, part, own_ns, peers_ns)
    if kind in (LONGER, EXTRA) and not _computes_more(own, peers, _COMPUTES * excess):
        kind = ""  # it was ready to run, but not on a core: its line is chance
    if kind in _OF_EVERY_LINE:
        kind = _of_every_line(own, peers, excess) or kind
    return Cause(kind, delays, part, own_ns, peers_ns, own, peers) if kind else None


def _typical(peers: tuple[Spent, ...], part: Part) -> float:
    return float(np.median([each.parts.get(part, 0.0) for each in peers]))


def _computes_more(own: Spent, peers: tuple[Spent, ...], ns: float) -> bool:
    """On a core, as the kernel counts it."""
    return own.running_ns - float(np.median([each.running_ns for each in peers])) >= ns


def _of_every_line(own: Spent, peers: tuple[Spent, ...], excess: float) -> str:
    """What slows down every line of the rank, so that the one that takes longest is not to blame; empty if nothing."""
    if own.n_samples < _MIN_SAMPLES:
        return ""
    # Who has more to compute also waits longer for cores that are short.
    if own.delayed_ns >= _EXPLAINS * excess and not _computes_more(own, peers, _NEEDS_MORE * excess):
        return NO_CORE
    usual = float(np.median([each.sampler_late_ns for each in peers]))
    is_held = own.sampler_late_ns >= usual + _HELD_NS
    is_busy = own.python_share >= _BUSY + float(np.median([each.python_share for each in peers]))
    return PYTHON_LOCK if is_held and is_busy else ""


def _is_inside_torch(own: Spent, part: Part) -> bool:
    frames = own.frames.get(part, {})
    return sum(ns for frame, ns in frames.items() if "/torch/" in frame) >= _MOSTLY * sum(frames.values())


def _kind_of_line(own: Spent, part: Part, own_ns: float, peers_ns: float) -> str:
    manners = own.manners.get(part, {})
    for manner, kind in ((SLEEPS, SLEEP), (FUTEX, LOCK), (TRANSFERS, TRANSFER)):
        if manners.get(manner, 0.0) >= _MOSTLY * own_ns:
            # Inside torch it waits for torch's own threads: that is no lock of the job, and says nothing.
            return "" if kind == LOCK and _is_inside_torch(own, part) else kind
    if manners.get(RUNS, 0.0) < _MOSTLY * own_ns:
        return ""
    return EXTRA if peers_ns <= _NOT_AT_ALL * own_ns else LONGER
