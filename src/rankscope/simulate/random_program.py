"""A training program that nobody wrote: the same collectives in every step, drawn from the seed.

All ranks go through the phases of a step in the same order, each phase on the groups of one dimension, so that the
program cannot deadlock by itself.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from functools import lru_cache
from random import Random

from rankscope.simulate.groups import Group, Groups
from rankscope.simulate.program import Call, Shape, Step, Transfer
from rankscope.simulate.sites import Site
from rankscope.simulate.spec import JobSpec
from rankscope.simulate.uneven import uneven_call

FILE = "/job/drawn.py"
_OPS = ("all_reduce", "all_reduce", "all_reduce", "broadcast", "_all_gather_base", "_reduce_scatter_base", "all_to_all")
_EXCHANGES = ("chain", "batch")
_UNEVEN = ("all_gather", "reduce_scatter", "all_to_all")


class Phase:
    """One line of the program: who calls what there."""

    def __init__(self, random: Random, line: int, dimension: str) -> None:
        self.dimension = dimension
        self.line = line
        self.op = random.choice(_EXCHANGES if dimension == "pp" and random.random() < 0.7 else _OPS)
        self.is_uneven = dimension != "pp" and random.random() < 0.15
        self.rows = 8 * line + 2 * random.randrange(1, 4)
        self.dtype = random.choice(("BFloat16", "Float"))
        self.n_times = random.choice((1, 1, 1, 2, 3))
        self.has_other_branch = random.random() < 0.5


class RandomProgram:
    def __init__(self, spec: JobSpec, groups: Groups) -> None:
        self.groups = groups
        random = Random(f"{spec.seed} program")
        dimensions = [name for name in ("tp", "dp", "pp", "ep") if getattr(groups, name)]
        lines = range(10, 10 + 10 * random.randint(3, 9), 10)
        self.phases = [Phase(random, line, random.choice([*dimensions, *dimensions, "world"])) for line in lines]
        self.phases.append(Phase(random, lines.stop, "world"))
        self.every = random.choice((3, 4, 5))
        self.seldom = Phase(random, lines.stop + 10, random.choice([*dimensions, "world"]))
        self.made: dict[tuple[Group, Phase, int], Step] = {}

    def steps_of(self, rank: int, numbers: Iterable[int]) -> list[Step]:
        plain = tuple(call for phase in self.phases for call in self._calls(rank, phase))
        seldom = (*plain, *self._calls(rank, self.seldom))
        return [plain if (number + 1) % self.every else seldom for number in numbers]

    def _calls(self, rank: int, phase: Phase) -> Step:
        group = self.groups.world if phase.dimension == "world" else getattr(self.groups, phase.dimension).get(rank)
        if group is None:
            return ()
        has_own = phase.is_uneven or phase.op in _EXCHANGES
        key = (group, phase, rank if has_own else -1)
        if key not in self.made:
            self.made[key] = (
                self._transfers(rank, group, phase) if phase.op in _EXCHANGES else self._call(rank, group, phase)
            )
        return self.made[key] * phase.n_times

    def _call(self, rank: int, group: Group, phase: Phase) -> Step:
        site = _site(phase.line)
        if phase.is_uneven:
            return (uneven_call(_UNEVEN[phase.line // 10 % len(_UNEVEN)], group, rank, site),)
        call = _even_call(group, phase.op, site, phase)
        if phase.has_other_branch:
            other = "broadcast" if phase.op != "broadcast" else "all_reduce"
            call = replace(call, alternative=_even_call(group, other, _site(phase.line + 4), phase))
        return (call,)

    def _transfers(self, rank: int, group: Group, phase: Phase) -> Step:
        position, last = group.ranks.index(rank), len(group.ranks) - 1
        incoming = [Transfer(False, group.ranks[position - 1])] if position > 0 else []
        outgoing = [Transfer(True, group.ranks[position + 1])] if position < last else []
        sizes = ((phase.rows, 16),)
        if phase.op == "chain":
            return tuple(
                Call(
                    group,
                    "send" if transfer.is_send else "recv",
                    _site(phase.line + transfer.is_send),
                    sizes,
                    sizes,
                    phase.dtype,
                    (transfer,),
                )
                for transfer in incoming + outgoing
            )
        return (Call(group, "coalesced", _site(phase.line), sizes, sizes, phase.dtype, tuple(outgoing + incoming)),)


def _even_call(group: Group, op: str, site: Site, phase: Phase) -> Call:
    part: Shape = (phase.rows, 16)
    whole: Shape = (phase.rows * len(group.ranks), 16)
    sizes = {"_all_gather_base": (part, whole), "_reduce_scatter_base": (whole, part), "all_to_all": (whole, whole)}
    given, taken = sizes.get(op, (part, part))
    return Call(group, op, site, (given,), (taken,), phase.dtype)


@lru_cache(maxsize=256)
def _site(line: int) -> Site:
    return Site((FILE, line, "step"), ({"name": "step", "filename": FILE, "line": line},))
