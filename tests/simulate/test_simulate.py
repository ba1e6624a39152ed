"""The simulated faults do to the job what their truth says."""

from __future__ import annotations

import json
import pickle
import re
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rankscope.errors import UsageError
from rankscope.simulate import FAULT_HELP, FAULTS, Fault, JobSpec, Mesh, Noise, simulate
from simulate.dump_reading import Dump, collectives_on, dumps_of, own_location, peers_in, pending, signature, works

pytestmark = pytest.mark.slow

MESHES = [Mesh(4, 2, 1), Mesh(2, 1, 1), Mesh(3, 1, 1), Mesh(1, 4, 1), Mesh(2, 2, 2), Mesh(2, 1, 4), Mesh(4, 2, 4)]
RULES = {
    "lost": "rank-lost",
    "node": "rank-lost",
    "stuck": "rank-stuck",
    "op": "op-mismatch",
    "size": "size-mismatch",
    "dtype": "dtype-mismatch",
    "skip": "call-skipped",
    "repeat": "call-skipped",
    "order": "order-deadlock",
    "p2p": "p2p-unmatched",
    "groups": "group-order",
    "stall": "collective-stalled",
    "straggler": "straggler",
}


@pytest.mark.parametrize("run_ahead", [0, 4])
@pytest.mark.parametrize("mesh", MESHES, ids=str)
def test_a_job_without_a_fault_finishes(mesh: Mesh, run_ahead: int) -> None:
    simulation = simulate(JobSpec(mesh, run_ahead=run_ahead))
    assert simulation.truth.rule is None
    dumps = dumps_of(simulation)
    assert list(dumps) == list(range(mesh.world))
    for dump in dumps.values():
        assert not pending(dump)
        assert all(entry["retired"] for entry in works(dump))


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("mesh", MESHES, ids=str)
@pytest.mark.parametrize("kind", FAULTS)
def test_a_fault_hangs_the_job_or_lets_it_end(kind: str, mesh: Mesh, seed: int) -> None:
    if {"p2p": mesh.pp == 1, "node": mesh.world == 2, "groups": mesh.dp < 3}.get(kind, False):
        pytest.skip("no transfers without a pipeline, no second host, or nobody who tells which order is the odd one")
    spec = JobSpec(mesh, seed=seed, run_ahead=seed * 2, ranks_per_host=2, experts=kind == "groups")
    simulation = simulate(spec, Fault(kind))
    truth = simulation.truth
    assert truth.rule == RULES[kind]
    assert truth.note.endswith(".")
    assert len(truth.ranks) == 1 or kind in ("stall", "node")
    dumps = dumps_of(simulation)
    assert any(pending(dump) for dump in dumps.values()) == (kind != "straggler")
    for location in (truth.location, truth.peer_location):
        assert location is None or Path(location[0]).is_file()
    if truth.peer_location:
        waiting = [own_location(e) for rank, dump in dumps.items() if rank not in truth.ranks for e in dump["entries"]]
        assert truth.peer_location in waiting


@pytest.mark.parametrize("kind", FAULTS)
def test_rank_and_step_can_be_chosen(kind: str) -> None:
    spec = JobSpec(Mesh(3, 2, 2), steps=6, seed=5, experts=kind == "groups")
    simulation = simulate(spec, Fault(kind, rank=7, step=3))
    assert 7 in simulation.truth.ranks
    if kind not in ("straggler", "groups"):
        assert "step 3" in simulation.truth.note


@pytest.mark.parametrize("seed", range(4))
def test_lost_rank_leaves_no_dump(seed: int) -> None:
    simulation = simulate(JobSpec(Mesh(4, 2, 1), seed=seed), Fault("lost"))
    (culprit,) = simulation.truth.ranks
    assert simulation.lost_ranks == {culprit}
    assert sorted(dumps_of(simulation)) == [rank for rank in range(8) if rank != culprit]
    assert simulation.truth.location is None


