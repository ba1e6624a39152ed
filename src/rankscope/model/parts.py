"""Parts are found by their place in the package, or by an entry point of another one: they are entered in no list.

A rule, a derived table, a metric and a view say what they are in the decorator above their function, a reader and an
output in the names of their module. Importing every module to learn that takes longer than a small capture takes to
diagnose, so this reads their source text: what a part says about itself must be literals. It is imported on use.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from importlib import import_module
from typing import Any, NamedTuple, TypeVar

from rankscope.errors import RankscopeError

ENTRY_POINTS = "rankscope.parts"  # each names a module, or a package whose modules are all looked at
_ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
_DECORATORS = ("\n@rule(", "\n@table(", "\n@metric(", "\n@view(")
_DECORATOR = re.compile(r"^@(rule|table|metric|view)\(", re.MULTILINE)
_FUNCTION = re.compile(r"^def (\w+)\(", re.MULTILINE)
_NAMES = ("\nNAME = ", "\nEXTENSION = ", "\nTABLES")
_NAME = re.compile(r"""^(NAME|EXTENSION|ORDER|MARKS) = (?:"([\w.-]+)"|(\d+|\(.*\)$))|^(TABLES)\b.* = """, re.MULTILINE)

_UNINSTALL = "install another version of its package, or uninstall it"
Value = TypeVar("Value")


class Declared(NamedTuple):
    """What a part says about itself in its decorator, and where it is."""

    kind: str  # rule, table, metric or view
    module: str
    function: str
    values: tuple[Any, ...]
    settings: dict[str, Any]

    def load(self) -> Any:
        return getattr(load_module(self.module), self.function)


class Module(NamedTuple):
    """What the source of a module says about the parts in it."""

    name: str
    declared: tuple[Declared, ...]
    names: Mapping[str, str]  # NAME, ORDER and MARKS of a reader, EXTENSION of an output, TABLES of another package


Entry = tuple[str, str, Value]  # name, the module that it is in, and the part


def by_name(entries: Iterator[Entry[Value]]) -> dict[str, Value]:
    """Refuses a name that is used twice, and says where."""
    values: dict[str, Value] = {}
    modules: dict[str, str] = {}
    for name, module, value in entries:
        if name in values:
            raise RankscopeError(f"{name} is used twice: in {modules[name]} and in {module}", "rename one of them")
        values[name], modules[name] = value, module
    return values


class Catalogue(Mapping[str, Value]):
    """Parts of one kind by name, looked for when first asked for."""

    def __init__(self, find: Callable[[], Iterator[Entry[Value]]]) -> None:
        self._find = find
        self._found: dict[str, Value] | None = None

    def _entries(self) -> dict[str, Value]:
        if self._found is None:
            self._found = by_name(self._find())
        return self._found

    def __getitem__(self, name: str) -> Value:
        return self._entries()[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries())

    def __len__(self) -> int:
        return len(self._entries())


def declared_parts(kind: str, room: str) -> Iterator[Declared]:
    """All parts of a kind: first ours, in the order of the files in their room, then those of other packages."""
    for module in (*own_modules(room), *other_modules()):
        yield from (part for part in module.declared if part.kind == kind)


@cache
def own_modules(room: str) -> tuple[Module, ...]:
    """The modules in a room of this package; of `analyze`, whose rooms are many, also those in its folders."""
    folder = os.path.join(_ROOT, *room.split("."))
    return tuple(_modules_in(f"rankscope.{room}", folder, is_deep=room == "analyze"))


@cache
def other_modules() -> tuple[Module, ...]:
    """The modules that entry points of other packages name. Tables that they declare join the schema."""
    modules = [module for name in _entry_points() for module in _named_by_entry_point(name)]
    for module in modules:
        if "TABLES" in module.names:
            load_module(module.name)
    return tuple(modules)


def _named_by_entry_point(name: str) -> Iterator[Module]:
    from importlib.util import find_spec

    spec = find_spec(name)
    if spec is None or spec.origin is None:
        raise RankscopeError(f"there is no module {name}, which an entry point names", _UNINSTALL)
    if spec.submodule_search_locations:
        yield from _modules_in(name, os.path.dirname(spec.origin), is_deep=True)
    else:
        yield _described(name, spec.origin)


def load_module(name: str) -> Any:
    """Imports a module. The tables that one of another package declares join the schema."""
    if name.startswith("rankscope."):
        return import_module(name)
    from rankscope.model.tables import SCHEMA

    try:
        module = import_module(name)
    except Exception as error:
        raise RankscopeError(f"cannot import {name}, which an entry point names: {error!r}", _UNINSTALL) from error
    for table in getattr(module, "TABLES", ()):
        if SCHEMA.setdefault(table.name, table) is not table:
            raise RankscopeError(f"{name} declares the table {table.name}, which exists already", _UNINSTALL)
    return module


def _modules_in(package: str, folder: str, *, is_deep: bool) -> Iterator[Module]:
    with os.scandir(folder) as listed:
        entries = sorted(listed, key=lambda entry: entry.name)
    for entry in entries:
        stem, extension = os.path.splitext(entry.name)
        if extension == ".py":
            yield _described(package if stem == "__init__" else f"{package}.{stem}", entry.path)
    for entry in entries if is_deep else ():
        if entry.name.isidentifier() and entry.is_dir():
            yield from _modules_in(f"{package}.{entry.name}", entry.path, is_deep=True)


def _described(name: str, path: str) -> Module:
    with open(path, encoding="utf-8") as file:
        text = file.read()
    has_parts = any(start in text for start in _DECORATORS)  # much faster than the expression, and most have none
    declared = tuple(_declared(name, path, text)) if has_parts else ()
    assignments = _NAME.findall(text) if any(start in text for start in _NAMES) else ()
    return Module(name, declared, {key or tables: word or number for key, word, number, tables in assignments})


def _declared(module: str, path: str, text: str) -> Iterator[Declared]:
    import ast

    for match in _DECORATOR.finditer(text):
        function = _FUNCTION.search(text, match.end())
        decorator = text[match.start() + 1 : function.start() if function else None]
        try:
            call = ast.parse(decorator, mode="eval").body
            assert isinstance(call, ast.Call)
            values = tuple(map(ast.literal_eval, call.args))
            settings = {str(each.arg): ast.literal_eval(each.value) for each in call.keywords}
        except (SyntaxError, ValueError) as error:
            line = text.count("\n", 0, match.start()) + 1
            said = f"{path}:{line}: the arguments of @{match[1]} must be literals: {error}"
            raise RankscopeError(said, "write them as literals, or uninstall the package") from error
        assert function is not None
        yield Declared(match[1], module, function[1], values, settings)


def _entry_points() -> list[str]:
    """The modules that other packages name. The full look-up is slow: it is done only where one may name some."""
    if not any(map(_may_name_parts, sys.path)):
        return []
    from importlib.metadata import entry_points

    return sorted({point.value for point in entry_points(group=ENTRY_POINTS)})


def _may_name_parts(folder: str) -> bool:
    """Whether an installed package in the folder has the group of entry points. An archive may have one."""
    try:
        names = os.listdir(folder or os.curdir)
    except NotADirectoryError:
        return True
    except OSError:
        return False
    return any(_names_parts(os.path.join(folder, name)) for name in names if name.endswith((".dist-info", ".egg-info")))


def _names_parts(installed: str) -> bool:
    try:
        with open(os.path.join(installed, "entry_points.txt"), encoding="utf-8") as file:
            return ENTRY_POINTS in file.read()
    except OSError:
        return False
