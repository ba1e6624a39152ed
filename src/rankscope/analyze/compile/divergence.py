"""What each rank compiled, side by side: frames are matched by their position in the code, not by their numbers.

Compile ids count up per process, so one extra frame on one rank shifts all that follow. A frame is therefore identified
by its source position and the user's line that led there; equal ones are numbered, and recompilations count within
them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterable, Iterator, Mapping
from typing import NamedTuple

from rankscope.analyze.compile.sites import Compilation, Site, base_function, sites_of
from rankscope.analyze.derived import derived
from rankscope.analyze.registry import Skipped
from rankscope.model.finding import count_noun
from rankscope.model.tables import MISSING, Trace

ABSENT = None
NO_MAJORITY = "there is no majority, so counting cannot show which side is wrong"


class Frame(NamedTuple):
    """A compiled function. `nth` distinguishes frames at the same source position, as all wrapped modules are."""

    file: str
    line: int
    function: str
    site: Site
    nth: int = 0

    @property
    def text(self) -> str:
        """`forward (model.py:12)`; for torch's own wrappers the user's line that calls them."""
        function, resumed_at = base_function(self.function)
        if self.site.is_call or not self.site.function:
            return self.site.name
        if resumed_at != MISSING:
            return f"{function} after its graph break at {self.site._replace(line=resumed_at).place}"
        return f"{function} ({self.site.place})"


class Place(NamedTuple):
    """The same compilation on every rank: which frame, and which of its compilations."""

    frame: Frame
    turn: int


class Unit(NamedTuple):
    """One rank's compilation at a place."""

    rank: int
    file_id: int
    compile_id: str
    status: str
    start_ns: int

    @property
    def key(self) -> Compilation:
        return self.file_id, self.compile_id


class Sides(NamedTuple):
    """Ranks by what they did, the majority first; if sides are equally large, the one with the lowest rank first."""

    values: tuple[Hashable, ...]
    ranks: tuple[tuple[int, ...], ...]

    @property
    def usual(self) -> tuple[int, ...]:
        return self.ranks[0]

    @property
    def odd(self) -> tuple[int, ...]:
        return tuple(sorted(rank for ranks in self.ranks[1:] for rank in ranks))

    @property
    def is_tie(self) -> bool:
        """True when no side is larger than the others: counting cannot show who is right."""
        return len(self.ranks) > 1 and len(self.ranks[0]) == len(self.ranks[1])

    @property
    def is_regular(self) -> bool:
        """True when all sides have the same number of ranks, several each, like the stages of a pipeline."""
        return len(self.ranks) > 1 and len(self.ranks[0]) > 1 and len({len(ranks) for ranks in self.ranks}) == 1

    @property
    def peers(self) -> str:
        """The majority, in words: `its 3 peers`, `rank 0`."""
        if len(self.usual) == 1:
            return f"rank {self.usual[0]}"
        return f"{'its' if len(self.odd) == 1 else 'their'} {count_noun(len(self.usual), 'peer')}"

    @property
    def notes(self) -> tuple[str, ...]:
        if not self.is_regular:
            return ()
        return (f"the ranks form {len(self.ranks)} sides of equal size, as pipeline stages do",)

    def rotated(self) -> Sides:
        """With the first side moved to the end: where counting does not decide, other reasons may."""
        return Sides((*self.values[1:], self.values[0]), (*self.ranks[1:], self.ranks[0]))


ONE_RANK = Skipped("logs of only one rank: run with TORCH_TRACE on every rank to compare them")


class Run(NamedTuple):
    """The ranks of one run of the job, and what they compiled; places in the order in which any rank reached them."""

    number: int
    ranks: tuple[int, ...]
    places: dict[Place, dict[int, Unit]]
    ended: Mapping[int, int]
    """Ranks whose log ends in the middle of something -> when: what they did after that is unknown."""

    def place_of(self) -> dict[Compilation, Place]:
        return {unit.key: place for place, units in self.places.items() for unit in units.values()}

    def known(self, place: Place) -> list[int]:
        """Ranks for which it is certain whether they compiled this, and with what result."""
        units = self.places[place]
        return [
            rank
            for rank in self.ranks
            if (units[rank].status != "unfinished" if rank in units else rank not in self.ended)
        ]


def split(values: Mapping[int, Hashable]) -> Sides:
    """Ranks grouped by their values."""
    groups: dict[Hashable, list[int]] = defaultdict(list)
    for rank in sorted(values):
        groups[values[rank]].append(rank)
    ordered = sorted(groups, key=lambda value: (-len(groups[value]), groups[value][0]))
    return Sides(tuple(ordered), tuple(tuple(groups[value]) for value in ordered))


