"""Jobs beyond one fault in one mesh: several faults, generations of groups, batches, uneven sizes, drawn programs."""

from __future__ import annotations

import pickle
from collections import Counter
from pathlib import Path

import pytest

from rankscope.errors import UsageError
from rankscope.simulate import Fault, JobSpec, Mesh, Noise, Part, simulate, write_parts
from simulate.dump_reading import dumps_of, pending

STRUCTURES = [
    JobSpec(Mesh(2, 2, 4), schedule="1f1b", microbatches=6, steps=3),
    JobSpec(Mesh(1, 1, 2), schedule="interleaved", microbatches=4, steps=3),
    JobSpec(Mesh(2, 1, 3), schedule="interleaved", microbatches=5, steps=3),
    JobSpec(Mesh(4, 2, 2), experts=True, steps=3),
    JobSpec(Mesh(4, 2, 1), generations=3, steps=7),
    *(JobSpec(Mesh(4, 2, 2), program="random", experts=True, seed=seed, steps=4) for seed in range(6)),
]


@pytest.mark.cases
@pytest.mark.parametrize("spec", STRUCTURES, ids=str)
@pytest.mark.parametrize("run_ahead", [0, 5])
def test_every_structure_runs_to_its_end(spec: JobSpec, run_ahead: int) -> None:
    simulation = simulate(JobSpec(**{**spec.__dict__, "run_ahead": run_ahead}))
    assert not any(pending(dump) for dump in dumps_of(simulation).values())


def test_several_faults_are_apart_and_all_show() -> None:
    simulation = simulate(JobSpec(Mesh(4, 4, 1), seed=3), (Fault("stuck"), Fault("op"), Fault("lost")))
    assert [truth.rule for truth in simulation.truths] == ["rank-stuck", "op-mismatch", "rank-lost"]
    culprits = [rank for truth in simulation.truths for rank in truth.ranks]
    assert len({rank // 4 for rank in culprits}) == 3 or len({rank % 4 for rank in culprits}) == 3
    assert simulation.lost_ranks == set(simulation.truths[2].ranks)


def test_faults_that_would_hide_each_other_are_refused() -> None:
    with pytest.raises(UsageError, match="have no places in this job") as error:
        simulate(JobSpec(Mesh(2, 1, 1)), (Fault("stuck"), Fault("op")))
    assert error.value.hint


def test_a_lost_host_takes_all_its_ranks_with_it() -> None:
    simulation = simulate(JobSpec(Mesh(4, 2, 1), ranks_per_host=4, seed=1), Fault("node", rank=5))
    assert simulation.lost_ranks == set(simulation.truth.ranks) == {4, 5, 6, 7}


@pytest.mark.parametrize("same_ids", [True, False])
def test_numbers_begin_again_with_each_generation(same_ids: bool) -> None:
    spec = JobSpec(Mesh(4, 1, 1), steps=6, generations=2)
    entries = dumps_of(simulate(spec, None, Noise(same_ids=same_ids)))[0]["entries"]
    world = [entry for entry in entries if entry["process_group"][0] == "0"]
    firsts = [entry for entry in world if entry["collective_seq_id"] == 1]
    assert len(firsts) == 2
    assert (firsts[0]["pg_id"] == firsts[1]["pg_id"]) == same_ids
    assert firsts[1]["time_created_ns"] - firsts[0]["time_created_ns"] > 3e9


def test_batches_have_members_and_both_ends_count_alike() -> None:
    simulation = simulate(JobSpec(Mesh(1, 1, 4), schedule="interleaved", microbatches=8, steps=2))
    halves: Counter[tuple[int, int]] = Counter()
    largest = 0
    for rank, dump in dumps_of(simulation).items():
        batches = Counter(entry["p2p_seq_id"] for entry in dump["entries"] if entry["is_p2p"])
        largest = max(largest, *batches.values())
        for entry in dump["entries"]:
            if entry["is_p2p"]:
                op, _, ends = entry["profiling_name"].removeprefix("nccl:").partition(" ")
                peer = int(ends.replace("<-", "->").split("->")[1])
                halves[(rank, peer) if op == "send" else (peer, rank)] += 1 if op == "send" else -1
    assert largest >= 2
    assert set(halves.values()) == {0}


def test_uneven_sizes_add_up() -> None:
    dumps = dumps_of(simulate(JobSpec(Mesh(4, 1, 1), experts=True, steps=1)))
    calls = {
        op: [next(e for e in dump["entries"] if e["profiling_name"] == f"nccl:{op}") for dump in dumps.values()]
        for op in ("all_to_all", "all_gather", "reduce_scatter")
    }
    sent, taken = (sum(call[side][0][0] for call in calls["all_to_all"]) for side in ("input_sizes", "output_sizes"))
    assert sent == taken
    assert len({call["input_sizes"][0][0] for call in calls["all_gather"]}) == 4
    assert len({str(call["output_sizes"]) for call in calls["all_gather"]}) == 1
    assert len({str(call["input_sizes"]) for call in calls["reduce_scatter"]}) == 1


def test_a_rank_with_another_order_of_groups_calls_them_by_other_numbers() -> None:
    simulation = simulate(JobSpec(Mesh(4, 1, 1), experts=True), Fault("groups", rank=2))
    names = {
        rank: {desc: name for entry in dump["entries"] for name, desc in [entry["process_group"]]}
        for rank, dump in dumps_of(simulation).items()
    }
    assert names[2]["ep"] != names[0]["ep"]


def test_a_folder_holds_parts_of_several_runs(tmp_path: Path) -> None:
    run, other = simulate(JobSpec(Mesh(2, 2, 1), steps=3)), simulate(JobSpec(Mesh(2, 2, 1), steps=3, seed=1))
    write_parts(
        tmp_path, [Part(run, (0, 1, 2), n_unmade={2: 5}), Part(other, (3,), later_ns=-(10**12), folder="{host}")]
    )
    files = {str(path.relative_to(tmp_path)): path for path in tmp_path.rglob("*_rank_*")}
    assert sorted(files) == ["nccl_trace_rank_0", "nccl_trace_rank_1", "nccl_trace_rank_2", "node00/nccl_trace_rank_3"]
    whole, cut, stale = (pickle.loads(files[name].read_bytes()) for name in sorted(files)[1:])
    assert len(whole["entries"]) == len(cut["entries"]) + 5
    assert whole["entries"][0]["time_created_ns"] - stale["entries"][0]["time_created_ns"] > 9 * 10**11


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"schedule": "zigzag"}, "unknown schedule"),
        ({"program": "mine"}, "unknown program"),
        ({"generations": 9, "steps": 8}, "do not fit"),
    ],
)
def test_structures_that_cannot_be_are_refused(settings: dict[str, object], message: str) -> None:
    with pytest.raises(UsageError, match=message) as error:
        JobSpec(Mesh(), **settings)  # type: ignore[arg-type]
    assert error.value.hint
