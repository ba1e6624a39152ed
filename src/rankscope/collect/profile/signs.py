"""The signs by which steps are found, each with its hook in torch.

None of them changes what torch.compile compiles: functions and classes of torch keep their identity, no hook is put on
a module, and our own functions are left out of compiling. None keeps a tensor or a module alive.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import sys
import threading
import weakref
from collections.abc import Callable
from types import FrameType
from typing import Any, Protocol

from rankscope.collect.compiling import has_compiled, leave_out_of_compiling, skip_frame
from rankscope.collect.profile.periods import Periods

_COLLECTOR = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
OPTIMIZER, BACKWARD, FORWARD, LOADER, COLLECTIVES = "optimizer", "backward", "forward", "loader", "collectives"
KINDS = (OPTIMIZER, BACKWARD, FORWARD, LOADER, COLLECTIVES)  # the best first
_KEY = "_rankscope_step"
_SECONDS_TO_RETURN = 0.01
_N_UNTIL_UNUSED = 100_000  # calls of other modules


class Finder(Protocol):
    is_in_backward: bool

    def saw(self, kind: str, thing: Any) -> bool:
        """True where the step ends with it; `ended` is called then."""

    def ended(self, kind: str) -> None:
        """The step has ended."""


class Sign:
    """Notifies the finder whenever it is seen."""

    KIND: str

    def __init__(self, finder: Finder) -> None:
        self._finder = finder

    def install(self) -> None:
        """Begins to watch."""

    def remove(self) -> None:
        """Ends it, and leaves torch as it was."""

    def look_further(self) -> None:
        """Nothing has been found for a while."""

    def _tell(self, thing: Any) -> None:
        with contextlib.suppress(Exception):
            if self._finder.saw(self.KIND, thing):
                self._finder.ended(self.KIND)


def all_signs(finder: Finder) -> dict[str, Sign]:
    signs = (Optimizers(finder), Backwards(finder), Forwards(finder), Batches(finder), Collectives(finder))
    return {sign.KIND: sign for sign in signs}


class Optimizers(Sign):
    """A step ends when Optimizer.step has returned, not inside of it. torch calls its hooks while the range
    "Optimizer.step#..." is still open: marks of steps that end there would overlap with it, and everything that follows
    would hang below the wrong parent in an execution trace.

    Steps inside of a compiled function are not seen: a hook that does something there would break the job's graph.
    """

    KIND = OPTIMIZER

    def __init__(self, finder: Finder) -> None:
        super().__init__(finder)
        self._handle: Any = None
        self._ending: Callable[[], _Ending | None] = lambda: None

    def install(self) -> None:
        from torch.compiler import is_compiling
        from torch.optim.optimizer import register_optimizer_step_post_hook

        def end_of_optimizer(optimizer: Any, _: Any, keywords: dict[str, Any]) -> None:
            if not is_compiling():
                self.stepped(optimizer, keywords)

        self._handle = register_optimizer_step_post_hook(end_of_optimizer)

    def remove(self) -> None:
        if self._handle is not None:
            self._handle.remove()

    def stepped(self, optimizer: Any, keywords: dict[str, Any]) -> None:
        late = self._ending()
        if late is not None:  # other code keeps the keywords of the call before
            late.end()
        if not self._finder.saw(OPTIMIZER, optimizer):
            return
        # The keywords of a call live exactly as long as the call: they are freed when Optimizer.step returns.
        keywords[_KEY] = ending = _Ending(functools.partial(self._finder.ended, OPTIMIZER))
        self._ending = weakref.ref(ending)


class _Ending:
    """Ends the step when it is freed."""

    __slots__ = ("__weakref__", "_on_end")

    def __init__(self, on_end: Callable[[], None]) -> None:
        self._on_end: Callable[[], None] | None = on_end

    def end(self) -> None:
        on_end, self._on_end = self._on_end, None
        if on_end is not None:
            on_end()

    def __del__(self) -> None:
        try:
            self.end()
        except BaseException as interruption:  # Ctrl-C, or what the job's own signal handler raised
            _raise_soon(interruption)


def _raise_soon(interruption: BaseException) -> None:
    """Raises it again in the job's code: Python drops what is raised while an object is freed."""
    kind, arguments = type(interruption), interruption.args

    def init(self: BaseException, *_: object) -> None:
        kind.__init__(self, *arguments)

    again = type(kind.__name__, (kind,), {"__init__": init, "__module__": kind.__module__})
    thread = ctypes.c_ulong(threading.get_ident())
    send = ctypes.pythonapi.PyThreadState_SetAsyncExc
    timer = threading.Timer(_SECONDS_TO_RETURN, send, (thread, ctypes.py_object(again)))
    timer.daemon = True
    timer.start()


