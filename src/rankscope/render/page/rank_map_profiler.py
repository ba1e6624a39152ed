"""The cells of a map from profiler traces: all that was recorded has ended, so they show how late and how long."""

from __future__ import annotations

import numpy as np

from rankscope.model.tables import MISSING, Array, Trace
from rankscope.render.page import rank_map_data as data
from rankscope.render.page.rank_map_choices import Choice
from rankscope.render.page.rank_map_data import Matrix, levels
from rankscope.render.page.rank_map_recorder import ordinal_columns


def profiled_matrix(trace: Trace, choice: Choice, pool_numbers: Array) -> Matrix:
    """`pool_numbers`: per row of comm_matches its number in the pool of calls."""
    calls, matches = trace.table("comm_calls"), trace.table("comm_matches")
    ranks, group_of_row = choice.row_ranks
    keys = matches.array("group_key")
    position = np.full(max(int(keys.max(initial=0)), *(group.key for group in choice.groups)) + 2, MISSING)
    position[[group.key for group in choice.groups]] = np.arange(len(choice.groups))
    group = position[keys]
    chosen = np.flatnonzero((group >= 0) & (matches.array("is_p2p") == (choice.noun == "transfer")))
    starts_ns, numbers = matches.array("start_ns")[chosen], matches.array("seq")[chosen]
    seqs, columns = ordinal_columns(group[chosen], numbers, starts_ns, len(choice.groups))
    if (numbers < 0).any():  # a number that only some calls have would mislead
        seqs = np.arange(1, seqs.shape[1] + 1)[None, :]
    match_ids = matches.array("match_id")
    row_of_match = np.full(int(match_ids.max(initial=0)) + 2, MISSING, np.int64)
    row_of_match[match_ids[chosen]] = np.arange(len(chosen))
    place_of = np.full(int(max(ranks.max(initial=0), calls.array("rank").max(initial=0))) + 2, MISSING, np.int64)
    place_of[ranks] = np.arange(len(ranks))
    match, row = row_of_match[calls.array("match_id")], place_of[calls.array("rank")]
    rows = np.flatnonzero((match >= 0) & (row >= 0))
    cell = row[rows] * seqs.shape[1] + columns[match[rows]]
    begun = np.zeros((len(choice.groups), seqs.shape[1]), np.int64)
    begun[group[chosen], columns] = starts_ns
    state = np.where(begun[group_of_row] > 0, data.DROPPED, data.NOTHING).astype(np.uint8)
    if choice.noun == "transfer":  # of the ranks that took no part, nothing is missing
        state[:] = data.NOTHING
    has_trace = np.isin(ranks, trace.table("profiles").array("rank"))
    state[~has_trace & (state != data.NOTHING).any(1)] = data.NO_DUMP
    late, duration = np.zeros(state.size, np.uint8), np.zeros(state.size, np.uint8)
    pool = np.full(state.size, data.UNKNOWN_CALL, np.uint16)
    state.ravel()[cell] = data.DONE
    late[cell] = levels(calls.array("lateness_ns")[rows] // 1000)
    duration[cell] = levels((calls.array("end_ns")[rows] - calls.array("start_ns")[rows]) // 1000)
    pool[cell] = pool_numbers[chosen[match[rows]]]
    shape = state.shape
    return Matrix(
        ranks, group_of_row, seqs, state, late.reshape(shape), duration.reshape(shape), pool.reshape(shape), begun
    )
