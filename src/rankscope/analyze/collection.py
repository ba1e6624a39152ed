"""D909: what was asked of the collector and is not there. D910: other runs in the same folder."""

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
_RANK = "rank"  # what a problem is called that is the whole process's
_SILENT = "nothing was written, and nothing tells why"
_NOT_ENDED = "nothing was written: the process was ended before it could"
_NOT_YET = "not written yet, it comes when the process ends"
_MAX_FINDINGS = 8

Problem = tuple[str, str, str]  # what, problem, hint


@rule("D909", "collection-incomplete", needs=("manifests",))
def collection_incomplete(trace: Trace) -> Iterator[Finding | Effect]:
    """Something that was asked of the collector is not there, or not whole.

    What it means: the manifest of the run says that a part failed on these ranks, or the part was asked for and has
    left no file. All other parts were collected as usual.

    Why it happens: a program that is not installed (nsys), a disk that was full, a profiler that the job's own code
    was running already, a job that ended before the steps to be recorded, a process that was killed.

    What to do: follow the hint, and record again if that part matters.

    What could fool it: a process that is killed tells nothing any more: what it lacks is told only as far as its last
    manifest went.
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
            code="D909",
            rule="collection-incomplete",
            severity="warning" if is_failure or what == _RANK else "info",
            certainty="certain",
            title=f"{whose}{' is missing' if is_absent else ''}: {text}",
            ranks=tuple(sorted(ranks)),
            evidence=Evidence(
                notes=(f"and {rest} more problems: see the table collection_problems",) if rest > 0 else (),
                facts={"what": what, "problem": text},
            ),
            help=hint or "record again if that part matters; the other parts are there",
        )


def _without_recordable_steps(trace: Trace) -> set[int]:
    """Ranks whose job was over before the first step that was to be profiled: nothing failed there."""
    found = set()
    for row in trace.table("manifests").rows():
        asked = asked_for(row)
        n_before = sum(n for name in ("wait", "warmup") if isinstance(n := asked.get(name), int))
        if 0 <= row["n_steps"] <= n_before:
            found.add(row["rank"])
    return found


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
    """Parts that were asked for, are not there, and about which the manifest says nothing."""
    written, problems = _written(trace), trace.table("collection_problems")
    told = set(zip(problems.array("rank").tolist(), problems.text("what").tolist(), strict=True))
    for row in trace.table("manifests").rows():
        asked = asked_for(row)
        for what in _ALWAYS_WRITTEN if row["n_steps"] > 0 else ():
            names = {what, _RANK, "profiling"} if what in _PROFILES else {what, _RANK}
            is_told = any((row["rank"], name) in told for name in names)
            if asked.get(what) and what not in written[row["rank"]] and not is_told:
                has_ended, is_job_over = row["ended_ns"] != MISSING, row["exit_code"] != MISSING
                why = _SILENT if has_ended else _NOT_ENDED if is_job_over else _NOT_YET
                yield (what, why, ""), row["rank"]


@rule("D910", "other-runs", needs=("files",))
def other_runs(trace: Trace) -> Iterator[Finding | Effect]:
    """The folder also holds other runs or jobs, which were not judged.

    What it means: the job was recorded into this folder more than once, its launcher restarted it, or dumps of
    different jobs lie in one tree. Only one of them was judged: the newest that has at least half of its ranks.

    Why it happens: `rankscope record` with the same folder again, torchrun with --max-restarts, dumps of several jobs
    or attempts copied into one folder.

    What to do: give the folder of the run that you mean, or choose it with --capture.

    What could fool it: a folder run_2 or attempt_1 that holds something else, below one that the collector wrote into;
    two jobs with the same number of ranks whose files lie in one folder and claim different ranks.
    """
    files = trace.table("files")
    rows = [row for row in files.rows() if row["status"] == "other-run"]
    yield from _other_captures([row for row in files.rows() if row["status"] == "other-capture"])
    if rows:
        yield Finding(
            code="D910",
            rule="other-runs",
            severity="info",
            certainty="certain",
            title=f"{count_noun(len(rows), 'other run')} of the job in the same folder: not read here",
            evidence=Evidence(notes=tuple(row["path"] for row in rows[:_MAX_FINDINGS])),
            help=f"to judge the latest: {rows[-1]['hint']}",
        )


def _other_captures(rows: list[dict[str, Any]]) -> Iterator[Finding]:
    """Each row's problem tells of the whole capture that the file is of."""
    told = dict.fromkeys((row["problem"], row["hint"]) for row in rows)
    if told:
        yield Finding(
            code="D910",
            rule="other-runs",
            # What lived at the same time may be the one that hangs; what is older is history.
            severity="warning" if any("at the same time" in problem for problem, _ in told) else "info",
            certainty="likely",
            title=f"the dumps here are from {len(told) + 1} jobs or attempts: one was judged",
            evidence=Evidence(
                notes=tuple(f"{problem.removeprefix('is of ')} ({hint})" for problem, hint in told)[:_MAX_FINDINGS],
                facts={"not_judged": [row["path"] for row in rows]},
            ),
            help=f"judge the other one, too: {next(iter(told))[1]}, or choose by --prefix",
        )
