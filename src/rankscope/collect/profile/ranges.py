"""The job's own ranges (torch.profiler.record_function) that are open while it is recorded.

Ranges have to lie inside of each other. A step that ends while a range of the job is open would overlap with it, and
all that follows would hang below the wrong parent in an execution trace. So such a step ends when the range does.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from rankscope.collect.compiling import skip_frame

_STEP = "ProfilerStep#"
_OF_JOB = "of the job: "
_OURS = "_rankscope_mark"


def mark_of_step(number: int) -> Any:
    """A range of our own, not yet open."""
    from torch.autograd.profiler import record_function

    mark = record_function(f"{_STEP}{number}")
    setattr(mark, _OURS, True)
    return mark


class Ranges:
    """Watches those of one thread, from `install` to `remove`."""

    def __init__(self) -> None:
        self._thread = 0
        self._open: set[int] = set()
        self._when_closed: Callable[[], None] | None = None
        self._replaced: tuple[Any, Any, Any, Any, Any] | None = None

    def install(self) -> None:
        from torch.autograd.profiler import record_function

        self.remove()
        self._thread = threading.get_ident()
        enter, leave = vars(record_function).get("__enter__"), vars(record_function).get("__exit__")
        if enter is None or leave is None:
            return

        def __enter__(mark: Any) -> Any:  # noqa: N807
            if not hasattr(mark, _OURS) and threading.get_ident() == self._thread:
                self._enters(mark)
            return enter(mark)

        def __exit__(mark: Any, *error: Any) -> Any:  # noqa: N807
            result = leave(mark, *error)
            self._has_left(mark)
            return result

        skip_frame(__enter__)
        skip_frame(__exit__)
        self._replaced = (record_function, enter, leave, __enter__, __exit__)
        record_function.__enter__, record_function.__exit__ = __enter__, __exit__

    def remove(self) -> None:
        replaced, self._replaced = self._replaced, None
        self._open.clear()
        self._when_closed = None
        if replaced is None:
            return
        record_function, enter, leave, our_enter, our_exit = replaced
        if vars(record_function).get("__enter__") is our_enter:
            record_function.__enter__ = enter
        if vars(record_function).get("__exit__") is our_exit:
            record_function.__exit__ = leave

    def put_off(self, act: Callable[[], None]) -> bool:
        """Whether a range is open; `act` is called then when it is closed."""
        if not self._open or threading.get_ident() != self._thread:
            return False
        if self._when_closed is not None:  # it stays open from step to step: there is nothing to wait for
            self._open.clear()
            self._when_closed = None
            return False
        self._when_closed = act
        return True

    def _enters(self, mark: Any) -> None:
        self._open.add(id(mark))
        if mark.name.startswith(_STEP):  # of a profiler of the job's that is at rest: its numbers are others than ours
            mark.name = _OF_JOB + mark.name

    def _has_left(self, mark: Any) -> None:
        self._open.discard(id(mark))
        if not self._open and self._when_closed is not None and threading.get_ident() == self._thread:
            act, self._when_closed = self._when_closed, None
            act()
