"""C409, C410 and C415: what compiling costs, what its guards cost on every call, and CUDA graphs that are not used."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from rankscope.analyze.compile.ledger import PHASES
from rankscope.analyze.compile.sites import Site, is_text_only, sites_of
from rankscope.analyze.compile.wording import cost_on, listed, ranks_of, run_note, shortened
from rankscope.analyze.registry import Effect, Skipped, rule
from rankscope.model.finding import Comparison, Evidence, Finding, Side, count_noun, format_duration
from rankscope.model.tables import Table, Trace

Row = dict[str, Any]
_LONG_NS = 60_000_000_000
_LARGE_SHARE = 0.20
_MAX_PLACES = 8
_MAX_FACTS = 200
_SLOW_GUARDS_NS = 100_000  # per call
_VERY_SLOW_GUARDS_NS = 1_000_000
_MANY_GUARDS = 20  # for fewer, the time is mostly that of measuring it
_PHASE_NAMES = {
    "dynamo_ns": "tracing Python",
    "aot_ns": "AOTAutograd",
    "inductor_ns": "Inductor",
    "code_gen_ns": "generating and compiling code",
    "triton_ns": "compiling Triton kernels",
    "autotune_ns": "autotuning",
}


@rule("C409", "compile-time", needs=("compile_ledger",))
def compile_time(trace: Trace) -> Iterator[Finding | Effect]:
    """How long compiling took in total, by function and by phase.

    What it means: the compile time of the rank that compiled longest, with the functions that took most of it. Phases
    do not overlap and add up to the total; forward, backward and work at run time (autotuning, recording CUDA graphs)
    are counted together. The table compile_ledger has the numbers of every rank.

    Why it happens: compiling is the price of torch.compile and is normal at startup. It is a problem if it continues
    during training, or takes a large part of a short job.

    What to do: start with the function at the top: recompilations (C402) and graph breaks (C404) multiply the cost.
    Keep the compile caches between runs (C407). Regional compilation compiles a repeated block once instead of many
    times.

    What could fool it: the log covers only the time from the first compilation to the last, so compiling takes a
    smaller share of a long job than of the log. If a profiler trace or a Flight Recorder dump of the same time is in
    the capture, it counts toward the job's time too.
    """
    ledger = trace.table("compile_ledger")
    runs = sites_of(trace).run_of.values()
    for run in sorted(set(ledger.array("run").tolist())):
        in_run = ledger.take(np.flatnonzero(ledger.array("run") == run))
        yield _describe_time(trace, run, in_run, run_note(run, runs))


def _describe_time(trace: Trace, run: int, ledger: Table, notes: tuple[str, ...]) -> Finding:
    totals: dict[int, int] = {}
    for rank, total in zip(ledger.array("rank").tolist(), ledger.array("total_ns").tolist(), strict=True):
        totals[rank] = totals.get(rank, 0) + total
    slowest = max(sorted(totals), key=lambda rank: totals[rank])
    cost = totals[slowest]
    slowest_rows = list(ledger.take(np.flatnonzero(ledger.array("rank") == slowest)).rows())
    span, of_what = _job_span(trace, run)
    share = min(cost / span, 1.0) if span > 0 else 0.0
    n_compilations = sum(row["n_compilations"] for row in slowest_rows)
    phases = {name: sum(row[name] for row in slowest_rows) for name in PHASES}
    parts = {name: sum(row[f"{name}_ns"] for row in slowest_rows) for name in ("forward", "backward", "runtime")}
    title = f"compiling took {cost_on(cost, len(totals))}: {count_noun(n_compilations, 'compilation')} "
    title += f"of {count_noun(len(slowest_rows), 'function')}"
    return Finding(
        severity="warning" if cost > _LONG_NS and share > _LARGE_SHARE else "info",
        certainty="certain",
        title=title,
        ranks=ranks_of(totals),
        location=Site(slowest_rows[0]["file"], slowest_rows[0]["line"], slowest_rows[0]["function"]).location,
        evidence=Evidence(
            certain=(
                f"by phase: {_shares(phases, cost, _PHASE_NAMES)}",
                *((f"by part: {_shares(parts, cost, {})}",) if parts["backward"] or parts["runtime"] else ()),
                *((f"that is {100 * share:.0f}% of {of_what}, {format_duration(span)}",) if span > 0 else ()),
            ),
            notes=(
                *((f"these numbers are for rank {slowest}, which took longest",) if len(totals) > 1 else ()),
                *notes,
            ),
            comparison=_most_expensive(slowest_rows, cost),
            cost_ns=cost,
            facts={
                "ranks": [{"rank": rank, "total_ns": total} for rank, total in sorted(totals.items())],
                "ledger": slowest_rows[:_MAX_FACTS],
                "phases": phases,
                "parts": parts,
                "span_ns": span,
            },
        ),
        help='start with the function at the top; `rankscope query PATH "from compile_ledger"` lists them all',
    )


def _shares(parts: dict[str, int], total: int, names: dict[str, str]) -> str:
    shown = sorted(((taken, name) for name, taken in parts.items() if taken * 100 >= total), reverse=True)
    return ", ".join(f"{names.get(name, name)} {format_duration(taken)}" for taken, name in shown)


def _most_expensive(rows: list[Row], total: int) -> Comparison:
    shown = rows[:_MAX_PLACES]
    places = tuple(f"{row['function'] or 'unnamed'} {Site(row['file'], row['line'], '').place}" for row in shown)
    counts = tuple(
        f"{row['n_compilations']}" + (f" ({row['n_recompiles']} recompiled)" if row["n_recompiles"] else "")
        for row in shown
    )
    taken = tuple(f"{format_duration(row['total_ns'])} ({100 * row['total_ns'] / total:.0f}%)" for row in shown)
    return Comparison("function", places, (Side("time", (), taken), Side("compiled", (), counts)))


def _job_span(trace: Trace, run: int) -> tuple[int, str]:
    """How long the job ran, as far as the capture shows: the logs, and other traces of the same time."""
    logs = trace.table("compile_logs")
    run_logs = logs.take(np.flatnonzero(logs.array("run") == run))
    first, last = run_logs.array("first_ns"), run_logs.array("last_ns")
    known = first > 0
    if not known.any():
        return 0, ""
    begin, end = int(first[known].min()), int(last[known].max())
    profiles, calls = trace.table("profiles"), trace.table("collectives")
    spans = list(zip(profiles.array("start_ns").tolist(), profiles.array("end_ns").tolist(), strict=True))
    created = calls.array("created_ns")
    if (created > 0).any():
        spans.append((int(created[created > 0].min()), int(created.max())))
    meanwhile = [span for span in spans if span[0] > 0 and span[0] <= end and span[1] >= begin]
    if not meanwhile:
        return end - begin, "the time from the first to the last log record"
    begin = min(begin, *(start for start, _ in meanwhile))
    return max(end, *(stop for _, stop in meanwhile)) - begin, "the job's recorded time"


class _Guarded(NamedTuple):
    """The most a call can check: the guards of all versions of a frame, on the rank where that takes longest."""

    rank: int
    latency_ns: int
    n_guards: int
    n_versions: int


@rule("C410", "slow-guards", needs=("compilations",))
def slow_guards(trace: Trace) -> Iterator[Finding | Effect | Skipped]:
    """Checking whether a compiled version fits takes long, on every call.

    What it means: before compiled code runs, its guards are checked: types, sizes, attributes, globals. Torch measures
    this once, when it compiles. If there are several versions, a call checks them one after the other until one fits:
    the time shown is for all of them.

    Why it happens: modules with many parameters and attributes, long lists or dictionaries in the arguments, many
    versions of one function.

    What to do: first reduce the number of versions (C402). Compile the whole step instead of many small functions, move
    settings out of the module, set torch._dynamo.config.skip_tensor_guards_with_matching_dict_tags, or use
    torch.compiler.set_stance with skip_guard_eval_unsafe if the inputs are known not to change.

    What could fool it: torch measures it once, cold, and on a busy machine the result is higher than in training;
    compare it with the step time before you act on it.
    """
    if not (trace.table("compilations").array("guard_latency_ns") > 0).any():
        yield Skipped("no guard times in the logs: use a newer torch with TORCH_TRACE=FOLDER")
    runs = sites_of(trace).run_of.values()
    for (run, site), guarded in _guarded_functions(trace).items():
        worst = max(guarded, key=lambda one: one.latency_ns)
        versions = f" of {worst.n_versions} versions" if worst.n_versions > 1 else ""
        yield Finding(
            severity="warning" if worst.latency_ns >= _VERY_SLOW_GUARDS_NS else "info",
            certainty="likely",
            title=f"{site.name} spends up to {format_duration(worst.latency_ns)} per call checking "
            f"{count_noun(worst.n_guards, 'guard')}{versions}",
            ranks=ranks_of(one.rank for one in guarded),
            location=site.location,
            evidence=Evidence(
                certain=("torch measured this once, when it compiled",),
                notes=run_note(run, runs),
                facts={
                    "guard_latency_ns": worst.latency_ns,
                    "n_guards": worst.n_guards,
                    "n_versions": worst.n_versions,
                },
            ),
            help="reduce the number of versions"
            if worst.n_versions > 2
            else "compile larger parts, so that fewer calls check guards; keep settings out of the module",
        )


def _guarded_functions(trace: Trace) -> dict[tuple[int, Site], list[_Guarded]]:
    sites, compilations = sites_of(trace), trace.table("compilations")
    frames: dict[tuple[Any, ...], _Guarded] = {}
    columns: list[Any] = [compilations.array("file_id").tolist(), compilations.array("rank").tolist()]
    columns += [compilations.array("frame_id").tolist(), sites.of_row]
    columns += [compilations.array("guard_latency_ns").tolist(), compilations.array("n_guards").tolist()]
    for file_id, rank, frame_id, site, latency, n_guards in zip(*columns, strict=True):
        if latency > 0:
            key = (sites.run(file_id), site, file_id, frame_id)
            before = frames.get(key, _Guarded(rank, 0, 0, 0))
            n_all = before.n_guards + max(n_guards, 0)
            frames[key] = _Guarded(rank, before.latency_ns + latency, n_all, before.n_versions + 1)
    slow: dict[tuple[int, Site], list[_Guarded]] = {}
    for (run, site, *_), guarded in frames.items():
        if guarded.latency_ns > _SLOW_GUARDS_NS and guarded.n_guards >= _MANY_GUARDS:
            slow.setdefault((run, site), []).append(guarded)
    return slow


@rule("C415", "cudagraphs-skipped", needs=("compilations",))
def cudagraphs_skipped(trace: Trace) -> Iterator[Finding | Effect | Skipped]:
    """CUDA graphs were requested but not used: every kernel is launched individually.

    What it means: with mode="reduce-overhead" or "max-autotune", torch records the kernels of a graph once and replays
    them. For these functions it gave up on that, for the reason shown, and they run without CUDA graphs.

    Why it happens: inputs that are modified in place, tensors on the CPU or on several devices, operators that cannot
    be recorded, sizes that differ from call to call.

    What to do: remove the reason: move the CPU tensor to the device, copy an input instead of modifying it, take the
    operator out of the compiled function, or do not use CUDA graphs for this function.

    What could fool it: the log does not show the lost time; it matters if kernels are short.
    """
    sites, compilations = sites_of(trace), trace.table("compilations")
    groups: dict[tuple[int, Site, str], set[int]] = {}
    columns: list[Any] = [compilations.array("file_id").tolist(), compilations.array("rank").tolist(), sites.of_row]
    for file_id, rank, site, reason in zip(*columns, compilations.text("cudagraph_skip").tolist(), strict=True):
        if reason:
            groups.setdefault((sites.run(file_id), site, reason), set()).add(rank)
    if is_text_only(trace) and not groups:
        yield Skipped("no CUDA graph messages in this log: run with TORCH_LOGS=perf_hints, or TORCH_TRACE=FOLDER")
    for (run, site, reason), ranks in groups.items():
        yield Finding(
            severity="warning",
            certainty="certain",
            title=f"{site.name} runs without CUDA graphs: {shortened(_skip_reason(reason), 120)}",
            ranks=ranks_of(ranks),
            location=site.location,
            evidence=Evidence(
                certain=(f"torch's reason: {shortened(reason, 300)}",),
                notes=run_note(run, sites.run_of.values()),
                facts={"reason": reason, "function": site.function, "ranks": listed(map(str, sorted(ranks)))},
            ),
            help="fix what torch's reason names, or compile this function without CUDA graphs (mode='default')",
        )


def _skip_reason(reason: str) -> str:
    return reason.removeprefix("skipping cudagraphs due to ")
