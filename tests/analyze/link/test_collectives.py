"""Calls of collectives on gloo, whose nodes tell neither the group nor what they are."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from analyze.link.observed_processes import LONG, MAIN_TID, NONE, OBJECT, Process, Tensor, loaded, rows_of
from rankscope.model.tables import Trace


def named_groups(trace: Trace) -> list[tuple[int, str, bool]]:
    """Elements of each call, by which the tests tell them apart, its group, and whether that was concluded."""
    return [(row["n_in"], row["group_name"], row["is_inferred"]) for row in rows_of(trace)]


T, PAIR = Tensor, [Tensor(7), Tensor(7)]
ASYNC = (False, -1)
GLOO_CALLS: dict[str, tuple[tuple[Any, ...], str, dict[str, Any]]] = {
    "allreduce_": (([T(100)], OBJECT, OBJECT, NONE, *ASYNC), "all_reduce", {"op": "all_reduce", "n_bytes": 400}),
    "allreduce_coalesced_": (([T(5), T(6)], OBJECT, OBJECT, *ASYNC), "all_reduce", {"op": "all_reduce", "n_bytes": 44}),
    "broadcast_": (([T(8)], OBJECT, 1, 0, *ASYNC), "broadcast", {"op": "broadcast", "n_bytes": 32, "root": 1}),
    "reduce_": (([T(9)], OBJECT, OBJECT, 1, 0, *ASYNC), "reduce", {"op": "reduce", "n_bytes": 36, "root": 1}),
    "allgather_": (([PAIR], [T(7)], OBJECT, *ASYNC), "all_gather", {"op": "all_gather", "n_bytes": 28, "n_out": 14}),
    "_allgather_base_": ((T(14), T(7), OBJECT, *ASYNC), "all_gather", {"op": "all_gather", "n_bytes": 28, "n_out": 14}),
    "allgather_into_tensor_coalesced_": (
        ([T(14), T(2)], [T(7), T(1)], OBJECT, True), "all_gather", {"op": "all_gather", "n_bytes": 32, "n_out": 16}),
    "gather_": (([PAIR], [T(7)], OBJECT, 0, *ASYNC), "gather", {"op": "gather", "n_bytes": 28, "root": 0}),
    "scatter_": (
        ([T(7)], [PAIR], OBJECT, 1, *ASYNC), "scatter", {"op": "scatter", "n_bytes": 28, "n_in": 14, "root": 1}),
    "reduce_scatter_": (
        ([T(7)], [PAIR], OBJECT, OBJECT, *ASYNC), "all_reduce", {"op": "reduce_scatter", "n_bytes": 56, "n_out": 7}),
    "_reduce_scatter_base_": (
        (T(8), T(16), OBJECT, OBJECT, *ASYNC), "all_reduce", {"op": "reduce_scatter", "n_bytes": 64, "n_out": 8}),
    "alltoall_": ((PAIR, PAIR, OBJECT, *ASYNC), "all_to_all", {"op": "all_to_all", "n_bytes": 56}),
    "alltoall_base_": (
        (T(4), T(6), OBJECT, [], [], *ASYNC), "all_to_all", {"op": "all_to_all", "n_bytes": 24, "n_out": 4}),
    "send": (
        ([T(11, LONG)], OBJECT, 1, 7), "send",
        {"op": "send", "n_bytes": 88, "src": 0, "dst": 1, "tag": 7, "is_p2p": True, "dtype": "Long"}),
    "recv_": (([T(12)], OBJECT, 1, 3), "recv", {"op": "recv", "n_bytes": 48, "src": 1, "dst": 0, "tag": 3}),
    "barrier": ((T(1), OBJECT, [], *ASYNC), "barrier", {"op": "barrier", "n_bytes": 0, "n_in": 0, "dtype": ""}),
}  # fmt: skip


@pytest.mark.cases
@pytest.mark.parametrize("name", GLOO_CALLS)
def test_a_call_on_gloo_is_what_its_arguments_say(tmp_path: Path, name: str) -> None:
    inputs, run_as, expected = GLOO_CALLS[name]
    process = Process(0)
    called = process.call(f"c10d::{name}", *inputs)
    ran = process.run(f"gloo:{run_as}")

    [row] = rows_of(loaded(tmp_path, process))

    expected = {
        "root": -1,
        "src": -1,
        "dst": -1,
        "tag": -1,
        "dtype": "Float",
        "is_p2p": row["op"] == "recv",
        **expected,
    }
    assert {key: row[key] for key in expected} == expected
    assert (row["node_id"], row["runner"], row["runner_id"], row["comm_id"]) == (called, "node", ran, 0)
    assert (row["group_name"], row["group_ranks"], row["group_size"]) == ("0", "[0,1]", 2)
    assert not row["is_inferred"]


def test_what_runs_a_call_may_lie_below_it_beside_it_or_be_missing(tmp_path: Path) -> None:
    process = Process(0)
    base = process.call("c10d::_allgather_base_", Tensor(2), Tensor(1), OBJECT)
    process.call("aten::chunk", Tensor(2), parent=base)
    beside = process.run("gloo:all_gather")
    below = process.call("c10d::allreduce_", [Tensor(3)], OBJECT)
    within = process.run("gloo:all_reduce", parent=below)
    alone = process.call("c10d::monitored_barrier_", Tensor(0), OBJECT, [], 1800000, False)
    process.run("gloo:recv", tid=MAIN_TID)
    process.run("gloo:send", tid=MAIN_TID)

    rows = rows_of(loaded(tmp_path, process))

    assert [(row["op"], row["runner_id"]) for row in rows] == [
        ("all_gather", beside),
        ("all_reduce", within),
        ("barrier", alone),
    ]


def test_a_functional_collective_is_one_call_and_names_its_group(tmp_path: Path) -> None:
    process = Process(0, {"0": [], "1": [0, 1]})
    functional = process.call("_c10d_functional::all_reduce", Tensor(4), "sum", "1")
    inner = process.call("c10d::allreduce_", [Tensor(4)], OBJECT, parent=functional)
    process.run("gloo:all_reduce", tid=MAIN_TID)
    process.call("_c10d_functional::wait_tensor", Tensor(4), parent=functional)
    # The observer's stack is out of order while gloo works: this one only seems to be part of it.
    process.call("c10d::allreduce_", [Tensor(5)], OBJECT, parent=inner)

    assert named_groups(loaded(tmp_path, process)) == [(4, "1", False), (5, "", True)]


@pytest.mark.parametrize("is_profiled", [True, False])
def test_of_several_groups_that_nothing_tells_apart_none_is_taken(tmp_path: Path, is_profiled: bool) -> None:
    process = Process(2, {"0": [], "3": [1, 2], "5": [2, 3]}, size=4)
    for n_elements, tid in ((10, 2000), (30, 2003), (50, 2006)):
        process.all_reduce(n_elements, tid)
    process.call("c10d::send", [Tensor(60)], OBJECT, 0, 0)
    process.call("c10d::send", [Tensor(61)], OBJECT, 3, 0)

    rows = rows_of(loaded(tmp_path, process, is_profiled=is_profiled))

    assert [(row["group_name"], row["group_ranks"], row["is_inferred"]) for row in rows] == [("", "[]", True)] * 5
    # Place 0 is rank 0, 1 or 2, depending on the group; place 3 is there in one of them only.
    assert [row["dst"] for row in rows[3:]] == [-1, 3]


def test_what_all_possible_groups_have_in_common_is_known(tmp_path: Path) -> None:
    process = Process(0, {"0": [], "1": [0, 1]})
    process.all_reduce(10)
    process.call("c10d::send", [Tensor(60)], OBJECT, 1, 0)

    rows = rows_of(loaded(tmp_path, process))

    assert [(row["group_name"], row["group_ranks"], row["dst"]) for row in rows] == [
        ("", "[0,1]", -1),
        ("", "[0,1]", 1),
    ]


def test_roots_and_peers_are_counted_in_their_group(tmp_path: Path) -> None:
    process = Process(1, {"4": [1, 3]}, size=4)
    process.call("c10d::broadcast_", [Tensor(5)], OBJECT, 1, 0, *ASYNC)
    process.run("gloo:broadcast")
    process.call("c10d::recv_", [Tensor(6)], OBJECT, 1, 2)

    rows = rows_of(loaded(tmp_path, process))

    assert [(row["root"], row["src"], row["dst"]) for row in rows] == [(3, -1, -1), (-1, 3, 1)]


def test_what_comes_from_anyone_came_from_the_rank_that_sent_it(tmp_path: Path) -> None:
    sender, receiver = Process(0), Process(1)
    sender.call("c10d::send", [Tensor(31)], OBJECT, 1, 3)
    sender.run("gloo:send", Tensor(31), tid=MAIN_TID)
    receiver.call("c10d::recv_any_source_", [Tensor(31)], OBJECT, 3)
    receiver.run("gloo:recvAnySource", Tensor(31), tid=MAIN_TID)

    rows = rows_of(loaded(tmp_path, sender, receiver))

    assert [(row["op"], row["src"], row["dst"], row["tag"]) for row in rows] == [("send", 0, 1, 3), ("recv", 0, 1, 3)]
    assert rows[0]["match_id"] == rows[1]["match_id"] >= 0


def test_calls_at_one_place_are_one_logical_call(tmp_path: Path) -> None:
    processes = [Process(0), Process(1)]
    for process in processes:
        other = 1 - process.rank
        for name in ("c10d::send", "c10d::recv_") if process.rank else ("c10d::recv_", "c10d::send"):
            process.call(name, [Tensor(9)], OBJECT, other, 5)
        process.all_reduce(10)
        process.call("c10d::send", [Tensor(9)], OBJECT, other, 5)
        process.call("c10d::recv_", [Tensor(9)], OBJECT, other, 5)
        process.all_reduce(11)

    rows = rows_of(loaded(tmp_path, *processes))

    assert [(row["n_in"], row["place"]) for row in rows if not row["is_p2p"]] == [(10, 0), (11, 1)] * 2
    transfers = [(row["op"], row["src"], row["place"]) for row in rows if row["is_p2p"]]
    assert transfers[:4] == [("recv", 1, 0), ("send", 0, 0), ("send", 0, 1), ("recv", 1, 1)]
    assert transfers[4:] == [("send", 1, 0), ("recv", 0, 0), ("send", 1, 1), ("recv", 0, 1)]
