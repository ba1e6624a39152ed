"""Data of the page's scripts: numbers as typed arrays, the rest as JSON, packed, and read when a view needs it."""

from __future__ import annotations

import base64
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import msgspec
import numpy as np

from rankscope.model.tables import Array
from rankscope.render.html import Html, markup

_ALIGNMENT = 8  # JavaScript refuses a typed array that begins elsewhere


class Block(NamedTuple):
    """`meta` is anything that JSON can hold; the arrays are one-dimensional."""

    meta: Any
    arrays: Mapping[str, Array] = {}


def pack(block: Block, level: int = 6) -> bytes:
    """A line of JSON, padding, then the arrays one after another; page.js takes it apart again."""
    places, chunks, start = [], [], 0
    for name, array in block.arrays.items():
        little_endian = np.ascontiguousarray(array, array.dtype.newbyteorder("<"))
        places.append({"name": name, "type": little_endian.dtype.name, "start": start, "n": little_endian.size})
        chunk = little_endian.tobytes()
        chunk += bytes(-len(chunk) % _ALIGNMENT)
        chunks.append(chunk)
        start += len(chunk)
    head = msgspec.json.encode({"meta": block.meta, "arrays": places})
    head += b" " * (-(len(head) + 1) % _ALIGNMENT) + b"\n"
    return zlib.compress(head + b"".join(chunks), level)


@dataclass
class Blocks:
    """By name. A file contains all of them; a server makes each one on demand."""

    is_served: bool = False
    clean: Callable[[Any], Any] | None = None  # takes out of a block's meta what the page must not tell
    makers: dict[str, Callable[[], Block]] = field(default_factory=dict)
    packed: dict[str, bytes] = field(default_factory=dict)

    def add(self, name: str, make: Callable[[], Block]) -> int:
        """The number of characters that it takes in the page. Names are our own: letters, digits, dots, dashes."""
        self.makers[name] = make
        return 0 if self.is_served else len(self.get(name)) * 4 // 3

    def get(self, name: str) -> bytes:
        if name not in self.packed:
            made = self.makers[name]()
            level = 1 if self.is_served else 6  # the reader waits for it, and it does not travel far
            self.packed[name] = pack(made._replace(meta=self.clean(made.meta)) if self.clean else made, level)
        return self.packed[name]

    def drop(self, name: str) -> None:
        self.makers.pop(name, None)
        self.packed.pop(name, None)

    def html(self, name: str) -> Html:
        """Base64 has nothing that could end the element early."""
        if self.is_served:
            return markup('<script type="text/plain" data-block="{}" data-from="data/{}"></script>\n', name, name)
        data = base64.b64encode(self.get(name)).decode()
        return markup('<script type="text/plain" data-block="{}">{}</script>\n', name, data)
