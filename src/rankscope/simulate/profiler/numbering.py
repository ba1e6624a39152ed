"""The numbers by which events of a trace, and other traces of the same steps, refer to each other."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from random import Random

from rankscope.simulate.profiler.layout import INTEGER

_MAX_EARLIER_RECORDS = 5_000


@dataclass(frozen=True)
class Numbering:
    """By default that of a profiler of today, with no observer of execution traces beside it."""

    observed: Mapping[int, tuple[int, int]] = field(default_factory=dict)
    """By rank the first and the last step in which such an observer runs: only then do operators get numbers of their
    own, which both write down."""
    has_record_ids: bool = True
    """Before 2024 profilers did not note these numbers."""
    has_correlation_as_external: bool = False
    """In 2023 what an operator had started did not refer to the operator, but to itself."""

    @property
    def record_id_text(self) -> str:
        """What is written for the number of an operator, perhaps with a hole; empty when there is no such field."""
        if not self.has_record_ids:
            return ""
        return INTEGER if self.observed else "0"

    def is_observed(self, rank: int, step: int) -> bool:
        first, last = self.observed.get(rank, (0, -1))
        return first <= step <= last


def first_record_id(seed: int, rank: int, n_spans: int, step: int) -> int:
    """The number before those of the operators of a step. How many were given out before the job is the rank's own."""
    return Random(f"{seed} records {rank}").randint(1, _MAX_EARLIER_RECORDS) + step * (n_spans + 1)
