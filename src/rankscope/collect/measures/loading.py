"""How long the job's thread waits for its DataLoader, and how much the loader gave it.

What the loader does not report stays unknown. Samples are counted if the loader makes batches of a known size, tokens
where a batch says so. A step whose batches came from more than one iteration has no count: one of them is an
evaluation, or the job trains on several loaders at once.
"""

from __future__ import annotations

import functools
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from rankscope.collect.measures.hooks import Function, Hooks

_MAX_ITEMS = 16  # of a batch that are looked at


class _Here(threading.local):
    """What the calling thread has loaded since its last step."""

    depth = 0
    wait_ns = 0
    source: Callable[[], Any] | None = None  # a weak reference: the iterator that the batches came from
    is_mixed = False
    n_batches = 0
    samples: int | None = 0
    tokens: int | None = 0


class Loading:
    def __init__(self) -> None:
        self._here = _Here()

    def install(self, hooks: Hooks) -> None:
        from torch.utils.data.dataloader import _BaseDataLoaderIter

        hooks.replace(_BaseDataLoaderIter, "__next__", lambda original: self._watched(hooks, original))

    def _watched(self, hooks: Hooks, original: Function) -> Function:
        from torch.compiler import is_compiling

        here = self._here

        @functools.wraps(original)
        def watched(iterator: Any) -> Any:
            if not hooks.is_on or here.depth or is_compiling():
                return original(iterator)
            here.depth = 1
            began = time.monotonic_ns()
            try:
                batch = original(iterator)
            finally:
                here.depth = 0
                here.wait_ns += time.monotonic_ns() - began
            try:
                self._count(iterator, batch)
            except Exception:  # a batch of any make
                here.samples = here.tokens = None
            return batch

        return watched

    def _count(self, iterator: Any, batch: Any) -> None:
        torch = sys.modules["torch"]
        here = self._here
        if not torch.is_grad_enabled():  # an evaluation
            return
        here.is_mixed |= here.n_batches > 0 and (here.source is None or here.source() is not iterator)
        here.source = weakref.ref(iterator)
        here.n_batches += 1
        with torch._C.DisableTorchFunction():  # a mode of the job's own must not see what we look at
            here.samples = _added(here.samples, n_samples(torch, iterator, batch))
            here.tokens = _added(here.tokens, n_tokens(torch, batch))

    def take(self) -> Iterator[tuple[str, float]]:
        """loader_wait_s, samples and tokens of the step that ends in this thread; then the counts restart."""
        here = self._here
        if here.wait_ns:
            yield "loader_wait_s", here.wait_ns / 1e9
        if here.n_batches and not here.is_mixed:
            if here.samples:
                yield "samples", here.samples
            if here.tokens:
                yield "tokens", here.tokens
        here.wait_ns = here.n_batches = 0
        here.is_mixed = False
        here.samples = here.tokens = 0


def _added(total: int | None, more: int | None) -> int | None:
    return None if total is None or more is None else total + more


def n_samples(torch: Any, iterator: Any, batch: Any) -> int | None:
    """Where the loader itself makes batches: the length of what torch's own function collated; of the user's own
    function, the size that was asked for, if a tensor has it.
    """
    if not iterator._auto_collation:  # the dataset gives what it likes
        return None
    lengths = [int(item.shape[0]) for item in _tensors(torch, batch) if item.dim()]
    if not lengths:
        return None
    if iterator._collate_fn is torch.utils.data.default_collate:
        return lengths[0]
    size = getattr(iterator._index_sampler, "batch_size", None)
    return size if size in lengths else None


def n_tokens(torch: Any, batch: Any) -> int | None:
    """Counts input_ids, or a batch that has nothing but rows of integers; padding included."""
    if isinstance(batch, Mapping):
        ids: Any = batch.get("input_ids")
        return int(ids.numel()) if _is_ids(torch, ids) else None
    if isinstance(batch, torch.Tensor):
        return int(batch.numel()) if _is_rows(torch, batch) else None
    if isinstance(batch, (tuple, list)) and len(batch) == 2:  # what is given, and what is to be told
        given, wanted = batch
        is_alike = _is_rows(torch, given) and _is_rows(torch, wanted) and given.shape == wanted.shape
        return int(given.numel()) if is_alike else None
    return None


def _is_ids(torch: Any, item: Any) -> bool:
    return isinstance(item, torch.Tensor) and item.dtype in (torch.int64, torch.int32) and item.dim() > 0


def _is_rows(torch: Any, item: Any) -> bool:
    return _is_ids(torch, item) and item.dim() == 2 and item.shape[1] > 1


def _tensors(torch: Any, batch: Any) -> Iterator[Any]:
    if isinstance(batch, torch.Tensor):
        yield batch
        return
    items = batch.values() if isinstance(batch, Mapping) else batch if isinstance(batch, (tuple, list)) else ()
    for _, item in zip(range(_MAX_ITEMS), items, strict=False):
        if isinstance(item, torch.Tensor):
            yield item
