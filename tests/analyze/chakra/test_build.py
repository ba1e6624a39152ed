from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from analyze.chakra.linked_traces import MAIN, OTHER, Linked, as_trace, at, attribute, build, names_of, times, waits
from rankscope.analyze.chakra.building.graphs import build_graphs, chakra_graphs
from rankscope.analyze.link.nodes import nearest_above
from rankscope.model.chakra import COMM_COLL, COMM_RECV, COMM_SEND, COMP, METADATA, Attribute
from rankscope.model.tables import MISSING


def test_nodes_are_in_the_order_of_their_starts_and_wait_for_their_callers() -> None:
    rank = Linked()
    outer = rank.node("outer", 10, 30)
    rank.node("inner", 15, 20, outer)
    rank.node("before", 0, 9.5)
    graph = build(rank).graph
    assert names_of(graph) == ["before", "outer", "inner"]
    assert graph.start_ns.tolist() == [at(0), at(10), at(15)]
    assert waits(graph, graph.ctrl_deps) == {"inner": ["outer"]}
    assert set(graph.type.tolist()) == {COMP}


def test_a_node_takes_the_time_that_it_did_not_spend_in_what_it_called() -> None:
    rank = Linked()
    outer = rank.node("outer", 0, 30)
    rank.node("inner", 5, 25, outer)
    assert [duration for _, _, duration in times(build(rank).graph)] == [10, 20]


def test_callers_come_first_where_both_begin_together() -> None:
    rank = Linked()
    outer = rank.node("outer", 0, 30)
    rank.node("inner", 0, 30, outer)
    graph = build(rank).graph
    assert names_of(graph) == ["outer", "inner"]
    assert waits(graph, graph.ctrl_deps) == {"inner": ["outer"]}


def test_what_no_profiler_saw_is_left_out_and_its_caller_stands_in() -> None:
    rank = Linked()
    outer = rank.node("outer", 0, 30)
    middle = rank.node("middle", 0, 0, outer, seen=False)
    rank.node("inner", 5, 25, middle)
    rank.edge("thread", middle, 3)
    built = build(rank)
    assert names_of(built.graph) == ["outer", "inner"]
    assert waits(built.graph, built.graph.ctrl_deps) == {"inner": ["outer"]}
    assert (built.left_out.nodes_outside, built.left_out.edges_outside) == (1, 1)


def test_without_a_profiler_all_nodes_are_there_in_the_order_of_their_numbers_and_take_no_time() -> None:
    rank = Linked()
    outer = rank.node("outer", 0, 0, seen=False)
    rank.node("inner", 0, 0, outer, seen=False, thread=3)
    rank.edge("thread", outer, 2)
    built = build(rank)
    graph = built.graph
    assert names_of(graph) == ["outer", "inner"]
    assert (graph.start_ns.tolist(), graph.duration_ns.tolist()) == ([0, 0], [0, 0])
    assert waits(graph, graph.ctrl_deps) == waits(graph, graph.data_deps) == {"inner": ["outer"]}
    assert attribute(graph, "tid") == {"outer": 1, "inner": 3}
    assert not {"start_ns", "duration_ns"} & graph.attributes.keys()
    assert built.left_out.nodes_outside == 0


def test_roots_and_the_description_of_groups_are_no_nodes() -> None:
    rank = Linked()
    rank.node("[pytorch|profiler|execution_trace|process]", 0, 0, seen=False, kind="process")
    rank.node("## process_group:init ##", 0, 0, seen=False, kind="groups")
    rank.node("op", 0, 10, 1)
    built = build(rank)
    assert names_of(built.graph) == ["op"]
    assert built.left_out.nodes_outside == 0


def test_a_parent_that_was_over_is_no_caller() -> None:
    """The observer keeps what gloo runs on the caller's stack until it is done."""
    rank = Linked()
    step = rank.node("step", 0, 100, annotation=True)
    rank.node("one", 1, 2, step)
    call = rank.node("c10d::send", 5, 10, step)
    run = rank.node("gloo:send", 8, 50, call, tid=OTHER, annotation=True)
    rank.node("c10d::recv_", 20, 30, call)
    rank.node("aten::add", 40, 45, run)
    graph = build(rank).graph
    callers = waits(graph, graph.ctrl_deps)
    assert {name: callers[name] for name in ("gloo:send", "c10d::recv_", "aten::add")} == {
        "gloo:send": ["c10d::send"],
        "c10d::recv_": ["step"],
        "aten::add": ["step"],
    }


