"""Joins the two dumps that a rank may leave: torch's own recorder's and ours. Per group and number they are one call.

On devices torch sees what happens, so its states and times hold and ours fill the gaps. It hardly watches gloo:
there our record holds, and torch's adds the calls that were not made from Python.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from rankscope.model.numbers import whole
from rankscope.model.tables import MISSING, Array, Table, Text

OWN, TORCH, BOTH = "rankscope", "torch", "both"
_UNWATCHED = frozenset(("gloo",))  # backends of which torch's recorder tells neither states nor transfers
_COUNTERS = ("last_enqueued", "last_started", "last_completed")

Row = dict[str, Any]
GroupKey = tuple[int, str]  # rank and name of the group


class _Pair(NamedTuple):
    """Two dumps of one process: their rows of `ranks`."""

    torch: Row
    own: Row


def join_recorders(tables: dict[str, Table]) -> None:
    """Replaces each pair of dumps by one, in every table. Dumps that have no partner stay as they are."""
    ranks = tables["ranks"]
    if not ranks.text("recorder").equals(OWN).any():
        return
    if "collectives" in tables:
        tables["collectives"] = _with_ends(tables["collectives"], ranks)
    pairs = list(_pairs(ranks, tables.get("collectives")))
    if not pairs:
        return
    watched: set[GroupKey] = set()
    if "collectives" in tables:
        tables["collectives"], watched = _joined_calls(tables["collectives"], pairs)
    if "group_config" in tables:
        tables["group_config"] = _joined_config(tables["group_config"], pairs)
    if "group_status" in tables:
        tables["group_status"] = _joined_status(tables["group_status"], pairs, watched)
    tables["ranks"] = _joined_ranks(ranks, pairs, tables.get("collectives"))


def _with_ends(calls: Table, ranks: Table) -> Table:
    """torch writes no state for gloo, only that a call was retired: beside ours that would look like a failure."""
    backend, state = calls.text("backend"), calls.text("state")
    by_torch = ranks.array("file_id")[ranks.text("recorder").equals(TORCH)]
    is_ended = np.isin(calls.array("file_id"), by_torch) & _is_unwatched(backend) & calls.array("retired")
    return calls.replaced({"state": _filled(state, np.flatnonzero(is_ended), "completed")})


def _is_unwatched(backend: Text) -> Array:
    return np.fromiter((name in _UNWATCHED for name in backend.values), bool, len(backend.values))[backend.codes]


def _filled(text: Text, rows: Array, value: str) -> Text:
    if not len(rows):
        return text
    values = text.values if value in text.values else [*text.values, value]
    codes = text.codes.astype(np.min_scalar_type(len(values)))
    codes[rows] = values.index(value)
    return Text(codes, values)


def _pairs(ranks: Table, calls: Table | None) -> Iterator[_Pair]:
    """The newest dump of each recorder, if both are from the same time: an older run's may be in the folder."""
    newest: dict[tuple[int, str], Row] = {}
    for row in ranks.rows():
        key = (row["rank"], row["recorder"])
        if key not in newest or row["last_created_ns"] > newest[key]["last_created_ns"]:
            newest[key] = row
    begins = _first_calls(calls)
    for (rank, recorder), newest_dump in newest.items():
        torch = newest.get((rank, TORCH))
        if recorder != OWN or torch is None:
            continue
        own_end = max(newest_dump["written_ns"], newest_dump["last_created_ns"])
        own_begin, torch_begin = (begins.get(row["file_id"], MISSING) for row in (newest_dump, torch))
        is_same_time = own_begin <= torch["last_created_ns"] and torch_begin <= own_end
        if MISSING in (own_begin, torch_begin) or is_same_time:
            yield _Pair(torch, newest_dump)


def _first_calls(calls: Table | None) -> dict[int, int]:
    """When each dump begins, by its file."""
    if calls is None or not len(calls):
        return {}
    files = calls.array("file_id")
    order = np.argsort(files, kind="stable")
    numbers, starts = np.unique(files[order], return_index=True)
    begins = np.minimum.reduceat(calls.array("created_ns")[order], starts)
    return dict(zip(numbers.tolist(), begins.tolist(), strict=True))


