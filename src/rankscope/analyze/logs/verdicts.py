"""One verdict per attempt: what the log shows to be the cause, in the order in which evidence counts.

A cause that a process or the system named itself comes before a report that names a rank, that before the counters of
the watchdog, those before silence. Where none of them decides, the verdict says what to record.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal, NamedTuple

from rankscope.analyze.derived import derived
from rankscope.analyze.logs.events import (
    CONSEQUENCES,
    TOLERANCE_NS,
    Attempt,
    Event,
    attempts_of,
    earliest,
    ends_its_output,
    exit_code,
    is_before,
    is_cause,
    is_last,
    surely_ended,
)
from rankscope.analyze.logs.exits import (
    fatal_exits,
    fatal_exits_before,
    fatal_exits_not_after,
    lone_abort,
    mute_exits,
    unnamed_ends,
)
from rankscope.analyze.logs.links import broken_links
from rankscope.analyze.logs.watchdog import Standoff, standoff_of
from rankscope.model.finding import Certainty
from rankscope.model.numbers import integer, is_number, rank_number
from rankscope.model.tables import MISSING, Trace

Cause = Literal[
    "failed", "killed", "scheduler", "device", "network", "behind", "mismatch", "stalled", "missing", "undecided"
]
_SYSTEM = ("host-oom", "scheduler", "agent-signal")
_OF_THE_PROGRAM = ("failed", "mismatch")  # what a restart does not mend
# A process says of these that it is its own trouble, whoever prints it.
_OWN_MESSAGES = (
    *(
        "device-assert",
        "device-error",
        "device-oom",
        "shm-full",
        "disk-full",
        "limit",
        "loader-killed",
        "loader-timeout",
    ),
    *("port-taken", "duplicate-device", "no-interface", "nan"),
)
_LAST_WORDS = ("network-peer", "rendezvous")  # nothing comes after them
_DEVICE = ("xid", "device-ecc", "device-lost")
_DEVICE_ERRORS = (*_DEVICE, "device-error", "device-assert", "watchdog-error", "device-fault")


class Verdict(NamedTuple):
    cause: Cause
    attempt: Attempt
    certainty: Certainty
    ranks: tuple[int, ...]
    events: tuple[Event, ...]  # the evidence, the decisive one first
    standoff: Standoff | None = None
    is_repeated: bool = False  # an earlier attempt failed in the same way


def verdicts_of(trace: Trace) -> list[Verdict]:
    return derived(trace, _find_verdicts)


def _find_verdicts(trace: Trace) -> list[Verdict]:
    match: list[Verdict] = []
    for attempt in attempts_of(trace):
        verdict = _verdict(attempt)
        if verdict is not None:
            is_repeated = verdict.cause in _OF_THE_PROGRAM and any(
                _fingerprint(verdict) == _fingerprint(other) for other in match
            )
            match.append(verdict._replace(is_repeated=is_repeated))
    return match


def _fingerprint(verdict: Verdict) -> object:
    event = verdict.events[0] if verdict.events else None
    return (verdict.cause, event.fields.get("type") if event else "", event.place if event else None)


def _verdict(attempt: Attempt) -> Verdict | None:
    return next(_candidates(attempt), None)


def _candidates(attempt: Attempt) -> Iterator[Verdict]:
    first_timeout = earliest(attempt.of("watchdog-timeout"))
    causes = [event for event in attempt.events if is_cause(attempt, event)]
    # What comes after a time-out is its consequence: aborted communicators leave garbage in memory.
    causes = [event for event in causes if not any(is_before(timeout, event) for timeout in first_timeout)]
    yield from _by_system(attempt, causes)
    yield from _by_failure(attempt, causes)
    yield from _by_report(attempt)
    timeouts = attempt.of("watchdog-timeout")
    yield from _by_message(attempt, _before_all(_messages(attempt), timeouts))
    if early := fatal_exits_before(attempt, timeouts):
        yield _killed(attempt, early)
    standoff = standoff_of(attempt)
    on_counters = None
    if standoff is not None:
        on_counters = Verdict(standoff.cause, attempt, standoff.certainty, standoff.ranks, standoff.events, standoff)
        if standoff.ranks:
            yield on_counters
    yield from _by_message(attempt, _not_after(_messages(attempt), first_timeout))
    if fatal := fatal_exits_not_after(attempt, timeouts):
        yield _killed(attempt, fatal)
    if broken := broken_links(attempt):
        yield Verdict("network", attempt, "likely", (), tuple(broken))
    if on_counters is not None:
        yield on_counters
    yield from _by_exit(attempt)
    yield from _by_store(attempt)
    yield from _by_silence(attempt)
    yield from _by_watchdog_thread(attempt)
    yield from _undecided(attempt)


def _undecided(attempt: Attempt) -> Iterator[Verdict]:
    waits = [event for event in attempt.events if event.says in CONSEQUENCES and event.kind != "told-to-stop"]
    is_last_word = any(
        is_last(attempt, event)
        if event.kind == "traceback"
        else event.kind in _LAST_WORDS and ends_its_output(attempt, event)
        for event in waits
    )
    waits = waits or attempt.of("told-to-stop")
    if waits and (attempt.has_failed or is_last_word):
        yield Verdict("undecided", attempt, "certain", (), tuple(earliest(waits)))


def _messages(attempt: Attempt) -> list[Event]:
    """What processes report about themselves without a traceback, shortly before their end or in a job that failed."""
    said = attempt.of(*_OWN_MESSAGES)
    return said if attempt.has_failed else [event for event in said if ends_its_output(attempt, event)]


def _before_all(events: list[Event], timeouts: list[Event]) -> list[Event]:
    """Of ranks that did not wait themselves, and before all that did."""
    waited = {event.rank for event in timeouts} | {MISSING}
    events = [event for event in events if event.rank not in waited]
    return [event for event in events if timeouts and all(is_before(event, timeout) for timeout in timeouts)]


def _not_after(events: list[Event], timeouts: list[Event]) -> list[Event]:
    return [event for event in events if not any(is_before(timeout, event) for timeout in timeouts)]


def _by_message(attempt: Attempt, said: list[Event]) -> Iterator[Verdict]:
    if first := earliest(said):
        is_device = first[0].kind in _DEVICE_ERRORS
        yield Verdict("device" if is_device else "failed", attempt, "likely", _ranks(first, attempt), tuple(first))


def _by_watchdog_thread(attempt: Attempt) -> Iterator[Verdict]:
    """A lone watchdog that got stuck, or a lock that one rank holds; on most ranks it is not a rank's fault."""
    holders = attempt.of("gil")
    stuck = holders or attempt.of("watchdog-stuck")
    ranks = {event.rank for event in stuck}
    if ranks and MISSING not in ranks and 2 * len(ranks) < len(attempt.ranks):
        yield Verdict("behind", attempt, "likely" if holders else "possible", tuple(sorted(ranks)), tuple(stuck))


