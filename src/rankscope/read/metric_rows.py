"""Rows of the table of metrics, gathered from logs that other tools have written."""

from __future__ import annotations

import math
import re
import zlib
from array import array
from collections.abc import Callable, Iterable, Iterator

import numpy as np

from rankscope.model.numbers import rank_number, whole
from rankscope.model.tables import MISSING, Table, Text
from rankscope.read.files import Source

MAX_VALUES = 20_000_000  # of one file: beyond that it is no log of a training
MAX_NAMES = 100_000
_MAX_NAME = 200
_MAX_NS = 1 << 62
# Such a log tells its rank by its name or its folder, or not at all: numbers in it are times, processes and versions.
_RANK = re.compile(r"(?:^|[/!_.\-])rank[_=\-]?(\d{1,7})(?=[/!_.\-]|$)", re.IGNORECASE)
CUT_HINT = "the job ended while writing it, or the copy is incomplete: copy it again if the original is complete"


def told_rank(source: Source) -> int:
    numbers = _RANK.findall(source.shown)
    return rank_number(numbers[-1]) if numbers else MISSING


def to_ns(seconds: float) -> int:
    """Seconds since the epoch; missing where they cannot be."""
    return whole(seconds * 1e9) if math.isfinite(seconds) and 0 < seconds * 1e9 < _MAX_NS else MISSING


def to_step(number: float) -> int:
    return whole(number) if math.isfinite(number) and 0 <= number < _MAX_NS else MISSING


class CutError(Exception):
    """A file ends, or goes wrong, within a record."""


class MetricRows:
    """Values of one file; `problem` says why there are no more of them, if there should be."""

    def __init__(self, source: Source, reader: str) -> None:
        self.problem = ""
        self.n_bad = 0
        self._source, self._reader = source, reader
        self._times, self._steps, self._ranks = array("q"), array("q"), array("i")
        self._names: dict[str, int] = {}
        self._codes, self._values = array("i"), array("d")
        self._rank = told_rank(source)

    @property
    def is_full(self) -> bool:
        return len(self._values) >= MAX_VALUES or len(self._names) >= MAX_NAMES

    def __len__(self) -> int:
        return len(self._values)

    def add(self, name: str, value: float, step: int, time_ns: int, rank: int = MISSING) -> None:
        self._times.append(time_ns)
        self._steps.append(step)
        self._ranks.append(self._rank if rank == MISSING else rank)
        self._codes.append(self._names.setdefault(name[:_MAX_NAME], len(self._names)))
        self._values.append(value)

    def take(self, records: Iterable[bytes], add: Callable[[MetricRows, bytes], None]) -> int:
        """Adds what the records hold, up to where the file is damaged. CutError where that is its beginning."""
        n_records = 0
        try:
            for record in records:
                n_records += 1
                add(self, record)
                if self.is_full:
                    break
        except (CutError, OSError, EOFError, zlib.error) as error:
            if not n_records:
                raise CutError(error) from error
            self.problem = f"ends in the middle of a record ({error})"
        return n_records

    def tables(self, host: str = "") -> Iterator[Table]:
        """The metrics, and the row of the file, with what is wrong with it."""
        n_rows = len(self._values)
        yield Table(
            "metrics",
            {
                "file_id": np.full(n_rows, self._source.file_id, np.int32),
                "rank": np.array(self._ranks, np.int32),
                "time_ns": np.array(self._times, np.int64),
                "step": np.array(self._steps, np.int64),
                "name": Text(np.array(self._codes, np.int32), list(self._names)),
                "value": np.array(self._values, np.float64),
            },
        )
        problem = self.problem
        if not problem and self.is_full:
            problem = f"has more than {MAX_VALUES:,} values or {MAX_NAMES:,} names: the rest was left out"
        if not problem and self.n_bad:
            problem = f"has {self.n_bad:,} {'entry' if self.n_bad == 1 else 'entries'} that cannot be read"
        row = {**self._source.file_columns(), "source": self._reader, "rank": self._rank, "host": host}
        outcome = {"status": "damaged", "problem": problem, "hint": CUT_HINT} if problem else {"status": "read"}
        yield Table.from_rows("files", [{**row, **outcome}])
