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
_MOSTLY = 0.5  # of its delays must remain after subtracting the steps in which it was early
_SIGMAS = 4.0  # above chance: the worst of many ranks over few steps is often at two or three
_FEW = 0.5  # of the members at most: if most are late, the others are early
_MAX_NAMES = 3
_TIME_SLICE_NS = 4_000_000  # on a host alone, the scheduler delays a rank by as much, with no cause in the trace

_HELP = {
    "slow-kernels": "check this rank's device: clocks, temperature, power limit, other processes on it, row "
    "remapping; swap the node and see whether the slowness moves with it",
    "more-work": "balance the work: batch sequences of similar length, build batches by tokens instead of samples, "
    "spread experts and layers evenly",
    "host-bound": "check the CPU of this host: load, frequency, NUMA binding, threads per rank; make the device depend "
    "less on the host (torch.compile, CUDA graphs, fewer small operators)",
    "slow-operators": "check the CPU of this host: load, frequency, NUMA binding, torch.set_num_threads",
    "data-loading": "check this rank's data loader: its shard, its storage, its workers (num_workers, "
    "prefetch_factor, persistent_workers)",
    "garbage-collection": "collect at the same step on all ranks: gc.disable() before the loop and gc.collect() every "
    "N steps; gc.freeze() after setup. To see each collection, record with with_stack=True and "
    "record_python_gc_info=True (experimental_config), and read with --stacks",
    "range": "look at what this range does on this rank only; to see its lines, record with `rankscope record`",
    "sleeping": "find the sleep in this rank's loop: a retry, a poll, a rate limit",
    "pause": "record with `rankscope record`, which samples the line, or with with_stack=True and read with --stacks",
    "compile": "compile before the profiled steps, mark dynamic dimensions (torch._dynamo.mark_dynamic), use the same "
    "shapes on all ranks; TORCH_LOGS=recompiles says why",
    "slow-copies": "check this rank's copies: pinned memory, PCIe link width and generation, NUMA binding",
    "unknown": "profile this rank and a peer side by side; "
    "`rankscope metrics PATH late_causes` shows where they differ",
}


@rule("S202", "late-rank", needs=("comms", "profiles"))
def late_rank(trace: Trace) -> Iterator[Finding | Effect]:
    """One or a few ranks keep the others waiting in their collectives.

    What it means: ranks that take part in the same collectives have the same step time; the time that a rank does not
    need for its own work, it spends in communication. These ranks spend clearly less time there than their peers, which
    wait for them. The time shown is what the median peer loses per step, and the cause is what the late rank spends
    more time on.

    Why it happens: a slower device (heat, power, another process on it), more work on one rank (longer sequences, a
    larger shard), a slow host that launches late, slow data loading, garbage collection, compiling on one rank only. A
    rank that computes and communicates little but is idle for long is not a fast one: its host is late.

    What to do: follow the named cause; the table next to it shows where the rank and its median peer differ.
    `rankscope metrics PATH stragglers` lists all ranks, `rankscope metrics PATH late_causes` the parts of their steps.

    What could fool it: if step times vary a lot anyway, a rank is named only if it is later than chance explains:
    record more steps. The rank that others wait for may not have been traced. Peers are the members of the same
    collectives; if these do different work by design (a router, a parameter server), the one with the most work is
    named. Host time with nothing recorded is a pause: the trace does not say why. On a host with more work than cores,
    ranks are late by chance: no rank is named if the collector saw that it waited that long for a core. A delay in a
    single step is a note, not a warning. Without a device, a delay of less than 4 ms per step without a cause may be
    the scheduler's, and is not reported.
    """
    late = late_ranks(trace)
    if late:
        finding = _finding(trace, late)
        if finding.severity != "info" or finding.evidence.facts["cause"] != "unknown":
            yield finding


def late_ranks(trace: Trace) -> list[Standing]:
    """The ranks others wait for, the worst first: late regularly or by far, and not most of a group."""
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

    Robust: 1.48 times the median deviation. For two ranks, it is the difference between them.
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
    """Late on balance, not in turns with others, and by more than steps differ by chance."""
    costs = standing.cost_ns[~np.isnan(standing.cost_ns)]
    is_on_balance = float(costs.sum()) >= _MOSTLY * float(np.maximum(costs, 0).sum())
    return is_on_balance and standing.mean_cost_ns >= _SIGMAS * noise_ns / np.sqrt(max(len(costs), 1))


