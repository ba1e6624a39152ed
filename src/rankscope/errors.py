"""Every error that rankscope raises on purpose.

RankscopeError              what failed, and a hint that says what to do next
├── InputError              nothing usable at the given paths: the command cannot start
├── BadFileError            one file is unreadable; the others are still read (becomes a D9xx finding)
├── UsageError              the request itself makes no sense (unknown code, bad SQL, ...)
└── OutputError             the result cannot be written (exists already, no permission, ...)
"""

from __future__ import annotations

import sys
from collections.abc import Iterable


class RankscopeError(Exception):
    """A failure that the user can act on: one line of what failed and one of what to do."""

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        if hint and sys.version_info >= (3, 11):
            self.add_note(f"fix: {hint}")  # a traceback shows what to do as well

    def __reduce__(self) -> tuple[type[RankscopeError], tuple[str, str]]:
        # Errors travel from reading processes to the main one, so both parts must survive pickling.
        return type(self), (self.message, self.hint)


class InputError(RankscopeError):
    """Nothing at the given paths can be read."""


class BadFileError(RankscopeError):
    """One file is empty, cut short, foreign or malicious."""


class UsageError(RankscopeError):
    """The request cannot be carried out as it was put."""


class OutputError(RankscopeError):
    """The result cannot be written where it was asked for."""


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """`did you mean X?`, or nothing where no known word is close. A word is never offered in place of itself."""
    import difflib

    by_folded = {name.casefold(): name for name in known if name != word}
    close = difflib.get_close_matches(word.casefold(), by_folded, n=1)
    return f"did you mean {by_folded[close[0]]}?" if close else ""
