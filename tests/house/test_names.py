"""Variables are nouns that say what they hold (docs/style.md): a participle or an adjective does not."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import rankscope

SOURCE = Path(rankscope.__file__).parent
NOT_NOUNS = {"found", "told", "own", "got_it", "stuff", "tmp", "foo"}
# Rooms in which `own` still has to become a noun; take a room out when it is done.
NOT_YET = (
    "analyze/attempts.py",
    "analyze/collectives/",
    "analyze/comm/",
    "analyze/ending/",
    "analyze/hangs/",
    "analyze/late/",
    "analyze/link/",
    "analyze/log_evidence.py",
    "analyze/logs/",
    "read/job_log",
)


def bound_names(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Line and name of every variable and parameter."""
    for node in ast.walk(tree):
        if isinstance(node, ast.arg):
            yield node.lineno, node.arg
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.lineno, node.id


@pytest.mark.parametrize("source", ["found = 1", "def f(told): ...", "[told for told in ()]", "if found := g(): ..."])
def test_the_check_sees_every_kind_of_variable(source: str) -> None:
    assert {name for _, name in bound_names(ast.parse(source))} & NOT_NOUNS


def _is_field_or_later(path: Path, line: int) -> bool:
    """A field has its record as its noun: `difference.own`."""
    if path.relative_to(SOURCE).as_posix().startswith(NOT_YET):
        return True
    return line in {
        statement.lineno
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.ClassDef)
        for statement in node.body
        if isinstance(statement, ast.AnnAssign)
    }


def test_rooms_that_are_done_are_not_listed() -> None:
    for room in NOT_YET:
        files = [path for path in SOURCE.rglob("*.py") if path.relative_to(SOURCE).as_posix().startswith(room)]
        names = {name for path in files for _, name in bound_names(ast.parse(path.read_text(encoding="utf-8")))}
        assert "own" in names, f"{room} is done: take it out of NOT_YET"


def test_variables_are_nouns() -> None:
    wrong = [
        f"{path.relative_to(SOURCE)}:{line}: {name}"
        for path in sorted(SOURCE.rglob("*.py"))
        for line, name in bound_names(ast.parse(path.read_text(encoding="utf-8")))
        if name in NOT_NOUNS and not (name == "own" and _is_field_or_later(path, line))
    ]
    assert not wrong, "name what these hold:\n" + "\n".join(wrong)
