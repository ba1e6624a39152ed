"""Where in the user's code each compilation belongs: findings about compile logs, and the ledger, are grouped by it."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterable
from pathlib import PurePath
from typing import Any, NamedTuple

import numpy as np

from rankscope.analyze.derived import derived
from rankscope.model.finding import Location
from rankscope.model.tables import MISSING, Array, Table, Trace

# How Dynamo names the function that continues after a graph break.
_RESUMED = re.compile(r"^torch_dynamo_resume_in_(?P<function>.+)_at_(?P<line>\d+)$")

_TORCH = re.compile(r"(^|/)torch/")  # for files that are in no stack: old logs leave out the compiled frame
_CLOCK_NS = 1_000_000  # records are stamped in whole milliseconds

Compilation = tuple[int, str]  # file_id, compile_id: enough for logs that one process wrote
Key = tuple[int, int, str]  # file_id, rank, compile_id: a captured text may hold the output of several ranks


class Site(NamedTuple):
    """A compiled function of the user; for torch's own code, the user's line that calls it."""

    file: str
    line: int
    function: str
    is_call: bool = False

    @property
    def location(self) -> Location | None:
        return Location(self.file, max(self.line, 0), self.function) if self.file else None

    @property
    def place(self) -> str:
        return f"{PurePath(self.file).name}:{self.line}" if self.line >= 0 else PurePath(self.file).name

    @property
    def name(self) -> str:
        """For a title: `scaled`, `the call in training (train.py:101)`."""
        if self.is_call:
            return f"the call in {self.function} ({self.place})"
        return self.function or "an unnamed function"


NOWHERE = Site("", MISSING, "")


class Sites(NamedTuple):
    of_row: list[Site]  # by row of `compilations`
    of: dict[Compilation, Site]
    of_key: dict[Key, Site]
    reused: dict[Key, list[tuple[int, int, Site]]]  # ids that torch reused after a reset: record, start
    run_of: dict[int, int]  # by file

    def run(self, file_id: int) -> int:
        return self.run_of.get(file_id, 0)

    def find(self, row: dict[str, Any]) -> Site:
        """For a row of any table that names a compilation; text logs may name only the function."""
        key = key_of(row)
        if key in self.reused:
            return self._at(self.reused[key], row)
        if key in self.of_key:
            return self.of_key[key]
        if not row.get("file"):
            return NOWHERE
        function, line = base_function(row["function"])
        return Site(row["file"], row["line"] if line == MISSING else line, function)

    @staticmethod
    def _at(candidates: list[tuple[int, int, Site]], row: dict[str, Any]) -> Site:
        """Metrics are written after everything else that a compilation logs."""
        if "record" in row:
            return next((site for record, _, site in candidates if record >= row["record"]), candidates[-1][2])
        begun = [site for _, start_ns, site in candidates if start_ns <= row["time_ns"] + _CLOCK_NS]
        return begun[-1] if begun else candidates[0][2]


def sites_of(trace: Trace) -> Sites:
    return derived(trace, _make_sites)


def is_text_only(trace: Trace) -> bool:
    """True when all logs are captured TORCH_LOGS text, where a missing record means nothing."""
    return bool(trace.table("compile_logs").text("source").equals("text").all())


def key_of(row: dict[str, Any]) -> Key:
    return row["file_id"], row["rank"], row["compile_id"]


def keys_of(table: Table) -> list[Key]:
    columns = table.array("file_id").tolist(), table.array("rank").tolist(), table.text("compile_id").tolist()
    return list(zip(*columns, strict=True))


def row_keys(table: Table) -> Array:
    """A number for each row, equal for rows of one compilation: for tables too long to make keys of every row."""
    file_ids, ranks = table.array("file_id").astype(np.int64), table.array("rank").astype(np.int64) + 1
    compile_ids = table.text("compile_id")
    n_ranks = int(ranks.max(initial=0)) + 1
    return np.asarray((file_ids * n_ranks + ranks) * max(len(compile_ids.values), 1) + compile_ids.codes)


def last_rows(keys: Array) -> Array:
    """The last position of each stretch of equal numbers."""
    return np.flatnonzero(np.append(keys[1:] != keys[:-1], np.ones(min(len(keys), 1), bool)))


def base_function(function: str) -> tuple[str, int]:
    """(`step`, 12) for torch_dynamo_resume_in_step_at_12; the function itself and MISSING for all others."""
    resumed = _RESUMED.match(function)
    return (resumed["function"], int(resumed["line"][:9])) if resumed else (function, MISSING)


def _make_sites(trace: Trace) -> Sites:
    logs, compilations = trace.table("compile_logs"), trace.table("compilations")
    run_of = dict(zip(logs.array("file_id").tolist(), logs.array("run").tolist(), strict=True))
    stacks, keys = trace.table("compile_stacks"), keys_of(compilations)
    callers = _callers(stacks)
    columns = [compilations.text("file").tolist(), compilations.array("line").tolist()]
    rows = list(zip(keys, *columns, compilations.text("function").tolist(), strict=True))
    is_own = _own_files(stacks)
    defined = _definitions(rows)
    of_row = [
        _own_site(key[0], file, line, function, defined)
        if key not in callers or is_own.get(file, not _TORCH.search(file))
        else callers[key]
        for key, file, line, function in rows
    ]
    of_key = {key: site for key, site in zip(keys, of_row, strict=True) if site.function}
    of = {(file_id, compile_id): site for (file_id, _, compile_id), site in of_key.items()}
    return Sites(of_row, of, of_key, _reused(compilations, of_row), run_of)


def _reused(compilations: Table, sites: list[Site]) -> dict[Key, list[tuple[int, int, Site]]]:
    sites_of: dict[Key, list[tuple[int, int, Site]]] = {}
    places = zip(compilations.array("record").tolist(), compilations.array("start_ns").tolist(), sites, strict=True)
    for key, compiled_at in zip(keys_of(compilations), places, strict=True):
        sites_of.setdefault(key, []).append(compiled_at)
    return {key: sorted(uses) for key, uses in sites_of.items() if len({site for _, _, site in uses}) > 1}


def _definitions(rows: Iterable[tuple[Any, ...]]) -> dict[tuple[int, str, str], list[int]]:
    """(log, file, function) -> its first lines, in order: several classes of one file may each have a `forward`."""
    lines: dict[tuple[int, str, str], set[int]] = {}
    for key, file, line, function in rows:
        if not _RESUMED.match(function):
            lines.setdefault((key[0], file, function), set()).add(line)
    return {key: sorted(first_lines) for key, first_lines in lines.items()}


def _own_site(
    file_id: int, file: str, line: int, function: str, defined: dict[tuple[int, str, str], list[int]]
) -> Site:
    base, resumed_at = base_function(function)
    if resumed_at == MISSING:
        return Site(file, line, function)
    starts = defined.get((file_id, file, base), [])
    position = bisect_right(starts, resumed_at)
    return Site(file, starts[position - 1] if position else resumed_at, base)


def _own_files(stacks: Table) -> dict[str, bool]:
    """For each file in the stacks, whether it is the user's code."""
    files = stacks.text("file")
    codes, rows = np.unique(files.codes, return_index=True)
    return {files.values[code]: bool(stacks.array("is_user")[row]) for code, row in zip(codes, rows, strict=True)}


def _callers(stacks: Table) -> dict[Key, Site]:
    """The user's innermost line under which each compilation started: it is shown instead of torch's own code, such as
    the wrapper of a module. Rows go from the outermost call inward."""
    user_rows = np.flatnonzero(stacks.array("is_user"))
    part = stacks.take(user_rows[last_rows(row_keys(stacks)[user_rows])])
    places = zip(part.text("file").tolist(), part.array("line").tolist(), part.text("function").tolist(), strict=True)
    sites = (Site(file, line, base_function(function)[0], True) for file, line, function in places)
    return dict(zip(keys_of(part), sites, strict=True))
