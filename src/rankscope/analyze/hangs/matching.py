"""Matches what belongs together: the same collective on all ranks, the send with its receive.

Key of a collective is (group, seq), never record_id. Fills match_id and status in collectives and yields matches.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from rankscope.analyze.derived import derived
from rankscope.analyze.hangs.signatures import SYNCHRONISING, Signatures
from rankscope.analyze.hangs.view import signatures_of
from rankscope.model.call_ends import ends_unrecorded, lack_states
from rankscope.model.clock import POLL_NS, median
from rankscope.model.tables import MISSING, Array, Table, Text, Trace, distinct

STATUSES = ("done", "waiting", "aborted", "failed")
DONE, WAITING, ABORTED, FAILED = range(4)
_UNRECORDED = 4  # not a status: what the record of a backend that does not see calls end says of one
# Dumps of one moment are taken within a second or so; a rank that lived longer than this has seen what ended.
_UNNOTICED_NS = 2_000_000_000


def match_collectives(trace: Trace) -> dict[str, Table]:
    """The tables matches and collectives (with match_id and status)."""
    signatures = derived(trace, signatures_of)
    calls = trace.table("collectives")
    recorded = _recorded_status(calls)
    status = np.where(recorded == _UNRECORDED, DONE, recorded).astype(np.int8)  # unless a member has not made the call
    _settle_past_generations(trace.table("groups"), calls, status)
    is_p2p, role = calls.array("is_p2p"), calls.text("role")
    is_member = role.equals("member")
    match_ids = np.full(len(calls), MISSING, np.int32)
    collective_rows = _one_row_per_rank(calls, np.flatnonzero(~is_p2p & ~is_member))
    collectives = _collective_matches(trace, collective_rows, signatures, status, match_ids)
    transfer_rows = np.flatnonzero(is_p2p & (calls.array("peer") >= 0))
    transfers = _transfer_matches(trace, transfer_rows, signatures, status, match_ids, len(collectives["match_id"]))
    _settle_passed_transfers(calls, collective_rows, status)
    _settle_batches(calls, np.flatnonzero(is_p2p & role.equals("batch")), status)
    matches = Table("matches", _joined_columns(collectives, transfers))
    statuses = {"status": Text(status.astype(np.int32), STATUSES), "status_inferred": status != recorded}
    return {"collectives": calls.replaced({"match_id": match_ids, **statuses}), "matches": matches}


def _recorded_status(calls: Table) -> Array:
    """What each rank's own record says, read with care for what its backend does not write."""
    completed, retired = calls.text("state").equals("completed"), calls.array("retired")
    timeout, end = calls.array("timeout_ns"), calls.array("completed_ns")
    status = np.full(len(calls), WAITING, np.int8)
    status[completed] = DONE
    # An abort ends stuck kernels, which then look complete: a completion after the time-out is one of those.
    late = completed & (timeout > 0) & (end > 0) & (end - calls.array("created_ns") > timeout)
    status[late] = ABORTED
    without_states = lack_states(calls)
    status[without_states & retired] = DONE
    status[~without_states & retired & ~completed] = FAILED
    status[ends_unrecorded(calls)] = _UNRECORDED
    return status


def _settle_past_generations(groups: Table, calls: Table, status: Array) -> None:
    """A process that has made a group again has passed the calls of the one before, whatever became of them."""
    generation = groups.array("generation")
    if not generation.any():
        return
    name, rank = calls.text("group_name").codes.astype(np.int64), calls.array("rank")
    owner, group = rank * (int(name.max()) + 1) + name, calls.array("group_id")
    newest = np.zeros(int(owner.max()) + 1, np.int64)
    np.maximum.at(newest, owner, generation[group])
    status[(generation[group] < newest[owner]) & (status != DONE)] = DONE


def _one_row_per_rank(calls: Table, rows: Array) -> Array:
    """Sorted by group, seq and rank; of calls that share all three (a coalesced group without trailer) the last."""
    groups, seqs, ranks = (calls.array(name)[rows] for name in ("group_id", "seq", "rank"))
    order = np.lexsort((ranks, seqs, groups))
    rows, groups, seqs, ranks = rows[order], groups[order], seqs[order], ranks[order]
    starts = segment_starts(groups, seqs, ranks)
    last: Array = rows[np.append(starts[1:], len(rows))[: len(starts)] - 1]
    return last


