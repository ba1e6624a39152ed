"""One thing that is collected. Every method is called guarded: what it raises ends the part, never the job."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    from rankscope.collect.run import Run


class Part:
    NAME: ClassVar[str]  # what the manifest calls it

    def __init__(self, run: Run) -> None:
        self.run = run

    def start(self) -> None:
        """The rank is known and torch is imported."""

    def joined(self) -> None:
        """torch.distributed has been initialized: there are process groups and a store. In the job's own thread."""

    def steps_change(self, n_before: int) -> None:
        """Steps are found by another sign from now on; `n_before`: how many had ended before. `step` is called next."""

    def step(self, number: int) -> None:
        """A training step has ended; in the job's own thread, so it must be quick."""

    def tick(self) -> None:
        """A few times a second, in the collector's thread."""

    def dump(self, reason: str) -> None:
        """Write what is known now: the job may be hanging, dying or ending."""

    def close(self) -> None:
        """The job ends."""
