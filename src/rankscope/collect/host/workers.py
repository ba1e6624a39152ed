"""Where the workers of a DataLoader are while the training loop waits for them.

A worker is a process of its own. Memory that it shares with the rank from its birth on holds, per worker, the place in
which its thread was found. It looks only while the rank says that it waits. No file, no signal, nothing to clean up.
"""

from __future__ import annotations

import functools
import json
import mmap
import os
import sys
import threading
import time
from typing import Any

from rankscope.collect.host import frames
from rankscope.collect.measures.hooks import Function, Hooks

_SLOT = 4096  # bytes per worker
_N_SLOTS = 32
_SECONDS = 0.05
_LENGTH = 8  # bytes in front of what a worker says: its length
MODULE = "torch.utils.data._utils.worker"


class Workers:
    def __init__(self) -> None:
        self._shared: mmap.mmap | None = None
        self._rank = os.getpid()

    def install(self, hooks: Hooks) -> None:
        """Forked workers start in torch's `_worker_loop`; those that are spawned have nothing of ours."""
        if not hasattr(os, "fork"):
            return
        self._shared = mmap.mmap(-1, _SLOT * (_N_SLOTS + 1))
        hooks.replace(sys.modules[MODULE], "_worker_loop", self._watched)

    def ask(self, *, waits: bool) -> None:
        if self._shared is not None:
            self._shared[0] = int(waits)

    def places(self) -> list[list[Any]]:
        """Process number and frames of each worker that has answered since it was asked."""
        answers = []
        for slot in range(1, _N_SLOTS + 1) if self._shared is not None else ():
            assert self._shared is not None
            start = slot * _SLOT
            size = int.from_bytes(self._shared[start : start + _LENGTH], "little")
            if not 0 < size <= _SLOT - _LENGTH:
                continue
            try:
                answer = json.loads(self._shared[start + _LENGTH : start + _LENGTH + size])
            except ValueError:  # the worker is writing it
                continue
            self._shared[start : start + _LENGTH] = bytes(_LENGTH)
            answers.append(answer)
        return answers

    def _watched(self, original: Function) -> Function:
        @functools.wraps(original)
        def watched(*arguments: Any, **options: Any) -> Any:
            try:
                if os.getpid() != self._rank and self._shared is not None:
                    main = threading.main_thread().ident or 0
                    slot = 1 + os.getpid() % _N_SLOTS
                    look = functools.partial(_look_on, self._shared, slot, main)
                    threading.Thread(target=look, name="rankscope-worker", daemon=True).start()
            except Exception:  # without it, only the workers' places are unknown
                pass
            return original(*arguments, **options)

        return watched


def _look_on(shared: mmap.mmap, slot: int, thread: int) -> None:
    """In the worker, until it ends."""
    try:
        while True:
            time.sleep(_SECONDS)
            if not shared[0]:
                continue
            stack = frames.texts(frames.places(sys._current_frames().get(thread)))
            answer = json.dumps([os.getpid(), stack]).encode()
            while len(answer) > _SLOT - _LENGTH and stack:
                stack.pop()
                answer = json.dumps([os.getpid(), stack]).encode()
            start = slot * _SLOT
            shared[start : start + _LENGTH] = bytes(_LENGTH)
            shared[start + _LENGTH : start + _LENGTH + len(answer)] = answer
            shared[start : start + _LENGTH] = len(answer).to_bytes(_LENGTH, "little")
    except Exception:
        return
