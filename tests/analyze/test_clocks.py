"""Clocks of hosts in a job: what is estimated, from which calls, and what it is used for."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from analyze.building import MS, Setting, column, job

HOSTS = {0: "a", 1: "b", 2: "c"}
SKEW_MS = 4000


def program(skew_ms: int, calls: Sequence[str] = ("dp:1 all_reduce done",) * 8) -> list[str]:
    """The calls, 50 ms apart, each ending 5 ms later, on a clock that is wrong by `skew_ms`."""
    times = [(10_000 + 50 * step + skew_ms, 10_005 + 50 * step + skew_ms) for step in range(len(calls))]
    return [f"{call} +{start} ={end}" for call, (start, end) in zip(calls, times, strict=True)]


def test_a_skewed_host_is_put_right() -> None:
    trace = job({0: program(0), 1: program(SKEW_MS), 2: program(0)}, Setting(hosts=HOSTS))
    offsets = column(trace, "ranks", "clock_offset_ns")
    errors = column(trace, "ranks", "clock_error_ns")
    assert (offsets[0], offsets[2]) == (0, 0)
    assert abs(offsets[1] - SKEW_MS * MS) <= 4 * errors[1]
    assert errors[0] == -1


def test_the_order_of_arrival_is_judged_on_the_common_clock() -> None:
    late = program(0, ("dp:1 all_reduce done",) * 8)
    late[-1] = "dp:1 all_reduce done +10400 =10405"
    trace = job({0: program(0), 1: program(SKEW_MS), 2: late}, Setting(hosts=HOSTS))
    assert column(trace, "matches", "last_rank")[-1] == 2


def test_small_differences_are_left_alone() -> None:
    trace = job({0: program(0), 1: program(60), 2: program(0)}, Setting(hosts=HOSTS))
    assert column(trace, "ranks", "clock_offset_ns") == [0, 0, 0]


@pytest.mark.parametrize("call", ["dp:1 broadcast done", "dp:1 all_reduce gloo done"])
def test_calls_whose_end_is_no_common_moment_do_not_count(call: str) -> None:
    trace = job(
        {rank: program(skew, (call,) * 8) for rank, skew in ((0, 0), (1, SKEW_MS), (2, 0))}, Setting(hosts=HOSTS)
    )
    assert column(trace, "ranks", "clock_offset_ns") == [0, 0, 0]


def test_ends_after_the_timeout_do_not_count() -> None:
    calls = ["dp:1 all_reduce aborted"] * 8
    programs = {
        rank: [f"{call} +{10_000 + skew + 50 * step}" for step, call in enumerate(calls)]
        for rank, skew in ((0, 0), (1, SKEW_MS), (2, 0))
    }
    assert column(job(programs, Setting(hosts=HOSTS)), "ranks", "clock_offset_ns") == [0, 0, 0]
