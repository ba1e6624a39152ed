"""Simulated execution traces fit the profiler traces of the same steps."""

from __future__ import annotations

import json
import re
from collections import Counter
from dataclasses import replace
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from rankscope.errors import UsageError
from rankscope.simulate.execution import PairOptions, observe, write_pairs
from rankscope.simulate.execution.nodes import GROUPS_NAME, PROCESS_NAME, THREAD_NAME, ExecutionTrace, Node
from rankscope.simulate.profiler import (
    Numbering,
    ProfileFault,
    ProfileNoise,
    ProfileSimulation,
    ProfileSpec,
    simulate_profile,
)
from simulate.execution_reading import tensors, tensors_read, tensors_written
from simulate.profile_reading import Event, complete, end_of, named

DATA_PARALLEL = ProfileSpec(data_parallel=2, n_steps=2, n_layers=2, n_microbatches=2)
PIPELINE = replace(DATA_PARALLEL, stages=3, with_stack=True)
BOTH = pytest.mark.parametrize("spec", [DATA_PARALLEL, PIPELINE], ids=["data-parallel", "pipeline"])
RANK = 1
MIDDLE = 3
ROOTS = {PROCESS_NAME, THREAD_NAME, GROUPS_NAME}


@cache
def simulated(spec: ProfileSpec) -> ProfileSimulation:
    return simulate_profile(spec)


@cache
def observed(spec: ProfileSpec, rank: int = RANK) -> ExecutionTrace:
    return observe(simulated(spec), rank)


@cache
def host_events(spec: ProfileSpec, rank: int = RANK) -> list[Event]:
    """What the profiler saw of the operators while the observer ran as well."""
    simulation = simulated(spec)
    numbering = Numbering({rank: simulation.truth.windows[rank]})
    # Kineto writes three decimals, always: without the point the digits are nanoseconds.
    text = simulation.text(rank, numbering=numbering)
    trace = json.loads(text, parse_float=lambda digits: int(digits.replace(".", "")))
    return complete(trace["traceEvents"], "cpu_op", "user_annotation")


def record_ids(events: list[Event]) -> list[int]:
    return [event["args"]["Record function id"] for event in events]


def by_record_id(spec: ProfileSpec, rank: int = RANK) -> dict[int, Event]:
    events = host_events(spec, rank)
    return dict(zip(record_ids(events), events, strict=True))


def operators(trace: ExecutionTrace) -> list[Node]:
    return [node for node in trace.nodes if node.name not in ROOTS]


def called(trace: ExecutionTrace) -> list[Node]:
    """In the order in which they began."""
    return sorted(operators(trace), key=lambda node: node.node_id)


def written_pairs(folder: Path, options: PairOptions, spec: ProfileSpec = DATA_PARALLEL) -> dict[str, Any]:
    paths = write_pairs(simulated(spec), folder, options)
    return {path.name: json.loads(path.read_bytes()) for path in paths}


def events_of(trace: dict[str, Any], *categories: str) -> list[Event]:
    return complete(trace["traceEvents"], *categories)


def ids_of(trace: dict[str, Any]) -> set[int]:
    """The numbers of the record functions in an execution trace, but for the one that no profiler sees."""
    nodes = [node for node in trace["nodes"] if node["name"] not in ROOTS]
    return {field["value"] for node in nodes for field in node["attrs"] if field["name"] == "rf_id"}


@BOTH
def test_every_operator_and_annotation_is_a_node_of_the_same_number_and_name(spec: ProfileSpec) -> None:
    found = Counter((event["args"]["Record function id"], event["name"]) for event in host_events(spec))
    assert found == Counter((node.record_id, node.name) for node in operators(observed(spec)))
    assert set(found.values()) == {1}
    assert all(event["args"]["External id"] != number for number, event in by_record_id(spec).items())


@BOTH
def test_a_parent_is_the_innermost_that_was_open_on_the_thread(spec: ProfileSpec) -> None:
    events = by_record_id(spec)
    nodes = {node.node_id: node for node in observed(spec).nodes}
    for node in operators(observed(spec)):
        event = events[node.record_id]
        around = [
            other
            for other in events.values()
            if other["tid"] == event["tid"] and other["ts"] < event["ts"] and end_of(event) < end_of(other)
        ]
        parent = nodes[node.parent_id]
        if around:
            innermost = max(around, key=lambda other: int(other["ts"]))
            assert parent.record_id == innermost["args"]["Record function id"]
        else:
            assert (parent.name, parent.thread) == (THREAD_NAME, node.thread)


