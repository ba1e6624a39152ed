"""X608: ranks are late because their machine has too few cores: whichever it is, it is the machine, not the rank."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from rankscope.analyze.late.arrivals import crowding_of
from rankscope.analyze.registry import rule
from rankscope.model.finding import Evidence, Finding, count_noun, format_duration
from rankscope.model.tables import Trace

_MIN_SHARE = 0.10  # of the job's time
_TOO_MANY = 2.0  # compute threads per core: more than this is the job's own doing
_OTHERS = 0.25  # of what the machine's cores did: so much for others explains a shortage
_MACHINE = """
    SELECT rank, coalesce(max(value) FILTER (name = 'cgroup_cores'), 0),
           coalesce(max(value) FILTER (name = 'n_usable_cores'), max(value) FILTER (name = 'n_cores'), 0),
           coalesce(max(value) FILTER (name = 'n_torch_threads'), 1)
    FROM host_machine GROUP BY rank
"""
# Per host, what all its ranks used while all of them ran, and what the machine's cores did in that time.
_USED = """
    WITH spans AS (
        SELECT coalesce(m.host, '') AS host, s.rank, max(s.cpu_ns) - min(s.cpu_ns) AS own_ns,
               max(s.machine_busy_ns) - min(s.machine_busy_ns) AS busy_ns
        FROM host_seconds AS s LEFT JOIN (SELECT DISTINCT rank, host FROM manifests) AS m USING (rank) GROUP BY ALL
    )
    SELECT host, count(*), sum(own_ns), max(busy_ns) FROM spans GROUP BY host
"""


class _Host(NamedTuple):
    name: str
    n_ranks: int
    own_ns: int
    busy_ns: int

    @property
    def others(self) -> float:
        """The share of the machine's work that other processes did."""
        return max(0.0, 1 - self.own_ns / self.busy_ns) if self.busy_ns > 0 else 0.0


@rule("X608", "late-without-core", needs=("host_samples", "collectives"))
def too_few_cores(trace: Trace) -> Iterator[Finding]:
    """Ranks wait for each other because their training threads do not get a free core.

    What it means: for at least half of the time that peers waited, the rank that they waited for was ready to run but
    had no core to run on. Which rank is late changes from step to step: the machine is at fault, not a rank.

    Why it happens: too many threads per rank (OMP_NUM_THREADS, torch.set_num_threads) or ranks per host, data loading
    workers, a CPU limit of the container, or another process on the machine.

    What to do: run no more threads, over all ranks, than there are cores: OMP_NUM_THREADS = cores / ranks. Move other
    processes off the machine, or give the container more cores.

    What could fool it: threads that libraries other than torch start are not counted.
    """
    crowding = crowding_of(trace)
    if crowding.share < _MIN_SHARE:
        return
    machine = trace.sql(_MACHINE).rows()
    cores = int(min((limit or usable for _, limit, usable, _ in machine), default=0))
    hosts = [_Host(*row) for row in trace.sql(_USED).rows()]
    n_ranks = max((host.n_ranks for host in hosts), default=len(machine))
    threads = max((int(n) for *_, n in machine), default=1) * n_ranks
    others = max((host.others for host in hosts), default=0.0)
    is_own = threads > _TOO_MANY * cores > 0
    why = f"{count_noun(n_ranks, 'rank')} per host run {threads:,} compute threads on {count_noun(cores, 'core')}"
    if not is_own and others >= _OTHERS:
        why = "other processes use the cores"
    fix = f"set OMP_NUM_THREADS={max(1, cores // max(n_ranks, 1))}, so that every thread has a core"
    yield Finding(
        severity="warning" if is_own else "info",
        certainty="certain",
        title=f"ranks spend {100 * crowding.share:.0f}% of the time waiting for a rank that has no free core: {why}",
        evidence=Evidence(
            certain=(
                f"in {count_noun(crowding.n_calls, 'collective')} the last rank to join had been waiting for a core; "
                f"this cost {format_duration(crowding.lost_ns)}",
                f"{threads:,} compute threads of {count_noun(n_ranks, 'rank')} share {count_noun(cores, 'core')}",
                *((f"other processes did {100 * others:.0f}% of the machine's work",) if others >= _OTHERS else ()),
            ),
            cost_pct=100 * crowding.share,
            cost_ns=crowding.lost_ns // max(crowding.n_calls, 1),
            facts={
                "n_cores": cores,
                "n_threads": threads,
                "n_ranks": n_ranks,
                "others": round(others, 3),
                "late_ranks": list(crowding.ranks),
            },
        ),
        help=fix if is_own else "move other processes off this machine, or run fewer ranks on it",
    )
