"""C407: graphs that were compiled although a cache could have had them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from rankscope.analyze.compile.cache_keys import GRAPH, Miss, logs_components, misses_of
from rankscope.analyze.compile.sites import sites_of
from rankscope.analyze.compile.wording import cost_on, listed, most, ranks_of, run_note
from rankscope.analyze.registry import Effect, rule
from rankscope.model.finding import Comparison, Evidence, Finding, Side, count_noun
from rankscope.model.tables import Trace

Row = dict[str, Any]
CACHES = {"fx_graph": "FX graph cache", "aotautograd": "AOTAutograd cache"}
_MAX_CHANGES = 6
_KEEP_VERSIONS = (
    "look at the recompilations instead (C401, C402): a cache cannot help with inputs, graphs or settings it has not "
    "seen before"
)
_UNLOGGED = (
    "without TORCH_LOGS=+aot, the AOTAutograd cache logs nothing about its keys: the reason for its misses is unknown"
)
_KEEP = (
    "keep the TORCHINDUCTOR_CACHE_DIR folder between runs and share it between the ranks of a host, or set "
    "TORCHINDUCTOR_FX_GRAPH_REMOTE_CACHE=1; torch.compiler.save_cache_artifacts moves a cache to other machines"
)


@rule("C407", "cache-miss", needs=("cache_events",))
def cache_miss(trace: Trace) -> Iterator[Finding | Effect]:
    """Graphs were compiled because the compile cache did not have them, or had them under a different key.

    What it means: a lookup key is made from the graph, the inputs, the settings and the versions. If the same lookup
    was made in an earlier run, by another rank, or for an earlier version of the function in the same process, the two
    keys are compared and the components that differ are named. A cold cache is not a fault in itself: it is reported
    once per run, with the time a warm one would save.

    Why it happens: a cache folder that is not kept or not shared, a setting that differs between runs or ranks, inputs
    of a different shape or on a different device, a new version of torch, changed code.

    What to do: make the named component the same in both lookups, or keep and share the cache.

    What could fool it: lookups are paired by function, compilation number and position, and compared with the most
    similar of the last four before them. Without TORCH_LOGS=+aot, torch does not log the key components of the
    AOTAutograd cache: its misses are then counted but not explained. At most 20 misses per cache are compared, the most
    expensive first.
    """
    sites = sites_of(trace)
    runs = sites.run_of.values()
    misses = _explained_misses(trace)
    is_logged = logs_components(trace, "aotautograd")
    for run, lookups in _lookups_by_run(trace).items():
        in_run = [miss for miss in misses if sites.run(miss.event["file_id"]) == run]
        explained = [miss for miss in in_run if miss.changes and not miss.is_other_graph]
        notes = run_note(run, runs)
        yield from _by_changes(explained, notes)
        yield from _describe_lost(in_run, notes)
        if lookups.n_misses:
            is_unlogged = ("aotautograd", "miss") in lookups.outcomes and not is_logged
            yield _summary(lookups, in_run, run == min(runs), (*((_UNLOGGED,) if is_unlogged else ()), *notes))


def _explained_misses(trace: Trace) -> list[Miss]:
    """From the AOTAutograd cache, only those whose compilation did not miss the FX graph cache for the same reason."""
    misses = misses_of(trace, "fx_graph")
    known = {miss.compilation for miss in misses}
    others = misses_of(trace, "aotautograd")
    return misses + [miss for miss in others if miss.changes and miss.compilation not in known]


class _Lookups(NamedTuple):
    """What one run looked up in the caches."""

    outcomes: dict[tuple[str, str], int]
    costs: dict[int, int]  # by rank: compiling what was not in the caches

    @property
    def n_misses(self) -> int:
        return sum(count for (_, outcome), count in self.outcomes.items() if outcome == "miss")

    @property
    def n_hits(self) -> int:
        return sum(count for (_, outcome), count in self.outcomes.items() if outcome == "hit")


def _lookups_by_run(trace: Trace) -> dict[int, _Lookups]:
    sites, by_run = sites_of(trace), dict[int, _Lookups]()
    events = trace.table("cache_events")
    columns = [events.array("file_id").tolist(), events.array("rank").tolist(), events.text("cache").tolist()]
    columns += [events.text("outcome").tolist(), events.array("taken_ns").tolist()]
    for file_id, rank, cache, outcome, taken in zip(*columns, strict=True):
        lookups = by_run.setdefault(sites.run(file_id), _Lookups({}, {}))
        lookups.outcomes[cache, outcome] = lookups.outcomes.get((cache, outcome), 0) + 1
        if outcome == "miss":
            lookups.costs[rank] = lookups.costs.get(rank, 0) + max(taken, 0)
    return dict(sorted(by_run.items()))


def _by_changes(misses: list[Miss], notes: tuple[str, ...]) -> Iterator[Finding]:
    """One finding for all misses caused by the same components."""
    groups: dict[tuple[Any, ...], list[Miss]] = {}
    for miss in misses:
        where = (miss.is_same_process, miss.is_same_run, miss.run_before)
        groups.setdefault((where, tuple(change.component for change in miss.changes)), []).append(miss)
    for ((_, is_same_run, _), components), alike in groups.items():
        costs = _taken(alike)
        first = alike[0]
        labels = _labels(first)
        shown = first.changes[:_MAX_CHANGES]
        n_others = len(first.changes) - len(shown)
        yield Finding(
            severity="info" if is_same_run else "warning",
            certainty="certain",
            title=f"{_graphs(len(alike))} recompiled because {listed(components, 3)} "
            f"{'differs' if len(components) == 1 else 'differ'} {_between(first)}{_cost_text(costs)}",
            ranks=ranks_of(costs),
            location=first.site.location,
            evidence=Evidence(
                certain=(
                    "the graph itself is the same",
                    *((_more_components(n_others),) if n_others else ()),
                ),
                notes=(f"functions: {_functions(alike)}", *notes),
                comparison=Comparison(
                    "component",
                    tuple(change.component for change in shown),
                    (
                        Side(labels[0], (), tuple(change.old for change in shown)),
                        Side(labels[1], (), tuple(change.new for change in shown)),
                    ),
                ),
                cost_ns=most(costs) or None,
                facts={
                    "components": list(components),
                    "keys": [[miss.before["key"], miss.event["key"]] for miss in alike],
                    "n": len(alike),
                },
            ),
            help=_make_equal(components),
        )


def _cost_text(costs: dict[int, int]) -> str:
    return f" ({cost_on(most(costs), len(costs))})" if most(costs) else ""


def _more_components(count: int) -> str:
    return f"{count_noun(count, 'more component')} of the key {'differs' if count == 1 else 'differ'}"


def _make_equal(components: Iterable[str]) -> str:
    names = list(components)
    if all("config" in name for name in names):
        return f"set {listed(names, 3)} to the same value everywhere, before anything is compiled"
    if all(name.startswith("example_inputs") for name in names):
        return "call with inputs of the same shape, dtype and device, or make the differing dimension dynamic"
    return "make the components above equal, or accept one compilation for each"


def _labels(miss: Miss) -> tuple[str, str]:
    if miss.is_same_process:
        return f"[{miss.before['compile_id']}]", f"[{miss.event['compile_id']}]"
    if miss.is_same_run:
        return f"rank {miss.before['rank']}", f"rank {miss.event['rank']}"
    return f"run {miss.run_before}", f"run {miss.run}"


def _between(miss: Miss) -> str:
    if miss.is_same_process:
        return "from what this process compiled before"
    return "between ranks" if miss.is_same_run else f"from run {miss.run_before}"


def _graphs(count: int) -> str:
    return f"{count_noun(count, 'graph')} {'was' if count == 1 else 'were'}"


def _functions(misses: list[Miss]) -> str:
    return listed((f"{miss.site.name} [{miss.event['compile_id']}]" for miss in misses), 4)


def _taken(misses: list[Miss]) -> dict[int, int]:
    costs: dict[int, int] = {}
    for miss in misses:
        rank = miss.event["rank"]
        costs[rank] = costs.get(rank, 0) + max(miss.event["taken_ns"], 0)
    return costs


def _describe_lost(misses: list[Miss], notes: tuple[str, ...]) -> Iterator[Finding]:
    """Keys that were stored in a cache before. Ranks that compile at the same time cannot have each other's."""
    again = [miss for miss in misses if miss.is_same_key]
    for lost, who, where in (
        ([miss for miss in again if not miss.is_same_run], "an earlier run", "in both runs"),
        ([miss for miss in again if miss.is_same_process], "the same process", "both times"),
    ):
        if not lost:
            continue
        costs = _taken(lost)
        yield Finding(
            severity="warning",
            certainty="certain",
            title=f"{_graphs(len(lost))} recompiled although {who} had already compiled "
            f"{'it' if len(lost) == 1 else 'them'}: the cache was not kept{_cost_text(costs)}",
            ranks=ranks_of(costs),
            location=lost[0].site.location,
            evidence=Evidence(
                certain=(f"the lookup keys are the same {where}",),
                notes=(f"functions: {_functions(lost)}", *notes),
                cost_ns=most(costs) or None,
                facts={"keys": [miss.event["key"] for miss in lost], "n": len(lost)},
            ),
            help=_KEEP,
        )


