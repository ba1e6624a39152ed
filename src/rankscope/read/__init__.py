"""Readers: one file per trace format, each with NAME, sniff(head, name) and read(source)."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from typing import Protocol, cast

from rankscope.model.numbers import integer
from rankscope.model.parts import Module, load_module, other_modules, own_modules
from rankscope.model.tables import Part, Table
from rankscope.read.files import Source


class Reader(Protocol):
    NAME: str
    # ORDER: int = 0, optional: one with a higher number is asked later. First those that go by the first bytes alone,
    # then those that also know a file by its name (rank_3), last those that take many texts.
    # COST: int = 1, optional: how many times as long as a byte of a dump one of this format takes to read.
    # read_together(sources) -> list[list[Table | Part]], optional: reads small files faster than one after the other.
    # NAMES_TELL_RANK: bool = True, optional: whether the last number of a file's name is its rank.

    def sniff(self, head: bytes, name: str) -> bool:
        """True when the file is of this format, judged by its first bytes and its name."""

    def read(self, source: Source) -> Iterator[Table | Part]:
        """The tables of one file, large ones as parts in source.workspace. BadFileError: nothing of it is usable."""


@functools.cache  # not imported by its name, which a module of this room has
def own_readers() -> tuple[Reader, ...]:
    """The modules beside this file that have a NAME, in the order in which they are asked."""
    return _loaded(own_modules("read"))


@functools.cache
def other_readers() -> tuple[Reader, ...]:
    """Readers of other packages: asked about files that no own reader knows."""
    return _loaded(other_modules())


def _loaded(modules: Sequence[Module]) -> tuple[Reader, ...]:
    named = [module for module in modules if "NAME" in module.names]
    named.sort(key=lambda module: integer(module.names.get("ORDER"), default=0))
    return tuple(cast(Reader, load_module(module.name)) for module in named)
