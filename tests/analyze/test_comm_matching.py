"""Calls of different ranks that are one collective: by number, by order and by end; hand-made and simulated."""

from __future__ import annotations

import numpy as np
import pytest

import rankscope
from analyze.comm_jobs import SAMPLES, call, job, matched_sets, n_missed, n_wrong, recorded
from analyze.device_tables import rows_of
from rankscope.analyze.comm.matching import METHODS
from rankscope.analyze.comm.profile_clocks import matching_of
from rankscope.simulate.profiler import ProfileFault, ProfileNoise, ProfileSpec, simulate_profile

pytestmark = pytest.mark.slow

PAIR = {"group_name": "0", "group_ranks": "[0, 1]"}


def test_comms_id_joins_what_sequence_numbers_would_not() -> None:
    trace = job(
        [
            call(0, 0, 10, seq=4, comms_id="77", **PAIR),
            call(1, 2, 10, seq=5, comms_id="77", **PAIR),
            call(1, 12, 20, seq=6, comms_id="78", **PAIR),
        ]
    )
    assert matched_sets(trace) == [((0, 0), (1, 1))]
    assert [row["method"] for row in rows_of(trace, "comm_matches")] == ["comms-id"]


def test_sequence_numbers_join_within_a_group_only() -> None:
    other = {"group_name": "1", "group_ranks": "[0, 1]"}
    trace = job(
        [
            call(0, 0, 10, seq=4, **PAIR),
            call(1, 2, 10, seq=4, **PAIR),
            call(0, 20, 30, seq=4, **other),
            call(1, 22, 30, seq=4, **other),
        ]
    )
    assert matched_sets(trace) == [((0, 0), (1, 1)), ((0, 2), (1, 3))]


def test_several_kernels_of_one_number_are_matched_one_by_one() -> None:
    calls = [call(rank, at, at + 5, seq=1, **PAIR) for rank in (0, 1) for at in (0, 10)]
    assert matched_sets(job(calls)) == [((0, 0), (1, 2)), ((0, 1), (1, 3))]


def test_numbers_that_mean_something_else_on_each_rank_are_not_believed() -> None:
    """A counter over all groups of a process: equal numbers are different calls, order and ends tell."""
    ops = ["all_reduce", "all_gather", "all_reduce", "reduce_scatter", "all_gather", "all_reduce"]
    calls = [
        call(rank, 1000 * at, 1000 * at + 500, op=op, seq=at + rank, step=1, **PAIR)
        for rank in (0, 1)
        for at, op in enumerate(ops)
    ]
    assert matched_sets(job(calls, hosts=["a", "a"])) == [((0, at), (1, at + 6)) for at in range(6)]


def test_the_place_in_the_step_decides_where_ends_are_far_apart() -> None:
    """gloo's worker threads end many milliseconds apart on a busy machine."""
    calls = [
        call(
            rank, 50_000 * step + 100 * at, 50_000 * step + 30_000 + 9_000 * rank, kernel_id=-1, step=step, n_bytes=size
        )
        for rank in (0, 1, 2)
        for step in (1, 2)
        for at, size in enumerate((64, 128))
    ]
    trace = job(calls, hosts=["a"] * 3, groups=[{"pg_name": "0", "ranks": [0, 1, 2]}])
    assert [len(match) for match in matched_sets(trace)] == [3, 3, 3, 3]
    assert {row["method"] for row in rows_of(trace, "comm_matches")} == {"order"}


def test_as_many_calls_per_step_are_no_proof_when_they_run_at_different_times() -> None:
    calls = [call(0, at, at + 20, step=1, **PAIR) for at in (0, 40_000, 80_000)]
    calls += [call(1, at, at + 20, step=1, **PAIR) for at in (40_000, 80_000, 120_000)]
    assert matched_sets(job(calls, hosts=["a", "a"])) == [((0, 1), (1, 3)), ((0, 2), (1, 4))]


def test_windows_that_begin_at_different_calls_are_shifted_by_the_ends() -> None:
    gaps = np.cumsum([3_000, 5_000, 2_500, 7_000, 4_000, 3_300])
    calls = [call(0, end - 900, end, **PAIR) for end in gaps[:5].tolist()]
    calls += [call(1, end - 400 + 4_200, end + 4_203, **PAIR) for end in gaps[2:].tolist()]
    trace = job(calls, hosts=["a", "b"])
    assert matched_sets(trace) == [((0, 2), (1, 5)), ((0, 3), (1, 6)), ((0, 4), (1, 7))]
    offset = matching_of(trace).clocks.fit.offset
    assert abs(offset[1] - offset[0]) == pytest.approx(4_203_000, abs=5_000)


def test_different_sizes_are_never_one_call() -> None:
    calls = [call(0, 0, 100, n_bytes=8, **PAIR), call(1, 0, 100, n_bytes=16, **PAIR)]
    assert matched_sets(job(calls, hosts=["a", "a"])) == []


def test_uneven_all_to_all_is_one_call() -> None:
    calls = [call(rank, rank, 100, op="all_to_all", n_bytes=8 + rank, **PAIR) for rank in (0, 1)]
    assert len(matched_sets(job(calls, hosts=["a", "a"]))) == 1


