"""C405, C406, C414 and C417: compilations that failed, restarted or never ended, and export problems."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from rankscope.analyze.compile.failed import Failure, Restart, Unfinished, failures_of, restarts_of, unfinished_of
from rankscope.analyze.compile.sites import is_text_only, sites_of
from rankscope.analyze.compile.wording import cost_on, first_line, most, ranks_of, run_note, shortened, times
from rankscope.analyze.registry import Effect, Skipped, rule
from rankscope.model.finding import Evidence, Finding, Location, format_duration
from rankscope.model.tables import Trace

Row = dict[str, Any]
_RESTART_INFO_NS = 1_000_000_000
_MAX_LINES = 4
_CLASS = re.compile(r"^<class '(?:[\w.]+\.)?(?P<name>\w+)'>$")  # some reasons are only the class of an exception
_EMPTY = re.compile(
    r"\s*(?:Explanation|Hint|Developer debug context):\s*$"
)  # a heading of torch's with nothing after it
_BUG = "if the stack trace ends in torch's own code, report it with the log"


@rule("C405", "compile-error", needs=("compilations",))
def compile_error(trace: Trace) -> Iterator[Finding | Effect | Skipped]:
    """Compiling a function failed with an exception.

    What it means: the backend or torch itself raised an error, or a function compiled with fullgraph=True contains
    something that cannot be traced. The call failed too, unless torch._dynamo.config.suppress_errors is set: then the
    function runs uncompiled.

    Why it happens: a backend that does not support an operator, a missing compiler or Triton, an error in a custom pass
    or backend, code that cannot be captured in a graph.

    What to do: go to the line shown and read the exception. To keep working in the meantime, exclude the function with
    torch.compiler.disable; backend="eager" and backend="aot_eager" show which stage fails.

    What could fool it: a function that could not be traced and runs as plain Python is a graph break (C404), not an
    error. If the log does not record graph breaks, the two look alike, and the finding is only likely.
    """
    runs = sites_of(trace).run_of.values()
    failures = failures_of(trace)
    if is_text_only(trace) and not failures:
        yield Skipped("text logs show only errors that were printed: run with TORCH_TRACE=FOLDER")
    for failure in failures:
        yield _describe_failure(failure, run_note(failure.run, runs))


def _describe_failure(failure: Failure, notes: tuple[str, ...]) -> Finding:
    name, message = failure.exception.rpartition(".")[2], failure.message.splitlines()
    consequence = "it runs uncompiled, because suppress_errors is set" if failure.is_suppressed else "the call failed"
    lines = [shortened(line, 300) for line in message if line.strip() and not _EMPTY.match(line)][:_MAX_LINES]
    is_soft = name in ("Unsupported", "UserError")
    help_text = (
        "follow the hint, move the line out of the function, or compile without fullgraph=True"
        if is_soft
        else f"read the exception at this line; backend='eager' and backend='aot_eager' show which stage fails; {_BUG}"
    )
    return Finding(
        severity="warning" if failure.is_suppressed else "error",
        certainty="likely" if is_soft else "certain",
        title=f"compiling {failure.site.name} failed with {name}: {_gist(message)}",
        ranks=ranks_of(failure.costs),
        location=failure.location or failure.site.location,
        evidence=Evidence(
            certain=(*lines, f"{consequence}, {times(failure.n)}"),
            notes=(
                *((f"the line: {shortened(failure.code)}",) if failure.code else ()),
                *((f"the compiled function: {failure.site.place}",) if failure.location else ()),
                *notes,
            ),
            cost_ns=most(failure.costs) or None,
            facts={"type": failure.exception, "message": failure.message, "function": failure.site.function},
        ),
        help=help_text,
    )


def _gist(lines: list[str]) -> str:
    """The first line that says more than where the exception came from."""
    return next((first_line(line) for line in lines if line.strip() and not line.rstrip().endswith("raised:")), "")


@rule("C406", "compile-restarts", needs=("compilations",))
def compile_restarts(trace: Trace) -> Iterator[Finding | Effect | Skipped]:
    """Tracing a function restarted, and what had been traced was thrown away.

    What it means: in the middle of a function torch found that an assumption of its tracing did not hold, noted that,
    and restarted from the first line. Restarts caused by graph breaks count toward the cost of the break (C404) and are
    not listed here.

    Why it happens: a size that has to stay dynamic after all, a call that has to be taken out of the graph, a tensor
    that turned out to be modified in place.

    What to do: nothing, if it is cheap. If it is expensive, the reason shows what to change: mark the dimension as
    dynamic up front, or move the call out of the function.

    What could fool it: torch logs one total for the time lost in all restarts of a compilation; it is split evenly
    among them.
    """
    if is_text_only(trace):
        yield Skipped("text logs do not show restarts: run with TORCH_TRACE=FOLDER")
    runs = sites_of(trace).run_of.values()
    for restart in restarts_of(trace):
        cost = most(restart.costs)
        yield Finding(
            severity="warning" if cost >= 10 * _RESTART_INFO_NS else "info",
            certainty="certain",
            title=f"tracing {restart.site.name} restarted {times(restart.n)}: {_reason(restart)}",
            ranks=ranks_of(restart.costs),
            location=restart.site.location,
            evidence=Evidence(
                certain=(f"{cost_on(cost, len(restart.costs))} of tracing was thrown away",) if cost else (),
                notes=run_note(restart.run, runs),
                cost_ns=cost or None,
                facts={"reason": restart.reason, "n": restart.n, "function": restart.site.function},
            ),
            help="fix what torch's reason names, or ignore it if the restart is cheap",
        )


def _reason(restart: Restart) -> str:
    named = _CLASS.match(restart.reason)
    return named["name"] if named else first_line(restart.reason.strip("'\"")) or "no reason was logged"


@rule("C414", "compile-unfinished", needs=("compilations",))
def compile_unfinished(trace: Trace) -> Iterator[Finding | Effect | Skipped]:
    """The log ends in the middle of a compilation: the process hung or was killed while compiling.

    What it means: the last compilation in the log starts but never ends. Its phase is named if the log has phases.

    Why it happens: the process was killed (out of memory, a timeout, a scheduler), a compiler subprocess hangs, or
    autotuning is waiting for a device. In a distributed job the other ranks wait for this one in their next collective.
    A log that was copied while the job ran looks the same.

    What to do: compare the end of the log with the end of the job. Check the system log for killed processes; if the
    process is still alive, look at its stack (py-spy dump --pid PID).

    What could fool it: some versions of torch write no metrics at the end of a compilation; such a compilation is
    reported only if other records show that it did not end.
    """
    if is_text_only(trace):
        yield Skipped("text logs do not show where compilations end: run with TORCH_TRACE=FOLDER")
    runs = sites_of(trace).run_of.values()
    for unfinished in unfinished_of(trace):
        yield _describe_unfinished(unfinished, run_note(unfinished.run, runs))


def _describe_unfinished(one: Unfinished, notes: tuple[str, ...]) -> Finding:
    phase = f" (in {one.phases[-1]})" if one.phases else ""
    path = " > ".join(one.phases)
    return Finding(
        severity="warning",
        certainty="likely",
        title=f"the log ends while compiling {one.site.name}{phase}: the process hung or was killed there",
        ranks=ranks_of(one.ranks),
        location=one.site.location,
        evidence=Evidence(
            certain=(
                f"compilation {one.compile_id} started and never ended",
                *((f"open phases: {path}",) if path else ()),
                *(("the last record is cut off: the process was killed while writing",) if one.is_cut else ()),
            ),
            notes=(
                *(
                    (f"it had been compiling for {format_duration(one.open_ns)} when the log ended",)
                    if one.open_ns
                    else ()
                ),
                *notes,
            ),
            facts={"compile_id": one.compile_id, "phases": list(one.phases), "is_cut": one.is_cut},
        ),
        help="check whether the process was killed (out of memory, timeout); if it still runs: py-spy dump --pid PID",
    )


_EXPORT_KINDS = {
    "guard_on_data_dependent_error": (
        "a branch depends on tensor values",
        "state what can be assumed with torch._check(...), or replace the branch with torch.cond",
    ),
    "propagate_real_tensors": (
        "a branch on tensor values was decided with the example inputs",
        "state what can be assumed with torch._check(...), or replace the branch with torch.cond",
    ),
    "missing_fake_kernel": (
        "an operator has no fake kernel, so shapes after it are guessed from the example inputs",
        "register one with torch.library.register_fake",
    ),
    "mismatched_fake_kernel": (
        "an operator's fake kernel gives a different result than the operator itself",
        "fix the kernel registered with torch.library.register_fake",
    ),
}


@rule("C417", "export-problems", needs=("compile_records",))
def export_problems(trace: Trace) -> Iterator[Finding | Effect | Skipped]:
    """An export made assumptions that do not hold for all inputs, or met operators it cannot describe.

    What it means: the exported program may be wrong for inputs other than the example: a branch was decided by the
    values of the example tensors, or an operator's output was taken from running it.

    Why it happens: a branch or a size depends on .item() or a mask; a custom operator has no fake kernel or a wrong
    one.

    What to do: add torch._check for what is known about the value, use torch.cond for a real branch, register a fake
    kernel for a custom operator. Then export again with strict checks.

    What could fool it: details are only in logs recorded with TORCH_DTRACE or by draft_export; a job that exported
    nothing has none of these records.
    """
    sites = sites_of(trace)
    groups: dict[tuple[Any, ...], list[Row]] = {}
    for row in _export_rows(trace):
        groups.setdefault((sites.run(row["file_id"]), row["kind"], row["file"], row["line"]), []).append(row)
    if not groups and not _has_export(trace):
        yield Skipped("no export in the logs: run with TORCH_DTRACE=FOLDER, or use draft_export")
    for (run, kind, file, line), rows in groups.items():
        what, help_text = _EXPORT_KINDS[kind]
        messages = list(dict.fromkeys(row["message"] for row in rows if row["message"]))
        yield Finding(
            severity="error" if kind != "propagate_real_tensors" else "warning",
            certainty="certain",
            title=f"export: {what}{f': {shortened(messages[0], 100)}' if messages else ''}",
            ranks=ranks_of(row["rank"] for row in rows),
            location=Location(file, max(line, 0), rows[0]["function"]) if file else None,
            evidence=Evidence(
                certain=(
                    *((f"`{rows[0]['code']}`",) if rows[0]["code"] else ()),
                    *(shortened(message, 300) for message in messages[1:_MAX_LINES]),
                ),
                notes=(
                    *((f"logged {times(len(rows))}",) if len(rows) > 1 else ()),
                    *run_note(run, sites.run_of.values()),
                ),
                facts={"kind": kind, "messages": messages},
            ),
            help=help_text,
        )


def _has_export(trace: Trace) -> bool:
    kinds = trace.table("compile_records").text("kind")
    return any(bool(kinds.equals(kind).any()) for kind in ("export", "exported_program"))


def _export_rows(trace: Trace) -> Iterator[Row]:
    """Problems that were logged as such, and decisions that were made with real values."""
    for row in trace.table("compile_errors").rows():
        if row["kind"] in _EXPORT_KINDS:
            yield row
    records = trace.table("compile_records")
    kinds, file_ids = records.text("kind"), records.array("file_id").tolist()
    numbers = records.array("record").tolist()
    wanted = (kinds.equals("propagate_real_tensors") | kinds.equals("propagate_real_tensors_provenance")).nonzero()[0]
    decided = {(file_ids[row], numbers[row]) for row in wanted.tolist()}
    if not decided:
        return
    for row in trace.table("guards").rows():
        if (row["file_id"], row["record"]) in decided:
            message = f"{row['expression']} is {row['value']}" if row["value"] else row["expression"]
            yield {**row, "kind": "propagate_real_tensors", "message": message}
