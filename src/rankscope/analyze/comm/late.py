"""S202: ranks that keep their peers waiting in the profiled steps, and why."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

import numpy as np

from rankscope.analyze.chance import explains, without_core
from rankscope.analyze.comm.late_causes import LateCause, explain
from rankscope.analyze.comm.late_time import COMPUTATION, FREE, longest_stretch
from rankscope.analyze.comm.measures import measures_of
from rankscope.analyze.comm.stragglers import CLEARLY, Standing, exposure_of, standings_of
from rankscope.analyze.device.events import processes_of
from rankscope.analyze.host.python_frames import is_own, location_of
from rankscope.analyze.registry import Effect, rule
from rankscope.model.clock import median
from rankscope.model.database import database
from rankscope.model.finding import (
    Certainty,
    Comparison,
    Evidence,
    Finding,
    GroupRef,
    Location,
    Side,
    count_noun,
    format_duration,
    ranks_phrase,
)
from rankscope.model.tables import Trace

_SIZEABLE = 0.10
_ALIKE = 0.5  # of the worst rank's cost: those late by at least this share are late together
_MOSTLY = 0.5  # of its delays must remain after the steps in which it was early
_SIGMAS = 4.0  # above chance: the worst of many ranks over few steps is often two or three
_FEW = 0.5  # of the members at most: if most are late, the others are early
_MAX_NAMES = 3

_HELP = {
    "slow-kernels": "check the device of this rank: clocks, heat, power limit, another process on it, row remapping; "
    "swap the node and see whether the slowness moves with it",
    "more-work": "balance the work: sequences of like length in one batch, batches by tokens instead of samples, "
    "experts and layers spread evenly",
    "host-bound": "look at the CPU of this host: load, frequency, NUMA binding, threads per rank; make the device need "
    "the host less (torch.compile, CUDA graphs, fewer small operators)",
    "slow-operators": "look at the CPU of this host: load, frequency, NUMA binding, torch.set_num_threads",
    "data-loading": "look at this rank's loader: its shard, its storage, its workers (num_workers, prefetch_factor, "
    "persistent_workers)",
    "garbage-collection": "collect at the same step on all ranks: gc.disable() before the loop and gc.collect() every "
    "so many steps; gc.freeze() after the set-up. To see each collection, record with with_stack=True and "
    "record_python_gc_info=True (experimental_config), and read with --stacks",
    "sleeping": "find the sleep in this rank's loop: a retry, a poll, a rate limit",
    "pause": "record with with_stack=True and run again with --stacks to see the line",
    "compile": "compile before the profiled steps, mark dynamic dimensions (torch._dynamo.mark_dynamic), keep shapes "
    "equal on all ranks; TORCH_LOGS=recompiles says why",
    "slow-copies": "look at this rank's copies: pinned memory, PCIe link width and generation, NUMA binding",
    "unknown": "profile this rank and a peer side by side; "
    "`rankscope metrics PATH late_causes` shows where they differ",
}


@rule("S202", "late-rank", needs=("comms", "profiles"))
def late_rank(trace: Trace) -> Iterator[Finding | Effect]:
    """One or few ranks keep the others waiting in their collectives.

    What it means: ranks that take part in the same collectives take equally long for a step; what a rank does not need
    for its own work it stands in communication. The named ranks stand there clearly less than their peers, which wait
    for them. The time is what the median peer loses in a step, and the cause is what the named rank spends more on.

    Why it happens: a slower device (heat, power, a neighbour), more work on one rank (longer sequences, a larger
    shard), a slow host that launches late, slow data loading, garbage collection, compiling on one rank only. A rank
    that computes and communicates little but is idle for long is not a fast one: its host is late.

    What to do: follow the cause that is named; the table beside it shows where the rank and its median peer differ.
    `rankscope metrics PATH stragglers` has all ranks, `rankscope metrics PATH late_causes` the parts of their steps.

    What could fool it: where steps differ much by themselves, a rank is named only if it is late by more than chance
    explains: record more steps. Ranks that were not traced may be the ones that are waited for. Peers are the members
    of the same collectives; if these do different work by design (a router, a parameter server), the one with most to
    do is named. Time in which the host stands still with nothing recorded is taken for garbage collection where it
    strikes only in some steps: other things may stop Python too. On a host with more to do than it has cores, ranks are
    late by chance: nobody is named where the collector saw that the rank waited for a core that long. What strikes in
    a single step is a note, no warning.
    """
    late = late_ranks(trace)
    if late:
        finding = _finding(trace, late)
        if finding.severity != "info" or finding.evidence.facts["cause"] != "unknown":
            yield finding


def late_ranks(trace: Trace) -> list[Standing]:
    """The ranks that others wait for, the worst first: late by habit or by far, and not most of a group."""
    standings = standings_of(trace)
    late = [standing for standing in standings if standing.share >= CLEARLY]
    together = [standing for standing in late if standing.share >= _ALIKE * late[0].share]
    in_group = Counter(standing.group for standing in together)
    if any(n > max(1.0, _FEW * (len(one.peers) + 1)) for one in together if (n := in_group[one.group])):
        return []
    noise_ns = _noise_ns(trace, together) if together else 0.0
    habitual = [standing for standing in together if _is_habit(standing, noise_ns)]
    return [standing for standing in habitual if not explains(without_core(trace, standing.rank), standing.share)]


def _noise_ns(trace: Trace, together: Sequence[Standing]) -> float:
    """The sigma of a cost by chance: how much other ranks' steps differ from each other, beyond their usual difference.

    Robust, as 1.48 times the median deviation. Of two ranks, it is the difference between them.
    """
    exposure = exposure_of(trace)
    worst = together[0]
    others = set(worst.peers) - {standing.rank for standing in together}
    spent = exposure.totals(worst.group)[np.isin(exposure.ranks, list(others))]
    differences = spent - np.roll(spent, 1, axis=0) if len(spent) > 1 else worst.cost_ns[None]
    if differences.shape[1] > 1:
        differences = differences - median(differences, axis=1)[:, None]
    deviations = np.abs(differences[~np.isnan(differences)])
    if not len(deviations):
        return 0.0
    of_difference = 1.48 * float(median(deviations))
    if len(spent) < 2:
        return of_difference
    # A cost is one rank less the median of n others: of variance 1 + pi / 2n, where a difference of two has 2.
    return of_difference * float(np.sqrt((1 + np.pi / (2 * len(spent))) / 2))


def _is_habit(standing: Standing, noise_ns: float) -> bool:
    """Late on balance, not in turns with others, and by more than chance makes of steps that differ."""
    costs = standing.cost_ns[~np.isnan(standing.cost_ns)]
    is_on_balance = float(costs.sum()) >= _MOSTLY * float(np.maximum(costs, 0).sum())
    return is_on_balance and standing.mean_cost_ns >= _SIGMAS * noise_ns / np.sqrt(max(len(costs), 1))


def _finding(trace: Trace, together: Sequence[Standing]) -> Finding:
    worst = together[0]
    found = explain(trace, worst)
    ranks = tuple(sorted(standing.rank for standing in together))
    pct = f"{100 * worst.share:.0f} %"
    n_peers = count_noun(len({peer for standing in together for peer in standing.peers} - set(ranks)), "peer")
    keeps, own = ("keeps its", "it") if len(ranks) == 1 else ("keep their", "they")
    per_step = f"{format_duration(int(worst.mean_cost_ns))} per step" if _has_steps(worst) else _whole(worst)
    return Finding(
        code="S202",
        rule="late-rank",
        severity="warning" if worst.share >= _SIZEABLE and not _is_single(worst) else "info",
        certainty=_certainty(worst),
        title=f"{ranks_phrase(ranks)} {keeps} {n_peers} waiting {per_step} ({pct}): {_because(found, own)}",
        ranks=ranks,
        group=_group_ref(trace, worst.group),
        location=_location(trace, worst, found),
        evidence=Evidence(
            certain=(*_when(trace, worst), *_work_lines(found)),
            likely=(_likely(found),) if found.cause not in ("unknown",) else (),
            comparison=_comparison(worst, found),
            cost_pct=100 * worst.share,
            cost_ns=int(worst.mean_cost_ns),
            facts=_facts(worst, found, together),
        ),
        help=_HELP[found.cause],
    )


def _is_single(standing: Standing) -> bool:
    """One step of several: that may be anything."""
    return standing.n_compared > 1 and len(standing.late_steps) == 1


def _has_steps(standing: Standing) -> bool:
    return not standing.late_steps or standing.late_steps[0] >= 0


def _whole(standing: Standing) -> str:
    return f"{format_duration(int(standing.mean_cost_ns))} of {format_duration(int(standing.step_ns))}"


def _certainty(standing: Standing) -> Certainty:
    if standing.n_compared < 2:
        return "possible"
    return "certain" if standing.n_compared >= 3 and len(standing.late_steps) >= 3 else "likely"


def _because(found: LateCause, own: str) -> str:
    its = "its" if own == "it" else "their"
    part = next((part for part in found.parts if part.name == found.main), None)
    longer = f"{format_duration(int(part.excess_ns))} longer" if part else ""
    verb = "s" if own == "it" else ""
    texts = {
        "slow-kernels": f"{its} kernels run {_percent_more(found)} longer than the same kernels elsewhere",
        "more-work": f"{own} {'has' if own == 'it' else 'have'} more work",
        "host-bound": f"{its} host is late, the device idles",
        "slow-operators": f"{its} operators run {_percent_more(found)} longer than the same ones elsewhere",
        "data-loading": f"{own} wait{verb} for data {longer}",
        "garbage-collection": f"{its} host stands still, "
        + ("in garbage collection" if found.main != FREE else "probably for garbage collection"),
        "sleeping": f"{own} sleep{verb} {longer}",
        "pause": f"{its} host stands still {longer}, with nothing recorded",
        "compile": f"{own} compile{verb} {longer}",
        "slow-copies": f"{its} copies take {longer}",
        "unknown": "no single cause stands out",
    }
    return texts[found.cause]


def _percent_more(found: LateCause) -> str:
    return f"{100 * (found.work.time_ratio - 1):.0f} %" if found.work else "clearly"


def _when(trace: Trace, standing: Standing) -> Iterator[str]:
    rows = measures_of(trace).matching.rows
    last = rows.rank[measures_of(trace).matches.last_row]
    n_last, n_matches = int((last == standing.rank).sum()), len(last)
    if _has_steps(standing):
        yield f"its peers waited for it in {len(standing.late_steps)} of {count_noun(standing.n_compared, 'step')}"
    yield (
        f"it stands in communication {format_duration(int(standing.exposed_ns))} a step, "
        f"its median peer {format_duration(int(standing.peers_exposed_ns))}"
    )
    if n_matches:
        yield f"it came last to {n_last:,} of {count_noun(n_matches, 'matched call')}"


def _work_lines(found: LateCause) -> Iterator[str]:
    work = found.work
    if work is None or found.cause not in ("slow-kernels", "slow-operators", "more-work"):
        return
    what = "kernels" if found.main == COMPUTATION else "operators"
    yield f"its {what} take {work.time_ratio:.2f} times the time of its median peer's"
    if found.cause == "more-work":
        reason = "there are more of them" if work.count_share >= work.size_share else "their inputs are larger"
        yield f"{reason}, which explains {100 * min(1.0, max(work.count_share, work.size_share)):.0f} % of that"
    for one in work.by_name[:_MAX_NAMES]:
        if one.own_ns > one.peers_ns > 0:
            name = one.name if len(one.name) <= 60 else one.name[:57] + "..."
            yield f"{name}: {format_duration(int(one.own_ns))} instead of {format_duration(int(one.peers_ns))} each"


def _likely(found: LateCause) -> str:
    part = next(part for part in found.parts if part.name == found.main)
    share = min(100.0, 100 * part.excess_ns / max(found.late_ns, 1.0))
    what = "time in which nothing was recorded" if part.name == FREE else part.name
    return f"{what} explains {share:.0f} % of the delay in the steps in which it is late"


def _comparison(standing: Standing, found: LateCause) -> Comparison:
    shown = [part for part in found.parts if max(part.own_ns, part.peers_ns) >= CLEARLY * standing.step_ns / 3]
    mark = next((place for place, part in enumerate(shown) if part.name == found.main), -1)
    return Comparison(
        "per late step",
        tuple(part.name for part in shown),
        (
            Side("median peer", standing.peers, tuple(format_duration(int(part.peers_ns)) for part in shown)),
            Side(f"rank {standing.rank}", (standing.rank,), tuple(format_duration(int(part.own_ns)) for part in shown)),
        ),
        mark=mark,
    )


def _facts(standing: Standing, found: LateCause, together: Sequence[Standing]) -> dict[str, object]:
    return {
        "cause": found.cause,
        "cost_ns": int(standing.mean_cost_ns),
        "cost_pct": round(100 * standing.share, 2),
        "step_ns": int(standing.step_ns),
        "late_steps": list(standing.late_steps),
        "n_steps": standing.n_compared,
        "n_peers": len(standing.peers),
        "parts": [
            {"part": part.name, "own_ns": int(part.own_ns), "peers_ns": int(part.peers_ns)} for part in found.parts
        ],
        "per_rank": [{"rank": one.rank, "cost_pct": round(100 * one.share, 2)} for one in together],
    }


def _group_ref(trace: Trace, number: int) -> GroupRef:
    group = measures_of(trace).matching.groups[number]
    return GroupRef(group.name, group.desc, group.ranks, group.is_inferred)


def _location(trace: Trace, standing: Standing, found: LateCause) -> Location | None:
    """The user's line that the host was in for longest, where Python functions were read."""
    if not trace.has("python_calls"):
        return None
    stretch = longest_stretch(trace, standing.rank, standing.late_steps, found.main)
    if stretch is None:
        return None
    process, start, end = stretch
    known = processes_of(trace)
    sql = f"""
        SELECT name FROM python_calls
        WHERE file_id = ? AND rank = ? AND start_ns <= ? AND start_ns + duration_ns > ? AND {is_own("name")}
        ORDER BY start_ns DESC, python_id DESC LIMIT 1
    """
    middle = start + (end - start) // 2
    place = (int(known.file_id[process]), int(known.rank[process]), middle, middle)
    frames = database(trace).execute(sql, place).fetchall()
    return location_of(frames[0][0]) if frames else None
