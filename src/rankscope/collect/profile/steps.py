"""Steps of the job, detected automatically by what repeats in it.

What ends a step, the best sign first:

- optimizer: the step() of a torch optimizer has returned
- backward: a backward pass has returned
- forward: the outermost module with parameters is called
- loader: the next batch is asked for
- collectives: their sequence repeats

An optimizer is believed at once. Every other sign must repeat while no better one appears, and gives way as soon as a
better one does. Signs below the one that is believed are no longer watched.
"""

from __future__ import annotations

import gc
import sys
import weakref
from collections.abc import Callable, Hashable
from typing import Any

from rankscope.collect.compiling import has_compiled
from rankscope.collect.profile.signs import KINDS, OPTIMIZER, Sign, all_signs

# So often may another optimizer (module, ...) be seen alone before it takes over: in GANs one of them steps several
# times in a row.
_N_UNTIL_REPLACED = 20
# So often must a sign repeat without a better one before it is believed.
_N_TO_BELIEVE = 3
_N_WITH_COMPILED_OPTIMIZER = 8  # an optimizer exists, but its steps may be compiled, where nobody sees them
_N_WITH_OPTIMIZER = 64  # one exists and is going to step: this may be an evaluation, or micro-batches that accumulate

OnStep = Callable[[str, int], None]  # the sign that is believed, and how many steps have ended since the last call

_finder: Finder | None = None
_is_by_hand = False


def install(on_step: OnStep) -> Callable[[], None]:
    """Calls `on_step` after each step, in the job's thread, until what is returned is called.

    torch must be imported already or importable.
    """
    global _finder
    finder = Finder(on_step)
    finder.watch(all_signs(finder))
    _finder = finder

    def remove() -> None:
        global _finder, _is_by_hand
        finder.watch({})
        if _finder is finder:
            _finder, _is_by_hand = None, False

    return remove


def look_further() -> None:
    """Some seconds have passed. Where nothing repeats that is cheap to watch, the collectives are watched as well."""
    if _finder is not None and not _is_by_hand:
        _finder.look_further()


def take_over() -> bool:
    """The job marks its steps itself from now on. True where the step that ends now has been counted already."""
    global _is_by_hand
    if _is_by_hand:
        return False
    _is_by_hand = True
    if _finder is None:
        return False
    _finder.watch({})
    return _finder.believed == OPTIMIZER


def is_by_hand() -> bool:
    """True if a step ends when the job says so, not when its optimizer returns."""
    return _is_by_hand


class Finder:
    """Chooses the sign whose repetitions are the steps."""

    def __init__(self, on_step: OnStep) -> None:
        self.believed = ""
        self.is_in_backward = False  # what is called meanwhile is part of it: checkpoints are computed again
        self._on_step = on_step
        self._markers = {kind: _Marker() for kind in KINDS}
        self._n_alone = dict.fromkeys(KINDS, 0)  # since a better sign was seen
        self._n_believed = 0
        self._steps_in_backward = False  # one optimizer for each parameter, whose steps are no steps of the job
        self._signs: dict[str, Sign] = {}

    def watch(self, signs: dict[str, Sign]) -> None:
        """From now on only these."""
        watched, self._signs = self._signs, signs
        for kind, sign in watched.items():
            if signs.get(kind) is not sign:
                sign.remove()
        for kind, sign in signs.items():
            if kind not in watched:
                self._install(sign)

    def _install(self, sign: Sign) -> None:
        try:
            sign.install()
        except (ImportError, AttributeError):  # a torch that is built otherwise
            if sign.KIND == OPTIMIZER:
                raise

    def look_further(self) -> None:
        for sign in self._signs.values() if not self.believed else ():
            sign.look_further()

    def saw(self, kind: str, thing: Any) -> bool:
        """`thing` has shown the sign. True where that is the end of a step, which `ended` then has to report."""
        if self.is_in_backward:
            self._steps_in_backward |= kind == OPTIMIZER
            return False
        if _is_by_hand or not self._markers[kind].is_marked_by(thing):
            return False
        for lower in KINDS[KINDS.index(kind) + 1 :]:
            self._n_alone[lower] = 0
        self._n_alone[kind] += 1
        return kind == self.believed or self._is_credible(kind)

    def ended(self, kind: str) -> None:
        if _is_by_hand:
            return
        n_steps = 1
        if kind != self.believed:
            n_steps, self.believed, self._n_believed = self._n_alone[kind], kind, 0
        self._n_believed += n_steps
        self._on_step(kind, n_steps)
        if self._n_believed >= _N_TO_BELIEVE and self._signs:
            believed = KINDS.index(kind)
            kept = {other: sign for other, sign in self._signs.items() if KINDS.index(other) <= believed}
            if len(kept) < len(self._signs):
                self.watch(kept)

    def _is_credible(self, kind: str) -> bool:
        if kind == OPTIMIZER:
            return True
        n_alone = self._n_alone[kind]
        if self.believed and KINDS.index(kind) > KINDS.index(self.believed):
            is_settled = self._n_believed >= _N_TO_BELIEVE  # else it was seen a few times only, e.g. to set it up
            return not is_settled and n_alone >= _N_WITH_OPTIMIZER
        if n_alone not in (_N_TO_BELIEVE, _N_WITH_COMPILED_OPTIMIZER):  # it takes a while to look for optimizers
            return n_alone >= _N_WITH_OPTIMIZER
        if n_alone == _N_WITH_COMPILED_OPTIMIZER and has_compiled():
            return True
        return self._steps_in_backward or not _has_optimizer()


class _Marker:
    """One of several things that show the same sign: the first one, as long as it lives and is used."""

    def __init__(self) -> None:
        self._thing: Callable[[], Any] = _nothing
        self._rival: Callable[[], Any] = _nothing
        self._n_by_rival = 0

    def is_marked_by(self, thing: Any) -> bool:
        marker = self._thing()
        if _is_same(marker, thing):
            self._rival = _nothing
            return True
        if marker is not None and not self._is_replaced_by(thing):
            return False
        self._thing, self._rival = _weakly(thing), _nothing
        return True

    def _is_replaced_by(self, thing: Any) -> bool:
        rival = self._rival()
        if rival is None:
            self._rival, self._n_by_rival = _weakly(thing), 0
        elif not _is_same(rival, thing):
            return False
        self._n_by_rival += 1
        return self._n_by_rival > _N_UNTIL_REPLACED


def _has_optimizer() -> bool:
    optimizer = sys.modules["torch.optim.optimizer"].Optimizer
    return any(issubclass(type(thing), optimizer) for thing in gc.get_objects())


def _is_same(one: Any, other: Any) -> bool:
    """Numbers and places in the code by their value. An optimizer or a module is never asked what it is equal to."""
    return one is other or (type(one) is type(other) and isinstance(one, (int, tuple)) and one == other)


def _weakly(thing: Any) -> Callable[[], Any]:
    if isinstance(thing, (int, tuple)):
        key: Hashable = thing
        return lambda: key
    return weakref.ref(thing)


def _nothing() -> None:
    return None
