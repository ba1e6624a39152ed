"""The files about several ranks together, under tlparse's names and with its keys: scripts were built on them.

All records of a compilation count, in the order of the log. Where the logs hold nothing for a file it is not written.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from rankscope.model.code_collectives import collectives_parity
from rankscope.model.tables import Trace
from rankscope.render.compile_tree.outputs import Output, RankTree

Row = dict[str, Any]
Entry = dict[str, Any]
_PARITY_MEANING = (
    "Compilations whose generated code calls different collectives than the scheduler listed (offset: how many calls "
    "only one of them has), or waits for fewer than it starts (missing_waits)."
)


def write_shared_files(trace: Trace, folder: str, trees: Sequence[RankTree]) -> list[str]:
    """The names of the files that were written."""
    from rankscope.render.compile_tree.timeline import write_chromium_events

    file_ids = [file_id for tree in trees for file_id in tree.file_ids]
    write_chromium_events(trace, file_ids, Path(folder, "chromium_events.json"))
    estimates = _by_graph(trace, trees, "compile_estimates")
    entries: dict[str, Iterable[Entry]] = {
        "collective_schedules.json": (
            {**graph, "ops": [row["op"] for row in rows]}
            for graph, rows in _by_graph(trace, trees, "compile_collectives")
        ),
        "runtime_estimations.json": ({**graph, "ops": list(map(_estimate, rows))} for graph, rows in estimates),
        "chromium_trace_with_runtime.json": _runtime_events(estimates),
        "graph_execution_order.json": _execution_orders(trace, trees),
    }
    written = [name for name, made in entries.items() if _write_list(Path(folder, name), made)]
    return ["chromium_events.json", *written]


def write_parity(trace: Trace, tree: RankTree, folder: str) -> None:
    """collectives_parity.json of one rank. It lists only compilations with a schedule, and code to compare it with."""
    outputs = _outputs_by_place(tree)
    differing = []
    for parity in collectives_parity(trace):
        output = outputs.get((parity.file_id, parity.record))
        if output and (parity.offset or parity.missing_waits):
            differing.append(
                {
                    "graph": output.compile_dir,
                    "compile_id": output.label,
                    "offset": parity.offset,
                    "missing_waits": parity.missing_waits,
                }
            )
    content = msgspec.json.encode({"description": _PARITY_MEANING, "graphs": differing})
    Path(folder, "collectives_parity.json").write_bytes(msgspec.json.format(content, indent=2))


def _outputs_by_place(tree: RankTree) -> dict[tuple[int, int], Output]:
    return {(output.row["file_id"], output.row["record"]): output for output in tree.outputs}


def _by_graph(trace: Trace, trees: Sequence[RankTree], table: str) -> list[tuple[Entry, list[Row]]]:
    """The rows of each graph with its rank and the name of its folder. A forked process has graphs of its own."""
    outputs = {key: (tree.rank, output) for tree in trees for key, output in _outputs_by_place(tree).items()}
    graphs: dict[tuple[int, int, str], list[Row]] = {}
    for row in trace.table(table).rows():
        if (row["file_id"], row["record"]) in outputs:
            rank, output = outputs[row["file_id"], row["record"]]
            graphs.setdefault((rank, row["file_id"], output.compile_dir), []).append(row)
    by_rank = sorted(graphs.items(), key=lambda item: item[0][0])
    return [({"rank": rank, "graph": name}, rows) for (rank, _, name), rows in by_rank]


def _estimate(row: Row) -> Entry:
    return {"name": row["op"], "estimated_runtime_ns": max(row["estimate_ns"], 0)}


def _runtime_events(estimates: Iterable[tuple[Entry, list[Row]]]) -> Iterator[Entry]:
    """A process per rank, a thread per graph, and its operations end to end, each of at least a microsecond."""
    n_graphs: dict[int, int] = {}
    for graph, rows in estimates:
        rank, start = graph["rank"], 0
        thread = n_graphs[rank] = n_graphs.get(rank, 0) + 1
        if thread == 1:
            yield {"name": "process_name", "ph": "M", "pid": rank, "args": {"name": f"rank {rank}"}}
        yield {"name": "thread_name", "ph": "M", "pid": rank, "tid": thread, "args": {"name": graph["graph"]}}
        for row in rows:
            nanoseconds = max(row["estimate_ns"], 0)
            length = max(1, math.ceil(nanoseconds / 1000))
            yield {
                "name": row["op"],
                "cat": "runtime",
                "ph": "X",
                "ts": start,
                "dur": length,
                "pid": rank,
                "tid": thread,
                "args": {**graph, "runtime_ns": nanoseconds},
            }
            start += length


def _execution_orders(trace: Trace, trees: Sequence[RankTree]) -> Iterator[Entry]:
    ranks = {file_id: tree.rank for tree in trees for file_id in tree.file_ids}
    orders: dict[int, list[str]] = {}
    for row in trace.table("graph_executions").rows():
        if row["file_id"] in ranks:
            orders.setdefault(ranks[row["file_id"]], []).append(row["compile_id"])
    return ({"rank": rank, "graph_execution_order": orders[rank]} for rank in sorted(orders))


def _write_list(path: Path, entries: Iterable[Entry]) -> bool:
    """A JSON list with a line per entry, written as it is made; no file, and False, when there is none."""
    lines = map(msgspec.json.encode, entries)
    first = next(lines, None)
    if first is None:
        return False
    with open(path, "wb") as file:
        file.write(b"[\n" + first)
        for line in lines:
            file.write(b",\n" + line)
        file.write(b"\n]\n")
    return True
