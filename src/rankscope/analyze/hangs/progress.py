"""Two readings of a running job, some seconds apart: which ranks went on between them, and which did not."""

from __future__ import annotations

from statistics import median
from typing import Literal

import msgspec
import numpy as np

from rankscope.model.finding import Evidence, Finding, Location, Report, ranks_phrase
from rankscope.model.tables import MISSING, Array, Trace

State = Literal["advanced", "active", "still", "restarted", "unknown"]
Verdict = Literal["moving", "partly", "working", "hung", "unknown"]
# A rank that is late at one moment may arrive at the next: these rest on that moment.
_OF_A_MOMENT = frozenset({"rank-stuck", "order-deadlock", "p2p-unmatched", "collective-stalled", "unfinished"})


class RankProgress(msgspec.Struct, frozen=True):
    """What a rank did between the readings.

    advanced: it made or finished calls. active: it did not, but its main thread stands elsewhere. still: neither.
    restarted: its counters went back. unknown: it did not tell enough in one of the readings.
    """

    rank: int
    state: State
    n_calls: int | None
    n_completed: int | None
    location: Location | None


class Progress(msgspec.Struct, frozen=True):
    """moving: every rank advanced. working: none did, but not all stand still. hung: all stand still."""

    verdict: Verdict
    seconds: float
    collectives_per_s: float  # of the ranks that advanced, the one in the middle
    ranks: tuple[RankProgress, ...]

    def in_state(self, *states: State) -> tuple[int, ...]:
        return tuple(each.rank for each in self.ranks if each.state in states)


class _Moment(msgspec.Struct, frozen=True):
    """One reading, by rank: calls made and finished since the job began, and the frames of the main thread."""

    made: dict[int, int]
    finished: dict[int, int]
    stacks: dict[int, tuple[int, ...]]
    sites: dict[int, Location]


def progress_between(before: Trace, after: Trace, seconds: float) -> Progress:
    frames: dict[tuple[str, int, str], int] = {}
    first, second = _moment(before, frames), _moment(after, frames)
    known_ranks = {rank for moment in (first, second) for known in (moment.made, moment.stacks) for rank in known}
    ranks = tuple(_rank_progress(rank, first, second) for rank in sorted(known_ranks))
    rates = [each.n_calls / seconds for each in ranks if each.state == "advanced" and each.n_calls]
    return Progress(_verdict(ranks), seconds, median(rates) if rates else 0.0, ranks)


def _verdict(ranks: tuple[RankProgress, ...]) -> Verdict:
    states = {each.state for each in ranks} - {"unknown"}
    if not states:
        return "unknown"
    if "restarted" in states:
        return "partly"
    if states == {"advanced"}:
        return "moving"
    if "advanced" in states:
        return "partly"
    return "working" if "active" in states else "hung"


def _rank_progress(rank: int, first: _Moment, second: _Moment) -> RankProgress:
    n_calls, n_completed = _grown(rank, first.made, second.made), _grown(rank, first.finished, second.finished)
    state: State
    if (n_calls or 0) < 0:
        state = "restarted"
    elif (n_calls or 0) > 0 or (n_completed or 0) > 0:
        state = "advanced"
    elif rank in first.stacks and rank in second.stacks:
        state = "still" if first.stacks[rank] == second.stacks[rank] else "active"
    else:
        state = "unknown" if n_calls is None else "still"
    return RankProgress(rank, state, n_calls, n_completed, second.sites.get(rank))


def _grown(rank: int, before: dict[int, int], after: dict[int, int]) -> int | None:
    return after[rank] - before[rank] if rank in before and rank in after else None


