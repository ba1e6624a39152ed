"""Readers: one file per trace format, each with NAME, sniff(head, name) and read(source)."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from typing import Protocol, cast

from rankscope.model.tables import Part, Table
from rankscope.read.files import Source

# In the order in which they are asked: first those that go by the first bytes alone, as another may know a file by
# its name (rank_3). Other packages add theirs by the entry point group `rankscope.readers`.
READERS = (
    *("nsys", "compile_log", "manifest", "metrics", "tensorboard", "wandb", "thread_stacks", "desync"),
    *("flight_recorder", "execution_trace", "kineto", "torch_logs", "metric_log"),
)
ENTRY_POINTS = "rankscope.readers"


class Reader(Protocol):
    NAME: str
    # COST: int = 1, optional: how many times as long as a byte of a dump one of this format takes to read.
    # read_together(sources) -> list[list[Table | Part]], optional: reads small files faster than one after the other.
    # NAMES_TELL_RANK: bool = True, optional: whether the last number of a file's name is its rank.

    def sniff(self, head: bytes, name: str) -> bool:
        """True when the file is of this format, judged by its first bytes and its name."""

    def read(self, source: Source) -> Iterator[Table | Part]:
        """The tables of one file, large ones as parts in source.workspace. BadFileError: nothing of it is usable."""


def own_readers() -> list[Reader]:
    return [cast(Reader, importlib.import_module(f"rankscope.read.{name}")) for name in READERS]


def entry_point_readers() -> list[Reader]:
    """Readers of other packages; looked up only for files that no own reader knows, as the look-up is slow."""
    from importlib.metadata import entry_points

    return [cast(Reader, point.load()) for point in entry_points(group=ENTRY_POINTS)]
