"""L501 to L504: how well execution traces and profiler traces of the same steps fit together."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Sequence
from typing import Any

from rankscope.analyze.link.collectives.agreement import Disagreement, RankCall, disagreements
from rankscope.analyze.link.nodes import EVENTS
from rankscope.analyze.link.reasons import REASONS, sentence, why_missing
from rankscope.analyze.registry import Skipped, rule
from rankscope.model.database import database
from rankscope.model.finding import Comparison, Evidence, Finding, GroupRef, Severity, Side, count_noun, ranks_phrase
from rankscope.model.tables import Trace

LOW_LINK_PCT = 95.0
_MIN_UNTIED = 10
_MAX_UNTIED_PCT = 5.0
_MAX_SHOWN = 5
_TO_THE_ROOT = ("reduce", "gather")


@rule("L501", "link-rate-low", needs=("et_traces",))
def link_rate_low(trace: Trace) -> Iterator[Finding]:
    """Operators of an execution trace were not found in the profiler trace of the same rank.

    What it means: an execution trace has operators with their inputs but without times; a profiler trace has the
    times. Where an operator is not found in both, it has no duration, no kernels and no place in the order of time, and
    a simulator does not get it.

    Why it happens: the two files are of different runs; observer and profiler recorded different steps; the observer
    was not running while the profiler was; the traces are from before 2024 and have no common numbers; the profiler
    trace is cut off or recorded only the device.

    What to do: start observer and profiler together. torch.profiler does that with execution_trace_observer=...; then
    both cover the same steps and every operator is found. Keep the files of one run in one folder.

    What could fool it: traces without common numbers are aligned by the sequence of names on each thread. Two runs of
    the same program look alike to that: then the links are right by name and place, but the times are of another run.
    """
    reasons = why_missing(trace)
    by_reason: dict[str, list[dict[str, Any]]] = {}
    for pair in trace.table("et_pairs").rows():
        if pair["n_linkable"] and pair["link_pct"] < LOW_LINK_PCT:
            by_reason.setdefault(reasons[pair["file_id"]], []).append(pair)
    for why, pairs in by_reason.items():
        # Who records no times at all may want none, as for a replay.
        is_wanted = why != "no-profile" or trace.has("profiles")
        yield _low(why, pairs, REASONS[why].severity if is_wanted else "info")


def _low(why: str, pairs: Sequence[dict[str, Any]], severity: Severity) -> Finding:
    reason = REASONS[why]
    ranks = tuple(sorted({pair["rank"] for pair in pairs}))
    is_certain = reason.certainty == "certain"
    n_more = len(pairs) - _MAX_SHOWN
    return Finding(
        code="L501",
        rule="link-rate-low",
        severity=severity,
        certainty=reason.certainty,
        title=sentence(why, pairs),
        ranks=ranks,
        evidence=Evidence(
            certain=(*map(_found, pairs[:_MAX_SHOWN]), *((f"and {n_more:,} more",) if n_more > 0 else ())),
            likely=() if is_certain else (reason.because,),
            notes=(reason.because,) if is_certain else (),
            facts={
                "why": why,
                "link_pct": {str(pair["rank"]): round(float(pair["link_pct"]), 2) for pair in pairs},
            },
        ),
        help=reason.help,
    )


def _found(pair: dict[str, Any]) -> str:
    # Cut, not rounded: what is low never looks like the limit.
    share = f"{100 * pair['n_linked'] // pair['n_linkable']} %"
    found = f"rank {pair['rank']}: {pair['n_linked']:,} of {count_noun(pair['n_linkable'], 'operator')} found ({share})"
    if pair["n_outside"]:
        found += f", {pair['n_outside']:,} from before or after the profiler's steps"
    if pair["n_wrong_names"]:
        found += f", {count_noun(pair['n_wrong_names'], 'number')} under another name"
    return found


@rule("L502", "collectives-disagree", needs=("et_traces", "et_collectives"))
def collectives_disagree(trace: Trace) -> Iterator[Finding]:
    """The execution traces of a group's members have different collectives at the same place.

    What it means: counted from the first collective of the group, the ranks called different operations, or gave
    different numbers of bytes where these have to be equal. A simulator that is fed with these traces waits for ever,
    and so would the job.

    Why it happens: the observers were started at different moments, so that the traces begin at different calls; one
    trace is cut off; a rank really took another branch.

    What to do: start the observers at the same step on all ranks (the profiler's schedule does that). If the steps are
    the same, look at the code of the rank that differs; dumps of the Flight Recorder tell its line.

    What could fool it: gloo's traces do not name the group of a call; it is concluded from the threads that ran it. A
    wrong conclusion makes sequences differ: the finding then says that the group was concluded.
    """
    for found in disagreements(trace)[:_MAX_SHOWN]:
        yield _disagreement(found)


def _disagreement(found: Disagreement) -> Finding:
    """The odd ones are those of whom there are fewest; where nobody is outnumbered, all are."""
    sides: dict[str, list[int]] = {}
    for call in found.calls:
        sides.setdefault(_call_text(call), []).append(call.rank)
    ordered = sorted(sides.items(), key=lambda side: len(side[1]))
    (odd_call, odd), (usual_call, usual) = ordered[0], ordered[-1]
    inferred = ("which group the calls belong to was concluded from the threads that ran them",)
    hangs = ("the members of a group have to call the same: a simulator waits here for ever",)
    return Finding(
        code="L502",
        rule="collectives-disagree",
        severity="warning",
        certainty="likely" if found.is_inferred else "certain",
        title=f"{ranks_phrase(odd)} called {odd_call} where {ranks_phrase(usual)} called {usual_call}",
        ranks=tuple(sorted(odd if len(odd) < len(usual) else (call.rank for call in found.calls))),
        group=GroupRef(found.group_name, "", tuple(json.loads(found.group_ranks or "[]")), found.is_inferred),
        evidence=Evidence(
            certain=() if found.is_inferred else hangs,
            likely=inferred if found.is_inferred else (),
            comparison=Comparison(
                "call",
                (str(found.place),),
                tuple(Side(ranks_phrase(ranks), tuple(ranks), (call,)) for call, ranks in ordered),
                mark=0,
            ),
            facts={"place": found.place, "nodes": {str(call.rank): call.node_id for call in found.calls}},
        ),
        help="record the same steps on all ranks; if they are the same, a rank took another branch",
    )


def _call_text(call: RankCall) -> str:
    size = f" of {count_noun(call.n_bytes, 'byte')}" if call.n_bytes >= 0 and call.op != "barrier" else ""
    dtype = f" ({call.dtype})" if call.dtype else ""
    root = f" {'to' if call.op in _TO_THE_ROOT else 'from'} rank {call.root}" if call.root >= 0 else ""
    return f"{call.op}{size}{dtype}{root}"


@rule("L503", "durations-inflated", needs=("et_traces", "profiles"))
def durations_inflated(trace: Trace) -> Iterator[Finding | Skipped]:
    """The observer ran while operators were timed: short ones took several times as long as they usually do.

    What it means: noting every input and output of an operator takes time, and the profiler counts it as time of the
    operator. Times on the host are 2 to 5 times as long as in a run without the observer; those of kernels are right.

    Why it happens: it is how the two traces get common numbers: both have to run at once.

    What to do: profile a few more steps without the observer, and give them with --durations-from to `rankscope link
    DIR`, or the same with `rankscope export DIR --to chakra`. The links then come from one trace, the durations from
    the other.

    What could fool it: how much longer operators took is known only where clean steps are in the capture, and it is
    the steps of the same rank that are compared: those of another program tell nothing.
    """
    paired = [pair for pair in trace.table("et_pairs").rows() if pair["n_linked"]]
    if not paired:
        yield Skipped("no execution trace was recorded together with a profiler trace")
        return
    ranks = tuple(sorted({pair["rank"] for pair in paired}))
    slower = _times_slower(trace, {pair["profile_id"] for pair in paired})
    given = shlex.quote(trace.paths[0]) if len(trace.paths) == 1 else "PATH"
    measured = f": steps took {slower:.1f} times as long as without it" if slower else ""
    yield Finding(
        code="L503",
        rule="durations-inflated",
        severity="info",
        certainty="certain" if all(pair["method"] == "id" for pair in paired) else "likely",
        title=f"{ranks_phrase(ranks)}: operators took longer than usual, as the observer ran{measured}",
        ranks=ranks,
        evidence=Evidence(
            certain=("times of kernels are right; those of operators on the host include the observer's own",),
            facts={"times_slower": round(slower, 2)} if slower else {},
        ),
        help=f"take the durations of the steps without the observer: rankscope link {given} --durations-from {given}"
        if slower
        else "profile two more steps without the observer, and give their trace with --durations-from",
    )


def _times_slower(trace: Trace, observed: set[int]) -> float | None:
    """Steps with the observer by steps without it, of the same ranks, where the capture has both."""
    listed = ", ".join(map(str, sorted(observed)))
    [(slower,)] = (
        database(trace)
        .execute(
            f"""WITH middle AS (
                SELECT rank, file_id IN ({listed}) AS is_observed, median(duration_ns) AS step_ns
                FROM steps WHERE file_id IN ({listed})
                    OR file_id NOT IN (SELECT file_id FROM {EVENTS} WHERE record_id IS NOT NULL)
                GROUP BY ALL)
            SELECT median(o.step_ns / c.step_ns) FROM middle AS o JOIN middle AS c USING (rank)
            WHERE o.is_observed AND NOT c.is_observed AND c.step_ns > 0"""
        )
        .fetchall()
    )
    return float(slower) if slower and slower > 1 else None


@rule("L504", "kernels-untied", needs=("et_traces", "kernels"))
def kernels_untied(trace: Trace) -> Iterator[Finding]:
    """Kernels that no operator of the execution trace could be found for.

    What it means: a kernel belongs to the innermost operator that launched it: found by the number that both have, and
    where there is none, by the call into the runtime and the operator that was open on its thread. Kernels without an
    operator stand alone in the linked trace: nothing says what they wait for.

    Why it happens: the launch was before the profiler started; the trace has no calls into the runtime; the kernel was
    launched outside of all operators, as libraries do that call CUDA themselves; CUDA graphs whose launch was not
    recorded.

    What to do: profile with both ProfilerActivity.CPU and ProfilerActivity.CUDA, and with a warm-up step, so that the
    first recorded kernels were launched within the recorded window.

    What could fool it: a custom operator that is not registered with torch launches kernels under the operator around
    it; these are tied, to that one.
    """
    trace.table("et_links")  # made now, so that the query sees it
    counted = (
        database(trace)
        .execute(
            """SELECT rank, count(*), count(*) FILTER (op_id IS NULL),
                      count(*) FILTER (op_id IS NULL AND call_id IS NULL), mode(name) FILTER (op_id IS NULL)
               FROM kernels AS k SEMI JOIN (SELECT DISTINCT profile_id, rank FROM et_links) AS p
                   ON p.profile_id = k.file_id AND p.rank IS NOT DISTINCT FROM k.rank
               GROUP BY rank ORDER BY rank"""
        )
        .fetchall()
    )
    untied = [row for row in counted if row[2] >= _MIN_UNTIED and row[2] > row[1] * _MAX_UNTIED_PCT / 100]
    if not untied:
        return
    ranks = tuple(row[0] for row in untied)
    n_kernels, n_untied, n_uncalled = (sum(row[column] for row in untied) for column in (1, 2, 3))
    yield Finding(
        code="L504",
        rule="kernels-untied",
        severity="warning",
        certainty="certain",
        title=f"{ranks_phrase(ranks)}: {100 * n_untied / n_kernels:.0f} % of the kernels belong to no operator",
        ranks=ranks,
        evidence=Evidence(
            certain=(
                f"{n_untied:,} of {count_noun(n_kernels, 'kernel')} have no operator, most often {untied[0][4]}",
                f"{n_uncalled:,} of these without the call into the runtime that launched them",
            ),
            facts={"n_kernels": n_kernels, "n_untied": n_untied, "n_without_launch": n_uncalled},
        ),
        help="profile with ProfilerActivity.CPU and ProfilerActivity.CUDA, after a warm-up step",
    )
