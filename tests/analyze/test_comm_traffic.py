"""Uneven shares and slow links, on hand-made and simulated jobs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import rankscope
from analyze.comm_jobs import call, job, recorded
from analyze.device_tables import Row, findings, step
from rankscope.model.tables import Trace
from rankscope.simulate.profiler import ProfileFault, ProfileNoise, ProfileSpec, simulate_profile

pytestmark = pytest.mark.slow

EXPERTS = {"group_name": "3", "group_desc": "ep", "group_ranks": "[0, 1, 2, 3]", "op": "all_to_all", "dtype": "Byte"}


def exchanging(received: list[dict[int, int]], moving: float = 3_000.0) -> Trace:
    """All ranks exchange once per step of 10 ms; what each receives is given per step."""
    calls: list[Row] = []
    steps: list[Row] = []
    for number, shares in enumerate(received):
        begin = number * 10_000.0
        for rank, n_out in shares.items():
            sizes = {"n_in": 1_000, "n_out": n_out, "n_bytes": max(1_000, n_out)}
            calls.append(call(rank, begin + 100, begin + 100 + moving, seq=number, step=number, **EXPERTS, **sizes))
            steps.append(step(number, begin, begin + 10_000, rank=rank, file_id=rank))
    return job(calls, hosts=["a"] * 4, steps=steps)


def test_a_rank_with_twice_the_mean_is_named() -> None:
    [finding] = findings(exchanging([{0: 667, 1: 2_000, 2: 667, 3: 666}] * 4), "S203")
    assert (finding.ranks, finding.severity) == ((1,), "warning")
    assert "2.0 times the mean share of all_to_all" in finding.title
    assert finding.evidence.facts["cost_pct"] == pytest.approx(15, abs=0.2)
    assert finding.group is not None
    assert finding.group.desc == "ep"


def test_a_heavy_share_that_moves_around_names_nobody() -> None:
    received = [{rank: 3_100 if rank == number % 4 else 300 for rank in range(4)} for number in range(4)]
    [finding] = findings(exchanging(received), "S203")
    assert finding.ranks == ()
    assert "not always the same" in finding.title


@pytest.mark.parametrize(
    ("received", "moving"),
    [({0: 1_000, 1: 1_000, 2: 1_000, 3: 1_000}, 3_000.0), ({0: 950, 1: 1_150, 2: 900, 3: 1_000}, 3_000.0)],
    ids=["even", "nearly even"],
)
def test_shares_that_differ_little_are_no_finding(received: dict[int, int], moving: float) -> None:
    assert findings(exchanging([received] * 4, moving), "S203") == []


def test_uneven_shares_that_cost_nothing_are_no_finding() -> None:
    assert findings(exchanging([{0: 667, 1: 2_000, 2: 667, 3: 666}] * 4, moving=100.0), "S203") == []


def reducing_pairs(
    speeds: dict[tuple[int, int], float], waits: dict[int, float] | None = None, **columns: Any
) -> Trace:
    """Pairs of ranks reduce 1 MB twice in each of four steps, each pair at its own speed in GB/s."""
    calls: list[Row] = []
    steps: list[Row] = []
    for number in range(4):
        begin = number * 10_000.0
        for pair, speed in speeds.items():
            group = {"group_name": str(pair[0]), "group_ranks": str(list(pair)), "n_bytes": 1_000_000, **columns}
            for rank in pair:
                steps.append(step(number, begin, begin + 10_000, rank=rank, file_id=rank))
                for at in (1_000.0, 5_000.0):
                    late = (waits or {}).get(rank, 0.0)
                    end = begin + at + max((waits or {}).get(one, 0.0) for one in pair) + 1_000 / speed
                    calls.append(
                        call(rank, begin + at + late, end, seq=number * 2 + (at > 1_000), step=number, **group)
                    )
    hosts = [f"node{rank // 4}" for rank in range(8)]
    return job(calls, hosts=hosts, steps=steps)


def test_a_group_that_moves_data_slowly_is_named() -> None:
    [finding] = findings(reducing_pairs({(0, 1): 5.0, (2, 3): 1.0, (4, 5): 5.1, (6, 7): 4.9}), "S204")
    assert finding.ranks == (2, 3)
    assert "5.0 times slower" in finding.title
    assert finding.evidence.facts["groups"] == ["2"]
    assert finding.evidence.facts["cost_pct"] == pytest.approx(16, abs=0.5)


def test_a_host_is_named_when_all_its_links_are_slow() -> None:
    [finding] = findings(reducing_pairs({(0, 1): 5.0, (2, 3): 5.0, (4, 5): 1.0, (6, 7): 1.0}), "S204")
    assert (finding.ranks, finding.evidence.facts["hosts"]) == ((4, 5, 6, 7), ["node1"])


def test_waiting_for_a_late_rank_is_no_slow_link() -> None:
    assert findings(reducing_pairs({(0, 1): 5.0, (2, 3): 5.0, (4, 5): 5.0}, waits={3: 2_500.0}), "S204") == []


def test_groups_of_which_a_member_was_not_traced_are_not_judged() -> None:
    """Their calls may be long because the missing member came late."""
    trace = reducing_pairs({(0, 1): 5.0, (2, 3): 1.0, (4, 5): 5.0}, group_size=3)
    assert findings(trace, "S204") == []


def test_groups_within_and_across_hosts_are_not_compared() -> None:
    assert findings(reducing_pairs({(0, 1): 5.0, (2, 3): 5.0, (3, 4): 1.0}), "S204") == []


def test_small_calls_say_nothing_about_a_link() -> None:
    speeds = {(0, 1): 5.0, (2, 3): 1.0, (4, 5): 5.1, (6, 7): 4.9}
    assert findings(reducing_pairs(speeds, n_bytes=65_536), "S204") != []
    assert findings(reducing_pairs(speeds, n_bytes=65_535), "S204") == []


def test_one_group_has_nothing_to_compare_with() -> None:
    assert findings(reducing_pairs({(0, 1): 0.5}), "S204") == []


@pytest.mark.parametrize("pipeline_groups", ["pair", "line"])
def test_simulated_slow_host_is_named(pipeline_groups: str) -> None:
    spec = ProfileSpec(
        data_parallel=4, stages=4, ranks_per_host=4, n_layers=2, n_steps=3, pipeline_groups=pipeline_groups
    )
    simulation = simulate_profile(spec, ProfileFault("slow-link", rank=5), ProfileNoise())
    [finding] = findings(recorded(simulation).trace, "S204")
    assert finding.ranks == simulation.truth.ranks
    assert finding.evidence.facts["slowdown"] == pytest.approx(5, rel=0.05)


def test_simulated_healthy_job_has_no_slow_link(tmp_path: Path) -> None:
    spec = ProfileSpec(data_parallel=2, stages=2, ranks_per_host=2, n_layers=1, n_microbatches=2, n_steps=3)
    simulate_profile(spec, noise=ProfileNoise(drift_ppm=10)).write(tmp_path, gzip=False)
    trace = rankscope.load(tmp_path, jobs=1)
    assert [
        finding.title
        for code in ("S202", "S203", "S204", "D905", "D906", "D907", "D908")
        for finding in findings(trace, code)
    ] == []
