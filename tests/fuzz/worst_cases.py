"""Texts that take a regular expression the longest, made from the expression itself."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from re import _constants as sre  # type: ignore[attr-defined]  # the only description of what an expression matches
from re import _parser as parser  # type: ignore[attr-defined]
from typing import Any

REPEATS = (sre.MAX_REPEAT, sre.MIN_REPEAT, sre.POSSESSIVE_REPEAT)
LONG = 64  # repeats that may be longer than this count as endless
NEVER = "\x01"  # what no expression of the source asks for


def worst_cases(pattern: re.Pattern[Any]) -> list[tuple[str, str, str]]:
    """(before, repeated, after): a text is before + repeated * n + after, and grows with n."""
    text = pattern.pattern if isinstance(pattern.pattern, str) else pattern.pattern.decode("latin-1")
    tree = parser.parse(text, pattern.flags & ~re.UNICODE if isinstance(pattern.pattern, bytes) else pattern.flags)
    found: dict[tuple[str, str, str], None] = {}
    for before, body, after in _repeats(list(tree), "", ""):
        for first, pump in (("", body), (before, body), ("", before + body), ("", after + body)):
            if pump:
                found[first, pump, NEVER] = None
    return list(found)


def _repeats(items: Sequence[Any], before: str, after: str) -> Iterator[tuple[str, str, str]]:
    """Of every repeat in the tree: an example of what comes before it, of one round, and of what follows."""
    for place, (kind, details) in enumerate(items):
        ahead, behind = before + _example(items[:place]), _example(items[place + 1 :]) + after
        if kind in REPEATS:
            _, high, body = details
            if high == sre.MAXREPEAT or high > LONG:
                for round_ in _examples(body):
                    yield ahead, round_, behind
            yield from _repeats(list(body), ahead, behind)
        elif kind is sre.SUBPATTERN:
            yield from _repeats(list(details[-1]), ahead, behind)
        elif kind is sre.BRANCH:
            for branch in details[1]:
                yield from _repeats(list(branch), ahead, behind)
        elif kind in (sre.ASSERT, sre.ASSERT_NOT):
            yield from _repeats(list(details[1]), ahead, "")


def _examples(items: Sequence[Any]) -> list[str]:
    """A few texts that the items match: one per branch of theirs, or per kind of character."""
    items = list(items)
    if len(items) == 1 and items[0][0] is sre.BRANCH:
        return [_example(branch) for branch in items[0][1][1]]
    if len(items) == 1 and items[0][0] is sre.SUBPATTERN:
        return _examples(items[0][1][-1])
    if len(items) == 1 and items[0][0] in (sre.IN, sre.ANY, sre.NOT_LITERAL):
        return list(dict.fromkeys(letter for letter in "a0 \t.-/\"'\\:,([{#_" if _accepts(items[0], letter)))[:8]
    return [_example(items)]


def _example(items: Sequence[Any]) -> str:
    return "".join(_one(kind, details) for kind, details in items)


def _one(kind: Any, details: Any) -> str:
    if kind is sre.LITERAL:
        return chr(details)
    if kind in (sre.ANY, sre.NOT_LITERAL, sre.IN):
        return next((letter for letter in "a0 .-/:_\n\t[](){}'\"\\" if _accepts((kind, details), letter)), "a")
    if kind in REPEATS:
        return str(_example(list(details[2])) * max(details[0], 1))
    if kind is sre.SUBPATTERN:
        return _example(list(details[-1]))
    if kind is sre.BRANCH:
        return _example(list(details[1][0]))
    return ""


def _accepts(item: tuple[Any, Any], letter: str) -> bool:
    kind, details = item
    if kind is sre.ANY:
        return letter != "\n"
    if kind is sre.NOT_LITERAL:
        return letter != chr(details)
    compiled = re.compile(_class_text(details), re.DOTALL)
    return compiled.fullmatch(letter) is not None


_CATEGORIES = {
    sre.CATEGORY_DIGIT: r"\d",
    sre.CATEGORY_NOT_DIGIT: r"\D",
    sre.CATEGORY_SPACE: r"\s",
    sre.CATEGORY_NOT_SPACE: r"\S",
    sre.CATEGORY_WORD: r"\w",
    sre.CATEGORY_NOT_WORD: r"\W",
}


def _class_text(details: Sequence[tuple[Any, Any]]) -> str:
    parts = []
    for kind, value in details:
        if kind is sre.NEGATE:
            parts.append("^")
        elif kind is sre.LITERAL:
            parts.append(re.escape(chr(value)))
        elif kind is sre.RANGE:
            parts.append(f"{re.escape(chr(value[0]))}-{re.escape(chr(value[1]))}")
        else:
            parts.append(_CATEGORIES[value])
    return f"[{''.join(parts)}]"
