"""Rules about groups, peers and what ranks do together: each job here breaks one rule, and only that one is said."""

from __future__ import annotations

from typing import Any

import pytest

from analyze.chakra.small_graphs import (
    broken,
    collective,
    cpu,
    groups,
    one_rank,
    only_problem,
    rank_file,
    receive,
    send,
    two_ranks,
)
from rankscope.analyze.chakra.validate import validate
from rankscope.model.chakra import IO, ChakraNode

PAIR = '[{"pg_name": "1", "ranks": [0, 1]}]'


@pytest.mark.parametrize("name", ["dp", "1a", "-1", "4294967296", "²"])
def test_pg_name(name: str) -> None:
    assert repr(name) in only_problem(one_rank(cpu(0), collective(1, pg_name=name)), rule="pg-name").message


@pytest.mark.parametrize("name", [None, "", "0"])
def test_all_ranks_need_no_description(name: str | None) -> None:
    assert broken(one_rank(cpu(0), collective(1, pg_name=name))) == {}


@pytest.mark.parametrize(
    "values",
    ['[\'[{"pg_name": "1"}]\']', '[{"pg_name": "1", "ranks": [0]}]', '[\'[{"pg_name": "dp", "ranks": []}]\']', "x"],
)
def test_group_metadata(values: str) -> None:
    described = groups(0, "")
    described.inputs = IO(values=values)
    assert only_problem(one_rank(described, cpu(1)), rule="group-metadata").node == 0


@pytest.mark.parametrize(
    "values", ["", "[]", "['[]']", '["[{\\"pg_name\\": \\"1\\", \\"ranks\\": []}]"]'.replace("\\", "")]
)
def test_group_metadata_that_the_feeder_reads(values: str) -> None:
    described = groups(0, "")
    described.inputs = IO(values=values)
    assert broken(one_rank(described, cpu(1))) == {}


def test_group_undescribed() -> None:
    problem = only_problem(one_rank(groups(0, PAIR), cpu(1), collective(2, [1], pg_name="2")), rule="group-undescribed")
    assert "describes its group 2." in problem.message


def test_group_of_no_listed_ranks_is_everybody() -> None:
    described = '[{"pg_name": "4", "ranks": []}]'
    assert broken(*two_ranks(*[[groups(0, described), cpu(1), collective(2, [1], pg_name="4")]] * 2)) == {}


def test_group_late_by_its_id() -> None:
    late = groups(1, PAIR)
    assert only_problem(one_rank(cpu(0), late, collective(2, [0], pg_name="1")), rule="group-late").node == 1


def test_group_late_by_its_dependencies() -> None:
    late = groups(0, PAIR, after=[1])
    late.start_us = 1150
    assert only_problem(one_rank(late, cpu(1), collective(2, [1], pg_name="1")), rule="group-late").node == 0


def test_not_a_member() -> None:
    described = groups(0, '[{"pg_name": "1", "ranks": [1, 2]}]')
    problem = only_problem(one_rank(described, cpu(1), collective(2, [1], pg_name="1")), rule="not-a-member")
    assert "Rank 0 is not in its group 1: 1, 2." in problem.message


@pytest.mark.parametrize("name", ["comm_dst", "comm_tag"])
def test_peer_missing_of_a_send(name: str) -> None:
    left_out: dict[str, Any] = {name: None}
    problem = only_problem(one_rank(cpu(0), send(1, 1, **left_out)), rule="peer-missing")
    assert f"COMM_SEND_NODE has no {name}." in problem.message


@pytest.mark.parametrize("name", ["comm_src", "comm_tag"])
def test_peer_missing_of_a_receive(name: str) -> None:
    left_out: dict[str, Any] = {name: None}
    problem = only_problem(one_rank(cpu(0), receive(1, 1, **left_out)), rule="peer-missing")
    assert f"COMM_RECV_NODE has no {name}." in problem.message


@pytest.mark.parametrize(
    "transfer", [send(1, 0), send(1, -2), receive(1, 0), send(1, 1, comm_src=1), receive(1, 1, comm_dst=1)]
)
def test_peer(transfer: ChakraNode) -> None:
    assert only_problem(one_rank(cpu(0), transfer), rule="peer").node == 1


def test_peer_beyond_the_ranks() -> None:
    problem = only_problem(*two_ranks([cpu(0), send(1, 2)], [cpu(0)]), rule="peer")
    assert "It belongs to rank 0 and has comm_dst 2." in problem.message


