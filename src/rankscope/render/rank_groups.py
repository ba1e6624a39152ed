"""Which ranks of one run did the same with the compiler, and where the others first differ.

Logs of different runs are never compared, and records that belong to no compilation
say nothing about what a rank compiled.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any, Literal, NamedTuple, get_args

import msgspec
import numpy as np

from rankscope.model.code_collectives import code_calls
from rankscope.model.numbers import integer
from rankscope.model.tables import Table, Trace

Aspect = Literal["compilations", "caches", "collectives", "tensors", "executions"]
ASPECTS: tuple[Aspect, ...] = get_args(Aspect)
# The tables that may hold no row for a graph that came out of a cache, and the artifact that fills each.
_LISTINGS: dict[Aspect, tuple[str, str]] = {
    "collectives": ("compile_collectives", "inductor_collective_schedule"),
    "tensors": ("compile_estimates", "inductor_runtime_and_tensor_meta"),
}


class Step(NamedTuple):
    """One thing that a rank did, as its peers should have done it too."""

    compile_id: str
    what: str


class RankGroup(NamedTuple):
    """Ranks that did the same. The largest group has the letter A."""

    letter: str
    ranks: tuple[int, ...]
    steps: tuple[Step, ...]


class Difference(NamedTuple):
    """The first step at which a group differs from its peers; None where one of them has no more steps."""

    position: int
    peers: Step | None
    own: Step | None


class GraphEstimate(NamedTuple):
    """How long the compiler expects a graph to take, on the fastest and on the slowest rank."""

    compile_id: str
    n_ranks: int
    fastest_rank: int
    fastest_ns: int
    slowest_rank: int
    slowest_ns: int


def compile_runs(trace: Trace) -> dict[int, tuple[int, ...]]:
    """The runs of the job, and the ranks that left a log in each. A log without a rank is not compared."""
    ranks: dict[int, set[int]] = {}
    for log in trace.table("compile_logs").rows():
        if log["source"] == "trace" and log["rank"] >= 0:
            ranks.setdefault(log["run"], set()).add(log["rank"])
    return {run: tuple(sorted(ranks[run])) for run in sorted(ranks)}


def rank_groups(trace: Trace, run: int, aspect: Aspect) -> tuple[RankGroup, ...]:
    """Ranks that are alike in one respect, the largest group first. Empty when the logs hold nothing about it."""
    key = (rank_groups, run, aspect)
    if key not in trace.derived:
        steps = _STEPS[aspect](trace, run)
        trace.derived[key] = _grouped(steps) if any(steps.values()) else ()
    groups: tuple[RankGroup, ...] = trace.derived[key]
    return groups


def first_difference(peers: RankGroup, odd: RankGroup) -> Difference:
    n_shared = min(len(peers.steps), len(odd.steps))
    same = (left == right for left, right in zip(peers.steps, odd.steps, strict=False))
    position = next((index for index, is_same in enumerate(same) if not is_same), n_shared)
    theirs, ours = _at(peers.steps, position), _at(odd.steps, position)
    if theirs and ours and theirs.compile_id != ours.compile_id:
        # What stands there is not what the other side did instead, where the other side has it too, only later.
        is_only_theirs = all(step.compile_id != theirs.compile_id for step in odd.steps)
        is_only_ours = all(step.compile_id != ours.compile_id for step in peers.steps)
        if is_only_theirs != is_only_ours:
            return Difference(position, theirs if is_only_theirs else None, ours if is_only_ours else None)
    return Difference(position, theirs, ours)


def graph_estimates(trace: Trace, run: int) -> list[GraphEstimate]:
    """Per graph that several ranks compiled; graphs are identified by their compile id."""
    sums: dict[str, dict[int, int]] = {}
    rows = run_rows(trace, run, "compile_estimates")
    columns = (rows.array("rank").tolist(), rows.text("compile_id").tolist(), rows.array("estimate_ns").tolist())
    for rank, compile_id, nanoseconds in zip(*columns, strict=True):
        estimates = sums.setdefault(compile_id, {})
        estimates[rank] = estimates.get(rank, 0) + max(nanoseconds, 0)
    return [_estimate(compile_id, sums[compile_id]) for compile_id in sorted(sums, key=compile_order)]


def run_rows(trace: Trace, run: int, table: str) -> Table:
    """The rows of one run that have a rank; where a rank has several logs, the older one's rows come first."""
    logs = trace.table("compile_logs")
    chosen = (logs.array("run") == run) & logs.text("source").equals("trace") & (logs.array("rank") >= 0)
    oldest_first = np.flatnonzero(chosen)[np.argsort(logs.array("first_ns")[chosen], kind="stable")]
    files = logs.array("file_id")[oldest_first]
    rows = trace.table(table)
    number_of = np.full(int(max(rows.array("file_id").max(initial=-1), files.max(initial=-1))) + 2, len(files))
    number_of[files] = np.arange(len(files))
    numbers = number_of[rows.array("file_id")]
    order = np.argsort(numbers, kind="stable")
    return rows.take(order[numbers[order] < len(files)])


