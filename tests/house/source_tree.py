"""The package's source as syntax trees: what the tests over the house itself look at."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "src" / "rankscope"


@dataclass(frozen=True)
class SourceFile:
    path: Path
    text: str
    tree: ast.Module

    @property
    def name(self) -> str:
        """Path below the package, as shown in a failing test."""
        return self.path.relative_to(PACKAGE).as_posix()

    @property
    def room(self) -> str:
        """The part of the house that the file belongs to: `read`, `model`, ..., or the name of a top-level module."""
        return self.path.relative_to(PACKAGE).with_suffix("").parts[0]

    @property
    def module_parts(self) -> tuple[str, ...]:
        parts = ("rankscope", *self.path.relative_to(PACKAGE).with_suffix("").parts)
        return parts[:-1] if parts[-1] == "__init__" else parts


@cache
def source_files() -> tuple[SourceFile, ...]:
    """Every module of the package but the example job of the simulator, which is data: shown, never imported."""
    paths = sorted(path for path in PACKAGE.rglob("*.py") if "example" not in path.relative_to(PACKAGE).parts)
    texts = {path: path.read_text(encoding="utf-8") for path in paths}
    return tuple(SourceFile(path, text, ast.parse(text, str(path))) for path, text in texts.items())


def imported_modules(source: SourceFile, tree: ast.AST | None = None) -> Iterator[tuple[int, str]]:
    """(line, dotted name) of everything imported; `from a import b` gives a.b, relative imports are resolved."""
    for node in ast.walk(tree or source.tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                package = source.module_parts if source.path.name == "__init__.py" else source.module_parts[:-1]
                kept = package[: len(package) - node.level + 1]
                base = ".".join((*kept, base) if base else kept)
            for alias in node.names:
                yield node.lineno, f"{base}.{alias.name}"


def functions(source: SourceFile) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for node in ast.walk(source.tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


def on_files(
    is_checked: Callable[[SourceFile], bool] = lambda source: True,
) -> Callable[[Callable[[SourceFile], None]], Callable[[], None]]:
    """One test for all files, as thousands of tests would take longer than what they check; all offenders are named."""

    def made(check: Callable[[SourceFile], None]) -> Callable[[], None]:
        def test() -> None:
            problems = {}
            for source in filter(is_checked, source_files()):
                try:
                    check(source)
                except AssertionError as error:
                    problems[source.name] = str(error)
            assert not problems, "\n".join(f"{name}: {problem}" for name, problem in problems.items())

        test.__name__ = check.__name__
        return test

    return made


on_every_file = on_files()
