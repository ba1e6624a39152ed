"""Rules: one function each, registered by code and name; its docstring is its manual page."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from rankscope.errors import UsageError
from rankscope.model.finding import Finding
from rankscope.model.tables import Trace


class Effect(NamedTuple):
    """A finding that merely follows from another: counted there, listed only on request."""

    finding: Finding


class Skipped(NamedTuple):
    """Yielded by a rule that finds, on a closer look, nothing in the capture that it could check."""

    why: str


RuleFunction = Callable[[Trace], Iterator["Finding | Effect | Skipped"]]


@dataclass(frozen=True)
class Rule:
    code: str
    name: str
    needs: tuple[str, ...]
    doc: str
    function: RuleFunction


RULES: dict[str, Rule] = {}


def rule(code: str, name: str, *, needs: tuple[str, ...]) -> Callable[[RuleFunction], RuleFunction]:
    """Registers a function that yields findings. It is skipped, and listed as such, when a table it needs is absent."""

    def register(function: RuleFunction) -> RuleFunction:
        if code in RULES:
            raise ValueError(f"code {code} is used twice")
        RULES[code] = Rule(code, name, needs, inspect.getdoc(function) or "", function)
        return function

    return register


def find_rule(wanted: str) -> Rule:
    """By code or name, in any case."""
    import difflib

    by_word = {word.lower(): rule for rule in RULES.values() for word in (rule.code, rule.name)}
    if wanted.lower() in by_word:
        return by_word[wanted.lower()]
    close = [by_word[word] for word in difflib.get_close_matches(wanted.lower(), by_word, n=1)]
    hint = f"did you mean {close[0].code} ({close[0].name})?" if close else "`rankscope explain` lists all rules"
    raise UsageError(f"no rule is called {wanted}", hint)
