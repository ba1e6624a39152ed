"""`rankscope export --to chakra`: linked execution traces as the files that simulators take, one per rank."""

from __future__ import annotations

import os
import re
import shlex
from typing import TYPE_CHECKING, Any

from rankscope.commands import output
from rankscope.commands.linking import durations_notes, file_paths, load_linked
from rankscope.commands.progress import Progress
from rankscope.errors import OutputError, UsageError

if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Iterator, Sequence

    from rankscope.analyze.chakra.building.graphs import Built
    from rankscope.model.tables import Trace

# What may be missing from a graph, by its field, and why. Dependencies on what is missing need no words of their own.
_REASONS = {
    "nodes_outside": "nodes left out: they ran before or after the profiler recorded",
    "kernels_outside": "kernels left out: they were launched before or after the observer recorded",
    "edges_backwards": "dependencies left out: they point to later nodes and would form a cycle",
    "calls_unplaced": "collectives left out: neither their operator nor their kernel was recorded",
    "calls_unknown": "collectives written as computation: Chakra has no type for them",
    "calls_memberless": "collectives written as computation: no trace shows their group or peer",
    "calls_sizeless": "collectives written with 1 byte: simulators never finish a collective of 0 bytes",
}
_HEADS = ("rank", "nodes", "operators", "host time", "kernels", "collectives", "sends", "recvs", "ctrl", "data", "file")


def export_chakra(args: Namespace) -> int:
    folder = args.output.rstrip(os.sep) or args.output
    _check_folder(folder, args.name, args.force)
    trace = load_linked(args)
    try:
        os.makedirs(folder, exist_ok=True)
    except OSError as error:
        raise OutputError(
            f"cannot create the folder {folder}: {error.strerror}", "choose another one with -o"
        ) from error
    ranks = list(_write_ranks(trace, folder, args.name))
    if args.json:
        output.print_json({"path": folder, "format": "chakra", "ranks": ranks})
    else:
        output.print_lines(_summary(ranks, folder, args))
    return 0


def _check_folder(folder: str, name: str, force: bool) -> None:
    """Refuses before the work is done, not after."""
    if not name or os.sep in name:
        raise UsageError(
            f"{name!r} cannot be a file name", "use a plain name: --name job writes job.0.et, job.1.et, ..."
        )
    if os.path.lexists(folder) and not os.path.isdir(folder):
        raise OutputError(f"{folder} is a file", "give the name of a folder")
    if force or not os.path.isdir(folder):
        return
    trace_name = re.compile(re.escape(name) + r"\.\d+\.et")
    if any(trace_name.fullmatch(file) for file in os.listdir(folder)):
        raise OutputError(
            f"{folder} already has files {name}.<rank>.et",
            "choose another folder or --name, or add --force to overwrite them",
        )


def _write_ranks(trace: Trace, folder: str, name: str) -> Iterator[dict[str, Any]]:
    from rankscope.analyze.chakra.building.graphs import build_graphs
    from rankscope.analyze.link.reasons import is_without_operators
    from rankscope.render.chakra_file import write_graph

    paths = file_paths(trace)
    empty = {pair["file_id"] for pair in trace.table("et_pairs").rows() if is_without_operators(pair)}
    traces = trace.table("et_traces")
    of_rank: dict[int, list[int]] = {}
    for rank, file_id in zip(traces.array("rank").tolist(), traces.array("file_id").tolist(), strict=True):
        of_rank.setdefault(rank, []).append(file_id)
    done = 0
    with Progress() as progress:
        for built in build_graphs(trace):
            progress(done, len(of_rank), "writing")
            path = os.path.join(folder, f"{name}.{built.graph.rank}.et")
            write_graph(built.graph, path)
            file_id = built.source.file_id
            described = {
                "rank": built.graph.rank,
                "path": path,
                "execution_trace": paths[file_id],
                "has_operators": file_id not in empty,
                "unused_execution_traces": [paths[other] for other in of_rank[built.graph.rank] if other != file_id],
                "profiler_traces": [paths[profile] for profile in built.source.profile_ids],
                **_counts(built),
            }
            del built  # before the next one is made
            yield described
            done += 1


def _counts(built: Built) -> dict[str, Any]:
    import numpy as np

    from rankscope.model.chakra import NODE_TYPES

    graph = built.graph
    by_type = np.bincount(graph.type, minlength=len(NODE_TYPES)).tolist()
    return {
        "n_nodes": len(graph.type),
        "nodes_by_type": {name: count for name, count in zip(NODE_TYPES, by_type, strict=True) if count},
        "n_operators": built.n_operators,
        "n_host_time": built.n_host_time,
        "n_kernels": built.n_kernels,
        "n_ctrl_deps": len(graph.ctrl_deps.values),
        "n_data_deps": len(graph.data_deps.values),
        "n_inflated": built.n_inflated,
        "n_transplanted": built.n_transplanted,
        "left_out": built.left_out._asdict(),
    }


def _summary(ranks: Sequence[dict[str, Any]], folder: str, args: Namespace) -> Iterator[str]:
    import sys

    from rankscope.render.plain_table import table_lines

    rows = [
        (
            rank["rank"],
            rank["n_nodes"],
            rank["n_operators"],
            rank["n_host_time"],
            rank["n_kernels"],
            *(rank["nodes_by_type"].get(f"COMM_{kind}_NODE", 0) for kind in ("COLL", "SEND", "RECV")),
            rank["n_ctrl_deps"],
            rank["n_data_deps"],
            rank["path"],
        )
        for rank in ranks
    ]
    yield from table_lines(_HEADS, rows, output.text_width(sys.stdout))
    yield ""
    yield from _notes(ranks, args)
    yield f"Next: rankscope chakra validate {shlex.quote(folder)}"


def _notes(ranks: Sequence[dict[str, Any]], args: Namespace) -> Iterator[str]:
    from rankscope.model.finding import ranks_phrase

    empty = [rank["rank"] for rank in ranks if not rank["has_operators"]]
    if empty:
        yield f"note: {ranks_phrase(empty)}: the execution trace has no operators, so there is nothing to replay (L505)"
    without = [rank["rank"] for rank in ranks if not rank["profiler_traces"]]
    if without:
        yield f"note: {ranks_phrase(without)}: no profiler trace of the same steps, so all nodes have duration 0"
    for rank in ranks:
        for path in rank["unused_execution_traces"]:
            yield f"note: {path} was not used: {rank['execution_trace']} has more of rank {rank['rank']}"
    for field, reason in _REASONS.items():
        affected = [rank for rank in ranks if rank["left_out"][field]]
        if affected:
            n_all = sum(rank["left_out"][field] for rank in affected)
            yield f"note: {n_all:,} {reason} ({ranks_phrase([rank['rank'] for rank in affected])})"
    full = [rank for rank in ranks if rank["has_operators"]]
    n_inflated, n_moved = (sum(rank[name] for rank in full) for name in ("n_inflated", "n_transplanted"))
    yield from durations_notes(args, n_inflated, n_moved)