def compile_order(compile_id: str) -> tuple[list[int], str]:
    """0/2 before 0/10."""
    return [integer(number) for number in re.findall(r"\d+", compile_id)], compile_id


def _estimate(compile_id: str, sums: Mapping[int, int]) -> GraphEstimate:
    ranks = sorted(sums)
    fastest, slowest = min(ranks, key=sums.__getitem__), max(ranks, key=sums.__getitem__)
    return GraphEstimate(compile_id, len(ranks), fastest, sums[fastest], slowest, sums[slowest])


def _at(steps: tuple[Step, ...], position: int) -> Step | None:
    return steps[position] if position < len(steps) else None


def _grouped(steps_of: Mapping[int, tuple[Step, ...]]) -> tuple[RankGroup, ...]:
    ranks: dict[tuple[Step, ...], list[int]] = {}
    for rank in sorted(steps_of):
        ranks.setdefault(steps_of[rank], []).append(rank)
    largest_first = sorted(ranks.items(), key=lambda item: (-len(item[1]), item[1]))
    return tuple(
        RankGroup(_letter(index), tuple(members), steps) for index, (steps, members) in enumerate(largest_first)
    )


def _letter(index: int) -> str:
    """A, B, ..., Z, AA, AB, ..."""
    letters = ""
    while index >= 0:
        letters = chr(ord("A") + index % 26) + letters
        index = index // 26 - 1
    return letters


def _compiled_ids(trace: Trace, run: int) -> dict[int, set[str]]:
    rows = run_rows(trace, run, "compile_records")
    ids = rows.text("compile_id")
    compiled: dict[int, set[str]] = {rank: set() for rank in compile_runs(trace).get(run, ())}
    pairs = np.unique(rows.array("rank") * np.int64(len(ids.values)) + ids.codes)
    for pair in pairs.tolist():
        rank, code = divmod(pair, len(ids.values))
        if ids.values[code]:
            compiled.setdefault(rank, set()).add(ids.values[code])
    return compiled


def _compilation_steps(trace: Trace, run: int) -> dict[int, tuple[Step, ...]]:
    """Restarted attempts are not compared: each log has the compile id once, however often it was tried."""
    return {
        rank: tuple(Step(compile_id, "compiled") for compile_id in sorted(ids, key=compile_order))
        for rank, ids in _compiled_ids(trace, run).items()
    }


def _cache_steps(trace: Trace, run: int) -> dict[int, tuple[Step, ...]]:
    rows = run_rows(trace, run, "cache_events")
    what = (f"{cache} {outcome}" for cache, outcome in _zipped(rows, "cache", "outcome"))
    return _sequences(rows, what, dict.fromkeys(compile_runs(trace).get(run, ()), ()))


def _execution_steps(trace: Trace, run: int) -> dict[int, tuple[Step, ...]]:
    """Only for the ranks that recorded their order: torch records it only on request."""
    rows = run_rows(trace, run, "graph_executions")
    return _sequences(rows, ("run" for _ in range(len(rows))), {})


def _sequences(rows: Table, what: Iterator[str], others: Mapping[int, tuple[Step, ...]]) -> dict[int, tuple[Step, ...]]:
    steps: dict[int, list[Step]] = {}
    ranks = rows.array("rank").tolist()
    for rank, compile_id, done in zip(ranks, rows.text("compile_id").tolist(), what, strict=True):
        steps.setdefault(rank, []).append(Step(compile_id, done))
    return {**others, **{rank: tuple(listed) for rank, listed in steps.items()}}


