"""How much of a step each rank loses to something, and whether that is worth a finding."""

from __future__ import annotations

from typing import NamedTuple

from rankscope.model.finding import Severity, format_duration, format_ranks, ranks_phrase
from rankscope.model.tables import Trace

NOTABLE_SHARE = 0.03  # of the step; less is not worth looking at
SIZEABLE_SHARE = 0.10


class Loss(NamedTuple):
    """What one rank lost in the steps that were recorded."""

    rank: int
    n: int  # how often
    lost_ns: int
    window_ns: int  # the steps; the time between first and last kernel where no steps are marked
    n_steps: int  # 0 where no steps are marked

    @property
    def share(self) -> float:
        return self.lost_ns / self.window_ns if self.window_ns > 0 else 0.0


class Losses(NamedTuple):
    """The ranks that lose a notable share of the step, the worst first, out of all that have a device."""

    ranks: tuple[Loss, ...]
    n_ranks: int

    @property
    def severity(self) -> Severity:
        """If only a few of many ranks lose time, the job waits for them: another rule reports what that costs."""
        return "warning" if self.ranks[0].share >= SIZEABLE_SHARE and 2 * len(self.ranks) >= self.n_ranks else "info"

    @property
    def culprits(self) -> tuple[int, ...]:
        return tuple(sorted(loss.rank for loss in self.ranks))

    @property
    def who(self) -> str:
        return ranks_phrase(self.culprits)

    @property
    def cost(self) -> str:
        """`31% of the step (8.2 ms)`; of several ranks, `up to 31% of the step (8.2 ms, rank 3)`."""
        if len(self.ranks) == 1:
            return self.amount
        return f"up to {self._share} ({format_duration(self.cost_ns)}, rank {self.ranks[0].rank})"

    @property
    def amount(self) -> str:
        """What the first rank loses."""
        return f"{self._share} ({format_duration(self.cost_ns)})"

    @property
    def _share(self) -> str:
        first = self.ranks[0]
        whole = "the step" if first.n_steps else "the recorded time"
        return f"{100 * first.share:.0f}% of {whole}"

    @property
    def cost_pct(self) -> float:
        return round(100 * self.ranks[0].share, 2)

    @property
    def cost_ns(self) -> int:
        return self.ranks[0].lost_ns // max(1, self.ranks[0].n_steps)

    @property
    def facts(self) -> dict[str, object]:
        return {
            "ranks": format_ranks(self.culprits),
            "n_ranks": self.n_ranks,
            "per_rank": [
                {"rank": loss.rank, "n": loss.n, "lost_ns": loss.lost_ns, "share_pct": round(100 * loss.share, 2)}
                for loss in self.ranks[:16]
            ],
        }


# Where a trace marks its steps, only what belongs to a step counts, against the time of the steps.
_LOSSES = """
WITH marked AS (
    SELECT file_id, rank, sum(duration_ns) AS window_ns, count(*) AS n_steps FROM steps GROUP BY file_id, rank
), windows AS (
    SELECT k.file_id, k.rank, coalesce(any_value(m.n_steps), 0) AS n_steps,
           coalesce(any_value(m.window_ns), max(k.start_ns + k.duration_ns) - min(k.start_ns)) AS window_ns
    FROM kernels AS k LEFT JOIN marked AS m USING (file_id, rank) GROUP BY k.file_id, k.rank
), lost AS (
    SELECT file_id, rank, count(*) AS n, sum(l.lost_ns) AS lost_ns
    FROM ({events}) AS l JOIN windows AS w USING (file_id, rank)
    WHERE w.n_steps = 0 OR l.step IS NOT NULL GROUP BY file_id, rank
)
SELECT rank, coalesce(sum(l.n), 0)::BIGINT, coalesce(sum(l.lost_ns), 0)::BIGINT, sum(w.window_ns)::BIGINT,
       sum(w.n_steps)::BIGINT
FROM windows AS w LEFT JOIN lost AS l USING (file_id, rank) GROUP BY rank
"""


def losses_of(trace: Trace, events: str) -> Losses | None:
    """What the events of a query (file_id, rank, step, lost_ns) cost each rank; None if no rank loses much."""
    losses = [Loss(*row) for row in trace.sql(_LOSSES.format(events=events)).rows()]
    notable = [loss for loss in losses if loss.share >= NOTABLE_SHARE]
    notable.sort(key=lambda loss: (-loss.share, loss.rank))
    return Losses(tuple(notable), len(losses)) if notable else None
