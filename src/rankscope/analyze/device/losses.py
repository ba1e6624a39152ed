"""What a loss in each step costs each rank."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from rankscope.analyze.device.events import processes_of
from rankscope.analyze.device.lost_time import NOTABLE_SHARE, Loss, Losses
from rankscope.analyze.device.steps import Windows
from rankscope.model.tables import MISSING, Array, Table, Trace


class StepLoss(NamedTuple):
    """Per step of each traced process: its rank and number, how long it was, how much of that was lost."""

    rank: Array
    step: Array
    duration_ns: Array
    lost_ns: Array

    @classmethod
    def of_windows(cls, trace: Trace, windows: Windows, lost_ns: Array) -> StepLoss:
        return cls(processes_of(trace).rank[windows.process], windows.step, windows.end - windows.start, lost_ns)

    @classmethod
    def of_table(cls, step_breakdown: Table, column: str) -> StepLoss:
        return cls(*(step_breakdown.array(name) for name in ("rank", "step", "duration_ns", column)))


def losses_by_rank(loss: StepLoss) -> list[Loss]:
    """What each rank lost, the worst first."""
    losses = []
    for rank in np.unique(loss.rank).tolist():
        rows = loss.rank == rank
        n_steps = int(np.count_nonzero(loss.step[rows] != MISSING))
        lost_ns, window_ns = int(loss.lost_ns[rows].sum()), int(loss.duration_ns[rows].sum())
        losses.append(Loss(rank, int(np.count_nonzero(loss.lost_ns[rows] > 0)), lost_ns, window_ns, n_steps))
    return sorted(losses, key=lambda one: (-one.share, one.rank))


def shared_losses(loss: StepLoss) -> Losses | None:
    """The ranks that lose a notable share, if most ranks do.

    If only a few do, the others wait for them: another rule reports that they are late, and why.
    """
    losses = losses_by_rank(loss)
    notable = tuple(one for one in losses if one.share >= NOTABLE_SHARE)
    return Losses(notable, len(losses)) if 2 * len(notable) > len(losses) else None


def verb(losses: Losses, one: str, many: str) -> str:
    return one if len(losses.ranks) == 1 else many
