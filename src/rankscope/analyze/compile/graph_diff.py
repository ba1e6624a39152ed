"""Two graphs side by side: the first operator or shape where they differ, and the user's line it comes from."""

from __future__ import annotations

import re
from typing import NamedTuple

from rankscope.analyze.compile.graphs import normalised_graph
from rankscope.model.finding import Comparison, Location, Side
from rankscope.model.numbers import integer
from rankscope.model.payloads import mapped_log
from rankscope.model.tables import Trace

_COMMENT = re.compile(r"#\s*File: (.+?):(\d+) in ([^,]+)")
_SIGNATURE = "def forward(self"
_RELEASED = ";  "  # what follows drops a value that is no longer needed
_PARAMETER = re.compile(r",\s*(?=\w+\s*:)")
_FOREIGN = re.compile(r"(^|/)(site-packages|dist-packages)/|(^|/)torch/|/lib/python\d|^<")
_MAX_CELL = 96
_END = "(the graph ends)"


class OpLine(NamedTuple):
    """A line of a graph without what says nothing, and the last line of the user's code before it."""

    text: str
    location: Location | None

    @property
    def comparable(self) -> str:
        return normalised_graph(self.text.encode()).decode()


class GraphDifference(NamedTuple):
    """Where two graphs part: the lines of both, with the one before, and the user's line on the second's side."""

    position: int
    usual: str
    odd: str
    before: str
    usual_location: Location | None
    odd_location: Location | None

    def comparison(self, usual: tuple[str, tuple[int, ...]], odd: tuple[str, tuple[int, ...]]) -> Comparison:
        """The evidence; each side is a label and its ranks."""
        keys, left, right = [str(self.position)], [self.usual], [self.odd]
        if self.before:
            keys, left, right = (
                [str(self.position - 1), *keys],
                [_cut(self.before, self.before), *left],
                [_cut(self.before, self.before), *right],
            )
        left[-1], right[-1] = _cut(self.usual, self.odd), _cut(self.odd, self.usual)
        sides = (Side(*usual, tuple(left)), Side(*odd, tuple(right)))
        return Comparison("line", tuple(keys), sides, mark=len(keys) - 1)


def graph_text(trace: Trace, file_id: int, compile_id: str) -> str:
    """The graph that a compilation captured; of several the last, since restarts throw the others away."""
    graphs, records = trace.table("compile_graphs"), trace.table("compile_records")
    is_graph = (graphs.array("file_id") == file_id) & graphs.text("compile_id").equals(compile_id)
    numbers = graphs.array("record")[is_graph]
    if not len(numbers):
        return ""
    at = (records.array("file_id") == file_id) & (records.array("record") == numbers[-1])
    for row in records.take(at.nonzero()[0]).rows():
        return mapped_log(trace, file_id).payload(row).decode("utf-8", "replace")
    return ""


def first_difference(usual: str, odd: str) -> GraphDifference | None:
    """Where the second graph leaves the first; None when they differ in nothing that matters."""
    left, right = op_lines(usual), op_lines(odd)
    shared = min(len(left), len(right))
    at = next((n for n in range(shared) if _differ(left[n], right[n])), shared)
    if at == len(left) == len(right):
        return None
    ours, theirs = (lines[at] if at < len(lines) else OpLine(_END, None) for lines in (left, right))
    before = left[at - 1].text if at else ""
    return GraphDifference(at, ours.text, theirs.text, before, ours.location, theirs.location)


def _differ(left: OpLine, right: OpLine) -> bool:
    return left.text != right.text and left.comparable != right.comparable


def op_lines(graph: str) -> list[OpLine]:
    """Inputs and operators, one each."""
    lines: list[OpLine] = []
    location = None
    for raw in graph.split("\n"):
        line = raw.strip()
        comment = _COMMENT.match(line)
        if comment and not _FOREIGN.search(comment.group(1)):
            location = Location(comment.group(1), integer(comment.group(2)), comment.group(3).strip())
        if not line or line.startswith(("#", "class ")):
            continue
        if line.startswith(_SIGNATURE):
            inputs = line.removeprefix(_SIGNATURE).partition(" -> ")[0].rpartition(")")[0].lstrip(", ")
            lines += [OpLine(f"input {parameter}", None) for parameter in _PARAMETER.split(inputs) if parameter]
        else:
            lines.append(OpLine(line.partition(_RELEASED)[0], location))
    return lines


def _cut(text: str, other: str) -> str:
    """A long line around its first difference from the other one."""
    if len(text) <= _MAX_CELL:
        return text
    shared = min(len(text), len(other))
    at = next((n for n in range(shared) if text[n] != other[n]), 0 if text == other else shared)
    start = max(0, min(at - _MAX_CELL // 3, len(text) - _MAX_CELL))
    shown = text[start : start + _MAX_CELL]
    return ("..." if start else "") + shown + ("..." if start + _MAX_CELL < len(text) else "")
