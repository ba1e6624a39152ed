"""Text, names and paths as SQL writes them."""

from __future__ import annotations


def quote_text(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def quote_path(path: str) -> str:
    return quote_text(as_pattern(path))


def as_pattern(path: str) -> str:
    """A path for read_parquet and its like, which take some characters for patterns."""
    return "".join(f"[{char}]" if char in "[*?" else char for char in path)


def quote_name(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
