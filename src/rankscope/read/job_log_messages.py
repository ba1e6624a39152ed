"""What a line of a job's output says: the first message that it holds, with its numbers."""

from __future__ import annotations

import re
from typing import NamedTuple

from rankscope.read import job_log_system as system
from rankscope.read import job_log_torch as torch
from rankscope.read.job_log_patterns import INT, Fields, Pattern, says

_PG = re.compile(
    r"\[PG (?:ID (?P<id>\d{1,9}) PG )?GUID (?P<name>[^\s()]{1,200})(?:\((?P<desc>[^)]{0,200})\))?"
    r" Rank (?P<rank>\d{1,9})\]"
    r"|\[PG (?P<old>\d{1,9})(?: \((?P<old_desc>[^)]{0,200})\))? Rank (?P<old_rank>\d{1,9})\]"
)
_RANK = re.compile(r"\[Rank (\d{1,9})\]")
_REPEATED = re.compile(r" \[repeated (\d{1,9})x across cluster\]")

# The first that fits names the line: those that name a cause come before those that name what it did to others.
_PATTERNS: tuple[Pattern, ...] = (
    *torch.WATCHDOG,
    *torch.REPORTS,
    *torch.START,
    *system.OUTSIDE,
    *system.DEVICE,
    *system.RESOURCES,
    *torch.BROKEN,
    *torch.NCCL,
    *system.LINKS,
    *system.ENDS,
)
# A message that was cut off: less than it says when it is whole.
_CUT: tuple[Pattern, ...] = (
    says(
        "watchdog-timeout", "CCL(SeqNum=", rf"Work[A-Z]{{0,6}}CCL\(SeqNum={INT}, OpType=([A-Z_]{{4,60}}),", "seq", "op"
    ),
    says("exit", "failed (exitcode", rf"failed \(exitcode: {INT}\) local_rank: {INT} ", "exit_code", "local_rank"),
)
# The beginnings of long messages, which a terminal puts on several lines.
_BEGINNINGS = (
    *("Watchdog caught coll", "failure detected by", "dump signal due to", "failed (exitcode", "Timeout at NCCL"),
    *("detected by watchdog", "Killed process", "out of memory. Tried"),
)


class Message(NamedTuple):
    kind: str
    fields: Fields


def message_of(text: str) -> Message | None:
    """The first known message in the text; None for everything else."""
    return _first(text, _PATTERNS)


def cut_message(text: str) -> Message | None:
    """What is left of a message whose end is lost."""
    return _first(text, _CUT)


def may_continue(text: str) -> bool:
    """Whether the text may be the beginning of a message whose rest is on the next line."""
    return any(beginning in text for beginning in _BEGINNINGS)


def _first(text: str, patterns: tuple[Pattern, ...]) -> Message | None:
    for pattern in patterns:
        if pattern.mark in text and (match := pattern.expression.search(text)):
            return Message(pattern.kind, pattern.fields(match))
    return None


def common_fields(text: str) -> Fields:
    """What any message may have: the watchdog's process group and its rank inside it, Ray's count of left-out lines."""
    fields: Fields = {}
    if match := _PG.search(text):
        desc = match["desc"] if match["name"] else match["old_desc"]
        fields = {
            "group": match["name"] or match["old"],
            "desc": desc or "",
            "group_rank": int(match["rank"] or match["old_rank"]),
        }
    elif match := _RANK.search(text):
        fields = {"said_rank": int(match[1])}
    if match := _REPEATED.search(text):
        fields["n_merged"] = int(match[1])
    return fields
