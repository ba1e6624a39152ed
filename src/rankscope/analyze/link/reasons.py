"""Why operators of an execution trace are not in the profiler trace, and how that is reported."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from rankscope.model.finding import Certainty, Severity, count_noun, ranks_phrase
from rankscope.model.tables import Trace

_BOTH = (
    "run both in one profiler: profile(execution_trace_observer=ExecutionTraceObserver().register_callback(PATH), ...)"
)


class Reason(NamedTuple):
    cause: str  # follows the names of the ranks
    because: str
    help: str
    certainty: Certainty = "certain"
    severity: Severity = "warning"


REASONS = {
    "different-run": Reason(
        "the execution trace and the profiler trace come from different runs",
        "the process, the recording time or the operator names differ",
        "keep only the traces of one run in the folder",
        certainty="likely",
    ),
    "no-overlap": Reason(
        "the execution trace and the profiler trace cover different steps",
        "both number operators, but one ended before the other began",
        _BOTH,
    ),
    "no-observer": Reason(
        "the observer did not run while the profiler did",
        "the profiler trace has no record function ids, which it writes only while an observer runs",
        _BOTH,
    ),
    "no-profile": Reason(
        "the execution trace has no matching profiler trace",
        "execution traces contain no times",
        _BOTH,
    ),
    "no-operators": Reason(
        "the profiler trace has no operators",
        "only the device was recorded, or the trace is cut off before the first operator",
        "profile with ProfilerActivity.CPU too",
    ),
    "no-operators-observed": Reason(
        "the execution trace has no operators",
        "the observer ran before or after the operators did, so there is nothing to link",
        _BOTH,
    ),
    "no-ids": Reason(
        "the traces have no common ids",
        "operators were matched by the order of their names on each thread",
        "record with a newer torch: since 2024 both traces contain the same ids",
        certainty="likely",
    ),
    "partial": Reason(
        "the observer recorded more than the profiler",
        "the ids of the other operators are before the profiler's first or after its last",
        _BOTH,
        severity="info",
    ),
    "cut": Reason(
        "the profiler trace is cut off",
        "its file ends before the trace does",
        "copy it again if the original is complete; a process must not exit before its profiler has written everything",
    ),
    "lost": Reason(
        "operators of the execution trace are missing from the profiler trace",
        "the traces number the same operators, but many are missing from the profiler trace",
        "profile all threads with ProfilerActivity.CPU, and check whether the trace was edited later",
    ),
}


def sentence(why: str, pairs: Iterable[dict[str, Any]]) -> str:
    """What is wrong with the traces of some ranks, all for the same reason, and the effect."""
    pairs = list(pairs)
    n_missing = sum(pair["n_linkable"] - pair["n_linked"] for pair in pairs)
    effect = f"so {count_noun(n_missing, 'operator has', 'operators have')} no times"
    reason = REASONS[why]
    return f"{ranks_phrase({pair['rank'] for pair in pairs})}: {reason.cause}" + (
        f", {effect}" if n_missing else f": {reason.because}"
    )


def why_missing(trace: Trace) -> dict[int, str]:
    """The reason by execution trace, a key of REASONS; those where nothing is missing or wrong are left out."""
    files = trace.table("files")
    cut = set(files.array("file_id")[files.text("status").equals("damaged")].tolist())
    profiled = set(trace.table("profiles").array("rank").tolist())
    reasons = {pair["file_id"]: _why(pair, cut, profiled) for pair in trace.table("et_pairs").rows()}
    return {file_id: why for file_id, why in reasons.items() if why}


def is_without_operators(pair: dict[str, Any]) -> bool:
    """Annotations alone, such as those of steps, are not what an execution trace is recorded for."""
    return not pair["n_operators"]


def _why(pair: dict[str, Any], cut: set[int], profiled: set[int]) -> str:
    if is_without_operators(pair):
        return "no-operators-observed"
    why = str(pair["why"])
    is_missing = pair["n_linked"] < pair["n_linkable"]
    if why in ("", "partial") and is_missing and pair["profile_id"] in cut:
        return "cut"
    if why == "no-profile" and pair["rank"] in profiled:
        return "no-operators"
    return why or ("lost" if is_missing else "")
