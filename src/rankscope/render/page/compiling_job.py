"""What all ranks compiled, listed once where they agree: the logs of the newest run, column by column.

A thousand ranks that compile the same sixty graphs leave millions of rows. What one log says of one compile id is an
occurrence; occurrences that say the same form a class, and only one of each, the slowest, is looked at row by row.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import NamedTuple

import numpy as np

from rankscope.model.tables import Array, Table, Text, Trace
from rankscope.render.compile_tree.page_data import Totals
from rankscope.render.compile_tree.ranks_sections import RankTotals

# What has to be the same for two ranks to have compiled the same.
_ALIKE = {
    "compilations": ("phase", "attempt", "status", "function", "file", "line", "fail_type", "n_ops"),
    "compile_stacks": ("depth", "file", "line", "function"),
    "graph_breaks": ("file", "line", "reason"),
    "compile_graphs": ("fingerprint",),
}
_RANKS = 1 << 31
_IDS = 1 << 32  # a key is the number of the log times this, plus the number of the compile id


class Log(NamedTuple):
    file_id: int
    rank: int  # a text log may have several, one after the other


class Job:
    """The logs of one run of the job. Ranks are compared only within it."""

    def __init__(self, trace: Trace) -> None:
        self.trace = trace
        logs = list(trace.table("compile_logs").rows())
        traced = [log for log in logs if log["source"] == "trace"]
        self.n_runs = len({log["run"] for log in logs})
        self.run: int = max((log["run"] for log in traced or logs), default=0)
        chosen = [log for log in logs if log["run"] == self.run]
        chosen.sort(key=lambda log: (log["rank"], log["first_ns"], log["file_id"]))
        self.logs = [Log(log["file_id"], log["rank"]) for log in chosen]
        self.is_traced = bool(traced)
        self.ranks = sorted({log.rank for log in self.logs})
        self.cut_ranks = sorted({log["rank"] for log in chosen if log["is_cut"] and log["rank"] >= 0})
        self._ids: dict[str, int] = {}

    def logs_of(self, table: Table) -> Array:
        """The number of each row's log; -1 for logs of other runs."""
        files = table.array("file_id")
        of_file = _looked_up({log.file_id: number for number, log in enumerate(self.logs)}, files)
        pairs = {log.file_id * _RANKS + log.rank: number for number, log in enumerate(self.logs)}
        of_pair = _looked_up(pairs, files.astype(np.int64) * _RANKS + table.array("rank"))
        return np.where(of_pair >= 0, of_pair, of_file)

    def keys(self, table: Table) -> Array:
        """Equal for rows of one occurrence; negative for logs of other runs."""
        column = table.text("compile_id")
        ids = np.fromiter((self._ids.setdefault(name, len(self._ids)) for name in column.values), np.int64)
        logs = self.logs_of(table)
        return np.where(logs < 0, -1, logs * _IDS + (ids[column.codes] if len(ids) else 0))

    def key(self, log: int, compile_id: str) -> int:
        return log * _IDS + self._ids[compile_id]

    def log_of(self, keys: Array) -> Array:
        return keys // _IDS

    @cached_property
    def rank_of_log(self) -> Array:
        return np.array([log.rank for log in self.logs], np.int64)


class Classes:
    """Occurrences that are alike. Classes are numbered in no order that means anything."""

    def __init__(self, job: Job, with_files: Table) -> None:
        self.job = job
        tables = {name: job.trace.table(name) for name in _ALIKE}
        keys = {name: job.keys(table) for name, table in tables.items()}
        whole = np.unique(np.concatenate([*keys.values(), job.keys(with_files)]))
        self.occurrences = whole[whole >= 0]
        prints = _random(self.occurrences % _IDS, 0)
        durations = np.zeros(len(self.occurrences), np.int64)
        for seed, (name, columns) in enumerate(_ALIKE.items(), start=1):
            chosen = np.flatnonzero(keys[name] >= 0)
            places = np.searchsorted(self.occurrences, keys[name][chosen])
            np.add.at(prints, places, _random(row_codes(tables[name], columns)[chosen], seed))
            if name == "compilations":
                np.add.at(durations, places, np.maximum(tables[name].array("duration_ns")[chosen], 0))
        _, self.class_of = np.unique(prints, return_inverse=True)
        # Of each class the slowest occurrence, the first of these where several took as long.
        order = np.lexsort((np.arange(len(durations)), -durations, self.class_of))
        _, first = np.unique(self.class_of[order], return_index=True)
        self.shown = self.occurrences[order[first]]
        self.durations = durations[order[first]]
        ranks = job.rank_of_log[job.log_of(self.occurrences)]
        self.ranks = split_ranks(self.class_of, ranks, len(self.shown))

    def of(self, keys: Array) -> Array:
        """The class of each occurrence; -1 where it has none."""
        if not len(self.occurrences):
            return np.full(len(keys), -1)
        places = np.minimum(np.searchsorted(self.occurrences, keys), len(self.occurrences) - 1)
        return np.where(self.occurrences[places] == keys, self.class_of[places], -1)

    def shown_logs(self, classes: Array, logs: Array) -> Array:
        """The log that stands for each class; rows of no class keep their own."""
        if not len(self.shown):
            return logs
        return np.where(classes >= 0, self.job.log_of(self.shown[np.maximum(classes, 0)]), logs)

    def by_interest(self) -> Array:
        """What few ranks compiled, then what failed, then the most expensive."""
        n_ranks = np.array([len(ranks) for ranks in self.ranks])
        failed = np.isin(self.shown, self._failed)
        return np.lexsort((self.shown, -self.durations, ~failed, n_ranks * 2 >= len(self.job.ranks)))

    @cached_property
    def _failed(self) -> Array:
        compilations = self.job.trace.table("compilations")
        return self.job.keys(compilations)[compilations.text("status").equals("failed")]