def test_transfers_are_matched_by_direction_not_by_their_numbers() -> None:
    """Both ranks send first: the numbers of a send and of its receive differ, equal numbers are two sends."""
    calls = []
    for at in (0, 10_000):
        calls += [
            call(0, at, at + 50, op="send", dst=1, is_p2p=True, seq=1 + at, **PAIR),
            call(0, at + 60, at + 100, op="recv", src=1, is_p2p=True, seq=2 + at, **PAIR),
            call(1, at, at + 100, op="send", dst=0, is_p2p=True, seq=1 + at, **PAIR),
            call(1, at + 1, at + 50, op="recv", src=0, is_p2p=True, seq=2 + at, **PAIR),
        ]
    assert set(matched_sets(job(calls, hosts=["a", "a"]))) == {
        ((0, 0), (1, 3)),
        ((0, 1), (1, 2)),
        ((0, 4), (1, 7)),
        ((0, 5), (1, 6)),
    }


def test_peers_may_be_told_by_their_place_in_the_group() -> None:
    group = {"group_name": "3", "group_ranks": "[4, 9]", "is_p2p": True}
    calls = [call(4, 0, 50, op="send", dst=1, **group), call(9, 5, 50, op="recv", src=0, **group)]
    assert len(matched_sets(job(calls, hosts=["a"] * 10))) == 1


def test_transfers_without_a_word_are_left_alone_among_more_than_two_ranks() -> None:
    calls = [call(rank, 0, 50, op="send_recv", is_p2p=True) for rank in (0, 1, 2, 3)]
    assert matched_sets(job(calls, hosts=["a"] * 4)) == []


def test_collectives_without_a_word_form_the_groups_that_end_together() -> None:
    calls = [
        call(rank, at + rank, at + 900 + 300 * (rank % 2)) for rank in range(4) for at in (0, 5_000, 11_000, 18_000)
    ]
    for row in calls:
        row["start_ns"] += 2_000_000 * (row["rank"] % 2)  # ranks 1 and 3 reduce two milliseconds later
    trace = job(calls, hosts=["a"] * 4)
    groups = [group.ranks for group in matching_of(trace).groups]
    assert sorted(groups) == [(0, 2), (1, 3)]
    assert all(group.is_inferred for group in matching_of(trace).groups)


def test_a_process_of_a_shared_file_is_told_apart_by_its_rank() -> None:
    """One nsys report may hold several ranks."""
    calls = [{**call(rank, at, at + 5, **PAIR), "file_id": 0} for rank in (0, 1) for at in (0, 3_000, 8_000)]
    assert [len(match) for match in matched_sets(job(calls, hosts=["a", "a"]))] == [2, 2, 2]


def test_empty_tables_give_no_matches() -> None:
    assert rows_of(job([]), "comm_matches") == []
    assert rows_of(job([]), "comm_calls") == []
    assert rows_of(job([call(0, 0, 10, **PAIR)]), "comm_matches") == []


PIPELINE = ProfileSpec(data_parallel=4, stages=4, ranks_per_host=4, n_layers=1, n_microbatches=3, n_steps=3)
LINE = ProfileSpec(
    data_parallel=4, stages=4, ranks_per_host=8, n_layers=1, n_microbatches=3, n_steps=3, pipeline_groups="line"
)
PARALLEL = ProfileSpec(data_parallel=8, ranks_per_host=2, n_layers=2, n_steps=4)


@pytest.mark.parametrize("words", ["seq", "group"])
@pytest.mark.parametrize("drop", [0.0, 0.3])
@pytest.mark.parametrize("offset", [0, 1])
@pytest.mark.parametrize("spec", [PARALLEL, PIPELINE, LINE], ids=["dp", "pp", "line"])
def test_simulated_jobs_are_matched_without_a_mistake(spec: ProfileSpec, words: str, drop: float, offset: int) -> None:
    noise = ProfileNoise(clock_skew_ms=5, drift_ppm=20, window_offset=offset)
    found = recorded(simulate_profile(spec, ProfileFault("slow-kernels", rank=1), noise), words, drop)
    assert n_wrong(found) == 0
    assert n_missed(found) == 0


def test_simulated_collectives_without_a_word_are_matched() -> None:
    simulation = simulate_profile(PARALLEL, noise=ProfileNoise(clock_skew_ms=5, window_offset=1))
    found = recorded(simulation, "nothing", drop=0.2)
    assert (n_wrong(found), n_missed(found)) == (0, 0)
    assert [group.ranks for group in matching_of(found.trace).groups] == [tuple(range(8))]


def test_methods_are_listed_from_the_weakest_on() -> None:
    assert METHODS == ("", "time", "order", "seq", "comms-id")


@pytest.mark.skipif(not SAMPLES.exists(), reason="sample traces are not at hand")
def test_sampled_trace_of_two_ranks_gives_the_five_true_pairs() -> None:
    trace = rankscope.load(SAMPLES / "trace_filter")
    assert matched_sets(trace) == [((0, at), (1, other)) for at, other in ((1, 0), (2, 2), (4, 4), (8, 8), (9, 9))]
    matches = rows_of(trace, "comm_matches")
    assert [(row["method"], row["last_rank"]) for row in matches] == [("time", 1)] * 5
    assert max(row["end_spread_ns"] for row in matches) == 332_000
    assert sorted(row["wait_ns"] for row in matches)[0] == 84_000
    [last, other] = rows_of(trace, "arrivals")
    assert (last["rank"], last["n_last"], other["n_last"]) == (1, 5, 0)
