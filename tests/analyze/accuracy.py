"""Seeded jobs of many kinds, each with the verdict that is right, for `make accuracy` to count by.

Every kind is a function of a seed and an empty folder: it writes the dumps there and returns what is true of them, or
None where the seed's job has no place for the fault.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from random import Random

from analyze import pipelined, test_generations
from analyze.test_schedules import N_STEPS, step_of
from analyze.verdicts import MESHES, Case
from rankscope.errors import UsageError
from rankscope.model.finding import Finding, Report
from rankscope.simulate import FAULT_HELP, FAULTS, Fault, JobSpec, Mesh, Simulation, simulate
from read import test_mixed_dumps as mixed

HOUR, MINUTE = mixed.HOUR, mixed.MINUTE


@dataclass(frozen=True)
class Expected:
    rule: str | None
    ranks: tuple[int, ...]


Build = Callable[[int, Path], Expected | None]


@dataclass(frozen=True)
class Kind:
    name: str
    build: Build
    is_healthy: bool = False


HEALTHY = Expected(None, ())


def outcome(expected: Expected, report: Report) -> dict[str, bool]:
    """What is counted of one case."""
    alarms = [finding for finding in report.findings if finding.code[0] in "HS" and finding.severity != "info"]
    if expected.rule is None:
        return {"alarm": bool(alarms)}
    first = alarms[0] if alarms else None
    is_rule = first is not None and first.rule == expected.rule
    is_rank = first is not None and first.ranks == expected.ranks
    is_among = first is not None and not is_rank and is_rule and set(expected.ranks) < set(first.ranks)
    is_certain = first is not None and first.certainty == "certain"
    return {
        "right": is_rank and is_rule,
        "among": is_among,
        "rank": is_rank and not is_rule,
        "wrong": not is_rank and not is_among,
        "certain": is_certain and not is_among and not (is_rank and is_rule),
        "further": len([alarm for alarm in alarms if alarm.severity == "error" and alarm is not first]) > 0,
    }


def told(finding: Finding | None) -> str:
    return f"{finding.rule} {finding.ranks} {finding.certainty}: {finding.title}" if finding else "nothing"


# --- what the simulator does


def _clean(kind: str | None, seed: int, folder: Path) -> Expected | None:
    random = Random(f"accuracy {kind} {seed}")
    mesh, steps, ahead = Mesh(*random.choice(MESHES)), random.choice([5, 7, 10]), random.choice([0, 0, 4, 16])
    try:
        job = simulate(JobSpec(mesh, steps=steps, seed=seed, run_ahead=ahead), Fault(kind) if kind else None)
    except UsageError:
        return None
    return _written(job, folder)


def _noisy(kind: str | None, seed: int, folder: Path) -> Expected | None:
    job = Case(seed, kind).simulate()
    return _written(job, folder) if job else None


def _written(job: Simulation, folder: Path) -> Expected:
    job.write(folder)
    return Expected(job.truth.rule, job.truth.ranks)


# --- folders with more than one story


def _faulty(random: Random, seed: int) -> tuple[Simulation, Expected] | None:
    """Four ranks of which rank 1 goes wrong in the last steps."""
    kind = random.choice(("stuck", "op", "size", "dtype"))
    try:
        job = mixed.job(seed, Fault(kind, rank=1, step=4))
    except UsageError:
        return None
    return job, Expected(job.truth.rule, job.truth.ranks)


def _stale_bystander(seed: int, folder: Path) -> Expected | None:
    random = Random(f"stale {seed}")
    made = _faulty(random, seed)
    if made is None:
        return None
    mixed.write(made[0], folder, ranks=(0, 1, 2))
    mixed.write(mixed.job(seed + 1000), folder, random.choice((-24 * HOUR, -HOUR, HOUR, -3 * MINUTE)), ranks=(3,))
    return made[1]


def _stale_culprit(seed: int, folder: Path) -> Expected | None:
    tp = 1 + seed % 2
    hung = mixed.job(seed, mixed.STUCK, tp=tp)
    mixed.write(hung, folder, ranks=set(range(hung.world_size)) - {1})
    mixed.write(mixed.job(seed + 1000, tp=tp), folder, -24 * HOUR, ranks=(1,))
    return Expected("rank-lost", (1,))


def _wrong_clock(seed: int, folder: Path) -> Expected | None:
    random = Random(f"clock {seed}")
    made = _faulty(random, seed)
    if made is None:
        return None
    mixed.write(made[0], folder, ranks=(0, 1, 2))
    mixed.write(made[0], folder, random.choice((-5 * MINUTE, 3 * MINUTE)), ranks=(3,))
    return made[1]


def _two_jobs(seed: int, folder: Path) -> Expected | None:
    random = Random(f"two jobs {seed}")
    old, new = _faulty(random, seed), _faulty(random, seed + 1000)
    if old is None or new is None:
        return None
    mixed.write(old[0], folder / "a", -HOUR)
    mixed.write(new[0], folder / "b")
    return new[1]


def _two_attempts(seed: int, folder: Path) -> Expected | None:
    random = Random(f"attempts {seed}")
    attempts = [_faulty(random, seed), _faulty(random, seed + 1000)]
    for number, made in enumerate(attempts):
        if made is None:
            return None
        for host in range(2):
            place = folder / f"node{host}" / f"attempt_{number}"
            mixed.write(made[0], place, number * HOUR, ranks=(2 * host, 2 * host + 1))
    return attempts[-1][1] if attempts[-1] else None


def _replicas(kind: str | None, seed: int, folder: Path) -> Expected | None:
    chosen = kind and Random(f"replicas {seed}").choice(("stuck", "op", "size", "dtype", "skip"))
    expected = HEALTHY
    for first, fault in ((0, None), (4, Fault(chosen, rank=1) if chosen else None)):
        try:
            job = simulate(JobSpec(Mesh(dp=2, tp=2), seed=seed), fault)
        except UsageError:
            return None
        for rank, dump in job.dumps():
            mixed.save(dump, folder, first + rank)
        expected = Expected(job.truth.rule, tuple(first + rank for rank in job.truth.ranks))
    return expected


def _one_after_the_other(seed: int, folder: Path) -> Expected | None:
    n_apart = 3 + seed % 9
    for rank, dump in mixed.job(seed).dumps():
        mixed.save(mixed.cut_to(dump, len(dump["entries"]) - n_apart * rank), folder, rank)
    return HEALTHY


# --- groups made again, pipelines, nodes


def _made_again(kind: str | None, seed: int, folder: Path) -> Expected | None:
    random = Random(f"again {seed}")
    fault = Fault(random.choice(("stuck", "op", "size", "skip")), rank=1, step=2) if kind else None
    try:
        last = test_generations.job(seed, fault)
    except UsageError:
        return None
    before = [test_generations.job(seed + 1000 * n, steps=3 + n) for n in range(1, random.choice((2, 3)))]
    test_generations.write(folder, [*before, last], new_ids=random.random() < 0.5, ring=random.choice((2000, 60)))
    return Expected(last.truth.rule, last.truth.ranks)


def _pipeline(is_faulty: bool, seed: int, folder: Path) -> Expected | None:
    random = Random(seed)
    n_ranks = random.choice((2, 4, 6))
    programs = pipelined.one_forward_one_backward(n_ranks, random.choice((4, 8, 30)), N_STEPS)
    rank = random.randrange(n_ranks)
    if is_faulty:
        places = [place for place, step in enumerate(programs[rank]) if step and step_of(programs[rank], place) >= 2]
        place = random.choice(places)
        gone = random.choice(programs[rank][place])
        kept = tuple(half for half in programs[rank][place] if half is not gone)
        programs[rank][place : place + 1] = [kept] if kept else []
    pipelined.Run(programs).write(folder)
    return Expected("p2p-unmatched", (rank,)) if is_faulty else HEALTHY


def _lost_node(seed: int, folder: Path) -> Expected | None:
    first = 8 * Random(f"node {seed}").randrange(4)
    node = tuple(range(first, first + 8))
    job = simulate(JobSpec(mesh=Mesh(dp=4, tp=4, pp=2), seed=seed), Fault("lost", rank=first))
    for path in job.write(folder):
        if int(path.name.rpartition("_")[2]) in node:
            path.unlink()
    return Expected("rank-lost", node)


def all_kinds() -> list[Kind]:
    return [
        *(Kind(f"{kind}: {FAULT_HELP[kind]}", partial(_clean, kind)) for kind in FAULTS),
        *(Kind(f"{kind}, dumps damaged", partial(_noisy, kind)) for kind in FAULTS),
        Kind("a file of another run or attempt beside the hung job's", _stale_bystander),
        Kind("the culprit's file is yesterday's", _stale_culprit),
        Kind("one host's clock is minutes off", _wrong_clock),
        Kind("two jobs in one tree", _two_jobs),
        Kind("two attempts in the folders of each host", _two_attempts),
        Kind("replicas that count from 0", partial(_replicas, "any")),
        Kind("groups destroyed and made again", partial(_made_again, "any")),
        Kind("a pipeline's batch lacks one transfer", partial(_pipeline, True)),
        Kind("a node of 8 ranks is lost", _lost_node),
        Kind("simulated job", partial(_clean, None), is_healthy=True),
        Kind("simulated job, dumps damaged", partial(_noisy, None), is_healthy=True),
        Kind("dumped rank after rank", _one_after_the_other, is_healthy=True),
        Kind("replicas that count from 0", partial(_replicas, None), is_healthy=True),
        Kind("groups destroyed and made again", partial(_made_again, None), is_healthy=True),
        Kind("pipeline with batches", partial(_pipeline, False), is_healthy=True),
    ]
