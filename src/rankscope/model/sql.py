"""Text and names as SQL writes them."""

from __future__ import annotations


def quote_text(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def quote_name(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
