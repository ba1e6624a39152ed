"""Each file here breaks one rule, and only that rule is said to be broken."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from analyze.chakra.small_graphs import (
    broken,
    collective,
    cpu,
    groups,
    kernel,
    node,
    one_rank,
    only_problem,
    rank_file,
    receive,
    send,
    two_ranks,
)
from rankscope.analyze.chakra.catalogue import RULES
from rankscope.analyze.chakra.cycles import find_cycle
from rankscope.analyze.chakra.validate import SHOWN, validate
from rankscope.analyze.chakra.verdict import Verdict, rank_of
from rankscope.model.chakra import COMP, INVALID, MEM_LOAD, Attribute, ChakraFile

PAIR = '[{"pg_name": "1", "ranks": [0, 1]}]'


def good_job() -> tuple[ChakraFile, ...]:
    """Two ranks with all that a file may hold."""
    return tuple(
        rank_file(
            rank,
            groups(0, PAIR),
            cpu(1),
            kernel(2, [1]),
            collective(3, [2]),
            collective(4, [3], op="all_gather", pg_name="1"),
            send(5, 1 - rank, [1], comm_src=rank),
            receive(6, 1 - rank, [1], comm_dst=rank),
            node(7, MEM_LOAD, [1], is_cpu_op=False, tensor_size=Attribute("uint64", 512)),
        )
        for rank in (0, 1)
    )


def test_a_good_job_breaks_nothing_and_every_rule_is_named() -> None:
    verdict = validate(good_job())
    assert verdict.valid
    assert (verdict.problems, verdict.n_errors, verdict.n_warnings, verdict.n_nodes) == ((), 0, 0, 16)
    assert [check.rule for check in verdict.rules] == list(RULES)
    assert {check.status for check in verdict.rules} == {"ran"}
    assert all(check.about for check in verdict.rules)
    assert verdict.replay is not None
    assert (verdict.replay.n_executed, verdict.replay.deadlock) == (16, None)


def test_a_verdict_becomes_json() -> None:
    verdict = validate(good_job())
    assert msgspec.json.decode(msgspec.json.encode(verdict), type=Verdict) == verdict


def test_no_files_at_all() -> None:
    verdict = validate([])
    assert (verdict.valid, verdict.n_nodes) == (True, 0)


@pytest.mark.parametrize(
    ("path", "rank"),
    [
        ("et/job.3.et", 3),
        ("job.12.et.gz", 12),
        ("a.b.0.et", 0),
        ("job.et", None),
        ("job3.et", None),
        ("7.json", None),
        (f"a.{10**30}.et", None),
    ],
)
def test_the_rank_is_in_the_name(path: str, rank: int | None) -> None:
    assert rank_of(path) == rank


@pytest.mark.parametrize("name", ["job.et", "job.0.et.gz"])
def test_file_name(name: str) -> None:
    file = ChakraFile(path=name, version="", attributes={}, nodes=[cpu(0)])
    problem = only_problem(file, rule="file-name")
    assert (problem.path, problem.node, problem.severity) == (name, None, "warning")


def test_rank_twice() -> None:
    other = ChakraFile(path="old/job.0.et", version="", attributes={}, nodes=[cpu(0)])
    verdict = validate([one_rank(cpu(0)), other])
    assert [problem.rule for problem in verdict.problems] == ["rank-twice"]
    assert "et/job.0.et" in verdict.problems[0].message
    assert {check.why for check in verdict.rules if check.rule == "collective-mismatch"} == {"a rank has two files"}


def test_ranks_missing() -> None:
    problem = only_problem(rank_file(0, cpu(0)), rank_file(2, cpu(0)), rule="ranks-missing")
    assert "1 rank is named by files or groups but has no file: 1." in problem.message


def test_ranks_missing_that_only_groups_name() -> None:
    described = groups(0, '[{"pg_name": "1", "ranks": [0, 1, 2, 3]}]')
    problem = only_problem(rank_file(0, described, cpu(1)), rank_file(1, cpu(0)), rule="ranks-missing")
    assert "2, 3." in problem.message


def test_a_file_alone_says_nothing_of_other_ranks() -> None:
    verdict = validate([rank_file(3, cpu(0), collective(1, [0]), send(2, 0, [0]), receive(3, 1, [0]))])
    assert verdict.valid
    assert not verdict.n_warnings
    skipped = {check.rule: check.why for check in verdict.rules if check.status == "skipped"}
    assert skipped == dict.fromkeys(
        ("collective-mismatch", "collective-size", "transfer-unmatched"), "only one file is given"
    )


def test_files_without_rank_are_not_compared() -> None:
    unnamed = ChakraFile(path="job.et", version="", attributes={}, nodes=[cpu(0), collective(1, [0])])
    verdict = validate([unnamed, rank_file(0, cpu(0))])
    why = {check.why for check in verdict.rules if check.rule == "collective-mismatch"}
    assert why == {"a file name does not contain its rank: job.et"}


def test_no_nodes() -> None:
    only_problem(one_rank(), rule="no-nodes")


def test_duplicate_id() -> None:
    verdict = validate([one_rank(cpu(0), cpu(1), cpu(1, at=1200))])
    (problem,) = verdict.problems
    assert (problem.rule, problem.node) == ("duplicate-id", 1)
    assert verdict.replay is None
    assert [check.why for check in verdict.rules if check.rule == "replay-deadlock"] == [
        "broken rules already stop a replay: duplicate-id"
    ]


def test_id_range() -> None:
    assert only_problem(one_rank(cpu(0), cpu(2)), rule="id-range").node == 2


def test_the_largest_id_there_can_be() -> None:
    assert broken(one_rank(cpu(0), cpu(2**64 - 1, [0], at=2000))) == {"id-range": 1}


def test_numbers_that_mean_nothing_do_not_stop_the_others() -> None:
    """Whatever 64 bits a file holds: it is judged, not crashed upon."""
    far = Attribute("uint64", 2**64 - 1)
    wild = cpu(1, at=2**64 - 1, us=2**64 - 1, tid=far, stream=far, start_ns=far, duration_ns=far)
    wild.type = 2**31 - 1
    described = groups(2, '[{"pg_name": "7", "ranks": [9223372036854775807]}]')
    verdict = validate([one_rank(cpu(0), wild, described, cpu(3, [1])), rank_file(1, cpu(0))])
    assert {"node-type", "duration", "ranks-missing"} <= {problem.rule for problem in verdict.problems}
    assert verdict.replay is not None
    assert verdict.replay.n_executed == 5


def test_dangling_data_dep() -> None:
    problem = only_problem(one_rank(cpu(0), cpu(1, [0, 77])), rule="dangling-data-dep")
    assert (problem.node, problem.name) == (1, "node1")
    assert "dependency 77 " in problem.message


def test_dangling_ctrl_dep() -> None:
    dangling = cpu(1)
    dangling.ctrl_deps = [88]
    assert "dependency 88 " in only_problem(one_rank(cpu(0), dangling), rule="dangling-ctrl-dep").message


def test_cycle_names_its_nodes_in_order() -> None:
    """1 waits for 3, 3 for 2, 2 for 1; node 4 only waits behind them. Half of it are control dependencies."""
    nodes = [cpu(number, at=1100) for number in range(6)]
    nodes[1].data_deps, nodes[3].ctrl_deps, nodes[2].data_deps, nodes[4].data_deps = [0, 3], [2], [1, 5], [3]
    problem = only_problem(one_rank(nodes[4], *nodes[:4], nodes[5]), rule="cycle")
    assert "3 (node3) -> 2 (node2) -> 1 (node1) -> 3 (node3)." in problem.message


@given(st.lists(st.tuples(st.integers(0, 7), st.integers(0, 7)), max_size=14))
def test_a_cycle_is_found_if_there_is_one(edges: list[tuple[int, int]]) -> None:
    before, after = (np.array([edge[side] for edge in edges], np.int64) for side in (0, 1))
    cycle = find_cycle(8, before, after).tolist()
    left = set(edges)
    while free := {edge for edge in left if edge[0] not in {after for _, after in left}}:
        left -= free
    assert bool(cycle) == bool(left)
    assert {(awaited, row) for row, awaited in zip(cycle, cycle[1:] + cycle[:1], strict=True)} <= set(edges)


def test_cycle_of_one() -> None:
    assert "1 (node1) -> 1 (node1)." in only_problem(one_rank(cpu(0), cpu(1, [1])), rule="cycle").message


def test_a_deadlock_that_a_cycle_explains_is_not_said_twice() -> None:
    verdict = validate([one_rank(cpu(0), cpu(1, [1]))])
    assert verdict.replay is not None
    assert verdict.replay.deadlock is not None
    assert [check.why for check in verdict.rules if check.rule == "replay-deadlock"] == [
        "broken rules already stop a replay: cycle"
    ]


def test_start_node() -> None:
    only_problem(one_rank(groups(0, PAIR), cpu(1, [0])), rule="start-node")


@pytest.mark.parametrize(("kind", "said"), [(INVALID, "INVALID_NODE"), (8, "8, which the schema does not have")])
def test_node_type(kind: int, said: str) -> None:
    problem = only_problem(one_rank(cpu(0), node(1, kind, [0], is_cpu_op=True)), rule="node-type")
    assert f"Its type is {said}." in problem.message


@pytest.mark.parametrize("microseconds", [2**64 - 5, 24 * 3600 * 10**6 + 1])
def test_duration(microseconds: int) -> None:
    assert str(microseconds) in only_problem(one_rank(cpu(0, us=microseconds)), rule="duration").message


def test_start_times() -> None:
    only_problem(one_rank(cpu(0, at=0), cpu(1, [0], at=0)), rule="start-times")


def test_start_order() -> None:
    problem = only_problem(one_rank(cpu(0, at=5000), cpu(1, [0], at=4993)), rule="start-order")
    assert "It started 7 us before node 0 (node0)" in problem.message


def test_nanoseconds_count_before_microseconds_but_less_than_one_is_no_order() -> None:
    nodes = [cpu(0, at=5, start_ns=5_400), cpu(1, [0], at=5, start_ns=5_100)]
    assert broken(one_rank(*nodes)) == {}
    nodes = [cpu(0, at=5, start_ns=9_400), cpu(1, [0], at=5, start_ns=5_100)]
    assert broken(one_rank(*nodes)) == {"start-order": 1}


def test_is_cpu_op_missing() -> None:
    assert only_problem(one_rank(cpu(0), cpu(1, is_cpu_op=None)), rule="is-cpu-op-missing").node == 1


def test_comm_on_cpu() -> None:
    only_problem(one_rank(cpu(0), collective(1, is_cpu_op=True)), rule="comm-on-cpu")


@pytest.mark.parametrize(
    ("name", "attribute"),
    [
        ("pg_name", Attribute("int64", 0)),
        ("comm_priority", Attribute("double", 1.5)),
        ("involved_dim", Attribute("int64_list", [1])),
        ("num_ops", Attribute("string", "12")),
    ],
)
def test_attribute_unreadable(name: str, attribute: Attribute) -> None:
    said: dict[str, Any] = {name: attribute}
    problem = only_problem(one_rank(cpu(0), collective(1, **said)), rule="attribute-unreadable")
    assert f"Its {name} has the kind {attribute.kind}, not " in problem.message


@pytest.mark.parametrize(
    ("name", "kind"), [("comm_size", "uint64"), ("comm_type", "int32"), ("num_ops", "uint64"), ("is_cpu_op", "int32")]
)
def test_attribute_kind(name: str, kind: str) -> None:
    said: dict[str, Any] = {name: Attribute(kind, 4096 if name == "comm_size" else 0)}
    problem = only_problem(one_rank(cpu(0), collective(1, **said)), rule="attribute-kind")
    assert problem.severity == "warning"
    assert f"Its {name} has the kind {kind}" in problem.message


def test_peers_of_64_bits_are_read_as_0_by_the_older_feeder() -> None:
    sent = send(1, 1, comm_dst=Attribute("int64", 1))
    only_problem(*two_ranks([cpu(0), sent], [cpu(0), receive(1, 0)]), rule="attribute-kind")


@pytest.mark.parametrize(("number", "said"), [(None, "no comm_type"), (10, "comm_type is 10"), (-1, "comm_type is -1")])
def test_comm_type(number: int | None, said: str) -> None:
    assert said in only_problem(one_rank(cpu(0), collective(1, comm_type=number)), rule="comm-type").message


@pytest.mark.parametrize("op", ["reduce", "gather", "scatter", "reduce_scatter_block", "barrier"])
def test_comm_type_unsupported(op: str) -> None:
    problem = only_problem(one_rank(cpu(0), collective(1, op=op)), rule="comm-type-unsupported")
    assert (problem.severity, f"It is a {op}." in problem.message) == ("warning", True)


@pytest.mark.parametrize("op", ["all_reduce", "all_to_all", "all_gather", "reduce_scatter", "broadcast"])
def test_comm_types_that_are_simulated(op: str) -> None:
    assert broken(one_rank(cpu(0), collective(1, op=op))) == {}


@pytest.mark.parametrize(("size", "said"), [(None, "no comm_size"), (0, "comm_size is 0"), (-8, "comm_size is -8")])
def test_comm_size(size: int | None, said: str) -> None:
    assert said in only_problem(one_rank(cpu(0), collective(1, comm_size=size)), rule="comm-size").message


def test_a_barrier_has_no_size() -> None:
    assert broken(one_rank(cpu(0), collective(1, op="barrier", comm_size=0))) == {"comm-type-unsupported": 1}


def test_mem_size() -> None:
    only_problem(one_rank(cpu(0), node(1, MEM_LOAD, is_cpu_op=False)), rule="mem-size")


def test_a_rule_broken_often_lists_a_few_and_counts_all() -> None:
    many = [cpu(number, [5000]) for number in range(1, 1001)]
    verdict = validate([one_rank(cpu(0), *many), rank_file(1, cpu(0), *many)])
    assert len(verdict.problems) == SHOWN
    assert [problem.node for problem in verdict.problems] == [1, 2, 3, 4, 5]
    assert verdict.n_errors == 2000


def test_errors_come_before_warnings() -> None:
    verdict = validate([one_rank(cpu(0, is_cpu_op=None), cpu(1, [9]))])
    assert [problem.severity for problem in verdict.problems] == ["error", "warning"]


def test_notes_say_what_simulators_do_without() -> None:
    verdict = validate([one_rank(cpu(0), kernel(1, [0], us=0, duration_ns=300), collective(2, [1], us=0))])
    assert not verdict.problems
    assert [note.split(":")[0] for note in verdict.notes] == [
        "No node has num_ops or tensor_size",
        "1 communication node has no duration",
        "1 node is shorter than half a microsecond and written as 0",
    ]
    sized = node(1, COMP, is_cpu_op=False, num_ops=7, tensor_size=Attribute("uint64", 4))
    assert validate([one_rank(cpu(0), sized)]).notes == ()