def test_parents_in_a_circle_end() -> None:
    rank = Linked()
    rank.node("one", 0, 0, 2, seen=False)
    rank.node("two", 0, 0, 1, seen=False)
    rank.node("inner", 5, 10, 2)
    graph = build(rank).graph
    assert names_of(graph) == ["inner"]
    assert not len(graph.ctrl_deps.values)


def test_nearest_looks_up_long_chains() -> None:
    parent = np.arange(-1, 999)
    wanted = np.zeros(1000, bool)
    wanted[[0, 700]] = True
    found = nearest_above(parent, wanted)
    assert found[:3].tolist() == [MISSING, 0, 0]
    assert set(found[1:701].tolist()) == {0}
    assert set(found[701:].tolist()) == {700}


def test_edges_are_data_dependencies_each_once() -> None:
    rank = Linked()
    for place, name in enumerate(("a", "b", "c")):
        rank.node(name, place, place + 1)
    rank.edge("thread", 1, 2)
    rank.edge("data", 1, 2)
    rank.edge("backward", 1, 3)
    rank.edge("thread", 2, 3)
    rank.edge("call", 1, 3)
    graph = build(rank).graph
    assert waits(graph, graph.data_deps) == {"b": ["a"], "c": ["a", "b"]}


def test_edges_that_go_back_in_time_are_left_out_and_counted() -> None:
    rank = Linked()
    rank.node("a", 0, 1)
    rank.node("b", 1, 2)
    rank.edge("data", 2, 1)
    rank.edge("thread", 1, 2)
    built = build(rank)
    assert waits(built.graph, built.graph.data_deps) == {"b": ["a"]}
    assert built.left_out.edges_backwards == 1


def test_edges_of_other_ranks_and_between_ranks_are_not_of_this_graph() -> None:
    ranks = [Linked(0), Linked(1)]
    for rank in ranks:
        rank.node(f"a{rank.rank}", 0, 1)
        rank.node(f"b{rank.rank}", 1, 2)
    ranks[1].edge("thread", 1, 2)
    ranks[1].rows["et_edges"].append({**ranks[1].rows["et_edges"][0], "kind": "collective", "from_rank": 0})
    first, second = chakra_graphs(as_trace(*ranks))
    assert (first.rank, second.rank) == (0, 1)
    assert (waits(first, first.data_deps), waits(second, second.data_deps)) == ({}, {"b1": ["a1"]})


def test_kernels_wait_for_their_launch_and_their_stream() -> None:
    rank = Linked()
    op = rank.node("aten::mm", 0, 10)
    rank.kernel("gemm", 12, 40, launched=3)
    rank.kernel("copy", 40, 45, launched=5)
    for kernel in (1, 2):
        rank.edge("launch", op, kernel, target="kernel")
    rank.edge("stream", 1, 2, "kernel", "kernel")
    graph = build(rank).graph
    assert waits(graph, graph.data_deps) == {"gemm": ["aten::mm"], "copy": ["aten::mm", "gemm"]}
    assert times(graph) == [("aten::mm", 0, 10), ("gemm", 12, 28), ("copy", 40, 5)]
    assert attribute(graph, "stream") == {"gemm": 7, "copy": 7}
    assert attribute(graph, "tid") == {"aten::mm": MAIN}
    assert attribute(graph, "is_cpu_op") == {"aten::mm": True, "gemm": False, "copy": False}


def test_kernels_from_before_and_after_the_observer_are_left_out_and_counted() -> None:
    rank = Linked()
    rank.node("op", 10, 20)
    rank.kernel("early", 8, 9, launched=5)
    rank.kernel("late launch", 30, 35, launched=25)
    rank.kernel("late end", 30, 35, launched=15)
    built = build(rank)
    assert names_of(built.graph) == ["op", "late end"]
    assert built.left_out.kernels_outside == 2


