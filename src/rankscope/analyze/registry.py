"""Rules: one function each, which says its code and name once; its docstring is its manual page."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import wraps
from typing import Generic, NamedTuple, TypeVar

import msgspec

from rankscope.errors import UsageError
from rankscope.model.finding import Finding
from rankscope.model.parts import Catalogue, Declared, Entry, declared_parts
from rankscope.model.tables import Trace


class Effect(NamedTuple):
    """A finding that merely follows from another: counted there, listed only on request."""

    finding: Finding


class Skipped(NamedTuple):
    """Yielded by a rule that finds, on a closer look, nothing in the capture that it could check."""

    why: str


Result = Finding | Effect | Skipped
RuleFunction = Callable[[Trace], Iterator[Result]]
Function = TypeVar("Function")


@dataclass(frozen=True)
class OnUse(Generic[Function]):
    """A part that is imported on use: a capture without the tables that it needs never loads it."""

    part: Declared

    @property
    def function(self) -> Function:
        function: Function = self.part.load()
        return function

    @property
    def doc(self) -> str:
        return inspect.getdoc(self.function) or ""

    @property
    def summary(self) -> str:
        return self.doc.partition("\n")[0]


@dataclass(frozen=True)
class Rule(OnUse[RuleFunction]):
    code: str
    name: str
    needs: tuple[str, ...]

    def bound(self, finding: Finding) -> Finding:
        """The finding with the code and the name of this rule."""
        return msgspec.structs.replace(finding, code=self.code, rule=self.name)


def _found_rules() -> Iterator[Entry[Rule]]:
    for part in declared_parts("rule", "analyze"):
        rule_ = Rule(part, *part.values, **part.settings)
        yield rule_.code, part.module, rule_


RULES: Catalogue[Rule] = Catalogue(_found_rules)


class Meanings(Mapping[str, str]):
    """What each rule finds, in one sentence, by its code. Only the rules that are asked for are loaded."""

    def __getitem__(self, code: str) -> str:
        return RULES[code].summary

    def __contains__(self, code: object) -> bool:
        return code in RULES

    def __iter__(self) -> Iterator[str]:
        return iter(RULES)

    def __len__(self) -> int:
        return len(RULES)


def rule(code: str, name: str, *, needs: tuple[str, ...]) -> Callable[[RuleFunction], RuleFunction]:
    """Says that a function is a rule: its findings get the code and the name.

    It is not called, and listed as not checked, when a table that it needs is absent. The arguments are literals.
    """

    def bind(function: RuleFunction) -> RuleFunction:
        @wraps(function)
        def bound(trace: Trace) -> Iterator[Result]:
            for result in function(trace):
                if isinstance(result, Skipped):
                    yield result
                elif isinstance(result, Effect):
                    yield Effect(msgspec.structs.replace(result.finding, code=code, rule=name))
                else:
                    yield msgspec.structs.replace(result, code=code, rule=name)

        return bound

    return bind


def find_rule(wanted: str) -> Rule:
    """By code or name, in any case."""
    import difflib

    by_word = {word.lower(): rule for rule in RULES.values() for word in (rule.code, rule.name)}
    if wanted.lower() in by_word:
        return by_word[wanted.lower()]
    close = [by_word[word] for word in difflib.get_close_matches(wanted.lower(), by_word, n=1)]
    hint = f"did you mean {close[0].code} ({close[0].name})?" if close else "`rankscope explain` lists all rules"
    raise UsageError(f"no rule is called {wanted}", hint)