class _Wrapping(Sign):
    """A sign that is seen in calls of one function of torch. Calls inside of such a call are part of it."""

    def __init__(self, finder: Finder) -> None:
        super().__init__(finder)
        self._replaced: list[tuple[Any, str, Any, Any]] = []
        self._is_on = False

    def _wrap(self, owner: Any, name: str, make: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
        original = vars(owner).get(name)
        if original is not None:  # other versions of torch may lack it
            self._is_on = True
            ours = functools.wraps(original)(make(original))
            leave_out_of_compiling([ours])
            setattr(owner, name, ours)
            self._replaced.append((owner, name, original, ours))

    def remove(self) -> None:
        """What other code has wrapped meanwhile stays: ours then only passes the call on."""
        self._is_on = False
        for owner, name, original, ours in self._replaced:
            if vars(owner).get(name) is ours:
                setattr(owner, name, original)
        self._replaced.clear()


class Backwards(_Wrapping):
    """The autograd engine has run, to add to the gradients. What marks steps is the line that called it."""

    KIND = BACKWARD
    _NAME = "_engine_run_backward"

    def install(self) -> None:
        import torch.autograd.graph

        # The collector's own wrappers are between torch's frames, and no line of the job.
        self._not_the_jobs = (os.path.dirname(torch.__file__) + os.sep, _COLLECTOR)
        for module in (torch.autograd.graph, torch.autograd):
            self._wrap(module, self._NAME, self._noted)

    def _noted(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def run_backward(*arguments: Any, **options: Any) -> Any:
            if self._finder.is_in_backward or not self._is_on or not options.get("accumulate_grad"):
                return original(*arguments, **options)
            self._finder.is_in_backward = True
            try:
                result = original(*arguments, **options)
            finally:
                self._finder.is_in_backward = False
            self._tell(self._caller(sys._getframe(1)))
            return result

        return run_backward

    def _caller(self, frame: FrameType) -> tuple[int, int]:
        while frame.f_back is not None and frame.f_code.co_filename.startswith(self._not_the_jobs):
            frame = frame.f_back
        return id(frame.f_code), frame.f_lasti


class Batches(_Wrapping):
    """The next batch of a DataLoader is asked for: the step before it has ended. Each dataset is one loader."""

    KIND = LOADER

    def __init__(self, finder: Finder) -> None:
        super().__init__(finder)
        self._is_inside = False  # of another loader's

    def install(self) -> None:
        from torch.utils.data import dataloader

        self._wrap(dataloader._BaseDataLoaderIter, "__next__", self._noted)

    def _noted(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def __next__(batches: Any) -> Any:  # noqa: N807
            if self._is_inside or not self._is_on:
                return original(batches)
            self._tell(id(getattr(batches, "_dataset", None)))
            self._is_inside = True
            try:
                return original(batches)
            finally:
                self._is_inside = False

        return __next__


class Forwards(Sign):
    """A module with parameters is called that is not part of another: the step before it has ended.

    torch's hooks for all modules would warn where a model is compiled, and have it compiled again when they go. So we
    sit in what every module is asked when it is called: an attribute of the class Module, which is None.
    """

    KIND = FORWARD

    def __init__(self, finder: Finder) -> None:
        super().__init__(finder)
        self._model: Callable[[], Any] = lambda: None  # whose calls are steps
        self._n_others = 0
        self._probe: _Probe | None = None

    def install(self) -> None:
        from torch.nn import Module

        there = vars(Module).get(_Probe.NAME, self)
        if there is None:
            there = _Probe()
            skip_frame(_Probe.__get__)
            Module._compiled_call_impl = there
        if isinstance(there, _Probe):
            self._probe = there
            there.called = self._called

    def remove(self) -> None:
        """Compiled code may depend on what it has seen: it would be compiled again if that were gone."""
        probe, self._probe = self._probe, None
        if probe is None:
            return
        probe.called = None
        from torch.nn import Module

        if not has_compiled() and vars(Module).get(_Probe.NAME) is probe:
            Module._compiled_call_impl = None

    def _called(self, module: Any, caller: FrameType) -> None:
        model = self._model()
        if model is not None and model is not module:
            self._n_others += 1
            if self._n_others < _N_UNTIL_UNUSED:
                return
            self._model = lambda: None
        if _is_in_a_module(caller) or next(module.parameters(), None) is None:
            return
        self._n_others = 0
        if self._finder.saw(FORWARD, module):
            self._model = weakref.ref(module)
            self._finder.ended(FORWARD)


class _Probe:
    """A module asks for this attribute of its class when it is called, and gets None as before."""

    NAME = "_compiled_call_impl"

    def __init__(self) -> None:
        from torch.compiler import is_compiling

        self.called: Callable[[Any, FrameType], None] | None = None
        self._is_compiling = is_compiling

    def __get__(self, module: Any, owner: type | None = None) -> None:
        if module is None or self._is_compiling():
            return
        called = self.called
        if called is not None:
            try:  # noqa: SIM105 - this runs in every call of a module
                called(module, sys._getframe(1))
            except Exception:
                pass


def _is_in_a_module(frame: FrameType | None) -> bool:
    while frame is not None:
        if frame.f_code.co_name == "_call_impl":
            return True
        frame = frame.f_back
    return False


class Collectives(Sign):
    """The calls of collectives begin to repeat. They are watched only where nothing else was found."""

    KIND = COLLECTIVES
    n_unnoted = 0

    def __init__(self, finder: Finder) -> None:
        super().__init__(finder)
        self._hooks: Any = None
        self._periods = Periods()

    def look_further(self) -> None:
        distributed = sys.modules.get("torch.distributed")
        if self._hooks is None and distributed is not None and distributed.is_available():
            from rankscope.collect.desync.hooks import Hooks

            self._hooks = Hooks(self)  # type: ignore[arg-type]
            self._hooks.install()

    def remove(self) -> None:
        if self._hooks is not None:
            self._hooks.remove()

    def begin(self, group: Any, operation: Any, arguments: tuple[Any, ...]) -> None:
        """As desync.calls has it: None means that the call need not be followed any further."""
        if self._periods.begins(hash((id(group), operation, _size(arguments)))):
            self._tell(0)

    def _pass_on(self, *_: Any) -> None:
        """What else the hooks report does not matter here."""

    start_coalescing = end_coalescing = waited = wait_failed = _pass_on


def _size(arguments: tuple[Any, ...]) -> int:
    """Elements of the first tensor, which may be in a list, or in a list of lists."""
    first: Any = arguments[0] if arguments else None
    while isinstance(first, (list, tuple)) and first:
        first = first[0]
    return int(first.numel()) if hasattr(first, "numel") else 0