@BOTH
def test_nodes_are_numbered_as_they_begin_and_written_as_they_end(spec: ProfileSpec) -> None:
    events = by_record_id(spec)
    starts = [events[node.record_id]["ts"] for node in called(observed(spec))]
    ends = [end_of(events[node.record_id]) for node in operators(observed(spec))]
    assert all(first < second for first, second in pairwise(starts))
    assert all(first < second for first, second in pairwise(ends))


def test_the_roots_are_where_torch_has_them() -> None:
    trace = observed(DATA_PARALLEL)
    threads = [node for node in trace.nodes if node.name == THREAD_NAME]
    assert trace.nodes[0] is threads[0]
    assert trace.nodes[-1] == Node(1, PROCESS_NAME, 1)
    assert [(node.parent_id, node.record_id, node.thread) for node in threads] == [(1, 0, 1), (1, 0, 2)]
    assert threads[1].node_id < min(node.node_id for node in operators(trace) if node.thread == 2)


def test_the_groups_are_described_before_the_first_step() -> None:
    trace = observed(PIPELINE, MIDDLE)
    node = trace.nodes[1]
    assert (node.name, node.node_id, node.thread) == (GROUPS_NAME, 3, 1)
    assert node.record_id < min(other.record_id for other in operators(trace))
    groups = json.loads(str(node.inputs[0]))
    assert [(group["pg_name"], group["pg_desc"], group["ranks"]) for group in groups[:2]] == [
        ("0", "default_pg", []),
        ("2", "dp", [2, 3]),
    ]
    assert {group["group_count"] for group in groups} == {len(groups)} == {6}
    assert groups[0]["group_size"] == 6


@BOTH
def test_one_counter_numbers_nodes_tensors_and_storages(spec: ProfileSpec) -> None:
    trace = observed(spec)
    seen = [tensor for node in trace.nodes for tensor in (*tensors_read(node), *tensors_written(node))]
    numbers = [
        {node.node_id for node in trace.nodes},
        {tensor.tensor_id for tensor in seen},
        {tensor.storage_id for tensor in seen},
    ]
    assert len(numbers[0]) == len(trace.nodes)
    assert sum(map(len, numbers)) == len(set.union(*numbers)) == max(map(max, numbers))


@BOTH
def test_shapes_are_those_that_the_profiler_has(spec: ProfileSpec) -> None:
    events = by_record_id(spec)
    n_compared = 0
    for node in operators(observed(spec)):
        dims = events[node.record_id]["args"].get("Input Dims", [])
        shapes = [list(tensor.shape) for tensor in tensors_read(node)]
        if dims:
            assert shapes[: len(dims)] == dims, node.name
            n_compared += 1
    assert n_compared > 150


@BOTH
def test_backward_operators_know_the_forward_thread(spec: ProfileSpec) -> None:
    trace = observed(spec)
    events = by_record_id(spec)
    steps = {node.node_id: node for node in trace.nodes if node.name.startswith("ProfilerStep#")}
    backward = [node for node in operators(trace) if node.scope == 1]
    assert {(node.thread, node.fw_thread) for node in backward} == {(2, 1)}
    for node in backward:
        step, event = events[steps[node.fw_parent_id].record_id], events[node.record_id]
        assert step["ts"] < event["ts"] < end_of(step)
        assert node.sequence == event["args"].get("Sequence number", -1)
    others = {(node.fw_parent_id, node.fw_thread) for node in operators(trace) if node.scope != 1}
    assert others == {(0, 0)}
    assert {node.scope for node in operators(trace)} == {0, 1, 7}


def test_the_numbers_of_autograd_tie_the_passes_together() -> None:
    trace = observed(DATA_PARALLEL)
    forward = {node.sequence for node in operators(trace) if node.thread == 1} - {-1}
    backward = [node.sequence for node in operators(trace) if node.scope == 1 and "Accumulate" not in node.name]
    assert sorted(backward) == sorted(forward)


def written_before(trace: ExecutionTrace) -> dict[int, set[int]]:
    """By node: the storages that calls before it have written."""
    written: set[int] = set()
    before = {}
    for node in called(trace):
        before[node.node_id] = set(written)
        written |= {tensor.storage_id for tensor in tensors_written(node)}
    return before


@BOTH
def test_what_passes_through_the_model_was_written_before_it_is_read(spec: ProfileSpec) -> None:
    for rank in range(spec.world_size):
        trace = observed(spec, rank)
        weights = {
            tensor.storage_id for node in named_nodes(trace, "aten::_fused_adamw_") for tensor in tensors_read(node)
        }
        before = written_before(trace)
        for node in called(trace):
            # The first inputs of these are weights, or are only about to be written.
            if node.name not in ("aten::to", "aten::copy_", "c10d::recv_", "aten::linear", "aten::addmm"):
                for tensor in tensors_read(node)[:1]:
                    is_received = node.name.startswith(("record_param_comms", "nccl:recv"))
                    assert tensor.storage_id in before[node.node_id] | weights or is_received, node
            if node.name == "aten::addmm":
                assert tensors_read(node)[1].storage_id in before[node.node_id]


