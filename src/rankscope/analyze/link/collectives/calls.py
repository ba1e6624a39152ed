"""The nodes of execution traces that call a collective, each call once, and what they say about it.

NCCL's calls are the nodes record_param_comms, which describe themselves. Other backends (gloo) leave the operators of
torch's library of collectives, c10d::..., and what these were given.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

import numpy as np

from rankscope.analyze.derived import derived
from rankscope.analyze.link.collectives.sql import DESCRIBED, FUNCTIONAL, GLOO, LIBRARY, RECORDED
from rankscope.analyze.link.nodes import marked, nearest_above, nodes_of
from rankscope.analyze.path.work import Timeline, numbered
from rankscope.model.tables import MISSING, Array, Trace


@dataclass(frozen=True)
class Calls:
    """Nodes that have to do with collectives, in the order of their places among all nodes."""

    place: Array
    origin: Array
    file_id: Array
    rank: Array
    node_id: Array
    thread: Array
    turn: Array  # grows in the order in which the nodes of a thread began
    op: Array
    dtype: Array
    n_in: Array
    n_out: Array
    n_bytes: Array
    group_name: Array  # empty when not recorded
    group_size: Array
    first_rank: Array  # with the stride: the members, where they are evenly spaced
    stride: Array
    partner: Array  # root or peer, by its number in the group
    tag: Array
    seq: Array

    def __len__(self) -> int:
        return len(self.place)

    def take(self, rows: Array) -> Calls:
        return Calls(*(getattr(self, field.name)[rows] for field in fields(self)))


@dataclass(frozen=True)
class Called:
    """The calls, and for nodes what they belong to."""

    calls: Calls
    call_of_node: Array  # per node of all traces: the call in or around it; MISSING when there is none
    runs: Calls  # what gloo did on threads of its own
    call_of_run: Array  # MISSING for a part of something else


def called(trace: Trace) -> Called:
    return derived(trace, _find_calls)


def _find_calls(trace: Trace) -> Called:
    rows = _load(trace)
    parent = nodes_of(trace).parent
    recorded, library, functional, gloo = (
        np.flatnonzero(rows.origin == origin) for origin in (RECORDED, LIBRARY, FUNCTIONAL, GLOO)
    )
    # A barrier of NCCL calls all_reduce, which describes itself as well; both are one call.
    within_recorded = _row_above(rows, parent, recorded) != MISSING
    recorded, library = recorded[~within_recorded[recorded]], library[~within_recorded[library]]
    around = _row_above(rows, parent, library)[recorded]
    around[rows.op[around] != rows.op[recorded]] = MISSING
    rows = _with_tags(rows, recorded, around)
    rows = _with_groups(rows, library, _row_above(rows, parent, functional))
    calls = rows.take(np.sort(np.concatenate((recorded, np.setdiff1d(library, around)))))
    runs = rows.take(gloo)
    return Called(calls, _call_of_node(parent, calls), runs, _calls_of_runs(calls, runs))


def _row_above(calls: Calls, parent: Array, rows: Array) -> Array:
    """For each row of `found` the nearest one of the given rows that is above it by parents."""
    row_of_node = np.full(len(parent) + 1, MISSING, np.int64)
    row_of_node[calls.place] = np.arange(len(calls))
    above: Array = row_of_node[nearest_above(parent, marked(len(parent), calls.place[rows]))[calls.place]]
    return above


def _with_tags(calls: Calls, recorded: Array, around: Array) -> Calls:
    """NCCL has no tags, but the operator that called it was given one."""
    tag = calls.tag.copy()
    tag[recorded] = np.where(around == MISSING, MISSING, calls.tag[around])
    return replace(calls, tag=tag)


def _with_groups(calls: Calls, library: Array, functional: Array) -> Calls:
    """Functional collectives name their group. Each makes one call: later ones below it only seem to be there.

    The stack of the observer is out of order while gloo works, see `_calls_of_runs`.
    """
    within = library[functional[library] != MISSING]
    within = within[np.lexsort((calls.turn[within], functional[within]))]
    _, first = np.unique(functional[within], return_index=True)
    made = within[first]
    made = made[calls.op[made] == calls.op[functional[made]]]
    group_name = calls.group_name.copy()
    group_name[made] = calls.group_name[functional[made]]
    return replace(calls, group_name=group_name)


def _call_of_node(parent: Array, calls: Calls) -> Array:
    """The call that a node is, or that is above it."""
    call = np.full(len(parent) + 1, MISSING, np.int64)
    call[calls.place] = np.arange(len(calls))
    within: Array = np.where(
        call[:-1] == MISSING, call[nearest_above(parent, marked(len(parent), calls.place))], call[:-1]
    )
    return within


def _calls_of_runs(calls: Calls, runs: Calls) -> Array:
    """gloo's annotations are made on the caller's thread, after the operator that asks for the work has begun.

    Whether they are below it or beside it is chance: the observer takes them off when the other thread is done.
    """
    thread = numbered(np.append(calls.file_id, runs.file_id), np.append(calls.thread, runs.thread))
    latest = Timeline(np.arange(len(calls)), thread[: len(calls)], calls.turn).last(thread[len(calls) :], runs.turn)
    asked = calls.op[latest] if len(calls) else np.empty(len(runs), object)
    # gloo has no reduce_scatter of its own: it reduces everything everywhere and copies a part.
    fits = (asked == runs.op) | ((asked == "reduce_scatter") & (runs.op == "all_reduce"))
    fits &= latest != MISSING
    return np.where(fits, latest, MISSING)


def _load(trace: Trace) -> Calls:
    names = [field.name for field in fields(Calls)]
    columns = trace.sql(f"SELECT {', '.join(names)} FROM ({DESCRIBED}) ORDER BY place").columns()
    return Calls(*(columns[name] for name in names))
