"""Text from a trace, made harmless: it may hold escape sequences that take over the terminal which shows it."""

from __future__ import annotations

import re

_STYLE = re.compile(r"(\x1b\[[0-9;]{0,8}m|[\n\t])")


def escape(text: str) -> str:
    """Shows what does not print (control, direction and format characters, lone surrogates) as \\x1b or \\u202e."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else _escape_char(char) for char in text)


def harmless(line: str) -> str:
    """A line for a terminal, which keeps colors, tabs and line breaks and nothing else that does not print."""
    if line.isprintable():
        return line
    parts = _STYLE.split(line)
    parts[::2] = map(escape, parts[::2])
    return "".join(parts)


def cut_short(said: str, n_chars: int) -> str:
    """Names in a trace may have no end: what is longer ends with three dots."""
    return said if len(said) <= n_chars else said[: n_chars - 1] + "…"


def _escape_char(char: str) -> str:
    return char.encode("unicode_escape").decode("ascii")
