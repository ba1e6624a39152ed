"""What Ctrl-C leaves behind: collected on the way out, so that the user learns what was done and what was kept."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

NOTHING_KEPT = "nothing was written"


class Account(NamedTuple):
    """The only argument of a KeyboardInterrupt that has passed through a command's work."""

    doing: str = ""
    kept: str = ""


@contextmanager
def keeps(what: Callable[[], str]) -> Iterator[None]:
    """If the block is interrupted, `what` says what it leaves; empty: nothing."""
    try:
        yield
    except KeyboardInterrupt as stop:
        note(stop, kept=what())
        raise


def note(stop: BaseException, doing: str = "", kept: str = "") -> None:
    """Adds to what is known; what the innermost block said about its work stays."""
    known = account(stop)
    stop.args = (Account(known.doing or doing, "; ".join(filter(None, (known.kept, kept)))),)


def account(stop: BaseException) -> Account:
    return stop.args[0] if stop.args and isinstance(stop.args[0], Account) else Account()


def interruption(stop: KeyboardInterrupt) -> str:
    """One line for the user."""
    doing, kept = account(stop)
    return f"interrupted{f' while {doing}' if doing else ''}: {kept or NOTHING_KEPT}"
