"""The distinct calls of a capture, each once: operation, sizes, type, and the user's frames that made it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from rankscope.model.call_text import describe_shapes, describe_types
from rankscope.model.tables import MISSING, Array, Table, Trace
from rankscope.render.escape import cut_short, escape
from rankscope.render.listing import n_bytes_phrase
from rankscope.render.page.rank_map_data import UNKNOWN_CALL
from rankscope.render.source import shown_path

Call = tuple[str, str, str, int]  # operation, sizes, type, number of the stack
MAX_FRAMES = 12
_MAX_CHARACTERS = 400
_TABLE_SIZE = 1 << 24
# From what tells most to what tells least: a capture with too many distinct calls does without the last ones.
_COLUMNS = ("op", "input_dtypes", "output_dtypes", "input_sizes", "output_sizes")


@dataclass
class CallPool:
    """What the script shows of a call. Frames are texts, and a stack is a list of their numbers, innermost first."""

    folders: tuple[str, ...] = ()  # files below these are shown relative to them
    calls: list[Call] = field(default_factory=list)
    stacks: list[list[int]] = field(default_factory=list)
    frames: list[str] = field(default_factory=list)
    _stack_numbers: dict[tuple[int, ...], int] = field(default_factory=dict)

    @property
    def stack_of(self) -> Array:
        """By number of a call, that of its stack."""
        stacks = np.full(UNKNOWN_CALL + 1, MISSING, np.int32)
        stacks[: len(self.calls)] = [call[3] for call in self.calls]
        return stacks

    def about(self) -> dict[str, Any]:
        return {"calls": self.calls, "stacks": self.stacks, "frames": self.frames}

    def add_recorded(self, trace: Trace) -> Array:
        """Per row of collectives its number in the pool."""
        table = trace.table("collectives")
        self._add_stacks(trace)
        points = self._points(trace, table)
        code = points - (points.min() if len(points) else 0)  # the first stacks may be those of another capture
        n_codes = int(code.max(initial=0)) + 1
        left_out = set()
        for name in _COLUMNS:
            column = table.text(name)
            finer, n_finer = _combined(code, n_codes, column.codes, len(column.values))
            if len(self.calls) + n_finer >= UNKNOWN_CALL:
                left_out.add(name)
            else:
                code, n_codes = finer, n_finer

        def call_at(row: int) -> Call:
            values = {name: "" if name in left_out else table.text(name)[row] for name in _COLUMNS}
            shapes = describe_shapes(values["input_sizes"], values["output_sizes"])
            types = describe_types(values["input_dtypes"], values["output_dtypes"])
            return clipped(values["op"]), clipped(shapes), clipped(types), int(points[row])

        return self._numbered(code, n_codes, call_at)

    def add_profiled(self, matches: Table) -> Array:
        """Per row of comm_matches its number in the pool."""
        op, dtype, n_bytes = matches.text("op"), matches.text("dtype"), matches.array("n_bytes")
        sizes, size_code = np.unique(n_bytes, return_inverse=True)
        code, n_codes = _combined(op.codes, len(op.values), dtype.codes, len(dtype.values))
        code, n_codes = _combined(code, n_codes, size_code, len(sizes))

        def call_at(row: int) -> Call:
            size = n_bytes_phrase(int(n_bytes[row])) if n_bytes[row] >= 0 else ""
            return clipped(op[row]), size, clipped(dtype[row]), MISSING

        return self._numbered(code, n_codes, call_at)

    def _numbered(self, code: Array, n_codes: int, call_at: Callable[[int], Call]) -> Array:
        """Adds one call per code, described by one of its rows, and gives each row the number of its call."""
        n_rows = len(code)
        if len(self.calls) + n_codes >= UNKNOWN_CALL:
            return np.full(n_rows, UNKNOWN_CALL, np.uint16)
        example = np.zeros(n_codes if n_rows else 0, np.int64)
        example[code] = np.arange(n_rows)
        first = len(self.calls)
        self.calls.extend(map(call_at, example.tolist()))
        numbers: Array = (code + first).astype(np.uint16)
        return numbers

    def _add_stacks(self, trace: Trace) -> None:
        self.frames = [
            clipped(f"{shown_path(row['file'], *self.folders)}:{row['line']}")
            + (f" in {clipped(row['function'])}" if row["function"] else "")
            for row in trace.table("frames").rows()
        ]

    def _points(self, trace: Trace, table: Table) -> Array:
        """Per call the number of its stack's user frames; stacks that differ within torch only are one."""
        stacks, is_user = trace.table("stacks"), trace.table("frames").array("is_user")
        stack_ids, frame_ids = stacks.array("stack_id"), stacks.array("frame_id")
        n_stacks = int(max(stack_ids.max(initial=-1), table.array("stack_id").max(initial=-1))) + 1
        parts: list[list[int]] = [[] for _ in range(n_stacks)]
        order = np.lexsort((stacks.array("depth"), stack_ids))
        for stack, frame in zip(stack_ids[order].tolist(), frame_ids[order].tolist(), strict=True):
            if is_user[frame] and len(parts[stack]) < MAX_FRAMES:
                parts[stack].append(frame)
        numbers = np.array([*map(self._stack_number, parts), MISSING], np.int64)
        return numbers[table.array("stack_id")]

    def _stack_number(self, frames: list[int]) -> int:
        if not frames:
            return MISSING
        number = self._stack_numbers.setdefault(tuple(frames), len(self.stacks))
        if number == len(self.stacks):
            self.stacks.append(frames)
        return number


def clipped(said: str) -> str:
    """For people to read: nothing hidden in it, and not without end."""
    return cut_short(escape(said[: _MAX_CHARACTERS + 1]), _MAX_CHARACTERS)


def _combined(one: Array, n_one: int, other: Array, n_other: int) -> tuple[Array, int]:
    """Dense codes of the combinations that occur. A table of them is ten times faster than sorting."""
    combined = one.astype(np.int64) * max(n_other, 1) + other
    if n_one * n_other > _TABLE_SIZE:
        distinct, code = np.unique(combined, return_inverse=True)
        return code, max(len(distinct), 1)
    occurs = np.zeros(max(n_one * n_other, 1), bool)
    occurs[combined] = True
    numbers = np.cumsum(occurs) - 1
    return numbers[combined], max(int(np.count_nonzero(occurs)), 1)
