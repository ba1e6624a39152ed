"""H110 to H113: what states of calls, stacks and exceptions show in addition to the cause, or without dumps."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from rankscope.analyze.hangs.evidence import call_text, group_ref, group_text, location_of, place_text
from rankscope.analyze.hangs.standing import (
    STALLS,
    Standing,
    endings_of,
    gave_up,
    is_in_collective,
    location_of_standing,
    places,
    standing_stacks,
    standing_text,
    standings_of,
    victims_of,
)
from rankscope.analyze.hangs.verdict import causes_of
from rankscope.analyze.hangs.view import JobView, job_view
from rankscope.analyze.hangs.wording import blind_backend, peers_phrase
from rankscope.analyze.manifests import came_to_an_end, ended_well
from rankscope.analyze.registry import Effect, Skipped, rule
from rankscope.model.finding import Comparison, Evidence, Finding, Side, count_noun, format_duration, ranks_phrase
from rankscope.model.tables import MISSING, Array, Trace

_MAX_GROUPS = 8
_SAME_TIME_NS = 600 * 10**9  # stacks of one hang: watchdogs fire, and people press keys, some minutes apart
_MAX_ODD = 4  # at most a quarter of the ranks is odd; more are another part of the program
_MAX_SAID = 4
_NO_MAIN = "no stack trace of a rank's main thread"
_MAX_LATER = 3


@rule("H110", "late-completion", needs=("collectives", "groups"))
def late_completion(trace: Trace) -> Iterator[Finding | Effect]:
    """Collectives are recorded as completed, but only after their timeout: they were aborted.

    What it means: when a communicator is aborted, its stuck kernels end, and the recorder then writes `completed`.
    These calls did not succeed; rankscope treats them as unfinished.

    Why it happens: the watchdog's timeout expired, and the job was torn down before the dump was written.

    What to do: nothing about these calls; fix the cause in the first finding.

    What could fool it: a watchdog that itself hung for longer than the timeout records normal completions late.
    """
    view = job_view(trace)
    rows = np.flatnonzero(view.calls.text("status").equals("aborted"))
    if not len(rows):
        return
    ranks = tuple(sorted({int(rank) for rank in view.rank[rows]}))
    first = int(rows[np.argmin(view.created[rows])])
    timeout = format_duration(int(view.calls.array("timeout_ns")[first]))
    yield Finding(
        severity="info",
        certainty="certain",
        title=f"{count_noun(len(rows), 'call')} of {count_noun(len(ranks), 'rank')} ended only after the timeout of "
        f"{timeout}: they were aborted and did not complete",
        ranks=(),
        group=group_ref(view, int(view.group[first])),
        location=location_of(view, first),
        evidence=Evidence(
            certain=("they count as unfinished, although their recorded state is `completed`",),
            facts={"n_calls": len(rows), "ranks": list(ranks[:64])},
        ),
        help="fix the first error in this report: the aborts follow from it",
    )


@rule("H111", "unfinished", needs=("collectives", "groups"))
def unfinished(trace: Trace) -> Iterator[Finding | Effect | Skipped]:
    """The first unfinished collective of each group.

    What it means: one line per process group that shows where its progress ended. In a hang, one group usually blocks
    most of the others.

    Why it happens: the job hangs, or the dumps were taken while it was running.

    What to do: read the cause first; this list shows how far each group got.

    What could fool it: dumps of a running job are not taken at the same instant, so some of the newest calls always
    look unfinished.
    """
    if ended_well(trace) or came_to_an_end(trace):
        yield Skipped("the job ended normally: calls that look unfinished completed after the dumps were written")
        return
    view = job_view(trace)
    matches = trace.table("matches")
    is_open = np.flatnonzero(~matches.array("is_p2p") & (matches.array("n_done") < matches.array("n_joined")))
    groups, first = np.unique(matches.array("group_id")[is_open], return_index=True)
    if not len(groups):
        if not causes_of(trace):
            yield from _unnoticed(view)
            yield from _unrecorded(view)
        return
    firsts = is_open[first]
    order = np.argsort(matches.array("first_created_ns")[firsts], kind="stable")
    rows = [view.rows_of_match(int(match)) for match in firsts[order]]
    shown = rows[:_MAX_GROUPS]
    oldest = int(rows[0][0])
    where = f"{group_text(view, int(view.group[oldest]))}, seq {int(view.seq[oldest])}"
    n_more = len(rows) - len(shown)
    finding = Finding(
        severity="info",
        certainty="certain",
        title=f"{count_noun(len(groups), 'group')} {'has' if len(groups) == 1 else 'have'} an unfinished collective; "
        f"the oldest is {call_text(view, oldest)} of {where}",
        evidence=Evidence(
            comparison=_progress(view, shown),
            notes=(f"{count_noun(n_more, 'more group')}: `rankscope query PATH 'select * from matches'`",)
            if n_more
            else (),
            facts={"n_groups": len(groups)},
        ),
    )
    # With a cause this is one of its effects; alone it is the status of a job that was still running.
    yield Effect(finding) if causes_of(trace) else finding


def _unnoticed(view: JobView) -> Iterator[Finding]:
    """Completions that peers recorded and a rank did not: most likely its dump is a little older, so no warning."""
    is_inferred = view.calls.array("status_inferred") & ~view.ends_unrecorded
    rows = np.flatnonzero(is_inferred & view.is_done & ~view.is_p2p & ~view.is_member)
    if not len(rows):
        return
    ranks = tuple(np.unique(view.rank[rows]).tolist())
    dumps = f"the dump of rank {ranks[0]} was" if len(ranks) == 1 else f"the dumps of {ranks_phrase(ranks)} were"
    first = int(rows[np.argmin(view.created[rows])])
    where = f"seq {int(view.seq[first])} of {group_text(view, int(view.group[first]))}"
    later = f" and {count_noun(len(rows) - 1, 'later call')}" if len(rows) > 1 else ""
    yield Finding(
        severity="info",
        certainty="certain",
        title=f"{ranks_phrase(ranks)} did not record that {call_text(view, first)} ({where}){later} completed, "
        "but peers did",
        group=group_ref(view, int(view.group[first])),
        location=location_of(view, first),
        evidence=Evidence(
            likely=(f"{dumps} taken a moment before the others",),
            notes=("counted as done; `rankscope fr PATH -j` marks them as inferred",),
            facts={"n_calls": len(rows), "ranks": list(ranks[:64])},
        ),
        help=f"if the job hung when the dumps were taken, check {ranks_phrase(ranks)} for device and link errors",
    )


def _unrecorded(view: JobView) -> Iterator[Finding]:
    """All ranks made the same calls, and no rank recorded their ends: whether the job hangs is unknown."""
    for group, name in list(view.blind_groups.items())[:_MAX_GROUPS]:
        last = int(np.flatnonzero(view.ends_unrecorded & (view.group == group))[-1])
        members = view.members[group]
        where = f"seq {int(view.seq[last])} of {group_text(view, group)}"
        yield Finding(
            severity="info",
            certainty="certain",
            title=f"the dumps do not show whether the last call, {call_text(view, last)} ({where}), completed",
            group=group_ref(view, group),
            location=location_of(view, last),
            evidence=Evidence(
                certain=("all members of the group made the same number of calls", blind_backend(view, group)),
                notes=("counted as done; `rankscope fr PATH -j` marks them as inferred",),
                facts={"backend": name, "n_members": len(members)},
            ),
            help="if the job hung, collect the Python stacks of its ranks: run it under `rankscope record`, or use "
            "`py-spy dump --pid PID`",
        )


def _progress(view: JobView, shown: Sequence[Array]) -> Comparison:
    """The first unfinished collective of each group, and how many members are waiting in it."""
    firsts = [int(rows[0]) for rows in shown]
    n_waiting = [int(np.count_nonzero(~view.is_done[rows])) for rows in shown]
    sizes = [len(view.members[int(view.group[row])]) for row in firsts]
    return Comparison(
        "group",
        tuple(group_text(view, int(view.group[row])) for row in firsts),
        (
            Side("first unfinished", (), tuple(f"seq {int(view.seq[row])}  {call_text(view, row)}" for row in firsts)),
            Side("waiting", (), tuple(f"{n} of {size}" for n, size in zip(n_waiting, sizes, strict=True))),
        ),
    )


@rule("H112", "rank-elsewhere", needs=("thread_stacks",))
def rank_elsewhere(trace: Trace) -> Iterator[Finding | Effect | Skipped]:
    """The main threads of a few ranks are at a different line of the program than those of all the others.

    What it means: nearly all ranks are at one line, usually in a collective, and these ranks are not. The others are
    waiting for them. Only stack traces show this: there are no recorder dumps, or they do not settle it.

    Why it happens: a data loader that stopped, a lock, a checkpoint that hangs, a branch that only these ranks take,
    a different collective than on their peers, a compilation that does not finish.

    What to do: check the line where they are, and what could keep it from finishing. Record with
    `rankscope record --desync` to see the calls as well.

    What could fool it: in a healthy job, ranks can also be at different lines. Only stacks that were written because
    nothing moved, or twice with the same result, prove a hang. Pipeline stages run different programs: a small stage
    may look like the culprit.
    """
    if _is_decided(trace):
        yield Skipped("the recorder dumps already show what happened")
        return
    if endings_of(trace):
        yield Skipped("a rank ended with an exception, which is reported instead")
        return
    if ended_well(trace) or came_to_an_end(trace):
        yield Skipped("the job ended normally")
        return
    if not standings_of(trace):
        yield Skipped(_NO_MAIN)
        return
    standings = _of_one_time(list(standings_of(trace).values()))
    odd, usual = _split_by_place(trace, standings)
    if odd:
        yield _describe_elsewhere(trace, odd, usual, is_hang=_is_hang(trace, standings))


def _is_decided(trace: Trace) -> bool:
    if not (trace.has("collectives") and trace.has("groups")):
        return False
    return any(cause.certainty != "possible" for cause in causes_of(trace))


def _of_one_time(standings: Sequence[Standing]) -> list[Standing]:
    newest = max((standing.time_ns for standing in standings), default=MISSING)
    return [each for each in standings if each.time_ns == MISSING or newest - each.time_ns <= _SAME_TIME_NS]


def _split_by_place(trace: Trace, standings: Sequence[Standing]) -> tuple[list[Standing], list[Standing]]:
    """The few ranks that differ and the many others; both empty if the ranks do not split this way."""
    groups = places(standings)
    if len(groups) < 2:
        return [], []
    usual = groups[-1]
    odd = [standing for group in groups[:-1] for standing in group]
    if 2 * len(usual) <= len(standings):  # no line has most of them: those outside of collectives may be few
        usual = [each for each in standings if is_in_collective(trace, each) or gave_up(trace, each)]
        odd = [standing for standing in standings if standing not in usual]
    elif is_in_collective(trace, odd[0]) and not is_in_collective(trace, usual[0]):
        return [], []  # these wait for the many, who are merely late
    is_few = 0 < len(odd) <= max(1, len(standings) // _MAX_ODD)
    return (odd, usual) if is_few and usual else ([], [])


def _is_hang(trace: Trace, standings: Sequence[Standing]) -> bool:
    if any(STALLS.search(each.reason) or gave_up(trace, each) for each in standings):
        return True
    return all(each.has_stayed for each in standings)


def _describe_elsewhere(trace: Trace, odd: Sequence[Standing], usual: Sequence[Standing], *, is_hang: bool) -> Finding:
    first, peer = places(odd)[0][0], places(usual)[-1][0]
    location, peer_location = location_of_standing(trace, first), location_of_standing(trace, peer)
    ranks = tuple(sorted(standing.rank for standing in odd))
    where = place_text(location) if location else standing_text(trace, first)
    there = place_text(peer_location) if peer_location else standing_text(trace, peer)
    peers = peers_phrase([standing.rank for standing in usual])
    lines = tuple(
        f"{ranks_phrase([standing.rank for standing in group])}: {standing_text(trace, group[0])}"
        for group in [*places(odd), *reversed(places(usual))][:_MAX_SAID]
    )
    it = "it" if len(ranks) == 1 else "them"
    waits = f"the others are waiting for {it}" if is_in_collective(trace, peer) else f"the others are blocked by {it}"
    reasons = sorted({standing.reason for standing in odd if standing.reason})
    return Finding(
        severity="error" if is_hang else "warning",
        certainty="likely" if is_hang else "possible",
        title=f"{ranks_phrase(ranks)} {'is' if len(ranks) == 1 else 'are'} in {where} while {peers} "
        f"{'is' if len(usual) == 1 else 'are'} in {there}",
        ranks=ranks,
        location=location,
        peer_location=peer_location,
        evidence=Evidence(
            certain=lines,
            likely=(waits,) if is_hang else (),
            notes=tuple(f"the stacks were written because: {reason}" for reason in reasons[:1])
            if is_hang
            else ("one snapshot does not show whether the job moves: write the stacks again and compare",),
            stacks=(*standing_stacks(trace, odd), *standing_stacks(trace, usual)),
        ),
        help=f"find out why rank {first.rank} does not leave {where}",
    )


@rule("H113", "rank-raised", needs=("thread_stacks",))
def rank_raised(trace: Trace) -> Iterator[Finding | Effect | Skipped]:
    """A rank ended with an exception that nothing caught.

    What it means: the process ended, and all ranks that wait for it fail or wait forever. If several ranks raised, the
    first one is named: the others usually raise because their peer is gone.

    Why it happens: bad data, a missing file, too little memory or a failing device on this rank, or a bug that all
    ranks run into.

    What to do: read the exception and the line. If only one rank raised, find out what is different there.

    What could fool it: which rank raised first depends on the clocks of the hosts. Exceptions that the program caught,
    and exceptions that ended only a helper thread, are not seen.
    """
    if _is_decided(trace):
        yield Skipped("the dumps show what happened, and that finding includes the exception")
        return
    if not standings_of(trace):
        yield Skipped(_NO_MAIN)
        return
    if ended_well(trace):
        yield Skipped("the job ended normally: what was raised ended only helper threads")
        return
    ended = sorted(endings_of(trace).values(), key=lambda standing: (standing.time_ns, standing.rank))
    if ended:
        victims = sorted(victims_of(trace).values(), key=lambda standing: (standing.time_ns, standing.rank))
        yield _describe_raised(trace, [*ended, *victims])


def _describe_raised(trace: Trace, ended: Sequence[Standing]) -> Finding:
    first = ended[0]
    alike = [standing for standing in ended if (standing.reason, standing.point) == (first.reason, first.point)]
    later = [standing for standing in ended if standing not in alike]
    ranks = tuple(sorted(standing.rank for standing in alike))
    notes = tuple(f"rank {each.rank} raised later: {each.reason}" for each in later[:_MAX_LATER])
    if len(later) > _MAX_LATER:
        notes += (f"{count_noun(len(later) - _MAX_LATER, 'more rank')} raised later",)
    return Finding(
        severity="error",
        certainty="certain" if not later else "likely",
        title=f"{ranks_phrase(ranks)} raised {first.reason}",
        ranks=ranks,
        location=location_of_standing(trace, first),
        evidence=Evidence(
            certain=(f"it was raised in {standing_text(trace, first)} and not caught",),
            likely=("the exceptions that other ranks raised later follow from it",) if later else (),
            notes=notes,
            stacks=standing_stacks(trace, alike),
        ),
        help=f"fix the exception in {standing_text(trace, first)}",
    )
