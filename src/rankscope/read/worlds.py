"""Takes apart the worlds that were alive side by side, such as the trainer and the rollout of one job.

Each has a default group and ranks from 0, so that no table may hold two of them: each becomes a Trace of its own, with
its dumps and with the stacks, manifests and profiles that lie beside these. Captures that lie apart in time are
attempts or leftovers, not worlds.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from itertools import takewhile
from statistics import median_low
from typing import Any

import numpy as np

from rankscope.model.tables import MISSING, Array, Table, Trace, World
from rankscope.read.mixed_dumps import OTHER_CAPTURE, Captures, has_half_of_its_ranks
from rankscope.read.stale_dumps import Dump, LeftOut

OTHER_WORLD = "other-world"
_UNCLEAR = LeftOut(
    "ignored",
    "could be from any of the worlds here: neither its folder nor its name says which",
    "keep the files of each world in a separate folder",
)
_LIFE_SIGNS = (("thread_stacks", "time_ns"), ("manifests", "started_ns"), ("manifests", "ended_ns"))


def separate_worlds(
    trace: Trace, captures: Captures, joined: Mapping[int, int], *, is_chosen: bool
) -> dict[int, LeftOut]:
    """Leaves one world in the trace and adds the others to `trace.beside`; by file, where it went instead.

    `joined` has the files whose dumps were joined to those of another file. Where the user has chosen a capture, the
    worlds beside it are only taken away.
    """
    if len(captures.dumps) < 2:
        return {}
    everything = range(1, len(captures.dumps) + 1)
    alive = _alive_beside(trace, captures, _owners(trace.table("files"), captures, joined, everything))
    if not alive:
        return {}
    owners = _owners(trace.table("files"), captures, joined, (captures.number, *alive))
    names = _names(captures.dumps)
    moved: dict[int, LeftOut] = {}
    for number in alive:
        files = [file for file, owner in owners.items() if owner == number]
        world = _part_of(trace, files)
        world.world = World(number, names[number - 1])
        reason = LeftOut(OTHER_WORLD, f"is of another world, {world.world.name}: {captures.described(number)}", "")
        if is_chosen:
            about = f"is of another capture at the same time: {captures.described(number)}"
            reason = LeftOut(OTHER_CAPTURE, about, f"add --capture {number}")
        else:
            trace.beside.append(world)
        moved.update(dict.fromkeys(files, reason))
    moved.update({file: _UNCLEAR for file, owner in owners.items() if owner is None})
    rest = _without(trace, list(moved))
    trace.tables, trace.parts = rest.tables, rest.parts
    if not is_chosen:
        trace.world = World(captures.number, names[captures.number - 1])
    return moved


def files_of_other_worlds(world: Trace, files: Table) -> dict[int, LeftOut]:
    """All files that are not in this world's tables, and why."""
    kept = set(world.table("files").array("file_id").tolist())
    reason = LeftOut(OTHER_WORLD, "is of another world, or of none", "")
    return {file: reason for file in files.array("file_id").tolist() if file not in kept}


# --- which worlds there are -------------------------------------------------------------------------------------------


def _alive_beside(trace: Trace, captures: Captures, owners: Mapping[int, int | None]) -> list[int]:
    spans = [_span(trace, captures.dumps[number - 1], number, owners) for number in range(1, len(captures.dumps) + 1)]
    first, last = spans[captures.number - 1]
    return [
        number
        for number, (capture, span) in enumerate(zip(captures.dumps, spans, strict=True), 1)
        if number != captures.number
        and MISSING not in (*span, first, last)
        and span[0] <= last
        and first <= span[1]
        and has_half_of_its_ranks(capture)
        and not _is_same_process(trace, captures.kept, capture)
    ]


def _span(trace: Trace, dumps: Sequence[Dump], number: int, owners: Mapping[int, int | None]) -> tuple[int, int]:
    """From when to when the world was alive. Of the dumps the usual times: the clock of one host may be off."""
    signs: list[int] = []
    for table, column in _LIFE_SIGNS:
        files, moments = trace.table(table).array("file_id"), trace.table(table).array(column)
        is_own = np.fromiter((owners.get(file) == number for file in files.tolist()), bool, len(files))
        signs += moments[is_own & (moments > 0)].tolist()
    first, last = median_low(dump.first_ns for dump in dumps), median_low(dump.last_ns for dump in dumps)
    return min([first, *signs]), max([last, *signs])


