"""What the records of calls say about their ends, which depends on the backend."""

from __future__ import annotations

import numpy as np

from rankscope.model.tables import Array, Table

_WITH_OWN_RECORDER = frozenset(("nccl", "rccl", "xccl"))


def ends_unrecorded(calls: Table) -> Array:
    """Calls whose backend does not report their end: torch's recorder then retires them as soon as they are made.

    gloo is not such a backend: there a retired call has run.
    """
    backend = calls.text("backend")
    is_hooked = np.fromiter((name not in _WITH_OWN_RECORDER | {"gloo"} for name in backend.values), bool)
    let_go: Array = lack_states(calls) & calls.array("retired")
    return let_go & is_hooked[backend.codes] if len(calls) else let_go


def lack_states(calls: Table) -> Array:
    """gloo and some hooked backends leave every call `scheduled`; there, only retired says that it ended."""
    backend = calls.text("backend")
    progressed = ~calls.text("state").equals("scheduled")
    has_states = np.zeros(max(len(backend.values), 1), bool)
    has_states[backend.codes[progressed]] = True
    for code, name in enumerate(backend.values):
        if name in _WITH_OWN_RECORDER:
            has_states[code] = True
    lacks: Array = ~has_states[backend.codes] if len(calls) else np.empty(0, bool)
    return lacks
