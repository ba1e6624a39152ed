"""A replay of the graph must take as long as the steps did: whose time is whose, and what the host did in between."""

from __future__ import annotations

from pathlib import Path

import pytest

from analyze.chakra.linked_traces import MAIN, OTHER, Linked, as_trace, attribute, build, names_of, ns, times, waits
from rankscope import pipeline
from rankscope.analyze.chakra.building.graphs import build_graphs
from rankscope.analyze.chakra.validate import validate
from rankscope.model.chakra import COMP
from rankscope.model.tables import Table
from rankscope.read.chakra_file import read_chakra
from rankscope.render.chakra_file import write_graph
from rankscope.simulate.execution import PairOptions, write_pairs
from rankscope.simulate.profiler import ProfileNoise, ProfileSpec, simulate_profile


def test_time_between_operators_of_a_thread_is_a_node_of_the_host() -> None:
    rank = Linked()
    rank.node("a", 0, 10)
    rank.node("b", 25, 30)
    rank.node("c", 31, 35)  # a gap of one microsecond is none
    for before in (1, 2):
        rank.edge("thread", before, before + 1)
    built = build(rank)
    graph = built.graph
    assert times(graph) == [("a", 0, 10), ("host", 10, 15), ("b", 25, 5), ("c", 31, 4)]
    assert waits(graph, graph.data_deps) == {"host": ["a"], "b": ["a", "host"], "c": ["b"]}
    assert attribute(graph, "tid")["host"] == MAIN
    assert attribute(graph, "is_cpu_op")["host"] is True
    assert set(graph.type.tolist()) == {COMP}
    assert (built.n_operators, built.n_host_time) == (3, 1)


def test_time_that_an_annotation_spends_around_operators_is_the_hosts() -> None:
    rank = Linked()
    step = rank.node("step", 0, 100, annotation=True)
    rank.node("a", 20, 30, step)
    rank.node("b", 60, 70, step)
    graph = build(rank).graph
    assert times(graph) == [("step", 0, 0), ("host", 0, 20), ("a", 20, 10), ("host", 30, 30), ("b", 60, 10)]
    assert waits(graph, graph.ctrl_deps)["host"] == ["step"]


def test_an_annotation_that_holds_no_operator_is_work_by_itself() -> None:
    rank = Linked()
    rank.node("compiled graph", 0, 40, annotation=True)
    rank.node("a", 40, 50)
    assert times(build(rank).graph) == [("compiled graph", 0, 40), ("a", 40, 10)]


def test_annotations_within_operators_leave_the_time_to_those() -> None:
    rank = Linked()
    outer = rank.node("outer", 0, 50)
    noted = rank.node("noted", 10, 40, outer, annotation=True)
    rank.node("inner", 20, 30, noted)
    assert times(build(rank).graph) == [("outer", 0, 20), ("noted", 10, 20), ("inner", 20, 10)]


def test_waiting_for_another_thread_is_no_time_of_the_host() -> None:
    """Backward on another thread: main sets it to work, waits, and goes on."""
    rank = Linked()
    forward = rank.node("forward", 0, 10)
    backward = rank.node("backward", 14, 50, tid=OTHER, thread=2)
    step = rank.node("optimizer", 53, 60)
    rank.edge("thread", forward, step)
    rank.edge("handover", forward, backward)
    rank.edge("handover", backward, step)
    graph = build(rank).graph
    assert times(graph) == [
        ("forward", 0, 10),
        ("host", 10, 4),
        ("backward", 14, 36),
        ("host", 50, 3),
        ("optimizer", 53, 7),
    ]
    assert [(name, tid) for name, tid in zip(names_of(graph), graph.attributes["tid"].values.tolist(), strict=True)][
        1::2
    ] == [
        ("host", OTHER),
        ("host", MAIN),
    ]


def test_who_sets_another_thread_to_work_may_wait_for_it_from_then_on() -> None:
    """A barrier of gloo blocks in its call while the other thread runs it."""
    rank = Linked()
    call = rank.node("c10d::barrier", 0, 100)
    run = rank.node("gloo:barrier", 20, 90, call, tid=OTHER, annotation=True)
    after = rank.node("next", 105, 110)
    rank.edge("handover", call, run)
    rank.edge("handover", run, after)
    rank.edge("thread", call, after)
    rank.collective("barrier", call, runner_id=run, n_bytes=0)
    assert times(build(rank).graph) == [
        ("c10d::barrier", 0, 20),
        ("gloo:barrier", 20, 70),
        ("host", 90, 15),
        ("next", 105, 5),
    ]


def test_communication_takes_its_whole_time_though_it_calls_operators() -> None:
    rank = Linked()
    call = rank.node("c10d::allgather_", 0, 10)
    run = rank.node("gloo:all_gather", 10, 60, call, tid=OTHER, annotation=True)
    rank.node("aten::copy_", 40, 50, tid=OTHER, thread=2)
    rank.collective("all_gather", call, runner_id=run, n_bytes=8)
    assert times(build(rank).graph) == [
        ("c10d::allgather_", 0, 10),
        ("gloo:all_gather", 10, 50),
        ("aten::copy_", 40, 10),
    ]


