"""Readers: one file per trace format, each with NAME, sniff(head, name) and read(source)."""

from __future__ import annotations

import functools
from ast import literal_eval
from collections.abc import Iterator, Sequence
from typing import NamedTuple, Protocol, cast

from rankscope.model.numbers import integer
from rankscope.model.parts import Module, load_module, other_modules, own_modules
from rankscope.model.tables import Part, Table
from rankscope.read.files import Source


class Reader(Protocol):
    NAME: str
    # ORDER: int = 0, optional: one with a higher number is asked later. First those that go by the first bytes alone,
    # then those that also know a file by its name (rank_3), last those that take many texts.
    # MARKS: tuple[str, ...], optional, on one line: texts of which every file of this format has one among its first
    # bytes or in its name. The reader is imported only for files that have one.
    # COST: int = 1, optional: how many times as long as a byte of a dump one of this format takes to read.
    # read_together(sources) -> list[list[Table | Part]], optional: reads small files faster than one after the other.
    # NAMES_TELL_RANK: bool = True, optional: whether the last number of a file's name is its rank.

    def sniff(self, head: bytes, name: str) -> bool:
        """True when the file has this format, judging by its first bytes and its name."""

    def read(self, source: Source) -> Iterator[Table | Part]:
        """The tables of one file, large ones as parts in source.workspace. BadFileError: nothing of it is usable."""


class Unloaded(NamedTuple):
    """A reader that is imported when a file may be its own."""

    module: str
    marks: tuple[str, ...]

    def may_take(self, head: bytes, name: str) -> bool:
        return not self.marks or any(mark.encode() in head or mark.lower() in name.lower() for mark in self.marks)

    def load(self) -> Reader:
        return cast(Reader, load_module(self.module))


@functools.cache  # not imported by its name, which a module of this room has
def own_readers() -> tuple[Unloaded, ...]:
    """The modules beside this file that have a NAME, in the order in which they are asked."""
    return _in_order(own_modules("read"))


@functools.cache
def other_readers() -> tuple[Unloaded, ...]:
    """Readers of other packages: asked about files that no own reader knows."""
    return _in_order(other_modules())


def _in_order(modules: Sequence[Module]) -> tuple[Unloaded, ...]:
    named = [module for module in modules if "NAME" in module.names]
    named.sort(key=lambda module: integer(module.names.get("ORDER"), default=0))
    return tuple(Unloaded(module.name, literal_eval(module.names.get("MARKS", "()"))) for module in named)