def row_codes(table: Table, columns: Sequence[str]) -> Array:
    """A number per row, equal where all of these columns are."""
    codes = np.zeros(len(table), np.int64)
    for name in columns:
        column = table.columns[name]
        _, column_codes = np.unique(column.codes if isinstance(column, Text) else column, return_inverse=True)
        _, codes = np.unique(codes * (int(column_codes.max(initial=0)) + 1) + column_codes, return_inverse=True)
    return codes


def split_ranks(codes: Array, ranks: Array, n_codes: int) -> list[tuple[int, ...]]:
    """The ranks behind each code, which are the numbers from 0 on."""
    order = np.lexsort((ranks, codes))
    ends = np.searchsorted(codes[order], np.arange(1, n_codes))
    return [tuple(dict.fromkeys(same.tolist())) for same in np.split(ranks[order], ends)] if n_codes else []


def _random(codes: Array, seed: int) -> Array:
    """A number for each code that no other sum of such numbers is likely to hit; the same in every process."""
    pool = np.random.default_rng(seed).integers(1, 1 << 63, int(codes.max(initial=0)) + 1, np.uint64)
    return pool[codes]


def _looked_up(numbers: dict[int, int], values: Array) -> Array:
    known = np.array(sorted(numbers), np.int64)
    if not len(known):
        return np.full(len(values), -1)
    places = np.minimum(np.searchsorted(known, values), len(known) - 1)
    looked_up = np.array([numbers[number] for number in known.tolist()], np.int64)[places]
    return np.where(known[places] == values, looked_up, -1)


def rank_totals(job: Job) -> list[RankTotals]:
    """What each rank compiled and spent."""
    ranks = np.array(job.ranks, np.int64)

    def per_rank(keys: Array, *, distinct: bool = False) -> list[int]:
        counted = np.unique(keys[keys >= 0]) if distinct else keys[keys >= 0]
        places = np.searchsorted(ranks, job.rank_of_log[job.log_of(counted)]) if len(counted) else np.empty(0, np.int64)
        counts: list[int] = np.bincount(places, minlength=len(ranks)).tolist()
        return counts

    compilations, stacks, breaks, caches = map(
        job.trace.table, ("compilations", "compile_stacks", "graph_breaks", "cache_events")
    )
    keys, broken = job.keys(compilations), job.keys(breaks)
    outcomes, looked = caches.text("outcome"), job.keys(caches)
    ledger = job.trace.table("compile_ledger")
    of_run = np.flatnonzero((ledger.array("run") == job.run) & np.isin(ledger.array("rank"), ranks))
    at = np.searchsorted(ranks, ledger.array("rank")[of_run])
    spent = [np.zeros(len(ranks), np.int64) for _ in range(2)]
    for sums, column in zip(spent, ("total_ns", "recompile_ns"), strict=True):
        np.add.at(sums, at, ledger.array(column)[of_run])
    columns = (
        per_rank(np.concatenate([keys, job.keys(stacks)]), distinct=True),
        spent[0].tolist(),
        per_rank(keys[compilations.array("frame_compile_id") > 0], distinct=True),
        spent[1].tolist(),
        per_rank(keys[compilations.text("status").equals("failed")], distinct=True),
        per_rank(broken),
        per_rank(broken[np.unique(row_codes(breaks, ("rank", "file", "line", "reason")), return_index=True)[1]]),
        *(per_rank(looked[outcomes.equals(name)]) for name in ("hit", "miss", "bypass")),
    )
    return [
        RankTotals(rank, Totals(*numbers)) for rank, numbers in zip(job.ranks, zip(*columns, strict=True), strict=True)
    ]