def runs_of_ranks(trace: Trace) -> list[Run]:
    """The runs in which at least two ranks left a log: nothing else can be compared."""
    return derived(trace, _align)


def _align(trace: Trace) -> list[Run]:
    logs = [log for log in trace.table("compile_logs").rows() if log["rank"] >= 0 and log["source"] == "trace"]
    units_of_file = _units(trace)
    runs = []
    for number in sorted({log["run"] for log in logs}):
        run_logs = [log for log in logs if log["run"] == number]
        ranks = tuple(sorted({log["rank"] for log in run_logs}))
        if len(ranks) < 2:
            continue
        units: dict[int, list[tuple[Frame, int, Unit]]] = defaultdict(list)
        for file_id in sorted({log["file_id"] for log in run_logs}):
            for item in units_of_file.get(file_id, ()):
                units[item[2].rank].append(item)
        places: dict[Place, dict[int, Unit]] = defaultdict(dict)
        for rank in ranks:
            for place, unit in _placed(units[rank]):
                places[place][rank] = unit
        cut = {log["rank"]: log["last_ns"] for log in run_logs if log["is_cut"]}
        open_ = {
            unit.rank: unit.start_ns
            for at_place in places.values()
            for unit in at_place.values()
            if unit.status == "unfinished"
        }
        runs.append(Run(number, ranks, _in_order(places), {**cut, **open_}))
    return runs


def _units(trace: Trace) -> dict[int, list[tuple[Frame, int, Unit]]]:
    """Per file, its compilations in order, each with its frame and the frame's number in that process."""
    sites = sites_of(trace).of_row
    units: dict[int, list[tuple[Frame, int, Unit]]] = defaultdict(list)
    for row, site in zip(trace.table("compilations").rows(), sites, strict=True):
        # Backward and run-time work belong to a forward compilation, and say nothing about order.
        if row["phase"] != "forward" or not row["compile_id"]:
            continue
        frame = Frame(row["file"], row["line"], row["function"], site)
        unit = Unit(row["rank"], row["file_id"], row["compile_id"], row["status"], row["start_ns"])
        number = row["frame_id"] if row["frame_id"] != MISSING else -2 - row["autograd_id"]
        units[row["file_id"]].append((frame, number, unit))
    return units


def _placed(units: Iterable[tuple[Frame, int, Unit]]) -> Iterator[tuple[Place, Unit]]:
    """The rank's compilations with their places. A frame keeps the user's line of its first compilation."""
    ordered = sorted(units, key=lambda item: (item[2].start_ns, item[2].file_id))
    frames: dict[tuple[int, int, str, str], Frame] = {}
    seen: dict[Frame, int] = defaultdict(int)
    turns: dict[Frame, int] = defaultdict(int)
    for frame, number, unit in ordered:
        # Torch may restart its frame numbers, so the code is part of the key.
        process_frame = (unit.file_id, number, frame.file, frame.function)
        if process_frame not in frames:
            frames[process_frame] = frame._replace(nth=seen[frame])
            seen[frame] += 1
        numbered = frames[process_frame]
        yield Place(numbered, turns[numbered]), unit
        turns[numbered] += 1


def _in_order(places: Mapping[Place, dict[int, Unit]]) -> dict[Place, dict[int, Unit]]:
    """By position on the rank that got there first; the clocks of different hosts do not matter."""
    position: dict[Place, int] = {}
    counts: dict[int, int] = defaultdict(int)
    flat = [(unit.rank, unit.start_ns, place) for place, units in places.items() for unit in units.values()]
    for rank, _, place in sorted(flat, key=lambda item: item[:2]):
        position[place] = min(position.get(place, counts[rank]), counts[rank])
        counts[rank] += 1
    return {place: places[place] for place in sorted(places, key=lambda place: position[place])}


def values_by_key(trace: Trace, table: str, column: str) -> dict[Compilation, tuple[str, ...]]:
    """A text column of a table as one tuple per compilation, in the table's order."""
    source = trace.table(table)
    by_compilation: dict[Compilation, list[str]] = defaultdict(list)
    files, ids, values = source.array("file_id").tolist(), source.text("compile_id").tolist(), source.text(column)
    for file_id, compile_id, value in zip(files, ids, values.tolist(), strict=True):
        by_compilation[file_id, compile_id].append(value)
    return {key: tuple(values) for key, values in by_compilation.items()}
