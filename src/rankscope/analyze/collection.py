"""D909: what the collector was asked for but did not deliver. D910: other runs in the same folder."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import Any

from rankscope.analyze.manifests import asked_for
from rankscope.analyze.registry import Effect, rule
from rankscope.model.finding import Evidence, Finding, count_noun, ranks_phrase
from rankscope.model.tables import MISSING, Trace

_PROFILES = ("execution_trace", "kineto")  # both are made by the part that the manifest calls profiling
# What a run with steps always leaves when it was asked for; the rest depends on what the job does.
_ALWAYS_WRITTEN = (*_PROFILES, "metrics")
# What leaves files. Other parts of the collector only help: without them less is known, but nothing is missing.
_KINDS = frozenset((*_ALWAYS_WRITTEN, "recorder", "stacks", "desync", "nsys", "compile_log", "torch_logs"))
_RANK = "rank"  # the name of a problem that affects the whole process
_SILENT = "nothing was written, and no reason was recorded"
_NOT_ENDED = "nothing was written: the process was killed first"
_NOT_YET = "not written yet: it is written when the process ends"
_MAX_FINDINGS = 8

Problem = tuple[str, str, str]  # what, problem, hint


@rule("D909", "collection-incomplete", needs=("manifests",))
def collection_incomplete(trace: Trace) -> Iterator[Finding | Effect]:
    """Something the collector was asked for is missing or incomplete.

    What it means: the run's manifest says that one kind of collection failed on these ranks, or it was requested but
    left no file. Everything else was collected as usual.

    Why it happens: a program that is not installed (nsys), a full disk, a profiler that the job's code was already
    running, a job that ended before the steps to record, a killed process.

    What to do: follow the hint, and record again if you need the missing data.

    What could fool it: a killed process writes nothing more, so what it lacks is known only up to its last manifest.
    """
    too_short = _without_recordable_steps(trace)
    by_problem: dict[Problem, set[int]] = defaultdict(set)
    for row in trace.table("collection_problems").rows():
        by_problem[row["what"], row["problem"], row["hint"]].add(row["rank"])
    for problem, rank in _unexplained(trace):
        by_problem[problem].add(rank)
    written = _written(trace)
    ordered = sorted(by_problem.items(), key=lambda item: (-len(item[1]), item[0]))
    rest = len(ordered) - _MAX_FINDINGS
    for (what, text, hint), ranks in ordered[:_MAX_FINDINGS]:
        is_absent = text != _NOT_YET and any(_is_absent(what, written[rank]) for rank in ranks)
        is_failure = is_absent and not (what == "profiling" and ranks <= too_short)
        whose = ranks_phrase(ranks) if what == _RANK else f"{what} of {ranks_phrase(ranks)}"
        yield Finding(
            severity="warning" if is_failure or what == _RANK else "info",
            certainty="certain",
            title=f"{whose}{' is missing' if is_absent else ''}: {text}",
            ranks=tuple(sorted(ranks)),
            evidence=Evidence(
                notes=(f"{count_noun(rest, 'more problem')}: see the table collection_problems",) if rest > 0 else (),
                facts={"what": what, "problem": text},
            ),
            help=hint or "record again if you need this data; everything else was collected",
        )


def _without_recordable_steps(trace: Trace) -> set[int]:
    """Ranks whose job ended before the first step to profile: nothing failed there."""
    too_short = set()
    for row in trace.table("manifests").rows():
        asked = asked_for(row)
        n_before = sum(n for name in ("wait", "warmup") if isinstance(n := asked.get(name), int))
        if 0 <= row["n_steps"] <= n_before:
            too_short.add(row["rank"])
    return too_short


def _is_absent(what: str, written: set[str]) -> bool:
    if what == "profiling":
        return written.isdisjoint(_PROFILES)
    return what in _KINDS and what not in written


def _written(trace: Trace) -> defaultdict[int, set[str]]:
    table = trace.table("collected_files")
    written: defaultdict[int, set[str]] = defaultdict(set)
    for rank, what in zip(table.array("rank").tolist(), table.text("what").tolist(), strict=True):
        written[rank].add(what)
    return written


def _unexplained(trace: Trace) -> Iterator[tuple[Problem, int]]:
    """Data that was requested and is missing, with no reason in the manifest."""
    written, problems = _written(trace), trace.table("collection_problems")
    reported = set(zip(problems.array("rank").tolist(), problems.text("what").tolist(), strict=True))
    for row in trace.table("manifests").rows():
        asked = asked_for(row)
        for what in _ALWAYS_WRITTEN if row["n_steps"] > 0 else ():
            names = {what, _RANK, "profiling"} if what in _PROFILES else {what, _RANK}
            is_reported = any((row["rank"], name) in reported for name in names)
            if asked.get(what) and what not in written[row["rank"]] and not is_reported:
                has_ended, is_job_over = row["ended_ns"] != MISSING, row["exit_code"] != MISSING
                why = _SILENT if has_ended else _NOT_ENDED if is_job_over else _NOT_YET
                yield (what, why, ""), row["rank"]


@rule("D910", "other-runs", needs=("files",))
def other_runs(trace: Trace) -> Iterator[Finding | Effect]:
    """The folder also holds other runs or jobs, which were not diagnosed.

    What it means: the job was recorded into this folder more than once, its launcher restarted it, or dumps of several
    jobs are in one tree. Only one run was diagnosed: the newest that has at least half of its ranks. Jobs that ran side
    by side, such as a trainer and its rollout workers, are all diagnosed and do not appear here.

    Why it happens: a second `rankscope record` into the same folder, torchrun with --max-restarts, dumps of several
    jobs or attempts copied into one folder.

    What to do: pass the folder of the run you mean, or choose it with --capture.

    What could fool it: a folder named run_2 or attempt_1 that holds something else, inside one the collector wrote to;
    two jobs with the same number of ranks whose files share a folder and claim different ranks.
    """
    files = trace.table("files")
    rows = [row for row in files.rows() if row["status"] == "other-run"]
    yield from _other_captures([row for row in files.rows() if row["status"] == "other-capture"])
    if rows:
        yield Finding(
            severity="info",
            certainty="certain",
            title=f"{count_noun(len(rows), 'other run')} of this job in the same folder, not read",
            evidence=Evidence(notes=tuple(row["path"] for row in rows[:_MAX_FINDINGS])),
            help=f"to diagnose the latest: {rows[-1]['hint']}",
        )


def _other_captures(rows: list[dict[str, Any]]) -> Iterator[Finding]:
    """Each row's problem describes the whole capture that the file belongs to."""
    problems = dict.fromkeys((row["problem"], row["hint"]) for row in rows)
    if problems:
        yield Finding(
            # A job that ran at the same time may be the one that hangs; an older one is history.
            severity="warning" if any("at the same time" in problem for problem, _ in problems) else "info",
            certainty="likely",
            title=f"the dumps here are from {len(problems) + 1} jobs or attempts: only one was diagnosed",
            evidence=Evidence(
                notes=tuple(f"{problem.removeprefix('is of ')} ({hint})" for problem, hint in problems)[:_MAX_FINDINGS],
                facts={"not_judged": [row["path"] for row in rows]},
            ),
            help=f"diagnose the other one too: {next(iter(problems))[1]}, or choose one with --prefix",
        )
