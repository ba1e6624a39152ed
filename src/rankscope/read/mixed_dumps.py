"""Separates the Flight Recorder dumps of one folder by job and attempt.

A dump does not name its job. Dumps are from different captures when they are in different folders and claim the same
ranks, or when their default groups have different members. One capture is judged; within it, dumps of another moment
are left out (stale_dumps.py).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from itertools import pairwise

import msgspec
import numpy as np

from rankscope.model.finding import count_noun, format_ranks
from rankscope.model.numbers import whole
from rankscope.model.replicas import is_default_group, outsiders
from rankscope.model.tables import MISSING, Table, Text, distinct
from rankscope.read.stale_dumps import MAX_APART_NS, Dump, LeftOut, stale_dumps

OTHER_CAPTURE = "other-capture"


@dataclass(frozen=True)
class Captures:
    """The captures that the dumps belong to, the newest first, counted from 1 like `--capture N`."""

    dumps: Sequence[Sequence[Dump]]
    number: int  # of the one that is judged, or judged first; 0 where there are no dumps

    @property
    def kept(self) -> Sequence[Dump]:
        return self.dumps[self.number - 1] if self.number else ()

    def described(self, number: int) -> str:
        return f"number {number} of {len(self.dumps)}, {_described(self.dumps[number - 1])}"


def find_captures(tables: Mapping[str, Table], chosen: int | None = None) -> Captures:
    captures = _captures(_dumps(tables))
    return Captures(captures, chosen if chosen and chosen <= len(captures) else _best(captures))


def leave_out_other_captures(tables: dict[str, Table], captures: Captures) -> dict[int, LeftOut]:
    """Keeps the dumps of one capture in every table; by file, why the others were left out."""
    kept = captures.kept
    left: dict[int, LeftOut] = {}
    for other, capture in enumerate(captures.dumps, 1):
        if other != captures.number:
            when = " at the same time" if abs(_last(capture) - _last(kept)) <= MAX_APART_NS else ""
            text = f"belongs to another capture{when}: {captures.described(other)}"
            reason = LeftOut(OTHER_CAPTURE, text, f"add --capture {other}")
            left.update(dict.fromkeys((dump.file_id for dump in capture), reason))
    left.update(stale_dumps(tables, kept))
    _drop(tables, left)
    ranks = tables["ranks"]
    if len(captures.dumps) > 1 and len(set(ranks.text("host").tolist())) == 1:
        # The folder of the capture, not that of a host.
        tables["ranks"] = ranks.replaced({"host": Text.constant("", len(ranks))})
    return left


def _drop(tables: dict[str, Table], left: Mapping[int, LeftOut]) -> None:
    gone = np.array(list(left), np.int32)
    for name in ("ranks", "collectives", "group_config", "group_status") if left else ():
        if name in tables:
            tables[name] = tables[name].take(np.flatnonzero(~np.isin(tables[name].array("file_id"), gone)))


def _described(capture: Sequence[Dump]) -> str:
    ranks = sorted({dump.rank for dump in capture})
    last_ns = _last(capture)
    until = f", until {_clock(last_ns)}" if last_ns != MISSING else ""
    where = f"in {_folder(capture)}, named {capture[0].stem}*"
    return f"{count_noun(len(ranks), 'rank')} ({format_ranks(ranks, 8)}) {where}{until}"


def _last(capture: Sequence[Dump]) -> int:
    return max(dump.last_ns for dump in capture)


def _clock(moment_ns: int) -> str:
    return datetime.fromtimestamp(moment_ns / 1e9, timezone.utc).strftime("%Y-%m-%d %H:%M:%S UTC")


def _folder(capture: Sequence[Dump]) -> str:
    folders = {"/".join(dump.folders) for dump in capture}
    return sorted(folders)[0] + (f" and {count_noun(len(folders) - 1, 'other folder')}" if len(folders) > 1 else "")


def _dumps(tables: Mapping[str, Table]) -> list[Dump]:
    files, ranks, calls = tables["files"], tables["ranks"], tables.get("collectives")
    paths = dict(zip(files.array("file_id").tolist(), files.text("path").tolist(), strict=True))
    spans = _spans(calls) if calls is not None else {}
    worlds = _worlds(tables["group_config"]) if "group_config" in tables else {}
    cut = set(files.array("file_id")[files.text("status").equals("damaged")].tolist())
    dumps = []
    for row in ranks.rows():
        *folders, name = paths.get(row["file_id"], "").replace("!", "/").split("/")
        first_ns, last_ns = spans.get(row["file_id"], (MISSING, MISSING))
        stem = name.replace(str(row["rank"]), "", 1) if str(row["rank"]) in name else name
        dumps.append(
            Dump(
                file_id=row["file_id"],
                rank=row["rank"],
                recorder=row["recorder"],
                folders=tuple(folders),
                stem=stem,
                first_ns=first_ns,
                last_ns=last_ns,
                world=worlds.get(row["file_id"]),
                is_cut=row["file_id"] in cut,
            )
        )
    return dumps


def _spans(calls: Table) -> dict[int, tuple[int, int]]:
    """First and last time in each file."""
    files, created = calls.array("file_id"), calls.array("created_ns")
    n_files = whole(files.max(initial=-1)) + 1
    first, last = np.full(n_files, np.iinfo(np.int64).max), np.full(n_files, MISSING, np.int64)
    np.minimum.at(first, files, created)
    np.maximum.at(last, files, created)
    return {file: (whole(first[file]), whole(last[file])) for file in distinct(files).tolist()}


def _worlds(config: Table) -> dict[int, frozenset[int]]:
    """The members of each file's default group; those of replicas say nothing about the job."""
    worlds: dict[int, frozenset[int]] = {}
    for row in config.rows() if not outsiders(config) else ():
        if is_default_group(row["name"], row["description"]):
            members: list[int] = msgspec.json.decode(row["members"])
            if members:
                worlds[row["file_id"]] = frozenset(members)
    return worlds