def test_attributes_are_those_of_the_node() -> None:
    rank = Linked()
    rank.node("forward", 0, 1, seq_id=5, op_schema="f(Tensor x) -> Tensor", thread=1)
    rank.node("backward", 2, 3, tid=OTHER, thread=2, fw_parent_id=1, fw_thread=1, scope=1)
    graph = build(rank).graph
    assert attribute(graph, "rf_id") == {"forward": 1001, "backward": 1002}
    assert attribute(graph, "seq_id") == {"forward": 5}
    assert attribute(graph, "scope") == {"forward": 0, "backward": 1}
    assert attribute(graph, "op_schema") == {"forward": "f(Tensor x) -> Tensor"}
    assert attribute(graph, "tid")["backward"] == OTHER
    assert attribute(graph, "fw_tid") == {"backward": MAIN}
    assert attribute(graph, "fw_parent") == {"backward": names_of(graph).index("forward")}
    assert attribute(graph, "start_ns")["forward"] == at(0)
    assert attribute(graph, "duration_ns")["forward"] == 1000


def test_inputs_and_outputs_are_printed_lists_and_kernels_have_none() -> None:
    rank = Linked()
    rank.node("op", 0, 10, inputs='[[1,2,0,8,4,"cpu"],true]', input_types='["Tensor(float)","Bool"]', outputs="[3]")
    rank.kernel("kernel", 12, 40, launched=3)
    graph = build(rank).graph
    assert [text.tolist() for text in graph.inputs] == [
        ["[[1, 2, 0, 8, 4, 'cpu'], True]", ""],
        ["[]", ""],
        ["['Tensor(float)', 'Bool']", ""],
    ]
    assert graph.outputs[0].tolist() == ["[3]", ""]


def test_the_file_says_where_it_is_from() -> None:
    rank = Linked(3)
    rank.node("op", 0, 10)
    assert build(rank).graph.metadata == {
        "schema": Attribute("string", "1.1.1-chakra.0.0.4"),
        "time": Attribute("string", "2026-01-02 03:04:05"),
        "pid": Attribute("uint64", 77),
        "start_ts": Attribute("uint64", 5),
        "rank": Attribute("int64", 3),
    }


def test_of_several_execution_traces_of_a_rank_the_one_that_was_seen_most_is_taken() -> None:
    seen, other = Linked(0), Linked(1)
    seen.node("seen", 0, 1)
    for _ in range(3):
        other.node("not seen", 0, 1, seen=False)
    trace = as_trace(seen, other)
    for name in ("et_traces", "et_nodes", "et_links"):
        trace.tables[name] = trace.tables[name].replaced({"rank": np.zeros(len(trace.tables[name]), np.int32)})
    built = list(build_graphs(trace))
    assert [names_of(one.graph) for one in built] == [["seen"]]


# Communication


def job_with(op: str, **more: Any) -> Linked:
    rank = Linked()
    node = rank.node("c10d::call", 0, 10)
    runner = rank.node("gloo:run", 5, 30, node, tid=OTHER, annotation=True)
    rank.collective(op, node, **{"runner_id": runner, "group_name": "0", "n_bytes": 400, **more})
    return rank


def test_what_ran_a_collective_is_its_communication_node() -> None:
    graph = build(job_with("all_gather", group_name="4", root=-1)).graph
    kinds = dict(zip(names_of(graph), graph.type.tolist(), strict=True))
    assert (kinds["c10d::call"], kinds["gloo:run"]) == (COMP, COMM_COLL)
    found = {name: attribute(graph, name) for name in ("comm_type", "comm_size", "pg_name", "is_cpu_op")}
    assert found == {
        "comm_type": {"gloo:run": 2},
        "comm_size": {"gloo:run": 400},
        "pg_name": {"gloo:run": "4"},
        "is_cpu_op": {name: name != "gloo:run" for name in names_of(graph)},
    }
    assert attribute(graph, "root") == {}
    kinds_of_numbers = {
        name: graph.attributes[name].kind for name in ("comm_type", "comm_size", "comm_src", "comm_tag")
    }
    assert kinds_of_numbers == {"comm_type": "int64", "comm_size": "int64", "comm_src": "int32", "comm_tag": "int32"}