def _by_system(attempt: Attempt, causes: list[Event]) -> Iterator[Verdict]:
    """What the kernel, the driver or the scheduler did, unless a rank had failed before."""
    device = attempt.of(*_DEVICE, "switch")
    for event in earliest(_first_xids(device)):
        if not any(is_before(cause, event) for cause in causes):
            yield Verdict("device", attempt, "certain", _ranks([event], attempt), (event,))
    oom = [event for event in attempt.of("host-oom") if not (causes and _is_foreign(attempt, event))]
    if oom:
        killed = _ranks(oom, attempt) or tuple(sorted({event.rank for event in _killed_for_memory(attempt)}))
        yield Verdict("killed", attempt, "certain", killed, (*oom, *_killed_for_memory(attempt)))
    outside = [
        event for event in attempt.of("scheduler", "agent-signal") if not _is_after_failure(attempt, event, causes)
    ]
    if outside:
        yield Verdict("scheduler", attempt, "certain", (), tuple(earliest(outside)))


def _killed_for_memory(attempt: Attempt) -> list[Event]:
    """SLURM says which task, the launcher which rank a SIGKILL ended."""
    named = [event for event in attempt.exits.values() if event.fields.get("how") == "Out Of Memory"]
    return named or [event for event in fatal_exits(attempt) if exit_code(event) in (-9, 137)]


def _is_foreign(attempt: Attempt, event: Event) -> bool:
    """The kernel's log also has kills of other jobs' processes."""
    pid = event.fields.get("killed_pid")
    return pid is not None and int(pid) not in _ranks_by_pid(attempt)


def _ranks_by_pid(attempt: Attempt) -> dict[int, int]:
    """Also of a DataLoader's workers."""
    known = {event.pid: event.rank for event in attempt.events if event.rank != MISSING and event.pid != MISSING}
    for event in attempt.saying("loader-killed"):
        for pid in str(event.detail("worker_pid") or event.detail("worker_pids") or "").replace(" ", "").split(","):
            if is_number(pid) and event.rank != MISSING:
                known.setdefault(integer(pid), event.rank)
    return known


