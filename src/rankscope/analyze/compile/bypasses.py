"""C408: graphs that no compile cache can store."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from rankscope.analyze.compile.caches import CACHES
from rankscope.analyze.compile.chains import costs_of
from rankscope.analyze.compile.sites import Site, key_of, sites_of
from rankscope.analyze.compile.wording import cost_on, first_line, listed, most, ranks_of, run_note, shortened
from rankscope.analyze.registry import Effect, rule
from rankscope.model.finding import Evidence, Finding
from rankscope.model.tables import Trace

Row = dict[str, Any]
_EXPENSIVE_NS = 10_000_000_000
_UNSUPPORTED = re.compile(r"Unsupported call_(?:function|method) target (?P<target>\S+?)\.?\s")
_NOT_CACHED = re.compile(r"Can't cache HigherOrderOperator: (?P<target>\S+)")
_BYPASSES = (
    (
        re.compile("autograd_function_apply"),
        "the graph contains a custom torch.autograd.Function",
        "set torch._functorch.config.autograd_cache_allow_custom_autograd_functions = True if its code does not "
        "change, or make it an operator with torch.library.custom_op and register_autograd",
    ),
    (
        re.compile("pickle", re.I),
        "part of the key cannot be pickled",
        "remove the named object from the graph",
    ),
    (re.compile("freezing"), "freezing is on", "turn off torch._inductor.config.freezing if you do not need it"),
    (
        re.compile("FX graph cache is not enabled"),
        "the FX graph cache is turned off",
        "set torch._inductor.config.fx_graph_cache = True",
    ),
    (
        re.compile("cache_hash|uuid"),
        "a custom function has no name that stays the same between runs",
        "give the named function a cache_hash or uuid()",
    ),
)


@rule("C408", "cache-bypass", needs=("cache_events",))
def cache_bypass(trace: Trace) -> Iterator[Finding | Effect]:
    """A graph cannot be stored in a compile cache, so every process compiles it again.

    What it means: the cache rejected the graph before looking it up, so it does not store it either. Every start of the
    job, and every rank, pays for compiling it.

    Why it happens: the graph contains something the cache cannot identify in another process: a custom autograd
    function, a higher-order operator, a callable without a stable name, an object that cannot be pickled; or the cache
    is turned off.

    What to do: remove the named part from the graph, or make it cacheable; the fix says how if that is known.

    What could fool it: the cost shown is that of the whole compilation; another cache may still save part of it.
    """
    sites, costs = sites_of(trace), costs_of(trace)
    groups: dict[tuple[int, str, str], list[Row]] = {}
    for row in trace.table("cache_events").rows():
        if row["outcome"] == "bypass":
            groups.setdefault((sites.run(row["file_id"]), row["cache"], row["reason"]), []).append(row)
    for (run, cache, reason), rows in groups.items():
        compiled = {(key_of(row), sites.find(row)): row["rank"] for row in rows}
        by_rank: dict[int, int] = {}
        for key, rank in compiled.items():
            by_rank[rank] = by_rank.get(rank, 0) + costs.get(key, 0)
        functions = sorted({site for _, site in compiled})
        yield _describe_bypass(cache, reason, functions, by_rank, run_note(run, sites.run_of.values()))


def _describe_bypass(
    cache: str, reason: str, sites: list[Site], costs: dict[int, int], notes: tuple[str, ...]
) -> Finding:
    what, help_text = _bypass_words(reason)
    cost = most(costs)
    return Finding(
        severity="warning" if cost >= _EXPENSIVE_NS else "info",
        certainty="certain",
        title=f"{listed((site.name for site in sites), 3)} cannot be stored in the {CACHES.get(cache, cache)}: {what}",
        ranks=ranks_of(costs),
        location=sites[0].location,
        evidence=Evidence(
            certain=(
                *((f"torch's reason: {shortened(reason, 300)}",) if reason else ()),
                *((f"compiling it took {cost_on(cost, len(costs))}; every process pays it again",) if cost else ()),
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
            f"the graph calls {target['target']}, which the cache does not support",
            f"compile the part with {target['target']} separately, so that the rest can be cached",
        )
    return first_line(reason) or "no reason was logged", "remove what torch's reason names from the graph"
