"""One event of torch's own compile timeline: the payload of a chromium_event record.

It is read as it lies in the log: the tabs before its lines are white space to JSON, and half of a log is such events.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from typing import Any

import msgspec


class PhaseEvent(msgspec.Struct):
    """What places it in time. Its arguments, most of its bytes, are skipped over."""

    name: str = ""
    ph: str = ""
    ts: float = math.nan
    dur: float = 0.0


_DECODER = msgspec.json.Decoder(PhaseEvent)
# The last keys of an event, of the outermost object since nothing but its end follows.
_PLACE = re.compile(rb'"tid": 0,\s+"pid": 0(?=(?:,\s+"s": "[a-z]")?\s+\}\s*\Z)')
_MAX_TAIL = 64
_USUAL_TAIL = b'"tid": 0,\n\t"pid": 0\n\t}\n'


def phase_event(payload: bytes) -> PhaseEvent | None:
    """None when it is no such event: lines of it were lost on the way, or it has no time."""
    try:
        event = _DECODER.decode(payload)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        try:
            event = msgspec.convert(_lenient(payload), PhaseEvent)
        except (ValueError, msgspec.ValidationError):
            return None
    # 2**62 ns is the year 2116; what is beyond is no time.
    return event if 0 <= event.ts < 2**62 / 1000 and 0 <= event.dur < 2**62 / 1000 else None


def event_on_track(payload: bytes, pid: int, tid: int, changes: Mapping[str, Any] | None = None) -> bytes:
    """The event as JSON, drawn elsewhere. Only for what `phase_event` understands.

    Its bytes are copied, since some have thousands of arguments; only what torch would not write is decoded.
    """
    is_plain = not changes and payload.isascii() and b"NaN" not in payload and b"Infinity" not in payload
    if is_plain and payload.endswith(_USUAL_TAIL):
        return b'%b"tid": %d, "pid": %d}' % (payload[1 : -len(_USUAL_TAIL)], tid, pid)
    match = _PLACE.search(payload, max(len(payload) - _MAX_TAIL, 0)) if is_plain else None
    if match:
        return b'%b"tid": %d, "pid": %d%b' % (payload[1 : match.start()], tid, pid, payload[match.end() :].rstrip())
    return msgspec.json.encode(_lenient(payload) | {"pid": pid, "tid": tid} | dict(changes or {}))


def _lenient(payload: bytes) -> dict[str, Any]:
    """Python writes NaN and Infinity, which no other JSON reader takes: they become null."""
    try:
        event = json.loads(payload.decode("utf-8", "replace"), parse_constant=lambda _: None)
    except RecursionError as error:
        raise ValueError("is nested too deeply") from error
    if not isinstance(event, dict):
        raise ValueError("is no object")
    return event
