"""D905 to D908: what prevents a comparison of profiler traces across ranks."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timezone
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from rankscope.analyze.collectives.groups import UNKNOWN_GROUP
from rankscope.analyze.comm.measures import Measures, measures_of
from rankscope.analyze.comm.profile_clocks import clock_of, clock_quality, matching_of
from rankscope.analyze.registry import Effect, rule
from rankscope.model.clock import MIN_SHARED
from rankscope.model.finding import Evidence, Finding, count_noun, format_duration, ranks_phrase
from rankscope.model.numbers import integer
from rankscope.model.tables import MISSING, Array, Trace

_NOTABLE_UNMATCHED = 0.05  # of the calls: single ones are lost at the edges of any window
_MAX_SHOWN = 6


@rule("D905", "clocks-unaligned", needs=("comms", "profiles"))
def clocks_unaligned(trace: Trace) -> Iterator[Finding | Effect]:
    """The clocks of some hosts could not be aligned, so it is unknown which of their ranks arrived last.

    What it means: these hosts share fewer than three collectives or transfers with the others in the recorded time.
    Their times are used as they are, and arrivals are not compared with those of other hosts. How long each rank spends
    in communication needs no common clock and is analyzed as usual.

    Why it happens: the recorded windows of the ranks do not overlap, the traces do not show which calls belong
    together, or the hosts share few or no collectives.

    What to do: record the same steps on all ranks, at least three of them, with a version of torch that writes group
    names and call numbers to the trace.

    What could fool it: if the traces do not name a host, each of its ranks counts as a separate host.
    """
    clocks = matching_of(trace).clocks
    quality = clock_quality(clocks)
    used = np.unique(clocks.of_process[matching_of(trace).rows.process])
    lost = set(used[~quality.is_aligned[used]].tolist()) if len(used) > 1 else set()
    if not lost:
        return
    profiles = list(trace.table("profiles").rows())
    ranks = tuple(sorted({row["rank"] for row in profiles if clock_of(trace, row["file_id"], row["rank"]) in lost}))
    hosts = sorted({clocks.hosts[clock] for clock in lost if clocks.hosts[clock]})
    whose = f"{count_noun(len(hosts), 'host')} ({', '.join(hosts[:_MAX_SHOWN])})" if hosts else ranks_phrase(ranks)
    yield Finding(
        severity="info",
        certainty="certain",
        title=f"the clocks of {whose} could not be aligned: arrivals are not compared across them",
        ranks=ranks,
        evidence=Evidence(
            certain=(f"they share fewer than {MIN_SHARED} calls with the other clocks",),
            notes=("how long each rank spends in communication is still known: that needs no common clock",),
            facts={"hosts": hosts, "n_clocks": len(used)},
        ),
        help="record the same steps on all ranks; `rankscope metrics PATH profile_clocks` shows what is shared",
    )


@rule("D906", "comm-unmatched", needs=("comms", "profiles"))
def comm_unmatched(trace: Trace) -> Iterator[Finding | Effect]:
    """Collectives or transfers whose partners on other ranks were not found.

    What it means: several ranks recorded the time in which these calls ran, but nothing in the traces shows which calls
    of other ranks belong to them. They count as communication of their rank, but are left out of waits, arrivals and
    bandwidths.

    Why it happens: traces without collective metadata (older versions of torch, batched sends and receives whose
    kernels carry none), transfers whose other end is not recorded, traces that kept only a sample of the events.

    What to do: record with a newer version of torch: groups and sizes are in the traces since 2.2, the number and id of
    each call since 2.13. Record all ranks, over the same steps.

    What could fool it: calls whose partner was not traced are not counted here; see D907.
    """
    measures = measures_of(trace)
    matching = measures.matching
    rows = matching.rows
    if len(np.unique(rows.rank)) < 2:
        return
    expected = _has_traced_partner(measures)
    lost = np.flatnonzero(expected & (matching.match == MISSING))
    n_expected = int(np.count_nonzero(expected))
    if len(lost) < _NOTABLE_UNMATCHED * max(n_expected, 1) or not len(lost):
        return
    is_nameless = matching.group[lost] == UNKNOWN_GROUP
    ops, counts = np.unique(rows.op[lost], return_counts=True)
    shown = ", ".join(
        f"{n:,} {rows.op_names[op]}" for op, n in sorted(zip(ops, counts, strict=True), key=lambda x: -x[1])
    )
    reason = (
        "the traces do not say which group they belong to"
        if is_nameless.mean() >= 0.5
        else "their partners are missing from the traces, or end at different times"
    )
    yield Finding(
        severity="info",
        certainty="certain",
        title=f"{len(lost):,} of {count_noun(n_expected, 'call')} could not be matched across ranks: {reason}",
        evidence=Evidence(
            certain=(f"unmatched: {shown}",),
            facts={"n_unmatched": len(lost), "n_calls": n_expected, "n_without_group": int(is_nameless.sum())},
        ),
        help="record the same steps on all ranks"
        if _numbers_calls(trace)
        else "use torch 2.13 or newer, which numbers each call, and record the same steps on all ranks",
    )


def _numbers_calls(trace: Trace) -> bool:
    """Whether the version that ran is the one that would be recommended."""
    versions = [version for (version,) in trace.sql("SELECT DISTINCT torch FROM manifests").rows() if version]
    numbers = [[integer(word) for word in version.split(".")[:2]] for version in versions]
    return bool(numbers) and all(number >= [2, 13] for number in numbers)


def _has_traced_partner(measures: Measures) -> Array:
    """Calls that ended while another member of their group was being recorded (any other rank, if the group is
    unknown)."""
    matching = measures.matching
    rows = matching.rows
    expected = np.zeros(len(rows), bool)
    for group in np.unique(matching.group).tolist():
        in_group = np.flatnonzero(matching.group == group)
        candidates = np.arange(len(rows)) if group == UNKNOWN_GROUP else in_group
        ranks = np.unique(rows.rank[candidates])
        n_recording = np.zeros(len(in_group), np.int64)
        for rank in ranks.tolist():
            theirs = candidates[rows.rank[candidates] == rank]
            low, high = measures.start_ns[theirs].min(), measures.end_ns[theirs].max()
            n_recording += (measures.end_ns[in_group] >= low) & (measures.end_ns[in_group] <= high)
        expected[in_group] = n_recording > 1
    return expected


@rule("D907", "profile-missing", needs=("profiles",))
def profile_missing(trace: Trace) -> Iterator[Finding | Effect]:
    """Some ranks of the job have no profiler trace here.

    What it means: according to the traces, the job has more ranks than left a trace here. Late ranks can only be found
    among those that were traced: if all of these wait, the one they wait for may be missing.

    Why it happens: only some ranks were profiled, files are on the disks of other nodes, or a process ended before it
    could write its trace.

    What to do: record all ranks, or at least all members of the groups in question, and collect the files of all nodes.

    What could fool it: traces that do not contain the world size, and rank numbers taken from file names.
    """
    profiles = trace.table("profiles")
    traced = set(profiles.array("rank").tolist()) - {MISSING}
    world_size = int(profiles.array("world_size").max(initial=MISSING))
    members = {rank for group in matching_of(trace).groups for rank in group.ranks} if trace.has("comms") else set()
    missing = tuple(sorted((set(range(max(world_size, 0))) | members) - traced))
    if not missing:
        return
    n_ranks = len(missing) + len(traced)
    is_accident = len(missing) < len(traced)
    yield Finding(
        severity="warning" if is_accident else "info",
        certainty="certain",
        title=f"no profile from {ranks_phrase(missing)} (the job has {n_ranks} ranks)",
        ranks=missing,
        evidence=Evidence(
            notes=(f"{'this' if len(missing) == 1 else 'one of these'} may be the rank that the others wait for",),
            facts={"n_missing": len(missing), "n_traced": len(traced)},
        ),
        help="collect the traces of all nodes; profile all ranks to see which ranks wait for which",
    )


_DAY_NS = 86_400 * 10**9


class _Span(NamedTuple):
    file_id: int
    rank: int
    start_ns: int
    end_ns: int


@rule("D908", "profile-overlap", needs=("profiles",))
def profile_overlap(trace: Trace) -> Iterator[Finding | Effect]:
    """Traces that cannot come from one recording: two of one rank at the same time, or ranks at different times.

    What it means: a rank has several traces that overlap in time, so its time is counted twice; or its call numbers
    restart, which never happens within a run; or the traces are more than a day apart; or some ranks were recorded at a
    different time than most.

    Why it happens: traces of several runs or attempts in one folder, a trace that was exported twice, a file name with
    the wrong rank.

    What to do: keep the traces of each run in a separate folder.

    What could fool it: several consecutive windows of one rank are normal and not reported.
    """
    spans = _aligned_spans(trace)
    doubled = _overlapping(spans)
    restarted = _restarting(trace) if trace.has("comms") else ()
    distant = _distant(spans)
    apart = _apart(spans)
    problems = (
        (doubled, f"two traces of {ranks_phrase(doubled)} overlap in time", "their time is counted twice"),
        (restarted, f"the traces of {ranks_phrase(restarted)} come from different runs", "their call numbers restart"),
        (distant, f"the traces of {ranks_phrase(distant)} come from different runs", "they are more than a day apart"),
        (
            apart,
            f"{ranks_phrase(apart)} {'was' if len(apart) == 1 else 'were'} recorded at a different time than the rest",
            "they cannot be compared",
        ),
    )
    for ranks, title, consequence in problems:
        if ranks:
            yield Finding(
                severity="warning",
                certainty="certain",
                title=f"{title}: {consequence}",
                ranks=ranks,
                evidence=Evidence(certain=_files_of(trace, spans, ranks)),
                help="keep the traces of each run in a separate folder",
            )
            return


def _aligned_spans(trace: Trace) -> list[_Span]:
    spans = []
    clocks = matching_of(trace).clocks if trace.has("comms") else None
    for row in trace.table("profiles").rows():
        clock = clock_of(trace, row["file_id"], row["rank"]) if clocks else MISSING
        start, end = (np.array([row[name]], np.int64) for name in ("start_ns", "end_ns"))
        if clocks and clock != MISSING:
            start, end = (times - clocks.correction_ns(np.array([clock]), times) for times in (start, end))
        spans.append(_Span(row["file_id"], row["rank"], int(start[0]), int(end[0])))
    return sorted(spans, key=lambda span: (span.rank, span.start_ns))


def _overlapping(spans: list[_Span]) -> tuple[int, ...]:
    doubled = {one.rank for one, two in pairwise(spans) if one.rank == two.rank and two.start_ns < one.end_ns}
    return tuple(sorted(doubled))


def _distant(spans: list[_Span]) -> tuple[int, ...]:
    """Ranks with traces so far apart that no run records both, whatever its schedule."""
    far = {one.rank for one, two in pairwise(spans) if one.rank == two.rank and two.start_ns - one.end_ns > _DAY_NS}
    return tuple(sorted(far))


def _restarting(trace: Trace) -> tuple[int, ...]:
    """Ranks where a later trace has a smaller sequence number in a group than an earlier one."""
    sql = """
        WITH seen AS (
            SELECT rank, file_id, coalesce(group_name, '') AS name, coalesce(group_ranks, '') AS ranks, is_p2p,
                   min(start_ns) AS start_ns, min(seq) AS lowest, max(seq) AS highest
            FROM comms WHERE seq IS NOT NULL GROUP BY ALL
        )
        SELECT DISTINCT a.rank FROM seen AS a JOIN seen AS b USING (rank, name, ranks, is_p2p)
        WHERE a.start_ns < b.start_ns AND b.lowest <= a.highest ORDER BY a.rank
    """
    return tuple(rank for (rank,) in trace.sql(sql).rows())


def _apart(spans: list[_Span]) -> tuple[int, ...]:
    """Ranks that have no trace in the time in which most ranks were recorded."""
    stretches: list[tuple[int, set[int]]] = []
    for span in sorted(spans, key=lambda span: span.start_ns):
        if stretches and span.start_ns < stretches[-1][0]:
            stretches[-1] = (max(stretches[-1][0], span.end_ns), stretches[-1][1] | {span.rank})
        else:
            stretches.append((span.end_ns, {span.rank}))
    if len(stretches) < 2:
        return ()
    all_ranks = {span.rank for span in spans}
    return tuple(sorted(all_ranks - max((ranks for _, ranks in stretches), key=len)))


def _files_of(trace: Trace, spans: list[_Span], ranks: tuple[int, ...]) -> tuple[str, ...]:
    files = trace.table("files")
    path_of = dict(zip(files.array("file_id").tolist(), files.text("path").tolist(), strict=True))
    return tuple(
        f"rank {span.rank}: {path_of.get(span.file_id, f'file {span.file_id}')}, "
        f"{_date(span.start_ns)}, {format_duration(span.end_ns - span.start_ns)} long"
        for span in [span for span in spans if span.rank in ranks][:_MAX_SHOWN]
    )


def _date(moment_ns: int) -> str:
    return datetime.fromtimestamp(moment_ns // 10**9, timezone.utc).strftime("%Y-%m-%d %H:%M:%S UTC")
