"""Linked traces made by hand: a few nodes and kernels with their times, edges and collectives, as tables."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any

from rankscope.analyze.chakra.building.graphs import Built, build_graphs
from rankscope.model.chakra import ChakraGraph, Ragged
from rankscope.model.tables import Table, Trace

ET_FILE, PROFILE = 10, 20
ORIGIN_NS = 1_700_000_000_000_000_000
MAIN, OTHER = 501, 502
_LISTS = ("inputs", "input_shapes", "input_types", "outputs", "output_shapes", "output_types")
Rows = dict[str, list[dict[str, Any]]]


@dataclass
class Linked:
    """One rank. Times are microseconds; nodes are numbered from 1 in the order in which they are given."""

    rank: int = 0
    rows: Rows = field(default_factory=lambda: defaultdict(list))

    @property
    def file_id(self) -> int:
        return ET_FILE + self.rank

    @property
    def profile_id(self) -> int:
        return PROFILE + self.rank

    def node(self, name: str, start: float, end: float, parent: int = 0, tid: int = MAIN, **more: Any) -> int:
        """`seen=False`: no profiler saw it. `annotation=True`: it is no operator. All else are columns of the node."""
        number = len(self.rows["et_nodes"]) + 1
        seen, annotation = more.pop("seen", True), more.pop("annotation", False)
        self.rows["et_nodes"].append(
            {
                **self._key(),
                "node_id": number,
                "position": number,
                "name": name,
                "kind": "op",
                "parent_id": parent or -1,
                "record_id": 1000 + number,
                "thread": 1,
                "scope": 7 if annotation else 0,
                **dict.fromkeys(_LISTS, "[]"),
                **more,
            }
        )
        link = {**self._key(), "node_id": number, "how": "none", "own_ns": -1}
        if seen:
            link |= {"profile_id": self.profile_id, "duration_from": self.profile_id, "how": "id", "tid": tid}
            link |= {"start_ns": at(start), "duration_ns": ns(end - start), "own_ns": ns(end - start)}
            link["annotation_id" if annotation else "op_id"] = number
            above = self.rows["et_links"][parent - 1] if parent else {}
            if above.get("tid") == tid:
                above["own_ns"] -= ns(end - start)
        self.rows["et_links"].append(link)
        return number

    def kernel(self, name: str, start: float, end: float, launched: float, stream: int = 7) -> int:
        number = len(self.rows["kernels"]) + 1
        self.rows["kernels"].append(
            {
                "file_id": self.profile_id,
                "rank": self.rank,
                "kernel_id": number,
                "name": name,
                "kind": "kernel",
                "device": 0,
                "stream": stream,
                "start_ns": at(start),
                "duration_ns": ns(end - start),
                "launch_tid": MAIN,
                "launch_start_ns": at(launched),
                "launch_end_ns": at(launched) + 500,
            }
        )
        return number

    def edge(self, kind: str, before: int, after: int, source: str = "node", target: str = "node") -> None:
        files = {"node": self.file_id, "kernel": self.profile_id}
        self.rows["et_edges"].append(
            {
                "kind": kind,
                **self._key(),
                "file_id": files[target],
                "target": target,
                "target_id": after,
                "from_rank": self.rank,
                "from_file_id": files[source],
                "source": source,
                "source_id": before,
            }
        )

    def group(self, name: str, ranks: str = "[]", size: int = 2, desc: str = "") -> None:
        self.rows["et_groups"].append({**self._key(), "name": name, "ranks": ranks, "size": size, "desc": desc})

    def collective(self, op: str, node: int, *, kernel: int = 0, **more: Any) -> None:
        runner = {"runner": "kernel", "runner_id": kernel, "runner_file_id": self.profile_id}
        if not kernel:
            runner = {"runner": "node", "runner_id": node, "runner_file_id": self.file_id}
        self.rows["et_collectives"].append({**self._key(), "node_id": node, "op": op, **runner, **more})

    def _key(self) -> dict[str, Any]:
        return {"file_id": self.file_id, "rank": self.rank}


def ns(microseconds: float) -> int:
    return round(microseconds * 1000)


def at(microseconds: float) -> int:
    return ORIGIN_NS + ns(microseconds)


def as_trace(*ranks: Linked) -> Trace:
    rows: Rows = defaultdict(list)
    names = ("et_nodes", "et_links", "et_edges", "et_groups", "et_collectives", "kernels", "profiles")
    for rank in ranks:
        for name in names:
            rows[name] += rank.rows[name]
        rows["et_traces"].append(
            {
                "file_id": rank.file_id,
                "rank": rank.rank,
                "schema": "1.1.1-chakra.0.0.4",
                "pid": 77,
                "recorded": "2026-01-02 03:04:05",
                "start_ms": 5,
                "n_nodes": len(rank.rows["et_nodes"]),
            }
        )
    return Trace((), {name: Table.from_rows(name, rows[name]) for name in (*names, "et_traces")})


def build(*ranks: Linked) -> Built:
    return next(build_graphs(as_trace(*ranks)))


def names_of(graph: ChakraGraph) -> list[str]:
    return graph.name.tolist()


def waits(graph: ChakraGraph, lists: Ragged) -> dict[str, list[str]]:
    """Whom each node waits for, by name; those that wait for nobody are left out."""
    names = names_of(graph)
    found = {}
    for row, name in enumerate(names):
        own = lists.values[lists.starts[row] : lists.starts[row + 1]].tolist()
        if own:
            found[name] = [names[before] for before in own]
    return found


def times(graph: ChakraGraph) -> list[tuple[str, float, float]]:
    """Name, start and duration in microseconds."""
    starts = ((graph.start_ns - ORIGIN_NS) / 1000).tolist()
    return list(zip(names_of(graph), starts, (graph.duration_ns / 1000).tolist(), strict=True))


def attribute(graph: ChakraGraph, name: str) -> dict[str, Any]:
    """The value of an attribute by the name of the node, of those nodes that have it."""
    column = graph.attributes[name]
    is_set = [True] * len(graph.type) if column.is_set is None else column.is_set.tolist()
    rows = zip(names_of(graph), column.values.tolist(), is_set, strict=True)
    return {node: value for node, value, has_it in rows if has_it}
