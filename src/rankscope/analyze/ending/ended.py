"""H116 and H120: ranks that ended on their own, and jobs that failed without a reason in the traces."""

from __future__ import annotations

import signal
from collections.abc import Iterator, Sequence

import numpy as np

from rankscope.analyze.ending.deaths import Death, deaths_of, rank_codes
from rankscope.analyze.hangs.evidence import call_text, site_text, user_part
from rankscope.analyze.hangs.standing import (
    location_of_standing,
    standing_stacks,
    standing_text,
)
from rankscope.analyze.hangs.view import job_view
from rankscope.analyze.logs.events import attempts_of
from rankscope.analyze.manifests import ended_well
from rankscope.analyze.registry import Effect, Skipped, rule
from rankscope.model.finding import Evidence, Finding, Location, count_noun, format_size, ranks_phrase
from rankscope.model.tables import MISSING, Trace

_WORDS = {
    signal.SIGSEGV: "a segmentation fault",
    signal.SIGBUS: "a bus error, often because /dev/shm is full or a mapped file was truncated",
    signal.SIGFPE: "an arithmetic error in native code",
    signal.SIGILL: "an instruction that this processor does not support",
    signal.SIGABRT: "native code called abort()",
}
_N_LAST_LINES = 3


@rule("H116", "rank-ended", needs=("manifests",))
def rank_ended(trace: Trace) -> Iterator[Finding | Effect | Skipped]:
    """A rank's process was killed, crashed or exited, while the others were still running.

    What it means: the launcher did not stop the process, and no Python exception ended it. The other ranks failed
    afterward, because they lost their connection to it.

    Why it happens: a crash in native code (the finding shows the Python line that called it), os._exit or sys.exit in
    the program, the kernel's out-of-memory killer, the scheduler, or someone who killed it.

    What to do: after a crash, check the line and the library that it calls. After SIGKILL, check the host's memory and
    dmesg. For an exit code, find the code that exits with it.

    What could fool it: exit codes are known only if the launcher is written in Python (torchrun, mp.spawn) or prints
    them. Otherwise the rank is named because it wrote nothing when it ended and its peers lost their connection to it.
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
        certain.append(f"{who} wrote nothing when it ended, and its peers lost their connection to it")
    likely, advice = _cause_of_death(trace, first, who)
    words = tuple(f"it printed last: {line}" for line in last_words(trace, first.rank))
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
        action="collect-more" if first.signal in (signal.SIGTERM, signal.SIGKILL) else "",
    )


def _title_of_death(death: Death) -> str:
    if death.signal in _WORDS:
        return f"crashed with {death.signal.name}"
    if death.signal is not None:
        return f"was killed by {death.signal.name}" if death.is_known else f"was likely killed by {death.signal.name}"
    if death.code != MISSING:
        return f"exited with code {death.code}" if death.is_known else f"likely exited with code {death.code}"
    return "disappeared without a message: it was killed or called os._exit"


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
            said = f"the kernel killed {n_processes} of this container because memory ran out"
            return (said, followed), f"give the job more memory, or make {who} use less"
        return (followed,), f"find out who killed {who}: dmesg on its host (out of memory), the scheduler's log"
    if death.signal == signal.SIGTERM:
        return (followed,), f"find out who sent SIGTERM to {who} alone: its host's or the scheduler's log"
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
    rank, (call, site, location) = next(iter(odd.items()))
    return Finding(
        severity="error",
        certainty="likely",
        title=f"rank {rank} called {call} in {site}, which does not match the call of rank {victim.rank}",
        ranks=(rank,),
        location=location,
        peer_location=location_of_standing(trace, victim.standing) if victim.standing else None,
        evidence=Evidence(
            certain=(f"gloo aborted rank {victim.rank}{where}, and said: {said}",),
            likely=(f"rank {rank} had never made this call before",),
            stacks=stacks,
        ),
        help=f"make rank {rank} call the same operation as its peers, with the same sizes",
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


def last_words(trace: Trace, rank: int) -> list[str]:
    if not trace.has("log_events"):
        return []
    events = trace.table("log_events")
    kinds, ranks = events.text("kind").tolist(), events.array("rank").tolist()
    texts = events.text("text").tolist()
    last_outputs = [texts[row] for row, kind in enumerate(kinds) if kind == "last-output" and ranks[row] == rank]
    return [text.strip()[:200] for text in last_outputs[-_N_LAST_LINES:] if text.strip()]


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
    last = view.rows_of(rank)[-1:].tolist() if rank in view.ranks else []
    return tuple(f"its last recorded call is {call_text(view, row)}" for row in last)


@rule("H120", "job-failed", needs=("manifests",))
def job_failed(trace: Trace) -> Iterator[Finding | Effect | Skipped]:
    """The job failed, and nothing in the capture shows why.

    What it means: the launcher ended with an error, but no rank is known to have crashed or raised an exception, and
    no dump shows a hang.

    Why it happens: the program exited with this code on purpose, it failed before any rank started, or the launcher
    failed.

    What to do: read the end of the job's output.

    What could fool it: a script that exits with an error although training succeeded.
    """
    code = int(trace.table("manifests").array("exit_code").max(initial=MISSING))
    if code in (0, MISSING):
        return
    number = code - 128
    is_signal = number in set(signal.Signals)
    ending = f"was killed by {signal.Signals(number).name}" if is_signal else f"ended with exit code {code}"
    is_asked = number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    codes = {rank: each for rank, each in rank_codes(trace).items() if each}
    own_codes = tuple(f"rank {rank} exited with code {each}" for rank, each in sorted(codes.items())[:4])
    yield Finding(
        severity="info" if is_asked else "error",
        certainty="certain",
        title=f"the job {ending}; the traces do not show why",
        evidence=Evidence(certain=own_codes),
        help="read the end of the job's output; it is kept in the folder as output_host_*",
    )
