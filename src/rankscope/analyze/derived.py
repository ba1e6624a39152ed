"""What several analyses need is computed once per trace and kept with it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import TypeVar

from rankscope.model.tables import Table, Trace

Result = TypeVar("Result")


def derived(trace: Trace, make: Callable[[Trace], Result]) -> Result:
    """What several rules need is computed once per trace."""
    cache = trace.derived
    if make not in cache:
        cache[make] = make(trace)
    result: Result = cache[make]
    return result


def makers_in(package: str, modules: Mapping[str, str]) -> dict[str, Callable[[Trace], Table]]:
    """How derived tables are made: by the function of the table's name in a module of the package, imported on use."""
    return {table: _maker(table, f"{package}.{module}") for table, module in modules.items()}


def _maker(table: str, module: str) -> Callable[[Trace], Table]:
    def make(trace: Trace) -> Table:
        made: Table = getattr(import_module(module), table)(trace)
        return made

    return make
