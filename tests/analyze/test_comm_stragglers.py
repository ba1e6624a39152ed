"""Whom the others wait for: who stands in communication least, on hand-made and simulated jobs."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from analyze.comm_jobs import call, job, recorded
from analyze.device_tables import Row, findings, kernel, rows_of, step
from rankscope.analyze.chance import WITHOUT_CORE
from rankscope.analyze.comm.late import late_ranks
from rankscope.analyze.comm.stragglers import standings_of
from rankscope.model.tables import Table, Trace
from rankscope.simulate.profiler import ProfileFault, ProfileNoise, ProfileSpec, simulate_profile

pytestmark = pytest.mark.slow

STEP = 10_000.0
GROUP = {"group_name": "0", "group_ranks": "[0, 1, 2, 3]"}


def reducing(works: dict[int, list[float]], **columns: Any) -> Trace:
    """Each rank works so long in each step, then reduces with all others; the step ends when the slowest is done."""
    calls: list[Row] = []
    kernels: list[Row] = []
    steps: list[Row] = []
    begin = 0.0
    for number in range(len(works[0])):
        end = begin + max(work[number] for work in works.values()) + 100
        for rank, work in works.items():
            owner = {"rank": rank, "file_id": rank}
            done = begin + work[number]
            kernels.append(kernel(begin, done, step=number, **owner))
            calls.append(call(rank, done, end, seq=number, step=number, **{**GROUP, **columns}))
            steps.append(step(number, begin, end, **owner))
        begin = end
    return job(calls, hosts=["a"] * len(works), kernels=kernels, steps=steps)


def works(**late: list[float]) -> dict[int, list[float]]:
    return {rank: late.get(f"rank{rank}", [STEP] * 4) for rank in range(4)}


def test_the_rank_that_waits_least_is_the_late_one() -> None:
    rows = rows_of(reducing(works(rank2=[STEP + 2_000] * 4)), "stragglers")
    assert (rows[0]["rank"], rows[0]["n_late_steps"], rows[0]["n_steps"], rows[0]["n_last"]) == (2, 4, 4, 4)
    assert rows[0]["cost_ns"] == pytest.approx(2_000_000)
    assert rows[0]["cost_pct"] == pytest.approx(100 * 2_000 / 12_100)
    assert max(abs(row["cost_ns"]) for row in rows[1:]) == 0


def test_a_rank_that_is_late_in_some_steps_only_is_told_by_these() -> None:
    standing = standings_of(reducing(works(rank1=[STEP, STEP + 9_000, STEP, STEP + 9_500])))[0]
    assert (standing.rank, standing.late_steps, standing.n_compared) == (1, (1, 3), 4)


def test_what_strikes_in_a_single_step_is_no_warning() -> None:
    once = works(rank1=[STEP, STEP, STEP + 40_000, STEP])
    assert [finding.severity for finding in findings(reducing(once), "S202")] in ([], ["info"])
    twice = works(rank1=[STEP, STEP + 20_000, STEP, STEP + 20_500])
    assert [finding.severity for finding in findings(reducing(twice), "S202")] == ["warning"]


@pytest.mark.parametrize(("n_threads", "is_named"), [(0.02, True), (0.5, False)], ids=["free cores", "too few cores"])
def test_a_rank_that_waits_for_a_core_is_not_blamed(n_threads: float, is_named: bool) -> None:
    trace = reducing(works(rank2=[STEP + 4_000] * 4))
    row = {"file_id": 0, "rank": 2, "time_ns": 1, "step": 0, "name": WITHOUT_CORE, "value": n_threads}
    trace.tables["metrics"] = Table.from_rows("metrics", [row])
    assert bool(findings(trace, "S202")) == is_named


@pytest.mark.parametrize("n_ranks", [2, 4])
def test_ranks_that_are_late_in_turns_are_no_habit(n_ranks: int) -> None:
    turns = {rank: [STEP + 3_000 * (number % n_ranks == rank) for number in range(8)] for rank in range(n_ranks)}
    trace = reducing(turns, group_ranks=str(list(turns)))
    assert late_ranks(trace) == []
    assert findings(trace, "S202") == []


@pytest.mark.parametrize("jitter", [0.02, 0.1, 0.2])
@pytest.mark.parametrize("seed", range(8))
def test_steps_that_differ_by_chance_make_no_rank_late(jitter: float, seed: int) -> None:
    random = Random(seed)
    noisy = {rank: [STEP * max(0.3, random.gauss(1, jitter)) for _ in range(8)] for rank in range(4)}
    assert late_ranks(reducing(noisy)) == []
    noisy[2] = [work + (3 * jitter + 0.1) * STEP for work in noisy[2]]
    assert [standing.rank for standing in late_ranks(reducing(noisy))] == [2]


def test_half_of_the_ranks_or_more_are_not_to_blame() -> None:
    trace = reducing(works(**{f"rank{rank}": [STEP + 2_000] * 4 for rank in (0, 1, 2)}))
    assert late_ranks(trace) == []


def test_ranks_that_are_late_together_are_told_together() -> None:
    late = {rank: [STEP + 3_000 + 10 * rank] * 4 for rank in (2, 5)}
    everybody = {"group_ranks": "[0, 1, 2, 3, 4, 5, 6, 7]"}
    trace = reducing({rank: late.get(rank, [STEP] * 4) for rank in range(8)}, **everybody)
    [finding] = findings(trace, "S202")
    assert finding.ranks == (2, 5)
    assert "their 6 peers" in finding.title


def test_a_rank_held_up_in_another_group_is_not_blamed() -> None:
    """Rank 2 waits for a transfer from rank 9 and so comes late to its own group."""
    calls: list[Row] = []
    kernels: list[Row] = []
    steps: list[Row] = []
    pipe = {"group_name": "1", "group_ranks": "[2, 9]", "is_p2p": True, "seq": -1}
    for number in range(4):
        begin = number * 20_000.0
        for rank in range(4):
            owner = {"rank": rank, "file_id": rank}
            late = 6_000 if rank == 2 else 0
            kernels.append(kernel(begin + late, begin + late + 5_000, step=number, **owner))
            calls.append(call(rank, begin + late + 5_000, begin + 11_100, seq=number, step=number, **GROUP))
            steps.append(step(number, begin, begin + 20_000, **owner))
        calls.append(call(2, begin, begin + 6_000, op="recv", src=9, stream=30, **{**pipe, "step": number}))
        calls.append(call(9, begin + 5_900, begin + 6_000, op="send", dst=2, stream=30, **{**pipe, "step": number}))
    trace = job(calls, hosts=["a"] * 10, kernels=kernels, steps=steps)
    arrivals = {(row["rank"], row["group_name"]): row["n_last"] for row in rows_of(trace, "arrivals")}
    assert arrivals[2, "0"] == 4
    assert late_ranks(trace) == []


def test_a_rank_with_time_to_spare_elsewhere_costs_its_peers_nothing() -> None:
    """Rank 2 stands less in transfers than its peers, but reduces no later than they do."""
    calls: list[Row] = []
    kernels: list[Row] = []
    steps: list[Row] = []
    for number in range(4):
        begin = number * 20_000.0
        for rank in range(4):
            owner = {"rank": rank, "file_id": rank}
            pipe = {"group_name": f"p{rank}", "group_ranks": f"[{rank}, 9]", "is_p2p": True, "step": number}
            busy = 6_000 if rank == 2 else 1_000
            kernels.append(kernel(begin, begin + busy, step=number, **owner))
            calls.append(call(rank, begin + busy, begin + 8_000, op="recv", src=9, stream=30, **pipe))
            calls.append(call(rank, begin + 8_000, begin + 9_000, seq=number, step=number, **GROUP))
            steps.append(step(number, begin, begin + 20_000, **owner))
    assert late_ranks(job(calls, hosts=["a"] * 10, kernels=kernels, steps=steps)) == []


def test_small_reductions_over_all_ranks_make_no_peers() -> None:
    """The stages of a pipeline do different work; a barrier that joins them does not make them comparable."""
    calls: list[Row] = []
    kernels: list[Row] = []
    for number in range(4):
        begin = number * 20_000.0
        for rank in range(4):
            owner = {"rank": rank, "file_id": rank}
            stage, busy = rank // 2, 9_000 if rank // 2 else 4_000
            kernels.append(kernel(begin, begin + busy, step=number, **owner))
            own = {
                "group_name": f"{1 + stage}",
                "group_ranks": f"[{2 * stage}, {2 * stage + 1}]",
                "n_bytes": 10_000_000,
            }
            calls.append(call(rank, begin + busy, begin + busy + 500, seq=number, step=number, **own))
            calls.append(call(rank, begin + busy + 600, begin + 9_700, seq=number, step=number, **GROUP, n_bytes=8))
    assert late_ranks(job(calls, hosts=["a"] * 4, kernels=kernels)) == []


def test_without_steps_the_common_window_is_one() -> None:
    trace = reducing(works(rank3=[STEP + 4_000] * 4))
    del trace.tables["steps"]
    trace.tables["comms"] = trace.table("comms").replaced({"step": trace.table("comms").array("step") * 0 - 1})
    standing = standings_of(trace)[0]
    assert (standing.rank, standing.n_compared, standing.late_steps) == (3, 1, (-1,))
    [finding] = findings(trace, "S202")
    assert (finding.ranks, finding.certainty) == ((3,), "possible")


def test_a_single_rank_has_nobody_to_compare_with() -> None:
    assert rows_of(job([call(0, 0, 10, **GROUP)]), "stragglers") == []
    assert findings(job([call(0, 0, 10, **GROUP)]), "S202") == []


@pytest.mark.parametrize("drop", [0.0, 0.3])
@pytest.mark.parametrize("words", ["seq", "group", "nothing"])
@pytest.mark.parametrize("offset", [0, 2])
def test_calls_missing_from_traces_do_not_make_a_rank_late(words: str, drop: float, offset: int) -> None:
    """Without kernels every call is exposed all along; one that is not in the trace must not count as none."""
    spec = ProfileSpec(data_parallel=8, ranks_per_host=4, n_layers=3, n_microbatches=1, n_steps=5)
    simulation = simulate_profile(
        spec, ProfileFault("slow-kernels", rank=6, factor=1.6), ProfileNoise(window_offset=offset)
    )
    assert [standing.rank for standing in late_ranks(recorded(simulation, words, drop).trace)] == [6]
