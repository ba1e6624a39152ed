"""Which compile logs belong to one run of the job, and the ranks and file names that only several logs together show.

A folder may hold the logs of several runs, and a restarted job leaves two logs of one rank. Logs of one rank that do
not overlap in time come from different runs; a forked process writes its own log next to its parent's.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np

from rankscope.model.payloads import mapped_log
from rankscope.model.tables import MISSING, Table, Text, Trace

_WITH_RANK = (
    "compile_records",
    "compilations",
    "compile_stacks",
    "graph_breaks",
    "recompiles",
    "guards",
    "cache_events",
    "compile_errors",
    "log_lines",
)
# What TORCH_LOGS prints of a process, its TORCH_TRACE file has as well, and more exactly.
_TOLD_TWICE = ("compilations", "compile_stacks", "graph_breaks", "recompiles", "guards")
Row = dict[str, Any]
Span = tuple[int, int]


def settle_compile_logs(trace: Trace) -> dict[str, Table]:
    """compile_logs with runs and ranks, and the tables whose rows took their rank from there."""
    if "compile_logs" not in trace.tables:
        return {}
    logs = list(trace.table("compile_logs").rows())
    _name_collected(trace, logs)
    for log, run in zip(logs, runs_of(logs), strict=True):
        log["run"] = run
    _name_unranked(logs)
    per_file = Counter(log["file_id"] for log in logs)
    ranks = {log["file_id"]: log["rank"] for log in logs if per_file[log["file_id"]] == 1}
    settled = {"compile_logs": Table.from_rows("compile_logs", logs)}
    for name in (*_WITH_RANK, "files"):
        if name in trace.tables:
            settled[name] = _with_ranks(trace.tables[name], ranks)
    for name in _TOLD_TWICE:
        if name in settled:
            settled[name] = _without(settled[name], _told_better(logs))
    names = _inherited_names(trace, logs)
    for name in ("compilations", "compile_stacks", "guards", "compile_errors"):
        if name in settled and names:
            settled[name] = _with_files(settled[name], names)
    return settled


def runs_of(logs: list[Row]) -> list[int]:
    """The run number of each log. The rank with the most consecutive logs shows where runs begin."""
    by_rank: dict[int, list[Row]] = {}
    for log in sorted(logs, key=lambda log: (log["first_ns"], log["file_id"])):
        if not log["n_unresolved"]:  # a forked process continues its parent's run, however late it writes
            by_rank.setdefault(log["rank"], []).append(log)
    generations = max((_generations(logs_of_rank) for logs_of_rank in by_rank.values()), key=len, default=[])
    if len(generations) < 2:
        return [0] * len(logs)
    return [min(range(len(generations)), key=lambda run: _distance(log, generations[run])) for log in logs]


def _generations(logs: list[Row]) -> list[Span]:
    """Spans of time that do not overlap; the logs of a parent and of its forked children share one."""
    spans: list[Span] = []
    for log in logs:
        if spans and log["first_ns"] <= spans[-1][1]:
            spans[-1] = (spans[-1][0], max(spans[-1][1], log["last_ns"]))
        else:
            spans.append((log["first_ns"], log["last_ns"]))
    return spans


def _distance(log: Row, span: Span) -> int:
    return max(span[0] - int(log["last_ns"]), int(log["first_ns"]) - span[1], 0)


def _name_collected(trace: Trace, logs: list[Row]) -> None:
    """torch leaves the rank out of the name when it compiles before init_process_group: the collector's manifest has
    it. The names contain random letters: one that two ranks wrote says nothing."""
    ranks: dict[str, set[int]] = {}
    collected = trace.table("collected_files")
    for file, rank in zip(collected.text("file").tolist(), collected.array("rank").tolist(), strict=True):
        ranks.setdefault(_base(file), set()).add(rank)
    files = trace.table("files")
    paths = dict(zip(files.array("file_id").tolist(), files.text("path").tolist(), strict=True))
    for log in (log for log in logs if log["rank"] == MISSING):
        named = ranks.get(_base(paths.get(log["file_id"], "")), set())
        if len(named) == 1:
            (log["rank"],) = named


def _base(path: str) -> str:
    return path.replace("!", "/").rsplit("/", 1)[-1]


def _name_unranked(logs: list[Row]) -> None:
    """A job whose logs have no rank at all is not distributed: its one process is rank 0."""
    for run in {log["run"] for log in logs}:
        run_logs = [log for log in logs if log["run"] == run]
        if all(log["rank"] == MISSING for log in run_logs):
            for log in run_logs:
                log["rank"] = 0


def _told_better(logs: list[Row]) -> set[tuple[int, int]]:
    """(file, rank) of the text logs whose process also left a TORCH_TRACE file."""
    traced = {(log["pid"], log["rank"]) for log in logs if log["source"] == "trace" and log["pid"] != MISSING}
    texts = (log for log in logs if log["source"] == "text")
    return {(log["file_id"], log["rank"]) for log in texts if (log["pid"], log["rank"]) in traced}


def _without(table: Table, left_out: set[tuple[int, int]]) -> Table:
    if not left_out:
        return table
    keys = zip(table.array("file_id").tolist(), table.array("rank").tolist(), strict=True)
    return table.take(np.flatnonzero([key not in left_out for key in keys]))


def _with_ranks(table: Table, ranks: dict[int, int]) -> Table:
    """Rows without a rank take their file's."""
    known_ranks, files = table.array("rank"), table.array("file_id")
    if not (known_ranks == MISSING).any():
        return table
    of_file = np.full(max([*ranks, int(files.max()), 0]) + 1, MISSING, known_ranks.dtype)
    for file, rank in ranks.items():
        of_file[file] = rank
    return table.replaced({"rank": np.where(known_ranks == MISSING, of_file[files], known_ranks)})


def _inherited_names(trace: Trace, logs: list[Row]) -> dict[tuple[int, str], str]:
    """(file, placeholder) -> file name, from the log that the forked process's parent wrote before the fork."""
    names: dict[tuple[int, str], str] = {}
    for child in (log for log in logs if log["n_unresolved"] > 0):
        before = [log for log in logs if log["first_ns"] <= child["first_ns"] and log["file_id"] != child["file_id"]]
        parents = [log for log in before if (log["run"], log["rank"]) == (child["run"], child["rank"])]
        if len({log["pid"] for log in parents}) == 1:  # with several, nobody can tell
            for number, text in _strings_of(trace, parents[-1]["file_id"]).items():
                names[child["file_id"], f"<string {number}>"] = text
    return names


def _strings_of(trace: Trace, file_id: int) -> dict[int, str]:
    import json

    records = trace.table("compile_records")
    wanted = records.text("kind").equals("str") & (records.array("file_id") == file_id)
    strings = {}
    for row in records.take(wanted.nonzero()[0]).rows():
        text, number = json.loads(mapped_log(trace, file_id).header(row))["str"]
        strings[number] = text
    return strings


def _with_files(table: Table, names: dict[tuple[int, str], str]) -> Table:
    files = table.text("file").tolist()
    keys = zip(table.array("file_id").tolist(), files, strict=True)
    return table.replaced({"file": Text.encode(names.get(key, key[1]) for key in keys)})