def segment_starts(*keys: Array) -> Array:
    """Where a new combination of sorted keys begins."""
    if not len(keys[0]):
        return np.empty(0, np.int64)
    is_new = np.zeros(len(keys[0]) - 1, bool)
    for key in keys:
        is_new |= key[1:] != key[:-1]
    return np.flatnonzero(np.append(True, is_new))


def _collective_matches(
    trace: Trace, rows: Array, signatures: Signatures, status: Array, match_ids: Array
) -> dict[str, Array | Text]:
    calls = trace.table("collectives")
    groups, seqs = calls.array("group_id")[rows], calls.array("seq")[rows]
    starts = segment_starts(groups, seqs)
    n_joined = np.diff(np.append(starts, len(rows)))
    match_of_row = np.repeat(np.arange(len(starts), dtype=np.int32), n_joined)
    match_ids[rows] = match_of_row
    group, seq = groups[starts], seqs[starts]
    members = _count_members(trace, group, seq, n_joined)
    is_even = ~_differs(signatures.whole[rows], starts)[match_of_row]
    _correct_status(trace, rows, match_of_row, members["n_missing"], is_even, status)
    ops, n_signatures = _common_op(calls, rows, starts, signatures)
    created = calls.array("created_ns")[rows] - _clock_offsets(trace, calls.array("rank")[rows])
    first, last = _reduce(np.minimum, created, starts), _reduce(np.maximum, created, starts)
    is_last = created == last[match_of_row] if len(rows) else np.empty(0, bool)
    last_rank = np.full(len(starts), MISSING, np.int32)
    last_rank[match_of_row[is_last]] = calls.array("rank")[rows[is_last]]
    n_done = _reduce(np.add, (status[rows] == DONE).astype(np.int32), starts)
    return {
        "match_id": np.arange(len(starts), dtype=np.int32),
        "group_id": group,
        "is_p2p": np.zeros(len(starts), bool),
        "seq": seq,
        "op": ops,
        "src": np.full(len(starts), MISSING, np.int32),
        "dst": np.full(len(starts), MISSING, np.int32),
        **members,
        "n_done": n_done,
        "n_signatures": n_signatures,
        "state": _match_state(n_done, n_joined, members["n_missing"], n_signatures),
        "first_created_ns": first,
        "last_created_ns": last,
        "last_rank": last_rank,
    }


def _reduce(operation: np.ufunc, values: Array, starts: Array) -> Array:
    return operation.reduceat(values, starts) if len(starts) else values[:0]


def _differs(codes: Array, starts: Array) -> Array:
    """Whether a segment has more than one code."""
    result: Array = _reduce(np.minimum, codes, starts) != _reduce(np.maximum, codes, starts)
    return result


def _clock_offsets(trace: Trace, ranks: Array) -> Array:
    table = trace.table("ranks")
    by_rank = np.zeros(int(max(table.array("rank").max(initial=0), ranks.max(initial=0))) + 1, np.int64)
    by_rank[table.array("rank")] = table.array("clock_offset_ns")
    return by_rank[ranks]


def _count_members(trace: Trace, group: Array, seq: Array, n_joined: Array) -> dict[str, Array]:
    """Of the ranks that have to join: how many did, certainly did not, dropped the record, or left no dump."""
    progress = trace.table("group_progress")
    sizes = trace.table("groups").array("size")
    n_missing, n_unknown = np.zeros(len(group), np.int32), np.zeros(len(group), np.int32)
    known, last = progress.array("known"), progress.array("last_seq")
    group_starts = np.append(np.searchsorted(progress.array("group_id"), np.arange(len(sizes))), len(progress))
    match_starts = np.append(np.searchsorted(group, np.arange(len(sizes))), len(group))
    for number in range(len(sizes)):
        rows = slice(group_starts[number], group_starts[number + 1])
        matches = slice(match_starts[number], match_starts[number + 1])
        frontier = np.sort(last[rows][known[rows]])
        n_missing[matches] = np.searchsorted(frontier, seq[matches])
        n_unknown[matches] = np.count_nonzero(~known[rows])
    n_members = sizes[group] if len(group) else np.empty(0, np.int32)
    n_unknown = np.minimum(n_unknown, np.maximum(n_members - n_joined - n_missing, 0)).astype(np.int32)
    return {
        "n_members": n_members.astype(np.int32),
        "n_joined": n_joined.astype(np.int32),
        "n_missing": n_missing,
        "n_unknown": n_unknown,
        "n_evicted": np.maximum(n_members - n_joined - n_missing - n_unknown, 0).astype(np.int32),
    }