def _zipped(rows: Table, *columns: str) -> Iterator[tuple[str, ...]]:
    return zip(*(rows.text(column).tolist() for column in columns), strict=True)


def _collective_steps(trace: Trace, run: int) -> dict[int, tuple[Step, ...]]:
    rows = run_rows(trace, run, "compile_collectives")
    return _listed_steps(trace, run, "collectives", rows.text("op").tolist())


def _tensor_steps(trace: Trace, run: int) -> dict[int, tuple[Step, ...]]:
    rows = run_rows(trace, run, "compile_estimates")
    shown = [tensors_phrase(outputs) for outputs in rows.text("outputs").values]
    return _listed_steps(trace, run, "tensors", [shown[code] for code in rows.text("outputs").codes.tolist()])


def _listed_steps(trace: Trace, run: int, aspect: Aspect, what: list[str]) -> dict[int, tuple[Step, ...]]:
    """Steps per graph. Graphs that hold none, and graphs that a rank took from a cache unseen, make no difference."""
    table, artifact = _LISTINGS[aspect]
    rows = run_rows(trace, run, table)
    if not len(rows):
        return {}
    listed: dict[str, dict[int, tuple[str, ...]]] = {}
    for rank, compile_id in _seen_listings(trace, run, artifact):
        listed.setdefault(compile_id, {})[rank] = ()
    for rank, compile_id, done in zip(rows.array("rank").tolist(), rows.text("compile_id").tolist(), what, strict=True):
        of_compilation = listed.setdefault(compile_id, {})
        of_compilation[rank] = (*of_compilation.get(rank, ()), done)
    compiled = _compiled_ids(trace, run)
    steps: dict[int, list[Step]] = {rank: [] for rank in compiled}
    for compile_id in sorted(listed, key=compile_order):
        usual = Counter(listed[compile_id].values()).most_common(1)[0][0]
        for rank, ids in compiled.items():
            if compile_id in ids:
                own_steps = listed[compile_id].get(rank, usual)
                steps[rank] += (Step(compile_id, done) for done in own_steps)
    return {rank: tuple(of_compilation) for rank, of_compilation in steps.items()}


def _seen_listings(trace: Trace, run: int, artifact: str) -> Iterator[tuple[int, str]]:
    """(rank, compile id) of the graphs whose steps were logged, be it that there are none.

    A compiler that finds no collective logs no schedule, but the generated code shows it.
    """
    rows = run_rows(trace, run, "compile_records")
    is_listing = rows.text("kind").equals("artifact") & rows.text("name").equals(artifact)
    if artifact == "inductor_collective_schedule":
        readable = code_calls(trace)
        code = np.flatnonzero(rows.text("kind").equals("inductor_output_code"))
        places = zip(rows.array("file_id")[code].tolist(), rows.array("record")[code].tolist(), strict=True)
        is_listing[[row for row, listing in zip(code.tolist(), places, strict=True) if listing in readable]] = True
    seen = rows.take(np.flatnonzero(is_listing))
    return zip(seen.array("rank").tolist(), seen.text("compile_id").tolist(), strict=True)


def tensors_phrase(outputs: str) -> str:
    """`float16[1024, 8] stride [8, 1]`, of the JSON in compile_estimates.outputs; outputs without a type are none."""
    try:
        tensors = msgspec.json.decode(outputs or "[]", type=list[dict[str, Any]])
    except msgspec.DecodeError:
        return outputs
    return ", ".join(
        f"{tensor['dtype']}{_sizes(tensor.get('shape'))} stride {_sizes(tensor.get('stride'))}"
        for tensor in tensors
        if tensor.get("dtype")
    )


def _sizes(sizes: object) -> str:
    return "[" + ", ".join(map(str, sizes)) + "]" if isinstance(sizes, list) else "[?]"


_STEPS = {
    "compilations": _compilation_steps,
    "caches": _cache_steps,
    "collectives": _collective_steps,
    "tensors": _tensor_steps,
    "executions": _execution_steps,
}
