"""H134 to H138: what the log says about ranks that waited, where no rank reports its own failure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from rankscope.analyze.logs.events import Attempt, Event
from rankscope.analyze.logs.verdicts import Verdict
from rankscope.analyze.logs.watchdog import Call
from rankscope.analyze.logs.wording import finding, last_lines, of_cause, who
from rankscope.analyze.registry import Effect, rule
from rankscope.model.finding import Finding, format_duration, ranks_phrase
from rankscope.model.tables import MISSING, Trace

_RECORD = "rankscope record -o traces -- torchrun ... train.py"
_WAIT_MORE = (
    "collect more: set TORCH_FR_BUFFER_SIZE=2000, TORCH_NCCL_DUMP_ON_TIMEOUT=1 and NCCL_DEBUG=WARN, keep the log of "
    f"every rank, or run it under `{_RECORD}`"
)


_UNMERGED = (
    "set RAY_DEDUP_LOGS=0, or give the worker-*.err files of Ray's session: Ray left out lines that differ only in "
    "numbers, and with them the ranks"
)
_FROZEN = 2  # a watchdog that reports so many times later than its timeout did not run


def _wait_notes(verdict: Verdict) -> tuple[str, ...]:
    """What else the log shows about a wait: dumps that exist, peers that NCCL names, processes that did not run."""
    attempt, notes = verdict.attempt, []
    if attempt.of("dump-written", "dump-signal", "watchdog-fired"):
        notes.append("the ranks tried to write Flight Recorder dumps: give their folder to rankscope, too")
    peers = Counter(
        str(event.fields["peer"]) for event in attempt.of("network", "network-peer") if "peer" in event.fields
    )
    if peers:
        [(peer, count)] = peers.most_common(1)
        notes.append(f"NCCL names {peer} as the peer of a broken connection ({count} of {sum(peers.values())} lines)")
    if closed := attempt.of("nccl-closed"):
        first = closed[0]
        notes.append(f"NCCL on {first.host}: local rank {first.fields['closed_local']} closed its connections first")
    frozen = {event.rank for event in attempt.of("watchdog-timeout") if _is_late(event)}
    if frozen:
        notes.append(f"{ranks_phrase(tuple(sorted(frozen)))} reported its timeout late: the process was frozen")
    begun, done = _communicators(attempt)
    if begun - done:
        notes.append(f"{ranks_phrase(tuple(sorted(begun - done)))} began to create a communicator and did not finish")
    if stuck := {event.rank for event in attempt.of("watchdog-stuck")} - {MISSING}:
        notes.append(f"the watchdog of {ranks_phrase(tuple(sorted(stuck)))} got stuck in a call of CUDA or NCCL")
    if attempt.of("unkillable"):
        notes.append("a process did not exit after SIGKILL: suspect the driver or the device of its host")
    return tuple(notes)


def _is_late(event: Event) -> bool:
    limit = int(event.fields.get("timeout_ms", 0))
    return event.rank >= 0 and limit > 0 and int(event.fields.get("ran_ms", 0)) > _FROZEN * limit


def _communicators(attempt: Attempt) -> tuple[set[int], set[int]]:
    """Ranks that began to create one, and that finished."""
    states: dict[str, set[int]] = {"START": set(), "COMPLETE": set()}
    for event in attempt.of("nccl-init"):
        states[str(event.fields["state"])].add(event.rank)
    return states["START"] - {MISSING}, states["COMPLETE"]


def _as_evidence(trace: Trace, result: Finding) -> Finding | Effect:
    """Dumps show more than counters in a log: there, a log's verdict about a wait is only evidence."""
    return Effect(result) if trace.has("collectives") else result


def _deed(verdict: Verdict) -> str:
    """Without any line of the rank, its log may just be missing."""
    standoff = verdict.standoff
    is_unseen = standoff is not None and set(verdict.ranks) <= set(standoff.absent)
    return "printed nothing while its peers timed out in" if is_unseen else "did not reach"


def _where_instead(verdict: Verdict) -> tuple[str, ...]:
    """What a rank that is missing says about itself."""
    left = [event.rank for event in verdict.attempt.of("left-normally") if event.rank in verdict.ranks]
    if left:
        return (f"{who(sorted(set(left)))} reached the end of the program: its peers had more work to do",)
    holders = [event.rank for event in verdict.attempt.of("gil") if event.rank in verdict.ranks]
    if holders:
        return (f"a Python thread of {who(sorted(set(holders)))} holds the GIL",)
    return ("it is stuck outside of the collective, left early, or died without a message",)


