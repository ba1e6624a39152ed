"""What the collector tells about the job: what it was asked for, and whether the job ended well.

A job that came to its end by itself was not hanging, whatever a counter says that was read a moment too early.
"""

from __future__ import annotations

from typing import Any

import msgspec

from rankscope.analyze.derived import derived
from rankscope.model.tables import MISSING, Trace

_BY_ITSELF = "exit"
_RANK = "rank"  # what the problem of a process is called that was killed or crashed


def asked_for(row: dict[str, Any]) -> dict[str, Any]:
    """The settings of the collector, of a row of manifests."""
    asked = msgspec.json.decode(row["asked"]) if row["asked"] else {}
    return asked if isinstance(asked, dict) else {}


def ended_well(trace: Trace) -> bool:
    """True when it is known: no process failed, and every rank that is here came to its end by itself."""
    return derived(trace, _ended_well)


def came_to_an_end(trace: Trace) -> bool:
    """True when all ranks of the job left by themselves, well or not: none of them waited in a call for ever."""
    return derived(trace, _came_to_an_end)


def _ended_well(trace: Trace) -> bool:
    manifests = trace.table("manifests")
    if set(manifests.array("exit_code").tolist()) != {0} or not _tells_of_all(trace):
        return False
    # A shell may hide that its job failed (`job || true`), so the ranks must say it as well. Those that an older
    # collector recorded say at least when they were killed.
    endings = set(manifests.text("ending").tolist())
    return endings == {_BY_ITSELF} or (endings == {""} and not _were_killed(trace))


def _came_to_an_end(trace: Trace) -> bool:
    manifests = trace.table("manifests")
    n_ranks = int(manifests.array("world_size").max(initial=0))
    has_failed = bool(set(manifests.array("exit_code").tolist()) - {0, MISSING})
    is_whole = _tells_of_all(trace) and len(manifests) >= n_ranks
    return is_whole and not has_failed and set(manifests.text("ending").tolist()) == {_BY_ITSELF}


def _tells_of_all(trace: Trace) -> bool:
    known = set(trace.table("manifests").array("rank").tolist())
    return bool(known) and set(trace.table("ranks").array("rank").tolist()) <= known


def _were_killed(trace: Trace) -> bool:
    return bool(trace.table("collection_problems").text("what").equals(_RANK).any())
