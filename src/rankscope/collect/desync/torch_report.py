"""The desync report in the very words of torch's own tracker (TraceUtils.h), for tools that look for them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from rankscope.collect.desync.report import MemberState

_KNOWLEDGE = "\n\t - To our best knowledge, "


def join_ranks(ranks: Iterable[int]) -> str:
    """`0, 1, 5`."""
    return ", ".join(map(str, ranks))


def bracket_ranks(ranks: Iterable[int]) -> str:
    """`[0, 1, 5]`."""
    return f"[{join_ranks(ranks)}]"


def timeout_text(own_rank: int, members: Sequence[MemberState]) -> str:
    """The first line. ValueError: the rank that timed out is in no collective, by what is known of it."""
    member_here = next((member for member in members if member.rank == own_rank), None)
    if member_here is None:
        raise ValueError(f"Timeout rank [{own_rank}] must have collective tracking item in c10::Store trace")
    if member_here.is_finished:
        last_call = f"thisSeq = {member_here.seq}, col = {member_here.op}"
        raise ValueError(f"Timeout rank [{own_rank}] last trace item must be kEventStart. {last_call}")
    return f"\n\t - [{own_rank}] Timeout at collective: {member_here.op}, #{member_here.seq}"


def missing_text(ranks: Iterable[int]) -> str:
    """Ranks that never joined."""
    cause = "are the lagging ranks that caused this timeout. They never joined any collectives"
    return f"{_KNOWLEDGE}ranks {bracket_ranks(ranks)} {cause}"


def lagging_text(members: Sequence[MemberState]) -> str:
    """Ranks whose latest state has the lowest sequence number."""
    seq = min(member.seq for member in members)
    last = [member for member in members if member.seq == seq]
    started = [member.rank for member in last if not member.is_finished]
    ended = [member.rank for member in last if member.is_finished]
    text = f"{_KNOWLEDGE}the lagging/dead/mismatched ranks that caused the desync are:"
    if started:
        text += f"\n\t   - {bracket_ranks(started)} joined but didn't finish collective #{seq} (count from 1)"
    if ended:
        text += f"\n\t     {bracket_ranks(ended)} finished collective #{seq}, but didn't join collective #{seq + 1} "
        text += "(count from 1)"
    return text


def snapshot_text(members: Sequence[MemberState]) -> str:
    """The latest state of every rank. torch leaves open in which order one number's collectives come: here by rank."""
    text = "\n\t - Snapshot of ranks' latest states:"
    for seq in sorted({member.seq for member in members}):
        for is_finished, word in ((False, "started"), (True, "finished")):
            by_op: dict[str, list[int]] = {}
            for member in members:
                if (member.seq, member.is_finished) == (seq, is_finished):
                    by_op.setdefault(member.op, []).append(member.rank)
            if by_op:
                text += f"\n\t   #{seq} {word} ranks:"
            for op, ranks in by_op.items():
                text += f"\n\t     {bracket_ranks(ranks)} {word} {op}"
    return text


def torch_report(members: Sequence[MemberState], missing: Sequence[int], own_rank: int) -> str:
    """All of it. `own_rank` timed out; below 0 nobody did, and the first line is left out."""
    members = sorted(members)
    beginning = timeout_text(own_rank, members) if own_rank >= 0 else ""
    if missing:
        return beginning + missing_text(missing)
    parts: tuple[Callable[[Sequence[MemberState]], str], ...] = (lagging_text, snapshot_text)
    return beginning + "".join(part(members) for part in parts) if members else beginning