def _correct_status(
    trace: Trace, rows: Array, match_of_row: Array, n_missing: Array, is_even: Array, status: Array
) -> None:
    """What only the view over all ranks tells."""
    if not len(rows):
        return
    calls = trace.table("collectives")
    op = calls.text("op")
    synchronises = np.fromiter((name in SYNCHRONISING for name in op.values), bool, len(op.values))[op.codes[rows]]
    absent = n_missing[match_of_row] > 0
    recorded = status[rows]
    # Made is not ended: while a member has not made the call, the others wait in it as far as anybody can tell.
    recorded[ends_unrecorded(calls)[rows] & absent] = WAITING
    # Without all members such a call cannot have succeeded: its backend let go of it because it failed.
    recorded[synchronises & absent & (recorded == DONE)] = FAILED
    # A rank that has not yet noticed what its peers saw complete is no evidence: dumps are not taken at one instant.
    finished = np.zeros(int(match_of_row[-1]) + 1, bool)
    noticed = calls.text("state").equals("completed")[rows] & (recorded == DONE)
    finished[match_of_row[synchronises & ~absent & noticed]] = True
    is_open = recorded == WAITING
    # A group's calls run one after another: what lies before one that ended has ended too, whatever the operation.
    groups, seqs = calls.array("group_id")[rows], calls.array("seq")[rows]
    newest = np.full(int(groups.max()) + 1, MISSING, np.int64)
    is_finished = finished[match_of_row]
    np.maximum.at(newest, groups[is_finished], seqs[is_finished])
    recorded[is_open & is_even & (seqs < newest[groups])] = DONE
    is_newest = is_open & is_finished & (seqs == newest[groups])
    recorded[is_newest & synchronises & ~_lived_on(trace, rows, match_of_row, noticed)] = DONE
    status[rows] = recorded


def _lived_on(trace: Trace, rows: Array, match_of_row: Array, noticed: Array) -> Array:
    """Whether a row's rank recorded something long after its peers saw the call complete: it should have seen it."""
    calls, ranks = trace.table("collectives"), trace.table("ranks")
    rank = calls.array("rank")
    alive = np.full(int(max(rank.max(initial=0), ranks.array("rank").max(initial=0))) + 1, MISSING, np.int64)
    np.maximum.at(alive, rank, calls.array("created_ns"))
    np.maximum.at(alive, ranks.array("rank"), ranks.array("written_ns"))
    ended = np.full(int(match_of_row[-1]) + 1, MISSING, np.int64)
    ends = calls.array("completed_ns")[rows[noticed]] - _clock_offsets(trace, rank[rows[noticed]])
    np.maximum.at(ended, match_of_row[noticed], ends)
    last_alive = alive[rank[rows]] - _clock_offsets(trace, rank[rows])
    result: Array = (ended[match_of_row] > 0) & (last_alive - ended[match_of_row] > _UNNOTICED_NS)
    return result


def _common_op(calls: Table, rows: Array, starts: Array, signatures: Signatures) -> tuple[Text, Array]:
    """The operation that most ranks called, and how many different signatures there are."""
    op = calls.text("op")
    codes, whole = op.codes[rows], signatures.whole[rows]
    if not len(starts):
        return Text(np.empty(0, np.int32), []), np.empty(0, np.int32)
    common = codes[starts].copy()
    n_signatures = np.ones(len(starts), np.int32)
    uneven = _differs(whole, starts)
    ends = np.append(starts[1:], len(rows))
    for match in np.flatnonzero(uneven).tolist():
        part = slice(starts[match], ends[match])
        values, counts = np.unique(codes[part], return_counts=True)
        common[match] = values[np.argmax(counts)]
        n_signatures[match] = len(distinct(whole[part]))
    return Text(common, op.values), n_signatures


