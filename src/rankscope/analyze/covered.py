"""What a capture covers: ranks, hosts, times and kinds of traces."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import msgspec

from rankscope.analyze.manifests import nodes_of
from rankscope.analyze.measured import measured
from rankscope.model.finding import Capture, NodeRef, WorldRef
from rankscope.model.tables import SCHEMA, Trace, distinct

_NOT_OF_THE_JOB = ("ignored", "other-world")  # files.status of what is not counted


def describe_worlds(worlds: Sequence[Trace], shown: int | None) -> Capture:
    """The capture of the world that is shown, with the files of all and a word on each."""
    captures = [describe_capture(world) for world in worlds]
    names = [(world.world.number, world.world.name) if world.world else (0, "") for world in worlds]
    refs = [
        WorldRef(number, name, each.ranks, each.world_size, each.n_calls, each.first_ns, each.last_ns)
        for (number, name), each in zip(names, captures, strict=True)
    ]
    chosen = next((index for index, (number, _) in enumerate(names) if number == shown), 0)
    sources = sum((Counter(capture.sources) for capture in captures), Counter[str]())
    return msgspec.structs.replace(captures[chosen], sources=dict(sources), world=names[chosen][0], worlds=tuple(refs))


def describe_capture(trace: Trace) -> Capture:
    files, ranks, calls = trace.table("files"), trace.table("ranks"), trace.table("collectives")
    profiles, logs = trace.table("profiles"), trace.table("compile_logs")
    collected = [trace.table(name) for name in ("manifests", "metrics", "thread_stacks")]
    present = _present_ranks(trace)
    members = set(trace.table("group_members").array("rank").tolist())
    sources: dict[str, int] = {}
    for name, status in zip(files.text("source").tolist(), files.text("status").tolist(), strict=True):
        if name and status not in _NOT_OF_THE_JOB:
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
        nodes=tuple(NodeRef(*node) for node in nodes_of(trace)),
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


def _present_ranks(trace: Trace) -> set[int]:
    """The ranks that any source has something of, sources of other packages included."""
    sources = (spec for spec in SCHEMA.values() if spec.is_source and spec.storage == "memory")
    tables = [trace.table(spec.name) for spec in sources if "rank" in spec.kinds]
    return {rank for table in tables for rank in distinct(table.array("rank")).tolist() if rank >= 0}


def _steps(trace: Trace) -> tuple[int, int | None]:
    if not trace.has("steps"):
        return 0, None
    per_rank = "SELECT count(*) AS n, median(duration_ns) AS middle FROM steps GROUP BY rank"
    sql = f"SELECT max(n), median(middle)::BIGINT FROM ({per_rank})"
    [(n_steps, step_ns)] = trace.sql(sql).rows()
    return n_steps, step_ns
