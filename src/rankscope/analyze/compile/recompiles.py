"""C401 to C403: functions that recompile over and over, and dimensions that could not stay dynamic."""

from __future__ import annotations

from collections.abc import Iterator

from rankscope.analyze.compile.causes import Cause, causes_of, cell, counted, is_wrapped, phrase, remedy
from rankscope.analyze.compile.chains import Chain, Version, chains_of, limit_value
from rankscope.analyze.compile.sites import is_text_only, sites_of
from rankscope.analyze.compile.specialised import Pinned, pinned_dimensions, source_of
from rankscope.analyze.compile.wording import cost_on, listed, ranks_of, run_note, shortened, times
from rankscope.analyze.registry import Effect, Skipped, rule
from rankscope.model.finding import Comparison, Evidence, Finding, Location, Severity, Side, format_duration
from rankscope.model.tables import Trace

_NOT_LOGGED = Skipped("no recompilations in this log: run with TORCH_LOGS=recompiles, or TORCH_TRACE=FOLDER")
_MANY = 2  # recompilations that automatic dynamic shapes do not explain
_EXPENSIVE_NS = 10_000_000_000
_MAX_VERSIONS = 12
_MAX_CAUSES = 3


@rule("C401", "recompile-limit", needs=("compile_logs",))
def recompile_limit(trace: Trace) -> Iterator[Finding | Effect | Skipped]:
    """A function reached its recompile limit: calls that fit no compiled version run uncompiled.

    What it means: torch keeps a limited number of versions of each function (torch._dynamo.config.recompile_limit, 8 by
    default). Once the limit is reached, a call that fits none of them is not compiled but runs as plain Python, and the
    time spent on the versions was mostly wasted. With fullgraph=True the call fails.

    Why it happens: a guard checks something that differs from call to call: a size under dynamic=False, an integer
    attribute that counts up, a string that selects a mode, a lambda created for each call.

    What to do: remove the cause of the recompilations, which the finding names. Raise recompile_limit only if the
    number of different calls is small and known.

    What could fool it: calls that fit one of the versions still run compiled. The log does not show how many calls fit
    none.
    """
    if is_text_only(trace) and not chains_of(trace):
        yield _NOT_LOGGED
    runs = sites_of(trace).run_of.values()
    for chain in chains_of(trace):
        if not chain.limit:
            continue
        is_fatal = "Hard failure" in chain.limit or chain.limit == "FailOnRecompileLimitHit"
        value = limit_value(chain.limit)
        consequence = "the call failed" if is_fatal else "calls that fit no compiled version now run uncompiled"
        causes = causes_of(chain.longest)
        title = f"{chain.site.name} reached the recompile limit{f' of {value}' if value else ''}: {consequence}"
        severity: Severity = "error" if is_fatal else "warning"
        help_text = _help_at_limit(chain, causes)
        yield _finding(chain, causes, severity, title, help_text, run_note(chain.run, runs))


@rule("C402", "recompiles", needs=("compile_logs",))
def recompiles(trace: Trace) -> Iterator[Finding | Effect | Skipped]:
    """A function was compiled more than once, because a call did not fit any existing version.

    What it means: each version is valid only while its guards hold. The finding lists the versions in order and, for
    each, the previous version's guard that failed. The cost is the time to compile all but the first version; parts
    after a graph break are counted with their function.

    Why it happens: sizes, numbers, strings, objects or modes that differ between calls. Once per dimension is normal:
    torch first compiles for the exact size, and then for any size when it sees a second one.

    What to do: follow the fix for the first cause listed: mark dimensions as dynamic up front, pass numbers as tensors,
    compile one function per mode, create objects once outside the loop.

    What could fool it: torch reports the first guard that failed; others may have failed too. The log records the new
    value only for some kinds of guards; for the others it is taken from the guards of the version that was compiled
    next.
    """
    if is_text_only(trace) and not chains_of(trace):
        yield _NOT_LOGGED
    runs = sites_of(trace).run_of.values()
    pinned = {(one.run, one.site, one.source) for one in pinned_dimensions(trace)}
    for chain in chains_of(trace):
        again = [version for version in chain.longest if version.is_recompile]
        if not again:
            continue
        causes = causes_of(again)
        title = f"{chain.site.name} was recompiled {times(len(again))}"
        title += f" ({cost_on(chain.cost_ns, len(chain.versions))})" if chain.cost_ns else ""
        if causes:
            others = f", and {len(causes) - 1} more reasons" if len(causes) > 2 else ""
            others = f", and {phrase(causes[1], chain.site)}" if len(causes) == 2 else others
            title += f": {phrase(causes[0], chain.site)}{others}"
        is_normal = bool(causes) and all(cause.is_absorbed for cause in causes)
        normal = ("torch made what changed dynamic: the last version fits other values too",) if is_normal else ()
        notes = (*normal, *run_note(chain.run, runs))
        finding = _finding(chain, causes, _severity(chain, again), title, _help(chain, causes), notes)
        is_pinned = bool(causes) and all((chain.run, chain.site, source_of(cause.guard)) in pinned for cause in causes)
        yield Effect(finding) if chain.limit or is_pinned else finding


def _severity(chain: Chain, again: list[Version]) -> Severity:
    """One version per dimension, and one per module that goes through torch's wrapper, is how torch works."""
    unexpected = [one for one in again if not one.is_absorbed and not (one.guard and is_wrapped(one.guard, chain.site))]
    is_expensive = sum(version.cost_ns for version in unexpected) >= _EXPENSIVE_NS
    return "warning" if len(unexpected) >= _MANY or is_expensive else "info"


