"""Puts a job together: its groups, generation by generation, and the program of every rank."""

from __future__ import annotations

from typing import Protocol

from rankscope.simulate.example_program import ExampleProgram
from rankscope.simulate.groups import build_groups
from rankscope.simulate.program import Job, Program, Step
from rankscope.simulate.random_program import RandomProgram
from rankscope.simulate.spec import JobSpec


class ProgramWriter(Protocol):
    def steps_of(self, rank: int, numbers: list[int]) -> list[Step]: ...


def build_job(spec: JobSpec) -> Job:
    generations = tuple(build_groups(spec.mesh, experts=spec.experts) for _ in range(spec.generations))
    writer = RandomProgram if spec.program == "random" else ExampleProgram
    writers: list[ProgramWriter] = [writer(spec, groups) for groups in generations]
    numbers: list[list[int]] = [[] for _ in generations]
    for step in range(spec.steps):
        numbers[spec.generation_of(step)].append(step)
    restarts = frozenset(step_numbers[0] for step_numbers in numbers[1:])
    programs = [
        Program(
            tuple(
                step
                for step_numbers, each in zip(numbers, writers, strict=True)
                for step in each.steps_of(rank, step_numbers)
            ),
            restarts,
        )
        for rank in range(spec.mesh.world)
    ]
    return Job(spec, generations, tuple(programs))
