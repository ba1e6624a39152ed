"""The timeline of a whole capture: a process per rank with all that was recorded of it, in one file for Perfetto."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from rankscope import __version__
from rankscope.model.finding import Finding
from rankscope.model.tables import SCHEMA, Trace
from rankscope.render.timeline.axis import DERIVED, UNKNOWN_RANK, rank_clocks
from rankscope.render.timeline.chains import chain_collectives
from rankscope.render.timeline.chrome import LEAD_NS, EventFile, label
from rankscope.render.timeline.drawing import Cut, Drawing, draw_counters, draw_spans
from rankscope.render.timeline.markers import finding_events
from rankscope.render.timeline.sources import (
    COLLECTIVES,
    COMPILE,
    PROFILED_GROUPS,
    PROFILER_COUNTERS,
    PROFILER_SOURCES,
    RECORDED_COUNTERS,
    STACKS,
    STACKS_SQL,
    STEPS,
    STREAM_RANGES,
    STREAMS,
    recorded_sources,
)
from rankscope.render.timeline.thinning import least_durations
from rankscope.render.whole_file import whole_binary

_ROWS_AT_A_TIME = 1_000_000  # the ranks that are worked on together have about as many rows
_UNALIGNED = "clock not aligned"

Progress = Callable[[int, int, str], None]


@dataclass(frozen=True)
class Written:
    """What is in the file."""

    n_events: int
    counts: dict[str, int]
    ranks: tuple[int, ...]
    clocks: dict[int, dict[str, Any]]
    least_ns: dict[str, int]

    @property
    def unaligned(self) -> tuple[int, ...]:
        return tuple(rank for rank, clock in self.clocks.items() if not clock["is_aligned"])


def write_timeline(
    trace: Trace,
    findings: Sequence[Finding],
    path: str,
    cut: Cut,
    max_events: int,
    progress: Progress | None = None,
) -> Written:
    """Writes a trace whose axis was prepared. Times in the file are microseconds since the beginning of the capture."""
    clocks = {rank: clock for rank, clock in rank_clocks(trace).items() if cut.ranks is None or rank in cut.ranks}
    cut = replace(cut, least_ns=least_durations(trace, cut, max_events))
    n_chains, n_arrows = chain_collectives(trace, cut)
    counts = Counter(flows=n_chains)  # the numbers that are taken
    with whole_binary(path) as file:
        out = EventFile(file, {"displayTimeUnit": "ns"})
        drawing = Drawing(out, _track_names(trace), counts, set(clocks))
        out.write_events(_named_ranks(clocks))
        _draw(trace, cut, drawing, progress)
        out.write_events(finding_events(trace, findings, cut, sorted(drawing.processes)))
        out.write_events(_named_files(trace, sorted(drawing.processes - clocks.keys())))
        counts["flows"] += n_arrows - n_chains
        written = Written(out.n_events, dict(sorted(counts.items())), tuple(sorted(clocks)), clocks, dict(cut.least_ns))
        out.close({"otherData": _metadata(written, cut)})
    return written


def _draw(trace: Trace, cut: Cut, drawing: Drawing, progress: Progress | None) -> None:
    """Some ranks at a time, so that memory does not grow with their number."""
    trace.sql(STACKS_SQL)
    shared = {name: trace.sql(f"FROM {name}").columns() for name in ("timeline_chains", "timeline_recorded")}
    portions = list(_portions(trace, cut))
    n_ranks, n_drawn = sum(map(len, portions)), 0
    for ranks in portions:
        if progress is not None:
            progress(n_drawn, n_ranks, "writing the timeline, ranks")
        n_drawn += len(ranks)
        part = replace(cut, ranks=ranks)
        draw_spans(trace, recorded_sources(cut.axis), part, drawing)
        draw_counters(trace, RECORDED_COUNTERS, part, drawing)
        profiled = _only(trace, set(ranks))
        if profiled.parts or profiled.tables.keys() > {*DERIVED}:
            for name, rows in shared.items():
                profiled.sql(f"CREATE TEMP TABLE {name} AS FROM shared", shared=rows)
            draw_spans(profiled, PROFILER_SOURCES, part, drawing)
            draw_counters(profiled, PROFILER_COUNTERS, part, drawing)


def _portions(trace: Trace, cut: Cut) -> Iterator[list[int]]:
    """Ranks in order, MISSING for rows without one."""
    sizes: Counter[int] = Counter()
    for name in ("ranks", "collectives", "metrics", "thread_stacks", "compile_logs", *_in_memory(trace)):
        sizes.update(trace.table(name).array("rank").tolist())
    for parts in trace.parts.values():
        for part in parts:
            sizes[part.rank] += part.n_rows
    portion: list[int] = []
    n_rows = 0
    for rank in sorted(sizes if cut.ranks is None else sizes.keys() & set(cut.ranks)):
        if portion and n_rows + sizes[rank] > _ROWS_AT_A_TIME:
            yield portion
            portion, n_rows = [], 0
        portion.append(rank)
        n_rows += sizes[rank]
    if portion:
        yield portion


def _in_memory(trace: Trace) -> list[str]:
    """The profiler's tables that are no files, as those which were made by hand."""
    return [name for name in trace.tables if SCHEMA[name].storage == "parts" and name not in trace.parts]


