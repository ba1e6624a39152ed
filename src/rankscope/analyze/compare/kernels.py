"""Kernels, copies and fills by name: how long and how often, per rank and step."""

from __future__ import annotations

import re
from collections.abc import Iterator

from rankscope.analyze.compare.measured import Key, common_basis, measure
from rankscope.analyze.compare.noise import judge
from rankscope.analyze.compare.pairing import pair_up
from rankscope.model.changes import TimeChange
from rankscope.model.tables import Trace

LEAST_PER_CALL_NS = 1_000.0
# Inductor numbers the kernels of a graph, and compilers add hashes: neither says what a kernel does.
_NUMBERED = re.compile(r"(?<=_)(?:\d+|0x[0-9a-f]+|[0-9a-f]{16,})(?=_|$)")
# What communicates is told by call, with who waited for whom.
_VALUES = """SELECT name, rank AS unit, file_id, step, duration_ns AS value FROM kernels
    WHERE type IS DISTINCT FROM 'communication'"""


def kernel_changes(old: Trace, new: Trace, least_per_step: float) -> Iterator[TimeChange]:
    if not (old.has("kernels") and new.has("kernels")):
        return
    per = common_basis(old, new)
    before, after = (measure(trace, _VALUES, ("name",), per) for trace in (old, new))
    least = least_per_step if per == "step" else LEAST_PER_CALL_NS
    for ours, theirs in pair_up(list(before), list(after), (_own_name, _bare_name), lambda a, b: (a, b)):
        judgement = judge(before.get(ours or ()), after.get(theirs or ()), least)
        name = (theirs or ours or ("",))[0]
        yield TimeChange(
            judgement.kind,
            name,
            "profiler",
            per,
            judgement.old_ns,
            judgement.new_ns,
            judgement.noise_ns,
            ranks=judgement.units,
            old_count=judgement.old_count,
            new_count=judgement.new_count,
        )


def _own_name(key: Key) -> str:
    return key[0]


def _bare_name(key: Key) -> str:
    return _NUMBERED.sub("#", key[0])