@pytest.mark.parametrize("seed", range(6))
def test_stuck_rank_has_finished_all_it_called(seed: int) -> None:
    simulation = simulate(JobSpec(Mesh(2, 2, 2), seed=seed, run_ahead=3), Fault("stuck"))
    (culprit,) = simulation.truth.ranks
    dumps = dumps_of(simulation)
    assert not pending(dumps[culprit])
    entries = dumps[culprit]["entries"]
    assert simulation.truth.location == (own_location(entries[-1]) if entries else None)
    first_waits = {own_location(pending(dump)[0]) for rank, dump in dumps.items() if rank != culprit}
    assert simulation.truth.peer_location in first_waits


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize(("kind", "differs"), [("op", 0), ("size", 1), ("dtype", 2)])
def test_mismatch_is_at_one_position_of_one_group(kind: str, differs: int, seed: int) -> None:
    simulation = simulate(JobSpec(Mesh(4, 4, 1), seed=seed), Fault(kind))
    truth, dumps = simulation.truth, dumps_of(simulation)
    (culprit,) = truth.ranks
    made = pending(dumps[culprit])[0]
    peer = peers_in(simulation, culprit, truth.group_desc)[0]
    expected = collectives_on(dumps[peer], truth.group_desc)[made["collective_seq_id"]]
    assert made["process_group"] == expected["process_group"]
    assert signature(made)[differs] != signature(expected)[differs]
    assert own_location(made) == truth.location
    assert own_location(expected) == truth.peer_location
    assert (truth.location == truth.peer_location) == (kind != "op")
    assert expected["profiling_name"] == f"nccl:{truth.op}"


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("kind", ["skip", "repeat"])
def test_shifted_calls_show_at_a_position_of_the_group(kind: str, seed: int) -> None:
    simulation = simulate(JobSpec(Mesh(4, 2, 1), seed=seed), Fault(kind))
    truth, dumps = simulation.truth, dumps_of(simulation)
    (culprit,) = truth.ranks
    own = collectives_on(dumps[culprit], truth.group_desc)
    peer = peers_in(simulation, culprit, truth.group_desc)[0]
    normal = collectives_on(dumps[peer], truth.group_desc)

    def trace(entry: Dump | None) -> tuple[object, ...] | None:
        return (own_location(entry), *signature(entry)) if entry else None

    first = next(seq for seq in own if trace(own[seq]) != trace(normal.get(seq)))
    assert own_location(own[first]) == truth.location
    assert truth.peer_location == (own_location(normal[first]) if first in normal else None)


def test_skipped_world_call_is_invisible_to_size_checks() -> None:
    spec = JobSpec(Mesh(4, 1, 1))
    found = [simulate(replace(spec, seed=seed), Fault("skip")) for seed in range(12)]
    world = [simulation for simulation in found if simulation.truth.group_desc == "default_pg"]
    assert world
    for simulation in world:
        dumps = dumps_of(simulation)
        assert simulation.truth.location is not None
        assert simulation.truth.location[2] == "sync_loss"
        calls = [collectives_on(dump, "default_pg") for dump in dumps.values()]
        for seq in set.intersection(*(set(call) for call in calls)):
            assert len({signature(call[seq]) for call in calls}) == 1


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("mesh", [Mesh(4, 2, 1), Mesh(2, 1, 1), Mesh(1, 2, 1)], ids=str)
def test_swapped_calls_wait_for_each_other(mesh: Mesh, seed: int) -> None:
    simulation = simulate(JobSpec(mesh, seed=seed), Fault("order"))
    truth, dumps = simulation.truth, dumps_of(simulation)
    (culprit,) = truth.ranks
    own = pending(dumps[culprit])[0]
    waiting = [pending(dumps[peer])[0] for peer in peers_in(simulation, culprit, truth.group_desc)]
    assert own_location(own) == truth.location
    assert {own_location(entry) for entry in waiting} == {truth.peer_location}
    assert own["process_group"] not in {entry["process_group"] for entry in waiting}


@pytest.mark.parametrize("seed", range(6))
def test_left_out_transfer_leaves_the_peer_waiting(seed: int) -> None:
    simulation = simulate(JobSpec(Mesh(1, 2, 3), seed=seed), Fault("p2p"))
    truth, dumps = simulation.truth, dumps_of(simulation)
    (culprit,) = truth.ranks
    counts: Counter[tuple[int, int, str]] = Counter()
    for rank, dump in dumps.items():
        for entry in dump["entries"]:
            if entry["is_p2p"]:
                op, own, peer = re.fullmatch(r"nccl:(send|recv) (\d)(?:->|<-)(\d)", entry["profiling_name"]).groups()  # type: ignore[union-attr]
                members = json.loads(dump["pg_config"][entry["process_group"][0]]["ranks"])
                assert members[int(own)] == rank
                ends = (rank, members[int(peer)])
                sender, receiver = ends if op == "send" else ends[::-1]
                counts[sender, receiver, op] += 1
    other = {"send": "recv", "recv": "send"}
    unmatched = {
        (source if op == "send" else target)
        for source, target, op in counts
        if counts[source, target, op] > counts[source, target, other[op]]
    }
    waiting = {rank for rank in unmatched if own_location(pending(dumps[rank])[0]) == truth.peer_location}
    assert waiting - {culprit}


