"""C407 and C408: graphs that were compiled although a cache could have had them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from rankscope.analyze.compile.cache_keys import GRAPH, Miss, logs_components, misses_of
from rankscope.analyze.compile.chains import costs_of
from rankscope.analyze.compile.sites import Site, key_of, sites_of
from rankscope.analyze.compile.wording import cost_on, first_line, listed, most, ranks_of, run_note, shortened
from rankscope.analyze.registry import Effect, rule
from rankscope.model.finding import Comparison, Evidence, Finding, Side, count_noun
from rankscope.model.tables import Trace

Row = dict[str, Any]
_CACHES = {"fx_graph": "FX graph cache", "aotautograd": "AOTAutograd's cache"}
_MAX_CHANGES = 6
_KEEP_VERSIONS = (
    "the recompilations are what to look at (C401, C402): a cache finds nothing for inputs, graphs or settings that it "
    "has not seen"
)
_UNTOLD = "AOTAutograd's cache logs no components of its keys without TORCH_LOGS=+aot: why it missed is unknown"
_DEAR_NS = 10_000_000_000
_KEEP = (
    "keep the folder TORCHINDUCTOR_CACHE_DIR between runs and share it between the ranks of a host, or set "
    "TORCHINDUCTOR_FX_GRAPH_REMOTE_CACHE=1; torch.compiler.save_cache_artifacts carries a cache to other machines"
)


@rule("C407", "cache-miss", needs=("cache_events",))
def cache_miss(trace: Trace) -> Iterator[Finding | Effect]:
    """Graphs were compiled that a cache of compiled code did not have, or had under another key.

    What it means: the key of a look-up is made of the graph, the inputs, the settings and the versions. Where the same
    look-up was made in an earlier run, by another rank, or for an earlier version of the function in the same process,
    the two keys are compared and the components that differ are named. A cold cache is no fault in itself: it is
    reported once per run, with the time that a warm one would save.

    Why it happens: a cache folder that is not kept or not shared, a setting that differs between runs or ranks, inputs
    of another shape or on another device, a new version of torch, code that changed.

    What to do: make the named component equal, or keep and share the cache.

    What could fool it: look-ups are paired by function, number of the compilation and position, and compared with the
    most similar of the last four before them. Without TORCH_LOGS=+aot torch logs no components for AOTAutograd's
    cache: its misses are then counted and not explained. At most 20 misses of a cache are compared, the most expensive
    first.
    """
    sites = sites_of(trace)
    runs = sites.run_of.values()
    misses = _explained_misses(trace)
    is_told = logs_components(trace, "aotautograd")
    for run, lookups in _lookups_by_run(trace).items():
        own = [miss for miss in misses if sites.run(miss.event["file_id"]) == run]
        explained = [miss for miss in own if miss.changes and not miss.is_other_graph]
        notes = run_note(run, runs)
        yield from _by_changes(explained, notes)
        yield from _describe_lost(own, notes)
        if lookups.n_misses:
            is_untold = ("aotautograd", "miss") in lookups.outcomes and not is_told
            yield _summary(lookups, own, run == min(runs), (*((_UNTOLD,) if is_untold else ()), *notes))


def _explained_misses(trace: Trace) -> list[Miss]:
    """Of AOTAutograd's cache only those whose compilation did not miss the FX graph cache for the same reason."""
    misses = misses_of(trace, "fx_graph")
    known = {miss.compilation for miss in misses}
    others = misses_of(trace, "aotautograd")
    return misses + [miss for miss in others if miss.changes and miss.compilation not in known]


class _Lookups(NamedTuple):
    """What one run asked of the caches."""

    outcomes: dict[tuple[str, str], int]
    costs: dict[int, int]  # by rank: compiling what was not there

    @property
    def n_misses(self) -> int:
        return sum(count for (_, outcome), count in self.outcomes.items() if outcome == "miss")

    @property
    def n_hits(self) -> int:
        return sum(count for (_, outcome), count in self.outcomes.items() if outcome == "hit")


def _lookups_by_run(trace: Trace) -> dict[int, _Lookups]:
    sites, found = sites_of(trace), dict[int, _Lookups]()
    events = trace.table("cache_events")
    columns = [events.array("file_id").tolist(), events.array("rank").tolist(), events.text("cache").tolist()]
    columns += [events.text("outcome").tolist(), events.array("taken_ns").tolist()]
    for file_id, rank, cache, outcome, taken in zip(*columns, strict=True):
        lookups = found.setdefault(sites.run(file_id), _Lookups({}, {}))
        lookups.outcomes[cache, outcome] = lookups.outcomes.get((cache, outcome), 0) + 1
        if outcome == "miss":
            lookups.costs[rank] = lookups.costs.get(rank, 0) + max(taken, 0)
    return dict(sorted(found.items()))


