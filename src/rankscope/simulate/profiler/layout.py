"""The ways in which one and the same trace is written down.

An event is built as a text with holes, once for each thing that a program does, and filled in with `%` for each rank
and step: that is what makes traces of many ranks quick to write.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

from rankscope.errors import UsageError

Fields = Sequence[tuple[str, str]]
"""Keys and JSON texts; a text may be or hold a hole."""

INTEGER = "%d"
TEXT = "%s"
FURTHER_FIELDS = ("", TEXT)
"""A hole for any number of fields, to be filled with what Layout.fields() makes of them."""


def constant(value: object) -> str:
    """The JSON text of a value that is known before the holes are filled."""
    return json.dumps(value).replace("%", "%%")


@dataclass(frozen=True)
class Layout:
    name: str
    colon: str = ": "
    comma: str = ", "
    indent: str = "  "
    newline: str = "\n"
    one_field_per_line: bool = False
    metadata_first: bool = False
    """The names of processes and threads come before the events instead of after them."""
    sync_row_offset: int = 0
    """How far below its stream a stream's synchronizations are drawn."""

    def fields(self, fields: Fields) -> str:
        return self.comma.join(f"{constant(key)}{self.colon}{text}" if key else text for key, text in fields)

    def event(self, *lines: Fields, args: Fields = ()) -> str:
        """An event with holes. Its fields are given by the lines on which the classic layout has them."""
        inner = self.newline + 2 * self.indent
        if self.one_field_per_line:
            lines = tuple([field] for line in lines for field in line)
        parts = [self.fields(line) for line in lines]
        if args:
            deeper = inner + self.indent
            parts.append(f'"args"{self.colon}{{{deeper}{self.fields(args)}{inner}}}')
        return f"{{{inner}{(',' + inner).join(parts)}{self.newline}{self.indent}}}"

    @property
    def between_events(self) -> str:
        return f",{self.newline}{self.indent}"

    def document(self, head: dict[str, object], events: Sequence[str], tail: dict[str, object]) -> str:
        outer = self.newline + self.indent
        keys = [f"{json.dumps(key)}{self.colon}{self._value(value)}" for key, value in head.items()]
        keys.append(f'"traceEvents"{self.colon}[{outer}{self.between_events.join(events)}{outer}]')
        keys += [f"{json.dumps(key)}{self.colon}{self._value(value)}" for key, value in tail.items()]
        return f"{{{outer}{(',' + outer).join(keys)}{self.newline}}}{self.newline}"

    def _value(self, value: object) -> str:
        return json.dumps(value, separators=(self.comma, self.colon))


_LAYOUTS = {
    layout.name: layout
    for layout in (
        Layout("classic"),
        Layout("wide", one_field_per_line=True, metadata_first=True, sync_row_offset=1_000_000),
        Layout("minified", colon=":", comma=",", indent="", newline=""),
    )
}
LAYOUTS: tuple[str, ...] = tuple(_LAYOUTS)


def layout_named(name: str) -> Layout:
    """`classic` as Kineto wrote it for years, `wide` as torch 2.13 does, `minified` as other tools pass it on."""
    if name not in _LAYOUTS:
        raise UsageError(f"unknown layout {name!r}", f"choose one of: {', '.join(LAYOUTS)}")
    return _LAYOUTS[name]
