"""Pipeline bubbles and stages, by hand and against the simulator's truth."""

from __future__ import annotations

from pathlib import Path

import pytest

import rankscope
from analyze.path_traces import COMPUTE, NCCL, Process, trace_of
from rankscope.analyze.metric import METRICS, Selection
from rankscope.analyze.path.stages import stages_of
from rankscope.model.tables import Table
from rankscope.simulate.profiler import ProfileFault, ProfileNoise, ProfileSpec, simulate_profile

pytestmark = pytest.mark.slow  # simulated jobs, read and diagnosed


def two_stages(*, with_events: bool = True) -> list[Process]:
    """Rank 0 computes, sends, waits for the gradient and computes again; rank 1 does so in between."""
    first, second = Process(0), Process(1)
    first.step(1, 0, 510)
    first.kernel("forward", 10, 100, launch=1, step=1)
    if with_events:
        first.event_wait(NCCL, COMPUTE, recorded=10, told=12)
    first.collective(0, 102, 110, launch=20, op="send", step=1)
    first.collective(1, 111, 410, launch=30, op="recv", step=1)
    if with_events:
        first.event_wait(COMPUTE, NCCL, recorded=36, told=38)
    first.kernel("backward", 412, 500, launch=40, step=1)
    first.synchronize(50, 505)
    second.step(1, 0, 415)
    second.collective(0, 20, 110, launch=10, op="recv", step=1)
    if with_events:
        second.event_wait(COMPUTE, NCCL, recorded=16, told=18)
    second.kernel("both", 112, 390, launch=20, step=1)
    if with_events:
        second.event_wait(NCCL, COMPUTE, recorded=26, told=28)
    second.collective(1, 392, 410, launch=30, op="send", step=1)
    second.synchronize(40, 412)
    return [first, second]


@pytest.mark.parametrize("with_events", [True, False])
def test_where_the_step_of_each_stage_goes(with_events: bool) -> None:
    trace = trace_of(*two_stages(with_events=with_events))
    table = METRICS["bubbles"].compute(trace)
    shown = ("rank", "stage", "step_ns", "compute_ns", "bubble_ns", "wait_ns", "transfer_ns", "idle_ns")
    assert [tuple(row[name] for name in shown) for row in table.rows()] == [
        (0, 0, 510_000, 178_000, 292_000, 0, 18_000, 22_000),
        (1, 1, 415_000, 278_000, 77_000, 0, 8_000, 52_000),
    ]
    assert table.array("bubble_pct").tolist() == pytest.approx([100 * 292 / 510, 100 * 77 / 415])


def test_transfer_to_a_rank_that_was_not_traced_takes_as_long_as_others() -> None:
    """The last receive has no partner: what is longer than usual was waiting."""
    first, second = two_stages()
    second.rows["comm_calls"][1]["match_id"] = -1
    first.rows["comm_calls"][1]["match_id"] = -1
    rows = list(METRICS["bubbles"].compute(trace_of(first, second)).rows())
    assert (rows[0]["bubble_ns"], rows[0]["transfer_ns"]) == (302_000, 8_000)


def test_of_two_things_waited_for_each_counts_from_the_end_of_the_one_before() -> None:
    """After its own work rank 0 waits for a transfer until 410 and for a collective until 450, whose last member came
    at 430: 20 us of waiting and 20 us of moving more."""
    first, second = two_stages()
    first.collective(9, 120, 450, launch=37, stream=30, step=1)
    first.event_wait(COMPUTE, 30, recorded=38, told=39)
    second.collective(9, 430, 450, launch=38, stream=30, step=1)
    backward = first.rows["kernels"][3]
    backward["start_ns"] += 40_000
    row = next(METRICS["bubbles"].compute(trace_of(first, second)).rows())
    assert backward["name"] == "backward"
    assert (row["bubble_ns"], row["wait_ns"], row["transfer_ns"]) == (292_000, 20_000, 38_000)


