"""H101, H105, H109: ranks wait for a rank that never joins, or for the network."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
import numpy as np

from rankscope.analyze.hangs.cause import ROOTED, Cause, went_together
from rankscope.analyze.hangs.evidence import call_text, group_text, site_text, stack_groups
from rankscope.analyze.hangs.view import JobView, ranks_cut, ranks_stale, ranks_unreadable
from rankscope.analyze.hangs.wording import (
    are_waiting,
    compare_with,
    findings_of,
    has,
    make_evidence,
    make_finding,
    peers_phrase,
)
from rankscope.analyze.manifests import ranks_elsewhere
from rankscope.analyze.registry import Effect, rule
from rankscope.model.finding import Finding, count_noun, format_ranks, ranks_phrase
from rankscope.model.tables import MISSING, Trace


def waiting_rows(view: JobView, cause: Cause) -> list[int]:
    """The calls of the ranks that wait directly for the culprits."""
    ranks = dict.fromkeys(rank for call in cause.calls for rank in call.waiting)
    return [view.first_waiting[rank] for rank in ranks]


def _peers_in_call(view: JobView, cause: Cause) -> list[int]:
    """The ranks that wait in the call that the finding shows."""
    for call in cause.calls:
        if call.match == cause.match:
            return list(call.waiting)
    return []


@rule("H101", "rank-lost", needs=("collectives", "groups"))
def rank_lost(trace: Trace) -> Iterator[Finding | Effect]:
    """A rank left no dump, and the others are waiting for it.

    What it means: every chain of waiting ranks ends at a rank that left no record. Its process died before it could
    write a dump, or the file was not copied to this folder.

    Why it happens: the process was killed (out of memory, a node failure, the launcher), crashed in native code, or
    its disk was full. The rank without a dump is often the one that failed.

    What to do: check the rank's stderr, the kernel log of its host and the scheduler's log. If only the file is
    missing, add it to the folder and run again.

    What could fool it: if several dumps are missing, the data may not show which rank is the cause; all candidates are
    named. If another cause is certain, missing dumps are only reported as D901. A damaged dump does not mean that its
    rank was lost: the title then says that the dump cannot be read, and what the rank did is unknown.
    """
    yield from findings_of(trace, "rank-lost", _describe_lost)


def _describe_lost(view: JobView, cause: Cause) -> Finding:
    rows = waiting_rows(view, cause)
    if rows and len(view.dumped) == 1 < len(cause.ranks):
        return _describe_only_one(view, cause, rows)
    peers = _peers_in_call(view, cause) or view.ranks
    is_one = len(cause.ranks) == 1
    n_waiting = len(cause.blocked)
    ending = f", and {count_noun(n_waiting, 'rank')} {are_waiting(n_waiting)} for {'it' if is_one else 'them'}"
    certain = (
        f"{ranks_phrase(peers)} made the call and {are_waiting(len(peers))}",
        "no rank with a dump is blocking the call",
    )
    if not rows:  # the backend does not record how calls end: the missing dump is the only sign
        ending = "; whether other ranks are waiting is not recorded"
        certain = (
            f"no readable dump from {ranks_phrase(cause.ranks)}",
            "the last calls of the other ranks may have failed",
        )
    notes = []
    if cause.also_possible:
        they = "it" if len(cause.also_possible) == 1 else "they"
        notes = [f"{ranks_phrase(cause.also_possible)} left no dump either, but {they} blocked other ranks only later"]
    unit = went_together(view, set(cause.ranks))
    is_unreadable = set(cause.ranks) <= ranks_unreadable(view.trace)
    died = f"{'its process' if is_one else 'the process of at least one of them'} died before it could write a dump"
    if unit:
        died = f"they failed together: these are {unit}"
    evidence = make_evidence(
        view,
        cause,
        len(peers),
        certain=certain,
        likely=(*(() if is_unreadable else (died,)), *_last_seen(view, cause)),
        notes=notes,
        comparison=None if view.is_p2p[cause.peer_row] else compare_with(view, cause, peers),
        stacks=stack_groups(view, rows, "waiting"),
    )
    is_stale = set(cause.ranks) <= ranks_stale(view.trace)
    left = "left no current dump (the one here is from a different time)" if is_stale else "left no dump"
    title = f"{ranks_phrase(cause.ranks)} {left}{ending}"
    where = f"the stderr of rank {cause.ranks[0]} and the kernel log of its host"
    advice = f"check {where}: was the process killed, or out of memory?"
    if unit:
        advice = f"check the host of {ranks_phrase(cause.ranks)}: is it up, and what does dmesg show?"
    finding = make_finding(view, cause, title, evidence, advice)
    if set(cause.ranks) <= ranks_elsewhere(view.trace):
        return _on_other_nodes(view, cause, finding)
    return _with_damaged_dump(cause, finding, ending) if is_unreadable else finding


def _with_damaged_dump(cause: Cause, finding: Finding, ending: str) -> Finding:
    """A dump that cannot be read is no sign of an end: its rank may be dead, stuck, or in another call."""
    culprits, is_one = ranks_phrase(cause.ranks), len(cause.ranks) == 1
    note = f"{culprits} left a dump, which is damaged: whether {'it is' if is_one else 'they are'} lost is unknown"
    return msgspec.structs.replace(
        finding,
        title=f"the dump{'' if is_one else 's'} of {culprits} cannot be read{ending}",
        evidence=msgspec.structs.replace(finding.evidence, notes=(note, *finding.evidence.notes)),
        help=f"copy the dump of rank {cause.ranks[0]} again; if the original is damaged too, read the rank's stderr",
    )


def _on_other_nodes(view: JobView, cause: Cause, finding: Finding) -> Finding:
    """Their nodes wrote into another folder: that nothing of them is here is no sign of their end."""
    n_here, n_all = len(view.dumped), len(view.dumped | ranks_elsewhere(view.trace))
    waiting = f"{count_noun(len(cause.blocked), 'rank')} {are_waiting(len(cause.blocked))} for ranks of other nodes"
    return msgspec.structs.replace(
        finding,
        severity="warning",
        certainty="possible",
        title=f"{n_here} of {n_all} ranks are here: {waiting}, whose files are not here",
        ranks=(),
        evidence=msgspec.structs.replace(
            finding.evidence, likely=(f"{ranks_phrase(cause.ranks)} wrote into another folder, on their own node",)
        ),
        help="read the folders of all nodes together: `rankscope A B` reads both",
    )


def _describe_only_one(view: JobView, cause: Cause, rows: list[int]) -> Finding:
    """The only dump that is here shows where its rank waits, and nothing about whom it waits for."""
    rank = view.ranks[0]
    n_members = len({rank for members in view.members for rank in members})
    evidence = make_evidence(
        view,
        cause,
        1,
        certain=(f"rank {rank} made the call and is waiting",),
        likely=(),
        notes=(f"only rank {rank} can be judged: what the other {n_members - 1} ranks did is unknown",),
        comparison=None,
        stacks=stack_groups(view, rows, "waiting"),
    )
    title = f"only 1 of {n_members} ranks left a dump here: rank {rank} is waiting in {call_text(view, rows[0])}"
    return make_finding(view, cause, title, evidence, "collect the dumps of all ranks, and run again")


def _last_seen(view: JobView, cause: Cause) -> tuple[str, ...]:
    """When a rank that wrote nothing was last alive, from the collectives that its peers saw complete."""
    is_seen = view.is_done & ~view.is_p2p & view.calls.text("state").equals("completed")
    shared = [group for group, members in enumerate(view.members) if set(members) & set(cause.ranks)]
    rows = np.flatnonzero(is_seen & np.isin(view.group, shared))
    if not len(rows) or len(cause.ranks) > 1:
        return ()
    last = int(rows[np.argmax(view.created[rows])])
    return (f"it was alive at seq {int(view.seq[last])} of {group_text(view, int(view.group[last]))}, which completed",)


@rule("H105", "rank-stuck", needs=("collectives", "groups"))
def rank_stuck(trace: Trace) -> Iterator[Finding | Effect]:
    """A rank never reached the collective that the others are waiting in, and is not waiting in another one.

    What it means: the rank's process was alive when it wrote its dump, but it did not get to the next collective: it is
    stuck or busy outside of collectives, or it left the training loop.

    Why it happens: a data loader that stopped, a lock, a checkpoint write that hangs, an exception that was caught,
    a loop with fewer iterations on this rank, a compilation or a host-device copy that does not finish.

    What to do: find out what the rank does after its last call (shown in the finding). Take its Python stack with
    py-spy or faulthandler while the job still hangs, and read its stderr.

    What could fool it: the recorder does not see collectives inside CUDA graphs, sends and receives on gloo, or
    communication by other libraries. The rank may be waiting in one of these.
    """
    yield from findings_of(trace, "rank-stuck", _describe_stuck)


def _describe_stuck(view: JobView, cause: Cause) -> Finding:
    peers = _peers_in_call(view, cause)
    n_culprits = len(cause.ranks)
    last = "it recorded no calls" if n_culprits == 1 else "they recorded no calls"
    after = ""
    last_stack = stack_groups(view, [cause.culprit_row], "last call") if cause.culprit_row != MISSING else ()
    if set(cause.ranks) <= ranks_cut(view.trace):
        last = f"{'its dump is' if n_culprits == 1 else 'their dumps are'} damaged: only the counters are certain"
    if cause.culprit_row != MISSING:
        site = site_text(view, cause.culprit_row)
        whose = "its" if n_culprits == 1 else f"rank {int(view.rank[cause.culprit_row])}'s"
        last = f"{whose} last call is {call_text(view, cause.culprit_row)}" + (f" in {site}" if site else "")
        after = " after that call"
    is_blind = cause.group in view.blind_groups
    absent = f"{ranks_phrase(cause.ranks)} {has(n_culprits)} not made the call"
    they, is_not = ("it is", "is not") if n_culprits == 1 else ("they are", "are not")
    other = "left the loop" if cause.certainty == "certain" else "skipped the transfer"
    evidence = make_evidence(
        view,
        cause,
        len(peers),
        certain=(absent if is_blind else f"{absent}, and {is_not} waiting in another one that was recorded", last),
        likely=(f"{they} stuck or busy in Python or on the device{after}, or {has(n_culprits)} {other}",),
        notes=_host_note(view, cause.ranks),
        comparison=None if view.is_p2p[cause.peer_row] else compare_with(view, cause, peers),
        stacks=(*last_stack, *stack_groups(view, waiting_rows(view, cause), "waiting")),
    )
    stderr = "read its stderr, and run `py-spy dump --pid PID` on it while the job hangs"
    advice = f"find out what rank {cause.ranks[0]} is doing{after}: {stderr}"
    return make_finding(view, cause, _title_of_stuck(view, cause, peers), evidence, advice)


def _title_of_stuck(view: JobView, cause: Cause, peers: list[int]) -> str:
    """`rank 57 never reached the all_reduce that 7 peers are waiting in`."""
    culprits, op = ranks_phrase(cause.ranks), view.calls.text("op")[cause.peer_row]
    waiting = are_waiting(len(peers))
    if view.is_p2p[cause.peer_row]:
        return f"{culprits} never answered {ranks_phrase(peers)}, which {waiting} in {call_text(view, cause.peer_row)}"
    if cause.group in view.blind_groups:
        whose = "its" if len(cause.ranks) == 1 else "their"
        return f"{culprits} {has(len(cause.ranks))} not made the {op} call that {peers_phrase(peers, whose)} made"
    return f"{culprits} never reached the {op} that {peers_phrase(peers)} {waiting} in"


def _host_note(view: JobView, ranks: tuple[int, ...]) -> tuple[str, ...]:
    table = view.trace.table("ranks")
    chosen = table.text("host").take(np.flatnonzero(np.isin(table.array("rank"), ranks)))
    hosts = sorted({host for host in chosen.tolist() if host})
    return (f"on {'host' if len(hosts) == 1 else 'hosts'} {', '.join(hosts[:4])}",) if hosts else ()


@rule("H109", "collective-stalled", needs=("collectives", "groups"))
def collective_stalled(trace: Trace) -> Iterator[Finding | Effect]:
    """All members joined a collective with matching calls, but it does not complete on all of them.

    What it means: as far as the dumps show, the program is correct. The fault is on a device, in the network, in a
    kernel that runs before the collective on the same stream, or in an argument that is not recorded. If the call
    completed on some ranks, the ranks where it did not are named.

    Why it happens: a broken link or adapter, a hung GPU, a firewall or routing change, a mismatch that the recorder
    does not see (reduce operation, root rank, split sizes), a kernel on the stream that never finishes.

    What to do: check the hosts of the members (dmesg for XID errors, link counters, NCCL_DEBUG=INFO, ncclras). Record
    with TORCH_NCCL_ENABLE_TIMING=1 to see which rank's kernel has not started.

    What could fool it: the reduce operation, root rank and split sizes are not recorded, so ranks that disagree about
    these look the same. Dumps of a running job are not taken at the same instant: a rank may complete the call a moment
    later.
    """
    yield from findings_of(trace, "collective-stalled", _describe_stalled)


def _describe_stalled(view: JobView, cause: Cause) -> Finding:
    members = view.members[cause.group] if not view.is_p2p[cause.culprit_row] else cause.ranks
    is_partial = len(cause.ranks) < len(members)
    call = call_text(view, cause.culprit_row)
    title = f"{_all_of(view, cause, members)} joined {call}, but it does not complete"
    certain = "every member made the call with the same operation, sizes and type"
    likely = "the fault is on a device or in the network between these ranks, not in the program"
    is_rooted = view.calls.text("op")[cause.culprit_row] in ROOTED
    if is_rooted:
        likely = "ranks passed different src or dst ranks, or the fault is on a device or in the network"
    if len(members) == 1:
        certain = "the dumps list no other member of the group"
        likely = "the device hangs, or the other ranks know this group under a different number"
    if cause.has_completed:
        title, certain, likely = _partly_completed(view, cause, call)
    elif cause.certainty == "possible":
        title += f"; what {ranks_phrase(cause.ranks)} called is not recorded"
        certain = "the calls that were recorded have the same operation, sizes and type"
        likely = f"{ranks_phrase(cause.ranks)} made a different call, or the fault is on a device or in the network"
    elif is_partial:
        title += f": it has not started on {ranks_phrase(cause.ranks)}"
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
    advice = _advice_on_stall(view, cause)
    if is_rooted:
        advice = f"print the src or dst that each rank passes here: all must pass the same. If they do, {advice}"
    return make_finding(view, cause, title, evidence, advice)


def _is_on_host(view: JobView, cause: Cause) -> bool:
    """Whether the call ran without a device."""
    return view.calls.text("backend")[cause.culprit_row] == "gloo"


def _advice_on_stall(view: JobView, cause: Cause) -> str:
    if _is_on_host(view, cause):
        return "check the network between these hosts: interface (GLOO_SOCKET_IFNAME), firewall, routes"
    if cause.has_completed:
        culprits = ranks_phrase(cause.ranks)
        return f"check {culprits} for device errors (dmesg, XID), link errors and kernels that run before the call"
    return (
        "check the devices and links of these hosts; next time, record with TORCH_NCCL_ENABLE_TIMING=1 to see which "
        "ranks have not started the call"
    )


def _all_of(view: JobView, cause: Cause, members: tuple[int, ...]) -> str:
    """`all 4 ranks of group 1 (tp)`, `both ranks of group 1 (tp)`, `ranks 0,4` for a transfer."""
    group = group_text(view, cause.group)
    if view.is_p2p[cause.culprit_row] and len(members) < len(view.members[cause.group]):
        return ranks_phrase(members)
    if len(members) == 1:
        return f"rank {members[0]}, the only rank of {group},"
    return f"both ranks of {group}" if len(members) == 2 else f"all {len(members)} ranks of {group}"


def _partly_completed(view: JobView, cause: Cause, call: str) -> tuple[str, str, str]:
    """Title, certain and likely sentence about a call that completed on some of its ranks only."""
    culprits, peers = ranks_phrase(cause.ranks), ranks_phrase(cause.has_completed)
    where = f"{call} of {group_text(view, cause.group)}"
    title = f"{culprits} {has(len(cause.ranks))} not completed {where}, but {peers} {has(len(cause.has_completed))}"
    certain = f"all members made the call; it completed on {peers}, but not on {culprits}"
    likely = f"the device or link of {culprits} hangs, or a kernel before the call on the same stream"
    if _is_on_host(view, cause):
        likely = f"the network between {culprits} and the others fails"
    if view.calls.text("op")[cause.culprit_row] in ROOTED:
        likely = f"{culprits} passed a different src or dst than the others, which is not recorded; or {likely}"
    return title, certain, likely


def _unnoticed_note(view: JobView, cause: Cause) -> tuple[str, ...]:
    """Which of the ranks that wait in the call have not completed the call before it either."""
    before = view.collective_match.get((cause.group, cause.seq - 1)) if not view.is_p2p[cause.culprit_row] else None
    if before is None or cause.has_completed:
        return ()
    rows = view.rows_of_match(before)
    behind = sorted(view.rank[rows[view.calls.array("status_inferred")[rows]]].tolist())
    if not behind or len(behind) == len(rows):
        return ()
    who, them = ranks_phrase(behind), "it" if len(behind) == 1 else "them"
    return (f"{who} did not record that seq {cause.seq - 1} completed, but the other ranks did: check {them} first",)
