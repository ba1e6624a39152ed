"""What a user may see names nothing that an installed package lacks: no page of docs/, nothing of bench/, no make."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import rankscope

SOURCE = Path(rankscope.__path__[0])
_OUR_FILES = re.compile(
    r"(?<![\w/.])(docs|bench|tests|tools)/\w?|\bmake (docs|demo|test|check|bench|accuracy|screenshots)\b"
)
# Of rules, metrics and tables the docstring is what `explain`, `metrics` and `tables` print.
_PRINTED_DOCSTRINGS = {"rule", "metric", "table"}


def strings(path: Path) -> Iterator[tuple[int, str]]:
    """Every string of a module but docstrings that nobody prints."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    silent = {
        id(node.body[0].value)
        for node in ast.walk(tree)
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef))
        and node.body
        and isinstance(node.body[0], ast.Expr)
        and not _PRINTED_DOCSTRINGS & {_name(each) for each in getattr(node, "decorator_list", ())}
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in silent:
            yield node.lineno, node.value


def _name(decorator: ast.expr) -> str:
    called = decorator.func if isinstance(decorator, ast.Call) else decorator
    return called.id if isinstance(called, ast.Name) else ""


def test_no_text_sends_the_user_to_a_file_that_is_not_installed() -> None:
    wrong = [
        f"{path.relative_to(SOURCE)}:{line}: {text.strip()[:100]!r}"
        for path in sorted(SOURCE.rglob("*.py"))
        for line, text in strings(path)
        if _OUR_FILES.search(text)
    ]
    assert not wrong, "\n".join(["give rankscope explain, rankscope help or a command instead:", *wrong])


def test_the_search_sees_what_it_is_for(tmp_path: Path) -> None:
    module = tmp_path / "module.py"
    module.write_text(
        '"""docs/silent"""\nhint = f"see docs/sources/{name}.md"\n'
        '@rule("H1", "x")\ndef f():\n    """Run make docs."""\n'
        'def g():\n    """docs/silent"""\n'
    )
    assert [line for line, text in strings(module) if _OUR_FILES.search(text)] == [2, 5]
