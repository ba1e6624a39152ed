"""One answer for several worlds that were alive side by side: whose finding is the cause, and whose an effect of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import msgspec

from rankscope.analyze.hangs.standing import OutsideWait, outside_waits
from rankscope.analyze.judging import importance
from rankscope.analyze.registry import find_rule
from rankscope.model.finding import Check, Evidence, Finding, ranks_phrase
from rankscope.model.numbers import is_number
from rankscope.model.tables import Trace

# Verdicts that a rank which waits for another world gets: by itself it looks stuck.
_LOOKS_STUCK = frozenset(("rank-stuck", "rank-elsewhere", "hang-outside"))
# Verdicts about a group that has members in another world, which this one does not know.
_LOOKS_WHOLE = frozenset(("collective-stalled", "rank-lost"))


class Judged(NamedTuple):
    """A world and what the rules say about it alone."""

    trace: Trace
    findings: Sequence[Finding]
    effects: Sequence[Finding]
    checks: Sequence[Check]

    @property
    def name(self) -> str:
        return self.trace.world.name if self.trace.world else ""

    @property
    def number(self) -> int:
        return self.trace.world.number if self.trace.world else 0


class Held(NamedTuple):
    """Ranks of a finding that wait for another world."""

    ranks: tuple[int, ...]
    text: str  # `rank 0 is waiting in store.get(), in wait_for_weights (rollout.py:31)`
    awaited: Judged | None  # the world that they wait for, where that is certain


class Merged(NamedTuple):
    findings: list[Finding]
    effects: list[Finding]
    checks: list[Check]


def merge_worlds(worlds: Sequence[Judged]) -> Merged:
    """All findings, each with the name of its world, the cause first."""
    held = {world.number: {**_outside_waits(world), **_shared_waits(world, worlds)} for world in worlds}
    roots = [world for world in worlds if _hangs_by_itself(world, held[world.number])]
    findings: list[Finding] = []
    effects: list[Finding] = []
    for world in worlds:
        for index, finding in enumerate(world.findings):
            wait = held[world.number].get(index)
            causes = [root for root in roots if wait and root is not world and wait.awaited in (None, root)]
            if wait and causes:
                effects.append(_labeled(world, _as_effect(finding, wait, causes)))
            elif wait and wait.awaited:
                findings.append(_labeled(wait.awaited, _of_awaited(finding, wait, world)))
            else:
                others = [other for other in worlds if held[other.number] and other is not world] if wait else []
                findings.append(_labeled(world, _mutual(finding, wait, others) if wait and others else finding))
        effects += [_labeled(world, effect) for effect in world.effects]
    findings.sort(key=importance)
    if findings and roots:
        waiting = [(world, wait) for world in worlds if world not in roots for wait in held[world.number].values()]
        findings[0] = _with_held_up(findings[0], waiting)
    return Merged(findings, effects, _checks(worlds))


def _hangs_by_itself(world: Judged, held: Mapping[int, Held]) -> bool:
    return any(
        finding.severity == "error" and finding.code.startswith("H") and index not in held
        for index, finding in enumerate(world.findings)
    )


# --- who waits for another world --------------------------------------------------------------------------------------


def _outside_waits(world: Judged) -> dict[int, Held]:
    """By its place in the list, each finding whose ranks wait for another process by their stacks."""
    candidates = [number for number, finding in enumerate(world.findings) if finding.rule in _LOOKS_STUCK]
    waits = outside_waits(world.trace) if candidates else {}
    held = {}
    for number in candidates:
        ranks = world.findings[number].ranks or tuple(sorted(waits))
        if ranks and all(rank in waits for rank in ranks):
            held[number] = Held(ranks, _where([waits[rank] for rank in ranks]), None)
    return held


def _where(waits: Sequence[OutsideWait]) -> str:
    first = [wait for wait in waits if (wait.what, wait.text) == (waits[0].what, waits[0].text)]
    ranks = [wait.rank for wait in first]
    are = "is" if len(ranks) == 1 else "are"
    return f"{ranks_phrase(ranks)} {are} waiting in {first[0].what}, in {first[0].text}"


def _shared_waits(world: Judged, worlds: Sequence[Judged]) -> dict[int, Held]:
    """Each finding about a group that reaches into another world, which has not made the call there.

    Frameworks make such a group beside the default one, under a name of their own, and torch does not record its
    members. Groups that a world makes for itself have numbers or hashes, or their members are known.
    """
    held = {}
    for number, finding in enumerate(world.findings):
        group, call = finding.group, finding.collective
        if finding.rule not in _LOOKS_WHOLE or not group or not call or not group.inferred or is_number(group.name):
            continue
        for other in worlds:
            newest = _newest_seq(other.trace, group.name) if other is not world else None
            if newest is not None and newest < call.seq:
                are = "is" if len(group.ranks) == 1 else "are"
                joined = f"{ranks_phrase(group.ranks)} {are} waiting in {call.op} of group {group.name}"
                held[number] = Held(group.ranks, f"{joined}, which {other.name} has not called", other)
    return held


def _newest_seq(trace: Trace, group_name: str) -> int | None:
    calls = trace.table("collectives")
    seqs = calls.array("seq")[calls.text("group_name").equals(group_name) & ~calls.array("is_p2p")]
    return int(seqs.max()) if len(seqs) else None


# --- what is said about it --------------------------------------------------------------------------------------------


def _as_effect(finding: Finding, wait: Held, causes: Sequence[Judged]) -> Finding:
    names = " or ".join(cause.name for cause in causes)
    said = (f"{wait.text}: this world waits for {names}, which hangs",)
    evidence = msgspec.structs.replace(finding.evidence, likely=said)
    if wait.awaited:  # what this world knows of the group is not all of it
        finding = msgspec.structs.replace(finding, title=wait.text)
        evidence = msgspec.structs.replace(evidence, certain=())
    return msgspec.structs.replace(finding, evidence=evidence, help=f"look at {names} first")


def _mutual(finding: Finding, wait: Held, others: Sequence[Judged]) -> Finding:
    names = " or ".join(other.name for other in others)
    said = f"{wait.text}: this world and {names} may be waiting for each other"
    return msgspec.structs.replace(finding, evidence=msgspec.structs.replace(finding.evidence, likely=(said,)))


def _of_awaited(finding: Finding, wait: Held, waiting: Judged) -> Finding:
    """Nothing else is known of the awaited world: that it has not made the call is the finding, and it is its own."""
    assert finding.group
    assert finding.collective
    assert wait.awaited
    calls = wait.awaited.trace.table("collectives")
    ranks = tuple(sorted(set(calls.array("rank")[calls.text("group_name").equals(finding.group.name)].tolist())))
    call = f"{finding.collective.op} of group {finding.group.name}"
    waiting_ranks = f"{ranks_phrase(wait.ranks)} of {waiting.name} {'is' if len(wait.ranks) == 1 else 'are'} waiting"
    never_came = msgspec.structs.replace(
        finding,
        certainty="likely",
        title=f"{ranks_phrase(ranks)} never reached the {call} that {waiting_ranks} in",
        ranks=ranks,
        location=None,
        peer_location=finding.location or finding.peer_location,
        evidence=Evidence(
            certain=(f"{waiting.name} has made the call, but {wait.awaited.name} has not",),
            waiting_ns=finding.evidence.waiting_ns,
            n_blocked=len(wait.ranks),
            stacks=finding.evidence.stacks,
        ),
        help=f"collect the stacks of {ranks_phrase(ranks)} of {wait.awaited.name} to see what keeps it from the call",
    )
    return find_rule("rank-stuck").bound(never_came)


def _with_held_up(finding: Finding, waiting: Sequence[tuple[Judged, Held]]) -> Finding:
    if not waiting:
        return finding
    evidence = msgspec.structs.replace(
        finding.evidence,
        likely=(
            *finding.evidence.likely,
            *(f"{world.name} waits for this world: its {wait.text}" for world, wait in waiting),
        ),
        facts={
            **finding.evidence.facts,
            "waiting_worlds": [
                {"capture": world.number, "name": world.name, "ranks": list(wait.ranks)} for world, wait in waiting
            ],
        },
    )
    return msgspec.structs.replace(finding, evidence=evidence)


def _labeled(world: Judged, finding: Finding) -> Finding:
    evidence = msgspec.structs.replace(finding.evidence, capture=world.number)
    return msgspec.structs.replace(finding, title=f"{world.name}: {finding.title}", evidence=evidence)


def _checks(worlds: Sequence[Judged]) -> list[Check]:
    """A rule that could be checked in one of the worlds was checked."""
    checks: dict[str, Check] = {}
    for check in (check for world in worlds for check in world.checks):
        if check.rule not in checks or check.status == "ran":
            checks[check.rule] = check
    return list(checks.values())