def test_time_before_the_caller_began_is_not_part_of_its_call() -> None:
    """The observer may take what began after a call was handed over for the caller."""
    rank = Linked()
    call = rank.node("c10d::allreduce_", 0, 10)
    noted = rank.node("wait_tensor", 18, 60)
    run = rank.node("gloo:all_reduce", 20, 50, noted, tid=OTHER, annotation=True)
    rank.node("later", 60, 61)
    rank.edge("handover", call, run)
    built = build(rank)
    hosts = [row for row, name in enumerate(names_of(built.graph)) if name == "host"]
    starts = built.graph.ctrl_deps.starts
    assert all(starts[row] == starts[row + 1] for row in hosts)
    assert ("host", 10, 10) in times(built.graph)
    assert built.left_out.edges_backwards == 0


def test_a_thread_of_which_nothing_else_is_known_begins_when_it_did() -> None:
    rank = Linked()
    rank.node("a", 0, 10)
    rank.node("alone", 6, 8, tid=OTHER, thread=2)
    assert times(build(rank).graph) == [("a", 0, 10), ("host", 0, 6), ("alone", 6, 2)]


def test_waiting_for_the_device_is_no_time_of_the_operator() -> None:
    rank = Linked()
    launch = rank.node("aten::mm", 0, 10)
    rank.node("aten::item", 10, 100)
    after = rank.node("next", 100, 105)
    rank.kernel("gemm", 12, 80, launched=3)
    rank.edge("launch", launch, 1, target="kernel")
    rank.edge("sync", 1, after, source="kernel")
    trace = as_trace(rank)
    call = {"file_id": rank.profile_id, "rank": 0, "call_id": 1, "name": "cudaStreamSynchronize", "tid": MAIN}
    wait = rank.rows["et_links"][1]["start_ns"] + ns(5)
    call |= {"correlation": 9, "start_ns": wait, "duration_ns": ns(70)}
    trace.tables["runtime_calls"] = Table.from_rows("runtime_calls", [call])
    graph = next(build_graphs(trace)).graph
    assert times(graph) == [("aten::mm", 0, 10), ("aten::item", 10, 20), ("gemm", 12, 68), ("next", 100, 5)]


def test_durations_from_elsewhere_leave_the_time_between_operators_as_it_was() -> None:
    rank = Linked()
    rank.node("a", 0, 10)
    rank.node("b", 25, 30)
    rank.rows["et_links"][0] |= {"duration_ns": ns(4), "own_ns": ns(4), "duration_from": 99}
    trace = as_trace(rank)
    recorded = {"file_id": rank.profile_id, "rank": 0, "op_id": 1, "name": "a", "duration_ns": ns(10)}
    trace.tables["ops"] = Table.from_rows("ops", [recorded])
    assert times(next(build_graphs(trace)).graph) == [("a", 0, 4), ("host", 10, 15), ("b", 25, 5)]


@pytest.mark.slow
@pytest.mark.parametrize(
    "spec",
    [
        ProfileSpec(data_parallel=2, n_steps=2, n_layers=2, n_microbatches=1),
        ProfileSpec(data_parallel=1, stages=2, n_steps=2, n_layers=2, n_microbatches=3),
    ],
    ids=["data parallel", "pipeline"],
)
def test_the_replay_of_a_job_takes_as_long_as_the_job(spec: ProfileSpec, tmp_path: Path) -> None:
    write_pairs(simulate_profile(spec), tmp_path, PairOptions())
    files = []
    for built in build_graphs(pipeline.load([str(tmp_path)])):
        path = tmp_path / f"job.{built.graph.rank}.et"
        write_graph(built.graph, path)
        files.append(read_chakra(path))
        assert sum(built.left_out) == 0
        assert built.n_kernels > 0
    verdict = validate(files)
    assert (verdict.valid, verdict.n_errors, verdict.n_warnings) == (True, 0, 0)
    assert verdict.replay is not None
    assert verdict.replay.ratio == pytest.approx(1, abs=0.1)


def test_ranks_of_several_hosts_are_on_one_clock(tmp_path: Path) -> None:
    """The hosts' clocks are up to half a second apart; collectives that end together tell by how much."""
    spec = ProfileSpec(data_parallel=2, n_steps=2, n_layers=1, n_microbatches=1, ranks_per_host=1)
    write_pairs(simulate_profile(spec, noise=ProfileNoise(clock_skew_ms=500.0)), tmp_path)
    trace = pipeline.load(tmp_path, jobs=1)
    recorded = [profile["start_ns"] for profile in trace.table("profiles").rows()]
    assert abs(recorded[0] - recorded[1]) > 50_000_000
    first, second = (int(built.graph.start_ns[built.graph.start_ns > 0].min()) for built in build_graphs(trace))
    assert abs(first - second) < 20_000_000