def _help(chain: Chain, causes: list[Cause]) -> str:
    if not causes:
        return 'record with TORCH_LOGS="recompiles" to see the guards that failed'
    return remedy(causes[0], chain.site)


def _help_at_limit(chain: Chain, causes: list[Cause]) -> str:
    if not causes:
        return _help(chain, causes)
    limit = f"set torch._dynamo.config.recompile_limit above {limit_value(chain.limit) or 8}"
    return f"{remedy(causes[0], chain.site)}; {limit} only if you know that few versions are enough"


def _finding(
    chain: Chain, causes: list[Cause], severity: Severity, title: str, help_text: str, notes: tuple[str, ...]
) -> Finding:
    counts = {rank: sum(one.is_recompile for one in made) for rank, made in sorted(chain.versions.items())}
    hints = dict.fromkeys(cause.guard["hint"] for cause in causes if cause.guard["hint"])
    notes = (*(f"torch's hint: {shortened(hint, 400)}" for hint in hints), *notes)
    if len(set(counts.values())) > 1:
        shown = listed((f"rank {rank} {times(count)}" for rank, count in counts.items()), 8)
        notes = (*notes, f"the count differs by rank: {shown}")
    return Finding(
        severity=severity,
        certainty="certain",
        title=title,
        ranks=ranks_of(chain.versions),
        location=_origin(chain, causes),
        evidence=Evidence(
            certain=tuple(counted(cause, chain.site) for cause in causes[:_MAX_CAUSES]),
            notes=notes,
            comparison=_comparison(chain.longest),
            cost_ns=chain.cost_ns or None,
            facts={
                "function": chain.site.function,
                "n_recompiles": {str(rank): count for rank, count in counts.items()},
                "causes": [
                    {
                        "cause": cause.guard["cause"],
                        "subject": cause.guard["subject"],
                        "dimension": cause.guard["dimension"],
                        "guard": cause.guard["guard"],
                        "n": len(cause.versions),
                        "values": list(dict.fromkeys(cause.values)),
                    }
                    for cause in causes
                ],
            },
        ),
        help=help_text,
    )


def _origin(chain: Chain, causes: list[Cause]) -> Location | None:
    """The line the guard comes from, if the log has it; else the function, or where it is called."""
    if causes and causes[0].guard["file"] and causes[0].guard["line"] >= 0:
        guard = causes[0].guard
        return Location(guard["file"], guard["line"], chain.site.function or guard["function"])
    return chain.site.location


def _comparison(versions: list[Version]) -> Comparison:
    shown = versions
    if len(versions) > _MAX_VERSIONS:
        half = _MAX_VERSIONS // 2
        shown = [*versions[:half], *versions[-half:]]
    keys = [version.compile_id for version in shown]
    reasons = [f"{cell(version)}{' (refused)' if version.limit else ''}" for version in shown]
    costs = [format_duration(version.cost_ns) if version.cost_ns else "" for version in shown]
    if len(shown) < len(versions):
        for column, gap in ((keys, "..."), (reasons, f"{len(versions) - len(shown)} more"), (costs, "")):
            column.insert(_MAX_VERSIONS // 2, gap)
    sides = (Side("what did not fit", (), tuple(reasons)), Side("time", (), tuple(costs)))
    return Comparison("version", tuple(keys), sides if any(costs) else sides[:1])


@rule("C403", "dimension-specialised", needs=("guards",))
def dimension_specialised(trace: Trace) -> Iterator[Finding | Effect]:
    """A line of code turned a dimension or number that should be dynamic into a constant.

    What it means: torch had given it a symbol, so that one version would work for all values. A condition on it then
    left only one possible value, so the version fits that value alone: every other value triggers a recompile.

    Why it happens: a comparison with a constant (x.shape[0] == 48), a reshape or a call that needs an exact size, an
    operator that does not support symbolic sizes, a size used as a Python number.

    What to do: look at the line shown. Compare with ranges, or move the special case out of the compiled function. With
    mark_dynamic, torch raises an error at the line instead of making the dimension constant.

    What could fool it: if the dimension really has only one value, nothing is lost, and the finding is only info.
    """
    runs = sites_of(trace).run_of.values()
    for pinned in pinned_dimensions(trace):
        yield _describe_pinned(pinned, run_note(pinned.run, runs))


def _describe_pinned(pinned: Pinned, notes: tuple[str, ...]) -> Finding:
    again = f"; {pinned.site.name} was recompiled for other values" if pinned.n_recompiles else ""
    return Finding(
        severity="warning" if pinned.n_recompiles else "info",
        certainty="certain",
        title=f"{pinned.subject} should be dynamic, but this line fixes it to {listed(pinned.values)}{again}",
        ranks=pinned.ranks,
        location=pinned.location or pinned.site.location,
        evidence=Evidence(
            certain=(
                *((f"the condition comes from `{pinned.code}`",) if pinned.code else ()),
                *((f"the guard is {pinned.expression}",) if pinned.expression else ()),
                *((f"torch's reason: {pinned.reason}",) if pinned.reason else ()),
            ),
            notes=(
                *((f"recompiled {times(pinned.n_recompiles)} because of it",) if pinned.n_recompiles else ()),
                *notes,
            ),
            cost_ns=pinned.cost_ns or None,
            facts={"source": pinned.source, "values": list(pinned.values), "compile_ids": list(pinned.compile_ids)},
        ),
        help="move the comparison out of the compiled function or make it a range; with "
        "torch._dynamo.mark_dynamic, torch raises an error here and shows the full stack trace",
    )
