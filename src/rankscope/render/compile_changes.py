"""What changed between two runs, for the terminal: the verdict, then what appeared and disappeared, then the times."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import PurePath
from typing import Any, NamedTuple

from rankscope.model.compile_changes import CacheChange, Change, CompileChanges, RunTotals, TimeChange
from rankscope.model.finding import count_noun, format_duration, format_ranks
from rankscope.render.escape import escape
from rankscope.render.plain_table import table_lines

_MAX_ROWS = 20
_PLURALS = {"graph break": "graph breaks", "recompile reason": "recompile reasons", "failure": "failures"}
_WORTH_SHOWING_NS = 1_000_000  # less than that is noise in any compilation


class Section(NamedTuple):
    """A table with a title."""

    title: str
    heads: Sequence[str]
    rows: Sequence[Sequence[Any]]


def change_lines(changes: CompileChanges, width: int | None = None) -> Iterator[str]:
    yield f"Compared {_side(changes.old)} with {_side(changes.new)}"
    yield ""
    yield change_verdict(changes)
    yield ""
    yield from table_lines(("", "old", "new", "change"), _totals(changes), width)
    for section in change_sections(changes):
        yield from section_lines(section, width)


def change_sections(changes: CompileChanges) -> Iterator[Section]:
    """The sections that have rows."""
    heads = ("", "where", "old", "new", "what")
    yield from _filled("Graph breaks", heads, [_change_row(one) for one in changes.graph_breaks])
    yield from _filled("Recompilations", heads, [_change_row(one) for one in changes.recompiles])
    yield from _filled("Failures", heads, [_change_row(one) for one in changes.failures])
    yield from _filled("Caches", ("cache", "old hit rate", "new hit rate"), _cache_rows(changes.caches))
    times = ("old", "new", "change")
    lines = sorted(changes.lines, key=lambda time: -abs(time.change_ns))
    yield from _filled("Time per line", ("where", *times), _time_rows(lines))
    yield from _filled("Time per phase", ("phase", *times), _time_rows(changes.phases))
    yield from _filled("Time per pass", ("pass", *times), _time_rows(changes.passes))


def _filled(title: str, heads: Sequence[str], rows: Sequence[Sequence[Any]]) -> Iterator[Section]:
    if rows:
        yield Section(title, heads, rows)


def section_lines(
    section: Section, width: int | None, max_rows: int = _MAX_ROWS, more: str = "--json lists all"
) -> Iterator[str]:
    yield ""
    yield section.title
    yield from table_lines(section.heads, section.rows[:max_rows], width)
    if len(section.rows) > max_rows:
        yield f"... and {len(section.rows) - max_rows} more: {more}"


def _side(totals: RunTotals) -> str:
    paths = ", ".join(escape(path) for path in totals.paths)
    what = [f"rank {totals.ranks[0]}" if len(totals.ranks) == 1 else f"ranks {format_ranks(totals.ranks, 6)}"]
    if totals.n_earlier_runs:
        what.append(f"the newest of {totals.n_earlier_runs + 1} runs")
    return f"{paths} ({', '.join(what)})" if totals.ranks else paths


def change_verdict(changes: CompileChanges) -> str:
    """`Worse: 2 new graph breaks, 1 failure gone. Compiling takes 3.1 s instead of 1.2 s per rank.`"""
    words = []
    for noun, part in zip(_PLURALS, (changes.graph_breaks, changes.recompiles, changes.failures), strict=True):
        for kind, after in (("new", ""), ("more", " more often"), ("gone", " gone"), ("fewer", " less often")):
            n_found = sum(change.kind == kind for change in part)
            before = "new " if kind == "new" else ""
            if n_found:
                words.append(count_noun(n_found, before + noun, before + _PLURALS[noun]) + after)
    if words:
        verdict = f"{'Worse' if changes.is_worse else 'Better'}: {', '.join(words)}."
    else:
        verdict = "Same graph breaks, recompilations and failures."
    if not (changes.old.total_ns and changes.new.total_ns):
        return f"{verdict} The logs do not say how long compiling took: TORCH_LOGS text has no times."
    times = f"{format_duration(changes.new.total_ns)} instead of {format_duration(changes.old.total_ns)}"
    return f"{verdict} Compiling takes {times}{' per rank' if len(changes.new.ranks) > 1 else ''}."


def _totals(changes: CompileChanges) -> list[tuple[Any, ...]]:
    old, new = changes.old, changes.new
    counts = (
        ("compilations", old.n_compilations, new.n_compilations),
        ("recompilations", old.n_recompiles, new.n_recompiles),
        ("graph breaks", old.n_graph_breaks, new.n_graph_breaks),
        ("failures", old.n_failures, new.n_failures),
    )
    rows: list[tuple[Any, ...]] = [(name, str(a), str(b), f"{b - a:+}" if a != b else "") for name, a, b in counts]
    times = TimeChange("time", "", -1, -1, old.total_ns, new.total_ns)
    return [*rows, ("time", *_time_cells(times))]


def _change_row(change: Change) -> tuple[Any, ...]:
    return change.kind, _place(change.function, change.file, change.line), change.n_old, change.n_new, change.what


def _place(function: str, file: str, line: int) -> str:
    if not file:
        return function or "(unknown)"
    return f"{function} ({PurePath(file).name}:{line})" if line >= 0 else f"{function} ({PurePath(file).name})"


def _cache_rows(caches: Sequence[CacheChange]) -> list[tuple[str, ...]]:
    return [
        (
            change.cache,
            _hit_rate(change.old_hits, change.old_misses, change.old_bypasses),
            _hit_rate(change.new_hits, change.new_misses, change.new_bypasses),
        )
        for change in caches
    ]


def _hit_rate(hits: int, misses: int, bypasses: int) -> str:
    """`75% (3 of 4)`, with the number of bypasses."""
    asked = hits + misses
    rate = f"{100 * hits / asked:.0f}% ({hits} of {asked})" if asked else "no lookups"
    return f"{rate}, {bypasses} bypassed" if bypasses else rate


def _time_rows(times: Sequence[TimeChange]) -> list[tuple[str, ...]]:
    worth = [time for time in times if max(time.old_ns, time.new_ns) >= _WORTH_SHOWING_NS]
    return [(_time_name(time), *_time_cells(time)) for time in worth]


def _time_name(time: TimeChange) -> str:
    moved = f" (was line {time.old_line})" if 0 <= time.old_line != time.line >= 0 else ""
    return _place(time.name, time.file, time.line if time.line >= 0 else time.old_line) + moved


def _time_cells(time: TimeChange) -> tuple[str, str, str]:
    change = time.change_ns
    sign = "+" if change > 0 else "-"
    difference = f"{sign}{format_duration(abs(change))}" if abs(change) >= _WORTH_SHOWING_NS else ""
    return _duration(time.old_ns), _duration(time.new_ns), difference


def _duration(nanoseconds: int) -> str:
    return format_duration(nanoseconds) if nanoseconds else "-"