def _match_state(n_done: Array, n_joined: Array, n_missing: Array, n_signatures: Array) -> Text:
    names = ("done", "waiting", "missing", "mismatch")
    codes = np.where(n_done >= n_joined, 0, np.where(n_missing > 0, 2, 1))
    codes = np.where(n_signatures > 1, 3, codes)
    return Text(codes.astype(np.int32), names)


def _transfer_matches(
    trace: Trace, rows: Array, signatures: Signatures, status: Array, match_ids: Array, first_id: int
) -> dict[str, Array | Text]:
    """The k-th send against the k-th receive of each directed pair and group."""
    calls = trace.table("collectives")
    is_send = calls.text("op").equals("send")[rows]
    rank, peer = calls.array("rank")[rows], calls.array("peer")[rows]
    src, dst = np.where(is_send, rank, peer), np.where(is_send, peer, rank)
    group = calls.array("group_id")[rows]
    order = np.lexsort((rows, ~is_send, dst, src, group))
    rows, is_send, src, dst, group = rows[order], is_send[order], src[order], dst[order], group[order]
    number = _transfer_numbers(trace, rows, is_send, segment_starts(group, src, dst), status)
    order = np.lexsort((~is_send, number, dst, src, group))
    rows, src, dst, group, number = rows[order], src[order], dst[order], group[order], number[order]
    starts = segment_starts(group, src, dst, number)
    n_joined = np.diff(np.append(starts, len(rows))).astype(np.int32)
    match_of_row = np.repeat(np.arange(len(starts), dtype=np.int32), n_joined)
    match_ids[rows] = match_of_row + first_id
    # One side saw the transfer complete: that the other has not noticed yet is no evidence.
    is_ended = _reduce(np.add, (status[rows] == DONE).astype(np.int32), starts) > 0
    unnoticed = is_ended[match_of_row] & (status[rows] == WAITING) & (n_joined[match_of_row] == 2)
    status[rows[unnoticed]] = DONE
    n_done = _reduce(np.add, (status[rows] == DONE).astype(np.int32), starts)
    uneven = _differs(signatures.size[rows], starts)
    is_typed = ~(calls.text("input_dtypes").equals("[]") & calls.text("output_dtypes").equals("[]"))[rows]
    # Older layouts leave out the type, which then is unknown, not another one.
    uneven |= _differs(signatures.dtype[rows], starts) & _reduce(np.minimum, is_typed, starts)
    created = calls.array("created_ns")[rows]
    n_signatures = np.where(uneven, 2, 1).astype(np.int32)
    is_evicted = (n_joined == 1) & (n_done == 1)  # it ended, so the other side has been there
    n_missing = np.where(is_evicted, 0, 2 - n_joined).astype(np.int32)
    last_created = _reduce(np.maximum, created, starts)
    last_rank = np.where(created[starts] == last_created, calls.array("rank")[rows[starts]], MISSING)
    zeros = np.zeros(len(starts), np.int32)
    return {
        "match_id": np.arange(first_id, first_id + len(starts), dtype=np.int32),
        "group_id": group[starts],
        "is_p2p": np.ones(len(starts), bool),
        "seq": number[starts],
        "op": Text.constant("send", len(starts)),
        "src": src[starts].astype(np.int32),
        "dst": dst[starts].astype(np.int32),
        "n_members": zeros + 2,
        "n_joined": n_joined,
        "n_missing": n_missing,
        "n_unknown": zeros,
        "n_evicted": is_evicted.astype(np.int32),
        "n_done": n_done,
        "n_signatures": n_signatures,
        "state": _match_state(n_done, n_joined, n_missing, n_signatures),
        "first_created_ns": _reduce(np.minimum, created, starts),
        "last_created_ns": last_created,
        "last_rank": last_rank.astype(np.int32),
    }


