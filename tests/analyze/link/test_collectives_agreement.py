"""Ranks whose calls of collectives do not fit together."""

from __future__ import annotations

from pathlib import Path

from analyze.link.observed_processes import OBJECT, Process, Tensor, loaded, rows_of
from rankscope.analyze.link.collectives.agreement import disagreements

ASYNC = (False, -1)


def test_ranks_that_do_the_same_agree(tmp_path: Path) -> None:
    processes = [Process(0), Process(1)]
    for process in processes:
        process.all_reduce(10)
        process.call("c10d::alltoall_base_", Tensor(5 + process.rank), Tensor(6 + process.rank), OBJECT, [], [])
        process.call("c10d::send" if process.rank else "c10d::recv_", [Tensor(9)], OBJECT, 1 - process.rank, 0)
    processes[0].all_reduce(11)  # recorded for longer

    assert not disagreements(loaded(tmp_path, *processes))


def test_the_first_disagreement_of_a_group_is_told(tmp_path: Path) -> None:
    sizes = {0: (10, 20, 30, 40), 1: (10, 20, 31, 41), 2: (10, 20, 30, 40)}
    processes = [Process(rank, size=3) for rank in sizes]
    for process in processes:
        for n_elements in sizes[process.rank]:
            process.all_reduce(n_elements)

    [found] = disagreements(loaded(tmp_path, *processes))

    assert (found.group_name, found.group_ranks, found.place, found.is_inferred) == ("0", "[0,1,2]", 2, False)
    assert [(call.rank, call.op, call.n_bytes) for call in found.calls] == [
        (0, "all_reduce", 120),
        (1, "all_reduce", 124),
        (2, "all_reduce", 120),
    ]


def test_another_root_is_a_disagreement(tmp_path: Path) -> None:
    processes = [Process(0), Process(1)]
    for process in processes:
        process.call("c10d::broadcast_", [Tensor(5)], OBJECT, process.rank, 0, *ASYNC)

    [found] = disagreements(loaded(tmp_path, *processes))

    assert (found.group_name, found.place, found.is_inferred) == ("0", 0, False)
    assert [call.root for call in found.calls] == [0, 1]


def test_another_operation_is_a_disagreement_but_not_in_an_unknown_group(tmp_path: Path) -> None:
    processes = [Process(0, {"0": [], "1": [0, 1]}), Process(1, {"0": [], "1": [0, 1]})]
    for process in processes:
        process.call("c10d::broadcast_", [Tensor(5)], OBJECT, process.rank, 0, *ASYNC)  # of 0 or 1: nothing shows it
        functional = process.call("_c10d_functional::" + ("all_reduce", "broadcast")[process.rank], Tensor(4), "1")
        name, root = (("c10d::allreduce_", OBJECT), ("c10d::broadcast_", 0))[process.rank]
        process.call(name, [Tensor(4)], OBJECT, root, 0, parent=functional)

    found = disagreements(loaded(tmp_path, *processes))

    assert [(each.group_name, each.place, each.is_inferred) for each in found] == [("1", 0, False)]
    assert [call.op for call in found[0].calls] == ["all_reduce", "broadcast"]


def test_numbers_of_calls_place_them_where_traces_begin_at_different_ones(tmp_path: Path) -> None:
    processes = [Process(0, backend="cuda:nccl"), Process(1, backend="cuda:nccl")]
    for process in processes:
        for seq in range(4 + process.rank, 8):
            process.record("allreduce", Tensor(100 + seq), seq=[seq, False])

    trace = loaded(tmp_path, *processes)

    assert not disagreements(trace)
    assert [row["place"] for row in rows_of(trace)] == [4, 5, 6, 7, 5, 6, 7]


def test_a_number_at_which_sizes_differ_is_told(tmp_path: Path) -> None:
    processes = [Process(0, backend="cuda:nccl"), Process(1, backend="cuda:nccl")]
    for process in processes:
        for seq in range(4 + process.rank, 8):
            process.record("allreduce", Tensor(100 + seq + (process.rank and seq >= 6)), seq=[seq, False])

    [found] = disagreements(loaded(tmp_path, *processes))

    assert (found.place, [call.n_bytes for call in found.calls]) == (6, [424, 428])