@rule("H134", "log-behind", needs=("log_events",))
def log_behind(trace: Trace) -> Iterator[Finding | Effect]:
    """A rank did not reach a collective in which its peers timed out, according to the log.

    What it means: the other ranks report a timeout or a lost connection. This rank does not: its sequence number is
    lower, a monitored barrier names it, or it printed nothing.

    Why it happens: it is stuck or slow outside of collectives (data loading, checkpoint, evaluation, a lock), it left
    its loop early, or it died without a message.

    What to do: look at the last line that the rank printed, and get its stack while it hangs: `py-spy dump --pid PID`.

    What could fool it: a rank inside the NCCL call, or creating a communicator, looks the same as one that never got
    there. If the log of the rank is missing, its silence means little: the certainty is then `possible`.
    """
    for verdict in of_cause(trace, "behind"):
        standoff = verdict.standoff
        if standoff is not None:
            what = f"collective {standoff.call.seq} ({standoff.call.text})"
            after = f" after {format_duration(standoff.timeout_ms * 10**6)}" if standoff.timeout_ms else ""
            waits = f"{ranks_phrase(standoff.waiting)} timed out in it{after}"
            missing = (f"the log has no line of {ranks_phrase(standoff.absent)}",) if standoff.absent else ()
            missing = (*missing, *_wait_notes(verdict))
        else:
            what = (
                "a monitored barrier"
                if verdict.events[0].says == "monitored-barrier"
                else "a collective that its peers were in"
            )
            waits, missing = "the other ranks report a timeout or a lost connection", ()
        if verdict.events[0].kind in ("watchdog-stuck", "gil"):
            yield _as_evidence(trace, _blocked(verdict))
            continue
        yield _as_evidence(
            trace,
            finding(
                verdict,
                f"{who(verdict.ranks)} {_deed(verdict)} {what}",
                certain=(waits,),
                likely=_where_instead(verdict),
                notes=(*missing, *last_lines(verdict)),
                advice=f"find out what {who(verdict.ranks)} did instead: its last line, "
                f"`py-spy dump --pid PID`, or `{_RECORD}`",
                action="collect-more",
            ),
        )


def _blocked(verdict: Verdict) -> Finding:
    """Its watchdog says itself that it could not run."""
    is_lock = verdict.events[0].kind == "gil"
    what = "holds the GIL" if is_lock else "did not run"
    subject = f"a Python thread of {who(verdict.ranks)}" if is_lock else f"the watchdog thread of {who(verdict.ranks)}"
    return finding(
        verdict,
        f"{subject} {what}, while the other ranks' logs show nothing like it",
        certain=("the rank says so itself",),
        likely=("a call of CUDA, of NCCL or of a native library does not return on this rank",),
        notes=last_lines(verdict),
        advice=f"get its stack while it hangs: `py-spy dump --native --pid PID`, or run it under `{_RECORD}`",
        action="collect-more",
    )


def _differing(call: Call, odd: Call) -> str:
    if call.seq == odd.seq and odd.text == call.text:  # only what comes out differs
        sizes = f"with an output of {odd.n_out:,} elements where the others have {call.n_out:,}"
        return f"{call.text} {sizes}, in collective {call.seq}"
    if call.seq == odd.seq:
        return f"{odd.text} where the others called {call.text} (collective {call.seq})"
    return f"some ranks are waiting in collective {call.seq} ({call.text}), others in {odd.seq} ({odd.text})"


@rule("H135", "log-mismatch", needs=("log_events",))
def log_mismatch(trace: Trace) -> Iterator[Finding | Effect]:
    """Ranks made different calls at the same position, according to the log.

    What it means: the watchdogs or torch's own check (TORCH_DISTRIBUTED_DEBUG=DETAIL) show different operations, sizes
    or positions on the ranks of one group. The minority is named; if there is no majority, both sides are.

    Why it happens: a condition that differs between ranks, a parameter without a gradient on some of them, uneven
    batches, an early `continue` or `return`.

    What to do: make the condition the same on all ranks.

    What could fool it: the watchdog prints neither dtype nor root. Gloo reports the sizes of two
    ranks, but not which one is wrong.
    """
    for verdict in of_cause(trace, "mismatch"):
        standoff, first = verdict.standoff, verdict.events[0]
        sides = first.detail("sides") or ()
        if standoff is not None and standoff.odd is not None:
            calls = _differing(standoff.call, standoff.odd)
        elif sides:
            calls = " and ".join(f"{side['op'].lower()} [{side['shape']}] on rank {side['rank']}" for side in sides)
        else:
            calls = f"a peer sent {first.detail('sent')} bytes where {first.detail('expected')} were expected"
        is_tie = not verdict.ranks or (standoff.is_tie if standoff is not None else _names_all(verdict))
        noun = "calls" if is_tie else "a call"
        yield _as_evidence(
            trace,
            finding(
                verdict,
                f"{who(verdict.ranks, 'two ranks')} made {noun} that cannot complete: {calls}",
                certain=("the calls cannot complete together",),
                likely=("no majority: either side may be wrong",) if is_tie else (),
                advice="make the condition before the call the same on all ranks",
                action="fix-first",
            ),
        )


def _names_all(verdict: Verdict) -> bool:
    """Reports that name a rank of each side, and no majority."""
    named = {int(side["rank"]) for event in verdict.events for side in event.detail("sides") or ()}
    return len(named) > 1 and named == set(verdict.ranks)