def named_nodes(trace: ExecutionTrace, start: str) -> list[Node]:
    return [node for node in called(trace) if node.name.startswith(start)]


def storages(node: Node) -> list[int]:
    return [tensor.storage_id for tensor in tensors_read(node)]


def test_gradients_reach_the_weights_of_the_next_step() -> None:
    trace = observed(DATA_PARALLEL)
    zeroed = [storages(node)[0] for node in named_nodes(trace, "aten::zero_")]
    reduced = [storages(node)[0] for node in named_nodes(trace, "c10d::allreduce_")]
    updates = named_nodes(trace, "aten::_fused_adamw_")
    assert zeroed == zeroed[:2] * 2
    assert reduced == [*reversed(zeroed[:2])] * 2
    assert [storages(node)[1] for node in updates] == zeroed
    accumulated = {tensor.storage_id for node in named_nodes(trace, "aten::add_") for tensor in tensors_written(node)}
    assert accumulated > set(zeroed)
    used = {storages(node)[2] for node in named_nodes(trace, "aten::addmm")}
    assert {storages(node)[0] for node in updates} < used


def test_views_of_the_flat_buffers_do_not_overlap() -> None:
    trace = observed(DATA_PARALLEL)
    [weights] = tensors(named_nodes(trace, "aten::_fused_adamw_")[0].inputs[0])
    views = {
        (tensor.offset, tensor.n_elements)
        for node in named_nodes(trace, "aten::linear")
        for tensor in tensors_read(node)
        if tensor.storage_id == weights.storage_id
    }
    ordered = sorted(views)
    assert ordered[0][0] == 0
    assert all(offset + size == following for (offset, size), (following, _) in pairwise(ordered))
    assert sum(ordered[-1]) == weights.n_elements


def test_freed_memory_is_given_out_again() -> None:
    trace = observed(DATA_PARALLEL)
    outputs = [tensors_written(node)[0] for node in named_nodes(trace, "aten::gelu") if node.name == "aten::gelu"]
    assert len({tensor.tensor_id for tensor in outputs}) == len(outputs) == 8
    assert len({tensor.storage_id for tensor in outputs}) < 8


def test_transfers_carry_what_the_stage_computed() -> None:
    trace = observed(PIPELINE, MIDDLE)
    sends, receives = named_nodes(trace, "c10d::send"), named_nodes(trace, "c10d::recv_")
    assert len(sends) == len(receives) == 8
    before = written_before(trace)
    assert all(storages(node)[0] in before[node.node_id] for node in sends)
    read_later = {storage for node in operators(trace) if node.name.startswith("aten::") for storage in storages(node)}
    assert {storages(node)[0] for node in receives} <= read_later
    assert {node.inputs[2] for node in sends} == {0, 1}


@BOTH
def test_calls_say_what_the_profiler_says_of_them(spec: ProfileSpec) -> None:
    rank = MIDDLE if spec is PIPELINE else RANK
    events = by_record_id(spec, rank)
    calls = [node for node in operators(observed(spec, rank)) if node.communication]
    assert len(calls) == len(named(list(events.values()), "record_param_comms")) > 0
    for node in calls:
        args, call = events[node.record_id]["args"], node.communication
        assert call is not None
        said = (call.op, call.tensor.n_elements, call.dtype, call.group_name, call.group_desc, call.group_size)
        names = ("Collective name", "In msg nelems", "dtype", "Process Group Name", "Process Group Description")
        assert said == (*(args[name] for name in names), args["Group size"])
        assert (call.first_rank, call.stride) == (args["Global rank start"], args["Global rank stride"])
        assert (call.rank, call.sequence, call.is_p2p) == (args["Rank"], args["Seq"], call.op != "allreduce")
        assert [node.outputs] == [([call.tensor],)]


@pytest.mark.slow
def test_every_kernel_was_launched_by_a_node(tmp_path: Path) -> None:
    traces = written_pairs(tmp_path, PairOptions(layout="classic"))
    profile = traces["kineto_trace_1.json"]
    launchers = {event["args"]["External id"]: event for event in events_of(profile, "cpu_op")}
    kernels = events_of(profile, "kernel", "gpu_memcpy", "gpu_memset")
    ids = {launchers[kernel["args"]["External id"]]["args"]["Record function id"] for kernel in kernels}
    assert len(kernels) > 100
    assert ids <= ids_of(traces["torch_et_1.json"])


