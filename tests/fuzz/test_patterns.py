"""Every regular expression of the source takes time in proportion to its text, on the worst texts there are for it."""

from __future__ import annotations

import ast
import importlib
import re
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from fuzz.worst_cases import worst_cases

sys.path.append(str(Path(__file__).parents[1] / "house"))
from source_tree import SourceFile, source_files

N_FEW, N_SHORT, N_LONG = 60, 250, 2_000  # rounds of what is repeated
WORTH_A_LOOK_S = 0.01  # a linear expression takes less than a millisecond for the long text
MOST_GROWTH = 24  # the long text is 8 times the short one: linear is 8, quadratic 64
ROOMS = ("read", "live", "model")  # where text that nobody has bounded yet is looked at
METHODS = {"match", "fullmatch", "search", "sub", "subn", "split", "findall", "finditer"}


@dataclass(frozen=True)
class Used:
    where: str
    pattern: re.Pattern[Any]
    methods: tuple[str, ...]


@cache
def all_patterns() -> tuple[Used, ...]:
    """Those that a module holds, however deep, and those that are written where they are used."""
    used: dict[tuple[Any, int], tuple[str, re.Pattern[Any], set[str]]] = {}
    for source in source_files():
        if source.room not in ROOMS:
            continue
        module = importlib.import_module(".".join(source.module_parts))
        for name, pattern, methods in (*_held(module, source), *_written(source)):
            key = pattern.pattern, pattern.flags
            used.setdefault(key, (f"{source.name}: {name}", pattern, set()))[2].update(methods)
    return tuple(
        Used(where, pattern, tuple(sorted(methods or {"search"}))) for where, pattern, methods in used.values()
    )


def _held(module: Any, source: SourceFile) -> Iterator[tuple[str, re.Pattern[Any], set[str]]]:
    calls: dict[str, set[str]] = {}
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Attribute) and node.attr in METHODS and isinstance(node.value, ast.Name):
            calls.setdefault(node.value.id, set()).add(node.attr)
    for name, value in vars(module).items():
        for pattern in _patterns_in(value, depth=4):
            yield name, pattern, calls.get(name, set())


def _patterns_in(value: Any, depth: int) -> Iterator[re.Pattern[Any]]:
    if isinstance(value, re.Pattern):
        yield value
    elif depth and isinstance(value, (list, tuple, set, frozenset, dict)):
        for item in value.values() if isinstance(value, dict) else value:
            yield from _patterns_in(item, depth - 1)
    elif depth and hasattr(value, "__dict__") and type(value).__module__.startswith("rankscope"):
        for item in vars(value).values():
            yield from _patterns_in(item, depth - 1)


def _written(source: SourceFile) -> Iterator[tuple[str, re.Pattern[Any], set[str]]]:
    for node in ast.walk(source.tree):
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute) or not node.args:
            continue
        if not (isinstance(node.func.value, ast.Name) and node.func.value.id == "re" and node.func.attr in METHODS):
            continue
        first = node.args[0]
        if isinstance(first, ast.Constant) and isinstance(first.value, (str, bytes)):
            yield f"line {node.lineno}", re.compile(first.value), {node.func.attr}


def _seconds(used: Used, method: str, text: Any) -> float:
    call = getattr(used.pattern, method)
    arguments = (type(text)(), text) if method in ("sub", "subn") else (text,)
    began = time.thread_time()
    result = call(*arguments)
    if method == "finditer":
        list(result)
    return time.thread_time() - began


def slow_cases(used: Used) -> list[str]:
    """Texts that grow eightfold and take far more than eight times as long, by the method that the source uses."""
    return [
        f"{method}({before[:40]!r} + {repeated[:40]!r} * n + {after!r})"
        for before, repeated, after in worst_cases(used.pattern)
        for method in used.methods
        if _grows(used, method, (before, repeated, after))
    ]


def _grows(used: Used, method: str, case: tuple[str, str, str]) -> bool:
    texts = [_text(used, case, n) for n in (N_FEW, N_SHORT, N_LONG)]
    for text in texts[:2]:  # a cubic one would take minutes for the long text
        if _seconds(used, method, text) > WORTH_A_LOOK_S and _least(used, method, text) > WORTH_A_LOOK_S:
            return True
    if _seconds(used, method, texts[2]) < WORTH_A_LOOK_S:
        return False
    long = _least(used, method, texts[2])
    return long > WORTH_A_LOOK_S and long > MOST_GROWTH * _least(used, method, texts[1])


def _text(used: Used, case: tuple[str, str, str], n_rounds: int) -> Any:
    before, repeated, after = case
    text = before + repeated * n_rounds + after
    return text.encode("latin-1", "replace") if isinstance(used.pattern.pattern, bytes) else text


def _least(used: Used, method: str, text: Any) -> float:
    """Of a few tries: other programs take time as well."""
    return min(_seconds(used, method, text) for _ in range(4))


@pytest.mark.slow
@pytest.mark.parametrize("used", all_patterns(), ids=lambda used: used.where)
def test_a_pattern_takes_time_in_proportion_to_its_text(used: Used) -> None:
    assert slow_cases(used) == []
