"""All that is seen of a training step in the job's own thread, as one piece: installed, taken step by step, removed."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator

from rankscope.collect.measures.hooks import Hooks
from rankscope.collect.measures.learning import Learning
from rankscope.collect.measures.loading import Loading
from rankscope.collect.measures.pauses import Pauses

_LOADER, _FSDP = "torch.utils.data.dataloader", "torch.distributed.fsdp.fully_sharded_data_parallel"


class Training:
    def __init__(self) -> None:
        self._hooks = Hooks()
        self._loading, self._learning, self._pauses = Loading(), Learning(), Pauses()
        # What is hooked as soon as the job has imported it: nothing is imported for the collector's sake.
        self._later: dict[str, Callable[[Hooks], None]] = {
            _LOADER: self._loading.install,
            _FSDP: self._learning.install_fsdp,
        }

    def install(self) -> list[tuple[str, Exception]]:
        """What could not be hooked, and why."""
        failed: list[tuple[str, Exception]] = []
        parts: tuple[tuple[str, Callable[[], None]], ...] = (
            ("the loss", functools.partial(self._learning.install, self._hooks)),
            ("garbage collection", self._pauses.install),
            ("data loading", self._install_imported),
        )
        for what, install in parts:
            try:
                install()
            except Exception as error:  # a version of torch that is made otherwise
                failed.append((what, error))
        return failed

    def take(self, step: int) -> dict[str, float]:
        """The measures of the step that has just ended; then all counts restart."""
        if self._later:
            self._install_imported()
        return {**self._learning.take(step), **dict(self._loading.take()), **dict(self._pauses.take())}

    def arrived(self) -> Iterator[tuple[str, int, float]]:
        """Name, step and value of what a device has reported since; in the job's thread."""
        return self._learning.arrived()

    def remove(self) -> None:
        self._hooks.remove()
        self._learning.remove()
        self._pauses.remove()

    def _install_imported(self) -> None:
        for name in [name for name in self._later if name in sys.modules]:
            self._later.pop(name)(self._hooks)
