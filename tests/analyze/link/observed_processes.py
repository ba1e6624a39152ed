"""Processes made by hand, as the observer and the profiler of torch record them on gloo and on NCCL."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from rankscope import pipeline
from rankscope.model.tables import Trace

OBJECT, NONE = "<Object>", "<None>"
MAIN_TID = 1000
FIRST_LOOP = 2000  # the first thread of the default group; the second follows
FLOAT, LONG = ("float", 4), ("long", 8)
WORLD: dict[str, list[int]] = {"0": []}


class Tensor(NamedTuple):
    n_elements: int
    dtype: tuple[str, int] = FLOAT


@dataclass
class Process:
    """What the observer and the profiler record of one rank. Whatever is called takes a tenth of a millisecond."""

    rank: int
    groups: dict[str, list[int]] = field(default_factory=lambda: dict(WORLD))
    size: int = 2
    backend: str = "cpu:gloo,cuda:gloo"
    nodes: list[dict[str, Any]] = field(default_factory=list)
    events: list[dict[str, Any]] = field(default_factory=list)

    def call(self, name: str, *inputs: Any, outputs: tuple[Any, ...] = (), parent: int = 2, **attributes: Any) -> int:
        """A node and its event; the number of the node is that of the record function, too."""
        number = 10 + len(self.nodes)
        attributes = {"rf_id": number, "tid": 1, "scope": 0, "seq_id": -1, "fw_parent": 0, **attributes}
        self.nodes.append(node(number, name, parent, inputs, outputs, attributes))
        self.event("cpu_op", name, MAIN_TID, number)
        return number

    def run(self, name: str, *inputs: Any, tid: int = FIRST_LOOP, parent: int = 2) -> int:
        """What gloo does for the call before, on the thread."""
        number = 10 + len(self.nodes)
        attributes = {"rf_id": number, "tid": 1, "scope": 7, "seq_id": -1, "fw_parent": 0}
        self.nodes.append(node(number, name, parent, inputs, (), attributes))
        self.event("user_annotation", name, tid, number)
        return number

    def all_reduce(self, n_elements: int, tid: int = FIRST_LOOP) -> int:
        called = self.call("c10d::allreduce_", [Tensor(n_elements)], OBJECT, OBJECT, NONE, False, -1)
        self.run("gloo:all_reduce", Tensor(n_elements), tid=tid)
        return called

    def record(
        self, collective: str, *tensors: Tensor, seq: Any = 0, group: Any = ("0", ""), rank: int = 0, **more: Any
    ) -> int:
        """NCCL's description of a call, by what it was given alone; without tensors these are left out."""
        ranks = self.groups.get(group[0] if isinstance(group, tuple) else str(group)) or list(range(self.size))
        stride = ranks[1] - ranks[0] if len(ranks) > 1 else 1
        words: tuple[Any, ...] = (seq, group, rank, collective, [], [], ranks[0], stride, len(ranks))
        given = (list(tensors), *words) if tensors else words
        return self.call("record_param_comms", *given, outputs=(list(tensors),) if tensors else (), **more)

    def event(self, category: str, name: str, tid: int, number: int) -> None:
        start = {"ts": 100 * number + (20 if category == "user_annotation" else 0), "dur": 90}
        args = {"External id": number, "Record function id": number}
        self.events.append({"ph": "X", "cat": category, "name": name, "pid": 9, "tid": tid, **start, "args": args})

    def write(
        self, folder: Path, *, is_profiled: bool = True, later_groups: dict[str, list[int]] | None = None
    ) -> None:
        described = [
            {"pg_name": name, "pg_desc": "", "backend_config": self.backend, "ranks": ranks,
             "group_size": len(ranks) or self.size}
            for name, ranks in self.groups.items()
        ]  # fmt: skip
        roots = [
            node(1, "[pytorch|profiler|execution_trace|process]", 1, (), (), {"rf_id": 0, "tid": 0}),
            node(2, "[pytorch|profiler|execution_trace|thread]", 1, (), (), {"rf_id": 0, "tid": 1}),
            node(3, "## process_group:init ##", 2, (json.dumps(described),), (), {"rf_id": 9, "tid": 1}),
        ]
        head = {"schema": "1.1.1-chakra.0.0.4", "pid": 9, "time": "2026-01-01 00:00:00", "start_ts": 0, "finish_ts": 9}
        (folder / f"torch_et_{self.rank}.json").write_text(json.dumps({**head, "nodes": roots + self.nodes}))
        if is_profiled:
            groups = [
                {"pg_name": name, "ranks": ranks or list(range(self.size)), "pg_size": len(ranks) or self.size}
                for name, ranks in {**self.groups, **(later_groups or {})}.items()
            ]
            about = {"backend": "gloo", "rank": self.rank, "world_size": self.size, "pg_config": groups}
            trace = {"schemaVersion": 1, "distributedInfo": about, "traceEvents": self.events}
            (folder / f"kineto_trace_{self.rank}.json").write_text(json.dumps(trace))


def node(
    number: int, name: str, parent: int, inputs: tuple[Any, ...], outputs: tuple[Any, ...], attributes: dict[str, Any]
) -> dict[str, Any]:
    return {
        "id": number,
        "name": name,
        "ctrl_deps": parent,
        "inputs": {"values": [value_of(value) for value in inputs], "shapes": [], "types": list(map(type_of, inputs))},
        "outputs": {
            "values": [value_of(value) for value in outputs],
            "shapes": [],
            "types": list(map(type_of, outputs)),
        },
        "attrs": [{"name": key, "type": "", "value": value} for key, value in attributes.items()],
    }


def value_of(value: Any) -> Any:
    if isinstance(value, Tensor):
        return [500, 501, 0, value.n_elements, value.dtype[1], "cpu"]
    return list(map(value_of, value)) if isinstance(value, list | tuple) else value


def type_of(value: Any) -> str:
    if isinstance(value, Tensor):
        return f"Tensor({value.dtype[0]})"
    if isinstance(value, list | tuple):
        return f"{'GenericList' if isinstance(value, list) else 'Tuple'}[{','.join(map(type_of, value))}]"
    known = {OBJECT: "Object", NONE: "None"}
    return known.get(value) or {bool: "Bool", int: "Int", str: "String"}[type(value)]


def loaded(folder: Path, *processes: Process, **options: Any) -> Trace:
    for process in processes:
        process.write(folder, **options)
    return pipeline.load([str(folder)])


def rows_of(trace: Trace) -> list[dict[str, Any]]:
    return list(trace.table("et_collectives").rows())
