"""L501 to L505: how well execution traces and profiler traces of the same steps fit together."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

from rankscope.analyze.link.collectives.agreement import Disagreement, RankCall, disagreements
from rankscope.analyze.link.reasons import REASONS, is_without_operators, sentence, why_missing
from rankscope.analyze.registry import Skipped, rule
from rankscope.model.finding import Comparison, Evidence, Finding, GroupRef, Severity, Side, count_noun, ranks_phrase
from rankscope.model.tables import Trace

LOW_LINK_PCT = 95.0
_MIN_UNTIED = 10
_MAX_UNTIED_PCT = 5.0
_MAX_SHOWN = 5
_FEW_INFLATED = 0.1  # of the durations may be those beside the observer: what only its steps did
_TO_THE_ROOT = ("reduce", "gather")


@rule("L501", "link-rate-low", needs=("et_traces",))
def link_rate_low(trace: Trace) -> Iterator[Finding]:
    """Operators of an execution trace were not found in the profiler trace of the same rank.

    What it means: an execution trace has operators with their inputs but without times; a profiler trace has the times.
    An operator that is not found in both has no duration, no kernels and no position in time, and is not passed on to a
    simulator.

    Why it happens: the two files come from different runs; observer and profiler recorded different steps; the observer
    was not running while the profiler was; the traces are from before 2024 and have no common ids; the profiler trace
    is cut off or recorded only the device.

    What to do: start observer and profiler together. torch.profiler does that with execution_trace_observer=...; then
    both cover the same steps and every operator is found. Keep the files of one run in one folder.

    What could fool it: traces without common ids are aligned by the sequence of names on each thread. Two runs of the
    same program look the same that way: then the links are right by name and position, but the times come from another
    run.
    """
    reasons = why_missing(trace)
    by_reason: dict[str, list[dict[str, Any]]] = {}
    for pair in trace.table("et_pairs").rows():
        if pair["n_operators"] and pair["link_pct"] < LOW_LINK_PCT:
            by_reason.setdefault(reasons[pair["file_id"]], []).append(pair)
    for why, pairs in by_reason.items():
        # A capture without any times may not need them, for example for a replay.
        is_wanted = why != "no-profile" or trace.has("profiles")
        yield _low(why, pairs, REASONS[why].severity if is_wanted else "info")


def _low(why: str, pairs: Sequence[dict[str, Any]], severity: Severity) -> Finding:
    reason = REASONS[why]
    ranks = tuple(sorted({pair["rank"] for pair in pairs}))
    is_certain = reason.certainty == "certain"
    n_more = len(pairs) - _MAX_SHOWN
    return Finding(
        severity=severity,
        certainty=reason.certainty,
        title=sentence(why, pairs),
        ranks=ranks,
        evidence=Evidence(
            certain=(*map(_linked_text, pairs[:_MAX_SHOWN]), *((f"and {n_more:,} more",) if n_more > 0 else ())),
            likely=() if is_certain else (reason.because,),
            notes=(reason.because,) if is_certain else (),
            facts={
                "why": why,
                "link_pct": {str(pair["rank"]): round(float(pair["link_pct"]), 2) for pair in pairs},
            },
        ),
        help=reason.help,
    )


def _linked_text(pair: dict[str, Any]) -> str:
    # Cut, not rounded: a low rate never looks like the limit.
    share = f"{100 * pair['n_linked'] // pair['n_linkable']}%"
    text = f"rank {pair['rank']}: {pair['n_linked']:,} of {count_noun(pair['n_linkable'], 'operator')} found ({share})"
    if pair["n_outside"]:
        text += f", {pair['n_outside']:,} from before or after the profiler's steps"
    if pair["n_wrong_names"]:
        text += f", {count_noun(pair['n_wrong_names'], 'id')} under a different name"
    return text


@rule("L505", "no-operators", needs=("et_traces",))
def no_operators(trace: Trace) -> Iterator[Finding]:
    """An execution trace has no operators: there is nothing to link, replay or export.

    What it means: the file is complete and readable, but contains only the nodes that every execution trace starts
    with: the process, its threads, the list of process groups.

    Why it happens: the observer was started and stopped at the wrong moments: it was registered but never started, it
    was stopped before the step did anything, or it was started after the training loop had ended.

    What to do: let the profiler start and stop it: profile(execution_trace_observer=...) observes exactly the profiled
    steps. `rankscope record` does that.

    What could fool it: a process that computes nothing with torch in the observed steps, such as one that only loads
    data.
    """
    empty = [pair for pair in trace.table("et_pairs").rows() if is_without_operators(pair)]
    if not empty:
        return
    ranks = tuple(sorted({pair["rank"] for pair in empty}))
    whose = "execution trace" if len(empty) == 1 else "execution traces"
    has = "has" if len(empty) == 1 else "have"
    yield Finding(
        severity="warning",
        certainty="certain",
        title=f"{ranks_phrase(ranks)}: the {whose} {has} no operators, so nothing can be linked",
        ranks=ranks,
        evidence=Evidence(
            certain=tuple(
                f"rank {pair['rank']}: {count_noun(pair['n_nodes'], 'node')}, but no operators"
                for pair in empty[:_MAX_SHOWN]
            ),
            facts={"n_nodes": {str(pair["rank"]): pair["n_nodes"] for pair in empty}},
        ),
        help=REASONS["no-operators-observed"].help,
    )


@rule("L502", "collectives-disagree", needs=("et_traces", "et_collectives"))
def collectives_disagree(trace: Trace) -> Iterator[Finding]:
    """The execution traces of a group's members have different collectives at the same position.

    What it means: counted from the first collective of the group, the ranks called different operations, or passed
    different numbers of bytes where these have to be equal. A simulator that runs these traces waits forever, and so
    would the job.

    Why it happens: the observers were started at different moments, so the traces begin at different calls; one trace
    is cut off; a rank really took a different branch.

    What to do: start the observers at the same step on all ranks (the profiler's schedule does that). If the steps are
    the same, look at the code of the rank that differs; Flight Recorder dumps have its line.

    What could fool it: traces that begin at different steps. gloo traces do not name the group of a call: unless the
    job has one group or a Flight Recorder dump shows it, such calls are not compared.
    """
    for difference in disagreements(trace)[:_MAX_SHOWN]:
        yield _disagreement(difference)


def _disagreement(difference: Disagreement) -> Finding:
    """The culprits are the smallest side; if no side is smaller, all of them."""
    sides: dict[str, list[int]] = {}
    for call in difference.calls:
        sides.setdefault(_call_text(call), []).append(call.rank)
    ordered = sorted(sides.items(), key=lambda side: len(side[1]))
    (odd_call, odd), (usual_call, usual) = ordered[0], ordered[-1]
    inferred = ("no trace lists the members of this group: ranks that use its name are taken for them",)
    hangs = ("all members of a group have to make the same call: a simulator waits here forever",)
    return Finding(
        severity="warning",
        certainty="likely" if difference.is_inferred else "certain",
        title=f"{ranks_phrase(odd)} called {odd_call} where {ranks_phrase(usual)} called {usual_call}",
        ranks=tuple(sorted(odd if len(odd) < len(usual) else (call.rank for call in difference.calls))),
        group=GroupRef(
            difference.group_name, "", tuple(json.loads(difference.group_ranks or "[]")), difference.is_inferred
        ),
        evidence=Evidence(
            certain=() if difference.is_inferred else hangs,
            likely=inferred if difference.is_inferred else (),
            comparison=Comparison(
                "call",
                (str(difference.place),),
                tuple(Side(ranks_phrase(ranks), tuple(ranks), (call,)) for call, ranks in ordered),
                mark=0,
            ),
            facts={"place": difference.place, "nodes": {str(call.rank): call.node_id for call in difference.calls}},
        ),
        help="record the same steps on all ranks; if they are the same, a rank took a different branch",
    )


def _call_text(call: RankCall) -> str:
    size = f" of {count_noun(call.n_bytes, 'byte')}" if call.n_bytes >= 0 and call.op != "barrier" else ""
    dtype = f" ({call.dtype})" if call.dtype else ""
    root = f" {'to' if call.op in _TO_THE_ROOT else 'from'} rank {call.root}" if call.root >= 0 else ""
    return f"{call.op}{size}{dtype}{root}"


@rule("L503", "durations-inflated", needs=("et_traces", "profiles"))
def durations_inflated(trace: Trace) -> Iterator[Finding | Skipped]:
    """The observer ran while operators were timed: short ones took several times longer than usual.

    What it means: recording every input and output of an operator takes time, and the profiler counts it as the
    operator's. Host times are 2 to 5 times as long as in a run without the observer; kernel times are right.

    Why it happens: this is how the two traces get common ids: both have to run at the same time.

    What to do: profile a few more steps without the observer, as `rankscope record` does, and put their traces next to
    the others: `rankscope link DIR` and `rankscope export DIR --to chakra` then take the durations from them, and this
    finding goes away. Pass traces in another folder with --durations-from.

    What could fool it: it is known that the observer ran; how much longer operators took is not, unless the capture has
    clean steps of the same process.
    """
    paired = [pair for pair in trace.table("et_pairs").rows() if pair["n_linked"] and pair["n_operators"]]
    if not paired:
        yield Skipped("no execution trace was recorded together with a profiler trace")
        return
    inflated = _inflated_files(trace)
    affected = [pair for pair in paired if pair["file_id"] in inflated]
    if not affected:
        return
    ranks = tuple(sorted({pair["rank"] for pair in affected}))
    yield Finding(
        severity="info",
        certainty="certain" if all(pair["method"] == "id" for pair in affected) else "likely",
        title=f"{ranks_phrase(ranks)}: operators took longer than usual because the observer was running",
        ranks=ranks,
        evidence=Evidence(
            certain=("kernel times are right; the times of operators on the host include the observer",),
        ),
        help="profile two more steps without the observer and put their trace next to the others, "
        "or pass it with --durations-from",
    )


def _inflated_files(trace: Trace) -> set[int]:
    """Execution traces for which clean steps in the capture do not provide nearly all durations."""
    answer = trace.sql(
        f"""SELECT file_id FROM et_links WHERE profile_id IS NOT NULL GROUP BY file_id
            HAVING count(*) FILTER (is_inflated) > {_FEW_INFLATED} * count(*)"""
    )
    return {file_id for (file_id,) in answer.rows()}


@rule("L504", "kernels-untied", needs=("et_traces", "kernels"))
def kernels_untied(trace: Trace) -> Iterator[Finding]:
    """Some kernels have no operator in the execution trace.

    What it means: a kernel belongs to the innermost operator that launched it: found by the id that both have, or
    without an id by the runtime call and the operator that was open on its thread. Kernels without an operator are
    isolated in the linked trace: nothing shows what they wait for.

    Why it happens: the launch was before the profiler started; the trace has no runtime calls; the kernel was launched
    outside all operators, as libraries that call CUDA themselves do; CUDA graphs whose launch was not recorded.

    What to do: profile with both ProfilerActivity.CPU and ProfilerActivity.CUDA, and with a warm-up step, so that the
    first recorded kernels are launched within the recorded window.

    What could fool it: a custom operator that is not registered with torch launches kernels under the operator around
    it; these are attached to that one.
    """
    counted = trace.sql("""
            SELECT rank, count(*), count(*) FILTER (op_id IS NULL),
                      count(*) FILTER (op_id IS NULL AND call_id IS NULL), mode(name) FILTER (op_id IS NULL)
               FROM kernels AS k SEMI JOIN (SELECT DISTINCT profile_id, rank FROM et_links) AS p
                   ON p.profile_id = k.file_id AND p.rank IS NOT DISTINCT FROM k.rank
               GROUP BY rank ORDER BY rank
        """).rows()
    untied = [row for row in counted if row[2] >= _MIN_UNTIED and row[2] > row[1] * _MAX_UNTIED_PCT / 100]
    if not untied:
        return
    ranks = tuple(row[0] for row in untied)
    n_kernels, n_untied, n_uncalled = (sum(row[column] for row in untied) for column in (1, 2, 3))
    yield Finding(
        severity="warning",
        certainty="certain",
        title=f"{ranks_phrase(ranks)}: {100 * n_untied / n_kernels:.0f}% of the kernels belong to no operator",
        ranks=ranks,
        evidence=Evidence(
            certain=(
                f"{n_untied:,} of {count_noun(n_kernels, 'kernel')} have no operator, most often {untied[0][4]}",
                f"for {n_uncalled:,} of these, the runtime call that launched them is missing too",
            ),
            facts={"n_kernels": n_kernels, "n_untied": n_untied, "n_without_launch": n_uncalled},
        ),
        help="profile with ProfilerActivity.CPU and ProfilerActivity.CUDA, after a warm-up step",
    )
