"""What matched calls add up to, on hand-made tables: waits, bandwidth, shares, arrivals."""

from __future__ import annotations

import pytest

from analyze.comm_jobs import call, job
from analyze.device_tables import kernel, rows_of, span
from rankscope.analyze.metric import Selection

PAIR = {"group_name": "0", "group_desc": "default_pg", "group_ranks": "[0, 1]"}
US = 1000


def by_rank(rows: list[dict[str, object]]) -> dict[object, dict[str, object]]:
    return {row["rank"]: row for row in rows}


def test_wait_and_transfer_meet_at_the_last_arrival() -> None:
    calls = [call(0, 0, 100, seq=1, **PAIR), call(1, 60, 100, seq=1, **PAIR)]
    trace = job(calls, hosts=["a", "a"])
    rows = by_rank(rows_of(trace, "comm_calls"))
    assert (rows[0]["wait_ns"], rows[0]["transfer_ns"], rows[0]["is_last"]) == (60 * US, 40 * US, False)
    assert (rows[1]["wait_ns"], rows[1]["transfer_ns"], rows[1]["is_last"]) == (0, 40 * US, True)
    assert rows[1]["lateness_ns"] == 60 * US
    [match] = rows_of(trace, "comm_matches")
    assert (match["wait_ns"], match["transfer_ns"], match["last_rank"]) == (60 * US, 40 * US, 1)
    assert (match["n_seen"], match["n_members"], match["is_complete"]) == (2, 2, True)


def test_transfer_is_the_last_ones_own_duration_and_needs_no_clock() -> None:
    calls = [call(0, 0, 100, seq=1, **PAIR), call(1, 60, 130, seq=1, **PAIR)]
    [match] = rows_of(job(calls, hosts=["a", "a"]), "comm_matches")
    assert match["transfer_ns"] == 70 * US
    calls = [{**row, "op": "broadcast"} for row in calls]
    [match] = rows_of(job(calls, hosts=["a", "a"]), "comm_matches")
    assert match["transfer_ns"] == 40 * US


@pytest.mark.parametrize(
    ("op", "factor"),
    [
        ("all_reduce", 2 * 3 / 4),
        ("all_gather", 3 / 4),
        ("reduce_scatter", 3 / 4),
        ("all_to_all", 3 / 4),
        ("broadcast", 1),
    ],
)
def test_bandwidths_follow_nccl_tests(op: str, factor: float) -> None:
    group = {"group_name": "0", "group_ranks": "[0, 1, 2, 3]", "group_size": 4}
    calls = [call(rank, 10 * rank, 130, op=op, seq=1, n_bytes=1_000_000, **group) for rank in range(4)]
    [match] = rows_of(job(calls, hosts=["a"] * 4), "comm_matches")
    assert match["transfer_ns"] == 100 * US
    assert match["algorithm_gbps"] == pytest.approx(10.0)
    assert match["bus_gbps"] == pytest.approx(10.0 * factor)


def test_exposed_is_what_no_kernel_hides_and_counts_each_moment_once() -> None:
    calls = [call(0, 0, 100, seq=1, **PAIR), call(0, 50, 140, op="all_gather", seq=2, stream=24, **PAIR)]
    trace = job(calls, hosts=["a"], kernels=[kernel(20, 70), kernel(130, 200)])
    rows = rows_of(trace, "comm_calls")
    assert [row["exposed_ns"] for row in rows] == [50 * US, 30 * US]


def test_exposed_on_the_host_is_what_no_operator_hides() -> None:
    ops = [span(0, 30, name="aten::mm"), span(30, 32, name="c10d::allreduce_"), span(90, 120, name="aten::add")]
    trace = job([call(0, 20, 100, kernel_id=-1, tid=9)], hosts=["a"], ops=ops)
    assert [row["exposed_ns"] for row in rows_of(trace, "comm_calls")] == [60 * US]


def test_calls_without_partners_have_no_wait_but_are_exposed() -> None:
    [row] = rows_of(job([call(0, 0, 100, seq=1, **PAIR)], hosts=["a"]), "comm_calls")
    assert (row["match_id"], row["wait_ns"], row["transfer_ns"], row["exposed_ns"]) == (-1, -1, -1, 100 * US)