def _settle_passed_transfers(calls: Table, collective_rows: Array, status: Array) -> None:
    """A rank whose later collectives completed has passed the transfers before them, noticed or not."""
    op = calls.text("op")
    synchronises = np.fromiter((name in SYNCHRONISING for name in op.values), bool, len(op.values))
    passed = collective_rows[synchronises[op.codes[collective_rows]] & (status[collective_rows] == DONE)]
    rank = calls.array("rank")
    last_passed = np.full(int(rank.max(initial=0)) + 1, -1, np.int64)
    np.maximum.at(last_passed, rank[passed], passed)
    open_rows = np.flatnonzero(calls.array("is_p2p") & (status == WAITING))
    status[open_rows[open_rows < last_passed[rank[open_rows]]]] = DONE


def _settle_batches(calls: Table, trailers: Array, status: Array) -> None:
    """A batch has ended when all its transfers have."""
    is_member, rank = calls.text("role").equals("member"), calls.array("rank")
    for trailer in trailers[status[trailers] == WAITING].tolist():
        first = trailer
        while first > 0 and is_member[first - 1] and rank[first - 1] == rank[trailer]:
            first -= 1
        if first < trailer and (status[first:trailer] == DONE).all():
            status[trailer] = DONE


def _transfer_numbers(trace: Trace, rows: Array, is_send: Array, starts: Array, status: Array) -> Array:
    """Numbers each side's calls so that the k-th send meets the k-th receive.

    Where neither ring has dropped anything both count from the start. Otherwise from the newest completed one: a pair
    has completed as many sends as receives since the job began, however much either ring has dropped.
    """
    calls, ranks = trace.table("collectives"), trace.table("ranks")
    wrapped = set(ranks.array("rank")[ranks.array("n_dropped") > 0].tolist())
    rank, done = calls.array("rank")[rows], status[rows] == DONE
    ended = np.where(done, calls.array("completed_ns")[rows] - _clock_offsets(trace, rank), MISSING)
    number = np.zeros(len(rows), np.int64)
    bounds = [*starts.tolist(), len(rows)]
    for start, end in pairwise(bounds):
        split = start + int(np.count_nonzero(is_send[start:end]))
        sends, receives = slice(start, split), slice(split, end)
        number[sends], number[receives] = np.arange(split - start), np.arange(end - split)
        if split in (start, end) or {int(rank[start]), int(rank[end - 1])} & wrapped:
            number[sends] -= np.count_nonzero(done[sends])
            number[receives] -= np.count_nonzero(done[receives])
            number[receives] += _best_offset(number[sends], ended[sends], number[receives], ended[receives])
        number[start:end] -= number[start:end].min() - 1
    return number


def _best_offset(sends: Array, send_ends: Array, receives: Array, receive_ends: Array) -> int:
    """By how much the receives must be moved so that both sides of each transfer end together, as far as times tell.

    Usually by nothing; one side may not have noticed its newest completions, and then its count is short. What counts
    is how much the difference of the two ends varies: a wrong clock makes it large, but not varied.
    """
    spread = {}
    for offset in (0, 1, -1, 2, -2, 3, -3):
        _, left, right = np.intersect1d(sends, receives + offset, assume_unique=True, return_indices=True)
        both = (send_ends[left] > 0) & (receive_ends[right] > 0)
        if np.count_nonzero(both) >= 4:
            difference = (send_ends[left] - receive_ends[right])[both].astype(np.float64)
            spread[offset] = float(median(np.abs(difference - median(difference))))
    best = min(spread, key=lambda offset: spread[offset], default=0)
    is_clear = 0 in spread and spread[0] > POLL_NS / 2 and 3 * spread[best] < spread[0]
    return best if is_clear else 0


def _joined_columns(*parts: dict[str, Array | Text]) -> dict[str, Array | Text]:
    columns: dict[str, Array | Text] = {}
    for name, first in parts[0].items():
        pieces: Sequence[Array | Text] = [part[name] for part in parts]
        if isinstance(first, Text):
            columns[name] = Text.encode(value for piece in pieces for value in piece.tolist())
        else:
            columns[name] = np.concatenate(pieces)  # type: ignore[arg-type]
    return columns
