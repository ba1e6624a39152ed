"""Hooks on the process groups of torch.distributed: each call of theirs is noted before and after it is made.

They sit on the methods of the classes of groups and handles, not on the functions of torch.distributed: every caller
in Python comes by exactly once, functions keep their identity for all who hold or compare them (torch.compile among
them), and a time-out is seen where it is raised, also that of an asynchronous call.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import FunctionType
from typing import Any

from rankscope.collect.compiling import leave_out_of_compiling
from rankscope.collect.desync.calls import OPERATIONS, Call, Calls, Operation

Method = Callable[..., Any]


class Hooks:
    """Installed once per process; what they note ends with `remove`."""

    def __init__(self, calls: Calls) -> None:
        self._calls = calls
        self._is_on = False
        self._replaced: list[tuple[type, str, Any, Method]] = []

    def install(self) -> None:
        from torch._C._distributed_c10d import ProcessGroup, Work

        self._is_on = True
        for name, operation in OPERATIONS.items():
            self._replace(ProcessGroup, name, functools.partial(self._noted, operation))
        self._replace(ProcessGroup, "_start_coalescing", self._noted_start)
        self._replace(ProcessGroup, "_end_coalescing", self._noted_end)
        self._replace(Work, "wait", self._noted_wait)
        leave_out_of_compiling([method for *_, method in self._replaced])

    def remove(self) -> None:
        """Methods that other code has replaced meanwhile stay as they are: ours then only pass the call on."""
        self._is_on = False
        for owner, name, original, hooked in self._replaced:
            if owner.__dict__.get(name) is hooked:
                setattr(owner, name, original)
        self._replaced.clear()

    def _replace(self, owner: type, name: str, make: Callable[[Method], Method]) -> None:
        original = owner.__dict__.get(name)
        if original is None:  # other versions of torch have other methods
            return
        hooked = make(getattr(owner, name))
        # Where a subclass in Python does not have the method, torch looks for it by name and finds this one. It asks
        # the caller's name and first argument whether it is about to run in circles.
        assert isinstance(hooked, FunctionType)
        hooked.__code__ = hooked.__code__.replace(co_name=name)
        hooked.__name__, hooked.__qualname__ = name, f"{owner.__name__}.{name}"
        hooked.__doc__ = getattr(original, "__doc__", None)
        setattr(owner, name, hooked)
        self._replaced.append((owner, name, original, hooked))

    def _noted(self, operation: Operation, original: Method) -> Method:
        calls = self._calls

        def method(pg: Any, *arguments: Any, **options: Any) -> Any:
            try:
                call = calls.begin(pg, operation, arguments) if self._is_on else None
            except Exception:  # whatever a job hands over, and however torch changes: the call itself goes on
                call = None
            if call is None:
                return original(pg, *arguments, **options)
            try:
                work = original(pg, *arguments, **options)
            except BaseException as error:
                calls.failed(call, error)
                raise
            try:
                calls.returned(call, work)
            except Exception:  # a handle from another library
                calls.n_unnoted += 1
            return work

        return method

    def _end_coalescing(self, pg: Any) -> Call | None:
        try:
            return self._calls.end_coalescing(pg)
        except Exception:
            return None

    def _noted_start(self, original: Method) -> Method:
        calls = self._calls

        def start(pg: Any, *arguments: Any, **options: Any) -> Any:
            try:
                if self._is_on:
                    calls.start_coalescing(pg)
            except Exception:
                calls.n_unnoted += 1
            return original(pg, *arguments, **options)

        return start

    def _noted_end(self, original: Method) -> Method:
        calls = self._calls

        def end(pg: Any, *arguments: Any, **options: Any) -> Any:
            call = self._end_coalescing(pg)
            try:
                work = original(pg, *arguments, **options)
            except BaseException as error:
                if call is not None:
                    calls.failed(call, error)
                raise
            try:
                if call is not None:
                    calls.returned(call, work)
            except Exception:
                calls.n_unnoted += 1
            return work

        return end

    def _noted_wait(self, original: Method) -> Method:
        calls = self._calls

        def wait(work: Any, *arguments: Any, **options: Any) -> Any:
            try:
                result = original(work, *arguments, **options)
            except BaseException as error:
                calls.wait_failed(work, error)
                raise
            try:
                calls.waited(work)
            except Exception:
                calls.n_unnoted += 1
            return result

        return wait