def _is_same_process(trace: Trace, one: Sequence[Dump], other: Sequence[Dump]) -> bool:
    """Dumps of one process at two moments, or copies, have calls that were made at the same nanosecond."""
    files, created = trace.table("collectives").array("file_id"), trace.table("collectives").array("created_ns")
    later = {dump.who: dump for dump in other}
    for dump in one:
        if dump.who in later:
            mine, theirs = (np.unique(created[files == each.file_id]) for each in (dump, later[dump.who]))
            n_same, n_fewest = len(np.intersect1d(mine, theirs, assume_unique=True)), min(len(mine), len(theirs))
            if n_fewest:
                return 2 * n_same >= n_fewest
    return False


def _names(captures: Sequence[Sequence[Dump]]) -> list[str]:
    """What the folders, else the names, of a capture have and the others have not."""
    folders = [frozenset.intersection(*(frozenset(dump.folders) for dump in capture)) for capture in captures]
    names = []
    for number, capture in enumerate(captures, 1):
        others = frozenset[str]().union(*folders[: number - 1], *folders[number:])
        distinct = [folder for folder in capture[0].folders if folder in folders[number - 1] - others]
        names.append("/".join(distinct) or _stem_name(capture, captures) or f"world {number}")
    return [name if names.count(name) == 1 else f"{name} ({number})" for number, name in enumerate(names, 1)]


def _stem_name(capture: Sequence[Dump], captures: Sequence[Sequence[Dump]]) -> str:
    """`trainer` where the files are called trainer_trace_rank_0 and rollout_trace_rank_0."""
    backwards = {tuple(reversed(each[0].stem)) for each in captures}
    n_common = _n_common(backwards) if len(backwards) > 1 else len(capture[0].stem)
    return capture[0].stem[: len(capture[0].stem) - n_common].strip("_-. ")


def _n_common(texts: Collection[Sequence[str]]) -> int:
    """How many items all of them begin with."""
    return sum(1 for _ in takewhile(lambda items: len(set(items)) == 1, zip(*texts, strict=False)))


# --- which files are of which world -----------------------------------------------------------------------------------


def _owners(
    files: Table, captures: Captures, joined: Mapping[int, int], numbers: Sequence[int]
) -> dict[int, int | None]:
    """For each file, the capture that it belongs to, among those numbered; None if that cannot be known."""
    owners: dict[int, int | None] = {
        dump.file_id: number for number, capture in enumerate(captures.dumps, 1) for dump in capture
    }
    owners.update({file: owners[other] for file, other in joined.items() if other in owners})
    for row in files.rows():
        if row["file_id"] not in owners and row["file_id"] != MISSING:
            owners[row["file_id"]] = _owner(row, captures, numbers)
    return owners


def _owner(row: Mapping[str, Any], captures: Captures, numbers: Sequence[int]) -> int | None:
    """By folder, else by name, else by rank. A file of no rank that is nobody's is left with the first world."""
    *folders, name = str(row["path"]).replace("!", "/").split("/")
    dumps = {number: captures.dumps[number - 1] for number in numbers}
    near = _best_of({number: max(_n_common((dump.folders, folders)) for dump in dumps[number]) for number in numbers})
    if len(near) > 1:
        near = _best_of({number: _n_common((dumps[number][0].stem, name)) for number in near})
    if len(near) > 1 and row["rank"] != MISSING:
        near = [number for number in near if row["rank"] in {dump.rank for dump in dumps[number]}]
        return near[0] if len(near) == 1 else None
    return near[0] if len(near) == 1 else captures.number


def _best_of(scores: Mapping[int, int]) -> list[int]:
    return [number for number, score in scores.items() if score == max(scores.values())]


def _part_of(trace: Trace, files: Sequence[int]) -> Trace:
    return _selected(trace, files, is_wanted=True)


def _without(trace: Trace, files: Sequence[int]) -> Trace:
    return _selected(trace, files, is_wanted=False)


def _selected(trace: Trace, files: Sequence[int], *, is_wanted: bool) -> Trace:
    """The rows of some files; tables that know no file, as that of frames, are shared."""
    wanted = np.array(files, np.int32)

    def rows(file_ids: Array) -> Array:
        chosen: Array = np.flatnonzero(np.isin(file_ids, wanted) == is_wanted)
        return chosen

    tables = {
        name: table.take(rows(table.array("file_id"))) if "file_id" in table.columns else table
        for name, table in trace.tables.items()
    }
    parts = {
        name: [part for part in held if (part.file_id in files) == is_wanted] for name, held in trace.parts.items()
    }
    return Trace(trace.paths, tables, {name: held for name, held in parts.items() if held})