def test_the_kernel_of_a_collective_is_its_communication_node() -> None:
    rank = Linked()
    node = rank.node("record_param_comms", 0, 10)
    kernel = rank.kernel("any name", 12, 40, launched=3)
    rank.collective("broadcast", node, kernel=kernel, n_bytes=8, root=1)
    graph = build(rank).graph
    assert graph.type.tolist() == [COMP, COMM_COLL]
    assert attribute(graph, "comm_type") == {"any name": 5}
    assert attribute(graph, "root") == {"any name": 1}


def test_a_collective_whose_kernel_is_not_there_is_at_its_caller() -> None:
    rank = Linked()
    node = rank.node("record_param_comms", 0, 10)
    rank.collective("all_reduce", node, kernel=99, n_bytes=8)
    assert build(rank).graph.type.tolist() == [COMM_COLL]


@pytest.mark.parametrize(
    ("op", "kind", "ends"), [("send", COMM_SEND, {"src": -1, "dst": 3}), ("recv", COMM_RECV, {"src": 3, "dst": -1})]
)
def test_transfers_say_their_ends_and_tag(op: str, kind: int, ends: dict[str, int]) -> None:
    graph = build(job_with(op, is_p2p=True, tag=7, **ends)).graph
    assert kind in graph.type.tolist()
    assert attribute(graph, "comm_src") == {"gloo:run": max(ends["src"], 0)}
    assert attribute(graph, "comm_dst") == {"gloo:run": max(ends["dst"], 0)}
    assert attribute(graph, "comm_tag") == {"gloo:run": 7}
    assert attribute(graph, "comm_type") == {}


def test_sizes_that_would_stop_a_simulator_are_one_byte_and_counted_but_not_those_of_barriers() -> None:
    empty, barrier = build(job_with("all_reduce", n_bytes=0)), build(job_with("barrier", n_bytes=0))
    assert attribute(empty.graph, "comm_size") == {"gloo:run": 1}
    assert attribute(barrier.graph, "comm_size") == {"gloo:run": 0}
    assert (empty.left_out.calls_sizeless, barrier.left_out.calls_sizeless) == (1, 0)


def test_calls_without_a_number_of_their_own_stay_computation_and_are_counted() -> None:
    built = build(job_with("something_new"))
    assert set(built.graph.type.tolist()) == {COMP}
    assert built.left_out.calls_unknown == 1
    assert set(attribute(built.graph, "is_cpu_op").values()) == {True}


def test_calls_of_nodes_that_are_not_there_are_counted() -> None:
    rank = Linked()
    rank.node("op", 0, 1)
    rank.collective("all_reduce", 55, n_bytes=4)
    assert build(rank).left_out.calls_unplaced == 1


def test_calls_that_one_kernel_runs_together_are_one_node() -> None:
    rank = Linked()
    nodes = [rank.node("record_param_comms", place, place + 1) for place in range(2)]
    kernel = rank.kernel("kernel", 12, 40, launched=1.5)
    for node in nodes:
        rank.collective("all_gather", node, kernel=kernel, n_bytes=100)
    graph = build(rank).graph
    assert graph.type.tolist().count(COMM_COLL) == 1
    assert attribute(graph, "comm_size") == {"kernel": 200}


def test_groups_are_described_first_with_all_their_ranks() -> None:
    rank = job_with("all_reduce", group_name="late", group_ranks="[0,1]")
    rank.group("0", size=3, desc="default_pg")
    rank.group("5", ranks="[0,2]", size=2)
    graph = build(rank).graph
    assert (names_of(graph)[0], graph.type[0]) == ("## process_group:init ##", METADATA)
    assert not len(graph.ctrl_deps.values[: graph.ctrl_deps.starts[1]])
    assert all(0 not in lists.values.tolist() for lists in (graph.ctrl_deps, graph.data_deps))
    groups = {group["pg_name"]: group["ranks"] for group in json.loads(graph.inputs[0][0][2:-2])}
    assert groups == {"0": [0, 1, 2], "5": [0, 2], "6": [0, 1]}
    assert attribute(graph, "pg_name") == {"gloo:run": "6"}


def test_an_execution_trace_without_operators_is_an_empty_graph() -> None:
    rank = Linked()
    rank.node("[pytorch|profiler|execution_trace|process]", 0, 0, seen=False, kind="process")
    graph = build(rank).graph
    assert (len(graph.type), graph.ctrl_deps.starts.tolist(), graph.data_deps.starts.tolist()) == (0, [0], [0])