def test_selection() -> None:
    trace = trace_of(*two_stages())
    assert METRICS["bubbles"].compute(trace, Selection(ranks=[1])).array("rank").tolist() == [1]
    assert len(METRICS["bubbles"].compute(trace, Selection(steps=[2]))) == 0


def test_stages_follow_from_who_sends_first() -> None:
    assert stages_of(trace_of(*two_stages())) == {0: 0, 1: 1}


def test_a_ring_of_transfers_is_no_pipeline() -> None:
    """Nor when a rank outside of it sends something to one of its members."""
    processes = []
    for rank in range(3):
        process = Process(rank)
        process.collective(rank, 10, 20, launch=0, op="send")
        process.collective((rank + 2) % 3, 30, 40, launch=1, op="recv")
        processes.append(process)
    outside = Process(3)
    outside.collective(7, 50, 60, launch=2, op="send")
    processes[0].collective(7, 50, 60, launch=2, op="recv")
    trace = trace_of(*processes, outside)
    assert stages_of(trace) == {}
    assert len(METRICS["bubbles"].compute(trace)) == 0


def test_stages_from_the_group_that_calls_itself_a_pipeline() -> None:
    """Transfers without source and destination, as a coalesced exchange leaves them."""
    process = Process(5)
    process.collective(-1, 10, 20, launch=0, op="send_recv")
    process.rows["comms"][0] |= {"group_desc": "mesh_pp", "group_ranks": "[1, 5, 9]"}
    assert stages_of(trace_of(process)) == {1: 0, 5: 1, 9: 2}


def test_the_other_member_of_a_pair_needs_no_trace() -> None:
    first, _ = two_stages()
    for row in first.rows["comm_calls"]:
        row |= {"match_id": -1, "group_key": 3}
    trace = trace_of(first)
    trace.tables["comm_groups"] = Table.from_rows("comm_groups", [{"group_key": 3, "ranks": "[0, 1]", "size": 2}])
    assert stages_of(trace) == {0: 0, 1: 1}


SPEC = {"data_parallel": 2, "stages": 3, "ranks_per_host": 2, "n_steps": 2, "n_layers": 2, "n_microbatches": 3}


@pytest.mark.parametrize(
    ("changes", "fault", "noise"),
    [
        ({}, None, ProfileNoise()),
        ({"with_sync": False}, None, ProfileNoise()),
        ({"with_seq": False}, "slow-kernels", ProfileNoise()),
        ({"pipeline_groups": "line"}, "stage-imbalance", ProfileNoise()),
        ({"n_steps": 3}, None, ProfileNoise(window_offset=1)),
        ({}, "garbage-collection", ProfileNoise(lost_ranks=(3,))),
    ],
    ids=["healthy", "no-sync", "slow-kernels", "line-imbalance", "offset", "lost"],
)
def test_bubbles_of_simulated_jobs(
    changes: dict[str, object], fault: str | None, noise: ProfileNoise, tmp_path: Path
) -> None:
    spec = ProfileSpec(**{**SPEC, **changes})  # type: ignore[arg-type]
    simulation = simulate_profile(spec, ProfileFault(fault) if fault else None, noise)
    simulation.write(tmp_path, gzip=False)
    rows = list(METRICS["bubbles"].compute(rankscope.load(tmp_path, jobs=1)).rows())
    assert {row["rank"] for row in rows} == set(simulation.ranks)
    for row in rows:
        truth = simulation.truth.rank_steps[row["rank"], row["step"]]
        assert row["stage"] == spec.stage_of(row["rank"])
        assert row["bubble_ns"] == pytest.approx(truth.bubble_ns, rel=0.02, abs=50_000)
        if spec.with_sync:  # else only the last of several things that were waited for is known
            assert row["transfer_ns"] == pytest.approx(truth.transfer_ns, rel=0.05, abs=50_000)
        parts = sum(row[name] for name in ("compute_ns", "bubble_ns", "wait_ns", "transfer_ns", "idle_ns"))
        assert parts == row["step_ns"]
