"""H115: all recorded calls completed, but the job hangs: outside of the collectives."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Literal, NamedTuple

import numpy as np

from rankscope.analyze.hangs.evidence import call_text, group_ref, location_of, site_text, stack_groups
from rankscope.analyze.hangs.standing import (
    STALLS,
    Standing,
    endings_of,
    is_current,
    location_of_standing,
    places,
    standing_stacks,
    standing_text,
    standings_of,
)
from rankscope.analyze.hangs.symptoms import rank_elsewhere
from rankscope.analyze.hangs.verdict import causes_of
from rankscope.analyze.hangs.view import JobView, job_view
from rankscope.analyze.manifests import ended_well
from rankscope.analyze.registry import Effect, Skipped, rule
from rankscope.model.finding import (
    Certainty,
    Evidence,
    Finding,
    Location,
    Severity,
    StackGroup,
    count_noun,
    ranks_phrase,
)
from rankscope.model.tables import MISSING, Trace

_MAX_PLACES = 4
_FIRST_SIGNAL = 129  # exit codes from here on say that a signal ended the job
_COLLECT = (
    "collect where each rank is while the job hangs: `rankscope snapshot DIR` if it runs under `rankscope record`, "
    "else `py-spy dump --pid PID` for each rank"
)


class _Sign(NamedTuple):
    """What suggests that the job hung, and how reliable that is."""

    kind: Literal["stall", "signal", "look"]
    severity: Severity
    certainty: Certainty
    text: str


@rule("H115", "hang-outside", needs=("collectives", "groups"))
def hang_outside(trace: Trace) -> Iterator[Finding | Effect | Skipped]:
    """All recorded calls completed, but the job hangs: the cause is outside of the collectives.

    What it means: no rank is waiting in a recorded call, so no rank blocks another one there. The job is blocked in
    the program between the calls. The finding shows where each rank is, or its last call.

    Why it happens: all ranks wait for a data loader, a lock, a file system or a checkpoint; a compilation; a wait in
    something that the Flight Recorder does not see (the store, an RPC, a barrier over TCP); a long evaluation.

    What to do: check the line where the ranks are. Without stacks, collect them while the job hangs:
    `rankscope snapshot DIR` for a job under `rankscope record`, else `py-spy dump --pid PID` for each rank.

    What could fool it: this is an error only if stacks newer than the rank's last call were written because nothing
    moved (by the collector's or torch's watchdog). Even then, a checkpoint or an evaluation that takes longer than the
    watchdog's timeout looks the same. Stacks that were written on request, and ranks that a signal ended, are only a
    note: a healthy job can be inspected or stopped between two calls. Dumps alone do not prove a hang, because torch
    also writes them on request. A job that is known to have ended normally did not hang. Calls that ended only because
    they were aborted after their timeout count as unfinished and are left to other rules. If the job continued after
    the dumps were written, its later calls are not in them.
    """
    why_not = _why_not(trace)
    if why_not:
        yield Skipped(why_not)
        return
    view = job_view(trace)
    if causes_of(trace) or not len(view.calls) or not all(view.is_idle(rank) for rank in view.ranks):
        return
    if any(isinstance(result, Finding) for result in rank_elsewhere(trace)):
        return  # which names the ranks that the others wait for
    sign = _sign_of_hang(view)
    if sign is None:
        yield Skipped(
            f"all calls completed, and the data does not show whether the job hung outside of them; if so, {_COLLECT}"
        )
        return
    yield _describe(view, sign)


def _why_not(trace: Trace) -> str:
    if ended_well(trace):
        return "the job ended normally"
    if endings_of(trace) or trace.table("manifests").text("ending").equals("exception").any():
        return "a rank ended with an exception: the job failed and did not hang"
    return ""


def _sign_of_hang(view: JobView) -> _Sign | None:
    stall = _stall(view)
    if stall is not None:
        is_dated, reason = stall
        text = f"stacks were written because: {reason}"
        return _Sign("stall", "error", "likely", text) if is_dated else _Sign("stall", "warning", "possible", text)
    ranks = _ended_by_signal(view.trace)
    if ranks:
        verb = "was" if len(ranks) == 1 else "were"
        return _Sign("signal", "info", "possible", f"{ranks_phrase(ranks)} {verb} ended by a signal")
    if _current(view):
        return _Sign("look", "info", "possible", "stacks were written while no rank waited in a recorded call")
    return None


def _stall(view: JobView) -> tuple[bool, str] | None:
    """Why stacks were written after the rank's last call, if because nothing moved; stacks with a time first."""
    table = view.trace.table("thread_stacks")
    reasons = table.text("reason")
    is_hang = np.fromiter((STALLS.search(reason) is not None for reason in reasons.values), bool, len(reasons.values))
    stalls = []
    for row in np.flatnonzero(is_hang[reasons.codes]).tolist() if len(table) else ():
        rank, time_ns = int(table.array("rank")[row]), int(table.array("time_ns")[row])
        if time_ns == MISSING or time_ns >= _newest_call_ns(view, rank):
            stalls.append((time_ns != MISSING, reasons[row]))
    return max(stalls, key=lambda stall: stall[0], default=None)