def _moment(trace: Trace, frames: dict[tuple[str, int, str], int]) -> _Moment:
    known, calls = trace.table("group_progress"), trace.table("collectives")
    made = dict.fromkeys(trace.table("ranks").array("rank").tolist(), 0)
    finished = made.copy()
    for counts, column in ((made, "last_seq"), (finished, "last_completed")):
        _add(counts, known.array("rank"), np.maximum(known.array(column), 0))
    # Transfers are numbered separately, by each rank in each group.
    is_p2p = calls.array("is_p2p")
    keys = np.stack([calls.array("rank")[is_p2p], calls.array("group_id")[is_p2p]])
    pairs, codes = np.unique(keys, axis=1, return_inverse=True)
    newest = np.zeros(pairs.shape[1], np.int64)
    np.maximum.at(newest, codes.ravel(), calls.array("p2p_seq")[is_p2p])
    _add(made, pairs[0], newest)
    stacks, sites = _main_stacks(trace, frames)
    return _Moment(made, finished, stacks, sites)


def _add(counts: dict[int, int], ranks: Array, values: Array) -> None:
    for rank, total in zip(*_sums(ranks, values), strict=True):
        if rank in counts:  # a member that left no dump is known only by what others say of it
            counts[rank] += total


def _sums(ranks: Array, values: Array) -> tuple[list[int], list[int]]:
    distinct, codes = np.unique(ranks, return_inverse=True)
    totals = np.zeros(len(distinct), np.int64)
    np.add.at(totals, codes, values)
    return distinct.tolist(), totals.tolist()


def _main_stacks(
    trace: Trace, known: dict[tuple[str, int, str], int]
) -> tuple[dict[int, tuple[int, ...]], dict[int, Location]]:
    """The newest stack of each rank's main thread, its frames by numbers that both readings share."""
    frames, stacks = trace.table("frames"), trace.table("stacks")
    code_lines = [(row["file"], row["line"], row["function"]) for row in frames.rows()]
    numbers = np.array([known.setdefault(line, len(known)) for line in code_lines], np.int64)
    lines: dict[int, list[int]] = {}
    order = np.lexsort((stacks.array("depth"), stacks.array("stack_id")))
    of_frames = numbers[stacks.array("frame_id")[order]].tolist()
    # Frames in C++ are read only while a thread waits: what is missing in one reading is no movement.
    is_native = frames.text("language").equals("c++")[stacks.array("frame_id")[order]].tolist()
    for stack, frame, is_left_out in zip(stacks.array("stack_id")[order].tolist(), of_frames, is_native, strict=True):
        lines.setdefault(stack, []).extend([] if is_left_out else [frame])
    newest: dict[int, tuple[int, ...]] = {}
    sites: dict[int, Location] = {}
    threads = trace.table("thread_stacks")
    for row in threads.take(np.flatnonzero(threads.array("is_main"))).rows():  # a later section is newer
        newest[row["rank"]] = tuple(lines.get(row["stack_id"], ()))
        if row["site_id"] != MISSING:
            sites[row["rank"]] = Location(*code_lines[row["site_id"]])
    return newest, sites


def tempered(report: Report, progress: Progress) -> Report:
    """The report of the second reading, in the light of both: what a moment looked like is no error if it passed."""
    return msgspec.structs.replace(
        report, findings=tuple(_tempered_finding(finding, progress) for finding in report.findings)
    )


def _tempered_finding(finding: Finding, progress: Progress) -> Finding:
    if finding.rule not in _OF_A_MOMENT or finding.severity != "error":
        return finding
    concerned = set(finding.ranks) or {each.rank for each in progress.ranks}
    advanced, active = set(progress.in_state("advanced")), set(progress.in_state("active"))
    if concerned <= advanced:
        note = f"{ranks_phrase(concerned)} made progress between the two readings: late, but not stuck"
        return _with_note(finding, "info", note)
    if concerned <= advanced | active:
        moving = concerned & active
        note = f"the main thread of {ranks_phrase(moving)} moved between the two readings: busy, but not stuck"
        return _with_note(finding, "warning", note)
    return finding


def _with_note(finding: Finding, severity: Literal["warning", "info"], note: str) -> Finding:
    evidence: Evidence = msgspec.structs.replace(finding.evidence, notes=(*finding.evidence.notes, note))
    return msgspec.structs.replace(finding, severity=severity, evidence=evidence)
