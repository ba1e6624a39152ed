"""C404: lines where tracing stops and the graph is split in two."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from rankscope.analyze.compile.chains import costs_of
from rankscope.analyze.compile.sites import Key, Site, Sites, base_function, key_of, keys_of, sites_of
from rankscope.analyze.compile.wording import cost_on, first_line, listed, most, ranks_of, run_note, shortened, times
from rankscope.analyze.registry import Effect, rule
from rankscope.model.finding import Evidence, Finding, Location, Severity, count_noun
from rankscope.model.tables import MISSING, Trace

Row = dict[str, Any]
# What DistributedDataParallel does around the module's forward: nothing its user can change.
_WRAPPER = re.compile(r"torch/nn/parallel/|DistributedDataParallel")
_CAUSED = "may have been caused by an earlier graph break"
_REPORT = re.compile(r"^(Please report|It may be possible to write|This graph break may have)")
_MAX_HINTS = 2
_CLOCK_NS = 1_000_000  # records are stamped in whole milliseconds


class Broken(NamedTuple):
    """A distinct graph break: one line, one reason, one run."""

    run: int
    rows: list[Row]
    frames: dict[int, set[Site]]  # by rank: the functions that it cuts
    costs: dict[int, int]  # by rank
    n_eager: int  # functions that are not compiled at all because of it

    @property
    def first(self) -> Row:
        return self.rows[0]


@rule("C404", "graph-break", needs=("graph_breaks",))
def graph_break(trace: Trace) -> Iterator[Finding | Effect]:
    """A line cannot be traced: the graph ends before it, Python runs the line, and a new graph starts after it.

    What it means: each break turns one graph into two smaller ones: less fusion, Python between the graphs on every
    call, and one more function to compile. Each line and reason is listed once, your code before torch's. The cost is
    the time to compile the parts that start after the line, plus tracing that was thrown away; the log does not show
    the cost per call.

    Why it happens: print and logging, .item() and branches on tensor values, calls into C extensions, generators and
    other constructs the tracer does not support, breaks that the code itself requests.

    What to do: follow torch's hint for the line, move the line out of the compiled function, or compile the parts
    before and after it separately. fullgraph=True turns every break into an error.

    What could fool it: breaks made by the DistributedDataParallel wrapper are part of how it works, so they are listed
    as info only. A break can be caused by an earlier one: start with the first.
    """
    runs = sites_of(trace).run_of.values()
    for broken in _distinct_breaks(trace):
        yield _describe(broken, run_note(broken.run, runs))


def _distinct_breaks(trace: Trace) -> list[Broken]:
    sites = sites_of(trace)
    groups: dict[tuple[Any, ...], list[Row]] = {}
    for row in trace.table("graph_breaks").rows():
        key = (sites.run(row["file_id"]), row["file"], row["line"], row["reason"])
        groups.setdefault(key, []).append(row)
    failed = _failed(trace)
    costs = _costs_by_break(trace, sites)
    breaks = []
    for (run, *_), rows in groups.items():
        frames: dict[int, set[Site]] = {}
        by_rank: dict[int, int] = {}
        for row in rows:
            frames.setdefault(row["rank"], set()).add(sites.find(row))
        for identity, row in {_identity(row): row for row in rows}.items():  # ids can repeat: each is charged once
            by_rank[row["rank"]] = by_rank.get(row["rank"], 0) + costs.get(identity, 0)
        n_eager = len({sites.find(row) for row in rows if key_of(row) in failed})
        breaks.append(Broken(run, rows, frames, by_rank, n_eager))
    return breaks


def _identity(row: Row) -> tuple[Key, int, str, int, str]:
    return key_of(row), row["attempt"], row["file"], row["line"], row["reason"]


def _failed(trace: Trace) -> set[Key]:
    compilations = trace.table("compilations")
    return set(keys_of(compilations.take(np.flatnonzero(compilations.text("status").equals("failed")))))


def _costs_by_break(trace: Trace, sites: Sites) -> dict[tuple[Any, ...], int]:
    """Tracing that the break threw away, and compiling the frames that start after it."""
    breaks = list(trace.table("graph_breaks").rows())
    per_compilation: dict[Key, list[Row]] = {}
    per_function: dict[tuple[Any, ...], list[Row]] = {}
    functions = _functions(trace)
    for row in sorted(breaks, key=_time):
        key = key_of(row)
        per_compilation.setdefault(key, []).append(row)
        if key in functions:
            function = (row["file_id"], row["rank"], functions[key])
            per_function.setdefault(function, []).append(row)
            per_function.setdefault((*function, row["line"]), []).append(row)
    costs: dict[tuple[Any, ...], int] = {}

    def charge(row: Row, nanoseconds: int) -> None:
        costs[_identity(row)] = costs.get(_identity(row), 0) + nanoseconds

    compilations = trace.table("compilations")
    for key, lost_ns in zip(keys_of(compilations), compilations.array("lost_ns").tolist(), strict=True):
        causes = per_compilation.get(key, [])
        for row in causes:
            charge(row, max(lost_ns, 0) // len(causes))
    taken = costs_of(trace)
    for resumed in _resumed_frames(trace):
        cause = _cause(per_function, resumed)
        if cause is not None:
            charge(cause, sum(taken.get(version, 0) for version in resumed.versions))
    return costs


def _functions(trace: Trace) -> dict[Key, str]:
    compilations = trace.table("compilations")
    names = (base_function(function)[0] for function in compilations.text("function").tolist())
    return dict(zip(keys_of(compilations), names, strict=True))


class _Resumed(NamedTuple):
    """A frame that starts after a graph break, with all its versions."""

    file_id: int
    rank: int
    function: str
    line: int
    start_ns: int
    versions: set[tuple[Key, Site]]


def _resumed_frames(trace: Trace) -> list[_Resumed]:
    compilations = trace.table("compilations")
    frames: dict[tuple[int, int, int, str], _Resumed] = {}
    columns: list[Any] = [compilations.text("function").tolist(), compilations.array("frame_id").tolist()]
    columns += [compilations.array("start_ns").tolist(), sites_of(trace).of_row]
    for key, name, frame_id, start, site in zip(keys_of(compilations), *columns, strict=True):
        function, line = base_function(name)
        if line != MISSING:
            frame = _Resumed(key[0], key[1], function, line, start, set())
            frames.setdefault((key[0], key[1], frame_id, name), frame).versions.add((key, site))
    return list(frames.values())


def _cause(breaks: dict[tuple[Any, ...], list[Row]], resumed: _Resumed) -> Row | None:
    """The last break in the function before the frame was first compiled; the one on the frame's line, if the break is
    in the function itself and not in something it calls."""
    function = (resumed.file_id, resumed.rank, resumed.function)
    for candidates in (breaks.get((*function, resumed.line), []), breaks.get(function, [])):
        position = bisect_right(candidates, resumed.start_ns + _CLOCK_NS, key=_time)
        if position:
            return candidates[position - 1]
    return None


def _time(row: Row) -> int:
    return int(row["time_ns"])


def _describe(broken: Broken, notes: tuple[str, ...]) -> Finding:
    row = broken.first
    cost = most(broken.costs)
    sites = sorted({site for cut in broken.frames.values() for site in cut})
    return Finding(
        severity=_severity(row),
        certainty="certain",
        title=f"graph break in {row['function'] or 'an unknown function'}: {_what(row)}",
        ranks=ranks_of(broken.frames),
        location=_location(row, sites),
        evidence=Evidence(
            certain=_certain(broken, sites, cost),
            notes=(*_notes(row), *notes),
            cost_ns=cost or None,
            facts={
                "n": len(broken.rows),
                "break_id": row["break_id"],
                "url": row["url"],
                "reason": row["reason"],
                "functions": [site.function for site in sites],
                "file": row["file"],
                "line": row["line"],
                "code": row["code"],
            },
        ),
        help=_help(row),
    )


def _severity(row: Row) -> Severity:
    if _WRAPPER.search(row["file"]) or (not row["is_user"] and _WRAPPER.search(row["explanation"])):
        return "info"
    return "warning" if row["is_user"] or row["caller_file"] else "info"


def _what(row: Row) -> str:
    reason = shortened(row["reason"]) or first_line(row["explanation"]) or "no reason was logged"
    return reason if row["is_user"] or not row["file"] else f"{reason}, in library code"


def _location(row: Row, sites: list[Site]) -> Location | None:
    if not row["is_user"] and row["caller_file"]:
        caller = (row["caller_file"], row["caller_line"])
        function = next((site.function for site in sites if (site.file, site.line) == caller), "")
        return Location(row["caller_file"], max(row["caller_line"], 0), function)
    return Location(row["file"], max(row["line"], 0), row["function"]) if row["file"] else None


def _certain(broken: Broken, sites: list[Site], cost: int) -> tuple[str, ...]:
    row = broken.first
    per_rank: dict[int, int] = {}
    for one in broken.rows:
        per_rank[one["rank"]] = per_rank.get(one["rank"], 0) + 1
    names = listed(dict.fromkeys(site.name for site in sites if site.function), 4)
    cut = f"; it splits {names}" if names else ""
    lines = [f"hit {times(most(per_rank))} while compiling{cut}"]
    if row["explanation"]:
        lines.append(shortened(row["explanation"], 300))
    if broken.n_eager:
        are = "is" if broken.n_eager == 1 else "are"
        lines.append(f"{count_noun(broken.n_eager, 'function')} {are} not compiled at all because of it")
    if cost:
        lines.append(f"compiling the code after it, and tracing again, took {cost_on(cost, len(per_rank))}")
    if not row["is_user"] and row["file"]:
        lines.append(f"the break is at {row['file']}:{row['line']} in {row['function'] or '?'}")
    return tuple(lines)


def _notes(row: Row) -> tuple[str, ...]:
    hints = row["hints"].splitlines()
    follows = ("it may be caused by an earlier graph break",) if any(_CAUSED in hint for hint in hints) else ()
    page = (f"torch's documentation: {row['url']}",) if row["url"] else ()
    return (*follows, *page)


def _help(row: Row) -> str:
    if _severity(row) == "info":
        return "nothing to change here: this break is part of how torch's own code works"
    hints = [hint for hint in row["hints"].splitlines() if not _REPORT.match(hint)][:_MAX_HINTS]
    if not hints:
        return "move this line out of the compiled function, or compile the parts before and after it separately"
    advice = " ".join(shortened(hint, 300) for hint in hints).removesuffix(".")
    noun = "hint" if len(hints) == 1 else "hints"
    return f"move this line out of the compiled function, or follow torch's {noun}: {advice}"
