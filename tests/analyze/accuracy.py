"""Seeded jobs of many kinds under many conditions, each with the verdict that is right, for `make accuracy` to count.

A kind says what goes wrong, a condition says in what job and what became of its dumps. A healthy job is a kind too.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random

from analyze.cases import (
    HOUR,
    MINUTE,
    Case,
    DumpedInTurn,
    Expected,
    OlderRun,
    SecondReplica,
    StaleFile,
    WrongClock,
)
from analyze.verdicts import MESHES, random_noise
from rankscope.model.finding import Finding, Report
from rankscope.simulate import FAULT_HELP, Fault, JobSpec, Mesh, Noise

HEALTHY = "healthy"
_LARGE = ((4, 2, 1), (2, 4, 1), (4, 4, 1), (2, 2, 2), (4, 2, 2), (4, 4, 2), (8, 2, 1))
_COMMON = ("stuck", "op", "size", "dtype", "skip")


def outcome(expected: Expected, report: Report) -> dict[str, bool]:
    """What is counted of one case."""
    alarms = [finding for finding in report.findings if finding.code[0] in "HS" and finding.severity != "info"]
    if not expected.causes:
        return {"alarm": bool(alarms)}
    # Of one cause the first finding is the verdict; of several causes each has to be told.
    verdicts = alarms[: len(expected.causes)] if len(expected.causes) == 1 else alarms
    told = {(finding.rule, rank) for finding in verdicts for rank in finding.ranks}
    truth = {(rule, rank) for rule, ranks in expected.causes for rank in ranks}
    is_right, is_among = told == truth, truth < told and len(verdicts) <= len(expected.causes)
    is_rank = not is_right and {rank for _, rank in told} == expected.ranks
    is_wrong = bool(verdicts) and not is_right and not is_among and not is_rank
    errors = [alarm for alarm in alarms if alarm.severity == "error" and alarm not in verdicts]
    return {
        "right": is_right,
        "among": is_among,
        "rank": is_rank,
        "wrong": is_wrong,
        "silent": not verdicts and not _is_left_unchecked(expected, report),
        "unchecked": not verdicts and _is_left_unchecked(expected, report),
        "certain": (is_wrong or is_rank) and any(_is_certain_and_false(verdict, truth) for verdict in verdicts),
        "further": bool(errors),
    }


def _is_left_unchecked(expected: Expected, report: Report) -> bool:
    """Whether the report says itself that the rule was not checked, and what to record or to copy instead."""
    remedies = ("TORCH_FR_BUFFER_SIZE=", "copy the truncated dump", "add the dump of")
    skipped = {
        check.rule
        for check in report.checks
        if check.status == "skipped" and any(remedy in check.why for remedy in remedies)
    }
    return {rule for rule, _ in expected.causes} <= skipped


def _is_certain_and_false(finding: Finding, truth: set[tuple[str, int]]) -> bool:
    return finding.certainty == "certain" and not {(finding.rule, rank) for rank in finding.ranks} <= truth


def told(report: Report) -> str:
    alarms = [finding for finding in report.findings if finding.code[0] in "HS" and finding.severity != "info"]
    return " + ".join(f"{each.rule} {each.ranks} {each.certainty}: {each.title}" for each in alarms[:3]) or "nothing"


# --- what goes wrong


@dataclass(frozen=True)
class Kind:
    name: str
    help: str
    draw: Callable[[Random], tuple[Fault, ...]]
    meshes: tuple[tuple[int, int, int], ...] = MESHES

    def case(self, random: Random, seed: int) -> Case:
        mesh, steps, ahead = Mesh(*random.choice(self.meshes)), random.choice([5, 7, 10]), random.choice([0, 0, 4, 16])
        faults = self.draw(random)
        spec = JobSpec(mesh, steps=steps, seed=seed, run_ahead=ahead)
        if self.name == "groups":
            spec = replace(spec, experts=True)
        return Case(spec, faults)


def _one(kind: str, *, calls: tuple[int, int] = (1, 1)) -> Callable[[Random], tuple[Fault, ...]]:
    return lambda random: (Fault(kind, n_calls=random.randint(*calls)),)


def _several(n_faults: int) -> Callable[[Random], tuple[Fault, ...]]:
    return lambda random: tuple(Fault(random.choice(("lost", *_COMMON))) for _ in range(n_faults))


def _meshes_of(kind: str) -> tuple[tuple[int, int, int], ...]:
    if kind == "p2p":
        return tuple(mesh for mesh in MESHES if mesh[2] > 1)
    if kind == "groups":
        return tuple(mesh for mesh in MESHES if mesh[0] > 2)
    return tuple(mesh for mesh in MESHES if mesh[0] * mesh[1] * mesh[2] >= 8) if kind == "node" else MESHES


KINDS = {
    **{kind: Kind(kind, text, _one(kind), _meshes_of(kind)) for kind, text in FAULT_HELP.items()},
    "node": Kind("node", "a host of 4 or 8 ranks dies and leaves no dump", _one("node"), _meshes_of("node")),
    "few": Kind("few", "a rank leaves out 2 to 4 collectives in a row", _one("skip", calls=(2, 4))),
    "many": Kind("many", "a rank leaves out 5 to 8 collectives in a row", _one("skip", calls=(5, 8))),
    "two": Kind("two", "two faults in groups that share no rank, each of any kind", _several(2), _LARGE),
    "three": Kind("three", "three of them", _several(3), _LARGE),
    HEALTHY: Kind(HEALTHY, "nothing goes wrong", lambda random: ()),
}


# --- in what job, and seen through what


@dataclass(frozen=True)
class Condition:
    name: str
    vary: Callable[[Random, Case], Case]
    kinds: tuple[str, ...] = ()
    """The kinds that it makes sense for; none: all."""


def _damaged(random: Random, case: Case) -> Case:
    is_hung = not any(fault.kind == "straggler" for fault in case.faults)
    return replace(case, noise=random_noise(random, case.spec.mesh.world, is_hung=is_hung))


def _short_rings(random: Random, case: Case) -> Case:
    return replace(case, noise=Noise(ring=random.randint(20, 60)))


def _made_again(random: Random, case: Case) -> Case:
    spec = replace(case.spec, steps=random.choice((8, 11)), generations=random.choice((2, 3)))
    return replace(case, spec=spec, noise=Noise(ring=random.choice((2000, 90)), same_ids=random.random() < 0.5))


def _uneven(random: Random, case: Case) -> Case:
    return replace(case, spec=replace(case.spec, experts=True, mesh=Mesh(*random.choice(((4, 1, 1), *_LARGE)))))


def _batched(random: Random, case: Case) -> Case:
    mesh = Mesh(random.choice((1, 2, 3)), random.choice((1, 1, 2)), random.choice((2, 3, 4)))
    schedule, microbatches = random.choice(("1f1b", "interleaved")), random.choice((2, 4, 8))
    return replace(case, spec=replace(case.spec, mesh=mesh, schedule=schedule, microbatches=microbatches))


def _drawn(random: Random, case: Case) -> Case:
    spec = replace(case.spec, program="random", experts=random.random() < 0.4 or case.spec.experts)
    return replace(case, spec=spec, noise=Noise(ring=random.choice((2000, 2000, 40, 80))))


def _stale(random: Random, case: Case) -> Case:
    case = replace(case, noise=Noise(lost=1))
    return _beside(random, case, StaleFile(random.choice((-24 * HOUR, -HOUR, HOUR, -3 * MINUTE))))


def _stale_culprit(random: Random, case: Case) -> Case:
    return _beside(random, case, StaleFile(random.choice((-24 * HOUR, -HOUR)), of_culprit=True))


def _wrong_clock(random: Random, case: Case) -> Case:
    return _beside(random, case, WrongClock(random.choice((-5 * MINUTE, 3 * MINUTE))))


def _two_jobs(random: Random, case: Case) -> Case:
    return _beside(random, case, OlderRun(_any_fault(random), ("a", "b")))


def _two_attempts(random: Random, case: Case) -> Case:
    case = replace(case, spec=replace(case.spec, ranks_per_host=2))
    return _beside(random, case, OlderRun(_any_fault(random), ("{host}/attempt_0", "{host}/attempt_1")))


def _replicas(random: Random, case: Case) -> Case:
    return _beside(random, case, SecondReplica())


def _in_turn(random: Random, case: Case) -> Case:
    return _beside(random, case, DumpedInTurn(random.randint(3, 12)))


def _beside(
    random: Random, case: Case, damage: StaleFile | WrongClock | OlderRun | SecondReplica | DumpedInTurn
) -> Case:
    """Four ranks or more: of two, a stale file is half of all that is known."""
    mesh = Mesh(*random.choice([mesh for mesh in MESHES if mesh[0] * mesh[1] * mesh[2] >= 4]))
    return replace(case, spec=replace(case.spec, mesh=mesh, steps=6), damages=(damage,))


def _any_fault(random: Random) -> Fault | None:
    return random.choice((None, Fault(random.choice(_COMMON))))


CONDITIONS = {
    "clean": Condition("clean", lambda random, case: case),
    "damaged": Condition("damaged", _damaged),
    "short": Condition("short", _short_rings),
    "again": Condition("again", _made_again),
    "uneven": Condition("uneven", _uneven),
    "batched": Condition("batched", _batched, tuple(kind for kind in KINDS if kind != "groups")),
    "drawn": Condition("drawn", _drawn),
    "stale": Condition("stale", _stale, (*_COMMON, "repeat", "order", HEALTHY)),
    "yesterday": Condition("yesterday", _stale_culprit, ("stuck",)),
    "clock": Condition("clock", _wrong_clock, (*_COMMON, "repeat", "order", HEALTHY)),
    "jobs": Condition("jobs", _two_jobs, (*_COMMON, "repeat", "order", "lost", HEALTHY)),
    "attempts": Condition("attempts", _two_attempts, (*_COMMON, "repeat", "order", "lost", HEALTHY)),
    "replicas": Condition("replicas", _replicas, (*_COMMON, "repeat", HEALTHY)),
    "in turn": Condition("in turn", _in_turn, (HEALTHY,)),
}
CONDITION_HELP = {
    "clean": "all dumps are whole",
    "damaged": "any mix of lost and cut files, rings that wrapped, clocks that are seconds off, aborted communicators, "
    "completions that nobody noticed, and dumps of older or mixed versions",
    "short": "rings of 20 to 60 entries",
    "again": "all groups were destroyed and made again, once or twice, before the fault",
    "uneven": "mixture of experts: all_to_all, all_gather and reduce_scatter with uneven sizes",
    "batched": "pipelines of 2 to 4 stages that exchange batches (1F1B, interleaved)",
    "drawn": "programs drawn from the seed: any collectives, on any groups, in any order; rings of 40 to 2,000",
    "stale": "a bystander's file is from another run: minutes, an hour or a day before, or an hour ahead",
    "yesterday": "the culprit's file is from another run",
    "clock": "one rank's clock is minutes off",
    "jobs": "another job of an hour before in the same tree, hung or healthy",
    "attempts": "two attempts in the folders of each host",
    "replicas": "two replicas that each count their ranks from 0",
    "in turn": "dumped rank after rank while the job ran",
}


@dataclass(frozen=True)
class Row:
    """One cell of the table: a kind under a condition."""

    kind: Kind
    condition: Condition

    @property
    def name(self) -> str:
        return f"{self.kind.name}/{self.condition.name}"

    def case(self, seed: int) -> Case:
        random = Random(f"{self.name} {seed}")
        case = self.condition.vary(random, self.kind.case(random, seed))
        world = case.spec.mesh.world
        hosts = [size for size in (4, 8) if world % size == 0 and size < world] or [world]
        return (
            replace(case, spec=replace(case.spec, ranks_per_host=random.choice(hosts)))
            if self.kind.name == "node"
            else case
        )


def all_rows() -> dict[str, Row]:
    rows = [
        Row(kind, condition)
        for kind in KINDS.values()
        for condition in CONDITIONS.values()
        if not condition.kinds or kind.name in condition.kinds
    ]
    return {row.name: row for row in rows}


def build(name: str, seed: int, folder: Path) -> Expected | None:
    return all_rows()[name].case(seed).write(folder)