def _joined_calls(calls: Table, pairs: Sequence[_Pair]) -> tuple[Table, set[GroupKey]]:
    """All calls, those of pairs once and in the order of their times; and the groups that torch watches."""
    file = calls.array("file_id")
    is_own = np.isin(file, [pair.own["file_id"] for pair in pairs])
    is_paired = is_own | np.isin(file, [pair.torch["file_id"] for pair in pairs])
    watched = _watched_groups(calls, np.flatnonzero(is_paired & ~is_own))
    lost, winners, losers = _compared(calls, is_own, np.flatnonzero(is_paired))
    calls = _completed(calls, winners, losers)
    kept = np.setdiff1d(np.flatnonzero(is_paired), lost)
    rank = calls.array("rank")
    kept = kept[np.lexsort((kept, calls.array("created_ns")[kept], rank[kept]))]
    ids = calls.array("record_id").copy()
    n_dropped = {pair.own["rank"]: _n_dropped(pair) for pair in pairs}
    starts = np.flatnonzero(np.append(True, rank[kept][1:] != rank[kept][:-1])) if len(kept) else kept
    for start, end in zip(starts.tolist(), [*starts[1:].tolist(), len(kept)], strict=True):
        ids[kept[start:end]] = np.arange(end - start) + n_dropped[whole(rank[kept[start]])]
    rows = np.concatenate([np.flatnonzero(~is_paired), kept])
    return calls.replaced({"record_id": ids}).take(rows), watched


