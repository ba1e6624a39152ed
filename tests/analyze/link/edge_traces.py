"""Linked traces made by hand, and what holds for the edges of any trace. Times are in microseconds."""

from __future__ import annotations

from collections import Counter
from typing import Any, NamedTuple

from analyze import path_traces
from analyze.path_traces import MAIN, ns
from rankscope.analyze import table_makers
from rankscope.model.tables import Table, Trace

FIRST_NODE = 10
_EXECUTION_FILES = 100  # their numbers begin here; those of profiler traces are the ranks


class Memory(NamedTuple):
    storage_id: int
    n_elements: int = 8
    argument: int = 0
    n_item_bytes: int = 4
    device: str = "cpu"


class Observed(path_traces.Process):
    """A process that the observer saw as well. Nodes are to be made in the order in which they begin."""

    def __init__(self, rank: int = 0) -> None:
        super().__init__(rank)
        self.et_keys = {"file_id": _EXECUTION_FILES + rank, "rank": rank}
        self.ends: list[tuple[float, dict[str, Any]]] = []
        for number, kind in enumerate(("process", "thread", "groups"), 1):
            self._append("et_nodes", node_id=number, position=10**6 + number, name=kind, kind=kind, thread=1)
            self._append("et_links", node_id=number, how="none")

    def node(self, name: str, start: float, end: float, parent: int = 2, tid: int = MAIN, **columns: Any) -> int:
        """Returns its number. is_seen=False: no profiler saw it. takes and gives are the tensors."""
        number = columns.pop("node_id", FIRST_NODE + len(self.ends))
        is_seen = columns.pop("is_seen", True)
        for is_output, key in ((False, "takes"), (True, "gives")):
            for memory in columns.pop(key, ()):
                self._append("et_tensors", node_id=number, is_output=is_output, tensor_id=1, **memory._asdict())
        columns = {"kind": "op", "thread": 1, "scope": 0, **columns}
        self._append("et_nodes", node_id=number, name=name, parent_id=parent, **columns)
        self.ends.append((end, self.rows["et_nodes"][-1]))
        link: dict[str, Any] = {"node_id": number, "how": "none"}
        if is_seen:
            self.op(name, start, end, tid)
            link |= {"how": "id", "profile_id": self.keys["file_id"], "op_id": self.n_ids, "tid": tid}
            link |= {"start_ns": ns(start), "duration_ns": ns(end) - ns(start)}
        self._append("et_links", **link)
        return int(number)

    def inplace(self, name: str, start: float, end: float, *memory: Memory, **columns: Any) -> int:
        schema = f"aten::{name}(Tensor(a!) self, Tensor other) -> Tensor(a!)"
        return self.node(f"aten::{name}", start, end, takes=memory, gives=memory[:1], op_schema=schema, **columns)

    def ran(self, caller: int, runner: int, match: int = -1) -> None:
        """The collective of a caller was done by another node."""
        keys = {"runner": "node", "runner_file_id": self.et_keys["file_id"]}
        self._append("et_collectives", node_id=caller, runner_id=runner, match_id=match, **keys)

    def number_ends(self) -> None:
        for position, (_, row) in enumerate(sorted(self.ends, key=lambda end: end[0])):
            row["position"] = position

    def _append(self, table: str, **columns: Any) -> None:
        self.rows.setdefault(table, []).append({**self.et_keys, **columns})


def trace_of(*processes: Observed, matches: tuple[dict[str, Any], ...] = ()) -> Trace:
    for process in processes:
        process.number_ends()
    trace = path_traces.trace_of(*processes)
    trace.makers |= table_makers()
    trace.tables.setdefault("et_collectives", Table.from_rows("et_collectives", []))
    # Rows of both are by number, whatever the order in which a test made them.
    for name in ("et_nodes", "et_links"):
        rows = sorted(trace.tables[name].rows(), key=lambda row: (row["file_id"], row["node_id"]))
        trace.tables[name] = Table.from_rows(name, rows)
    if matches:
        trace.tables["comm_matches"] = Table.from_rows("comm_matches", matches)
    return trace


def edges_of(*processes: Observed, kind: str) -> list[tuple[int, int]]:
    return edges_in(trace_of(*processes), kind)


def edges_in(trace: Trace, kind: str) -> list[tuple[int, int]]:
    """Source and target by their numbers."""
    rows = trace.table("et_edges").rows()
    return sorted((row["source_id"], row["target_id"]) for row in rows if row["kind"] == kind)


def assert_sound(trace: Trace) -> Counter[str]:
    """Both ends are there, nothing is twice, nothing leads to itself, and within a rank there is no cycle.

    Returns how many edges there are of each kind.
    """
    nodes, kernels = trace.table("et_nodes"), trace.table("kernels")
    vertices = {("node", row["file_id"], row["node_id"]) for row in nodes.rows() if row["kind"] == "op"}
    vertices |= {("kernel", row["file_id"], row["kernel_id"]) for row in kernels.rows()}
    rows = list(trace.table("et_edges").rows())
    assert len({tuple(row.values()) for row in rows}) == len(rows)
    n_before: Counter[tuple[str, int, int]] = Counter()
    after: dict[tuple[str, int, int], list[tuple[str, int, int]]] = {}
    for row in rows:
        source = row["source"], row["from_file_id"], row["source_id"]
        target = row["target"], row["file_id"], row["target_id"]
        assert {source, target} <= vertices
        assert source != target
        assert (row["rank"] == row["from_rank"]) == (row["kind"] != "collective")
        if row["kind"] != "collective":
            after.setdefault(source, []).append(target)
            n_before[target] += 1
    ready = [vertex for vertex in vertices if not n_before[vertex]]
    n_done = 0
    while ready:
        n_done += 1
        for target in after.get(ready.pop(), ()):
            n_before[target] -= 1
            if not n_before[target]:
                ready.append(target)
    assert n_done == len(vertices)
    return Counter(row["kind"] for row in rows)