def _newest_call_ns(view: JobView, rank: int) -> int:
    rows = view.rows_of(rank)
    return int(view.calls.array("created_ns")[rows[-1]]) if len(rows) else MISSING


def _ended_by_signal(trace: Trace) -> list[int]:
    manifests = trace.table("manifests")
    by_signal = manifests.text("ending").equals("signal") | (manifests.array("exit_code") >= _FIRST_SIGNAL)
    return sorted(set(manifests.array("rank")[by_signal].tolist()))


def _current(view: JobView) -> list[Standing]:
    return [standing for standing in standings_of(view.trace).values() if is_current(view, standing)]


class _Whereabouts(NamedTuple):
    """Where the ranks are: from their stacks, else from their last calls."""

    title: str
    lines: tuple[str, ...]
    location: Location | None
    stacks: tuple[StackGroup, ...]
    unknown: tuple[int, ...]  # other members of the groups


def _describe(view: JobView, sign: _Sign) -> Finding:
    standings = _current(view)
    where = _by_stacks(view, standings) if standings else _by_calls(view)
    if sign.kind == "stall":
        title = f"the job hangs outside of its recorded calls, which all completed: {where.title}"
    elif sign.kind == "signal":
        title = f"no rank was waiting in a recorded call when a signal ended the job: {where.title}"
    else:
        title = f"no rank is waiting in a recorded call: {where.title}"
    unknown = where.unknown
    lost = (f"the data does not show where {ranks_phrase(unknown)} {_is(unknown)}",) if unknown else ()
    is_hang = sign.kind == "stall"
    return Finding(
        severity=sign.severity,
        certainty=sign.certainty,
        title=title,
        location=where.location,
        evidence=Evidence(
            certain=("all recorded calls completed on all ranks", *where.lines),
            likely=("the job is blocked between its calls, not in one of them",) if is_hang else (),
            notes=(sign.text, *lost),
            stacks=where.stacks,
        ),
        help=_advice(view, standings, is_hang=is_hang),
    )


def _advice(view: JobView, standings: Sequence[Standing], *, is_hang: bool) -> str:
    if not standings:
        return f"if the job hung, {_COLLECT}"
    rarest = places(standings)[0]
    leave = "does" if len(rarest) == 1 else "do"
    who = ranks_phrase([standing.rank for standing in rarest])
    question = f"find out why {who} {leave} not leave {standing_text(view.trace, rarest[0])}"
    return question if is_hang else f"if the job hung, {question}"


def _by_stacks(view: JobView, standings: Sequence[Standing]) -> _Whereabouts:
    trace, together = view.trace, places(standings)
    texts = [([standing.rank for standing in group], standing_text(trace, group[0])) for group in together]
    return _Whereabouts(
        _in_short([f"{ranks_phrase(ranks)} {_is(ranks)} in {text}" for ranks, text in texts]),
        tuple(f"the main thread of {ranks_phrase(ranks)} is in {text}" for ranks, text in texts[:_MAX_PLACES]),
        location_of_standing(trace, together[0][0]),
        standing_stacks(trace, standings),
        _others(view, {standing.rank for standing in standings}),
    )


def _by_calls(view: JobView) -> _Whereabouts:
    """The ranks grouped by their last call, the rarest call first."""
    together: dict[str, list[int]] = defaultdict(list)
    for rank in view.ranks:
        rows = view.rows_of(rank)
        if len(rows):
            together[_last_call(view, int(rows[-1]))].append(rank)
    texts = sorted(((ranks, text) for text, ranks in together.items()), key=lambda group: (len(group[0]), group[0]))
    lasts = {rank: int(view.rows_of(rank)[-1]) for ranks, _ in texts for rank in ranks}
    return _Whereabouts(
        _in_short([f"the last call of {ranks_phrase(ranks)} was {text}" for ranks, text in texts]),
        tuple(f"the last call of {ranks_phrase(ranks)} was {text}" for ranks, text in texts[:_MAX_PLACES]),
        location_of(view, lasts[texts[0][0][0]]),
        stack_groups(view, lasts.values(), "last call"),
        _others(view, set(lasts)),
    )


def _last_call(view: JobView, row: int) -> str:
    """`all_reduce [8] f32 (dp) in average (train.py:40)`: the same text for all groups of one role."""
    group = group_ref(view, int(view.group[row]))
    site = site_text(view, row)
    return f"{call_text(view, row)} ({group.desc or f'group {group.name}'})" + (f" in {site}" if site else "")


def _in_short(places_of_ranks: Sequence[str]) -> str:
    """The two most frequent places."""
    n_more = len(places_of_ranks) - 2
    more = f", and others in {count_noun(n_more, 'more place')}" if n_more > 0 else ""
    return ", ".join(places_of_ranks[::-1][:2]) + more


def _is(ranks: Sequence[int]) -> str:
    return "is" if len(ranks) == 1 else "are"


def _others(view: JobView, known: set[int]) -> tuple[int, ...]:
    everyone = {rank for members in view.members for rank in members} | view.dumped
    return tuple(sorted(everyone - known))