def _ranks_by_bus(attempt: Attempt, node: str) -> dict[int, set[int]]:
    """NCCL prints a device's place on the bus as one number: 4d000 is 0000:4d:00.0."""
    places: dict[int, set[int]] = {}
    for event in attempt.of("nccl-init"):
        if event.rank != MISSING and node in ("", event.fields.get("node")):
            places.setdefault(int(str(event.fields["bus"]), 16), set()).add(event.rank)
    return places


def _bus_number(text: str) -> int:
    digits = text.replace(":", "").replace(".", "")
    return int(digits if "." in text else f"{digits}0", 16)


def _first_xids(events: list[Event]) -> list[Event]:
    from rankscope.analyze.logs.xid import FOLLOWERS

    first_faults = [event for event in events if event.fields.get("xid") not in FOLLOWERS]
    return first_faults or events


def _is_after_failure(attempt: Attempt, event: Event, causes: list[Event]) -> bool:
    others = [*causes, *attempt.of("watchdog-timeout"), *attempt.exits.values()]
    hooked = [each for each in attempt.of("traceback") if each.fields.get("is_hooked")]
    return any(is_before(other, event) is not False for other in [*others, *hooked])


def _ranks(events: list[Event], attempt: Attempt) -> tuple[int, ...]:
    """The ranks of the events, by the process or device that they name where the line itself has none."""
    by_pid = _ranks_by_pid(attempt)
    ranks: set[int] = set()
    for event in events:
        pids = [event.detail(name) for name in ("killed_pid", "xid_pid")]
        named = {by_pid[int(pid)] for pid in pids if pid is not None and int(pid) in by_pid}
        if not named and "xid" in event.fields:
            there = _ranks_by_bus(attempt, str(event.fields.get("node", "")))
            on_bus = there.get(_bus_number(str(event.fields["bus"])), set())
            named = on_bus if len(on_bus) == 1 else set()
        ranks.update(named or ([event.rank] if event.rank != MISSING else []))
    return tuple(sorted(ranks))


def _by_failure(attempt: Attempt, causes: list[Event]) -> Iterator[Verdict]:
    first = earliest(causes)
    if not first:
        return
    ranks = tuple(sorted({event.rank for event in first if event.rank != MISSING}))
    same = len({(event.fields.get("type"), event.place) for event in first}) == 1
    certainty: Certainty = "certain" if same and all(surely_ended(attempt, event) for event in first) else "likely"
    if len(first) > 1 and not same:
        exits = attempt.exits
        exited = [event for event in first if event.rank in exits]
        first = exited or first
    if any(_is_rival(first[0], event) for event in causes):
        certainty = "likely"
    is_device = first[0].says in _DEVICE_ERRORS
    yield Verdict("device" if is_device else "failed", attempt, certainty, ranks, tuple(first))


def _is_rival(first: Event, other: Event) -> bool:
    """Another failure on another rank, which no stamps show to be later: lines of a merged log may change places."""
    if other.rank in (first.rank, MISSING) or first.rank == MISSING:
        return False
    if (first.fields.get("type"), first.place) == (other.fields.get("type"), other.place):
        return False
    moments = [event.time_ns if event.time_ns != MISSING else event.near_ns for event in (first, other)]
    return MISSING in moments or abs(moments[0] - moments[1]) <= TOLERANCE_NS


def _by_report(attempt: Attempt) -> Iterator[Verdict]:
    """Reports that name the rank themselves."""
    barrier = attempt.saying("monitored-barrier")
    if barrier:
        listed = ",".join(str(event.detail("missing")) for event in barrier)
        ranks = tuple(sorted({rank_number(part) for part in listed.replace(" ", "").split(",")} - {MISSING}))
        yield Verdict("behind", attempt, "certain", ranks, tuple(barrier))
    victims = attempt.saying("barrier-victim")
    speakers = {event.rank for event in victims}
    if not barrier and victims and speakers >= set(range(1, attempt.world_size)):
        yield Verdict("behind", attempt, "likely", (0,), tuple(victims))
    mismatches = attempt.saying("detail-mismatch")
    if mismatches:
        odd, certainty = _odd_ranks(mismatches)
        yield Verdict("mismatch", attempt, certainty, odd, tuple(mismatches))
    sizes = attempt.saying("gloo-mismatch")
    if sizes:
        yield Verdict("mismatch", attempt, "likely", (), tuple(sizes))
    missing = attempt.saying("init-missing") or [
        event for event in attempt.saying("store-wait") if "/default_pg/0/" in str(event.detail("keys"))
    ]
    if missing:
        present = {event.rank for event in missing if event.rank != MISSING}
        absent = {rank for event in missing if (rank := _awaited_rank(event)) != MISSING} - present
        if not absent and present:
            absent = set(range(attempt.world_size)) - present - attempt.ranks
        counts = [(event.detail("expected"), event.detail("joined")) for event in missing]
        n_absent = {int(expected) - int(joined) for expected, joined in counts if None not in (expected, joined)}
        if n_absent and len(absent) not in n_absent:  # more ranks are silent than missing
            absent = set()
        yield Verdict("missing", attempt, "likely", tuple(sorted(absent)), tuple(missing))


