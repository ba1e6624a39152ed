"""The job's own profilers go first.

torch has one profiler and one execution trace observer per process. A profiler that the job starts while ours is at
work fails or loses its steps; a second observer, or a profiler in another thread, crashes the process. So the
collector watches the few functions through which all of them go.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import sys
import threading
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

_PROFILERS = "torch.autograd.profiler"  # profile, emit_nvtx and emit_itt; torch.profiler is built on it
_OBSERVERS = "torch.profiler.profiler"


class Sharing:
    def __init__(self, make_room: Callable[[], None]) -> None:
        self._make_room = make_room
        self._job_profiles = self._job_observes = False
        self._here = threading.local()  # where it is us who call torch
        self._replaced: list[tuple[ModuleType, str, Any, Any]] = []

    def install(self) -> None:
        self._before(_PROFILERS, "_prepare_profiler", self._profiler_comes)
        self._before(_PROFILERS, "_enable_profiler", self._profiler_comes)
        self._after(_PROFILERS, "_disable_profiler", self._profiler_goes)
        self._before(_OBSERVERS, "_add_execution_trace_observer", self._observer_comes)
        self._after(_OBSERVERS, "_remove_execution_trace_observer", self._observer_goes)
        self._job_profiles, self._job_observes = _at_work()

    def remove(self) -> None:
        for module, name, original, ours in self._replaced:
            if getattr(module, name, None) is ours:
                setattr(module, name, original)
        self._replaced.clear()

    @contextlib.contextmanager
    def by_us(self) -> Iterator[None]:
        before, self._here.is_ours = getattr(self._here, "is_ours", False), True
        try:
            yield
        finally:
            self._here.is_ours = before

    def is_taken(self) -> bool:
        """The job has a profiler or an observer of its own, be it only prepared."""
        from torch.autograd import _profiler_enabled

        return self._job_profiles or self._job_observes or bool(_profiler_enabled())

    def _profiler_comes(self) -> None:
        self._job_profiles = True
        self._make_room()

    def _profiler_goes(self) -> None:
        self._job_profiles = False

    def _observer_comes(self) -> None:
        self._job_observes = True
        self._make_room()

    def _observer_goes(self) -> None:
        self._job_observes = False

    def _before(self, module_name: str, name: str, act: Callable[[], None]) -> None:
        def wrap(original: Callable[..., Any]) -> Callable[..., Any]:
            @functools.wraps(original)
            def called(*arguments: Any, **keywords: Any) -> Any:
                self._unless_ours(act)
                return original(*arguments, **keywords)

            return called

        self._replace(module_name, name, wrap)

    def _after(self, module_name: str, name: str, act: Callable[[], None]) -> None:
        def wrap(original: Callable[..., Any]) -> Callable[..., Any]:
            @functools.wraps(original)
            def called(*arguments: Any, **keywords: Any) -> Any:
                try:
                    return original(*arguments, **keywords)
                finally:
                    self._unless_ours(act)

            return called

        self._replace(module_name, name, wrap)

    def _unless_ours(self, act: Callable[[], None]) -> None:
        if not getattr(self._here, "is_ours", False):
            with contextlib.suppress(Exception), self.by_us():
                act()

    def _replace(self, module_name: str, name: str, wrap: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
        module = sys.modules.get(module_name)
        original = getattr(module, name, None)
        if module is not None and original is not None:  # other versions of torch may lack it
            ours = wrap(original)
            setattr(module, name, ours)
            self._replaced.append((module, name, original, ours))


def _at_work() -> tuple[bool, bool]:
    """Whether the job has a profiler and an observer already: torch does not report those that only wait."""
    from torch.autograd.profiler import profile
    from torch.profiler import ExecutionTraceObserver

    has_profiler = has_observer = False
    for thing in gc.get_objects():
        if type(thing) is profile:
            has_profiler |= bool(getattr(thing, "entered", False) and thing.kineto_results is None)
        elif type(thing) is ExecutionTraceObserver:
            has_observer |= bool(thing.is_registered)
    return has_profiler, has_observer