def _by_changes(misses: list[Miss], notes: tuple[str, ...]) -> Iterator[Finding]:
    """One finding for all misses that the same components led to."""
    groups: dict[tuple[Any, ...], list[Miss]] = {}
    for miss in misses:
        where = (miss.is_same_process, miss.is_same_run, miss.run_before)
        groups.setdefault((where, tuple(change.component for change in miss.changes)), []).append(miss)
    for ((_, is_same_run, _), components), own in groups.items():
        costs = _taken(own)
        first = own[0]
        labels = _labels(first)
        shown = first.changes[:_MAX_CHANGES]
        n_others = len(first.changes) - len(shown)
        yield Finding(
            code="C407",
            rule="cache-miss",
            severity="info" if is_same_run else "warning",
            certainty="certain",
            title=f"{_graphs(len(own))} compiled anew because {listed(components, 3)} "
            f"{'differs' if len(components) == 1 else 'differ'} {_between(first)} ({cost_on(most(costs), len(costs))})",
            ranks=ranks_of(costs),
            location=first.site.location,
            evidence=Evidence(
                certain=(
                    "the graph itself is the same",
                    *((f"{count_noun(n_others, 'more component')} of the key differ",) if n_others else ()),
                ),
                notes=(f"functions: {_functions(own)}", *notes),
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
                    "keys": [[miss.before["key"], miss.event["key"]] for miss in own],
                    "n": len(own),
                },
            ),
            help=_make_equal(components),
        )


def _make_equal(components: Iterable[str]) -> str:
    names = list(components)
    if all("config" in name for name in names):
        return f"set {listed(names, 3)} to the same value everywhere, before anything is compiled"
    if all(name.startswith("example_inputs") for name in names):
        return "call with inputs of the same shape, dtype and device, or make the differing dimension dynamic"
    return "make what is named above equal, or accept one compilation for each"


def _labels(miss: Miss) -> tuple[str, str]:
    if miss.is_same_process:
        return f"[{miss.before['compile_id']}]", f"[{miss.event['compile_id']}]"
    if miss.is_same_run:
        return f"rank {miss.before['rank']}", f"rank {miss.event['rank']}"
    return f"run {miss.run_before}", f"run {miss.run}"


def _between(miss: Miss) -> str:
    if miss.is_same_process:
        return "from what the process had compiled before"
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
    """Keys that a cache had been given before. Ranks that compile at the same time cannot have each other's."""
    again = [miss for miss in misses if miss.is_same_key]
    for own, who, where in (
        ([miss for miss in again if not miss.is_same_run], "an earlier run", "in both runs"),
        ([miss for miss in again if miss.is_same_process], "the same process", "both times"),
    ):
        if not own:
            continue
        costs = _taken(own)
        yield Finding(
            code="C407",
            rule="cache-miss",
            severity="warning",
            certainty="certain",
            title=f"{_graphs(len(own))} compiled anew although {who} had compiled the very same: "
            f"the cache was not kept ({cost_on(most(costs), len(costs))})",
            ranks=ranks_of(costs),
            location=own[0].site.location,
            evidence=Evidence(
                certain=(f"the keys of the look-ups are equal {where}",),
                notes=(f"functions: {_functions(own)}", *notes),
                cost_ns=most(costs) or None,
                facts={"keys": [miss.event["key"] for miss in own], "n": len(own)},
            ),
            help=_KEEP,
        )


