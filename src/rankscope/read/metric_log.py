"""Logs of training numbers as CSV or JSON lines, from any tool -> the table of metrics.

A line has a step (or an iteration, an epoch), or a time, and numbers; each number under its column's name is a row.
Such files have no signature, so they are recognized strictly: every line seen must fit.
"""

from __future__ import annotations

import csv
import io
import json
import math
import re
import zlib
from collections.abc import Iterator, Sequence
from datetime import datetime, timezone
from typing import Any, BinaryIO, NamedTuple

from rankscope.errors import BadFileError
from rankscope.model.tables import MISSING, Table
from rankscope.read.files import HEAD_BYTES, Source
from rankscope.read.metric_rows import MetricRows, to_ns, to_step

NAME = "metric_log"
ORDER = 4
NAMES_TELL_RANK = False

# In the order in which they are preferred. Of several names the last part counts: trainer/global_step.
_STEPS = ("global_step", "step", "_step", "iteration", "iter", "n_iter", "num_steps", "epoch")
_TIMES = ("timestamp", "_timestamp", "wall_time", "time", "datetime", "date")
_RANKS = ("rank", "global_rank")
_LABELS = ("name", "metric", "key", "tag")  # one number per line: its name is here, and it is in `value`
_VALUE = "value"
# Columns of tables that rankscope itself exports, and of traces: such lines are no log of a training.
_FOREIGN = re.compile(r"(file_id|schema|ph|ts|dur|pid|tid|cat|.*_ns)")
_DELIMITERS = ",\t"
_MIN_LINES = 2  # of JSON: a single object may be anything
_MAX_LINE = 1 << 20
_MAX_COLUMNS = 1000
_MAX_NAME = 200
_NUMBER = re.compile(
    r"\s{0,80}[+-]?(\d{1,99}(\.\d{0,99})?(e[+-]?\d{1,9})?|\.\d{1,99}(e[+-]?\d{1,9})?|nan|inf|infinity)\s{0,80}",
    re.IGNORECASE,
)
_FIRST_S, _LAST_S = 1e9, 4.1e9  # 2001 to 2099, in seconds: what else is called a time counts from the start of the run
_SCALES = (1.0, 1e3, 1e6, 1e9)
_HINT = "pass a CSV file with a header, or JSON lines, with a column named step, epoch or time"


class _Columns(NamedTuple):
    """Where in a line the fields are that are not metrics; empty: nowhere."""

    step: str
    time: str
    rank: str
    label: str

    @property
    def taken(self) -> set[str]:
        return {self.step, self.time, self.rank, self.label}


def sniff(head: bytes, name: str) -> bool:
    try:
        text = head.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        if error.start < len(head) - 3:
            return False
        text = head[: error.start].decode("utf-8-sig")
    lines = text.splitlines()
    if len(head) >= HEAD_BYTES or not text.endswith("\n"):
        lines = lines[:-1] if len(lines) > 1 and len(head) >= HEAD_BYTES else lines
    lines = [line for line in lines if line.strip()]
    if len(lines) < _MIN_LINES:
        return False
    return _is_json_log(lines) if lines[0].lstrip().startswith("{") else _is_csv_log(lines)


def _is_json_log(lines: Sequence[str]) -> bool:
    objects = [_object(line) for line in lines]
    flat = [line for line in objects if line is not None and _is_flat(line)]
    if len(flat) < len(objects) - 1 or len(flat) < _MIN_LINES or (objects[-1] is not None and len(flat) < len(objects)):
        return False  # only the last one may be cut off
    return all(_is_telling(line) for line in flat)


def _is_telling(line: dict[str, Any]) -> bool:
    columns = _columns(list(line))
    if columns is None or any(map(_FOREIGN.fullmatch, line)):
        return False
    is_placed = (
        _number(line.get(columns.step)) is not None if columns.step else _time(line.get(columns.time)) != MISSING
    )
    return is_placed and any(_number(value) is not None for name, value in line.items() if name not in columns.taken)


def _is_flat(line: dict[str, Any]) -> bool:
    return not any(isinstance(value, (dict, list)) for value in line.values())


def _is_csv_log(lines: Sequence[str]) -> bool:
    delimiter = _delimiter(lines[0])
    header, *rows = list(csv.reader(lines, delimiter=delimiter))
    names = [name.strip() for name in header]
    columns = _columns(names)
    if columns is None or not _is_header(names):
        return False
    rows = [row for row in rows if len(row) == len(names)] if len(rows) == 1 else rows
    whole = rows[:-1] if rows and len(rows[-1]) != len(names) else rows  # the last one may be cut off
    if not whole or any(len(row) != len(names) for row in whole):
        return False
    cells = [dict(zip(names, row, strict=True)) for row in whole]
    if columns.step:
        steps = [cell[columns.step] for cell in cells if cell[columns.step].strip()]
        if not steps or any(_number(value) is None for value in steps):
            return False
        return any(
            _number(value) is not None for cell in cells for name, value in cell.items() if name not in columns.taken
        )
    rest = [value for cell in cells for name, value in cell.items() if name not in columns.taken and value.strip()]
    is_timed = all(_time(cell[columns.time]) != MISSING for cell in cells)
    return is_timed and bool(rest) and all(_number(value) is not None for value in rest)


