"""A connection of our own to the job's key-value store: a job that waits in the store must not block us, nor we it."""

from __future__ import annotations

import datetime
from typing import Any

ANSWER_SECONDS = 5.0


def own_connection(store: Any, seconds: float = ANSWER_SECONDS) -> Any:
    """The same keys through another connection, which gives up after some seconds.

    Whatever torch raises when the store is down passes through. Versions of torch that cannot clone a store share
    the job's: its time limit is then left alone, as it is the job's own.
    """
    if not hasattr(store, "clone"):
        return store
    clone = store.clone()
    clone.set_timeout(datetime.timedelta(seconds=seconds))
    return clone