def test_collective_mismatch_says_where_ranks_first_part() -> None:
    first = [cpu(0), collective(1, [0]), collective(2, [1], op="all_gather"), collective(3, [2])]
    second = [cpu(0), collective(1, [0]), collective(2, [1]), collective(3, [2])]
    problem = only_problem(*two_ranks(second, first), rule="collective-mismatch")
    assert (problem.rank, problem.node) == (1, 2)
    assert "Rank 1 has all_gather as collective 2 of all ranks, rank 0 has all_reduce." in problem.message


def test_collectives_are_compared_in_the_order_of_time() -> None:
    first = [cpu(0), collective(1, [0]), collective(2, [0], op="all_gather")]
    swapped = [cpu(0), collective(1, [2], op="all_gather", at=3000), collective(2, [0], at=2000)]
    assert broken(*two_ranks(first, swapped)) == {}


def test_collective_mismatch_of_a_rank_that_stays_away() -> None:
    described = groups(0, PAIR)
    job = two_ranks([described, cpu(1), collective(2, [1], pg_name="1")], [cpu(0)])
    problem = only_problem(*job, rule="collective-mismatch")
    assert (problem.rank, problem.node) == (1, None)
    assert "Rank 1 has none as collective 1 of group 1" in problem.message


def test_the_odd_rank_is_named_not_those_that_agree() -> None:
    usual = [cpu(0), collective(1, [0])]
    job = [rank_file(0, cpu(0)), *(rank_file(rank, *usual) for rank in (1, 2))]
    assert only_problem(*job, rule="collective-mismatch").rank == 0


def test_collective_size() -> None:
    problem = only_problem(
        *two_ranks([cpu(0), collective(1, [0])], [cpu(0), collective(1, [0], comm_size=64)]), rule="collective-size"
    )
    assert "collective 1 of all ranks: rank 1 gives it 64 bytes, rank 0 4096." in problem.message


@pytest.mark.parametrize("change", [{"comm_tag": 4}, {"comm_size": 65}])
def test_transfer_unmatched(change: dict[str, Any]) -> None:
    job = two_ranks([cpu(0), send(1, 1)], [cpu(0), receive(1, 0, **change)])
    assert broken(*job) == {"transfer-unmatched": 2}


def test_transfer_unmatched_counts() -> None:
    """Three sends, one receive: two are left over."""
    sends = [send(number, 1) for number in (1, 2, 3)]
    verdict = validate(two_ranks([cpu(0), *sends], [cpu(0), receive(1, 0)]))
    assert [problem.node for problem in verdict.problems] == [2, 3]
    assert "Rank 1 has no receive for it (tag 3, 64 bytes)." in verdict.problems[0].message


def test_replay_deadlock() -> None:
    """Each rank takes part in one group only after the other group, in turn: no rule of one file sees it."""
    described = '[{"pg_name": "1", "ranks": [0, 1]}, {"pg_name": "2", "ranks": [0, 1]}]'
    first = [groups(0, described), cpu(1), collective(2, [1], pg_name="1"), collective(3, [2], pg_name="2")]
    second = [groups(0, described), cpu(1), collective(2, [1], pg_name="2"), collective(3, [2], pg_name="1")]
    problem = only_problem(*two_ranks(first, second), rule="replay-deadlock")
    assert "rank 0 node 2 waits for rank 1 to join all_reduce 1 of group 1" in problem.message
    assert "rank 1 node 2 waits for rank 0 to join all_reduce 1 of group 2" in problem.message


def test_one_at_a_time() -> None:
    """Both collectives are free at once, but the ranks give them ids in another order."""
    described = '[{"pg_name": "1", "ranks": [0, 1]}, {"pg_name": "2", "ranks": [0, 1]}]'
    first, second = (
        [groups(0, described), cpu(1), collective(2, [1], pg_name=one), collective(3, [1], pg_name=other)]
        for one, other in (("1", "2"), ("2", "1"))
    )
    problem = only_problem(*two_ranks(first, second), rule="one-at-a-time")
    assert (problem.severity, problem.rank, problem.node) == ("warning", 0, 2)
    assert "rank 0 node 2 waits for rank 1 to join all_reduce 1 of group 1" in problem.message


def test_receives_do_not_stand_in_the_way_of_other_communication() -> None:
    first = [cpu(0), receive(1, 1, [0]), collective(2, [0])]
    second = [cpu(0), collective(1, [0]), send(2, 0, [1])]
    assert broken(*two_ranks(first, second)) == {}
