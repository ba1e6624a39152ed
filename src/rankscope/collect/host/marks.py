"""Exact marks of what the training thread does: start, end, kind and name of what a step consists of."""

from __future__ import annotations

import functools
import gc
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, NamedTuple

from rankscope.collect.host import workers
from rankscope.collect.measures.hooks import Function, Hooks

GC, LOADING, SAVING, OPTIMIZER, COMPILE = "gc", "loading", "saving", "optimizer", "compile"
BACKWARD, EVALUATION, RANGE = "backward", "evaluation", "range"
RECORDING, PROFILED = "recording", "profiled"  # work of the collector itself, and steps that it slows down
SHORTEST_NS = 500_000  # what takes less explains no delay
LONGEST_SHORT_NS = 1_000_000_000  # marks that are longer are kept, however many there are
_MAX_WAITING = 10_000
# Ranges that torch itself names, of what has marks of its own.
_TORCHS_OWN = ("Optimizer.", "enumerate(DataLoader)", "ProfilerStep", "PyTorchProfiler")

# Kind, start, end, name.
Mark = tuple[str, int, int, str]


class _Watched(NamedTuple):
    owner: str  # a class of the module; empty for its functions
    name: str
    kind: str
    label: str


# What is hooked as soon as the job has imported it: nothing is imported for the collector's sake.
_FUNCTIONS: dict[str, tuple[_Watched, ...]] = {
    "torch.utils.data.dataloader": (
        _Watched("_BaseDataLoaderIter", "__next__", LOADING, "DataLoader"),
        _Watched("DataLoader", "__iter__", LOADING, "start of the DataLoader"),
    ),
    "torch": (_Watched("", "save", SAVING, "torch.save"),),
    "torch.serialization": (_Watched("", "save", SAVING, "torch.save"),),
    "torch.distributed.checkpoint": (
        _Watched("", "save", SAVING, "torch.distributed.checkpoint.save"),
        _Watched("", "async_save", SAVING, "torch.distributed.checkpoint.async_save"),
    ),
    "torch.autograd": (_Watched("", "backward", BACKWARD, "backward"),),
}
# Context managers. torch.compile knows these classes, and does not look into their methods.
_CONTEXTS = (
    ("torch.autograd.grad_mode", "no_grad", EVALUATION),
    ("torch.autograd.grad_mode", "inference_mode", EVALUATION),
    ("torch.autograd.profiler", "record_function", RANGE),
)


class Marks:
    """Of one thread. Tuples go into a list, and the sampler takes them out of it."""

    def __init__(self) -> None:
        self.thread = threading.get_ident()
        self.shortest_ns = SHORTEST_NS
        self.workers = workers.Workers()
        self.is_loading = False
        self._hooks = Hooks()
        self._ready: list[Mark] = []
        self._collecting_ns = 0
        self._depths: dict[str, int] = {}
        self._entered: list[tuple[int, int]] = []  # contexts that are open, by their identity, and when they began
        self._handles: tuple[Any, ...] = ()
        self._compiling_ns = 0
        self._follows_compiler = self._follows_workers = False
        self._later = dict(_FUNCTIONS)
        self._contexts = list(_CONTEXTS)

    def install(self) -> None:
        gc.callbacks.append(self._on_collection)
        with suppress(ImportError):  # a torch without these hooks: its optimizer steps are not marked
            self._follow_optimizers()
        self.install_imported()

    def _follow_optimizers(self) -> None:
        from torch.compiler import is_compiling
        from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

        began = [0]

        def before(*_: Any) -> None:
            if not is_compiling():  # a compiled step() holds this hook: there it must be nothing
                began[0] = time.time_ns()

        def after(optimizer: Any, *_: Any) -> None:
            if is_compiling():
                return
            if began[0] and threading.get_ident() == self.thread:
                self.add(OPTIMIZER, began[0], type(optimizer).__name__)
            began[0] = 0

        self._handles = (register_optimizer_step_pre_hook(before), register_optimizer_step_post_hook(after))

    def install_imported(self) -> None:
        """In the job's own thread, once per step: modules that it has imported since."""
        for module in [name for name in self._later if name in sys.modules]:
            for owner, name, kind, label in self._later.pop(module):
                container = sys.modules[module]
                target = getattr(container, owner, None) if owner else container
                if target is not None:
                    self._hooks.replace(target, name, functools.partial(self._watched, kind, label))
        for context in [context for context in self._contexts if context[0] in sys.modules]:
            self._contexts.remove(context)
            self._watch_context(getattr(sys.modules[context[0]], context[1], None), context[2])
        if not self._follows_workers and workers.MODULE in sys.modules:
            self._follows_workers = True
            self.workers.install(self._hooks)
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
        if end - start_ns >= self.shortest_ns and len(self._ready) < _MAX_WAITING:
            self._ready.append((kind, start_ns, end, name))

    def add_ours(self, kind: str, start_ns: int) -> None:
        """Always kept: what the collector does is no fault of the rank."""
        self._ready.append((kind, start_ns, time.time_ns(), ""))

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
        if self._compiling_ns and threading.get_ident() == self.thread:
            self.add(COMPILE, self._compiling_ns, "torch.compile")
        self._compiling_ns = 0

    def _watched(self, kind: str, label: str, original: Function) -> Function:
        from torch.compiler import is_compiling

        depths, loads = self._depths, kind == LOADING

        @functools.wraps(original)
        def watched(*arguments: Any, **options: Any) -> Any:
            is_ours = self._hooks.is_on and not is_compiling() and threading.get_ident() == self.thread
            if not is_ours or depths.get(kind):
                return original(*arguments, **options)
            began, depths[kind] = time.time_ns(), 1
            self.is_loading |= loads
            try:
                return original(*arguments, **options)
            finally:
                depths[kind] = 0
                self.is_loading &= not loads
                self.add(kind, began, label)

        return watched

    def _watch_context(self, owner: Any, kind: str) -> None:
        """Its outermost use alone: torch uses these classes below the job's own uses, again and again."""
        if owner is None:
            return
        from torch.compiler import is_compiling

        entered, is_range = self._entered, kind == RANGE

        def enters(original: Function) -> Function:
            @functools.wraps(original)
            def watched(context: Any) -> Any:
                if self._hooks.is_on and not is_compiling() and threading.get_ident() == self.thread:
                    if is_range or not self._depths.get(kind):
                        entered.append((id(context), time.time_ns()))
                        del entered[:-64]  # of contexts that are never left
                    self._depths[kind] = self._depths.get(kind, 0) + 1
                return original(context)

            return watched

        def leaves(original: Function) -> Function:
            @functools.wraps(original)
            def watched(context: Any, *raised: Any) -> Any:
                if self._hooks.is_on and self._depths.get(kind) and threading.get_ident() == self.thread:
                    self._depths[kind] -= 1
                    if entered and entered[-1][0] == id(context):
                        name = str(getattr(context, "name", "")) if is_range else type(context).__name__
                        began = entered.pop()[1]
                        if not is_range or not name.startswith(_TORCHS_OWN):
                            self.add(kind, began, name[:200])
                return original(context, *raised)

            return watched

        if "__enter__" in vars(owner) and "__exit__" in vars(owner):
            self._hooks.replace(owner, "__enter__", enters)
            self._hooks.replace(owner, "__exit__", leaves)
