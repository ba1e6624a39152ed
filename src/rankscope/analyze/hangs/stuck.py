"""H101, H105, H109: ranks wait for one that never comes, or for the network."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from rankscope.analyze.hangs.cause import Cause
from rankscope.analyze.hangs.dump_files import ranks_stale
from rankscope.analyze.hangs.evidence import call_text, group_text, site_text, stack_groups
from rankscope.analyze.hangs.lost_ranks import went_together
from rankscope.analyze.hangs.view import JobView
from rankscope.analyze.hangs.wording import (
    NEEDS,
    compare_with,
    findings_of,
    has,
    make_evidence,
    make_finding,
    peers_phrase,
    waits,
)
from rankscope.analyze.registry import Effect, rule
from rankscope.model.finding import Finding, count_noun, format_ranks, ranks_phrase
from rankscope.model.tables import MISSING, Trace


def waiting_rows(view: JobView, cause: Cause) -> list[int]:
    """The calls of the ranks that wait directly for the culprits."""
    ranks = dict.fromkeys(rank for call in cause.calls for rank in call.waiting)
    return [view.first_waiting[rank] for rank in ranks]


def _peers_in_call(view: JobView, cause: Cause) -> list[int]:
    """Those of them that wait in the very call that is shown."""
    for call in cause.calls:
        if call.match == cause.match:
            return list(call.waiting)
    return []


@rule("H101", "rank-lost", needs=NEEDS)
def rank_lost(trace: Trace) -> Iterator[Finding | Effect]:
    """A rank left no dump, and the others wait for it.

    What it means: every chain of waiting ranks ends at a rank of which nothing was recorded: its process was gone
    before it could write, or its file did not reach this folder.

    Why it happens: the process was killed (out of memory, a node failure, the launcher), crashed in native code, or
    its disk was full. The rank that failed is often exactly the one without a dump.

    What to do: look at the rank's own standard error, the kernel log of its host and the scheduler's record; if the
    file only got lost, add it to the folder and run again.

    What could fool it: with several dumps missing the data cannot always tell which of them matters; all that can
    be the cause are named. Where another cause is certain, missing dumps are only reported as D901.
    """
    yield from findings_of(trace, "H101", _describe_lost)


def _describe_lost(view: JobView, cause: Cause) -> Finding:
    rows = waiting_rows(view, cause)
    peers = _peers_in_call(view, cause) or view.ranks
    is_one = len(cause.ranks) == 1
    n_waiting = len(cause.blocked)
    ending = f"{count_noun(n_waiting, 'rank')} {waits(n_waiting)} for {'it' if is_one else 'them'}"
    certain = (
        f"{ranks_phrase(peers)} made the call and {waits(len(peers))}",
        "no rank with a dump holds the call up",
    )
    if not rows:  # the backend does not record how calls end: only the missing dump speaks
        ending = "the records of the others end without it"
        certain = (f"no readable dump of {ranks_phrase(cause.ranks)}", "the last calls of the others may have failed")
    notes = []
    if cause.also_possible:
        notes = [f"no dump of {ranks_phrase(cause.also_possible)} either: they came later into the chain of waits"]
    unit = went_together(view, set(cause.ranks))
    died = f"they went together: {unit}" if unit else f"{'its process' if is_one else 'one of them'} died"
    evidence = make_evidence(
        view,
        cause,
        len(peers),
        certain=certain,
        likely=(died if unit else f"{died} before it could write", *_last_seen(view, cause)),
        notes=notes,
        comparison=None if view.is_p2p[cause.peer_row] else compare_with(view, cause, peers),
        stacks=stack_groups(view, rows, "waiting"),
    )
    is_stale = set(cause.ranks) <= ranks_stale(view.trace)
    left = "left no current dump (the one here is from another moment)" if is_stale else "left no dump"
    title = f"{ranks_phrase(cause.ranks)} {left} and {ending}"
    where = f"the standard error of rank {cause.ranks[0]} and the kernel log of its host"
    advice = f"look at {where}: was it killed, or out of memory?"
    if unit:
        advice = f"look at the host of {ranks_phrase(cause.ranks)}: does it answer? what does dmesg say?"
    return make_finding(view, cause, title, evidence, advice)


def _last_seen(view: JobView, cause: Cause) -> tuple[str, ...]:
    """What the collectives that its peers saw complete tell about a rank that wrote nothing."""
    is_seen = view.is_done & ~view.is_p2p & view.calls.text("state").equals("completed")
    shared = [group for group, members in enumerate(view.members) if set(members) & set(cause.ranks)]
    rows = np.flatnonzero(is_seen & np.isin(view.group, shared))
    if not len(rows) or len(cause.ranks) > 1:
        return ()
    last = int(rows[np.argmax(view.created[rows])])
    return (f"it was alive at seq {int(view.seq[last])} of {group_text(view, int(view.group[last]))}, which completed",)


@rule("H105", "rank-stuck", needs=NEEDS)
def rank_stuck(trace: Trace) -> Iterator[Finding | Effect]:
    """A rank with a dump never reached the collective that the others wait in, and waits in none itself.

    What it means: the rank's process lives, or lived when it wrote its dump, but it did not come to the next
    collective: it is stuck or busy outside of collectives, or has left the loop.

    Why it happens: a data loader that stopped, a lock, a checkpoint write that hangs, an exception that was caught,
    a loop with fewer iterations on this rank, a compilation or a host-device copy that does not end.

    What to do: look at what the rank does after the line of its last call (shown): take its Python stack with py-spy
    or faulthandler while the job still hangs, and read its standard error.

    What could fool it: the recorder does not see collectives inside CUDA graphs, sends and receives on gloo, nor
    other libraries' communication: the rank may wait in one of these.
    """
    yield from findings_of(trace, "H105", _describe_stuck)


def _describe_stuck(view: JobView, cause: Cause) -> Finding:
    peers = _peers_in_call(view, cause)
    n_culprits = len(cause.ranks)
    last = "it made no call at all"
    last_stack = stack_groups(view, [cause.culprit_row], "last call") if cause.culprit_row != MISSING else ()
    if cause.culprit_row != MISSING:
        site = site_text(view, cause.culprit_row)
        last = f"its last call is {call_text(view, cause.culprit_row)}" + (f" in {site}" if site else "")
    is_blind = cause.group in view.blind_groups
    absent = f"{ranks_phrase(cause.ranks)} {has(n_culprits)} not made the call"
    evidence = make_evidence(
        view,
        cause,
        len(peers),
        certain=(absent if is_blind else f"{absent}, and {waits(n_culprits)} in no other", last),
        likely=("it is stuck or busy in Python or on the device after that line, or has left the loop",),
        notes=_host_note(view, cause.ranks),
        comparison=None if view.is_p2p[cause.peer_row] else compare_with(view, cause, peers),
        stacks=(*last_stack, *stack_groups(view, waiting_rows(view, cause), "waiting")),
    )
    call, n_peers = call_text(view, cause.peer_row), len(peers)
    title = f"{ranks_phrase(cause.ranks)} never reached {call} that {peers_phrase(peers)} {waits(n_peers)} in"
    if is_blind:
        whose = "its" if n_culprits == 1 else "their"
        title = f"{ranks_phrase(cause.ranks)} {has(n_culprits)} not made {call} that {peers_phrase(peers, whose)} made"
    if view.is_p2p[cause.peer_row]:
        title = f"{ranks_phrase(cause.ranks)} never answered {ranks_phrase(peers)}, which {waits(n_peers)} in {call}"
    where = f"what rank {cause.ranks[0]} does after that line"
    return make_finding(view, cause, title, evidence, f"find out {where}: py-spy dump --pid, its standard error")


def _host_note(view: JobView, ranks: tuple[int, ...]) -> tuple[str, ...]:
    table = view.trace.table("ranks")
    chosen = table.text("host").take(np.flatnonzero(np.isin(table.array("rank"), ranks)))
    hosts = sorted({host for host in chosen.tolist() if host})
    return (f"on {'host' if len(hosts) == 1 else 'hosts'} {', '.join(hosts[:4])}",) if hosts else ()


@rule("H109", "collective-stalled", needs=NEEDS)
def collective_stalled(trace: Trace) -> Iterator[Finding | Effect]:
    """All members have joined a collective, their calls fit, and it does not end, for any of them or for some.

    What it means: the program is in order: the fault is on the device or in the network, or in a kernel that runs
    before the collective on the same stream. Where the call ended for some ranks, those for which it did not are named.

    Why it happens: a broken link or adapter, a hung GPU, a firewall or routing change, a mismatch that the recorder
    does not see (reduce operation, root rank, split sizes), a kernel on the stream that never ends.

    What to do: check the hosts of the members (dmesg for XID errors, link counters, NCCL_DEBUG=INFO, ncclras); record
    with TORCH_NCCL_ENABLE_TIMING=1 to see which rank's kernel has not even started.

    What could fool it: reduce operation, root and split sizes are not recorded: when these differ between ranks it
    looks like this too. Dumps of a running job are not taken at one instant: a rank may complete the call a moment
    later.
    """
    yield from findings_of(trace, "H109", _describe_stalled)


def _describe_stalled(view: JobView, cause: Cause) -> Finding:
    members = view.members[cause.group] if not view.is_p2p[cause.culprit_row] else cause.ranks
    is_partial = len(cause.ranks) < len(members)
    call = call_text(view, cause.culprit_row)
    title = f"all {len(members)} ranks of {group_text(view, cause.group)} joined {call}, and it does not end"
    certain = "every member made the call with the same operation, sizes and type"
    likely = "a device or the network between these ranks is at fault, not the program"
    if cause.has_completed:
        title, certain, likely = _told_by_states(view, cause, call)
    elif cause.certainty != "certain":
        title += f"; what {ranks_phrase(cause.ranks)} called is not recorded"
        certain = "the calls that were recorded have the same operation, sizes and type"
        likely = f"{ranks_phrase(cause.ranks)} made another call, or a device or the network is at fault"
    elif is_partial:
        title += f": on {ranks_phrase(cause.ranks)} it has not started"
        likely = f"the stream of {ranks_phrase(cause.ranks)} is blocked by an earlier kernel"
    evidence = make_evidence(
        view,
        cause,
        len(members),
        certain=(certain,),
        likely=(likely,),
        notes=_unnoticed_note(view, cause),
        comparison=compare_with(view, cause, cause.has_completed) if cause.has_completed else None,
        stacks=stack_groups(view, view.rows_of_match(cause.match).tolist(), "waiting"),
        facts={"members": format_ranks(list(members))},
    )
    advice = "check devices and links of these hosts; TORCH_NCCL_ENABLE_TIMING=1 shows next time who has not started"
    if cause.has_completed:
        advice = f"look at {ranks_phrase(cause.ranks)}: device errors (dmesg, XID), links, what runs before the call"
    return make_finding(view, cause, title, evidence, advice)


def _told_by_states(view: JobView, cause: Cause, call: str) -> tuple[str, str, str]:
    """Title, what is certain and what is likely of a call that ended for some of its ranks only."""
    culprits, peers = ranks_phrase(cause.ranks), ranks_phrase(cause.has_completed)
    where = f"{call} of {group_text(view, cause.group)}"
    title = f"{culprits} {has(len(cause.ranks))} not completed {where}, which {peers} completed"
    certain = f"all members made the call; it ended for {peers} and not for {culprits}"
    return title, certain, f"the device of {culprits}, a kernel ahead of the call on its stream, or its link hangs"


def _unnoticed_note(view: JobView, cause: Cause) -> tuple[str, ...]:
    """Ranks that all wait in one call, of which some have not even completed the call before it."""
    before = view.collective_match.get((cause.group, cause.seq - 1)) if not view.is_p2p[cause.culprit_row] else None
    if before is None or cause.has_completed:
        return ()
    rows = view.rows_of_match(before)
    behind = sorted(view.rank[rows[view.calls.array("status_inferred")[rows]]].tolist())
    if not behind or len(behind) == len(rows):
        return ()
    theirs, them = ("its", "it") if len(behind) == 1 else ("their", "them")
    ended = f"{theirs} peers saw seq {cause.seq - 1} complete"
    return (f"{ended} and {ranks_phrase(behind)} {has(len(behind))} not: look at {them} first",)
