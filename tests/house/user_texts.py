"""Every text that a user can see, with where it is written: literals of the package, manual pages, scripts, Markdown.

A literal counts as user-visible when it reads as prose, that is, when it has a space in it. Docstrings do not, except
those that the program prints or that become documentation; neither does SQL.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

from source_tree import PACKAGE, ROOT, SourceFile, source_files

HOLE = "{}"  # where an f-string puts a value
PRINTED_DOCSTRINGS = {"rule", "metric"}  # decorators: `rankscope explain` and the generated pages show these
DOCUMENTED_CLASSES = {"model/finding.py"}  # the JSON schema quotes their docstrings
SQL = re.compile(
    r"\bselect\b.*\bfrom\b|\binsert into\b|\bcreate (?:or replace )?(?:temp )?(?:table|view)\b", re.S | re.I
)
SCRIPT_LITERAL = re.compile(r'"((?:[^"\\\n]|\\.)*)"|\'((?:[^\'\\\n]|\\.)*)\'|`((?:[^`\\]|\\.)*)`')
SCRIPT_COMMENT = re.compile(r"(?m)(?<![:\"'`])//.*$|/\*.*?\*/", re.S)
PAGES = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "docs/**/*.md", "bench/*.md")


class UserText(NamedTuple):
    path: str  # below the repository
    line: int
    text: str


@cache
def user_texts() -> tuple[UserText, ...]:
    return (*_literals(), *_script_literals(), *_pages(), *_snapshots())


def literals_of(source: SourceFile) -> Iterator[tuple[int, str]]:
    """(line, text) of the user-visible literals of a module."""
    hidden = {id(node) for node in _hidden_docstrings(source)}
    for node in ast.walk(source.tree):
        if isinstance(node, ast.JoinedStr):
            hidden.update(id(part) for part in node.values)
    for node in ast.walk(source.tree):
        if id(node) in hidden:
            continue
        if isinstance(node, ast.JoinedStr):
            text = "".join(str(part.value) if isinstance(part, ast.Constant) else HOLE for part in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            text = node.value
        else:
            continue
        if " " in text.strip() and not SQL.search(text):
            yield node.lineno, text


def _hidden_docstrings(source: SourceFile) -> Iterator[ast.expr]:
    for node in ast.walk(source.tree):
        if not isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        if ast.get_docstring(node) is None or _is_printed(node, source):
            continue
        first = node.body[0]
        assert isinstance(first, ast.Expr)
        yield first.value


def _is_printed(node: ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef, source: SourceFile) -> bool:
    if isinstance(node, ast.ClassDef):
        return source.name in DOCUMENTED_CLASSES
    if isinstance(node, ast.Module):
        return False
    calls = (each.func for each in node.decorator_list if isinstance(each, ast.Call))
    return any(isinstance(name, ast.Name) and name.id in PRINTED_DOCSTRINGS for name in calls)


def _literals() -> Iterator[UserText]:
    for source in source_files():
        for line, text in literals_of(source):
            yield UserText(_below_root(source.path), line, text)


def _script_literals() -> Iterator[UserText]:
    for path in sorted((PACKAGE / "render" / "assets").glob("*.js")):
        script = SCRIPT_COMMENT.sub(
            lambda comment: "\n" * comment.group().count("\n"), path.read_text(encoding="utf-8")
        )
        for match in SCRIPT_LITERAL.finditer(script):
            text = next(group for group in match.groups() if group is not None)
            if " " in text.strip():
                yield UserText(_below_root(path), script.count("\n", 0, match.start()) + 1, text)


def _pages() -> Iterator[UserText]:
    for pattern in PAGES:
        for path in sorted(ROOT.glob(pattern)):
            yield from _lines(path)


def _snapshots() -> Iterator[UserText]:
    """What the rules print: their texts are put together at run time, so literals alone do not show all of them."""
    for path in sorted((ROOT / "tests" / "render" / "snapshots").glob("every_rule*.txt")):
        yield from _lines(path)


def _lines(path: Path) -> Iterator[UserText]:
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        yield UserText(_below_root(path), number, line)


def _below_root(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()
