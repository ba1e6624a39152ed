"""H117 to H119: ranks that never came, do not end, or left before the others."""

from __future__ import annotations

import re
import signal
from collections.abc import Iterator, Sequence

from rankscope.analyze.ending.deaths import rank_codes
from rankscope.analyze.ending.ended import last_words
from rankscope.analyze.hangs.evidence import call_text, frame_location, place_text, site_text, user_part
from rankscope.analyze.hangs.standing import (
    STALLS,
    Standing,
    endings_of,
    frames_of,
    gave_up,
    is_in_collective,
    location_of_standing,
    places,
    standing_stacks,
    standing_text,
    standings_of,
    threads_beside,
)
from rankscope.analyze.hangs.view import job_view
from rankscope.analyze.manifests import ended_well
from rankscope.analyze.registry import Effect, Skipped, rule
from rankscope.model.finding import Evidence, Finding, Location, StackGroup, count_noun, ranks_phrase
from rankscope.model.tables import MISSING, Trace

_EXITING = re.compile(r"interpreter has not ended|has not ended for .* since destroy_process_group")
_SHUTDOWN = re.compile(r"(^|/)threading\.py$")
_INIT = "init_process_group"


@rule("H117", "never-at-init", needs=("thread_stacks",))
def never_at_init(trace: Trace) -> Iterator[Finding | Effect | Skipped]:
    """A rank never called init_process_group, where the others were waiting for it.

    What it means: all ranks must call init_process_group before it returns on any of them. The ranks that are waiting
    in it, or that timed out there, are victims.

    Why it happens: a download, a file lock or a long computation before the call on one rank; a rank that was started
    with different settings, or not at all.

    What to do: look at the line where the missing rank is. Move slow work after init_process_group, or give it a longer
    timeout.

    What could fool it: a rank that calls init_process_group with a different address or port waits there as well.
    """
    if ended_well(trace):
        yield Skipped("the job ended normally")
        return
    standings = list(standings_of(trace).values())
    waiting = [each for each in standings if _is_in_init(trace, each)]
    others = [each for each in standings if each not in waiting and not is_in_collective(trace, each)]
    others = [each for each in others if not gave_up(trace, each) and not _has_calls(trace, each.rank)]
    if not waiting or not others:
        return
    if not any(STALLS.search(each.reason) or gave_up(trace, each) for each in waiting):
        return
    ranks = tuple(sorted(each.rank for each in others))
    who, peers = ranks_phrase(ranks), ranks_phrase([each.rank for each in waiting])
    first = places(others)[0][0]
    where, is_in = standing_text(trace, first), "it is in" if len(ranks) == 1 else "they are in"
    raised = first.reason if first.rank in endings_of(trace) else ""
    title = f"{who} never called init_process_group, where {peers} {_was(waiting)} waiting: {is_in} {where}"
    advice = f"find out why rank {first.rank} does not leave {where}"
    if raised:
        peers_waited = f"{peers} {_was(waiting)} waiting"
        title = f"rank {first.rank} raised {raised}; it never called init_process_group, where {peers_waited}"
        advice = f"fix the exception on rank {first.rank} in {where}"
    yield Finding(
        severity="error",
        certainty="likely",
        title=title,
        ranks=ranks,
        location=location_of_standing(trace, first),
        peer_location=location_of_standing(trace, waiting[0]),
        evidence=Evidence(
            certain=(
                f"the main thread of rank {first.rank} {'was' if raised else 'is'} in {where}",
                *_gave_up_lines(trace, waiting),
            ),
            likely=(f"{peers} {_was(waiting)} waiting for {who}",),
            stacks=(*standing_stacks(trace, others, "now"), *standing_stacks(trace, waiting, "waiting")),
            n_blocked=len(waiting),
        ),
        help=advice,
        action="fix-first" if raised else "",
    )


def _was(waiting: Sequence[object]) -> str:
    return "was" if len(waiting) == 1 else "were"


def _is_in_init(trace: Trace, standing: Standing) -> bool:
    names = trace.table("frames").text("function")
    return any(names[frame] == _INIT for frame in frames_of(trace, standing))


