"""What keeps traces from being judged across ranks: told, and only then."""

from __future__ import annotations

from typing import Any

import pytest

import rankscope
from analyze.comm_jobs import SAMPLES, call, job, recorded
from analyze.device_tables import Row, findings, trace_of
from rankscope.model.tables import Trace
from rankscope.simulate.profiler import ProfileNoise, ProfileSpec, simulate_profile

PAIR = {"group_name": "0", "group_ranks": "[0, 1]"}


def test_transfers_that_do_not_say_with_whom_are_told() -> None:
    spec = ProfileSpec(data_parallel=2, stages=3, n_layers=1, n_microbatches=2, n_steps=3)
    trace = recorded(simulate_profile(spec), "nothing").trace
    [finding] = findings(trace, "D906")
    assert "do not say which group" in finding.title
    assert "torch 2.13" in finding.help
    assert finding.evidence.facts["n_unmatched"] == finding.evidence.facts["n_without_group"] > 0


def test_what_has_a_number_is_not_told() -> None:
    spec = ProfileSpec(data_parallel=2, stages=3, n_layers=1, n_microbatches=2, n_steps=3)
    simulation = simulate_profile(spec, noise=ProfileNoise(window_offset=2))
    assert findings(recorded(simulation).trace, "D906") == []


def test_a_single_rank_has_nobody_to_be_matched_with() -> None:
    assert findings(job([call(0, 0, 10, **PAIR)]), "D906") == []


@pytest.mark.skipif(not SAMPLES.exists(), reason="sample traces are not at hand")
def test_sampled_traces_of_two_ranks_of_128() -> None:
    trace = rankscope.load(SAMPLES / "trace_filter", jobs=1)
    [unmatched] = findings(trace, "D906")
    assert unmatched.severity == "info"
    [missing] = findings(trace, "D907")
    assert (missing.severity, len(missing.ranks)) == ("info", 126)


def test_few_missing_ranks_are_an_accident_many_are_a_choice() -> None:
    calls = [call(rank, 0, 10, seq=1, group_name="0", group_ranks="[0, 1, 2, 3]") for rank in range(3)]
    [finding] = findings(job(calls, world_size=4), "D907")
    assert (finding.ranks, finding.severity) == ((3,), "warning")
    [finding] = findings(job(calls[:1], world_size=64), "D907")
    assert (len(finding.ranks), finding.severity) == (63, "info")
    assert findings(job([*calls, call(3, 0, 10, **PAIR)], world_size=4), "D907") == []


def test_members_of_groups_count_where_the_size_of_the_job_is_not_told() -> None:
    [finding] = findings(job([call(0, 0, 10, **PAIR)]), "D907")
    assert finding.ranks == (1,)


def windows(*spans: tuple[int, int, float, float], **columns: Any) -> Trace:
    """Traces as (file, rank, start, end) in milliseconds, each with two calls."""
    calls: list[Row] = []
    for file_id, rank, start, end in spans:
        own = {"file_id": file_id, **PAIR, **columns}
        calls += [call(rank, 1000 * start, 1000 * start + 10, **own), call(rank, 1000 * end - 10, 1000 * end, **own)]
    return job(calls, hosts=["a"] * 8)


def test_two_traces_of_one_rank_at_one_time_are_told() -> None:
    [finding] = findings(windows((0, 0, 0, 10), (1, 0, 5, 15), (2, 1, 0, 10)), "D908")
    assert finding.ranks == (0,)
    assert "overlap" in finding.title


def test_windows_one_after_the_other_are_normal() -> None:
    assert findings(windows((0, 0, 0, 10), (1, 1, 0, 10), (2, 0, 50, 60), (3, 1, 50, 60)), "D908") == []


def test_numbers_that_start_again_are_of_another_run() -> None:
    calls = [call(0, at, at + 10, file_id=file, seq=seq, **PAIR) for file, at, seq in ((0, 0, 40), (1, 90_000, 7))]
    [finding] = findings(job(calls), "D908")
    assert (finding.ranks, "different runs" in finding.title) == ((0,), True)
    calls[1]["seq"] = 41
    assert findings(job(calls), "D908") == []


def test_ranks_recorded_at_another_time_are_told() -> None:
    [finding] = findings(windows((0, 0, 0, 10), (1, 1, 2, 12), (2, 2, 5_000, 5_010)), "D908")
    assert finding.ranks == (2,)
    assert "a different time" in finding.title


def test_traces_of_one_rank_that_are_days_apart_are_of_different_runs() -> None:
    day = 86_400 * 1000  # windows count in milliseconds
    [finding] = findings(windows((0, 0, 0, 10), (1, 0, 2 * day, 2 * day + 10)), "D908")
    assert finding.ranks == (0,)
    assert "more than a day" in finding.title
    assert findings(windows((0, 0, 0, 10), (1, 0, day // 2, day // 2 + 10)), "D908") == []


def test_profiles_without_communication_are_judged_too() -> None:
    profiles = [
        {"file_id": file, "rank": rank, "start_ns": start, "end_ns": start + 10, "world_size": 2}
        for file, rank, start in ((0, 0, 100), (1, 0, 105), (2, 1, 100))
    ]
    trace = trace_of(profiles=profiles)
    assert [finding.ranks for finding in findings(trace, "D908")] == [(0,)]
    assert findings(trace, "D907") == []
