"""The rows that the sections about compiling show for all ranks together; see compiling_job.py."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import TypeVar

import numpy as np

from rankscope.model.tables import Array, Table, Text
from rankscope.render.compile_tree.outputs import Output, RankTree
from rankscope.render.compile_tree.page_data import Compilation, RankView, Row, compilations_of, id_order
from rankscope.render.page.compiling_job import Classes, Job, row_codes, split_ranks

Item = TypeVar("Item")
_DISTINCT = {
    "graph_breaks": (
        *("file", "line", "function", "code", "is_user", "reason", "explanation", "hints"),
        *("break_id", "url", "caller_file", "caller_line"),
    ),
    "compile_errors": ("type", "message", "file", "line", "function"),
    "log_lines": ("level", "channel", "message"),
}
_CHAIN = ("frame_id", "frame_compile_id", "against", "cause", "subject", "dimension", "file", "line")


def fitting(items: Sequence[Item], n_bytes: int, size: Callable[[Item], int]) -> Sequence[Item]:
    """As many items as there is room for, from the first on, and the first in any case."""
    ends = np.cumsum([size(item) for item in items])
    return items[: max(1, int(np.searchsorted(ends, n_bytes, "right")))]


def row_bytes(row: Row) -> int:
    """About what a row takes in the page."""
    return 400 + sum(len(value) for value in row.values() if isinstance(value, str))


class JobView(RankView):
    """Like the view of one rank, with the number of a log in place of its file: that of the rank that is shown."""

    def __init__(self, job: Job, classes: Classes, chosen: Array, outputs: list[Output]) -> None:
        super().__init__(job.trace, RankTree(-1, "", tuple(range(len(job.logs))), outputs))
        self.job = job
        self.classes = classes
        self.names_ranks = len(job.ranks) > 1
        self._shown = np.sort(classes.shown[chosen])
        self._is_chosen = np.zeros(len(classes.shown) + 1, bool)  # the last one is for those of no class
        self._is_chosen[chosen] = True

    def rows(self, table: str) -> list[Row]:
        if table not in self._rows:
            whole = self.trace.table(table)
            if table in _DISTINCT:
                self._rows[table] = self._distinct(whole)
            elif table == "compile_ledger":
                self._rows[table] = self._ledger(whole)
            elif table == "recompiles":
                self._rows[table] = self._chains(whole)
            else:
                self._rows[table] = self._of_shown(whole)
        return self._rows[table]

    def _of_shown(self, whole: Table) -> list[Row]:
        keys = self.job.keys(whole)
        shown_rows = np.flatnonzero(np.isin(keys, self._shown))
        return list(_renumbered(whole.take(shown_rows), self.job.log_of(keys[shown_rows])).rows())

    def _distinct(self, whole: Table) -> list[Row]:
        """Rows that say the same of occurrences that are alike come as one, with how many they are and whose.
        Occurrences that the page leaves out are not distinguished."""
        keys = self.job.keys(whole)
        known_rows = np.flatnonzero(keys >= 0)
        table, logs, classes = (
            whole.take(known_rows),
            self.job.log_of(keys[known_rows]),
            self.classes.of(keys[known_rows]),
        )
        classes = np.where(self._is_chosen[classes], classes, -1)
        codes = row_codes(table, _DISTINCT[whole.name])
        codes = codes * (int(classes.max(initial=0)) + 2) + classes + 1
        _, first, codes, counts = np.unique(codes, return_index=True, return_inverse=True, return_counts=True)
        ranks = split_ranks(codes, self.job.rank_of_log[logs], len(first))
        rows = list(_renumbered(table.take(first), self.classes.shown_logs(classes, logs)[first]).rows())
        for row, n_times, whose in zip(rows, counts.tolist(), ranks, strict=True):
            row["n_times"] = n_times
            if self.names_ranks:
                row["ranks"] = whose
        return rows

    def _chains(self, whole: Table) -> list[Row]:
        """For each frame that several ranks recompiled for the same reasons, the versions of the first rank.
        The values that a guard saw may differ from rank to rank without making it a different chain."""
        keys = self.job.keys(whole)
        known_rows = np.flatnonzero(keys >= 0)
        table, logs, classes = (
            whole.take(known_rows),
            self.job.log_of(keys[known_rows]),
            self.classes.of(keys[known_rows]),
        )
        frames = logs * (1 << 32) + table.array("frame_id")
        _, frame_of = np.unique(frames, return_inverse=True)
        said = table.replaced({"guard": _without_numbers(table.text("guard"))})
        pool = np.random.default_rng(9).integers(1, 1 << 63, len(known_rows) + 1, np.uint64)
        prints = np.zeros(int(frame_of.max(initial=-1)) + 1, np.uint64)
        np.add.at(prints, frame_of, pool[row_codes(said, (*_CHAIN, "guard"))])
        _, first, chain_of = np.unique(prints, return_index=True, return_inverse=True)
        chains = chain_of[frame_of]
        ranks = split_ranks(chains, self.job.rank_of_log[logs], len(first))
        shown = np.flatnonzero(first[chains] == frame_of)
        rows = list(_renumbered(table.take(shown), self.classes.shown_logs(classes, logs)[shown]).rows())
        for row, chain in zip(rows, chains[shown].tolist(), strict=True):
            row["chain"] = chain
            if self.names_ranks:
                row["ranks"] = ranks[chain]
        return rows

    def ledger(self) -> list[Row]:
        return self.rows("compile_ledger")

    def _ledger(self, whole: Table) -> list[Row]:
        """The most expensive line first; for each line, what its slowest rank spent, and the time of all together."""
        table = whole.take(np.flatnonzero(whole.array("run") == self.job.run))
        codes = row_codes(table, ("file", "line", "function"))
        total = table.array("total_ns")
        sums = np.zeros(int(codes.max(initial=-1)) + 1, np.int64)
        np.add.at(sums, codes, total)
        order = np.lexsort((table.array("rank"), -total, codes))
        slowest = order[np.unique(codes[order], return_index=True)[1]]
        rows = list(table.take(slowest).rows())
        for row, together in zip(rows, sums.tolist(), strict=True):
            if self.names_ranks:
                row |= {"slowest_rank": row["rank"], "all_ranks_ns": together}
        return sorted(rows, key=lambda row: -row["total_ns"])

    def compilations(self) -> list[Compilation]:
        """By compile id; of one id, what most ranks compiled comes first."""
        whose = dict(zip(self.classes.shown.tolist(), self.classes.ranks, strict=True))
        compilations = [each._replace(ranks=whose[self._key(each)]) for each in compilations_of(self)]
        compilations.sort(
            key=lambda each: (not each.key[1], id_order(each.key[1]), -len(each.ranks), each.ranks, each.key[0])
        )
        seen: dict[str, int] = {}
        anchored = []
        for each in compilations:
            seen[each.key[1]] = number = seen.get(each.key[1], 0) + 1
            name = each.key[1].replace("!", "a").replace("/", "-") or "none"
            anchor = f"compile-{name}" + (f"-v{number}" if number > 1 else "")
            anchored.append(each._replace(anchor=anchor, ranks=each.ranks if self.names_ranks else ()))
        return anchored

    def _key(self, each: Compilation) -> int:
        return self.job.key(*each.key)


def _renumbered(table: Table, logs: Array) -> Table:
    return table.replaced({"file_id": logs})


def _without_numbers(column: Text) -> Text:
    plain = Text.encode(re.sub(r"\d+", "#", value) for value in column.values)
    return Text(plain.codes[column.codes] if len(plain) else column.codes, plain.values)
