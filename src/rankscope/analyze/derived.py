"""What several analyses need is computed once per trace and kept with it: derived tables, and what has no table."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from rankscope.model.parts import Declared
from rankscope.model.tables import Table, Trace, concat

Result = TypeVar("Result")
MakerFunction = Callable[[Trace], Table]


def derived(trace: Trace, make: Callable[[Trace], Result]) -> Result:
    """What several rules need is computed once per trace."""
    cache = trace.derived
    if make not in cache:
        cache[make] = make(trace)
    result: Result = cache[make]
    return result


def table(name: str, *, needs: tuple[str, ...]) -> Callable[[MakerFunction], MakerFunction]:
    """Says that a function makes a derived table, when it is first asked for. The arguments are literals.

    It is not called for a capture that has none of the tables it needs: the table is then empty.
    """
    return lambda function: function


@dataclass(frozen=True)
class Maker:
    """Makes a derived table. Its module is imported only where there is something to make it from."""

    part: Declared
    name: str
    needs: tuple[str, ...]

    def __call__(self, trace: Trace) -> Table:
        if not any(map(trace.has, self.needs)):
            return concat(self.name, [])
        made: Table = self.part.load()(trace)
        return made
