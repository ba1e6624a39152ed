"""The problems of an export, from the records that TORCH_DTRACE adds to a log."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import msgspec
import numpy as np

from rankscope.model.payloads import MappedLog, mapped_log
from rankscope.model.tables import Table, Trace
from rankscope.render.compile_tree.outputs import RankTree, by_file, tree_records

Row = dict[str, Any]

PROBLEMS = {
    "guard_added": "Guard Evaluated",
    "propagate_real_tensors_provenance": "Data Dependent Error",
    "guard_on_data_dependent_error": "Data Dependent Guard",
    "missing_fake_kernel": "Missing Fake Kernel",
    "mismatched_fake_kernel": "Mismatched Fake Kernel",
}
UNREADABLE = "Unreadable Record"
_EXPRESSIONS = {"expression_created": "result_id", "create_unbacked_symbol": "node_id"}
_SIGNS_OF_EXPORT = ("export", "exported_program")
_KINDS = ("", "str", *_SIGNS_OF_EXPORT, *PROBLEMS, *_EXPRESSIONS)
_MAX_DEPTH = 40
_MAX_NODES = 500


class Frame(NamedTuple):
    file: str
    line: str
    function: str
    code: str


class Expression(NamedTuple):
    """A value that depends on symbols, and what it was computed from."""

    result: str
    method: str
    arguments: tuple[str, ...]
    user_stack: tuple[Frame, ...]
    stack: tuple[Frame, ...]
    parts: tuple[Expression, ...]


class Problem(NamedTuple):
    title: str
    row: Row  # of compile_records
    subject: str  # the expression or operator
    outcome: str  # what it was taken to be, or why it is wrong
    place: Frame | None  # the user's line
    user_stack: tuple[Frame, ...]
    stack: tuple[Frame, ...]
    variables: dict[str, dict[str, str]]  # heading -> name -> value
    origin: Expression | None
    is_known_to_tlparse: bool  # it drops records whose local variables are lists


class Export(NamedTuple):
    problems: list[Problem]
    programs: list[Row]  # of compile_records
    n_unreadable: int
    is_recorded: bool  # False when the log tells of no export at all


def read_export(trace: Trace, tree: RankTree) -> Export:
    problems: list[Problem] = []
    programs: list[Row] = []
    n_unreadable = 0
    is_recorded = False
    for records in by_file(tree_records(trace, tree)):
        file_id = int(records.array("file_id")[0])
        walk = _Walk(mapped_log(trace, file_id), _places(trace, file_id))
        for row in _rows_of(records):
            is_recorded |= row["kind"] in _SIGNS_OF_EXPORT
            n_unreadable += not row["kind"]
            if row["kind"] == "exported_program":
                programs.append(row)
            problems += walk.problem(row)
    return Export(problems, programs, n_unreadable, is_recorded)


def _rows_of(records: Table) -> Iterator[Row]:
    kinds = records.text("kind")
    wanted = np.fromiter((kind in _KINDS for kind in kinds.values), bool, len(kinds.values))
    return records.take(np.flatnonzero(wanted[kinds.codes]) if len(wanted) else np.empty(0, np.int64)).rows()


def _places(trace: Trace, file_id: int) -> dict[int, Frame]:
    """Record -> the user's line, as the reader found it among torch's own."""
    places = {}
    for table in (trace.table("guards"), trace.table("compile_errors")):
        for row in table.take(np.flatnonzero(table.array("file_id") == file_id)).rows():
            if row["file"]:
                places[row["record"]] = Frame(row["file"], str(row["line"]), row["function"], row["code"])
    return places


class _Walk:
    """One log, record by record: file names and expressions come before their uses, and ids are reused."""

    def __init__(self, log: MappedLog, places: Mapping[int, Frame]) -> None:
        self._log = log
        self._places = places
        self._strings: dict[Any, str] = {}
        self._expressions: dict[Any, Mapping[str, Any]] = {}

    def problem(self, row: Row) -> Iterator[Problem]:
        header = self._log.header(row)
        kind = row["kind"]
        if not kind:
            if any(f'"{name}"'.encode() in header for name in PROBLEMS):
                yield Problem(
                    UNREADABLE, row, header[:500].decode("utf-8", "replace"), "", None, (), (), {}, None, False
                )
            return
        value = _decoded(header).get(kind)
        if kind == "str" and isinstance(value, list) and len(value) == 2:
            self._strings[_key(value[1])] = str(value[0])
        elif kind in _EXPRESSIONS and isinstance(value, dict):
            self._expressions[_key(value.get(_EXPRESSIONS[kind]))] = value
        elif kind in PROBLEMS:
            # tlparse, too, speaks of the guards alone that were evaluated, not of those that were merely stated.
            if not isinstance(value, dict):
                yield Problem(UNREADABLE, row, f"{kind}: {value}", "", None, (), (), {}, None, False)
            elif kind != "guard_added" or value.get("prefix") == "eval":
                yield self._made(row, value)

    def _made(self, row: Row, value: Mapping[str, Any]) -> Problem:
        frame_locals = value.get("frame_locals")
        frame_locals = frame_locals if isinstance(frame_locals, dict) else {}
        variables = {
            "Local variables": _texts(frame_locals.get("locals")),
            "Symbols": _texts(frame_locals.get("symbols")),
            "Sources of the symbols": _texts(value.get("symbol_to_sources")),
        }
        return Problem(
            PROBLEMS[row["kind"]],
            row,
            str(value.get("expr") or value.get("op") or "(not recorded)"),
            str(value.get("result") or value.get("reason") or ""),
            self._places.get(row["record"]),
            self._frames(value.get("user_stack")),
            self._frames(value.get("stack")),
            {heading: values for heading, values in variables.items() if values},
            self._origin(_key(value.get("expr_node_id") or value.get("expr_id")), 0, set()),
            _is_plain(frame_locals.get("locals")) and _is_plain(frame_locals.get("symbols")),
        )

    def _frames(self, stack: Any) -> tuple[Frame, ...]:
        frames = []
        for frame in stack if isinstance(stack, list) else ():
            if isinstance(frame, dict):
                number = frame.get("filename")
                file = self._strings.get(_key(number), number if isinstance(number, str) else f"<string {number}>")
                frames.append(Frame(file, *(str(frame.get(key) or "") for key in ("line", "name", "loc"))))
        return tuple(frames)

    def _origin(self, number: Any, depth: int, seen: set[Any]) -> Expression | None:
        """Each expression once: they share parts, and a damaged log may have circles."""
        value = self._expressions.get(number)
        if value is None or number in seen or depth > _MAX_DEPTH or len(seen) > _MAX_NODES:
            return None
        seen.add(number)
        arguments, numbers = value.get("arguments"), value.get("argument_ids")
        parts = (
            self._origin(_key(source), depth + 1, seen) for source in (numbers if isinstance(numbers, list) else ())
        )
        return Expression(
            str(value.get("result") or value.get("symbol") or ""),
            str(value.get("method") or ""),
            tuple(map(str, arguments)) if isinstance(arguments, list) else (),
            self._frames(value.get("user_stack")),
            self._frames(value.get("stack")),
            tuple(part for part in parts if part is not None),
        )


def _decoded(header: bytes) -> dict[str, Any]:
    try:
        value = msgspec.json.decode(header)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        try:
            value = json.loads(header.decode("utf-8", "replace"))
        except (ValueError, RecursionError):
            return {}
    return value if isinstance(value, dict) else {}


def _key(number: Any) -> Any:
    """Keys are numbers; anything else in a damaged log must not break the lookup."""
    return number if isinstance(number, int) else None


def _texts(values: Any) -> dict[str, str]:
    """torch 2.13 has a list of texts for each variable, earlier ones had one."""
    if not isinstance(values, dict):
        return {}
    return {
        name: "\n".join(map(str, value)) if isinstance(value, list) else str(value)
        for name, value in values.items()
        if value is not None
    }


def _is_plain(values: Any) -> bool:
    return not isinstance(values, dict) or all(value is None or isinstance(value, str) for value in values.values())
