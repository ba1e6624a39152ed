"""Chakra's nodes, decoded many at a time: fields are found column by column, repeated values by a lookup.

Nodes that are laid out in some other way than writers commonly do, or are damaged, are left to chakra_messages.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any, TypeVar

import numpy as np

from rankscope.model import protobuf
from rankscope.model.chakra import IO, Attribute, ChakraNode
from rankscope.model.protobuf import Scan, WireError
from rankscope.model.tables import Array
from rankscope.read import chakra_messages as messages

# Most attributes and inputs are those of an earlier node; long ones seldom are.
_MAX_KEPT = 100_000
_MAX_KEPT_BYTES = 256
_NUMBERS = (messages.ID, messages.TYPE, messages.START, messages.DURATION)
_CONTENTS = (messages.NAME, messages.CTRL_DEPS, messages.DATA_DEPS, messages.INPUTS, messages.OUTPUTS)
_KNOWN = (*_NUMBERS, *_CONTENTS, messages.ATTRIBUTE)

Decoded = TypeVar("Decoded")


class BlockDecoder:
    def __init__(self) -> None:
        self._attributes: dict[bytes, tuple[str, Attribute]] = {}
        self._ios: dict[bytes, IO] = {b"": IO()}
        self._texts: dict[bytes, str] = {b"": ""}

    def decode(self, nodes: Sequence[bytes]) -> list[ChakraNode | None]:
        """One per message; None where it has to be decoded by itself."""
        block = _Block(nodes)
        is_left = block.found.is_left | block.has_others(_KNOWN) | block.has_repeated(_CONTENTS)
        try:
            columns = zip(
                block.numbers(messages.ID),
                self._decode_texts(block.contents(messages.NAME)),
                map(messages.decode_type, block.numbers(messages.TYPE)),
                protobuf.split_varints(block.contents(messages.CTRL_DEPS)),
                protobuf.split_varints(block.contents(messages.DATA_DEPS)),
                block.numbers(messages.START),
                block.numbers(messages.DURATION),
                self._looked_up(self._ios, block.contents(messages.INPUTS), self._decode_ios),
                self._looked_up(self._ios, block.contents(messages.OUTPUTS), self._decode_ios),
                self._attributes_of(block),
                strict=True,
            )
        except WireError:
            return [None] * len(nodes)
        return [None if left else ChakraNode(*values) for left, values in zip(is_left.tolist(), columns, strict=True)]

    def _attributes_of(self, block: _Block) -> list[dict[str, Attribute]]:
        rows, contents = block.all_contents(messages.ATTRIBUTE)
        found = self._looked_up(self._attributes, contents, self._decode_attributes)
        bounds = np.searchsorted(rows, np.arange(block.n_rows + 1)).tolist()
        return [dict(found[start:stop]) for start, stop in pairwise(bounds)]

    def _looked_up(
        self,
        known: dict[bytes, Decoded],
        contents: list[bytes],
        decode: Callable[[list[bytes]], list[Decoded]],
    ) -> list[Decoded]:
        """What is new is decoded together."""
        found = list(map(known.get, contents))
        new = list(dict.fromkeys(content for content, value in zip(contents, found, strict=True) if value is None))
        fresh = dict(zip(new, decode(new), strict=True)) if new else {}
        if len(known) < _MAX_KEPT:
            known.update((content, value) for content, value in fresh.items() if len(content) <= _MAX_KEPT_BYTES)
        return [fresh[content] if value is None else value for content, value in zip(contents, found, strict=True)]

    def _decode_texts(self, contents: list[bytes]) -> list[str]:
        return self._looked_up(self._texts, contents, lambda new: [protobuf.decode_text(content) for content in new])

    def _decode_ios(self, contents: list[bytes]) -> list[IO]:
        block = _Block(contents)
        keys = messages.IO_TEXTS
        if (block.found.is_left | block.has_others(keys) | block.has_repeated(keys)).any():
            return [messages.decode_io(content) for content in contents]
        texts = (self._decode_texts(block.contents(key)) for key in keys)
        return [IO(*values) for values in zip(*texts, strict=True)]

    def _decode_attributes(self, contents: list[bytes]) -> list[tuple[str, Attribute]]:
        """Those that are a name and an integer are read from columns."""
        block = _Block(contents)
        found = block.found
        decoded: list[tuple[str, Attribute] | None] = [None] * len(contents)
        firsts = np.searchsorted(found.row, np.arange(block.n_rows))
        n_fields = np.diff(np.append(firsts, len(found.row)))
        rows = np.flatnonzero(n_fields == 2)
        names, values = firsts[rows], firsts[rows] + 1
        is_plain = (found.key[names] == messages.ATTRIBUTE_NAME) & (found.key[values] & 7 == protobuf.VARINT)
        rows, names, values = rows[is_plain], names[is_plain], values[is_plain]
        for key in np.unique(found.key[values]).tolist():
            kind = messages.VALUE_KINDS.get(key)
            if kind:
                chosen = found.key[values] == key
                numbers = _decode_numbers(kind, found.value[values[chosen]])
                plain = zip(
                    rows[chosen].tolist(), self._decode_texts(block.slices(names[chosen])), numbers, strict=True
                )
                for row, name, number in plain:
                    decoded[row] = name, Attribute(kind, number)
        return [known or messages.decode_attribute(content) for known, content in zip(decoded, contents, strict=True)]


def _decode_numbers(kind: str, values: Array) -> list[Any]:
    if kind == "int64":  # nearly all are
        numbers: list[int] = values.view(np.int64).tolist()
        return numbers
    return [protobuf.decode_scalar(kind, value) for value in values.tolist()]


class _Block:
    """Messages behind each other, and where their fields are."""

    def __init__(self, contents: Sequence[bytes]) -> None:
        lengths = np.array([len(content) for content in contents], np.int64)
        stops = np.cumsum(lengths)
        self.n_rows = len(contents)
        self._data = b"".join((*contents, protobuf.SCAN_PADDING))
        self.found: Scan = protobuf.scan(np.frombuffer(self._data, np.uint8), stops - lengths, stops)

    def has_others(self, keys: Sequence[int]) -> Array:
        """Rows with fields beside these."""
        is_other = ~np.isin(self.found.key, np.array(keys, np.uint64))
        return np.bincount(self.found.row[is_other], minlength=self.n_rows) > 0

    def has_repeated(self, keys: Sequence[int]) -> Array:
        """Rows that have one of the fields more than once."""
        repeated = np.zeros(self.n_rows, bool)
        for key in keys:
            repeated |= np.bincount(self.found.row[self.found.key == key], minlength=self.n_rows) > 1
        return repeated

    def numbers(self, key: int) -> list[int]:
        """One per row: the last that it has, else 0."""
        chosen = self.found.key == key
        values = np.zeros(self.n_rows, np.uint64)
        values[self.found.row[chosen]] = self.found.value[chosen]
        numbers: list[int] = values.tolist()
        return numbers

    def contents(self, key: int) -> list[bytes]:
        """One per row; empty where it has none."""
        rows, found = self.all_contents(key)
        contents = [b""] * self.n_rows
        for row, content in zip(rows.tolist(), found, strict=True):
            contents[row] = content
        return contents

    def all_contents(self, key: int) -> tuple[Array, list[bytes]]:
        """Every field with this key, and its row."""
        chosen = np.flatnonzero(self.found.key == key)
        return self.found.row[chosen], self.slices(chosen)

    def slices(self, chosen: Array) -> list[bytes]:
        data, starts = self._data, self.found.start[chosen]
        stops = starts + self.found.value[chosen].astype(np.int64)
        return [data[start:stop] for start, stop in zip(starts.tolist(), stops.tolist(), strict=True)]