def _finding(trace: Trace, together: Sequence[Standing]) -> Finding:
    worst = together[0]
    reason = explain(trace, worst)
    ranks = tuple(sorted(standing.rank for standing in together))
    pct = f"{100 * worst.share:.0f}%"
    peers = {peer for standing in together for peer in standing.peers} - set(ranks)
    keep = "keeps" if len(ranks) == 1 else "keep"
    per_step = f"{format_duration(int(worst.mean_cost_ns))} per step" if _has_steps(worst) else _whole(worst)
    return Finding(
        severity="info" if _may_be_chance(trace, worst, reason) else "warning",
        certainty=_certainty(worst),
        title=f"{ranks_phrase(ranks)} {keep} {_peers_text(peers, len(ranks))} waiting {per_step} ({pct}): "
        f"{_because(reason, is_single=len(ranks) == 1)}",
        ranks=ranks,
        group=_group_ref(trace, worst.group),
        location=_location(trace, worst, reason),
        evidence=Evidence(
            certain=(*_when(trace, worst), *_work_lines(reason)),
            likely=(_likely(reason),) if reason.main else (),
            comparison=_comparison(worst, reason),
            cost_pct=100 * worst.share,
            cost_ns=int(worst.mean_cost_ns),
            facts=_facts(worst, reason, together),
        ),
        help=_HELP[reason.cause],
    )


def _peers_text(peers: set[int], n_late: int) -> str:
    if len(peers) == 1:
        return ranks_phrase(peers)
    return f"{'its' if n_late == 1 else 'their'} {count_noun(len(peers), 'peer')}"


def _may_be_chance(trace: Trace, standing: Standing, reason: LateCause) -> bool:
    if standing.share < _SIZEABLE or _is_single(standing):
        return True
    return reason.cause == "unknown" and standing.mean_cost_ns < _TIME_SLICE_NS and not trace.has("kernels")


def _is_single(standing: Standing) -> bool:
    """One step of several: that can be anything."""
    return standing.n_compared > 1 and len(standing.late_steps) == 1


def _has_steps(standing: Standing) -> bool:
    return not standing.late_steps or standing.late_steps[0] >= 0


def _whole(standing: Standing) -> str:
    return f"{format_duration(int(standing.mean_cost_ns))} of {format_duration(int(standing.step_ns))}"


def _certainty(standing: Standing) -> Certainty:
    if standing.n_compared < 2:
        return "possible"
    return "certain" if standing.n_compared >= 3 and len(standing.late_steps) >= 3 else "likely"


def _because(reason: LateCause, is_single: bool) -> str:
    it, its, verb = ("it", "its", "s") if is_single else ("they", "their", "")
    part = next((part for part in reason.parts if part.name == reason.main), None)
    longer = f"{format_duration(int(part.excess_ns))} longer" if part else ""
    texts = {
        "slow-kernels": f"{its} kernels run {_percent_more(reason)} longer than the same kernels elsewhere",
        "more-work": f"{it} {'has' if is_single else 'have'} more work",
        "host-bound": f"{its} host is late, the device is idle",
        "slow-operators": f"{its} operators run {_percent_more(reason)} longer than the same ones elsewhere",
        "data-loading": f"{it} wait{verb} {longer} for data",
        "garbage-collection": f"{its} host pauses, in garbage collection",
        "range": f"{it} spend{verb} {_range_text(reason)}",
        "sleeping": f"{it} sleep{verb} {longer}",
        "pause": f"{its} host pauses {longer}, with nothing recorded",
        "compile": f"{it} compile{verb} {longer}",
        "slow-copies": f"{its} copies take {longer}",
        "unknown": "no single cause stands out",
    }
    return texts[reason.cause]


def _range_text(reason: LateCause) -> str:
    named = reason.named
    return f"{format_duration(int(named.own_ns - named.peers_ns))} more in {named.name[:80]!r}" if named else ""


def _percent_more(reason: LateCause) -> str:
    return f"{100 * (reason.work.time_ratio - 1):.0f}%" if reason.work else "clearly"