# --- which dumps are of one job and attempt ---------------------------------------------------------------------------


def _captures(dumps: Sequence[Dump]) -> list[list[Dump]]:
    """The newest first."""
    parts = [
        part
        for by_place in _split(dumps, _places(dumps))
        for by_name in _split_by_name(by_place)
        for by_world in _split_by_world(by_name)
        for part in _split_by_time(by_world)
    ]
    return sorted(parts, key=lambda part: max(dump.last_ns for dump in part), reverse=True)


def _split(dumps: Sequence[Dump], labels: Iterable[Hashable]) -> list[list[Dump]]:
    parts: dict[Hashable, list[Dump]] = defaultdict(list)
    for dump, label in zip(dumps, labels, strict=True):
        parts[label].append(dump)
    return list(parts.values())


def _places(dumps: Sequence[Dump]) -> list[tuple[str, ...]]:
    """The part of each path in which files of the same rank differ: a/host0/rank_0 and b/host0/rank_0 -> a, b."""
    depths: set[int] = set()
    by_rank: dict[tuple[int, str], list[Dump]] = defaultdict(list)
    for dump in dumps:
        by_rank[dump.who].append(dump)
    for same in by_rank.values():
        for other in same[1:]:
            longest = max(len(same[0].folders), len(other.folders))
            pair = (same[0].folders + ("",) * longest, other.folders + ("",) * longest)
            differs = (depth for depth in range(longest) if pair[0][depth] != pair[1][depth])
            depths.update([next(differs)] if same[0].folders != other.folders else [])
    chosen = sorted(depths)
    return [tuple(dump.folders[depth] if depth < len(dump.folders) else "" for depth in chosen) for dump in dumps]


def _split_by_name(dumps: Sequence[Dump]) -> list[list[Dump]]:
    """Splits by what the names have besides the rank, if then no rank occurs twice and no name has a single file."""
    if not _has_doubles(dumps):
        return [list(dumps)]
    parts = _split(dumps, [dump.stem for dump in dumps])
    is_clear = len(parts) > 1 and all(len(part) > 1 and not _has_doubles(part) for part in parts)
    return parts if is_clear else [list(dumps)]


def _has_doubles(dumps: Sequence[Dump]) -> bool:
    return len({dump.who for dump in dumps}) < len(dumps)


def _split_by_world(dumps: Sequence[Dump]) -> list[list[Dump]]:
    """A process is in one default group: dumps that list other members belong to another job, or a resized one."""
    worlds = {dump.world for dump in dumps if dump.world is not None}
    if sum(map(len, worlds)) == len(frozenset().union(*worlds)):  # one, or several side by side
        return [list(dumps)]
    labels = [dump.world or next((world for world in worlds if dump.rank in world), None) for dump in dumps]
    return _split(dumps, labels)


def _split_by_time(dumps: Sequence[Dump]) -> list[list[Dump]]:
    """Where ranks left several dumps at one place: those of one time belong together."""
    if not _has_doubles(dumps):
        return [list(dumps)]
    ordered = sorted(dumps, key=lambda dump: dump.last_ns)
    gaps = [after.last_ns - before.last_ns > MAX_APART_NS for before, after in pairwise(ordered)]
    parts = _split(ordered, np.cumsum([0, *gaps]).tolist())
    return parts if all(len(part) > 1 for part in parts) else [list(dumps)]


def has_half_of_its_ranks(capture: Sequence[Dump]) -> bool:
    ranks = {dump.rank for dump in capture}
    return 2 * len(ranks) >= max((len(dump.world) for dump in capture if dump.world), default=max(ranks) + 1)


def _best(captures: Sequence[Sequence[Dump]]) -> int:
    """The newest that has at least half of its ranks, else the one with the most ranks."""
    for number, capture in enumerate(captures, 1):
        if has_half_of_its_ranks(capture):
            return number
    sizes = [len({dump.rank for dump in capture}) for capture in captures]
    return sizes.index(max(sizes)) + 1 if sizes else 0