def test_a_pair_for_every_rank_that_left_traces(tmp_path: Path) -> None:
    spec, noise = DATA_PARALLEL, ProfileNoise(lost_ranks=(1,))
    paths = write_pairs(simulate_profile(spec, noise=noise), tmp_path, PairOptions(gzip=True))
    assert sorted(path.name for path in paths) == ["kineto_trace_0.json.gz", "torch_et_0.json.gz"]


def test_a_killed_rank_leaves_the_beginning_of_its_execution_trace_alone(tmp_path: Path) -> None:
    paths = write_pairs(simulated(DATA_PARALLEL), tmp_path, PairOptions(killed_ranks=(1,)))
    assert [path.name for path in paths] == ["kineto_trace_0.json", "torch_et_0.json", "torch_et_1.json"]
    with pytest.raises(json.JSONDecodeError):
        json.loads(paths[-1].read_text())


def test_profilers_of_2023_have_no_numbers_in_common(tmp_path: Path) -> None:
    options = PairOptions(with_record_ids=False, with_correlation_as_external=True)
    profile = written_pairs(tmp_path, options)["kineto_trace_0.json"]
    assert not any("Record function id" in event.get("args", {}) for event in profile["traceEvents"])
    started = events_of(profile, "kernel", "gpu_memcpy", "cuda_runtime", "cuda_sync")
    assert len(started) > 100
    linked = [event["args"] for event in started if "External id" in event["args"]]
    assert all(args["External id"] == args["correlation"] for args in linked)
    operators_ids = {event["args"]["External id"] for event in events_of(profile, "cpu_op")}
    assert operators_ids != {args["External id"] for args in linked}


def test_an_observer_may_see_more_steps_than_the_profiler(tmp_path: Path) -> None:
    traces = written_pairs(tmp_path, PairOptions(observed_steps=(0, 2)))
    recorded = set(record_ids(events_of(traces["kineto_trace_0.json"], "cpu_op", "user_annotation")))
    assert recorded < ids_of(traces["torch_et_0.json"])
    steps = [node["name"] for node in traces["torch_et_0.json"]["nodes"] if node["name"].startswith("ProfilerStep")]
    assert steps == ["ProfilerStep#0", "ProfilerStep#1", "ProfilerStep#2"]


def test_an_observer_may_see_fewer_steps_than_the_profiler(tmp_path: Path) -> None:
    traces = written_pairs(tmp_path, PairOptions(observed_steps=(2, 2)))
    events = events_of(traces["kineto_trace_0.json"], "cpu_op", "user_annotation")
    assert set(record_ids(events)) == ids_of(traces["torch_et_0.json"]) | {0}
    numbers = {event["name"]: event["args"]["Record function id"] for event in named(events, "ProfilerStep#")}
    assert numbers["ProfilerStep#1"] == 0
    assert numbers["ProfilerStep#2"] > 0


def test_steps_that_do_not_run_cannot_be_observed() -> None:
    with pytest.raises(UsageError, match="steps 2 to 3"):
        observe(simulated(DATA_PARALLEL), 0, (2, 3))


def test_a_trace_without_observer_differs_by_the_numbers_alone() -> None:
    simulation = simulated(PIPELINE)
    with_numbers = simulation.text(0, numbering=Numbering({0: simulation.truth.windows[0]}))
    without = simulation.text(0)
    assert re.sub(r'"Record function id": \d+', '"Record function id": 0', with_numbers) == without != with_numbers


def test_another_run_of_the_same_job_has_other_numbers() -> None:
    first, second = observed(DATA_PARALLEL), observed(replace(DATA_PARALLEL, seed=1))
    assert [node.name for node in first.nodes] == [node.name for node in second.nodes]
    assert first.nodes[1].record_id != second.nodes[1].record_id
    assert observe(simulate_profile(DATA_PARALLEL), RANK) == first


@pytest.mark.parametrize("kind", ["more-work", "compile"])
def test_faults_show_in_the_execution_trace_as_well(kind: str) -> None:
    simulation = simulate_profile(DATA_PARALLEL, ProfileFault(kind, rank=RANK))
    trace, healthy = observe(simulation, RANK), observed(DATA_PARALLEL)
    if kind == "compile":
        extra = Counter(node.name for node in trace.nodes) - Counter(node.name for node in healthy.nodes)
        assert "entire_frame_compile" in extra
    else:
        batch, usual = (tensors_read(named_nodes(each, "aten::copy_")[0])[0] for each in (trace, healthy))
        assert batch.n_elements > usual.n_elements
