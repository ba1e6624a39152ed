"""Tells apart the profiles of worlds that ran side by side, where no dump does: by folders with the same ranks at once.

Folders below such a folder, as those of hosts, belong to its world. A copy is no other world.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from itertools import combinations

from rankscope.model.tables import MISSING, Trace
from rankscope.read.mixed_dumps import Captures
from rankscope.read.stale_dumps import Dump


def profiled_captures(trace: Trace, chosen: int | None) -> Captures:
    """One capture for each world; none where there is only one, or where folders do not tell."""
    profiles = _profiles(trace)
    longest = max((len(each.folders) for each in profiles), default=0)
    for depth in range(longest + 1):
        by_folder: dict[tuple[str, ...], list[Dump]] = defaultdict(list)
        for each in profiles:
            by_folder[each.folders[:depth]].append(each)
        worlds = [by_folder[folder] for folder in sorted(by_folder)]
        if len(worlds) > 1 and all(_are_apart(*pair) for pair in combinations(worlds, 2)):
            return Captures(worlds, chosen if chosen and chosen <= len(worlds) else 1)
    return Captures((), 0)


def _profiles(trace: Trace) -> list[Dump]:
    files = trace.table("files")
    paths = dict(zip(files.array("file_id").tolist(), files.text("path").tolist(), strict=True))
    profiles = [row for row in trace.table("profiles").rows() if row["rank"] != MISSING]
    ranks = frozenset(row["rank"] for row in profiles)
    dumps = []
    for row in profiles:
        *folders, name = paths.get(row["file_id"], "").replace("!", "/").split("/")
        stem = name.replace(str(row["rank"]), "", 1)
        dumps.append(
            Dump(row["file_id"], row["rank"], "", tuple(folders), stem, row["start_ns"], row["end_ns"], ranks, False)
        )
    return dumps


def _are_apart(one: Sequence[Dump], other: Sequence[Dump]) -> bool:
    """Whether they have the same ranks, with two recordings of one rank from the same time that are not the same."""
    if {each.rank for each in one} != {each.rank for each in other}:
        return False
    spans = defaultdict(list)
    for each in other:
        spans[each.rank].append((each.first_ns, each.last_ns))
    pairs = [((each.first_ns, each.last_ns), span) for each in one for span in spans[each.rank]]
    is_copy = any(mine == theirs for mine, theirs in pairs)
    return not is_copy and any(mine[0] < theirs[1] and theirs[0] < mine[1] for mine, theirs in pairs)