@pytest.mark.parametrize("seed", range(3))
def test_stalled_collective_has_all_its_members(seed: int) -> None:
    simulation = simulate(JobSpec(Mesh(4, 2, 2), seed=seed), Fault("stall"))
    truth, dumps = simulation.truth, dumps_of(simulation)
    heads = [pending(dumps[rank])[0] for rank in truth.ranks]
    assert len({(head["process_group"], head["collective_seq_id"], *signature(head)) for head in heads}) == 1
    assert own_location(heads[0]) == truth.location
    assert len(truth.ranks) == len(peers_in(simulation, truth.ranks[0], truth.group_desc)) + 1


def test_straggler_is_late_at_every_step() -> None:
    simulation = simulate(JobSpec(Mesh(4, 1, 1), steps=5), Fault("straggler", rank=2))
    created = {
        rank: [call["time_created_ns"] for call in collectives_on(dump, "dp").values()][0::3]
        for rank, dump in dumps_of(simulation).items()
    }
    for step in range(4):
        others = max(created[rank][step] for rank in (0, 1, 3))
        assert 60e6 < created[2][step] - others < 100e6


def test_same_seed_same_dumps_other_seed_other_dumps() -> None:
    spec = JobSpec(Mesh(2, 2, 2), seed=7)
    noise = Noise(lost=1, clock_skew_ms=50, uneven_state=True)
    first = simulate(spec, Fault("skip"), noise)
    again = simulate(spec, Fault("skip"), noise)
    other = simulate(replace(spec, seed=8), Fault("skip"), noise)
    assert first.truth == again.truth
    assert dumps_of(first) == dumps_of(again)
    assert dumps_of(first) != dumps_of(other)


def test_run_ahead_leaves_more_calls_pending() -> None:
    waiting = {
        run_ahead: max(
            len(pending(dump))
            for _, dump in simulate(JobSpec(Mesh(4, 2, 1), run_ahead=run_ahead), Fault("stall", rank=0, step=2)).dumps()
        )
        for run_ahead in (0, 5)
    }
    assert waiting[0] == 1
    assert 1 < waiting[5] <= 6


@pytest.mark.parametrize("kind", ["lost", "size", "order", "stall"])
def test_only_bystanders_are_lost_or_cut(kind: str) -> None:
    simulation = simulate(JobSpec(Mesh(2, 2, 2)), Fault(kind, rank=0), Noise(lost=4, cut=4))
    touched = simulation.lost_ranks | simulation.cut_ranks
    assert touched & set(simulation.truth.ranks) == ({0} if kind == "lost" else set())
    assert len(touched) < 8


def test_cut_files_are_truncated(tmp_path: Path) -> None:
    simulation = simulate(JobSpec(Mesh(8, 2, 1)), Fault("op", rank=4), Noise(lost=2, cut=2))
    assert len(simulation.lost_ranks) == len(simulation.cut_ranks) == 2
    paths = simulation.write(tmp_path)
    assert len(paths) == 14
    for path in paths:
        if int(path.name.rpartition("_")[2]) in simulation.cut_ranks:
            with pytest.raises((EOFError, pickle.UnpicklingError)):
                pickle.loads(path.read_bytes())
        else:
            pickle.loads(path.read_bytes())


def test_noise_does_not_change_what_happened() -> None:
    spec, fault = JobSpec(Mesh(4, 2, 2), seed=3), Fault("repeat")
    noisy = Noise(ring=20, lost=2, cut=1, clock_skew_ms=9, timing=True, abort=True, uneven_state=True, version="mixed")
    assert simulate(spec, fault, noisy).truth == simulate(spec, fault).truth


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        (lambda: Fault("gremlin"), "unknown fault"),
        (lambda: Mesh(1, 1, 1), "has only one rank"),
        (lambda: JobSpec(Mesh(), steps=0), "steps=0"),
        (lambda: JobSpec(Mesh(), run_ahead=-1), "negative"),
        (lambda: Noise(version="9.9"), "unknown dump version"),
        (lambda: Noise(ring=0), "records nothing"),
        (lambda: simulate(JobSpec(Mesh()), Fault("op", rank=8)), "no rank 8"),
        (lambda: simulate(JobSpec(Mesh()), Fault("op", step=8)), "no step 8"),
        (lambda: simulate(JobSpec(Mesh()), Fault("p2p")), "no place"),
    ],
)
def test_impossible_requests_say_what_to_do(request_: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message) as error:
        request_()
    assert error.value.hint


def test_every_fault_is_described() -> None:
    assert set(FAULTS) == set(FAULT_HELP) == set(RULES)
