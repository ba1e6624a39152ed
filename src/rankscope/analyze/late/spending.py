"""What a rank's main thread did in given times: exact where there are marks, elsewhere as sampled."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np

from rankscope.analyze.intervals import Intervals, difference, overlap, union
from rankscope.model.tables import Array, Trace

LINE = "line"
# Of marks that lie within each other, the first of these counts.
RECORDING = "recording"  # the collector itself: no time of the job's
MARKS = ("gc", "compile", "saving", "loading", "optimizer", "evaluation")
# How the main thread was found.
RUNS, SLEEPS, FUTEX, TRANSFERS, WAITS = "runs", "sleeps", "futex", "transfers", "waits"
_SLEEP = ("clock_nanosleep", "nanosleep", "hrtimer_nanosleep")
_TRANSFER = (
    "read", "write", "pread64", "pwrite64", "readv", "writev", "fsync", "fdatasync", "recvfrom", "sendto", "recvmsg",
    "sendmsg", "connect", "accept", "poll", "ppoll", "select", "pselect6", "epoll_wait", "epoll_pwait", "wait4",
    "waitid", "openat", "flock", "pipe_read", "pipe_write", "unix_stream", "sk_wait_data", "do_wait", "folio_wait",
)  # fmt: skip


class Part(NamedTuple):
    kind: str  # one of MARKS, or LINE
    site: str  # of a line


@dataclass
class Spent:
    """Nanoseconds per part, and how the thread was found there."""

    parts: dict[Part, float] = field(default_factory=lambda: defaultdict(float))
    sites: dict[Part, dict[str, float]] = field(default_factory=dict)  # where samples found a mark
    inside: dict[Part, dict[str, float]] = field(default_factory=dict)  # of these: in no library that the line calls
    manners: dict[Part, dict[str, float]] = field(default_factory=dict)
    waits_in: dict[Part, dict[str, float]] = field(default_factory=dict)
    frames: dict[Part, dict[str, float]] = field(default_factory=dict)
    total_ns: float = 0.0
    n_samples: int = 0
    running_ns: float = 0.0  # on a core
    delayed_ns: float = 0.0  # waiting for one
    sampler_late_ns: float = 0.0  # the median: how long the sampler waits for Python's lock or for a core
    python_share: float = 0.0  # of a core, or of the time of all its Python threads, that the others of these used


def together(spent: Spent, peers: Sequence[Spent], key: Callable[[str], str]) -> tuple[Spent, tuple[Spent, ...]]:
    """The same with the lines joined that have a key in common, under the one at which the rank differs most."""

    def excess(part: Part) -> float:
        return spent.parts[part] - float(np.median([each.parts.get(part, 0.0) for each in peers]))

    first: dict[str, Part] = {}
    for part in sorted((part for part in spent.parts if part.kind == LINE), key=excess, reverse=True):
        first.setdefault(key(part.site), part)
    return _renamed(spent, key, first), tuple(_renamed(each, key, first) for each in peers)


def _renamed(spent: Spent, key: Callable[[str], str], first: dict[str, Part]) -> Spent:
    def name(part: Part) -> Part:
        return first.get(key(part.site), part) if part.kind == LINE else part

    def joined(sums: dict[Part, dict[str, float]]) -> dict[Part, dict[str, float]]:
        made: dict[Part, dict[str, float]] = {}
        for part, names in sums.items():
            for each, ns in names.items():
                _add(made, name(part), each, ns)
        return made

    parts: dict[Part, float] = defaultdict(float)
    for part, ns in spent.parts.items():
        parts[name(part)] += ns
    return replace(
        spent,
        parts=parts,
        sites=joined(spent.sites),
        inside=joined(spent.inside),
        manners=joined(spent.manners),
        waits_in=joined(spent.waits_in),
        frames=joined(spent.frames),
    )


def spent_in(trace: Trace, rank: int, windows: Array) -> Spent:
    """What the rank did in these windows, on its own clock."""
    whole = union(windows[:, 0], windows[:, 1], np.zeros(len(windows), np.int64))
    [(_, start, end)] = _marks(trace, rank, (RECORDING,))
    whole = difference(whole, union(start, end, np.zeros(len(start), np.int64)))
    spent = Spent(total_ns=float(whole.length.sum()))
    marked: list[tuple[str, Intervals]] = []
    rest = whole
    for kind, start, end in _marks(trace, rank, MARKS):
        of_kind = overlap(rest, union(start, end, np.zeros(len(start), np.int64)))
        rest = difference(rest, of_kind)
        marked.append((kind, of_kind))
        spent.parts[Part(kind, "")] = float(of_kind.length.sum())
    _add_samples(trace, rank, spent, [*marked, (LINE, rest)])
    return spent


def _marks(trace: Trace, rank: int, chosen: Sequence[str]) -> Sequence[tuple[str, Array, Array]]:
    table = trace.sql("SELECT kind, start_ns, end_ns FROM host_marks WHERE rank = $rank", rank=rank).columns()
    kinds = np.asarray(table["kind"].tolist(), object)
    return [(kind, table["start_ns"][kinds == kind], table["end_ns"][kinds == kind]) for kind in chosen]


def _add_samples(trace: Trace, rank: int, spent: Spent, areas: Sequence[tuple[str, Intervals]]) -> None:
    """A sample counts for the time since the one before it, scaled so that the lines share what no mark covers."""
    table = trace.sql(
        """
        SELECT time_ns, coalesce(site, '') AS site, coalesce(frame, '') AS frame, state, waits_in, late_ns,
               cpu_ns, delayed_ns
        FROM host_samples WHERE rank = $rank ORDER BY time_ns
        """,
        rank=rank,
    ).columns()
    time = table["time_ns"]
    gap = np.diff(time, prepend=time[:1]) if len(time) else time
    texts = {name: table[name].tolist() for name in ("site", "frame", "state", "waits_in")}
    everywhere: list[int] = []
    for kind, area in areas:
        inside = np.flatnonzero(_contains(area, time))
        everywhere += inside.tolist()
        weight = float(gap[inside].sum())
        scale = float(area.length.sum()) / weight if weight else 0.0
        for at in inside.tolist():
            site = texts["site"][at] or texts["frame"][at]
            part = Part(kind, site if kind == LINE else "")
            ns = float(gap[at]) * scale
            if kind == LINE:
                spent.parts[part] += ns
            else:
                _add(spent.sites, part, site, ns)
                if site == texts["frame"][at]:
                    _add(spent.inside, part, site, ns)
            _add(spent.manners, part, _manner(texts["state"][at], texts["waits_in"][at]), ns)
            _add(spent.waits_in, part, texts["waits_in"][at] or "", ns)
            _add(spent.frames, part, texts["frame"][at], ns)
    spent.n_samples = len(everywhere)
    if everywhere:
        passed = max(float(gap[everywhere].sum()), 1.0)
        spent.running_ns, spent.delayed_ns = (
            spent.total_ns * float(table[name][everywhere].sum()) / passed for name in ("cpu_ns", "delayed_ns")
        )
        spent.python_share = _of_python_threads(trace, rank)
        spent.sampler_late_ns = float(np.median(table["late_ns"][everywhere]))


def _of_python_threads(trace: Trace, rank: int) -> float:
    """How much of a core its other Python threads used, over all of the job: who keeps the GIL does so all the time.

    Where cores are short they get less of one: then their part of what all threads that run Python used counts.
    """
    [(used, first, last)] = trace.sql(
        "SELECT sum(cpu_ns) FILTER (site <> '' OR frame <> ''), min(time_ns), max(time_ns) FROM host_threads "
        "WHERE rank = $rank",
        rank=rank,
    ).rows()
    [(main,)] = trace.sql("SELECT sum(cpu_ns) FROM host_samples WHERE rank = $rank", rank=rank).rows()
    spent = float(used or 0)
    return max(spent / max((last or 0) - (first or 0), 1), spent / max(spent + float(main or 0), 1))


def _contains(area: Intervals, time: Array) -> Array:
    if not len(area.start):
        return np.zeros(len(time), bool)
    position = np.searchsorted(area.start, time, "right") - 1
    return (position >= 0) & (time < area.end[np.maximum(position, 0)])


def _manner(state: str | None, waits_in: str | None) -> str:
    """The kernel's functions have longer names than the calls that lead to them: futex_wait_queue for futex."""
    if state == "R":
        return RUNS
    call = (waits_in or "").split(" ")[0]
    if call.startswith("futex"):
        return FUTEX
    if call.startswith(_SLEEP):
        return SLEEPS
    return TRANSFERS if state == "D" or call.startswith(_TRANSFER) else WAITS


def _add(sums: dict[Part, dict[str, float]], part: Part, name: str, ns: float) -> None:
    of_part = sums.setdefault(part, defaultdict(float))
    of_part[name] += ns