def _by_store(attempt: Attempt) -> Iterator[Verdict]:
    """Processes that ended because they could not reach the store."""
    failed = [event for event in attempt.saying("store-unreachable") if event.kind == "traceback"]
    if failed and all(is_last(attempt, event) or event.fields.get("is_hooked") for event in failed):
        yield Verdict("missing", attempt, "likely", (), tuple(earliest(failed)))


def _awaited_rank(event: Event) -> int:
    """gloo waits for the address of each peer under a key that ends with its rank: `/default_pg/0//cpu//0/2`."""
    head, _, last = str(event.detail("keys") or "").partition(",")[0].strip().rpartition("/")
    rank = rank_number(last) if head.endswith("//cpu//0") else MISSING
    return rank or MISSING  # rank 0 may have come, and wait itself for the others to connect to its store


def _odd_ranks(events: list[Event]) -> tuple[tuple[int, ...], Certainty]:
    """The minority by what each rank called; a tie names both sides."""
    calls: dict[int, tuple[str, str, str, int]] = {}
    for event in events:
        for side in event.detail("sides") or ():
            calls[int(side["rank"])] = (side["op"], side["shape"], side["dtype"], side["seq"])
    camps: dict[tuple[str, str, str, int], list[int]] = {}
    for rank, call in calls.items():
        camps.setdefault(call, []).append(rank)
    if not camps:
        return (), "likely"
    largest = max(map(len, camps.values()))
    majority = [camp for camp in camps.values() if len(camp) == largest]
    if len(majority) != 1:
        return tuple(sorted(calls)), "certain"
    return tuple(sorted(set(calls) - set(majority[0]))), "certain"


def _killed(attempt: Attempt, ends: list[Event]) -> Verdict:
    ranks = tuple(sorted({event.rank for event in ends} - {MISSING}))
    return Verdict("killed", attempt, "certain", ranks, (*ends, *attempt.saying("loader-killed")))


def _by_exit(attempt: Attempt) -> Iterator[Verdict]:
    """A process that ended without a message: -6 is what waiting ranks do to themselves, so it counts last."""
    if abort := lone_abort(attempt):
        yield _killed(attempt, abort)
    bare = unnamed_ends(attempt)
    by_signal = [event for event in bare if event.kind in ("killed", "segfault", "died") or (exit_code(event) or 0) < 0]
    if by_signal:
        yield Verdict("killed", attempt, "likely", _ranks(by_signal, attempt), tuple(by_signal))
    mute = mute_exits(attempt) or bare
    if mute:
        yield Verdict("killed", attempt, "likely", _ranks(mute, attempt), tuple(mute))


def _by_silence(attempt: Attempt) -> Iterator[Verdict]:
    """All others say that they waited or lost a peer: who said nothing?"""
    waits = [event for event in attempt.events if event.says in (*CONSEQUENCES, "connection-reset")]
    waits = [event for event in waits if event.kind not in ("told-to-stop", "agent-signal", "rendezvous")]
    speakers = {event.rank for event in waits if event.rank != MISSING}
    failed = {rank for rank, event in attempt.exits.items() if exit_code(event) not in (0, None)}
    silent = set(range(attempt.world_size)) - speakers - failed
    if speakers and silent and len(silent) * 2 < attempt.world_size and attempt.has_failed:
        has_log = silent <= attempt.ranks
        certainty: Certainty = "likely" if len(silent) == 1 and has_log else "possible"
        yield Verdict("behind", attempt, certainty, tuple(sorted(silent)), tuple(earliest(waits)))
