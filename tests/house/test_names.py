"""Variables are nouns that say what they hold (docs/style.md): a participle or an adjective does not."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import rankscope

SOURCE = Path(rankscope.__file__).parent
NOT_NOUNS = {"found", "told", "own", "got_it", "stuff", "tmp", "foo"}


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


def _lines_of_fields(tree: ast.AST) -> set[int]:
    """A field has its record as its noun: `difference.own`."""
    return {
        statement.lineno
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef)
        for statement in node.body
        if isinstance(statement, ast.AnnAssign)
    }


def test_variables_are_nouns() -> None:
    wrong = []
    for path in sorted(SOURCE.rglob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        fields = _lines_of_fields(tree)
        wrong += [
            f"{path.relative_to(SOURCE)}:{line}: {name}"
            for line, name in bound_names(tree)
            if name in NOT_NOUNS and not (name == "own" and line in fields)
        ]
    assert not wrong, "name what these hold:\n" + "\n".join(wrong)