def _has_calls(trace: Trace, rank: int) -> bool:
    return bool((trace.table("collectives").array("rank") == rank).any())


def _gave_up_lines(trace: Trace, standings: Sequence[Standing]) -> tuple[str, ...]:
    tired = [each for each in standings if gave_up(trace, each)]
    return tuple(f"rank {each.rank} gave up: {each.reason[:160]}" for each in tired[:2])


@rule("H118", "exit-hang", needs=("thread_stacks",))
def exit_hang(trace: Trace) -> Iterator[Finding | Effect | Skipped]:
    """A rank's process does not exit, although its process groups are gone.

    What it means: the rank has destroyed its process groups, or its main thread has finished and the interpreter is
    waiting for other threads. The launcher is waiting for the process.

    Why it happens: a non-daemon thread that never ends (an uploader, a logger, a pool), an upload or cleanup that
    hangs, a child process that does not exit.

    What to do: look at the line where the named thread is. Make the thread a daemon, or stop it before the program
    ends.

    What could fool it: an evaluation or upload after the last collective may take a long time without hanging.
    """
    if ended_well(trace):
        yield Skipped("the job ended normally")
        return
    late = [each for each in standings_of(trace).values() if _EXITING.search(each.reason) or _is_exiting(trace, each)]
    if not late:
        return
    # Where it was ended before the watchdog's time, a signal is no proof.
    is_stall = any(_EXITING.search(each.reason) for each in late)
    first = late[0]
    is_exit = _is_exiting(trace, first)
    threads = list(_user_threads(trace, first)) if is_exit else []
    ranks = tuple(sorted(each.rank for each in late))
    who = ranks_phrase(ranks)
    does = "does not exit" if len(ranks) == 1 else "do not exit"
    location: Location | None
    if threads:
        name, thread_location, stacks = threads[0]
        location = thread_location
        what = f"{who} {does}: the interpreter is waiting for {name}, which is in {place_text(thread_location)}"
        advice = (
            f"stop that thread before the program ends, or make it a daemon: it stays in {place_text(thread_location)}"
        )
    else:
        location = location_of_standing(trace, first)
        stacks = standing_stacks(trace, late)
        what = f"{who} {does} after destroy_process_group: it is in {standing_text(trace, first)}"
        if is_exit:
            what = f"{who} {does}: the interpreter is waiting for its threads"
        advice = f"find out why rank {first.rank} does not leave {standing_text(trace, first)}"
    yield Finding(
        severity="error" if is_stall else "warning",
        certainty="likely" if is_stall else "possible",
        title=what,
        ranks=ranks,
        location=location,
        evidence=Evidence(
            certain=(f"all recorded calls of {who} completed before that",),
            notes=tuple(f"the stacks were written because: {each.reason}" for each in late[:1]),
            stacks=stacks,
        ),
        help=advice,
    )


def _is_exiting(trace: Trace, standing: Standing) -> bool:
    frames = trace.table("frames")
    return any(
        frames.text("function")[frame] == "_shutdown" and _SHUTDOWN.search(frames.text("file")[frame])
        for frame in frames_of(trace, standing)
    )


def _user_threads(trace: Trace, standing: Standing) -> Iterator[tuple[str, Location, tuple[StackGroup, ...]]]:
    """Other threads of the rank at the same moment that are in the user's code."""
    for row in threads_beside(trace, standing):
        frames, n_hidden = user_part(trace, row["stack_id"])
        name = f"thread {row['thread_name']}" if row["thread_name"] else "an unnamed thread"
        label = f"{name} of rank {standing.rank}"
        yield name, frame_location(trace, row["site_id"]), (StackGroup((standing.rank,), label, frames, n_hidden),)


@rule("H119", "left-early", needs=("manifests", "collectives", "groups"))
def left_early(trace: Trace) -> Iterator[Finding | Effect | Skipped]:
    """A rank exited on its own, while the others were waiting for it in a collective.

    What it means: the rank left its training loop, or the program, without an exception. Its peers made one more call
    and failed there or are waiting in it: they are victims.

    Why it happens: a data loader with fewer batches on this rank (uneven inputs), a step that the rank skipped (a loss
    that is not finite), a return or sys.exit on one rank only.

    What to do: give all ranks the same number of batches (drop_last, a sampler that pads, DDP's join()), and let all
    ranks decide together when to skip a step or stop.

    What could fool it: calls that the recorder does not see. If all calls look alike, the data does not show which one
    was skipped.
    """
    if ended_well(trace):
        yield Skipped("the job ended normally")
        return
    leavers, waiting = _leavers(trace)
    if leavers and waiting:
        yield _describe_leavers(trace, leavers, waiting)