def _summary(lookups: _Lookups, misses: list[Miss], is_first: bool, notes: tuple[str, ...]) -> Finding:
    cost = most(lookups.costs)
    taken = cost_on(cost, len(lookups.costs)) if cost else ""
    changed = [miss for miss in misses if miss.is_other_graph]
    versions = [miss for miss in changed if miss.is_same_process]
    shared = [miss for miss in misses if miss.is_same_key and miss.is_same_run and not miss.is_same_process]
    elsewhere = [miss for miss in changed if not miss.is_same_process]
    return Finding(
        severity="info",
        certainty="certain",
        title=f"{_title(lookups, misses, is_first)}{f'; compiling what was missing took {taken}' if taken else ''}",
        ranks=ranks_of(lookups.costs),
        evidence=Evidence(
            certain=tuple(_outcome_lines(lookups)),
            notes=(
                *((f"changed since then in {_functions(elsewhere)}: {_changed(elsewhere)}",) if elsewhere else ()),
                *((f"{_graphs(len(shared))} compiled separately on several ranks",) if shared else ()),
                *notes,
            ),
            comparison=_versions_compared(versions),
            cost_ns=cost or None,
            facts={
                "outcomes": [[*key, count] for key, count in sorted(lookups.outcomes.items())],
                "changed_in_process": [
                    [miss.before["compile_id"], miss.event["compile_id"], [change.component for change in miss.changes]]
                    for miss in versions
                ],
            },
        ),
        help=_KEEP if len(misses) < lookups.n_misses else _KEEP_VERSIONS,
    )