def test_waits_are_summed_per_rank_group_and_operation() -> None:
    calls = [
        call(rank, at + 30 * rank, at + 100, seq=at, step=at // 1000, **PAIR) for rank in (0, 1) for at in (1000, 2000)
    ]
    trace = job(calls, hosts=["a", "a"])
    rows = by_rank(rows_of(trace, "comm_waits"))
    assert (rows[0]["n_calls"], rows[0]["wait_ns"], rows[0]["transfer_ns"]) == (2, 60 * US, 140 * US)
    assert rows[0]["wait_pct"] == pytest.approx(30)
    assert rows[1]["wait_ns"] == 0
    [row] = rows_of(trace, "comm_waits", Selection(ranks=[0], steps=[2]))
    assert (row["n_calls"], row["wait_ns"]) == (1, 30 * US)


def test_bandwidth_is_told_per_size_and_only_where_all_members_are_known() -> None:
    calls = [
        call(rank, at + rank, at + 101, seq=at, n_bytes=size, **PAIR)
        for at, size in ((0, 100_000), (200, 120_000), (400, 1_000_000))
        for rank in (0, 1)
    ]
    alone = {"group_name": "9", "group_ranks": "[0, 1, 2]"}
    calls += [call(rank, 600, 700, seq=1, n_bytes=5_000, **alone) for rank in (0, 1)]
    rows = rows_of(job(calls, hosts=["a", "a"]), "comm_bandwidth")
    assert [(row["bucket_bytes"], row["n_matches"], row["n_bytes"]) for row in rows] == [
        (65_536, 2, 110_000),
        (524_288, 1, 1_000_000),
    ]
    assert rows[1]["bus_gbps"] == pytest.approx(10.0)
    assert (rows[0]["slowest_gbps"], rows[0]["fastest_gbps"]) == pytest.approx((1.0, 1.2))


def test_uneven_shares_are_told_per_rank() -> None:
    sizes = {0: (100, 300), 1: (100, 60), 2: (100, 60), 3: (220, 100)}
    group = {"group_name": "0", "group_ranks": "[0, 1, 2, 3]", "op": "all_to_all", "dtype": "Byte"}
    calls = [
        call(rank, 0, 100, seq=1, n_in=sent, n_out=got, n_bytes=max(sent, got), **group)
        for rank, (sent, got) in sizes.items()
    ]
    even = {**group, "n_in": 50, "n_out": 50, "n_bytes": 50}
    calls += [call(rank, 200, 300, seq=2, **even) for rank in range(4)]
    rows = by_rank(rows_of(job(calls, hosts=["a"] * 4), "comm_imbalance"))
    assert {row["n_calls"] for row in rows.values()} == {1}
    assert rows[0]["received_ratio"] == pytest.approx(300 / 130)
    assert rows[3]["sent_ratio"] == pytest.approx(220 / 130)
    assert (rows[0]["sent_bytes"], rows[0]["received_bytes"]) == (100, 300)


def test_arrivals_count_who_comes_last_and_what_it_costs_all_others() -> None:
    group = {"group_name": "0", "group_ranks": "[0, 1, 2]"}
    calls = [
        call(rank, at + late, at + 100, seq=at, **group)
        for at, lates in ((0, (0, 5, 40)), (1000, (10, 0, 60)))
        for rank, late in enumerate(lates)
    ]
    rows = rows_of(job(calls, hosts=["a"] * 3), "arrivals")
    assert (rows[0]["rank"], rows[0]["n_last"], rows[0]["last_pct"]) == (2, 2, 100)
    assert rows[0]["mean_lateness_ns"] == (35 + 50) * US // 2
    assert rows[0]["caused_wait_ns"] == (40 + 35 + 50 + 60) * US
    assert [row["n_last"] for row in rows[1:]] == [0, 0]


def test_groups_are_told_with_their_hosts() -> None:
    calls = [call(rank, 0, 100, seq=1, **PAIR) for rank in (0, 1)]
    [group] = rows_of(job(calls, hosts=["a", "b"]), "comm_groups")
    assert (group["name"], group["desc"], group["ranks"]) == ("0", "default_pg", "[0, 1]")
    assert (group["size"], group["n_hosts"], group["n_calls"], group["is_inferred"]) == (2, 2, 2, False)
