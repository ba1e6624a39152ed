"""Two runs compared: graph breaks, recompilations and failures that are new or gone, and time gained or lost per line.

Code moves between two runs: a line is found again by its file and function, then by the nearest line; if the whole tree
has moved, by the file's name.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Hashable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from rankscope.analyze.compare.pairing import Spot, paired_spots
from rankscope.analyze.compile.causes import causes_of, phrase
from rankscope.analyze.compile.chains import chains_of, is_limit
from rankscope.analyze.compile.ledger import PHASES
from rankscope.analyze.compile.sites import Site, sites_of
from rankscope.analyze.compile.wording import first_line
from rankscope.model.compile_changes import (
    SCHEMA_NAME,
    CacheChange,
    Change,
    CompileChanges,
    Kind,
    RunTotals,
    TimeChange,
)
from rankscope.model.tables import MISSING, Table, Trace

_WORST_FIRST: tuple[Kind, ...] = ("new", "more", "fewer", "gone")
_PASSES = ("forward_ns", "backward_ns", "runtime_ns")


class Counted(NamedTuple):
    """How often something happened, on the rank with the most, and what it is in words."""

    n: int
    what: str


Counts = dict[Spot, Counted]


def compare_runs(old: Trace, new: Trace) -> CompileChanges:
    """The newest run of each."""
    before, after = _Side(old), _Side(new)
    breaks, recompiles, failures = (
        tuple(_changes(ours, theirs))
        for ours, theirs in zip(
            (before.graph_breaks(), before.recompiles(), before.failures()),
            (after.graph_breaks(), after.recompiles(), after.failures()),
            strict=True,
        )
    )
    return CompileChanges(
        schema=SCHEMA_NAME,
        old=before.totals(),
        new=after.totals(),
        graph_breaks=breaks,
        recompiles=recompiles,
        failures=failures,
        caches=_cache_changes(before.look_ups(), after.look_ups()),
        lines=tuple(_line_times(before.line_times(), after.line_times())),
        phases=_part_times(before, after, PHASES),
        passes=_part_times(before, after, _PASSES),
        is_worse=any(change.kind in ("new", "more") for change in (*breaks, *recompiles, *failures)),
    )


class _Side:
    """The newest run of a trace, counted."""

    def __init__(self, trace: Trace) -> None:
        self.trace = trace
        logs = trace.table("compile_logs")
        self.run = int(logs.array("run").max(initial=0))
        is_own = logs.array("run") == self.run
        self.files = set(logs.array("file_id")[is_own].tolist())
        self.ranks = tuple(sorted(set(logs.array("rank")[is_own].tolist())))
        ledger = trace.table("compile_ledger")
        self.ledger: Table = ledger.take((ledger.array("run") == self.run).nonzero()[0])

    def totals(self) -> RunTotals:
        return RunTotals(
            paths=self.trace.paths,
            ranks=tuple(rank for rank in self.ranks if rank >= 0),
            n_earlier_runs=self.run,
            n_compilations=self._most("n_compilations"),
            n_recompiles=sum(counted.n for counted in self.recompiles().values()),
            n_graph_breaks=sum(counted.n for counted in self.graph_breaks().values()),
            n_failures=sum(counted.n for counted in self.failures().values()),
            total_ns=self.mean_ns("total_ns"),
        )

    def _most(self, column: str) -> int:
        per_rank: Counter[int] = Counter()
        ranks, values = self.ledger.array("rank").tolist(), self.ledger.array(column).tolist()
        for rank, value in zip(ranks, values, strict=True):
            per_rank[rank] += value
        return max(per_rank.values(), default=0)

    def mean_ns(self, column: str) -> int:
        return int(self.ledger.array(column).sum()) // max(len(self.ranks), 1)

    def _rows(self, table: str) -> Iterator[dict[str, Any]]:
        return (row for row in self.trace.table(table).rows() if row["file_id"] in self.files)

    def graph_breaks(self) -> Counts:
        return _counted(
            (row["rank"], Spot(row["file"], row["line"], row["function"], row["reason"]), row["reason"])
            for row in self._rows("graph_breaks")
        )

    def recompiles(self) -> Counts:
        """By function and by what changed; the values it changed to are not compared."""
        return _counted(
            (rank, _spot(chain.site, _condition(cause.guard)), words)
            for chain in chains_of(self.trace)
            if chain.run == self.run
            for rank, versions in chain.versions.items()
            for cause in causes_of([version for version in versions if version.is_recompile])
            for words in [phrase(cause, chain.site)] * len(cause.versions)
        )

    def failures(self) -> Counts:
        sites = sites_of(self.trace)
        failed = (row for row in self._rows("compilations") if row["status"] == "failed")
        return _counted((row["rank"], _spot(sites.find(row), what := _failure(row)), what) for row in failed)

    def look_ups(self) -> dict[str, Counter[str]]:
        outcomes: dict[str, Counter[str]] = defaultdict(Counter)
        for row in self._rows("cache_events"):
            outcomes[row["cache"]][row["outcome"]] += 1
        return outcomes

    def line_times(self) -> dict[Spot, int]:
        times: dict[Spot, int] = defaultdict(int)
        for row in self.ledger.rows():
            times[Spot(row["file"], row["line"], row["function"])] += row["total_ns"]
        return {spot: total // max(len(self.ranks), 1) for spot, total in times.items()}


def _spot(site: Site, detail: Hashable) -> Spot:
    return Spot(site.file, site.line, site.function, detail)


def _condition(guard: Mapping[str, Any]) -> Hashable:
    """What was guarded; without a subject, only the guard's text distinguishes conditions."""
    return guard["cause"], guard["subject"] or guard["guard"], guard["dimension"]


