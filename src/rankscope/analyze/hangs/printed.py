"""Exceptions that a rank printed, where no stack shows them: frameworks that run training in a thread catch them."""

from __future__ import annotations

from typing import Any, NamedTuple

import msgspec
import numpy as np

from rankscope.analyze.manifests import ended_well
from rankscope.model.finding import Finding, Location
from rankscope.model.tables import Trace

_SHOWN = 200  # letters of an exception


class Printed(NamedTuple):
    text: str  # `ValueError: bad batch`
    location: Location | None


class _Place(msgspec.Struct):
    file: str
    line: int
    function: str


class _Fields(msgspec.Struct):
    place: _Place | None = None
    is_launcher: bool = False
    is_ignored: bool = False
    in_thread: bool = False
    says: dict[str, Any] | None = None  # a known message: other rules judge it


def printed_exception(trace: Trace, rank: int) -> Printed | None:
    """The last traceback in the job's output that is known to be this rank's own failure."""
    if not trace.has("log_events") or ended_well(trace):
        return None
    events = trace.table("log_events")
    rows = np.flatnonzero((events.array("rank") == rank) & events.text("kind").equals("traceback")).tolist()
    texts, fields = events.text("text"), events.text("fields")
    failures = [failure for row in rows if (failure := _own_failure(texts[row], fields[row])) is not None]
    return failures[-1] if failures else None


def _own_failure(text: str, packed: str) -> Printed | None:
    try:
        fields = msgspec.json.decode(packed, type=_Fields)
    except msgspec.DecodeError:
        return None
    if fields.is_launcher or fields.is_ignored or fields.in_thread or fields.says:
        return None
    place = fields.place
    return Printed(text.strip()[:_SHOWN], Location(place.file, place.line, place.function) if place else None)


def with_printed(trace: Trace, finding: Finding) -> Finding:
    """The finding about one rank that did not make a call, with the exception that it printed."""
    printed = printed_exception(trace, finding.ranks[0]) if len(finding.ranks) == 1 else None
    if printed is None:
        return finding
    who = f"rank {finding.ranks[0]}"
    likely = f"{who} ended there: {printed.text}"
    return msgspec.structs.replace(
        finding,
        title=finding.title.replace(f"{who} ", f"{who} raised {printed.text}; it ", 1),
        location=printed.location or finding.location,
        evidence=msgspec.structs.replace(finding.evidence, likely=(likely, *finding.evidence.likely[1:])),
        help=f"fix the exception on {who}",
    )