def _watched_groups(calls: Table, rows: Array) -> set[GroupKey]:
    names = calls.text("group_name")
    rows = rows[~_is_unwatched(calls.text("backend"))[rows]]
    keys = np.unique(calls.array("rank")[rows].astype(np.int64) * len(names.values) + names.codes[rows])
    return {(key // len(names.values), names.values[key % len(names.values)]) for key in keys.tolist()}


def _compared(calls: Table, is_own: Array, rows: Array) -> tuple[Array, Array, Array]:
    """Rows that the other recorder has in better form; for calls that both have once, the better and the other row."""
    is_p2p = calls.array("is_p2p")
    is_watched = ~_is_unwatched(calls.text("backend"))
    keys = [calls.array("rank"), calls.text("group_name").codes, np.where(is_p2p, MISSING, calls.array("seq")), is_p2p]
    # Transfers have no number that both recorders count alike: there one of them tells all of a group.
    order = rows[np.lexsort([is_own[rows], *(key[rows] for key in keys)])]
    if not len(order):
        return order, order, order
    is_new = np.zeros(len(order), bool)
    is_new[0] = True
    for key in keys:
        is_new[1:] |= key[order][1:] != key[order][:-1]
    starts = np.flatnonzero(is_new)
    n_rows = np.diff(np.append(starts, len(order)))
    n_own = np.add.reduceat(is_own[order].astype(np.int64), starts)
    is_shared = (n_own > 0) & (n_own < n_rows)
    torch_wins = is_watched[order[starts]]  # torch's rows come first
    segment = np.repeat(np.arange(len(starts)), n_rows)
    lost = order[is_shared[segment] & (is_own[order] == torch_wins[segment])]
    alone = np.flatnonzero(is_shared & (n_rows == 2) & ~is_p2p[order[starts]])
    by_torch, by_own = order[starts[alone]], order[starts[alone] + 1]
    winners = np.where(torch_wins[alone], by_torch, by_own)
    return lost, winners, np.where(torch_wins[alone], by_own, by_torch)


def _completed(calls: Table, winners: Array, losers: Array) -> Table:
    """What the better record of a call lacks is taken from the other one."""
    columns: dict[str, Array | Text] = {}
    site, stack = calls.array("site_id").copy(), calls.array("stack_id").copy()
    bare = (site[winners] == MISSING) & (site[losers] != MISSING)
    site[winners[bare]], stack[winners[bare]] = site[losers[bare]], stack[losers[bare]]
    columns.update(site_id=site, stack_id=stack)
    timeout, thread = calls.array("timeout_ns").copy(), calls.text("thread")
    unlimited = timeout[winners] <= 0
    timeout[winners[unlimited]] = timeout[losers[unlimited]]
    nameless = thread.equals("")[winners]
    codes = thread.codes.copy()
    codes[winners[nameless]] = codes[losers[nameless]]
    columns.update(timeout_ns=timeout, thread=Text(codes, thread.values))
    # Where nobody watches the device, a call has ended once either of them has seen its end.
    retired = calls.array("retired").copy()
    is_seen = _is_unwatched(calls.text("backend"))[winners] & retired[losers] & ~retired[winners]
    retired[winners[is_seen]] = True
    state = _filled(calls.text("state"), winners[is_seen], "completed")
    return calls.replaced({**columns, "retired": retired, "state": state})


def _joined_config(config: Table, pairs: Sequence[_Pair]) -> Table:
    """Our groups have names and members; torch's are used only where ours are missing."""
    own_files, torch_files = _files(pairs)
    names, files, ranks = config.text("name").tolist(), config.array("file_id").tolist(), config.array("rank").tolist()
    names_of: dict[int, set[str]] = defaultdict(set)
    for name, file, rank in zip(names, files, ranks, strict=True):
        if file in own_files:
            names_of[rank].add(name)
    kept = [
        row
        for row, (name, file, rank) in enumerate(zip(names, files, ranks, strict=True))
        if file not in torch_files or not names_of[rank] or (name and name not in names_of[rank])
    ]
    return config.take(np.array(kept, np.int64))


def _joined_status(status: Table, pairs: Sequence[_Pair], watched: set[GroupKey]) -> Table:
    """One row of counters per rank and group: torch's where it watches, else the furthest of both."""
    own_files, torch_files = _files(pairs)
    kept: list[Row] = []
    by_group: dict[GroupKey, Row] = {}
    nameless: list[Row] = []
    for row in sorted(status.rows(), key=lambda row: row["file_id"] in own_files):  # torch's first
        key = (row["rank"], row["group_name"])
        if row["file_id"] not in own_files | torch_files:
            kept.append(row)
        elif not row["group_name"]:
            nameless.append(row)
        elif key not in by_group:
            by_group[key] = row
        elif key not in watched:
            by_group[key].update({name: max(row[name], by_group[key][name]) for name in _COUNTERS})
    named = {rank for rank, _ in by_group}
    kept += [row for row in nameless if row["file_id"] in own_files or row["rank"] not in named]
    return Table.from_rows("group_status", [*kept, *by_group.values()])


def _files(pairs: Sequence[_Pair]) -> tuple[set[int], set[int]]:
    return {pair.own["file_id"] for pair in pairs}, {pair.torch["file_id"] for pair in pairs}


def _n_dropped(pair: _Pair) -> int:
    return whole(max(pair.own["n_dropped"], pair.torch["n_dropped"]))


def _joined_ranks(ranks: Table, pairs: Sequence[_Pair], calls: Table | None) -> Table:
    own_files, torch_files = _files(pairs)
    rows = [row for row in ranks.rows() if row["file_id"] not in own_files | torch_files]
    n_calls = np.bincount(calls.array("rank")) if calls is not None and len(calls) else np.zeros(0, np.int64)
    for pair in pairs:
        fuller = max(pair, key=lambda row: whole(row["n_calls"]))
        rank = fuller["rank"]
        rows.append({**fuller, **_common(pair), "n_calls": whole(n_calls[rank]) if rank < len(n_calls) else 0})
    return Table.from_rows("ranks", sorted(rows, key=lambda row: (row["rank"], row["file_id"])))


def _common(pair: _Pair) -> Mapping[str, Any]:
    torch, ours = pair
    return {
        "recorder": BOTH,
        "host": ours["host"] or torch["host"],
        "comm_version": torch["comm_version"] or ours["comm_version"],
        "n_dropped": _n_dropped(pair),
        "last_created_ns": max(torch["last_created_ns"], ours["last_created_ns"]),
        "written_ns": ours["written_ns"],
    }