def _is_header(names: Sequence[str]) -> bool:
    return (
        2 <= len(names) <= _MAX_COLUMNS
        and len({name.lower() for name in names}) == len(names)
        and all(name and name.isprintable() and len(name) <= _MAX_NAME for name in names)
        and not any(map(_NUMBER.fullmatch, names))
        and not any(map(_FOREIGN.fullmatch, names))
    )


def _delimiter(header: str) -> str:
    return max(_DELIMITERS, key=header.count)


def _columns(names: Sequence[str]) -> _Columns | None:
    """None where neither a step nor a time is among them."""
    step, time, rank = _first(names, _STEPS), _first(names, _TIMES), _first(names, _RANKS)
    if not step and not time:
        return None
    return _Columns(step, time, rank, _first(names, _LABELS) if _VALUE in names else "")


def _first(names: Sequence[str], wanted: Sequence[str]) -> str:
    last = {name.strip().lower().rpartition("/")[2]: name for name in reversed(names)}
    return next((last[word] for word in wanted if word in last), "")


def read(source: Source) -> Iterator[Table]:
    if source.n_bytes == 0:
        raise BadFileError("is empty (0 bytes)", "the job ended before it wrote a number")
    rows = MetricRows(source, NAME)
    try:
        with source.open() as stream:
            _read_lines(rows, _lines(stream, rows))
    except (OSError, EOFError, zlib.error) as error:
        if not len(rows):
            raise BadFileError(f"cannot be decompressed ({error})", "copy the file again") from error
        rows.problem = f"cannot be fully decompressed ({error})"
    if not len(rows):
        raise BadFileError("has no number with a step or a time", _HINT)
    yield from rows.tables()


def _lines(stream: BinaryIO, rows: MetricRows) -> Iterator[str]:
    while (line := stream.readline(_MAX_LINE)) and not rows.is_full:
        if not line.endswith(b"\n"):
            if len(line) == _MAX_LINE:
                raise BadFileError(f"has a line of more than {_MAX_LINE:,} bytes", _HINT)
            # A number that is cut off is another number: what the last line says is used only if it must be whole.
            rows.problem = "" if line.rstrip().endswith(b"}") else "ends in the middle of a line"
            if rows.problem:
                return
        text = line.decode("utf-8", "replace").removeprefix("\ufeff")
        if text.strip():
            yield text


def _read_lines(rows: MetricRows, lines: Iterator[str]) -> None:
    first = next(lines, "")
    if first.lstrip().startswith("{"):
        _read_json(rows, first, lines)
        return
    delimiter = _delimiter(first)
    names = [name.strip() for name in next(csv.reader([first], delimiter=delimiter), [])]
    columns = _columns(names)
    if columns is None or not _is_header(names):
        raise BadFileError("has no header with a column named step, epoch or time", _HINT)
    for line in lines:
        cells = next(csv.reader(io.StringIO(line), delimiter=delimiter), [])
        if len(cells) == len(names):
            _add(rows, dict(zip(names, cells, strict=True)), columns)
        else:
            rows.n_bad += 1


def _read_json(rows: MetricRows, first: str, lines: Iterator[str]) -> None:
    line: str | None = first
    while line is not None:
        record = _object(line)
        columns = None if record is None else _columns(list(record))
        if record is None:
            rows.n_bad += 1
        elif columns is not None:
            _add(rows, record, columns)
        line = next(lines, None)


def _add(rows: MetricRows, line: dict[str, Any], columns: _Columns) -> None:
    """An empty field or text is not a value: in such a log most lines lack most columns."""
    step = _number(line.get(columns.step))
    rank = _number(line.get(columns.rank))
    keys = (
        MISSING if step is None else to_step(step),
        _time(line.get(columns.time)),
        MISSING if rank is None else min(to_step(rank), (1 << 31) - 1),
    )
    if columns.label:
        value = _number(line.get(_VALUE))
        if value is not None:
            rows.add(str(line[columns.label]), value, *keys)
        return
    for name, cell in line.items():
        if name not in columns.taken:
            value = _number(cell)
            if value is not None:
                rows.add(name, value, *keys)


def _object(line: str) -> dict[str, Any] | None:
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _number(value: Any) -> float | None:
    if isinstance(value, str):
        return float(value) if _NUMBER.fullmatch(value) else None
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf


def _time(value: Any) -> int:
    """Seconds, or thousandths, millionths, billionths, since the epoch; or a date. Without a zone it is UTC."""
    number = _number(value)
    if number is not None:
        return next((to_ns(number / scale) for scale in _SCALES if _FIRST_S <= number / scale <= _LAST_S), MISSING)
    try:
        moment = datetime.fromisoformat(str(value).strip())
    except ValueError:
        return MISSING
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=timezone.utc)
    return to_ns(moment.timestamp()) if 2001 <= moment.year <= 2099 else MISSING
