"""compile_ledger: what compiling cost each rank, by function of the user's code and by phase."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from rankscope.analyze.compile.sites import Key, Site, key_of, keys_of, sites_of
from rankscope.analyze.derived import table
from rankscope.model.tables import MISSING, Array, Table, Text, Trace

PHASES = ("dynamo_ns", "aot_ns", "inductor_ns", "code_gen_ns", "triton_ns", "autotune_ns")
# Where a log has spans but no metrics: the span that holds all the time of a phase, its callees' included.
_SPANS = {
    "total_ns": ("dynamo", "entire_frame_compile", "entire_backward_compile", "compiled_autograd"),
    "aot_ns": ("backend_compile", "create_aot_dispatcher_function"),
    "inductor_ns": ("inductor_compile", "compile_fx_inner"),
    "code_gen_ns": ("code_gen",),
}


class Times(NamedTuple):
    """By row of `compilations`, in nanoseconds; a phase includes those that follow it."""

    total: Array
    aot: Array
    inductor: Array
    code_gen: Array
    triton: Array
    autotune: Array


@table("compile_ledger", needs=("compilations",))
def compile_ledger(trace: Trace) -> Table:
    """One row per rank, run and function, the most expensive first. The phases of a row add up to its total.

    Functions whose time is not in the log have no row: a text log names compilations, not what they cost.
    """
    compilations, sites = trace.table("compilations"), sites_of(trace)
    times = _times(trace, compilations)
    file_ids = compilations.array("file_id").tolist()
    runs = [sites.run(file_id) for file_id in file_ids]
    ranks = compilations.array("rank").tolist()
    groups: dict[tuple[int, int, Site], int] = {}
    keys = zip(runs, ranks, sites.of_row, strict=True)
    group_of = np.array([groups.setdefault(key, len(groups)) for key in keys], np.int64)

    def summed(values: Array) -> Array:
        totals = np.zeros(len(groups), np.int64)
        np.add.at(totals, group_of, values)
        return totals

    phase, is_again = compilations.text("phase"), compilations.array("frame_compile_id") > 0
    is_forward = phase.equals("forward")
    breaks = _breaks_by_group(trace, groups)
    columns: dict[str, Array | Text] = {
        "rank": np.array([rank for _, rank, _ in groups], np.int32),
        "run": np.array([run for run, _, _ in groups], np.int32),
        "file": Text.encode(site.file for _, _, site in groups),
        "line": np.array([site.line for _, _, site in groups], np.int32),
        "function": Text.encode(site.function for _, _, site in groups),
        "n_compilations": summed(is_forward),
        "n_recompiles": summed(is_forward & is_again),
        "n_failed": summed(compilations.text("status").equals("failed")),
        "n_graph_breaks": np.array([breaks.get(group, 0) for group in groups.values()], np.int64),
        "total_ns": summed(times.total),
        "recompile_ns": summed(np.where(is_again, times.total, 0)),
        **{name: summed(values) for name, values in _exclusive(times).items()},
        **{f"{name}_ns": summed(np.where(phase.equals(name), times.total, 0)) for name in ("forward", "backward")},
        "runtime_ns": summed(np.where(phase.equals("runtime"), times.total, 0)),
    }
    ledger = Table("compile_ledger", columns)
    total = ledger.array("total_ns")
    order = np.argsort(-total, kind="stable")
    return ledger.take(order[total[order] > 0])


def total_times(trace: Trace) -> Array:
    """How long each row of `compilations` took in total, if the log says so; else 0."""
    compilations = trace.table("compilations")
    return _known(compilations, "duration_ns", "dynamo_ns", "inductor_ns")


def _known(compilations: Table, *names: str) -> Array:
    """The first of the columns that has a value."""
    values = np.full(len(compilations), MISSING, np.int64)
    for name in names:
        values = np.where(values < 0, compilations.array(name), values)
    return np.maximum(values, 0)


def _times(trace: Trace, compilations: Table) -> Times:
    total = total_times(trace)
    aot = _known(compilations, "aot_ns", "backend_ns", "inductor_ns")
    inductor, code_gen = _known(compilations, "inductor_ns"), _known(compilations, "code_gen_ns")
    # Backward and runtime records speak of what happens inside the backend alone.
    aot = np.where(compilations.text("phase").equals("forward"), aot, total)
    file_ids = compilations.array("file_id")
    untold = ~np.isin(file_ids, file_ids[total > 0])
    if untold.any() and trace.has("compile_events"):
        spans = _span_times(trace)
        rows = [spans.get(key, {}) for key in keys_of(compilations)]
        span_columns = [np.array([row.get(name, 0) for row in rows], np.int64) for name in _SPANS]
        total, aot, inductor, code_gen = (
            np.where(untold, span, measured)
            for span, measured in zip(span_columns, (total, aot, inductor, code_gen), strict=True)
        )
    triton, autotune = _known(compilations, "triton_ns"), _known(compilations, "autotune_ns")
    return Times(total, aot, inductor, code_gen, triton, autotune)


def _span_times(trace: Trace) -> dict[Key, dict[str, int]]:
    """For each compilation in a log without metrics: the longest span of those that represent a phase."""
    names = {span: phase for phase, spans in _SPANS.items() for span in spans}
    longest: dict[Key, dict[str, int]] = {}
    events = trace.table("compile_events")
    is_wanted = np.isin(events.text("name").to_objects(), list(names))
    for event in events.take(np.flatnonzero(is_wanted)).rows():
        phases = longest.setdefault(key_of(event), {})
        phase = names[event["name"]]
        phases[phase] = max(phases.get(phase, 0), event["duration_ns"])
    return longest


def _exclusive(times: Times) -> dict[str, Array]:
    """Each phase without those that follow it. They are first made to fit into each other: clocks differ a little,
    and for a graph that came from a cache only some of the phases are logged."""
    total = times.total
    triton = np.minimum(times.triton, total)
    code_gen = np.clip(times.code_gen, triton, total)
    inductor = np.clip(times.inductor, code_gen, total)
    aot = np.clip(times.aot, inductor, total)
    # Kernels are tuned while Inductor lowers the graph; what does not fit there was tuned while generating code.
    tuned_lowering = np.minimum(times.autotune, inductor - code_gen)
    room = np.maximum(aot - inductor, 0)
    tuned_late = np.minimum(times.autotune - tuned_lowering, code_gen - triton)
    tuned_after = np.minimum(times.autotune - tuned_lowering - tuned_late, room)
    return {
        "dynamo_ns": total - aot,
        "aot_ns": aot - inductor - tuned_after,
        "inductor_ns": inductor - code_gen - tuned_lowering,
        "code_gen_ns": code_gen - triton - tuned_late,
        "triton_ns": triton,
        "autotune_ns": tuned_lowering + tuned_late + tuned_after,
    }


def _breaks_by_group(trace: Trace, groups: dict[tuple[int, int, Site], int]) -> dict[int, int]:
    sites, breaks = sites_of(trace), trace.table("graph_breaks")
    counts: dict[int, int] = {}
    for key in keys_of(breaks):
        site = sites.of_key.get(key)
        group = groups.get((sites.run(key[0]), key[1], site)) if site else None
        if group is not None:
            counts[group] = counts.get(group, 0) + 1
    return counts
