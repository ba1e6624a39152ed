"""Who may import whom. A room that reaches into another one can no longer be tested, or replaced, alone."""

from __future__ import annotations

import ast
import sys
from graphlib import CycleError, TopologicalSorter

import pytest
from source_tree import PACKAGE, ROOT, SourceFile, imported_modules, on_every_file, source_files

STAGES = {"errors", "model", "read", "analyze", "render", "collect", "simulate", "pipeline", "scale", "desync", "live"}
MAY_IMPORT: dict[str, set[str]] = {
    "errors": set(),
    "model": {"errors"},
    "read": {"model", "errors"},
    "analyze": {"model", "errors"},
    "render": {"model", "errors"},
    "collect": {"errors"},
    "simulate": {"errors"},
    "desync": {"collect"},
    "live": {"read", "collect", "model", "errors"},
    "pipeline": {"read", "analyze", "model", "errors"},
    "scale": {"read", "analyze", "model", "errors"},
    "commands": STAGES | {"cli"},
    "cli": STAGES | {"commands"},
    "__init__": STAGES,
    "__main__": {"cli"},
}
# A report can be printed and shown in a notebook. Imported inside the method: the model loads without a renderer.
LATE = {"model": ("rankscope.render.notebook", "rankscope.render.terminal")}
STANDARD_LIBRARY_ONLY = ("collect", "simulate", "desync")


def room_of_import(name: str) -> str | None:
    """The room that an imported name lies in; None for other packages and for names like rankscope.__version__."""
    package, _, rest = name.partition(".")
    room = rest.partition(".")[0]
    is_room = (PACKAGE / room).is_dir() or (PACKAGE / f"{room}.py").is_file()
    return room if package == "rankscope" and room and is_room else None


def module_level(source: SourceFile) -> ast.AST:
    """The file without its functions and classes."""
    return ast.Module([node for node in source.tree.body if not isinstance(node, ast.FunctionDef | ast.ClassDef)], [])


NEWER_STANDARD_LIBRARY = {"compression"}  # Python 3.14


def third_party(source: SourceFile, tree: ast.AST | None = None) -> list[tuple[int, str]]:
    found = ((line, name.partition(".")[0]) for line, name in imported_modules(source, tree))
    known = {*sys.stdlib_module_names, *NEWER_STANDARD_LIBRARY, "rankscope"}
    return [(line, top) for line, top in found if top not in known]


IMPORTED_AS = {"protobuf": "google"}


def declared_dependencies() -> set[str]:
    tomllib = pytest.importorskip("tomllib", reason="needs Python 3.11 to read pyproject.toml")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    wanted = [
        *project["dependencies"],
        *(line for lines in project.get("optional-dependencies", {}).values() for line in lines),
    ]
    names = {"".join(char if char.isalnum() or char == "_" else " " for char in line).split()[0] for line in wanted}
    return {IMPORTED_AS.get(name, name) for name in names}


def test_every_room_is_in_the_table() -> None:
    assert {source.room for source in source_files()} <= set(MAY_IMPORT)


@on_every_file
def test_rooms_import_only_what_the_table_allows(source: SourceFile) -> None:
    allowed = MAY_IMPORT[source.room] | {source.room}
    at_once = {name for _, name in imported_modules(source, module_level(source))}
    late = [name for name in LATE.get(source.room, ()) if name not in at_once]
    rooms = (
        (line, name, room_of_import(name))
        for line, name in imported_modules(source)
        if not name.startswith(tuple(late))
    )
    assert [f"line {line}: {name}" for line, name, room in rooms if room and room not in allowed] == []


def test_rooms_of_analyze_do_not_need_each_other() -> None:
    """What two questions share lies in one of them, or above both: each room can be read after those it imports."""
    needs: dict[str, set[str]] = {}
    for source in source_files():
        room = source.module_parts[2:3]
        if source.room == "analyze" and len(source.module_parts) > 3:
            names = (name.split(".") for _, name in imported_modules(source))
            inner = {parts[2] for parts in names if parts[:2] == ["rankscope", "analyze"] and len(parts) > 3}
            needs.setdefault(room[0], set()).update(inner - {room[0]})
    rooms = {room: {other for other in others if other in needs} for room, others in needs.items()}
    try:
        TopologicalSorter(rooms).prepare()
    except CycleError as error:
        pytest.fail(f"rooms that import each other: {' -> '.join(error.args[1])}")


@on_every_file
def test_torch_is_imported_by_the_collector_alone(source: SourceFile) -> None:
    # In the collector it must wait for a call: importing the collector may not start torch.
    tree = module_level(source) if source.room == "collect" else source.tree
    assert [line for line, top in third_party(source, tree) if top == "torch"] == []


@on_every_file
def test_dependencies_are_declared(source: SourceFile) -> None:
    allowed = {"torch"} if source.room == "collect" else set()
    if source.room not in STANDARD_LIBRARY_ONLY:
        allowed |= declared_dependencies()
    assert [(line, top) for line, top in third_party(source) if top not in allowed] == []
