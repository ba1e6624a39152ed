"""Puts faults into a job, and says what the right verdict is.

A fault is tried at places drawn from the seed until one is found where it really shows, because some places hide it:
a call that is left out at the end of a row of equal ones leaves no trace of its own. Several faults strike in the same
step, in groups that share no rank: a later one would be hidden behind the first.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from random import Random

from rankscope.errors import UsageError
from rankscope.simulate.engine import Disturbance, Run, run_job
from rankscope.simulate.places import Place, draw_places
from rankscope.simulate.planners import PLANNERS, Attempt
from rankscope.simulate.program import Job
from rankscope.simulate.spec import Fault, Truth

_SETS = 40
_NEEDS = {
    "p2p": " (it needs pp > 1)",
    "node": " (it needs more than one host)",
    "groups": " (it needs experts, and dp > 2)",
}


def inject_faults(job: Job, faults: Sequence[Fault]) -> tuple[Run, tuple[Truth, ...]]:
    if not faults:
        run = run_job(job, Disturbance())
        if run.is_hung:
            raise AssertionError("the simulated program deadlocks without a fault")
        return run, (Truth(None, (), "", "", None, None, "This job is healthy."),)
    for fault in faults:
        _check_request(job, fault)
    for attempts in _draw_attempts(job, faults):
        disturbance = Disturbance()
        for attempt in attempts:
            disturbance = disturbance.joined_with(attempt.disturbance)
        run = run_job(job, disturbance)
        truths = [truth for truth in (attempt.judge(run) for attempt in attempts) if truth is not None]
        if len(truths) == len(faults) and _are_apart(job, truths):
            return run, tuple(truths)
    kinds = " and ".join(repr(fault.kind) for fault in faults)
    has = f"the fault {kinds} has no place" if len(faults) == 1 else f"the faults {kinds} have no places"
    raise UsageError(
        f"{has} in this job where {'it' if len(faults) == 1 else 'each of them'} would show",
        "try another rank or step, or a mesh with more parallel dimensions"
        + "".join(dict.fromkeys(_NEEDS.get(fault.kind, "") for fault in faults)),
    )


def members_around(job: Job, truth: Truth) -> set[int]:
    """The culprits' groups of the kind in which the fault struck."""
    groups = job.generations[-1]
    return {
        member
        for rank in truth.ranks
        for group in groups.of_rank[rank]
        if group.desc == truth.group_desc
        for member in group.ranks
    }


def _check_request(job: Job, fault: Fault) -> None:
    for name, value, size in (("rank", fault.rank, job.spec.mesh.world), ("step", fault.step, job.spec.steps)):
        if value is not None and not 0 <= value < size:
            raise UsageError(f"the job has no {name} {value}", f"choose a {name} from 0 to {size - 1}")


def _draw_attempts(job: Job, faults: Sequence[Fault]) -> Iterator[list[Attempt]]:
    if len(faults) == 1:
        for place in draw_places(job, faults[0]):
            attempt = PLANNERS[faults[0].kind](place)
            if attempt is not None:
                yield [attempt]
        return
    random = Random(f"{job.spec.seed} {[fault.kind for fault in faults]}")
    for number in range(_SETS):
        asked = next((fault.step for fault in faults if fault.step is not None), None)
        newest = [step for step in range(job.spec.steps) if job.groups_at(step) is job.generations[-1]]
        step = random.choice(newest) if asked is None else asked
        attempts: list[Attempt] = []
        taken: set[int] = set()
        for order, fault in enumerate(faults):
            places = draw_places(job, replace(fault, step=step), f" {number} {order}")
            made = next(((place, planned) for place, planned in _plans(places, fault, taken)), None)
            if made is None:
                break
            taken.update(made[0].call.group.ranks)
            attempts.append(made[1])
        if len(attempts) == len(faults):
            yield attempts


def _plans(places: Iterator[Place], fault: Fault, taken: set[int]) -> Iterator[tuple[Place, Attempt]]:
    for place in places:
        if place.call.group is place.groups.world or not taken.isdisjoint(place.call.group.ranks):
            continue
        attempt = PLANNERS[fault.kind](place)
        if attempt is not None:
            yield place, attempt


def _are_apart(job: Job, truths: Sequence[Truth]) -> bool:
    seen: set[int] = set()
    for truth in truths:
        around = members_around(job, truth) if len(truths) > 1 else set()
        if seen & around:
            return False
        seen |= around
    return True
