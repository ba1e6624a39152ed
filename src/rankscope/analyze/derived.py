"""What several analyses need is computed once per trace and kept with it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from rankscope.model.tables import Trace

Result = TypeVar("Result")


def derived(trace: Trace, make: Callable[[Trace], Result]) -> Result:
    """What several rules need is computed once per trace."""
    cache = trace.derived
    if make not in cache:
        cache[make] = make(trace)
    result: Result = cache[make]
    return result