def _title(lookups: _Lookups, misses: list[Miss], is_first: bool) -> str:
    """A cache is cold if nothing had been stored in it; earlier versions compiled by this process prove nothing."""
    n_all = lookups.n_misses + lookups.n_hits
    versions = [miss for miss in misses if miss.is_same_process and miss.changes]
    n_again = len({miss.compilation for miss in versions})
    again = ""
    if n_again:
        components = listed((_component_name(change.component) for miss in versions for change in miss.changes), 3)
        again = f", {count_noun(n_again, 'compilation')} because {components} changed within this process"
    if is_first and not lookups.n_hits and not n_again:
        return f"the compile caches were cold: {'all ' * (n_all > 1)}{count_noun(n_all, 'lookup')} missed"
    return f"{lookups.n_misses:,} of {count_noun(n_all, 'compile cache lookup')} missed{again}"


def _component_name(component: str) -> str:
    """`example_inputs[3]` is one of many: the finding's table says which."""
    return component.partition("[")[0] if component.startswith("example_inputs") else _own_name(component)


def _versions_compared(versions: list[Miss]) -> Comparison | None:
    """What the process compiled next to what it had compiled before, the most expensive first."""
    rows = [
        (f"{miss.site.name} [{miss.event['compile_id']}]: {_own_name(change.component)}", change)
        for miss in versions
        for change in miss.changes
    ][:_MAX_CHANGES]
    if not rows:
        return None
    return Comparison(
        "what changed",
        tuple(name for name, _ in rows),
        (
            Side("before", (), tuple(change.old for _, change in rows)),
            Side("now", (), tuple(change.new for _, change in rows)),
        ),
    )


def _own_name(component: str) -> str:
    return "the graph" if component == GRAPH else component


def _changed(misses: list[Miss]) -> str:
    """What else in the keys changed; for the graph itself only that it did."""
    others = [change for miss in misses for change in miss.changes if change.component != GRAPH]
    return listed(("the graph", *(f"{change.component} ({change.old} -> {change.new})" for change in others)), 3)


def _outcome_lines(lookups: _Lookups) -> Iterator[str]:
    for cache in sorted({cache for cache, _ in lookups.outcomes}):
        counts = {outcome: lookups.outcomes.get((cache, outcome), 0) for outcome in ("hit", "miss", "bypass")}
        plurals = {"hit": "hits", "miss": "misses", "bypass": "bypasses"}
        shown = ", ".join(count_noun(count, outcome, plurals[outcome]) for outcome, count in counts.items() if count)
        yield f"{CACHES.get(cache, cache)}: {shown}"