def _summary(lookups: _Lookups, misses: list[Miss], is_first: bool, notes: tuple[str, ...]) -> Finding:
    cost = most(lookups.costs)
    told = cost_on(cost, len(lookups.costs)) if cost else ""
    changed = [miss for miss in misses if miss.is_other_graph]
    versions = [miss for miss in changed if miss.is_same_process]
    shared = [miss for miss in misses if miss.is_same_key and miss.is_same_run and not miss.is_same_process]
    elsewhere = [miss for miss in changed if not miss.is_same_process]
    return Finding(
        code="C407",
        rule="cache-miss",
        severity="info",
        certainty="certain",
        title=f"{_title(lookups, misses, is_first)}{f'; compiling what was not there took {told}' if told else ''}",
        ranks=ranks_of(lookups.costs),
        evidence=Evidence(
            certain=tuple(_outcome_lines(lookups)),
            notes=(
                *((f"not the same as before in {_functions(elsewhere)}: {_changed(elsewhere)}",) if elsewhere else ()),
                *((f"{_graphs(len(shared))} compiled on several ranks, each for itself",) if shared else ()),
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
    """Cold is a cache that nobody had filled: what the process had compiled before, in another version, is no proof."""
    n_all = lookups.n_misses + lookups.n_hits
    versions = [miss for miss in misses if miss.is_same_process and miss.changes]
    n_again = len({miss.compilation for miss in versions})
    again = ""
    if n_again:
        components = listed((_component_name(change.component) for miss in versions for change in miss.changes), 3)
        again = f", {count_noun(n_again, 'compilation')} because {components} changed within the process"
    if is_first and not lookups.n_hits and not n_again:
        return f"the compile caches were cold: {'all ' * (n_all > 1)}{count_noun(n_all, 'look-up')} missed"
    return f"{lookups.n_misses:,} of {count_noun(n_all, 'look-up')} in the compile caches missed{again}"


def _component_name(component: str) -> str:
    """`example_inputs[3]` is one of many: the finding's table says which."""
    return component.partition("[")[0] if component.startswith("example_inputs") else _own_name(component)


def _versions_compared(versions: list[Miss]) -> Comparison | None:
    """What the process compiled beside what it had compiled before, the most expensive first."""
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
    """What else of the keys changed; of the graph itself only that it did."""
    others = [change for miss in misses for change in miss.changes if change.component != GRAPH]
    return listed(("the graph", *(f"{change.component} ({change.old} -> {change.new})" for change in others)), 3)


def _outcome_lines(lookups: _Lookups) -> Iterator[str]:
    for cache in sorted({cache for cache, _ in lookups.outcomes}):
        counts = {outcome: lookups.outcomes.get((cache, outcome), 0) for outcome in ("hit", "miss", "bypass")}
        plurals = {"hit": "hits", "miss": "misses", "bypass": "bypasses"}
        shown = ", ".join(count_noun(count, outcome, plurals[outcome]) for outcome, count in counts.items() if count)
        yield f"{_CACHES.get(cache, cache)}: {shown}"


_UNSUPPORTED = re.compile(r"Unsupported call_(?:function|method) target (?P<target>\S+?)\.?\s")
_NOT_CACHED = re.compile(r"Can't cache HigherOrderOperator: (?P<target>\S+)")
_BYPASSES = (
    (
        re.compile("autograd_function_apply"),
        "the graph holds a custom torch.autograd.Function",
        "set torch._functorch.config.autograd_cache_allow_custom_autograd_functions = True if its code does not "
        "change, or make it an operator with torch.library.custom_op and register_autograd",
    ),
    (
        re.compile("pickle", re.I),
        "a part of the key cannot be pickled",
        "take the object that is named out of the graph",
    ),
    (re.compile("freezing"), "freezing is on", "switch off torch._inductor.config.freezing where it is not needed"),
    (
        re.compile("FX graph cache is not enabled"),
        "the FX graph cache is switched off",
        "set torch._inductor.config.fx_graph_cache = True",
    ),
    (
        re.compile("cache_hash|uuid"),
        "a custom function has no name that is the same in every run",
        "give the function that is named a cache_hash or uuid()",
    ),
)


@rule("C408", "cache-bypass", needs=("cache_events",))
def cache_bypass(trace: Trace) -> Iterator[Finding | Effect]:
    """A graph was kept out of a cache of compiled code: it is compiled anew in every process.

    What it means: the cache refused the graph before looking it up, so nothing of it is stored either. Every start of
    the job, and every rank, pays for its compilation again.

    Why it happens: the graph holds something whose identity the cache cannot tell in another process: a custom
    autograd function, a higher-order operator, a callable without a stable name, an object that cannot be pickled; or
    the cache is switched off.

    What to do: take the part that is named out of the graph or make it cacheable; the help says how, where it is known.

    What could fool it: the cost is the whole compilation, of which another cache may still save a part.
    """
    sites, costs = sites_of(trace), costs_of(trace)
    groups: dict[tuple[int, str, str], list[Row]] = {}
    for row in trace.table("cache_events").rows():
        if row["outcome"] == "bypass":
            groups.setdefault((sites.run(row["file_id"]), row["cache"], row["reason"]), []).append(row)
    for (run, cache, reason), rows in groups.items():
        own = {(key_of(row), sites.find(row)): row["rank"] for row in rows}
        by_rank: dict[int, int] = {}
        for key, rank in own.items():
            by_rank[rank] = by_rank.get(rank, 0) + costs.get(key, 0)
        found = sorted({site for _, site in own})
        yield _describe_bypass(cache, reason, found, by_rank, run_note(run, sites.run_of.values()))


def _describe_bypass(
    cache: str, reason: str, sites: list[Site], costs: dict[int, int], notes: tuple[str, ...]
) -> Finding:
    what, help_text = _bypass_words(reason)
    cost = most(costs)
    return Finding(
        code="C408",
        rule="cache-bypass",
        severity="warning" if cost >= _DEAR_NS else "info",
        certainty="certain",
        title=f"{listed((site.name for site in sites), 3)} cannot be kept in {_CACHES.get(cache, cache)}: {what}",
        ranks=ranks_of(costs),
        location=sites[0].location,
        evidence=Evidence(
            certain=(
                *((f"torch's reason: {shortened(reason, 300)}",) if reason else ()),
                *((f"compiling it took {cost_on(cost, len(costs))}, and will in every process",) if cost else ()),
            ),
            notes=notes,
            cost_ns=cost or None,
            facts={"cache": cache, "reason": reason, "functions": [site.function for site in sites]},
        ),
        help=help_text,
    )


def _bypass_words(reason: str) -> tuple[str, str]:
    for pattern, what, help_text in _BYPASSES:
        if pattern.search(reason):
            return what, help_text
    target = _UNSUPPORTED.search(reason) or _NOT_CACHED.search(reason)
    if target:
        return (
            f"the graph calls {target['target']}, which the cache does not take",
            f"compile the part with {target['target']} by itself, so that the rest can be cached",
        )
    return first_line(reason) or "no reason was logged", "take what the reason names out of the graph"
