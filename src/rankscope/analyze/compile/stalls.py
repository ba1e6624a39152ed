"""X601: time that ranks lost because one of them was compiling, found by joining compile logs with other traces."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby

import numpy as np

from rankscope.analyze.compile.sites import Site, sites_of
from rankscope.analyze.compile.stall_sources import Stall, stalls_of
from rankscope.analyze.hangs.evidence import call_text, collective_ref, group_ref, group_text
from rankscope.analyze.hangs.view import JobView, job_view
from rankscope.analyze.hangs.waits import WaitingCall, wait_graph
from rankscope.analyze.registry import Effect, Skipped, rule
from rankscope.model.finding import Evidence, Finding, count_noun, format_duration, ranks_phrase
from rankscope.model.tables import Table, Trace

_MAX_FINDINGS = 5
_SLACK_NS = 60_000_000_000  # how far apart a log and a dump of one job may be


@rule("X601", "compile-stall", needs=("compilations",))
def compile_stall(trace: Trace) -> Iterator[Finding | Effect | Skipped]:
    """A rank was compiling while its peers waited for it in a collective, or in the middle of a training step.

    What it means: the torch.compile log explains a delay that the other traces only show: a rank was late for a
    collective, never joined it, or took longer for a step, because it was compiling a function at that time.

    Why it happens: a rank got a new shape or value and recompiled in the middle of training; compile caches are cold on
    one host; compilation hangs, or takes longer than the collective's timeout.

    What to do: find out why the function was compiled at that moment (the findings about recompilation name the guard),
    and compile before training starts: run each shape once, keep the caches, mark dimensions as dynamic. Until then, a
    longer timeout of the process group keeps the job alive.

    What could fool it: both traces must come from the same run and their clocks must agree, as they do on one host. A
    delay counts as explained if compiling takes at least half of it.
    """
    if not any(trace.has(table) for table in ("collectives", "comms", "steps")):
        yield Skipped("no Flight Recorder dumps or profiler traces to compare with the torch.compile logs")
        return
    if trace.has("collectives"):
        yield from _hangs(trace)
    reported: set[tuple[int, Site]] = set()
    for kind, stalls in groupby(stalls_of(trace), lambda stall: stall.kind):
        new = [stall for stall in stalls if (stall.delay.rank, stall.site) not in reported]
        for site, at_site in _most_expensive(new):
            reported.update((stall.delay.rank, site) for stall in at_site)
            yield _finding(kind, site, at_site)


def _most_expensive(stalls: Iterable[Stall]) -> list[tuple[Site, list[Stall]]]:
    by_site: dict[Site, list[Stall]] = defaultdict(list)
    for stall in stalls:
        by_site[stall.site].append(stall)
    return sorted(by_site.items(), key=lambda item: -_lost_ns(item[1]))[:_MAX_FINDINGS]


def _lost_ns(stalls: Sequence[Stall]) -> int:
    """Ranks that were late for the same call delayed it together: the latest one counts."""
    worst: dict[object, int] = defaultdict(int)
    for stall in stalls:
        worst[stall.delay.key] = max(worst[stall.delay.key], stall.delay.lost_ns)
    return sum(worst.values())


def _finding(kind: str, site: Site, stalls: Sequence[Stall]) -> Finding:
    worst = max(stalls, key=lambda stall: stall.delay.lost_ns)
    ranks = tuple(sorted({stall.delay.rank for stall in stalls}))
    n_times = len({stall.delay.key for stall in stalls})
    lost = _lost_ns(stalls)
    is_again = worst.compile_id.rpartition("/")[2] not in ("", "0")
    return Finding(
        severity="warning" if is_again or n_times > 1 else "info",  # everybody compiles once, at the start
        certainty="likely",
        title=_title(kind, ranks, lost, n_times) + f" while compiling {site.name}",
        ranks=ranks,
        group=worst.delay.group,
        collective=worst.delay.collective,
        location=site.location,
        evidence=Evidence(
            certain=(
                f"worst case: rank {worst.delay.rank} {worst.delay.text}; compiling [{worst.compile_id}] took "
                f"{format_duration(worst.compiled_ns)} of that",
            ),
            likely=(
                f"the {'re' if is_again else ''}compilation caused the delay, if log and trace have the same clock",
            ),
            cost_ns=lost,
            facts={"n_delays": n_times, "compile_id": worst.compile_id, "compiled_ns": worst.compiled_ns},
        ),
        help=(
            "check which guard failed (see the recompile findings), and run this shape once before training starts"
            if is_again
            else "compile before training starts, and keep the compile cache between runs and hosts"
        ),
    )


def _title(kind: str, ranks: tuple[int, ...], lost_ns: int, n_times: int) -> str:
    lost, who = format_duration(lost_ns), ranks_phrase(ranks)
    if kind == "step":
        steps = "a step" if n_times == 1 else f"{n_times} steps"
        return f"{steps} of {who} took {lost} longer"
    peers = "its peers" if len(ranks) == 1 else "their peers"
    return f"{who} kept {peers} waiting for {lost}" + (f", {n_times} times," if n_times > 1 else "")


def _hangs(trace: Trace) -> Iterator[Finding]:
    """Ranks that never joined a call others wait in, and whose log ends inside a compilation."""
    unfinished = _unfinished(trace)
    if not unfinished:
        return
    view = job_view(trace)
    for rank, calls in sorted(wait_graph(trace).absent_ends().items()):
        if rank in unfinished:
            call = min(calls, key=lambda call: int(view.created[view.rows_of_match(call.match)].min()))
            yield _hang_finding(view, rank, call, unfinished[rank])


def _unfinished(trace: Trace) -> dict[int, int]:
    """Rank -> row of the compilation where its log ends, for logs from the time of the dumps."""
    view, table = job_view(trace), trace.table("compilations")
    logs = _logs_by_file(trace.table("compile_logs"))
    first, last = int(view.calls.array("created_ns").min(initial=0)), view.last_activity_ns
    unfinished: dict[int, int] = {}
    for row in np.flatnonzero(table.text("status").equals("unfinished")).tolist():
        since, until = logs.get(int(table.array("file_id")[row]), (0, 0))
        if since <= last + _SLACK_NS and until >= first - _SLACK_NS:
            unfinished[int(table.array("rank")[row])] = row
    return unfinished


def _logs_by_file(logs: Table) -> dict[int, tuple[int, int]]:
    spans = zip(logs.array("first_ns").tolist(), logs.array("last_ns").tolist(), strict=True)
    return dict(zip(logs.array("file_id").tolist(), spans, strict=True))


def _hang_finding(view: JobView, rank: int, call: WaitingCall, row: int) -> Finding:
    compilations = view.trace.table("compilations")
    site, compile_id = sites_of(view.trace).of_row[row], compilations.text("compile_id")[row]
    waiting_row = int(view.rows_of_match(call.match)[0])
    since = int(compilations.array("start_ns")[row])
    waited = max(view.last_activity_ns - int(view.created[waiting_row]), 0)
    compiling = f"[{compile_id}] started {format_duration(view.last_activity_ns - since)} before the last activity"
    n_waiting = count_noun(len(call.waiting), "peer")
    return Finding(
        severity="error",
        certainty="likely",
        title=f"rank {rank} was still compiling {site.name} while {n_waiting} waited for it in "
        f"{call_text(view, waiting_row)}",
        ranks=(rank,),
        group=group_ref(view, call.group),
        collective=collective_ref(view, waiting_row),
        location=site.location,
        evidence=Evidence(
            certain=(
                f"its log ends inside [{compile_id}], and it never joined {group_text(view, call.group)}, "
                f"seq {call.seq}",
                *((compiling,) if 0 < since < view.last_activity_ns else ()),
            ),
            likely=("compilation took longer than the collective's timeout, or hangs",),
            waiting_ns=waited or None,
            n_blocked=len(call.waiting),
            cost_ns=waited or None,
            facts={"compile_id": compile_id},
        ),
        help="compile before the first collective, or give the process group a longer timeout; if the compiler hangs, "
        "the stack of the process shows where (py-spy dump)",
    )
