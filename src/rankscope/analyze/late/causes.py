"""The cause of a rank's delays: the part of its time that its median peer does not spend."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from rankscope.analyze.derived import derived
from rankscope.analyze.late.arrivals import Delays, delays_of
from rankscope.analyze.late.profiled import kind_of_work
from rankscope.analyze.late.spending import FUTEX, LINE, RUNS, SLEEPS, TRANSFERS, Part, Spent, spent_in, together
from rankscope.model.finding import Location
from rankscope.model.numbers import integer, is_number
from rankscope.model.tables import Trace

GC, COMPILE, SAVING, LOADING, OPTIMIZER = "gc", "compile", "saving", "loading", "optimizer"
EVALUATION = "evaluation"
TRANSFER, LOCK, PYTHON_LOCK, SLEEP = "transfer", "lock", "python-lock", "sleep"
LONGER, EXTRA = "longer", "extra"
_EXACT = (GC, COMPILE, SAVING, LOADING, EVALUATION, SLEEP, TRANSFER)  # what is no guess even if it happens once
_OF_EVERY_LINE = ("", LOCK, LONGER, EXTRA, OPTIMIZER, EVALUATION, GC, COMPILE)  # or the GIL is kept
_EXPLAINS = 0.5  # of the delay
_MOSTLY = 0.5  # of the samples at a line
_COMPUTES = 0.4  # of the delay must be time on a core, or follow from it
_TWICE = 2.0  # the time on a core of its peers: no other process makes that
_NOT_AT_ALL = 0.02  # of the steps in which the rank is at a line: peers that are in fewer do not run it
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
        if self.kind == PYTHON_LOCK:  # every line is slow
            return None
        inside = self.most(self.spent.inside) if self.kind == LOADING else ""  # the dataset's own line, if it is here
        return location_of(inside or self.part.site or self.most(self.spent.sites))

    def most(self, sums: dict[Part, dict[str, float]]) -> str:
        """The name that most of the samples of the part have."""
        names = {name: ns for name, ns in sums.get(self.part, {}).items() if name}
        return max(names, key=lambda name: names[name], default="")


def location_of(site: str) -> Location | None:
    file_and_line, _, function = site.partition(" in ")
    file, _, line = file_and_line.rpartition(":")
    return Location(file, integer(line), function) if file and is_number(line) else None


def causes_of(trace: Trace) -> list[Cause]:
    """Of the ranks that others wait for, where something explains half of it; the most expensive one first."""
    return derived(trace, _causes)


def _causes(trace: Trace) -> list[Cause]:
    return [cause for delays in delays_of(trace) if (cause := _cause(trace, delays)) is not None]


def _cause(trace: Trace, delays: Delays) -> Cause | None:
    spent = spent_in(trace, delays.rank, delays.windows[delays.rank])
    chosen = delays.peers[:: -(-len(delays.peers) // _MAX_PEERS)]
    peers = tuple(spent_in(trace, peer, delays.windows[peer]) for peer in chosen)
    if spent.n_samples < _MIN_SAMPLES and not any(part.kind != LINE for part in spent.parts):
        return None
    excess = spent.total_ns - float(np.median([each.total_ns for each in peers]))
    if excess <= 0 or not spent.parts:
        return None
    spent, peers, part = _most(spent, peers, excess)
    own_ns, peers_ns = spent.parts[part], _typical(peers, part)
    kind = ""
    if own_ns - peers_ns >= _EXPLAINS * excess:
        kind = part.kind if part.kind != LINE else _kind_of_line(spent, part, own_ns)
    if kind in _OF_EVERY_LINE and spent.n_samples >= _MIN_SAMPLES and _is_kept_from_python(spent, peers):
        kind = PYTHON_LOCK
    if kind == LONGER:
        kind = EXTRA if _runs_nowhere_else(trace, delays, part) else kind_of_work(trace, delays.rank, chosen) or LONGER
        if not _computes_more(spent, peers, excess, is_proven=kind != LONGER):
            kind = ""  # it was ready to run, but not on a core: its line is chance
    if not kind or (not delays.is_habit and kind not in _EXACT):
        return None
    return Cause(kind, delays, part, own_ns, peers_ns, spent, peers)


def _most(spent: Spent, peers: tuple[Spent, ...], excess: float) -> tuple[Spent, tuple[Spent, ...], Part]:
    """The part in which the rank differs most; if no line explains the delay, of whole functions."""

    def widest(spent: Spent, peers: tuple[Spent, ...]) -> Part:
        return max(spent.parts, key=lambda part: spent.parts[part] - _typical(peers, part))

    part = widest(spent, peers)
    if spent.parts[part] - _typical(peers, part) < _EXPLAINS * excess:
        spent, peers = together(spent, peers, _function_of)
        part = widest(spent, peers)
    return spent, peers, part


def _function_of(site: str) -> str:
    place, _, function = site.partition(" in ")
    return f"{place.rpartition(':')[0]} {function}"


def _runs_nowhere_else(trace: Trace, delays: Delays, part: Part) -> bool:
    """Whether no peer was ever found at the line, or in hardly any step. Python code is seen only when it gives up the
    GIL, so what is short is found in few of the steps that run it.
    """
    sightings = trace.sql(
        "SELECT rank, count(DISTINCT step) FROM host_samples WHERE coalesce(site, frame) = $site GROUP BY rank",
        site=part.site,
    ).rows()
    steps: dict[int, int] = dict(sightings)
    most = max((steps.get(peer, 0) for peer in delays.peers), default=0)
    return most < max(1, _NOT_AT_ALL * steps.get(delays.rank, 0))


def _typical(peers: tuple[Spent, ...], part: Part) -> float:
    return float(np.median([each.parts.get(part, 0.0) for each in peers]))


def _computes_more(spent: Spent, peers: tuple[Spent, ...], excess: float, *, is_proven: bool) -> bool:
    """On a core, as the kernel counts it. Where cores are short, all that is computed takes longer by as much; but
    that counts only where something else shows that there is more to compute, or by how much it is more.
    """
    usual = float(np.median([each.running_ns for each in peers]))
    more = spent.running_ns - usual
    is_proven |= spent.running_ns >= _TWICE * usual
    stretched = 1 + spent.delayed_ns / spent.running_ns if is_proven and spent.running_ns else 1.0
    return more * stretched >= _COMPUTES * excess


def _is_kept_from_python(spent: Spent, peers: tuple[Spent, ...]) -> bool:
    """Another thread keeps the GIL, which slows down every line: the one that takes longest is not to blame."""
    usual = float(np.median([each.sampler_late_ns for each in peers]))
    is_busy = spent.python_share >= _BUSY + float(np.median([each.python_share for each in peers]))
    return is_busy and spent.sampler_late_ns >= usual + _HELD_NS


def _is_inside_torch(spent: Spent, part: Part) -> bool:
    frames = spent.frames.get(part, {})
    return sum(ns for frame, ns in frames.items() if "/torch/" in frame) >= _MOSTLY * sum(frames.values())


def _kind_of_line(spent: Spent, part: Part, own_ns: float) -> str:
    manners = spent.manners.get(part, {})
    for manner, kind in ((SLEEPS, SLEEP), (FUTEX, LOCK), (TRANSFERS, TRANSFER)):
        if manners.get(manner, 0.0) >= _MOSTLY * own_ns:
            # Inside torch it waits for torch's own threads: that is no lock of the job, and says nothing.
            return "" if kind == LOCK and _is_inside_torch(spent, part) else kind
    return LONGER if manners.get(RUNS, 0.0) >= _MOSTLY * own_ns else ""
