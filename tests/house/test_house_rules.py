"""The ceilings and manners that keep the source readable, and the rooms below the command line silent."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from source_tree import SourceFile, functions, on_every_file, on_files

MAX_FILE_LINES = 400
MAX_FUNCTION_LINES = 60
MAX_PARAMETERS = 6
VAGUE_NAMES = {"utils", "util", "common", "helpers", "helper", "base", "misc", "manager"}
UNFINISHED = re.compile(r"\b(TODO|FIXME|XXX|HACK|NotImplementedError|NotImplemented)\b")
TALKS_TO_THE_USER = ("cli", "commands", "__main__")
READS_ENVIRONMENT = (*TALKS_TO_THE_USER, "collect")

PRINTS = {"print", "input", "sys.stdout", "sys.stderr", "sys.__stdout__", "sys.__stderr__"}
EXITS = {"exit", "quit", "SystemExit", "sys.exit", "os._exit", "os.abort"}
ENVIRONMENT = {"os.environ", "os.environb", "os.getenv", "os.getenvb", "os.putenv"}


def names_used(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """(line, name) of every plain name, every `module.attribute` and every `from module import attribute`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Name):
            yield node.lineno, node.id
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            yield node.lineno, f"{node.value.id}.{node.attr}"
        elif isinstance(node, ast.ImportFrom):
            yield from ((node.lineno, f"{node.module}.{alias.name}") for alias in node.names)


def n_code_lines(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Length without the docstring: a rule's manual page is prose, not complexity."""
    last = function.end_lineno or function.lineno
    n_doc_lines = 0
    if ast.get_docstring(function) is not None:
        doc = function.body[0]
        n_doc_lines = (doc.end_lineno or doc.lineno) - doc.lineno + 1
    return last - function.lineno + 1 - n_doc_lines


@on_every_file
def test_files_stay_short(source: SourceFile) -> None:
    assert len(source.text.splitlines()) <= MAX_FILE_LINES


@on_every_file
def test_functions_stay_short(source: SourceFile) -> None:
    lengths = {f"{function.name}, line {function.lineno}": n_code_lines(function) for function in functions(source)}
    assert {name: length for name, length in lengths.items() if length > MAX_FUNCTION_LINES} == {}


@on_every_file
def test_functions_take_few_parameters(source: SourceFile) -> None:
    counts = {}
    for function in functions(source):
        arguments = function.args
        names = [argument.arg for argument in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)]
        counts[f"{function.name}, line {function.lineno}"] = len(
            [name for name in names if name not in ("self", "cls")]
        )
    assert {name: count for name, count in counts.items() if count > MAX_PARAMETERS} == {}


@on_every_file
def test_nothing_is_left_unfinished(source: SourceFile) -> None:
    lines = enumerate(source.text.splitlines(), start=1)
    assert [f"line {number}: {line.strip()}" for number, line in lines if UNFINISHED.search(line)] == []


@on_every_file
def test_module_names_say_what_is_inside(source: SourceFile) -> None:
    assert not VAGUE_NAMES & set(source.module_parts)


@on_every_file
def test_annotations_are_not_evaluated_at_start_up(source: SourceFile) -> None:
    if any(functions(source)):
        assert "from __future__ import annotations\n" in source.text


@on_files(lambda source: source.room not in TALKS_TO_THE_USER)
def test_only_commands_print_and_exit(source: SourceFile) -> None:
    # A job may end by SystemExit, which the collector looks for and never raises.
    exempt = {"os._exit", "SystemExit"} if source.room == "collect" else set()
    forbidden = (PRINTS | EXITS) - exempt
    assert [(line, name) for line, name in names_used(source.tree) if name in forbidden] == []


@on_files(lambda source: source.room not in READS_ENVIRONMENT)
def test_only_commands_read_the_environment(source: SourceFile) -> None:
    assert [(line, name) for line, name in names_used(source.tree) if name in ENVIRONMENT] == []
