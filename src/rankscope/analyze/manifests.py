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


def _ended_well(trace: Trace) -> bool:
    manifests = trace.table("manifests")
    codes = set(manifests.array("exit_code").tolist())
    known = set(manifests.array("rank").tolist())
    if not known or codes - {0, MISSING} or not set(trace.table("ranks").array("rank").tolist()) <= known:
        return False
    endings = set(manifests.text("ending").tolist())
    if codes == {0}:
        # A shell may hide that its job failed (`job || true`), so the ranks must say it as well. Those that an older
        # collector recorded say at least when they were killed.
        return endings == {_BY_ITSELF} or (endings == {""} and not _were_killed(trace))
    # Nobody saw the exit code: the code itself collected. Then all ranks must be here.
    n_ranks = int(manifests.array("world_size").max(initial=0))
    return endings == {_BY_ITSELF} and len(known) >= n_ranks


def _were_killed(trace: Trace) -> bool:
    return bool(trace.table("collection_problems").text("what").equals(_RANK).any())
