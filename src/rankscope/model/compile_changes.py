"""What changed between two runs of a job that uses torch.compile; `rankscope compile --compare --json` prints this."""

from __future__ import annotations

from typing import Literal

import msgspec

SCHEMA_NAME = "rankscope.compile-changes/1"
Kind = Literal["new", "more", "fewer", "gone"]


class RunTotals(msgspec.Struct, frozen=True):
    """One side of the comparison: the newest run at its paths. Each number is that of the rank with the highest one."""

    paths: tuple[str, ...]
    ranks: tuple[int, ...]
    n_earlier_runs: int
    n_compilations: int
    n_recompiles: int
    n_graph_breaks: int
    n_failures: int
    total_ns: int  # of a rank, on average


class Change(msgspec.Struct, frozen=True):
    """Something at a line that happens more or less often. `line` is the new one, unless it is gone."""

    kind: Kind
    file: str
    line: int
    function: str
    what: str
    n_old: int
    n_new: int


class TimeChange(msgspec.Struct, frozen=True):
    """Time of a rank, on average, for a line of code, or for a part of the work (then `file` is empty)."""

    name: str
    file: str
    line: int
    old_line: int
    old_ns: int
    new_ns: int

    @property
    def change_ns(self) -> int:
        return self.new_ns - self.old_ns


class CacheChange(msgspec.Struct, frozen=True):
    """Lookups in one cache, over all ranks."""

    cache: str
    old_hits: int
    old_misses: int
    old_bypasses: int
    new_hits: int
    new_misses: int
    new_bypasses: int


class CompileChanges(msgspec.Struct, frozen=True):
    """The whole comparison; what got worse comes first in each list."""

    schema: str
    old: RunTotals
    new: RunTotals
    graph_breaks: tuple[Change, ...]
    recompiles: tuple[Change, ...]
    failures: tuple[Change, ...]
    caches: tuple[CacheChange, ...]
    lines: tuple[TimeChange, ...]
    phases: tuple[TimeChange, ...]  # dynamo, aot, ...: they add up to the total
    passes: tuple[TimeChange, ...]  # forward, backward, runtime: so do they
    is_worse: bool
