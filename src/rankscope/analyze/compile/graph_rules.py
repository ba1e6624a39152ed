"""C411: ranks of one job that compiled different graphs, where they diverge and why."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from typing import Any, NamedTuple

from rankscope.analyze.compile.divergence import (
    ABSENT,
    NO_MAJORITY,
    ONE_RANK,
    Place,
    Run,
    Sides,
    Unit,
    runs_of_ranks,
    split,
    values_by_key,
)
from rankscope.analyze.compile.graph_diff import GraphDifference, first_difference, graph_text
from rankscope.analyze.compile.wording import run_note, shortened
from rankscope.analyze.hangs.evidence import side_label
from rankscope.analyze.registry import Effect, Skipped, rule
from rankscope.model.finding import (
    Comparison,
    Evidence,
    Finding,
    Location,
    Severity,
    Side,
    count_noun,
    ranks_phrase,
)
from rankscope.model.numbers import integer, is_number
from rankscope.model.tables import Trace

_OUTCOMES = {"ok": "compiled", "empty": "captured no operators", "failed": "failed"}


@rule("C411", "graphs-differ", needs=("compilations",))
def graphs_differ(trace: Trace) -> Iterator[Finding | Effect | Skipped]:
    """Ranks of one job compiled different graphs, or one compiled more often than its peers.

    What it means: ranks that should do the same work compiled different code for it. At best the odd rank compiles
    while the others wait for it; if the graphs contain collectives, the job hangs or mixes up data.

    Why it happens: a rank saw different shapes than its peers (a shorter last batch, sequences that are not padded); a
    branch depends on the rank or on data that differs by rank; compilation failed on one host only.

    What to do: look at the first divergence, which is the one reported, and make what leads to it the same on all
    ranks: pad or drop the odd batch, mark the dimension as dynamic, or let ranks agree on dynamic shapes with
    torch._dynamo.config.enable_compiler_collectives.

    What could fool it: pipeline stages, and ranks with a special job such as logging or evaluation, compile different
    graphs by design; if the sides are equally large, this is only a note. Logs that were copied while the job was
    running end at different times.
    """
    if not runs_of_ranks(trace):
        yield ONE_RANK
        return
    for run in runs_of_ranks(trace):
        differences = _Differences(trace, run)
        first = differences.first()
        if first is not None:
            yield _finding(trace, run, first, n_more=differences.n_after(first))


class _Split(NamedTuple):
    """Where ranks diverge, and how: `graphs` only if both sides captured one."""

    place: Place
    sides: Sides
    graphs: GraphDifference | None


class _Differences:
    """Places where not all ranks of a run did the same."""

    def __init__(self, trace: Trace, run: Run) -> None:
        self.trace, self.run = trace, run
        self.fingerprints = values_by_key(trace, "compile_graphs", "fingerprint")

    def first(self) -> _Split | None:
        for place, sides in self._candidates():
            usual, odd = (self.run.places[place].get(ranks[0]) for ranks in sides.ranks[:2])
            if usual is None or odd is None or usual.status != odd.status:
                return _Split(place, sides, None)
            graphs = first_difference(*(graph_text(self.trace, *unit.key) for unit in (usual, odd)))
            if graphs is not None or not (self.fingerprints.get(usual.key) and self.fingerprints.get(odd.key)):
                return _Split(place, sides, graphs)
        return None

    def n_after(self, first: _Split) -> int:
        return sum(place != first.place for place, _ in self._candidates())

    def _candidates(self) -> Iterator[tuple[Place, Sides]]:
        for place, units in self.run.places.items():
            values: dict[int, Hashable] = {
                rank: self._value(units[rank]) if rank in units else ABSENT for rank in self.run.known(place)
            }
            sides = split(values)
            if len(sides.values) > 1:
                # Of two ranks, the one that failed or did more is the odd one: its log says why.
                is_swapped = sides.is_tie and _oddity(sides.values[0]) > _oddity(sides.values[1])
                yield place, sides.rotated() if is_swapped else sides

    def _value(self, unit: Unit) -> tuple[str, tuple[str, ...]]:
        # Restarts leave graphs that were thrown away; the last one is what was compiled.
        return unit.status, self.fingerprints.get(unit.key, ())[-1:]


def _oddity(value: Hashable) -> int:
    if value is ABSENT:
        return 0
    return 2 if isinstance(value, tuple) and value[0] == "failed" else 1


def _finding(trace: Trace, run: Run, first: _Split, n_more: int) -> Finding:
    place, sides = first.place, first.sides
    units = run.places[place]
    unit = next(units[rank] for rank in (*sides.odd, *sides.usual) if rank in units)
    severity = _severity(trace, run, first)
    why, why_at = _why(trace, run, first)
    at = first.graphs.odd_location if first.graphs else None
    differ = "differs" if n_more == 1 else "differ"
    more = f"{count_noun(n_more, 'more compilation')} {differ} between ranks: fix this one first"
    runs = trace.table("compile_logs").array("run").tolist()
    notes = (*((more,) if n_more else ()), *sides.notes, *_unknown_note(run, place), *run_note(run.number, runs))
    return Finding(
        severity=severity,
        certainty="possible" if sides.is_regular else "certain",
        title=_title(first, units),
        ranks=sides.odd,
        location=at or why_at or place.frame.site.location,
        peer_location=first.graphs.usual_location if first.graphs else None,
        evidence=Evidence(
            certain=(*_certain(first, units, unit), *((NO_MAJORITY,) if sides.is_tie else ())),
            likely=why,
            notes=notes,
            comparison=_comparison(first, units),
            facts={
                "run": run.number,
                "compile_id": unit.compile_id,
                "function": place.frame.function,
                "turn": place.turn,
                "n_differing": n_more + 1,
            },
        ),
        help=_help(first, at),
    )


def _severity(trace: Trace, run: Run, first: _Split) -> Severity:
    if first.sides.is_regular:
        return "info"
    units = run.places[first.place]
    schedules = values_by_key(trace, "compile_collectives", "op")
    seen = {schedules.get(unit.key, ()) for unit in units.values() if unit.status == "ok"}
    return "error" if len(seen) > 1 else "warning"


def _title(first: _Split, units: dict[int, Unit]) -> str:
    place, sides = first.place, first.sides
    who, peers, what = ranks_phrase(sides.odd), sides.peers, place.frame.text
    odd = [units.get(rank) for rank in sides.ranks[1]]
    if odd[0] is None:
        again = f" for the {_ordinal(place.turn + 1)} time" if place.turn else ""
        return f"{who} did not compile {what}{again}, but {peers} did"
    if sides.usual[0] not in units:
        if place.turn == 0:
            return f"{who} compiled {what}, but {peers} did not"
        return f"{who} compiled {what} more often than {peers}"
    if odd[0].status == "failed":
        return f"compiling {what} failed only on {who}"
    if odd[0].status == "empty":
        return f"{who} captured no operators of {what}, but {peers} did"
    if first.graphs is None:
        return f"{who} compiled a different graph of {what} than {peers}"
    return f"{who} compiled a different graph of {what} than {peers}: {shortened(first.graphs.odd, 72)}"


def _certain(first: _Split, units: dict[int, Unit], unit: Unit) -> tuple[str, ...]:
    if first.graphs is not None:
        return (f"[{unit.compile_id}]: the graphs first differ at line {first.graphs.position}",)
    outcomes = [
        f"{_OUTCOMES.get(units[ranks[0]].status, units[ranks[0]].status)} on {ranks_phrase(ranks)}"
        for ranks in first.sides.ranks
        if ranks[0] in units
    ]
    absent = [f"{ranks_phrase(ranks)} did not compile it" for ranks in first.sides.ranks if ranks[0] not in units]
    return (f"[{unit.compile_id}] {', '.join([*outcomes, *absent])}",)


def _unknown_note(run: Run, place: Place) -> tuple[str, ...]:
    unknown = set(run.ranks) - set(run.known(place))
    ends = "its log ends" if len(unknown) == 1 else "their logs end"
    return (f"{ranks_phrase(unknown)} not compared: {ends} before that",) if unknown else ()


def _comparison(first: _Split, units: dict[int, Unit]) -> Comparison | None:
    usual, odd = first.sides.ranks[:2]
    labels = (side_label(usual), usual), (side_label(odd), odd)
    if first.graphs is not None:
        return first.graphs.comparison(*labels)
    cells = [_cell(units.get(ranks[0])) for ranks in (usual, odd)]
    return Comparison(
        "compilation",
        (f"{first.place.frame.function} #{first.place.turn}",),
        tuple(Side(label, ranks, (cell,)) for (label, ranks), cell in zip(labels, cells, strict=True)),
        mark=0,
    )


def _cell(unit: Unit | None) -> str:
    return "not compiled" if unit is None else f"[{unit.compile_id}] {_OUTCOMES.get(unit.status, unit.status)}"


def _why(trace: Trace, run: Run, first: _Split) -> tuple[tuple[str, ...], Location | None]:
    """What the tables of failed guards, errors and breaks say about the side that did something different."""
    units = run.places[first.place]
    for ranks in reversed(first.sides.ranks[:2]):
        unit = units.get(ranks[0])
        if unit is None:
            continue
        for explain in (_failure, _failed_guard, _breaks):
            text, location = explain(trace, unit, first, units)
            if text:
                return (f"{ranks_phrase(ranks)} {text}",), location
    return (), None


Reason = tuple[str, Location | None]


def _rows_of(trace: Trace, table: str, unit: Unit) -> list[dict[str, Any]]:
    source = trace.table(table)
    is_unit = (source.array("file_id") == unit.file_id) & source.text("compile_id").equals(unit.compile_id)
    return list(source.take(is_unit.nonzero()[0]).rows())


def _failure(trace: Trace, unit: Unit, first: _Split, units: dict[int, Unit]) -> Reason:
    if unit.status != "failed":
        return "", None
    for row in _rows_of(trace, "compile_errors", unit):
        message = row["message"].removeprefix(f"{row['type']}: ")
        return f"failed with {row['type']}: {shortened(message)}", _location(row)
    for row in _rows_of(trace, "compilations", unit):
        if row["fail_reason"]:
            return f"failed with {row['fail_type']}: {shortened(row['fail_reason'])}", None
    return "", None


def _failed_guard(trace: Trace, unit: Unit, first: _Split, units: dict[int, Unit]) -> Reason:
    """The failed guard of the newest version: older ones may differ in more than what changed now."""
    rows = _rows_of(trace, "recompiles", unit)
    if not rows:
        return "", None
    row = max(rows, key=lambda row: [integer(part) for part in row["against"].split("/") if is_number(part)])
    dimension = f" (dimension {row['dimension']})" if row["dimension"] >= 0 else ""
    if row["subject"] and row["expected"] and row["actual"]:
        changed = f"the {row['cause']} of {row['subject']}{dimension}: expected {row['expected']}, got {row['actual']}"
    else:
        changed = f"`{row['guard']}`"
    where = f", at {row['file']}:{row['line']}" if row["file"] else ""
    return f"recompiled because of {shortened(changed)}{where}", _location(row)


def _breaks(trace: Trace, unit: Unit, first: _Split, units: dict[int, Unit]) -> Reason:
    """A graph break that only this side has."""
    others = [other for other in units.values() if other.rank not in _side_of(first.sides, unit.rank)]
    known = {_break_key(row) for other in others[:1] for row in _rows_of(trace, "graph_breaks", other)}
    for row in _rows_of(trace, "graph_breaks", unit):
        if others and _break_key(row) not in known:
            return f"broke the graph at {row['file']}:{row['line']}: {shortened(row['reason'])}", _location(row)
    return "", None


def _break_key(row: dict[str, Any]) -> tuple[str, int, str]:
    return row["file"], row["line"], row["reason"]


def _side_of(sides: Sides, rank: int) -> tuple[int, ...]:
    return next(ranks for ranks in sides.ranks if rank in ranks)


def _location(row: dict[str, Any]) -> Location | None:
    return Location(row["file"], row["line"], row["function"]) if row["file"] else None


def _help(first: _Split, at: Location | None) -> str:
    if first.graphs is not None and at is not None:
        return f"make the branch that leads to {at.file.rsplit('/', 1)[-1]}:{at.line} the same on all ranks"
    if first.place.turn or first.graphs is not None:
        return (
            "give all ranks inputs of the same shape (pad or drop the odd batch), mark the dimension dynamic, or set "
            "torch._dynamo.config.enable_compiler_collectives = True"
        )
    return "compile the same functions on all ranks"


def _ordinal(number: int) -> str:
    return {1: "first", 2: "second", 3: "third"}.get(number, f"{number}th")
