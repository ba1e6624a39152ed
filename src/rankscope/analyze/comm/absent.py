"""S205: all ranks that were traced wait, so the rank that they wait for is another one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from rankscope.analyze.comm.late import late_ranks
from rankscope.analyze.comm.measures import Measures, measures_of
from rankscope.analyze.comm.rows import numbered
from rankscope.analyze.comm.stragglers import exposure_of
from rankscope.analyze.registry import Effect, rule
from rankscope.model.finding import Evidence, Finding, GroupRef, count_noun, format_duration, ranks_phrase
from rankscope.model.tables import MISSING, Array, Trace

_MIN_SHARE = 0.10  # of the step
_MOSTLY = 0.5  # of the steps
_MIN_CALLS = 8  # to know how long a transfer takes
_UNDISTURBED = 0.1  # of the calls, at least, nobody was late to


class _Wait(NamedTuple):
    group: int
    steps: Array
    step_ns: Array  # what even the last of the traced ranks waits, per step
    n_calls: int


@rule("S205", "late-rank-absent", needs=("comms", "profiles"))
def late_rank_absent(trace: Trace) -> Iterator[Finding | Effect]:
    """All traced ranks of a group wait in its collectives: the rank that they wait for has no trace here.

    What it means: the last traced member to join does not wait for another traced member, so its call should take only
    as long as the transfer. It takes clearly longer than other calls of this size, and no traced rank is late: a member
    without a trace joins later still. The cost is the exposed time that even this last traced member waits.

    Why it happens: only some ranks were profiled, or the files of the slow rank's host are missing.

    What to do: record all members of the group, or those that are named here, and diagnose again.

    What could fool it: a link that is slow in some calls only looks the same. If the absent rank is late to every call,
    nothing shows how long a transfer takes, and nothing is reported. Only communication on a device is checked.
    """
    measures = measures_of(trace)
    waits = sorted(_waits(measures), key=lambda wait: -float(wait.step_ns.sum()))
    if not waits or late_ranks(trace):
        return
    worst = waits[0]
    exposure = exposure_of(trace)
    lengths = dict(zip(exposure.steps.tolist(), exposure.step_ns.tolist(), strict=True))
    steps = [
        (lengths.get(step, 0.0), ns) for step, ns in zip(worst.steps.tolist(), worst.step_ns.tolist(), strict=True)
    ]
    n_late = sum(ns >= _MIN_SHARE * length > 0 for length, ns in steps)
    share = sum(ns for _, ns in steps) / max(sum(length for length, _ in steps), 1.0)
    if share < _MIN_SHARE or n_late < _MOSTLY * len(steps):
        return
    group = measures.matching.groups[worst.group]
    traced = set(measures.matching.rows.rank.tolist())
    absent = tuple(rank for rank in group.ranks if rank not in traced)
    each = format_duration(int(np.mean(worst.step_ns)))
    yield Finding(
        severity="warning",
        certainty="likely",
        title=f"all traced ranks wait {each} per step ({100 * share:.0f}%) for one that is not here: "
        f"{ranks_phrase(absent) if absent else 'a rank without a trace'}",
        group=GroupRef(group.name, group.desc, tuple(group.ranks), False),
        evidence=Evidence(
            certain=(
                f"even the last traced member of {count_noun(worst.n_calls, 'collective')} waited, in {n_late} of "
                f"{count_noun(len(steps), 'step')}",
                f"no trace from {ranks_phrase(absent)}" if absent else "the group has more members than traces",
            ),
            cost_pct=100 * share,
            cost_ns=int(np.mean(worst.step_ns)),
            facts={"absent": list(absent), "n_late_steps": n_late},
        ),
        help=f"record {ranks_phrase(absent) if absent else 'all members of this group'} too, and diagnose again: "
        "the cause is in the trace of the rank that is late",
    )


def _waits(measures: Measures) -> Iterator[_Wait]:
    """Per group that has members without a trace."""
    matching, matches = measures.matching, measures.matches
    rows = matching.rows
    last = matches.last_row
    if not len(last):
        return
    is_usable = ~matches.is_complete & ~rows.is_p2p[last] & ~rows.is_on_host[last] & rows.ends_together[last]
    is_usable &= rows.step[last] != MISSING
    for group in np.unique(matching.group[last[is_usable]]).tolist():
        chosen = np.flatnonzero(is_usable & (matching.group[last] == group))
        if len(chosen) < _MIN_CALLS:
            continue
        spent, n_bytes = matches.transfer_ns[chosen], np.maximum(rows.n_bytes[last[chosen]], 1)
        alike, place = numbered(rows.op[last[chosen]].astype(np.int64), n_bytes)
        usual = np.array([np.quantile(spent[place == one], _UNDISTURBED) for one in range(len(alike))])
        waited = np.minimum(np.maximum(spent - usual[place], 0), _shortest_exposed(measures, chosen))
        steps, place = np.unique(rows.step[last[chosen]], return_inverse=True)
        yield _Wait(group, steps, np.bincount(place.reshape(-1), waited, len(steps)), len(chosen))


def _shortest_exposed(measures: Measures, chosen: Array) -> Array:
    """What the call costs at least, on any of the traced members."""
    match = measures.matching.match
    seen = np.flatnonzero(match != MISSING)
    shortest = np.full(int(match.max(initial=0)) + 1, np.iinfo(np.int64).max)
    np.minimum.at(shortest, match[seen], measures.exposed_ns[seen])
    return shortest[chosen]
