"""The order of the stages: load(paths) -> Trace, diagnose(trace) -> Report. Known only here."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from rankscope.analyze import run_rules
from rankscope.analyze.compile import compile_table_makers
from rankscope.analyze.compile.runs import settle_compile_logs
from rankscope.analyze.derived import derived
from rankscope.analyze.hangs import hang_table_makers
from rankscope.analyze.hangs.clocks import align_clocks
from rankscope.analyze.hangs.groups import resolve_groups
from rankscope.analyze.hangs.matching import match_collectives
from rankscope.analyze.hangs.view import signatures_of
from rankscope.analyze.link import link_table_makers
from rankscope.analyze.measured import measured
from rankscope.analyze.metrics import table_makers
from rankscope.analyze.worlds import Judged, merge_worlds
from rankscope.model.finding import SCHEMA_NAME, Capture, Report, WorldRef
from rankscope.model.tables import Table, Trace
from rankscope.read.capture import Options, Progress, ReadSettings, read_capture
from rankscope.read.worlds import OTHER_WORLD

if TYPE_CHECKING:
    from typing import Unpack


def load(
    paths: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    *,
    transform: Callable[[Trace], None] | None = None,
    **settings: Unpack[ReadSettings],
) -> Trace:
    """Reads every trace at the given paths and matches what belongs together.

    `transform` may change the tables as they were read, before groups are resolved. `may_limit_memory` is for programs
    that own their process: while it reads, a hostile file then cannot exhaust the memory.
    `cache` is the folder that keeps the tables of large traces for the next run; without it they live as long as this
    process. `with_stacks` also reads the Python functions of profiler traces.
    """
    given = [paths] if isinstance(paths, (str, os.PathLike)) else paths
    options = Options(**settings)
    trace = read_capture([os.fspath(path) for path in given], options)
    for world in (trace, *trace.beside):
        _prepare(world, transform, options.progress)
    return trace


def _prepare(trace: Trace, transform: Callable[[Trace], None] | None, progress: Progress | None) -> None:
    trace.makers = table_makers() | hang_table_makers() | compile_table_makers() | link_table_makers()
    if transform is not None:
        transform(trace)
    for done, (what, stage) in enumerate(_STAGES):
        if progress is not None:
            progress(done, len(_STAGES), what)
        trace.tables.update(stage(trace))


_STAGES: tuple[tuple[str, Callable[[Trace], dict[str, Table]]], ...] = (
    ("sorting compile logs", settle_compile_logs),
    ("resolving process groups", resolve_groups),
    ("aligning clocks", align_clocks),
    ("matching collectives", lambda trace: match_collectives(trace, derived(trace, signatures_of))),
)


def diagnose(trace: Trace, progress: Progress | None = None) -> Report:
    """Runs all rules; the first finding is the root cause. Worlds that were alive side by side are all judged."""
    worlds = [Judged(world, *run_rules(world, progress)) for world in (trace, *trace.beside)]
    findings, effects, checks = merge_worlds(worlds) if trace.beside else worlds[0][1:]
    capture = describe_capture(trace)
    if trace.beside:
        capture = _describe_worlds(worlds, findings[0].evidence.capture if findings else None)
    return Report(SCHEMA_NAME, capture, tuple(findings), tuple(checks), tuple(effects))


def shown_world(trace: Trace, report: Report) -> Trace:
    """The world that the report describes: that of the root cause."""
    worlds = (trace, *trace.beside)
    return next((each for each in worlds if each.world and each.world.number == report.capture.world), trace)


def _describe_worlds(worlds: Sequence[Judged], shown: int | None) -> Capture:
    """The capture of the world that is shown, with the files of all and a word on each."""
    captures = {world.number: describe_capture(world.trace) for world in worlds}
    refs = [
        WorldRef(world.number, world.name, each.ranks, each.world_size, each.n_calls, each.first_ns, each.last_ns)
        for world, each in zip(worlds, captures.values(), strict=True)
    ]
    shown = worlds[0].number if shown is None else shown
    sources = sum((Counter(capture.sources) for capture in captures.values()), Counter[str]())
    return msgspec.structs.replace(captures[shown], sources=dict(sources), world=shown, worlds=tuple(refs))


def describe_capture(trace: Trace) -> Capture:
    files, ranks, calls = trace.table("files"), trace.table("ranks"), trace.table("collectives")
    profiles, logs, executions = trace.table("profiles"), trace.table("compile_logs"), trace.table("et_traces")
    collected = [trace.table(name) for name in ("manifests", "metrics", "thread_stacks")]
    told = [rank for table in (ranks, profiles, logs, executions) for rank in table.array("rank").tolist()]
    told += [rank for table in collected for rank in np.unique(table.array("rank")).tolist()]
    present = {rank for rank in told if rank >= 0}
    members = set(trace.table("group_members").array("rank").tolist())
    sources: dict[str, int] = {}
    for name, status in zip(files.text("source").tolist(), files.text("status").tolist(), strict=True):
        if name and status not in ("ignored", OTHER_WORLD):
            sources[name] = sources.get(name, 0) + 1
    moments = [calls.array("created_ns"), profiles.array("start_ns"), profiles.array("end_ns")]
    moments += [logs.array("first_ns"), logs.array("last_ns")]
    moments += [table.array("time_ns")[table.array("time_ns") > 0] for table in collected[1:]]
    seen = [array for array in moments if len(array)]
    hosts = {host for table in (ranks, profiles, collected[0]) for host in table.text("host").tolist()}
    world_size = max(int(table.array("world_size").max(initial=0)) for table in (profiles, collected[0]))
    n_steps, step_ns = _steps(measured(trace))
    return Capture(
        paths=trace.paths,
        ranks=tuple(sorted(present)),
        world_size=max(world_size, max(present | members, default=-1) + 1),
        sources=sources,
        hosts=tuple(sorted(filter(None, hosts))),
        n_groups=len(trace.table("groups")),
        n_calls=len(calls),
        n_steps=n_steps,
        step_ns=step_ns,
        devices=tuple(sorted({name for name in trace.table("devices").text("name").tolist() if name})),
        first_ns=min(int(array.min()) for array in seen) if seen else None,
        last_ns=max(int(array.max()) for array in seen) if seen else None,
    )


def _steps(trace: Trace) -> tuple[int, int | None]:
    if not trace.has("steps"):
        return 0, None
    per_rank = "SELECT count(*) AS n, median(duration_ns) AS middle FROM steps GROUP BY rank"
    sql = f"SELECT max(n), median(middle)::BIGINT FROM ({per_rank})"
    [(n_steps, step_ns)] = trace.sql(sql).rows()
    return n_steps, step_ns
