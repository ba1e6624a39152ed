"""H116 to H120: how the job ended, beside what the dumps show about its calls."""

from __future__ import annotations

import re
import signal
from collections.abc import Iterator, Sequence

import numpy as np

from rankscope.analyze.ending.deaths import Death, deaths_of, rank_codes
from rankscope.analyze.hangs.evidence import call_text, frame_location, place_text, site_text, user_part
from rankscope.analyze.hangs.standing import (
    STALLS,
    Standing,
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
from rankscope.analyze.logs.events import attempts_of
from rankscope.analyze.manifests import ended_well
from rankscope.analyze.registry import Effect, Skipped, rule
from rankscope.model.finding import Evidence, Finding, Location, StackGroup, count_noun, format_size, ranks_phrase
from rankscope.model.tables import MISSING, Trace

_WORDS = {
    signal.SIGSEGV: "a segmentation fault",
    signal.SIGBUS: "a bus error, often a full /dev/shm or a file that became shorter",
    signal.SIGFPE: "an arithmetic error in native code",
    signal.SIGILL: "an instruction that this processor does not have",
    signal.SIGABRT: "native code that gave up (abort)",
}
_EXITING = re.compile(r"interpreter has not ended|has not ended for .* since destroy_process_group")
_SHUTDOWN = re.compile(r"(^|/)threading\.py$")
_INIT = "init_process_group"
_N_LAST_LINES = 3


@rule("H116", "rank-ended", needs=("manifests",))
def rank_ended(trace: Trace) -> Iterator[Finding | Effect | Skipped]:
    """A rank's process ended on its own: by a signal, with an exit code, or without a word.

    What it means: the process was not stopped by the launcher and did not raise an exception that Python reports. The
    other ranks failed afterwards, because the connection to it was gone.

    Why it happens: a crash in native code (the finding shows the Python line that called it), os._exit or sys.exit in
    the program, the kernel's out-of-memory killer, a scheduler, somebody's kill.

    What to do: for a crash, look at the line and the library that it calls. For SIGKILL, look at the memory of the host
    and at dmesg. For an exit code, look for the code that chooses it.

    What could fool it: exit codes are seen only where the launcher is Python (torchrun, mp.spawn) or prints them. If
    none is known, the rank is named because it wrote nothing at its end and others lost a peer.
    """
    if ended_well(trace):
        yield Skipped("the job ended normally")
        return
    deaths = deaths_of(trace)
    if not deaths:
        return
    refused = _refused_by_gloo(trace, deaths)
    yield refused if refused is not None else _describe_death(trace, deaths)


def _describe_death(trace: Trace, deaths: Sequence[Death]) -> Finding:
    first = deaths[0]
    ranks = tuple(death.rank for death in deaths if (death.code, death.is_known) == (first.code, first.is_known))
    who = ranks_phrase(ranks)
    location = location_of_standing(trace, first.standing) if first.standing else None
    where = f" in {standing_text(trace, first.standing)}" if first.standing else ""
    certain = [f"its main thread was{where}"] if where else []
    certain += [f"its process ended with {_code_text(first)}"] if first.is_known else []
    if not first.is_known:
        certain.append(f"{who} wrote nothing when it ended, and its peers lost the connection to it")
    likely, advice = _cause_of_death(trace, first, who)
    words = tuple(f"it printed last: {line}" for line in _last_words(trace, first.rank))
    return Finding(
        severity="error",
        certainty="certain" if first.is_known else "likely",
        title=f"{who} {_title_of_death(first)}{where}",
        ranks=ranks,
        location=location,
        evidence=Evidence(
            certain=tuple(certain),
            likely=likely,
            notes=(*words, *_memory_notes(trace, first.rank), *_last_call(trace, first.rank)),
            stacks=standing_stacks(trace, [first.standing]) if first.standing else (),
            facts={"exit_code": first.code} if first.code != MISSING else {},
        ),
        help=advice,
    )


def _title_of_death(death: Death) -> str:
    if death.signal in _WORDS:
        return f"crashed with {death.signal.name}"
    if death.signal is not None:
        return f"was killed by {death.signal.name}" if death.is_known else f"was likely killed by {death.signal.name}"
    if death.code != MISSING:
        return f"ended with exit code {death.code}" if death.is_known else f"likely ended with exit code {death.code}"
    return "ended without a word: it was killed or left by os._exit"


def _code_text(death: Death) -> str:
    if death.signal is not None:
        return f"{death.signal.name}: {_WORDS[death.signal]}" if death.signal in _WORDS else death.signal.name
    return f"exit code {death.code}" if death.code != MISSING else "an error in native code"


def _cause_of_death(trace: Trace, death: Death, who: str) -> tuple[tuple[str, ...], str]:
    followed = "the exceptions of the other ranks follow from it"
    if death.signal == signal.SIGKILL:
        n_killed = int(trace.table("manifests").array("n_killed_for_memory").max(initial=MISSING))
        if n_killed > 0:
            n_processes = count_noun(n_killed, "process", "processes")
            said = f"the kernel killed {n_processes} of this container for lack of memory"
            return (said, followed), f"give the job more memory, or make {who} use less"
        return (followed,), f"find out who killed {who}: dmesg on its host (out of memory), the scheduler's log"
    if death.signal in _WORDS:
        return (followed,), "check the native code that this line calls, and its arguments"
    if death.code != MISSING:
        return (followed,), f"find the code that ends the process with exit code {death.code} (sys.exit, os._exit)"
    return (followed,), f"check the end of {who}'s output, and dmesg on its host"


def _refused_by_gloo(trace: Trace, deaths: Sequence[Death]) -> Finding | None:
    """gloo aborts a process that receives more than it expects: its peer made the wrong call, or it did itself."""
    attempts = attempts_of(trace)[-1:] if trace.has("log_events") else []
    reports = [event for attempt in attempts for event in attempt.events if event.says == "gloo-mismatch"]
    aborted = [death for death in deaths if death.signal == signal.SIGABRT]
    if not reports or not aborted:
        return None
    victim, odd = aborted[0], _odd_callers(trace)
    said = reports[0].text.strip()
    stacks = standing_stacks(trace, [victim.standing]) if victim.standing else ()
    where = f" in {standing_text(trace, victim.standing)}" if victim.standing else ""
    if not odd:
        return Finding(
            severity="error",
            certainty="certain",
            title=f"ranks disagree about a collective: gloo aborted rank {victim.rank}{where}",
            location=location_of_standing(trace, victim.standing) if victim.standing else None,
            evidence=Evidence(certain=(f"gloo said: {said}",), stacks=stacks),
            help="compare the calls of all ranks at this line: same operation, same sizes, same order",
        )
    rank, (call, place, location) = next(iter(odd.items()))
    return Finding(
        severity="error",
        certainty="likely",
        title=f"rank {rank} called {call} in {place}, which does not fit what rank {victim.rank} called",
        ranks=(rank,),
        location=location,
        peer_location=location_of_standing(trace, victim.standing) if victim.standing else None,
        evidence=Evidence(
            certain=(f"gloo aborted rank {victim.rank}{where}, and said: {said}",),
            likely=(f"rank {rank} never made this call before",),
            stacks=stacks,
        ),
        help=f"make rank {rank} call the same as its peers, with the same sizes",
    )


def _odd_callers(trace: Trace) -> dict[int, tuple[str, str, Location | None]]:
    """Ranks whose last call is unlike all their earlier ones."""
    if not (trace.has("collectives") and trace.has("groups")):
        return {}
    view, odd = job_view(trace), {}
    for rank in view.ranks:
        rows = view.rows_of(rank)
        texts = [call_text(view, int(row)) for row in rows]
        if len(texts) > 1 and texts[-1] not in texts[:-1]:
            last = int(rows[-1])
            frames, _ = user_part(trace, int(view.calls.array("stack_id")[last]))
            odd[rank] = (texts[-1], site_text(view, last), frames[0] if frames else None)
    return odd


def _last_words(trace: Trace, rank: int) -> list[str]:
    if not trace.has("log_events"):
        return []
    events = trace.table("log_events")
    kinds, ranks = events.text("kind").tolist(), events.array("rank").tolist()
    texts = events.text("text").tolist()
    own = [texts[row] for row, kind in enumerate(kinds) if kind == "last-output" and ranks[row] == rank]
    return [text.strip()[:200] for text in own[-_N_LAST_LINES:] if text.strip()]


def _memory_notes(trace: Trace, rank: int) -> tuple[str, ...]:
    table = trace.table("metrics")
    rows = np.flatnonzero(table.text("name").equals("host_memory_bytes") & (table.array("rank") == rank))
    if not len(rows):
        return ()
    values = table.array("value")[rows[np.argsort(table.array("time_ns")[rows], kind="stable")]]
    return (f"its resident memory was {format_size(float(values[-1]))} when it was last measured",)


def _last_call(trace: Trace, rank: int) -> tuple[str, ...]:
    if not (trace.has("collectives") and trace.has("groups")):
        return ()
    view = job_view(trace)
    rows = view.rows_of(rank) if rank in view.ranks else ()
    return (f"its last recorded call is {call_text(view, int(rows[-1]))}",) if len(rows) else ()


@rule("H117", "never-at-init", needs=("thread_stacks",))
def never_at_init(trace: Trace) -> Iterator[Finding | Effect | Skipped]:
    """A rank never called init_process_group, and the others waited for it there.

    What it means: all ranks must call init_process_group before any of them returns from it. The others are victims:
    their exception or their wait is the effect.

    Why it happens: a download, a file lock or a long computation before it on one rank; a rank that was started with
    other settings, or not at all.

    What to do: look at the line where the missing rank is. Do slow work after init_process_group, or give it a longer
    timeout.

    What could fool it: a rank that calls init_process_group of another world, with another address or port, waits there
    too.
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
    yield Finding(
        severity="error",
        certainty="likely",
        title=f"{who} never called init_process_group, where {peers} waited: {is_in} {where}",
        ranks=ranks,
        location=location_of_standing(trace, first),
        peer_location=location_of_standing(trace, waiting[0]),
        evidence=Evidence(
            certain=(f"the main thread of rank {first.rank} is in {where}", *_gave_up_lines(trace, waiting)),
            likely=(f"{peers} waited for {who}",),
            stacks=(*standing_stacks(trace, others, "now"), *standing_stacks(trace, waiting, "waiting")),
            n_blocked=len(waiting),
        ),
        help=f"find out why rank {first.rank} does not leave {where}",
    )


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
    """A rank's process does not end, although its process groups are gone.

    What it means: the rank has destroyed its process groups, or its main thread has left the program and the
    interpreter waits for threads. The launcher waits for the process.

    Why it happens: a thread that is no daemon and never ends (an uploader, a logger, a pool), an upload or a clean-up
    that hangs, a child process that is waited for.

    What to do: look at the line of the thread that is named. Make it a daemon, or stop it before the program
    does.

    What could fool it: an evaluation or an upload after the last collective may take long without hanging.
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
    does = "does not end" if len(ranks) == 1 else "do not end"
    if threads:
        name, location, stacks = threads[0]
        what = f"{who} {does}: the interpreter waits for thread {name}, which is in {place_text(location)}"
        advice = f"make thread {name} a daemon, or stop it: it does not leave {place_text(location)}"
    else:
        location = location_of_standing(trace, first)
        stacks = standing_stacks(trace, late)
        what = f"{who} {does} after destroy_process_group: it is in {standing_text(trace, first)}"
        if is_exit:
            what = f"{who} {does}: the interpreter waits for its threads"
        advice = f"find out why rank {first.rank} does not leave {standing_text(trace, first)}"
    yield Finding(
        severity="error" if is_stall else "warning",
        certainty="likely" if is_stall else "possible",
        title=what,
        ranks=ranks,
        location=location,
        evidence=Evidence(
            certain=("all recorded calls of these ranks completed before",),
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
        name = row["thread_name"] or "without a name"
        label = f"thread {name} of rank {standing.rank}"
        yield name, frame_location(trace, row["site_id"]), (StackGroup((standing.rank,), label, frames, n_hidden),)


@rule("H119", "left-early", needs=("manifests", "collectives", "groups"))
def left_early(trace: Trace) -> Iterator[Finding | Effect | Skipped]:
    """A rank ended by itself, while the others were waiting for it in a collective.

    What it means: the rank left its training loop, or the program, without an exception. Its peers made one call more
    and failed, or wait: they are victims.

    Why it happens: a data loader with fewer batches on this rank (uneven inputs), a step that the rank left out (a loss
    that is not finite), a return or sys.exit on one rank only.

    What to do: give all ranks the same number of batches (drop_last, a sampler that pads, DDP's join()), and let all
    ranks decide together to leave out a step or to end.

    What could fool it: calls that the recorder does not see. Where a call was left out cannot be seen when all calls
    look alike.
    """
    if ended_well(trace):
        yield Skipped("the job ended normally")
        return
    leavers, waiting = _leavers(trace)
    if leavers and waiting:
        yield _describe_leavers(trace, leavers, waiting)


def _leavers(trace: Trace) -> tuple[list[int], list[int]]:
    """Ranks that ended by themselves, and those that failed or waited in a call which the former have not made."""
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


def _describe_leavers(trace: Trace, leavers: Sequence[int], waiting: Sequence[int]) -> Finding:
    view, manifests = job_view(trace), trace.table("manifests")
    who, peers, was = ranks_phrase(leavers), ranks_phrase(waiting), "was" if len(waiting) == 1 else "were"
    steps = dict(zip(manifests.array("rank").tolist(), manifests.array("n_steps").tolist(), strict=True))
    n_steps, code = steps.get(leavers[0], 0), rank_codes(trace).get(leavers[0], MISSING)
    job_code = int(manifests.array("exit_code").max(initial=MISSING))
    own, last = view.rows_of(leavers[0]), view.rows_of(waiting[0])
    call = int(last[len(own)]) if len(last) > len(own) else int(last[-1])
    after = f" after {count_noun(n_steps, 'step')}" if n_steps > 0 else ""
    with_code = f" with exit code {code}" if code not in (0, MISSING) else ""
    notes = [f"the job ended with exit code {job_code}, which may be {who}'s own"] if 1 < job_code < 128 else []
    notes += [f"rank {rank} made {count_noun(steps[rank], 'step')}" for rank in waiting[:2] if steps.get(rank, 0) > 0]
    frames, n_hidden = user_part(trace, int(view.calls.array("stack_id")[int(own[-1])])) if len(own) else ((), 0)
    made = f"rank {leavers[0]} made {count_noun(len(own), 'call')}, rank {waiting[0]} made {len(last):,}"
    lasts = (
        (f"its last call is {call_text(view, int(own[-1]))} in {site_text(view, int(own[-1]))}",) if len(own) else ()
    )
    return Finding(
        severity="error",
        certainty="certain" if with_code else "likely",
        title=f"{who} ended by itself{after}{with_code}, while {peers} {was} waiting in {call_text(view, call)}",
        ranks=tuple(leavers),
        location=frames[0] if frames else None,
        peer_location=location_of_standing(trace, standings_of(trace)[waiting[0]]),
        evidence=Evidence(
            certain=(made, *lasts),
            likely=("its loop ended early (fewer batches), or it left out the calls of a step",),
            notes=(*notes, *(f"it printed last: {line}" for line in _last_words(trace, leavers[0]))),
            stacks=(StackGroup((leavers[0],), f"last call of rank {leavers[0]}", frames, n_hidden),) if frames else (),
            n_blocked=len(waiting),
        ),
        help="give all ranks the same number of batches, and let all of them decide together to leave out a step",
    )


@rule("H120", "job-failed", needs=("manifests",))
def job_failed(trace: Trace) -> Iterator[Finding | Effect | Skipped]:
    """The job failed, and nothing in the capture shows why.

    What it means: the launcher ended with an error, but no rank raised an exception that was seen, crashed, or left a
    dump that shows a hang.

    Why it happens: the program chose the exit code itself, it failed before a rank began, or the launcher failed.

    What to do: read the end of the job's output.

    What could fool it: a script that ends with an error although its training succeeded.
    """
    code = int(trace.table("manifests").array("exit_code").max(initial=MISSING))
    if code in (0, MISSING):
        return
    number = code - 128
    by = f"a signal ({signal.Signals(number).name})" if number in set(signal.Signals) else f"exit code {code}"
    is_asked = number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    codes = {rank: each for rank, each in rank_codes(trace).items() if each}
    told = tuple(f"rank {rank} ended with exit code {each}" for rank, each in sorted(codes.items())[:4])
    yield Finding(
        severity="info" if is_asked else "error",
        certainty="certain",
        title=f"the job ended with {by}; the traces do not show why",
        evidence=Evidence(certain=told),
        help="read the end of the job's output; it is kept in the folder as output_host_*",
    )
