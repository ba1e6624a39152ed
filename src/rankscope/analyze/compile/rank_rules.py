"""C411, C412, C418, C419: ranks of one job that compiled, or run, different things."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from rankscope.analyze.compile.divergence import (
    NO_MAJORITY,
    ONE_RANK,
    Place,
    Run,
    Sides,
    runs_of_ranks,
    split,
    values_by_key,
)
from rankscope.analyze.compile.sites import NOWHERE, Compilation, Site, sites_of
from rankscope.analyze.compile.wording import listed, ranks_of, run_note
from rankscope.analyze.hangs.evidence import side_label
from rankscope.analyze.registry import Effect, Skipped, rule
from rankscope.model.code_collectives import Parity, code_calls, collectives_parity, op_name
from rankscope.model.finding import Comparison, Evidence, Finding, Side, count_noun, ranks_phrase
from rankscope.model.tables import Trace

_N_BEFORE = 2  # calls shown before the one in question
_WAIT = "wait_tensor"


@rule("C412", "schedules-differ", needs=("compile_collectives",))
def schedules_differ(trace: Trace) -> Iterator[Finding | Effect | Skipped]:
    """Ranks compiled the same function into code that calls different collectives.

    What it means: the compiled code of one rank calls different collectives than that of its peers, or calls them in a
    different order. When it runs, the ranks deadlock, or exchange data that does not belong together.

    Why it happens: a branch depends on the rank or on data that differs by rank; a rank saw different shapes and was
    compiled for them; versions or settings of torch differ between hosts; a compiler pass moved or merged collectives
    based on costs it measured on each rank.

    What to do: look at the odd rank's graph up to the first call that differs, and make what leads to it the same on
    all ranks. If the compiler reorders by measured costs, turn that pass off or give it fixed estimates.

    What could fool it: pipeline stages differ by design; if the sides are equally large, this is only a warning. If
    only the forward or only the backward part came from a cache, the log does not list all collectives and nothing is
    compared.
    """
    if not runs_of_ranks(trace):
        yield ONE_RANK
        return
    schedules = _collectives(trace)
    for run in runs_of_ranks(trace):
        differing = [
            (place, sides)
            for place in run.places
            if len((sides := split(_schedules_at(run, place, schedules))).values) > 1
        ]
        if differing:
            yield _schedule_finding(trace, run, differing)


def _collectives(trace: Trace) -> dict[Compilation, tuple[str, ...]]:
    """The collectives of every compilation for which all are known. When to wait for results is up to each rank: only
    the order of the collectives has to be the same."""
    calls = values_by_key(trace, "compile_collectives", "op")
    records, events = trace.table("compile_records"), trace.table("cache_events")
    code = records.take(records.text("kind").equals("inductor_output_code").nonzero()[0])
    judged = code_calls(trace)
    known = {
        (row["file_id"], row["compile_id"]) for row in code.rows() if (row["file_id"], row["record"]) in judged
    } | calls.keys()
    # If only one of forward and backward came from a cache, only the other's schedule is listed.
    outcomes: dict[Compilation, set[str]] = {}
    for row in events.take(events.text("cache").equals("fx_graph").nonzero()[0]).rows():
        outcomes.setdefault((row["file_id"], row["compile_id"]), set()).add(row["outcome"])
    partly = {key for key, seen in outcomes.items() if len(seen) > 1}
    return {key: tuple(name for name in map(op_name, calls.get(key, ())) if name != _WAIT) for key in known - partly}


def _schedules_at(
    run: Run, place: Place, schedules: Mapping[Compilation, tuple[str, ...]]
) -> dict[int, tuple[str, ...]]:
    units = run.places[place]
    known = [units[rank] for rank in run.known(place) if rank in units]
    return {unit.rank: schedules[unit.key] for unit in known if unit.key in schedules}


def _schedule_finding(trace: Trace, run: Run, differing: Sequence[tuple[Place, Sides]]) -> Finding:
    place, sides = differing[0]
    usual, odd = (_as_names(value) for value in sides.values[:2])
    at = _first_difference(usual, odd)
    unit = run.places[place][sides.ranks[1][0]]
    n_more = len(differing) - 1
    more = f"the collectives of {count_noun(n_more, 'more compilation')} differ too"
    return Finding(
        severity="warning" if sides.is_regular else "error",
        certainty="possible" if sides.is_regular else "certain",
        title=f"{ranks_phrase(sides.odd)} compiled {place.frame.text} to different collectives than {sides.peers}: "
        f"{_call_at(odd, at)} instead of {_call_at(usual, at)} at position {at + 1}",
        ranks=sides.odd,
        location=place.frame.site.location,
        evidence=Evidence(
            certain=(
                f"the code of [{unit.compile_id}] calls {_counts(odd)} on {ranks_phrase(sides.ranks[1])}, "
                f"{_counts(usual)} on {ranks_phrase(sides.usual)}",
                *((NO_MAJORITY,) if sides.is_tie else ()),
            ),
            likely=("when this code runs, the ranks deadlock or mix up data",),
            notes=(*((more,) if n_more else ()), *sides.notes, *_run_note(trace, run)),
            comparison=_compare(sides, (usual, odd), at, "position"),
            facts={"run": run.number, "compile_id": unit.compile_id, "position": at, "n_differing": n_more + 1},
        ),
        help="make the function independent of the rank and of rank-specific data",
    )


def _run_note(trace: Trace, run: Run) -> tuple[str, ...]:
    return run_note(run.number, trace.table("compile_logs").array("run").tolist())


def _call_at(calls: Sequence[str], at: int) -> str:
    return calls[at] if at < len(calls) else "no call"


def _as_names(value: object) -> tuple[str, ...]:
    assert isinstance(value, tuple)
    return value


def _first_difference(usual: Sequence[object], odd: Sequence[object]) -> int:
    shared = min(len(usual), len(odd))
    return next((at for at in range(shared) if usual[at] != odd[at]), shared)


def _counts(names: Sequence[str]) -> str:
    """`3 collectives (all_reduce x2, broadcast)`."""
    counted = {name: names.count(name) for name in dict.fromkeys(names)}
    parts = ", ".join(name if n == 1 else f"{name} x{n}" for name, n in counted.items())
    return f"{count_noun(len(names), 'collective')} ({parts})" if names else "no collectives"


def _compare(sides: Sides, values: tuple[Sequence[str], Sequence[str]], at: int, heading: str) -> Comparison:
    shown = range(max(0, at - _N_BEFORE), at + 1)
    columns = [
        Side(side_label(ranks), ranks, tuple(calls[n] if n < len(calls) else "(none)" for n in shown))
        for ranks, calls in zip(sides.ranks, values, strict=False)
    ]
    return Comparison(heading, tuple(str(n + 1) for n in shown), tuple(columns), mark=len(shown) - 1)


@rule("C418", "collectives-unwaited", needs=("compile_collectives",))
def collectives_unwaited(trace: Trace) -> Iterator[Finding | Effect | Skipped]:
    """Compiled code starts more collectives than it waits for.

    What it means: the result of a collective is used, or its memory freed, while the network may still be writing to
    it. Results can be wrong without any error.

    Why it happens: nothing inside the compiled part waits for the result of a functional collective, for example
    because it is passed to code outside; a compiler pass, built-in or custom, dropped a wait.

    What to do: call wait_tensor() on the result, or use it inside the compiled function; look at the generated code of
    the compilation shown.

    What could fool it: a result that is returned and waited for outside the compiled code is counted too, and coalesced
    collectives share one wait per tensor.
    """
    sites = sites_of(trace)
    unwaited: dict[tuple[int, Site], list[Parity]] = {}
    for parity in collectives_parity(trace):
        if parity.missing_waits:
            site = sites.of.get((parity.file_id, parity.compile_id), NOWHERE)
            unwaited.setdefault((parity.run, site), []).append(parity)
    for (run, site), parities in unwaited.items():
        yield _unwaited_finding(trace, run, site, parities)


def _unwaited_finding(trace: Trace, run: int, site: Site, parities: Sequence[Parity]) -> Finding:
    worst = max(parities, key=lambda parity: parity.missing_waits)
    ranks = ranks_of(parity.rank for parity in parities)
    ids = listed(f"[{parity.compile_id}]" for parity in parities)
    collectives = count_noun(worst.n_called, "collective")
    return Finding(
        severity="warning",
        certainty="likely",
        title=f"the code compiled from {site.name} does not wait for {worst.missing_waits} of the {collectives} "
        "it starts",
        ranks=ranks,
        location=site.location,
        evidence=Evidence(
            certain=(
                f"[{worst.compile_id}] of rank {worst.rank} has {collectives} and "
                f"{count_noun(worst.n_waits, 'wait')}; its scheduler listed {worst.n_scheduled}",
            ),
            notes=(
                *((f"all compilations like this: {ids}",) if len(parities) > 1 else ()),
                *run_note(run, trace.table("compile_logs").array("run").tolist()),
            ),
            facts={"run": run, "compile_id": worst.compile_id, "n_missing": worst.missing_waits},
        ),
        help="use the results inside the compiled function, or wait for them where it returns them",
    )


@rule("C419", "execution-order-differs", needs=("graph_executions",))
def execution_order_differs(trace: Trace) -> Iterator[Finding | Effect | Skipped]:
    """Ranks run their compiled graphs in different orders.

    What it means: if the graphs contain collectives, ranks that run them in different orders end up in different
    collectives at the same time: the job hangs or mixes up data.

    Why it happens: control flow outside the compiled functions that depends on the rank or its data; a rank that
    recompiled, and so runs a different version of a function.

    What to do: look at the code that calls the first graph that differs, and make the order the same on all ranks.

    What could fool it: pipeline stages run in different orders by design; graphs without collectives may run in any
    order.
    """
    if not runs_of_ranks(trace):
        yield ONE_RANK
        return
    executed = list(trace.table("graph_executions").rows())
    for run in runs_of_ranks(trace):
        place_of = run.place_of()
        orders: dict[int, list[Place | str]] = {}
        for row in executed:
            if row["run"] == run.number and row["rank"] in run.ranks:
                graph = place_of.get((row["file_id"], row["compile_id"]), row["compile_id"])
                orders.setdefault(row["rank"], []).append(graph)
        sides = split({rank: tuple(order) for rank, order in orders.items()})
        if len(sides.values) > 1:
            yield _order_finding(trace, run, sides)


def _order_finding(trace: Trace, run: Run, sides: Sides) -> Finding:
    usual_places, odd_places = sides.values[:2]
    assert isinstance(usual_places, tuple)
    assert isinstance(odd_places, tuple)
    at = _first_difference(usual_places, odd_places)
    usual, odd = _order_words(usual_places), _order_words(odd_places)
    usual_graph, odd_graph = (words[at] if at < len(words) else "nothing" for words in (usual, odd))
    place = odd_places[at] if at < len(odd_places) else None
    return Finding(
        severity="warning",
        certainty="possible" if sides.is_regular else "certain",
        title=f"{ranks_phrase(sides.odd)} ran compiled graphs in a different order than {sides.peers}: {odd_graph} "
        f"instead of {usual_graph} at position {at + 1}",
        ranks=sides.odd,
        location=place.frame.site.location if isinstance(place, Place) else None,
        evidence=Evidence(
            certain=(
                f"{count_noun(len(odd), 'graph execution')} recorded on {ranks_phrase(sides.ranks[1])}, "
                f"{len(usual)} on {ranks_phrase(sides.usual)}",
                *((NO_MAJORITY,) if sides.is_tie else ()),
            ),
            notes=(*sides.notes, *_run_note(trace, run)),
            comparison=_compare(sides, (usual, odd), at, "position"),
            facts={"run": run.number, "position": at},
        ),
        help="call the compiled functions in the same order on all ranks",
    )


def _order_words(order: Sequence[Place | str]) -> list[str]:
    return [f"version {item.turn} of {item.frame.text}" if isinstance(item, Place) else f"[{item}]" for item in order]
