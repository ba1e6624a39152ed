"""Clocks of hosts on one axis: hand-made jobs, and how far it is from the truth of simulated ones."""

from __future__ import annotations

import numpy as np
import pytest

from analyze.comm_jobs import call, clock_errors_ns, job, recorded
from analyze.device_tables import at, findings, rows_of
from rankscope.analyze.comm.profile_clocks import matching_of
from rankscope.simulate.profiler import ProfileNoise, ProfileSpec, simulate_profile

pytestmark = pytest.mark.slow

GROUP = {"group_name": "0", "group_ranks": "[0, 1, 2, 3]"}
MAX_P90_NS = 300_000


def test_ranks_of_one_host_share_an_offset_that_lines_up_the_ends() -> None:
    ahead = {0: 0.0, 1: 0.0, 2: 7_500.0, 3: 7_500.0}
    calls = [
        call(rank, at + 10 * rank + ahead[rank], at + 500 + ahead[rank], seq=at, **GROUP)
        for rank in range(4)
        for at in range(0, 50_000, 5_000)
    ]
    rows = {row["rank"]: row for row in rows_of(job(calls, hosts=["a", "a", "b", "b"]), "profile_clocks")}
    assert rows[2]["offset_ns"] - rows[0]["offset_ns"] == pytest.approx(7_500_000, abs=1_000)
    assert rows[0]["offset_ns"] == rows[1]["offset_ns"]
    assert all(row["is_aligned"] and row["n_shared"] == 10 for row in rows.values())
    assert rows[3]["host"] == "b"


def test_times_of_other_tables_are_on_the_common_clock() -> None:
    calls = [call(0, at, at + 500, seq=at, **GROUP) for at in (0, 5_000, 9_000)]
    calls += [call(1, at + 3_000, at + 3_500, seq=at, **GROUP) for at in (0, 5_000, 9_000)]
    trace = job(calls, hosts=["a", "b"])
    ends = {(row["match_id"], row["rank"]): row["end_ns"] for row in rows_of(trace, "comm_calls")}
    assert all(abs(ends[match, 0] - ends[match, 1]) <= 2_000 for match in range(3))
    clocks = {row["rank"]: row for row in rows_of(trace, "profile_clocks")}
    for row in rows_of(trace, "comm_calls"):
        clock = clocks[row["rank"]]
        own = next(call for call in trace.table("comms").rows() if call["comm_id"] == row["comm_id"])["start_ns"]
        moved = own - clock["offset_ns"] - (own - clock["at_ns"]) * clock["drift_ppb"] / 1e9
        assert moved == pytest.approx(row["start_ns"], abs=2)


def test_one_host_needs_no_offset() -> None:
    calls = [call(rank, at, at + 500 + 9_000 * rank, seq=at, **GROUP) for rank in (0, 1) for at in (0, 50_000)]
    for row in rows_of(job(calls, hosts=["a", "a"]), "profile_clocks"):
        assert (row["offset_ns"], row["error_ns"], row["is_aligned"]) == (0, 0, True)


def test_hosts_that_share_too_little_are_not_aligned_and_their_waits_not_judged() -> None:
    calls = [call(rank, at, at + 500 + 4_000 * rank, seq=at, **GROUP) for rank in (0, 1) for at in (0, 20_000)]
    trace = job(calls, hosts=["a", "b"])
    assert not any(row["is_aligned"] for row in rows_of(trace, "profile_clocks"))
    assert {row["wait_ns"] for row in rows_of(trace, "comm_calls")} == {-1}
    [finding] = findings(trace, "D905")
    assert finding.ranks == (0, 1)
    assert finding.evidence.facts["hosts"] == ["a", "b"]


def test_aligned_hosts_give_no_finding() -> None:
    calls = [
        call(rank, at, at + 500 + 4_000 * rank, seq=at, **GROUP) for rank in (0, 1) for at in range(0, 90_000, 9_000)
    ]
    assert findings(job(calls, hosts=["a", "b"]), "D905") == []
    assert findings(job(calls[:1], hosts=["a", "b"]), "D905") == []


@pytest.mark.parametrize("drift_ppm", [0, 20])
@pytest.mark.parametrize("words", ["seq", "group"])
@pytest.mark.parametrize("stages", [1, 4])
@pytest.mark.parametrize("spread_us", [0, 150])
def test_error_on_64_ranks_with_5_ms_of_skew(stages: int, words: str, drift_ppm: float, spread_us: float) -> None:
    spec = ProfileSpec(data_parallel=64 // stages, stages=stages, ranks_per_host=8, n_layers=3, n_microbatches=2)
    simulation = simulate_profile(spec, noise=ProfileNoise(clock_skew_ms=5, drift_ppm=drift_ppm))
    assert np.ptp([clock.offset_ns for clock in simulation.truth.clocks.values()]) > 5_000_000
    errors = clock_errors_ns(simulation, matching_of(recorded(simulation, words, spread_us=spread_us).trace))
    assert np.quantile(errors, 0.9) < MAX_P90_NS


def test_drift_is_shown_in_a_long_window() -> None:
    calls = []
    for second in range(0, 120, 4):
        for rank in (0, 1):
            drifted = second * 1e6 + rank * (3_000 + second * 1e6 * 30e-6)
            calls.append(call(rank, drifted, drifted + 200, seq=second, **GROUP))
    slow, fast = sorted(rows_of(job(calls, hosts=["a", "b"]), "profile_clocks"), key=lambda row: row["rank"])
    assert fast["drift_ppb"] - slow["drift_ppb"] == pytest.approx(30_000, rel=0.02)
    assert fast["at_ns"] == pytest.approx(at(59e6), abs=2e9)
