"""Exact marks of what the main thread does: start, end, kind and name of what a step consists of."""

from __future__ import annotations

import functools
import gc
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

from rankscope.collect.measures.hooks import Function, Hooks

GC, LOADING, SAVING, OPTIMIZER, COMPILE = "gc", "loading", "saving", "optimizer", "compile"
SHORTEST_NS = 500_000  # what takes less explains no delay
_MAX_WAITING = 10_000

# Kind, start, end, name.
Mark = tuple[str, int, int, str]


class Marks:
    """Of the thread that installs them. Tuples go into a list, and the sampler takes them out of it."""

    def __init__(self) -> None:
        self._hooks = Hooks()
        self._thread = threading.get_ident()
        self._ready: list[Mark] = []
        self._collecting_ns = 0
        self._depth = 0
        self._handles: tuple[Any, ...] = ()
        self._compiling_ns = 0
        self._follows_compiler = False
        # What is hooked as soon as the job has imported it: nothing is imported for the collector's sake.
        self._later: dict[str, tuple[tuple[str, str, str, str], ...]] = {
            "torch.utils.data.dataloader": (("_BaseDataLoaderIter", "__next__", LOADING, "DataLoader"),),
            "torch.serialization": (("", "save", SAVING, "torch.save"),),
            "torch.distributed.checkpoint": (("", "save", SAVING, "torch.distributed.checkpoint.save"),),
            "torch": (("", "save", SAVING, "torch.save"),),
        }

    def install(self) -> None:
        gc.callbacks.append(self._on_collection)
        from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

        began = [0]

        def before(*_: Any) -> None:
            began[0] = time.time_ns()

        def after(optimizer: Any, *_: Any) -> None:
            if began[0] and threading.get_ident() == self._thread:
                self.add(OPTIMIZER, began[0], type(optimizer).__name__)
            began[0] = 0

        self._handles = (register_optimizer_step_pre_hook(before), register_optimizer_step_post_hook(after))
        self.install_imported()

    def install_imported(self) -> None:
        """In the job's own thread, once per step: modules that it has imported since."""
        for module in [name for name in self._later if name in sys.modules]:
            for owner, name, kind, label in self._later.pop(module):
                place = sys.modules[module]
                target = getattr(place, owner, None) if owner else place
                if target is not None:
                    self._hooks.replace(target, name, functools.partial(self._watched, kind, label))
        compiler = sys.modules.get("torch._dynamo.callback") if not self._follows_compiler else None
        handler = getattr(compiler, "CompilationCallbackHandler", None)
        if handler is not None:  # not by its lists of callbacks, which torch.compiler.reset() empties
            self._follows_compiler = True
            for name, act in (
                ("run_start_callbacks", self._on_compile_start),
                ("run_end_callbacks", self._on_compile_end),
            ):
                self._hooks.replace(handler, name, functools.partial(self._followed, act))

    def remove(self) -> None:
        self._hooks.remove()
        for handle in self._handles:
            handle.remove()
        if self._on_collection in gc.callbacks:
            gc.callbacks.remove(self._on_collection)

    def take(self) -> list[Mark]:
        marks = self._ready[:]
        del self._ready[: len(marks)]  # the job's thread may have added more meanwhile
        return marks

    def add(self, kind: str, start_ns: int, name: str) -> None:
        end = time.time_ns()
        if end - start_ns >= SHORTEST_NS and len(self._ready) < _MAX_WAITING:
            self._ready.append((kind, start_ns, end, name))

    def _on_collection(self, phase: str, about: dict[str, int]) -> None:
        if phase == "start":
            self._collecting_ns = time.time_ns()
        elif self._collecting_ns:
            self.add(GC, self._collecting_ns, f"generation {about.get('generation', '?')}")
            self._collecting_ns = 0

    def _followed(self, act: Callable[[], None], original: Function) -> Function:
        @functools.wraps(original)
        def watched(*arguments: Any, **options: Any) -> Any:
            if self._hooks.is_on:
                act()
            return original(*arguments, **options)

        return watched

    def _on_compile_start(self) -> None:
        self._compiling_ns = time.time_ns()

    def _on_compile_end(self) -> None:
        if self._compiling_ns and threading.get_ident() == self._thread:
            self.add(COMPILE, self._compiling_ns, "torch.compile")
        self._compiling_ns = 0

    def _watched(self, kind: str, label: str, original: Function) -> Function:
        from torch.compiler import is_compiling

        @functools.wraps(original)
        def watched(*arguments: Any, **options: Any) -> Any:
            if self._depth or not self._hooks.is_on or is_compiling() or threading.get_ident() != self._thread:
                return original(*arguments, **options)
            began, self._depth = time.time_ns(), 1
            try:
                return original(*arguments, **options)
            finally:
                self._depth = 0
                self.add(kind, began, label)

        return watched