@rule("H136", "log-stalled", needs=("log_events",))
def log_stalled(trace: Trace) -> Iterator[Finding | Effect]:
    """All ranks timed out in the same call: no rank is missing, so the fault is on a device or in the network.

    What it means: every rank of the job reports a timeout in one collective, with the same operation and size.

    Why it happens: a link, a switch, a NIC or a device; or a deadlock between groups or streams. If it is the first
    collective, the setup: interfaces, peer-to-peer access, device binding.

    What to do: record with NCCL_DEBUG=WARN, which names the peer of a broken connection, and check the hosts.

    What could fool it: the watchdog shows neither dtype nor root, so a mismatch in these looks the same.
    """
    for verdict in of_cause(trace, "stalled"):
        standoff = verdict.standoff
        assert standoff is not None
        hosts = sorted(set(verdict.attempt.hosts.values()))
        yield _as_evidence(
            trace,
            finding(
                verdict,
                f"{ranks_phrase(standoff.waiting)} all timed out in collective {standoff.call.seq} "
                f"({standoff.call.text}): no rank is missing",
                certain=("all ranks of this log report the same call",),
                likely=("a device or the network stopped it",),
                notes=(*((f"hosts: {', '.join(hosts)}",) if hosts else ()), *_wait_notes(verdict)),
                advice=_WAIT_MORE,
                action="collect-more",
            ),
        )


@rule("H137", "log-missing", needs=("log_events",))
def log_missing(trace: Trace) -> Iterator[Finding | Effect]:
    """The job did not start: a rank never joined, according to the ranks that waited for it.

    What it means: ranks waited in init_process_group for others that never joined.

    Why it happens: a node that was not started, a firewall, a wrong MASTER_ADDR or WORLD_SIZE, or a rank that failed
    before it joined.

    What to do: look at the log of the missing rank, and check that it can reach the address of rank 0.

    What could fool it: if the log has no line of the missing ranks, only their numbers are known, or only how many are
    missing.
    """
    for verdict in of_cause(trace, "missing"):
        first = verdict.events[0]
        joined, expected = first.detail("joined"), first.detail("expected")
        if joined is not None and int(joined) > int(expected):
            yield _too_many(verdict, int(joined), int(expected))
            continue
        if first.says == "store-unreachable":
            yield _unreachable(verdict)
            continue
        counted = (
            f"{joined} of {expected} ranks joined" if joined is not None else "a rank did not set its key in the store"
        )
        joint = "the job" if int(first.detail("barrier") or 1) == 1 else "a new process group"
        yield finding(
            verdict,
            f"{who(verdict.ranks, 'at least one rank')} did not join {joint}: {counted}",
            certain=("the ranks that report it were waiting",),
            advice="look at the log of the missing rank; check MASTER_ADDR, WORLD_SIZE and the firewall",
            action="collect-more",
        )


def _unreachable(verdict: Verdict) -> Finding:
    where = str(verdict.events[0].detail("where") or "its address")
    return finding(
        verdict,
        f"the job's store at {where} does not answer: the job did not start",
        certain=("the processes that report it ended for that reason",),
        likely=("rank 0 was not started or ended early, or the address, the port or a firewall is wrong",),
        advice="look at the log of rank 0, then check MASTER_ADDR, MASTER_PORT and the firewall",
        action="collect-more",
    )


def _too_many(verdict: Verdict, joined: int, expected: int) -> Finding:
    return finding(
        verdict,
        f"{joined} ranks joined where {expected} were expected: two jobs or two attempts share one store",
        certain=("the ranks that report it were there and waited",),
        likely=("the store kept the keys of an earlier attempt, or WORLD_SIZE is not the same on all ranks",),
        advice="use another --master-port or another file for each start, and the same WORLD_SIZE on all ranks",
        action="fix-first",
    )


@rule("H138", "log-undecided", needs=("log_events",))
def log_undecided(trace: Trace) -> Iterator[Finding | Effect]:
    """The job failed, but its log does not show which rank caused it.

    What it means: the log shows only what the failure did to the other ranks: timeouts, lost connections, SIGTERM.
    Naming a rank would be a guess.

    Why it happens: the log of the rank that failed first is missing or cut, or that rank died without a message.

    What to do: collect what the finding names.

    What could fool it: nothing, because it names no rank.
    """
    for verdict in of_cause(trace, "undecided"):
        known = verdict.attempt.ranks
        standoff = verdict.standoff
        advice = _UNMERGED if standoff and standoff.is_merged else _WAIT_MORE
        if standoff and standoff.absent:
            advice = f"give the log of {ranks_phrase(standoff.absent)}, too: all others waited, and it is not here"
        absent = sorted(set(range(verdict.attempt.world_size)) - known)
        yield _as_evidence(
            trace,
            finding(
                verdict,
                "the job failed, but this log does not show which rank caused it",
                certain=("every message in it is a consequence of another rank's failure",),
                notes=(
                    *((f"the log has no line of {ranks_phrase(tuple(absent))}",) if absent else ()),
                    *_wait_notes(verdict),
                ),
                advice=advice,
                action="collect-more",
                severity="warning",
            ),
        )
