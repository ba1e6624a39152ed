"""Texts as Chakra's readers expect them: lists as Python prints them, names of groups as decimal numbers."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Sequence
from typing import Any

import msgspec

from rankscope.analyze.chakra.groups import is_group_number
from rankscope.model.numbers import is_number
from rankscope.model.tables import Text

_decoder = msgspec.json.Decoder()


def printed_lists(texts: Text, plain_words: Collection[str] = ()) -> Text:
    """JSON texts of lists as Python prints the same lists; `plain_words` are strings that most of them hold."""
    quoted = [f'"{word}"' for word in plain_words]
    return Text(texts.codes, [_printed(text, quoted) for text in texts.values])


def _printed(text: str, plain: Sequence[str]) -> str:
    """Nearly all texts hold nothing but whole numbers and names of devices: those need no parser."""
    rest = text
    for word in plain:
        rest = rest.replace(word, "")
    if not ('"' in rest or "." in rest or "e" in rest or "u" in rest or " " in rest):  # e, u: true, false, null, 1e9
        return text.replace(",", ", ").replace('"', "'")
    try:
        return str(_decoder.decode(text))
    except msgspec.DecodeError:
        return text


class GroupNames:
    """The name under which each group is written. Simulators take decimal numbers alone; those stay as they are."""

    def __init__(self, names: Iterable[str]) -> None:
        distinct = sorted(set(names))
        taken = {int(name) for name in distinct if is_group_number(name)}
        first_free = max(taken, default=0) + 1
        others = [name for name in distinct if name and not is_group_number(name)]
        self._numbers = {name: str(number) for number, name in enumerate(others, first_free)}

    def written(self, name: str) -> str:
        return self._numbers.get(name, name)


def _is_decimal(name: str) -> bool:
    return is_number(name)


def described_groups(groups: Iterable[dict[str, Any]]) -> str:
    """The groups as the feeder parses them: it cuts a bracket and a quote off both ends of a printed list of one text.

    The JSON between must therefore hold neither a single quote nor a second layer of escapes.
    """
    return "['" + json.dumps(list(groups)).replace("'", "\\u0027") + "']"