def _when(trace: Trace, standing: Standing) -> Iterator[str]:
    rows = measures_of(trace).matching.rows
    last = rows.rank[measures_of(trace).matches.last_row]
    n_last, n_matches = int((last == standing.rank).sum()), len(last)
    if _has_steps(standing):
        n_late = len(standing.late_steps)
        verb = f"{ranks_phrase(standing.peers)} waited" if len(standing.peers) == 1 else "its peers waited"
        yield f"{verb} for it in {n_late} of {count_noun(standing.n_compared, 'step')}"
    per_step = " per step" if _has_steps(standing) else ""
    yield (
        f"it spends {format_duration(int(standing.exposed_ns))}{per_step} in communication, "
        f"its median peer {format_duration(int(standing.peers_exposed_ns))}"
    )
    if n_matches:
        yield f"it was the last to join {n_last:,} of {count_noun(n_matches, 'matched call')}"


def _work_lines(reason: LateCause) -> Iterator[str]:
    work = reason.work
    if work is None or reason.cause not in ("slow-kernels", "slow-operators", "more-work"):
        return
    what = "kernels" if reason.main == COMPUTATION else "operators"
    yield f"its {what} take {work.time_ratio:.2f} times as long as its median peer's"
    if reason.cause == "more-work":
        why = "there are more of them" if work.count_share >= work.size_share else "their inputs are larger"
        yield f"{why}, which explains {100 * min(1.0, max(work.count_share, work.size_share)):.0f}% of that"
    for one in work.by_name[:_MAX_NAMES]:
        if one.own_ns > one.peers_ns > 0:
            name = one.name if len(one.name) <= 60 else one.name[:57] + "..."
            yield f"{name}: {format_duration(int(one.own_ns))} instead of {format_duration(int(one.peers_ns))} each"


def _likely(reason: LateCause) -> str:
    part = next(part for part in reason.parts if part.name == reason.main)
    share = min(100.0, 100 * part.excess_ns / max(reason.late_ns, 1.0))
    what = "time with nothing recorded" if part.name == FREE else part.name
    return f"{share:.0f}% of the delay in its late steps is {what}"


def _comparison(standing: Standing, reason: LateCause) -> Comparison:
    shown = [part for part in reason.parts if max(part.own_ns, part.peers_ns) >= CLEARLY * standing.step_ns / 3]
    mark = next((row for row, part in enumerate(shown) if part.name == reason.main), -1)
    return Comparison(
        "per late step",
        tuple(part.name for part in shown),
        (
            Side("median peer", standing.peers, tuple(format_duration(int(part.peers_ns)) for part in shown)),
            Side(f"rank {standing.rank}", (standing.rank,), tuple(format_duration(int(part.own_ns)) for part in shown)),
        ),
        mark=mark,
    )


def _facts(standing: Standing, reason: LateCause, together: Sequence[Standing]) -> dict[str, object]:
    return {
        "cause": reason.cause,
        "cost_ns": int(standing.mean_cost_ns),
        "cost_pct": round(100 * standing.share, 2),
        "step_ns": int(standing.step_ns),
        "late_steps": list(standing.late_steps),
        "n_steps": standing.n_compared,
        "n_peers": len(standing.peers),
        "parts": [
            {"part": part.name, "own_ns": int(part.own_ns), "peers_ns": int(part.peers_ns)} for part in reason.parts
        ],
        "per_rank": [{"rank": one.rank, "cost_pct": round(100 * one.share, 2)} for one in together],
    }


def _group_ref(trace: Trace, number: int) -> GroupRef:
    group = measures_of(trace).matching.groups[number]
    return GroupRef(group.name, group.desc, group.ranks, group.is_inferred)


def _location(trace: Trace, standing: Standing, reason: LateCause) -> Location | None:
    """The user's line where the host was longest, if Python calls were read."""
    if not trace.has("python_calls"):
        return None
    stretch = longest_stretch(trace, standing.rank, standing.late_steps, reason.main)
    if stretch is None:
        return None
    process, start, end = stretch
    known = processes_of(trace)
    sql = f"""
        SELECT name FROM python_calls
        WHERE file_id = $file AND rank = $rank AND start_ns <= $middle AND start_ns + duration_ns > $middle
              AND {is_own("name")}
        ORDER BY start_ns DESC, python_id DESC LIMIT 1
    """
    middle = start + (end - start) // 2
    owner = {"file": int(known.file_id[process]), "rank": int(known.rank[process])}
    frames = trace.sql(sql, middle=middle, **owner).rows()
    return location_of(frames[0][0]) if frames else None