def _failure(row: Mapping[str, Any]) -> str:
    if is_limit(row["fail_type"], row["fail_reason"]):
        return "the recompile limit was reached: eager from then on"
    return f"{row['fail_type']}: {first_line(row['fail_reason'])}".strip(": ")


def _counted(seen: Iterator[tuple[int, Spot, str]]) -> Counts:
    per_rank: dict[Spot, Counter[int]] = defaultdict(Counter)
    words: dict[Spot, str] = {}
    for rank, spot, what in seen:
        per_rank[spot][rank] += 1
        words.setdefault(spot, what)
    return {spot: Counted(max(ranks.values()), words[spot]) for spot, ranks in per_rank.items()}


def _changes(old: Counts, new: Counts) -> list[Change]:
    changes = []
    for ours, theirs in paired_spots(old, new):
        n_old, n_new = (old[ours].n if ours else 0), (new[theirs].n if theirs else 0)
        spot, counts = (theirs, new) if theirs else (ours, old)
        if n_old == n_new or spot is None:
            continue
        kind: Kind = "new" if not n_old else "gone" if not n_new else "more" if n_new > n_old else "fewer"
        changes.append(Change(kind, spot.file, spot.line, spot.function, counts[spot].what, n_old, n_new))
    return sorted(changes, key=lambda change: (_WORST_FIRST.index(change.kind), change.file, change.line, change.what))


def _line_times(old: Mapping[Spot, int], new: Mapping[Spot, int]) -> list[TimeChange]:
    """What got slower first."""
    changes = []
    for ours, theirs in paired_spots(old, new):
        spot = theirs or ours
        if spot is not None:
            times = (old[ours] if ours else 0), (new[theirs] if theirs else 0)
            old_line = ours.line if ours else MISSING
            changes.append(TimeChange(spot.function, spot.file, theirs.line if theirs else MISSING, old_line, *times))
    return sorted(changes, key=lambda change: (-change.change_ns, change.file, change.line))


def _part_times(old: _Side, new: _Side, columns: Sequence[str]) -> tuple[TimeChange, ...]:
    return tuple(
        TimeChange(name.removesuffix("_ns"), "", MISSING, MISSING, old.mean_ns(name), new.mean_ns(name))
        for name in columns
    )


def _cache_changes(old: Mapping[str, Counter[str]], new: Mapping[str, Counter[str]]) -> tuple[CacheChange, ...]:
    outcomes = ("hit", "miss", "bypass")
    none: Counter[str] = Counter()
    return tuple(
        CacheChange(cache, *(side.get(cache, none)[outcome] for side in (old, new) for outcome in outcomes))
        for cache in sorted({*old, *new})
    )
