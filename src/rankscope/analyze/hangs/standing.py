"""Where each rank's main thread stood when its stacks were written, and what that adds to a verdict about a hang."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import msgspec
import numpy as np

from rankscope.analyze.derived import derived
from rankscope.analyze.hangs.cause import Cause
from rankscope.analyze.hangs.evidence import frame_location, frames_of_stack, place_text, user_part
from rankscope.analyze.hangs.signatures import user_points
from rankscope.analyze.hangs.view import JobView
from rankscope.model.finding import Finding, Location, StackGroup, ranks_phrase
from rankscope.model.tables import MISSING, Trace

_SHORTEST_STAY_NS = 10**9  # two looks at a thread within a moment show the same place in any job
_IN_COLLECTIVE = re.compile(r"(^|/)torch/distributed/(distributed_c10d|_functional_collectives)\.py$")
# The collector writes an exception that ends a rank as its type and text; an interrupt is the user's, not the cause.
_RAISED = re.compile(r"(?!KeyboardInterrupt\b|SIG)[A-Za-z_][\w.]*(: |$)|Fatal Python error: ")
_MAX_PLACES = 4
# Verdicts whose culprits' own calls do not show where they are now.
_ASKS_WHERE = frozenset(("rank-stuck", "rank-lost", "collective-stalled"))


class Standing(NamedTuple):
    """The newest that is known of one rank's main thread."""

    rank: int
    time_ns: int
    reason: str
    point: int  # code of the user's part of the stack
    stack: int
    site: int  # the user's innermost frame, MISSING where the thread is in nobody's code
    has_stayed: bool  # the stacks before show it at the same point


def standings_of(trace: Trace) -> dict[int, Standing]:
    return derived(trace, _find_standings)


def endings_of(trace: Trace) -> dict[int, Standing]:
    """The ranks that an exception ended, as they stood when it was raised."""
    return {rank: standing for rank, standing in standings_of(trace).items() if _RAISED.match(standing.reason)}


def _find_standings(trace: Trace) -> dict[int, Standing]:
    table = trace.table("thread_stacks")
    mains = table.take(np.flatnonzero(table.array("is_main")))
    points = user_points(trace.table("stacks"), trace.table("frames"))
    history: dict[int, list[dict[str, Any]]] = defaultdict(list)
    for row in mains.rows():
        history[row["rank"]].append(row)
    found: dict[int, Standing] = {}
    for rank, rows in history.items():
        *earlier, last = sorted(_dated(rows), key=lambda row: (row["time_ns"], row["file_id"], row["section"]))
        point = int(points[last["stack_id"]])
        before = [row for row in earlier if last["time_ns"] - row["time_ns"] >= _SHORTEST_STAY_NS]
        has_stayed = bool(before) and int(points[before[-1]["stack_id"]]) == point
        place = (point, last["stack_id"], last["site_id"])
        found[rank] = Standing(rank, last["time_ns"], last["reason"], *place, has_stayed)
    return found


def _dated(rows: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Stacks that tell no time are at least as new as those before them in their file."""
    newest: dict[int, int] = {}
    dated = []
    for row in sorted(rows, key=lambda row: (row["file_id"], row["section"])):
        newest[row["file_id"]] = max(row["time_ns"], newest.get(row["file_id"], MISSING))
        dated.append({**row, "time_ns": newest[row["file_id"]]})
    return dated


def location_of_standing(trace: Trace, standing: Standing) -> Location | None:
    return frame_location(trace, standing.site) if standing.site != MISSING else None


def standing_text(trace: Trace, standing: Standing) -> str:
    """`load_batch (data.py:31), inside read (ssl.py:1130)`."""
    innermost = _frames(trace, standing)[:1]
    texts = [place_text(frame_location(trace, frame)) for frame in innermost]
    own = location_of_standing(trace, standing)
    if own is None:
        return texts[0] if texts else "a thread without Python frames"
    inside = [text for text in texts if text != place_text(own)]
    return ", inside ".join([place_text(own), *inside])


def is_in_collective(trace: Trace, standing: Standing) -> bool:
    files = trace.table("frames").text("file")
    return any(_IN_COLLECTIVE.search(files[frame]) for frame in _frames(trace, standing))


def _frames(trace: Trace, standing: Standing) -> list[int]:
    stacks = trace.table("stacks")
    return frames_of_stack(stacks.array("stack_id"), stacks.array("frame_id"), standing.stack)


def places(standings: Sequence[Standing]) -> list[list[Standing]]:
    """Ranks that stand at the same point together, the rarest point first."""
    together: dict[int, list[Standing]] = defaultdict(list)
    for standing in sorted(standings):
        together[standing.point].append(standing)
    return sorted(together.values(), key=lambda group: (len(group), group[0].rank))


def standing_stacks(trace: Trace, standings: Sequence[Standing], when: str = "") -> tuple[StackGroup, ...]:
    groups = []
    for group in places(standings)[:_MAX_PLACES]:
        frames, n_hidden = user_part(trace, group[0].stack)
        ranks = tuple(standing.rank for standing in group)
        if frames:
            groups.append(StackGroup(ranks, f"{ranks_phrase(ranks)} {when}" if when else "", frames, n_hidden))
    return tuple(groups)


def with_standing(view: JobView, cause: Cause, finding: Finding) -> Finding:
    """The finding, with where the culprits' main threads are now, if their stacks are at hand."""
    trace = view.trace
    if cause.rule not in _ASKS_WHERE or not trace.has("thread_stacks"):
        return finding
    found = standings_of(trace)
    current = [found[rank] for rank in cause.ranks if rank in found and is_current(view, found[rank])]
    if not current:
        return finding
    said = tuple(
        f"the main thread of {ranks_phrase([standing.rank for standing in group])} is in "
        f"{standing_text(trace, group[0])}"
        for group in places(current)[:_MAX_PLACES]
    )
    evidence = msgspec.structs.replace(
        finding.evidence,
        certain=(*finding.evidence.certain, *said),
        stacks=(*standing_stacks(trace, current, "now"), *finding.evidence.stacks),
    )
    finding = msgspec.structs.replace(finding, evidence=evidence)
    return finding if cause.rule == "collective-stalled" else _placed(trace, places(current)[0][0], finding)


def _placed(trace: Trace, standing: Standing, finding: Finding) -> Finding:
    """For ranks that came to no call, or left no record of it, the place where they stand is the answer."""
    likely = f"rank {standing.rank} is stuck or busy there"
    advice = f"find out why rank {standing.rank} does not leave {standing_text(trace, standing)}"
    title = finding.title
    if _RAISED.match(standing.reason):
        title = title.replace(f"rank {standing.rank} ", f"rank {standing.rank} raised {standing.reason}; it ", 1)
        likely = f"rank {standing.rank} ended there: {standing.reason}"
        advice = f"correct what raised on rank {standing.rank} in {standing_text(trace, standing)}"
    elif is_in_collective(trace, standing):
        likely = f"rank {standing.rank} waits there in a call that its recorder does not show"
    return msgspec.structs.replace(
        finding,
        title=title,
        location=location_of_standing(trace, standing) or finding.location,
        evidence=msgspec.structs.replace(finding.evidence, likely=(likely, *finding.evidence.likely[1:])),
        help=advice,
    )


def is_current(view: JobView, standing: Standing) -> bool:
    """False for stacks that are older than the rank's newest call: it has gone on since."""
    rows = view.rows_of(standing.rank)
    newest = int(view.calls.array("created_ns")[rows[-1]]) if len(rows) else MISSING
    return standing.time_ns == MISSING or standing.time_ns >= newest
