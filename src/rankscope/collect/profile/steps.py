"""Training steps, found without the job's help: each call of an optimizer ends one.

A step ends when Optimizer.step has returned, not inside of it. torch calls its hooks while the range
"Optimizer.step#..." is still open: marks of steps that end there would overlap with it, and everything that follows
would hang below the wrong parent in an execution trace.
"""

from __future__ import annotations

import ctypes
import threading
import weakref
from collections.abc import Callable
from typing import Any

# So often may another optimizer step alone before it takes over: in GANs one of them steps several times in a row.
_N_UNTIL_REPLACED = 20
_KEY = "_rankscope_step"
_SECONDS_TO_RETURN = 0.01

_finder: _Finder | None = None
_is_by_hand = False


def install(on_step: Callable[[], None]) -> Callable[[], None]:
    """Calls `on_step` after each training step, in the job's thread, until what is returned is called.

    torch must be imported already or importable. A step inside of a compiled function is not found: a hook that does
    something there would break the job's graph.
    """
    global _finder
    from torch.compiler import is_compiling
    from torch.optim.optimizer import register_optimizer_step_post_hook

    finder = _Finder(on_step)

    def end_of_optimizer(optimizer: Any, _: Any, keywords: dict[str, Any]) -> None:
        if not is_compiling():
            finder.stepped(optimizer, keywords)

    handle = register_optimizer_step_post_hook(end_of_optimizer)
    _finder = finder

    def remove() -> None:
        global _finder, _is_by_hand
        handle.remove()
        if _finder is finder:
            _finder, _is_by_hand = None, False

    return remove


def take_over() -> bool:
    """The job marks its steps itself from now on. True where the hook has counted the step that ends now."""
    global _is_by_hand
    if _is_by_hand:
        return False
    _is_by_hand = True
    return _finder is not None and _finder.has_counted


def is_by_hand() -> bool:
    """Whether a step ends when the job says so, not when its optimizer has returned: until then it goes on."""
    return _is_by_hand


class _Finder:
    """Chooses the optimizer whose calls are the steps: the first one, as long as it lives and is used."""

    def __init__(self, on_step: Callable[[], None]) -> None:
        self.has_counted = False
        self._on_step = on_step
        self._marker: Callable[[], Any] = _nothing
        self._rival: Callable[[], Any] = _nothing
        self._n_by_rival = 0
        self._ending: Callable[[], _Ending | None] = _nothing

    def stepped(self, optimizer: Any, keywords: dict[str, Any]) -> None:
        if _is_by_hand or not self._is_marker(optimizer):
            return
        late = self._ending()
        if late is not None:  # somebody keeps the keywords of the call before
            late.end()
        self.has_counted = True
        # The keywords of a call live exactly as long as the call: they are freed when Optimizer.step returns.
        keywords[_KEY] = ending = _Ending(self._on_step)
        self._ending = weakref.ref(ending)

    def _is_marker(self, optimizer: Any) -> bool:
        marker = self._marker()
        if marker is optimizer:
            self._rival = _nothing
            return True
        if marker is not None and not self._is_replaced_by(optimizer):
            return False
        self._marker, self._rival = weakref.ref(optimizer), _nothing
        return True

    def _is_replaced_by(self, optimizer: Any) -> bool:
        rival = self._rival()
        if rival is None:
            self._rival, self._n_by_rival = weakref.ref(optimizer), 0
        elif rival is not optimizer:
            return False
        self._n_by_rival += 1
        return self._n_by_rival > _N_UNTIL_REPLACED


class _Ending:
    """Ends the step when it is freed."""

    __slots__ = ("__weakref__", "_on_step")

    def __init__(self, on_step: Callable[[], None]) -> None:
        self._on_step: Callable[[], None] | None = on_step

    def end(self) -> None:
        on_step, self._on_step = self._on_step, None
        if on_step is not None and not _is_by_hand:
            on_step()

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


def _nothing() -> None:
    return None