def _leavers(trace: Trace) -> tuple[list[int], list[int]]:
    """Ranks that ended on their own, and those that failed or waited in a call which the former have not made."""
    manifests, view = trace.table("manifests"), job_view(trace)
    by_itself = manifests.text("ending").equals("exit") | manifests.text("ending").equals("left")
    ended = set(manifests.array("rank")[by_itself].tolist())
    codes = rank_codes(trace)
    standings = standings_of(trace)
    tired = {rank for rank, each in standings.items() if gave_up(trace, each) or is_in_collective(trace, each)}
    leavers, waiting = sorted((ended - tired) & set(view.ranks)), sorted(tired & set(view.ranks) - ended)
    leavers = [rank for rank in leavers if codes.get(rank, 0) - 128 not in set(signal.Signals)]
    if not leavers or not waiting:
        return [], []
    n_calls = {rank: len(view.rows_of(rank)) for rank in view.ranks}
    is_behind = all(n_calls[rank] < min(n_calls[other] for other in waiting) for rank in leavers)
    return (leavers, waiting) if is_behind else ([], [])


def _describe_leavers(trace: Trace, leavers: list[int], waiting: list[int]) -> Finding:
    view, manifests = job_view(trace), trace.table("manifests")
    who, peers, was = ranks_phrase(leavers), ranks_phrase(waiting), "was" if len(waiting) == 1 else "were"
    steps = dict(zip(manifests.array("rank").tolist(), manifests.array("n_steps").tolist(), strict=True))
    n_steps, code = steps.get(leavers[0], 0), rank_codes(trace).get(leavers[0], MISSING)
    job_code = int(manifests.array("exit_code").max(initial=MISSING))
    leaver_rows, last = view.rows_of(leavers[0]), view.rows_of(waiting[0])
    call = int(last[len(leaver_rows)]) if len(last) > len(leaver_rows) else int(last[-1])
    after = f" after {count_noun(n_steps, 'step')}" if n_steps > 0 else ""
    with_code = f" with exit code {code}" if code not in (0, MISSING) else ""
    notes = [f"the job ended with exit code {job_code}, which may be that of {who}"] if 1 < job_code < 128 else []
    notes += [f"rank {rank} made {count_noun(steps[rank], 'step')}" for rank in waiting[:2] if steps.get(rank, 0) > 0]
    frames, n_hidden = (
        user_part(trace, int(view.calls.array("stack_id")[int(leaver_rows[-1])])) if len(leaver_rows) else ((), 0)
    )
    made = f"rank {leavers[0]} made {count_noun(len(leaver_rows), 'call')}, rank {waiting[0]} made {len(last):,}"
    lasts = (
        (f"its last call is {call_text(view, int(leaver_rows[-1]))} in {site_text(view, int(leaver_rows[-1]))}",)
        if len(leaver_rows)
        else ()
    )
    return Finding(
        severity="error",
        certainty="certain" if with_code else "likely",
        title=f"{who} exited on its own{after}{with_code}, while {peers} {was} waiting in {call_text(view, call)}",
        ranks=tuple(leavers),
        location=frames[0] if frames else None,
        peer_location=location_of_standing(trace, standings_of(trace)[waiting[0]]),
        evidence=Evidence(
            certain=(made, *lasts),
            likely=("its loop ended early (fewer batches), or it skipped the calls of a step",),
            notes=(*notes, *(f"it printed last: {line}" for line in last_words(trace, leavers[0]))),
            stacks=(StackGroup((leavers[0],), f"last call of rank {leavers[0]}", frames, n_hidden),) if frames else (),
            n_blocked=len(waiting),
        ),
        help="give all ranks the same number of batches, and let them decide together when to skip a step",
    )
