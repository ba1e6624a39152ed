"""TraceUtils.h: what torch writes into the job's key-value store, and the report on a desync."""

from __future__ import annotations

from behaviors.row import Behavior

TITLE = "Desync records in the store (TraceUtils.h)"
INTRO = "What torch's tracker writes into the job's key-value store, and the report that it makes of it on a time-out."

BEHAVIORS = (
    Behavior(
        there="say what each kind of desync report means",
        commands=("rankscope desync --help",),
        shows=r"key-value\s+store",
    ),
)