def _only(trace: Trace, ranks: set[int]) -> Trace:
    """The profiler's rows of some ranks: no other file is opened."""
    parts = {name: [part for part in parts if part.rank in ranks] for name, parts in trace.parts.items()}
    return Trace(
        trace.paths,
        tables={name: trace.table(name) for name in (*DERIVED, *_in_memory(trace))},
        parts={name: chosen for name, chosen in parts.items() if chosen},
    )


def _track_names(trace: Trace) -> Callable[[int, int, int], str]:
    """What a track is called, by its section and the two keys."""
    groups = {
        key: f"collectives of {desc} ({name})" if desc and desc != name else f"collectives of {name or '?'}"
        for key, name, desc in trace.sql(
            f"SELECT group_id, name, description FROM groups UNION ALL "
            f'SELECT {PROFILED_GROUPS} + group_key, name, "desc" FROM comm_groups'
        ).rows()
    }
    fixed = {STEPS: "steps", COMPILE: "compile phases", STACKS: "thread stacks"}

    def name(section: int, key: int, second_key: int) -> str:
        if section in fixed:
            return fixed[section]
        if section == COLLECTIVES:
            return groups.get(key, "collectives of an unknown group")
        if section == STREAMS:
            return f"device {key}, stream {second_key}"
        return f"annotations of stream {key}" if section == STREAM_RANGES else f"thread {key}"

    return name


def _named_ranks(clocks: dict[int, dict[str, Any]]) -> Iterator[dict[str, Any]]:
    n_digits = len(str(max(clocks, default=0)))  # Perfetto sorts processes as text, whatever their sort index says
    for rank, clock in clocks.items():
        host = f" (host {clock['host']})" if clock["host"] else ""
        # Perfetto shows no labels: the name says it, too.
        unaligned = "" if clock["is_aligned"] else f", {_UNALIGNED}"
        yield label("process_name", rank, 0, name=f"rank {rank:0{n_digits}}{host}{unaligned}")
        yield label("process_sort_index", rank, 0, sort_index=rank)
        if unaligned:
            yield label("process_labels", rank, 0, labels=_UNALIGNED)


def _named_files(trace: Trace, processes: Sequence[int]) -> Iterator[dict[str, Any]]:
    paths = dict(
        zip(trace.table("files").array("file_id").tolist(), trace.table("files").text("path").tolist(), strict=True)
    )
    for pid in processes:
        file = os.path.basename(paths.get(pid - UNKNOWN_RANK, ""))
        yield label("process_name", pid, 0, name=f"unknown rank ({file})" if file else f"rank {pid}")
        yield label("process_sort_index", pid, 0, sort_index=pid)


def _metadata(written: Written, cut: Cut) -> dict[str, Any]:
    axis = cut.axis
    return {
        "writer": "rankscope",
        "version": __version__,
        "baseTimeNanoseconds": axis.base_ns - LEAD_NS,
        "sinceNanoseconds": cut.since_ns,
        "untilNanoseconds": cut.until_ns,
        "counts": {name: written.counts.get(name, 0) for name in ("spans", "instants", "counters", "flows")},
        "cut": {
            "shorterThanNanoseconds": written.least_ns,
            **{name: written.counts.get(name, 0) for name in ("left_out", "clamped", "crowded")},
        },
        "clocks": {str(rank): clock for rank, clock in written.clocks.items()},
    }
