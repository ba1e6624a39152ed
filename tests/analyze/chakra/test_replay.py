"""What a replay takes for each shape of graph."""

from __future__ import annotations

from analyze.chakra.small_graphs import collective, cpu, groups, kernel, node, rank_file, receive, send
from rankscope.analyze.chakra.replay import replay
from rankscope.analyze.chakra.verdict import Replay
from rankscope.model.chakra import MEM_STORE, ChakraFile, ChakraNode

US = 1000


def replayed(*ranks: list[ChakraNode]) -> Replay:
    return replay([rank_file(rank, *nodes) for rank, nodes in enumerate(ranks)])


def spans_us(*ranks: list[ChakraNode]) -> list[int]:
    result = replayed(*ranks)
    assert result.deadlock is None
    assert result.n_executed == result.n_nodes
    return [rank.simulated_ns // US for rank in result.ranks]


def test_data_and_control_dependencies_are_waited_for() -> None:
    last = kernel(2, [0], stream=9, us=5)
    last.ctrl_deps = [1]
    assert spans_us([cpu(0, us=10), cpu(1, tid=2, us=30), last]) == [35]


def test_one_at_a_time_on_a_thread() -> None:
    assert spans_us([cpu(0, us=10), cpu(1, us=20)]) == [30]


def test_threads_run_side_by_side() -> None:
    assert spans_us([cpu(0, us=10), cpu(1, us=20, tid=2)]) == [20]


def test_one_at_a_time_on_a_stream() -> None:
    assert spans_us([kernel(0, us=10), kernel(1, us=20)]) == [30]


def test_streams_run_side_by_side_and_beside_threads_of_the_same_number() -> None:
    assert spans_us([kernel(0, us=10), kernel(1, us=20, stream=8), cpu(2, us=15, tid=7)]) == [20]


def test_ranks_do_not_share_threads() -> None:
    assert spans_us([cpu(0, us=10)], [cpu(0, us=20)]) == [10, 20]


def test_loads_and_stores_without_a_stream_leave_kernels_alone() -> None:
    store = node(1, MEM_STORE, us=20, is_cpu_op=False)
    assert spans_us([kernel(0, us=10, stream=None), store]) == [20]


def test_the_earliest_start_time_takes_a_free_place_first() -> None:
    """Both wait for the thread at the same time; what hangs on node 1 begins earlier when node 1 goes first."""
    nodes = [cpu(0, us=10, at=100), cpu(1, [0], us=5, at=200), cpu(2, [0], us=50, at=300), kernel(3, [1], us=40)]
    assert spans_us(nodes) == [65]
    late = [cpu(0, us=10, at=100), cpu(1, [0], us=5, at=400), cpu(2, [0], us=50, at=300), kernel(3, [1], us=40)]
    assert spans_us(late) == [105]


def test_all_that_becomes_ready_at_one_time_is_seen_before_a_place_is_given() -> None:
    """Nodes 0 and 1 end together; node 3 began first in the trace though node 2 is freed by the lower number."""
    nodes = [
        cpu(0, us=10, tid=2, at=100),
        cpu(1, us=10, tid=3, at=100),
        cpu(2, [0], us=50, at=300),
        cpu(3, [1], us=5, at=200),
        kernel(4, [3], us=60),
    ]
    assert spans_us(nodes) == [75]


def test_without_start_times_the_id_decides() -> None:
    nodes = [cpu(0, us=10, at=0), cpu(1, [0], us=5, at=0), cpu(2, [0], us=50, at=0), kernel(3, [1], us=40, at=0)]
    assert spans_us(nodes) == [65]


def test_nanoseconds_are_kept() -> None:
    assert replayed([cpu(0, us=1, duration_ns=1499), cpu(1, us=0, duration_ns=499)]).simulated_ns == 1998


def test_a_collective_ends_for_all_when_the_last_joined_and_the_shortest_has_passed() -> None:
    """Rank 0 joins at 10 and waited until 95 in the trace; rank 1 joins at 80 and took 15."""
    first = [cpu(0, us=10, at=1000), collective(1, [0], us=85, at=1010), cpu(2, [1], us=1, at=1095)]
    second = [cpu(0, us=80, at=1000), collective(1, [0], us=15, at=1080), cpu(2, [1], us=2, at=1095)]
    assert spans_us(first, second) == [96, 97]
    # The same where the clocks have nothing in common: the second rank's is a minute ahead.
    for late in second:
        late.start_us += 60_000_000
    assert spans_us(first, second) == [96, 97]


def test_members_are_done_as_much_later_than_the_last_one_joined_as_they_were() -> None:
    """Joined at 1080; rank 0 was done 15 after that, rank 1 took 20."""
    first = [cpu(0, us=10, at=1000), collective(1, [0], us=85, at=1010)]
    second = [cpu(0, us=80, at=1000), collective(1, [0], us=20, at=1080)]
    assert spans_us(first, second) == [95, 100]


def test_a_root_that_was_done_before_the_others_came_does_not_wait_for_them() -> None:
    """But they wait for it: rank 1 came first in the second call."""
    first = [
        cpu(0, us=10, at=1000),
        collective(1, [0], op="broadcast", us=5, at=1010),
        cpu(2, [1], us=185, at=1015),
        collective(3, [2], op="broadcast", us=5, at=1200),
    ]
    second = [
        cpu(0, us=80, at=1000),
        collective(1, [0], op="broadcast", us=7, at=1080),
        collective(2, [1], op="broadcast", us=121, at=1087),
    ]
    assert spans_us(first, second) == [205, 208]


def test_nobody_is_done_with_an_all_reduce_before_all_have_joined() -> None:
    """Whatever the clocks say."""
    first = [cpu(0, us=10, at=1000), collective(1, [0], us=5, at=1010)]
    second = [cpu(0, us=80, at=1000), collective(1, [0], us=7, at=1080)]
    assert spans_us(first, second) == [85, 87]


def test_communication_does_not_hold_the_thread() -> None:
    nodes = [cpu(0, us=10), collective(1, [0], us=100, tid=1), cpu(2, [0], us=30)]
    assert spans_us(nodes, nodes) == [110, 110]


def test_collectives_of_a_group_meet_by_their_order() -> None:
    """The second call of each rank is the short one: 10 + 50, then + 5."""
    nodes = [cpu(0, us=10), collective(1, [0], us=50), collective(2, [1], us=5)]
    assert spans_us(nodes, nodes) == [65, 65]


def test_groups_meet_among_themselves() -> None:
    pairs = '[{"pg_name": "1", "ranks": [0, 1]}, {"pg_name": "2", "ranks": [2, 3]}]'
    ranks = [
        [groups(0, pairs), cpu(1, us=us), collective(2, [1], us=5, pg_name="1" if rank < 2 else "2")]
        for rank, us in enumerate((10, 20, 70, 30))
    ]
    assert spans_us(*ranks) == [25, 25, 75, 75]


def test_groups_of_one_name_and_other_ranks_are_two() -> None:
    ranks = [
        [groups(0, f'[{{"pg_name": "1", "ranks": {members}}}]'), cpu(1, us=us), collective(2, [1], us=5, pg_name="1")]
        for members, us in (([0, 1], 10), ([0, 1], 20), ([2, 3], 70), ([2, 3], 30))
    ]
    assert spans_us(*ranks) == [25, 25, 75, 75]


def test_a_rank_whose_file_is_not_there_is_not_waited_for() -> None:
    described = groups(0, '[{"pg_name": "1", "ranks": [0, 1, 2]}]')
    nodes = [described, cpu(1, us=10), collective(2, [1], us=5, pg_name="1"), send(3, 5, [1], us=7), receive(4, 5, [1])]
    assert spans_us(nodes) == [20]


def test_a_transfer_ends_when_both_joined_and_the_shorter_has_passed() -> None:
    first = [cpu(0, us=10, at=1000), send(1, 1, [0], us=48, at=1010), cpu(2, [1], us=1, at=1058)]
    assert spans_us(first, [cpu(0, us=50, at=1000), receive(1, 0, [0], us=8, at=1050)]) == [59, 58]


def test_transfers_of_a_tag_meet_in_order() -> None:
    first = [cpu(0, us=10), send(1, 1, [0], us=4), send(2, 1, [1], us=9)]
    second = [cpu(0, us=1), receive(1, 0, [0], us=4), receive(2, 0, [1], us=9)]
    assert spans_us(first, second) == [23, 23]


def test_two_ranks_that_both_send_first_get_on() -> None:
    ranks = [
        [cpu(0, us=10, at=1000), send(1, 1 - rank, [0], us=4, at=1010), receive(2, 1 - rank, [1], us=6, at=1014)]
        for rank in (0, 1)
    ]
    assert spans_us(*ranks) == [20, 20]


def test_a_send_that_nobody_takes_ends_by_itself() -> None:
    assert spans_us([cpu(0, us=10), send(1, 1, [0], us=4)], [cpu(0, us=1)]) == [14, 1]


def test_a_receive_that_nobody_serves_is_stuck() -> None:
    result = replayed([cpu(0), receive(1, 1, [0]), cpu(2, [1])], [cpu(0)])
    assert result.deadlock is not None
    assert (result.n_executed, result.deadlock.n_stuck) == (2, 2)
    (stuck,) = result.deadlock.nodes
    assert (stuck.rank, stuck.node) == (0, 1)
    assert stuck.waits_for == "rank 1 to join transfer from rank 1 to rank 0 (tag 3)"


def test_a_rank_with_one_call_less_leaves_the_others_stuck() -> None:
    nodes = [cpu(0), collective(1, [0]), collective(2, [1])]
    result = replayed(nodes, nodes[:2], nodes)
    assert result.deadlock is not None
    assert [(stuck.rank, stuck.node) for stuck in result.deadlock.nodes] == [(0, 2), (2, 2)]
    assert {stuck.waits_for for stuck in result.deadlock.nodes} == {"rank 1 to join all_reduce 2 of all ranks"}
    assert [rank.n_executed for rank in result.ranks] == [2, 2, 2]


def test_a_cycle_is_stuck_and_names_its_nodes() -> None:
    result = replayed([cpu(0), cpu(1, [0, 2]), cpu(2, [1]), cpu(3, [2])])
    assert result.deadlock is not None
    assert result.deadlock.n_stuck == 3
    assert [(stuck.node, stuck.waits_for) for stuck in result.deadlock.nodes] == [
        (1, "node 2 (node2)"),
        (2, "node 1 (node1)"),
    ]


def test_a_dependency_that_is_not_there_is_passed_over() -> None:
    assert spans_us([cpu(0, [99], us=10)]) == [10]


def test_nodes_may_stand_in_any_order_under_any_ids() -> None:
    assert spans_us([cpu(900, [7], us=5), cpu(7, us=10)]) == [15]


def test_the_measured_span_and_the_ratio() -> None:
    result = replayed(
        [groups(0, "[]"), cpu(1, at=5000, us=100), cpu(2, [1], at=5300, us=100)], [cpu(0, at=5100, us=500)]
    )
    assert [rank.measured_ns // US for rank in result.ranks] == [400, 500]
    assert [rank.ratio for rank in result.ranks] == [0.5, 1.0]
    # The second rank began 100 us after the first one, and does so again.
    assert (result.measured_ns // US, result.simulated_ns // US) == (600, 600)
    assert result.ratio == 1.0


def test_clocks_that_have_nothing_in_common_give_the_longest_rank() -> None:
    assert replayed([cpu(0, at=1000, us=100)], [cpu(0, at=900_000_000, us=300)]).measured_ns == 300 * US


def test_without_start_times_nothing_is_compared() -> None:
    result = replayed([cpu(0, at=0), cpu(1, [0], at=0)])
    assert (result.measured_ns, result.ratio, result.ranks[0].ratio) == (0, None, None)


def test_nothing_to_replay() -> None:
    empty = replay([])
    assert (empty.n_nodes, empty.simulated_ns, empty.ratio, empty.deadlock) == (0, 0, None, None)
    assert replay([ChakraFile("job.0.et", "", {}, [])]).n_nodes == 0
