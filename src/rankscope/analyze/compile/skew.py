"""C413: a rank that compiles much longer than its peers, which wait for it."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from rankscope.analyze.compile.divergence import ONE_RANK, runs_of_ranks
from rankscope.analyze.compile.sites import NOWHERE, Compilation, Site, sites_of
from rankscope.analyze.compile.wording import run_note, times
from rankscope.analyze.registry import Effect, Skipped, rule
from rankscope.model.finding import Comparison, Evidence, Finding, Side, format_duration, ranks_phrase
from rankscope.model.tables import Trace

_MIN_EXCESS_NS = 1_000_000_000
_MIN_RATIO = 1.5
_MAX_FUNCTIONS = 4


class _Excess(NamedTuple):
    """How much longer a rank compiled than the median rank, in total or in one function."""

    own_ns: int
    median_ns: int

    @property
    def ns(self) -> int:
        return self.own_ns - self.median_ns

    @property
    def is_far(self) -> bool:
        return self.ns > _MIN_EXCESS_NS and self.own_ns > _MIN_RATIO * self.median_ns


@rule("C413", "compile-skew", needs=("compile_ledger",))
def compile_skew(trace: Trace) -> Iterator[Finding | Effect | Skipped]:
    """A rank spends much more time compiling than its peers, and they wait for it.

    What it means: every rank compiles for itself, so the job continues only when the slowest one is done. The time this
    rank takes beyond the median rank is lost on all of them.

    Why it happens: its compile cache is cold while those of its peers are warm (a new host, a cache folder that is not
    shared); it recompiles more often because its inputs differ; its host is slower or busy with something else.

    What to do: look at the function with the largest difference first. Give all ranks the same cache (a shared
    TORCHINDUCTOR_CACHE_DIR, or the remote cache), and inputs of the same shapes.

    What could fool it: ranks that compile at different times do not have to wait for each other. Ranks whose log ends
    inside a compilation are left out.
    """
    if not runs_of_ranks(trace):
        yield ONE_RANK
        return
    for run in runs_of_ranks(trace):
        ranks = [rank for rank in run.ranks if rank not in run.ended]
        spent = _spent(trace, run.number, ranks)
        totals = {rank: sum(by_rank[rank].total_ns for by_rank in spent.values()) for rank in ranks}
        if len(ranks) > 1 and (excess := {rank: more for rank in ranks if (more := _excess(totals, rank)).is_far}):
            yield _finding(trace, run.number, excess, spent)


class _Spent(NamedTuple):
    """What compiling one function cost one rank."""

    total_ns: int = 0
    n_compilations: int = 0


BySite = dict[Site, dict[int, _Spent]]


def _spent(trace: Trace, run: int, ranks: Sequence[int]) -> BySite:
    """The ledger by function. Only the compilations say whether a site is a call of torch's wrapper."""
    known = {site[:3]: site for site in sites_of(trace).of_row}
    spent: BySite = {}
    for row in trace.table("compile_ledger").rows():
        if row["run"] == run and row["rank"] in ranks:
            function = (row["file"], row["line"], row["function"])
            by_rank = spent.setdefault(known.get(function, Site(*function)), dict.fromkeys(ranks, _Spent()))
            by_rank[row["rank"]] = _Spent(row["total_ns"], row["n_compilations"])
    return spent


def _excess(values: Mapping[int, int], rank: int) -> _Excess:
    return _Excess(values[rank], _median(values))


def _median(values: Mapping[int, int]) -> int:
    """For an even number the lower of the middle two, so that of two ranks the slower one is the odd one."""
    return sorted(values.values())[(len(values) - 1) // 2]


def _finding(trace: Trace, run: int, excess: Mapping[int, _Excess], spent: BySite) -> Finding:
    slowest = max(excess, key=lambda rank: excess[rank].ns)
    most = excess[slowest]
    functions = _by_function(slowest, spent)
    site, main = functions[0]
    others = sorted(set(excess) - {slowest})
    also = f"{ranks_phrase(others)} {'compile' if len(others) > 1 else 'compiles'} far longer than the median rank too"
    return Finding(
        severity="warning",
        certainty="likely",
        title=f"rank {slowest} compiled for {format_duration(most.own_ns)}, the median rank for "
        f"{format_duration(most.median_ns)}: {format_duration(main.ns)} of it in {site.name}",
        ranks=(slowest, *others),
        location=site.location,
        evidence=Evidence(
            certain=tuple(_reasons(trace, run, slowest, site, spent[site])),
            likely=(f"its peers wait {format_duration(most.ns)} for it, in the next collective at the latest",),
            notes=(
                *((also,) if others else ()),
                *run_note(run, trace.table("compile_logs").array("run").tolist()),
            ),
            comparison=_comparison(slowest, functions),
            cost_ns=most.ns,
            facts={"run": run, "own_ns": most.own_ns, "median_ns": most.median_ns},
        ),
        help="give all ranks the same compile cache and inputs of the same shapes, first for the function on top",
    )


def _by_function(rank: int, spent: BySite) -> list[tuple[Site, _Excess]]:
    """The largest difference first."""
    excesses = [
        (site, _excess({other: share.total_ns for other, share in by_rank.items()}, rank))
        for site, by_rank in spent.items()
    ]
    return sorted(excesses, key=lambda item: -item[1].ns)


def _comparison(rank: int, functions: Sequence[tuple[Site, _Excess]]) -> Comparison:
    shown = functions[:_MAX_FUNCTIONS]
    return Comparison(
        "function",
        tuple(f"{site.function} ({site.place})" if site.file else site.name for site, _ in shown),
        (
            Side("median rank", (), tuple(format_duration(excess.median_ns) for _, excess in shown)),
            Side(f"rank {rank}", (rank,), tuple(format_duration(excess.own_ns) for _, excess in shown)),
        ),
        mark=0,
    )


def _reasons(trace: Trace, run: int, rank: int, site: Site, by_rank: Mapping[int, _Spent]) -> Iterator[str]:
    """What the rank did differently from its peers in this function: number of compilations, cache lookups."""
    compiled = {other: spent.n_compilations for other, spent in by_rank.items()}
    usual = _median(compiled)
    if compiled[rank] > usual:
        yield f"it compiled {site.name} {times(compiled[rank])}, the median rank {times(usual) if usual else 'never'}"
    outcomes = _look_ups(trace, run, site)
    n_misses = outcomes[rank]["miss"]
    have_hit = any(outcomes[other]["hit"] > outcomes[rank]["hit"] for other in by_rank)
    if have_hit and n_misses > _median({other: outcomes[other]["miss"] for other in by_rank}):
        yield f"its compile caches missed {times(n_misses)} where those of its peers hit"


def _look_ups(trace: Trace, run: int, site: Site) -> defaultdict[int, Counter[str]]:
    """Per rank, how often each outcome occurred, for the lookups of one function."""
    sites = sites_of(trace)
    outcomes: defaultdict[int, Counter[str]] = defaultdict(Counter)
    events = trace.table("cache_events")
    keys: Iterator[Compilation] = zip(events.array("file_id").tolist(), events.text("compile_id").tolist(), strict=True)
    columns = zip(keys, events.array("rank").tolist(), events.text("outcome").tolist(), strict=True)
    for key, rank, outcome in columns:
        if sites.run(key[0]) == run and sites.of.get(key, NOWHERE) == site:
            outcomes[rank][outcome] += 1
    return outcomes
