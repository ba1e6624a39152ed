"""D990: hosts whose clock is wrong."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from rankscope.analyze.registry import Effect, rule
from rankscope.model.finding import Evidence, Finding, format_duration, ranks_phrase
from rankscope.model.tables import Trace

MAX_OFFSET_NS = 1_000_000_000


@rule("D990", "clock-off", needs=("ranks",))
def clock_off(trace: Trace) -> Iterator[Finding | Effect]:
    """The clock of a host is off by more than a second.

    What it means: times that these ranks recorded cannot be compared with those of other hosts, here or in logs.

    Why it happens: the host's time service is stopped, or the host was started a moment ago.

    What to do: compare `chronyc tracking` on this host and on another one.

    What could fool it: the offset is estimated from collectives that hosts completed together; with few of them it is
    rough.
    """
    ranks = trace.table("ranks")
    offset = np.abs(ranks.array("clock_offset_ns"))
    culprits = tuple(ranks.array("rank")[offset > MAX_OFFSET_NS].tolist())
    if culprits:
        yield Finding(
            code="D990",
            rule="clock-off",
            severity="warning",
            certainty="likely",
            title=f"the clock of {ranks_phrase(culprits)} is off by {format_duration(int(offset.max()))}",
            ranks=culprits,
            evidence=Evidence(facts={"max_offset_ns": int(offset.max())}),
            help="check the time service of these hosts",
        )
