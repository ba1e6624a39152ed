"""How far each process group came, and which of its calls do not fit together."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

import msgspec
import numpy as np

from rankscope.model.call_ends import ends_unrecorded
from rankscope.model.call_text import describe_shapes, describe_types
from rankscope.model.finding import count_noun, format_ranks, ranks_phrase
from rankscope.model.tables import MISSING, Array, Table, Trace
from rankscope.render.escape import escape
from rankscope.render.plain_table import table_lines
from rankscope.render.source import shown_path

MAX_GROUPS = 20
MAX_SIDES = 6
_SIGNATURE = ("op", "input_sizes", "output_sizes", "input_dtypes", "output_dtypes")


class Unfinished(msgspec.Struct, frozen=True):
    """The oldest collective of a group that is unfinished on some rank; without one, the oldest unfinished transfer."""

    seq: int
    op: str
    missing: tuple[int, ...]
    """Ranks that certainly have not joined."""
    unknown: tuple[int, ...]
    """Ranks without data, mostly because they left no dump."""
    waiting: tuple[int, ...] = ()
    """Ranks that joined and have not completed it."""
    p2p: bool = False


class GroupStatus(msgspec.Struct, frozen=True):
    group_id: int
    name: str
    desc: str
    size: int
    inferred: bool
    n_collectives: int
    n_done: int
    n_inferred: int
    """Those that some rank did not record as completed: its peers or later calls show that they are done."""
    n_mismatched: int
    n_transfers: int
    n_transfers_done: int
    first_unfinished: Unfinished | None

    @property
    def is_in_order(self) -> bool:
        in_full = self.n_done == self.n_collectives and self.n_transfers_done == self.n_transfers
        return in_full and not self.n_mismatched


class MismatchSide(msgspec.Struct, frozen=True):
    """Ranks that made the same call where others made a different one."""

    ranks: tuple[int, ...]
    call: str
    status: str
    where: str


class Mismatch(msgspec.Struct, frozen=True):
    group_id: int
    seq: int
    p2p: bool
    sides: tuple[MismatchSide, ...]


def group_statuses(trace: Trace, groups: Collection[int]) -> list[GroupStatus]:
    table, matches = trace.table("groups"), trace.table("matches")
    n_groups = len(table)
    group, is_p2p = matches.array("group_id"), matches.array("is_p2p")
    # A transfer that one side saw complete is done: the ring of the other side has dropped its part.
    is_done = (matches.array("n_done") >= matches.array("n_joined")) & (is_p2p | (matches.array("n_missing") == 0))
    is_mismatch = matches.array("n_signatures") > 1

    def count(which: Array) -> list[int]:
        counts: list[int] = np.bincount(group[which], minlength=n_groups).tolist()
        return counts

    n_collectives, n_done = count(~is_p2p), count(~is_p2p & is_done)
    n_inferred = count(is_done & ~is_p2p & _is_inferred(trace))
    n_transfers, n_transfers_done = count(is_p2p), count(is_p2p & is_done)
    n_mismatched = count(is_mismatch)
    first = {
        **_first_transfers(trace, np.flatnonzero(is_p2p & ~is_done)),
        **_first_collectives(trace, np.flatnonzero(~is_p2p & ~is_done)),
    }
    return [
        GroupStatus(
            group_id=number,
            name=row["name"],
            desc=row["description"],
            size=row["size"],
            inferred=row["inferred"],
            n_collectives=n_collectives[number],
            n_done=n_done[number],
            n_inferred=n_inferred[number],
            n_mismatched=n_mismatched[number],
            n_transfers=n_transfers[number],
            n_transfers_done=n_transfers_done[number],
            first_unfinished=first.get(number),
        )
        for number, row in enumerate(table.rows())
        if number in groups
    ]


def _is_inferred(trace: Trace) -> Array:
    """Per match, whether the end of one of its calls was inferred."""
    calls = trace.table("collectives")
    inferred = np.zeros(len(trace.table("matches")), bool)
    of_match = calls.array("match_id")[calls.array("status_inferred")]
    inferred[of_match[of_match != MISSING]] = True
    return inferred


def _first_collectives(trace: Trace, unfinished: Array) -> dict[int, Unfinished]:
    matches, progress, calls = (trace.table(name) for name in ("matches", "group_progress", "collectives"))
    group, seq = matches.array("group_id")[unfinished], matches.array("seq")[unfinished]
    order = np.lexsort((seq, group))
    numbers, starts = np.unique(group[order], return_index=True)
    lows, highs = (np.searchsorted(progress.array("group_id"), numbers, side) for side in ("left", "right"))
    first = {}
    for index, number in enumerate(numbers.tolist()):
        match = int(unfinished[order[starts[index]]])
        at = int(matches.array("seq")[match])
        rows = slice(lows[index], highs[index])
        ranks, known = progress.array("rank")[rows], progress.array("known")[rows]
        is_behind = progress.array("last_seq")[rows] < at
        first[number] = Unfinished(
            seq=at,
            op=matches.text("op")[match],
            missing=tuple(ranks[known & is_behind].tolist()),
            unknown=tuple(ranks[~known & is_behind].tolist()),
            waiting=_waiting(calls, match),
        )
    return first


def _waiting(calls: Table, match: int) -> tuple[int, ...]:
    is_open = (calls.array("match_id") == match) & ~calls.text("status").equals("done")
    return tuple(sorted(calls.array("rank")[is_open].tolist()))


def _first_transfers(trace: Trace, unfinished: Array) -> dict[int, Unfinished]:
    matches, calls = trace.table("matches"), trace.table("collectives")
    group = matches.array("group_id")[unfinished]
    order = np.lexsort((matches.array("first_created_ns")[unfinished], group))
    numbers, starts = np.unique(group[order], return_index=True)
    first = {}
    for number, match in zip(numbers.tolist(), unfinished[order[starts]].tolist(), strict=True):
        sides = {int(matches.array(side)[match]) for side in ("src", "dst")}
        joined = set(calls.array("rank")[calls.array("match_id") == match].tolist())
        op = f"send {matches.array('src')[match]}->{matches.array('dst')[match]}"
        seq = int(matches.array("seq")[match])
        first[number] = Unfinished(seq, op, missing=tuple(sorted(sides - joined)), unknown=(), p2p=True)
    return first


def list_mismatches(trace: Trace, groups: Collection[int], cap: int) -> tuple[list[Mismatch], dict[int, int]]:
    """The first `cap` mismatches of each group, and per group how many more there are."""
    matches, calls = trace.table("matches"), trace.table("collectives")
    mismatched = np.flatnonzero(matches.array("n_signatures") > 1)
    mismatched = mismatched[np.lexsort((matches.array("seq")[mismatched], matches.array("group_id")[mismatched]))]
    chosen: dict[int, list[int]] = {}
    n_left: dict[int, int] = {}
    for match, group in zip(mismatched.tolist(), matches.array("group_id")[mismatched].tolist(), strict=True):
        if group in groups:
            if len(chosen.setdefault(group, [])) < cap:
                chosen[group].append(match)
            else:
                n_left[group] = n_left.get(group, 0) + 1
    listed = [match for of_group in chosen.values() for match in of_group]
    rows = np.flatnonzero(np.isin(calls.array("match_id"), listed))
    of_match: dict[int, list[int]] = {match: [] for match in listed}
    for row, match in zip(rows.tolist(), calls.array("match_id")[rows].tolist(), strict=True):
        of_match[match].append(row)
    group_ids, seqs, is_p2p = (matches.array(name) for name in ("group_id", "seq", "is_p2p"))
    return [
        Mismatch(int(group_ids[match]), int(seqs[match]), bool(is_p2p[match]), _sides(trace, of_match[match]))
        for match in listed
    ], n_left


def _sides(trace: Trace, rows: Sequence[int]) -> tuple[MismatchSide, ...]:
    """The most common call first. Where the operations differ, they are the difference, whatever the sizes."""
    calls = trace.table("collectives")
    ranks = calls.array("rank")
    columns = [calls.text(name) for name in _SIGNATURE]
    signatures = [tuple(column[row] for column in columns) for row in rows]
    # The send and the receive of a transfer differ by nature.
    ops = {signature[0] for signature in signatures} - {"send", "recv"}
    by_key: dict[tuple[str, ...], list[int]] = {}
    for row, signature in zip(rows, signatures, strict=True):
        by_key.setdefault(signature[:1] if len(ops) > 1 else signature, []).append(row)
    alike = sorted(_untyped_with_peers(by_key), key=lambda part: (-len(part), int(ranks[part[0]])))
    return tuple(_side(trace, part) for part in alike)


def _untyped_with_peers(by_key: dict[tuple[str, ...], list[int]]) -> list[list[int]]:
    """Calls whose dump records no dtype join the largest side with the same operation and sizes."""
    sides = dict(by_key)
    for key in [key for key in by_key if key[3:] == ("[]", "[]")]:
        fitting = [other for other in sides if other != key and other[:3] == key[:3]]
        if fitting:
            sides[max(fitting, key=lambda other: len(sides[other]))] += sides.pop(key)
    return list(sides.values())


def _side(trace: Trace, rows: Sequence[int]) -> MismatchSide:
    calls = trace.table("collectives")
    op, inputs, outputs, in_types, out_types = (calls.text(name)[rows[0]] for name in _SIGNATURE)
    statuses = dict.fromkeys(calls.text("status")[row] for row in rows)
    return MismatchSide(
        ranks=tuple(sorted(int(calls.array("rank")[row]) for row in rows)),
        call=" ".join(filter(None, (op, describe_shapes(inputs, outputs), describe_types(in_types, out_types)))),
        status="/".join(statuses),
        where=_site_text(trace, int(calls.array("site_id")[rows[0]])),
    )


def _site_text(trace: Trace, frame: int) -> str:
    if frame == MISSING:
        return ""
    frames = trace.table("frames")
    return f"{frames.text('file')[frame]}:{frames.array('line')[frame]} in {frames.text('function')[frame]}"


def completion_notes(trace: Trace, calls: Array) -> list[str]:
    """What `done` rests on where the given rows of `collectives` were not recorded as completed."""
    table = trace.table("collectives")
    is_done = table.text("status").equals("done")[calls]
    inferred, completed = table.array("status_inferred")[calls], table.text("state").equals("completed")[calls]
    notes = []
    backends, unrecorded = table.text("backend"), ends_unrecorded(table)[calls]
    if (is_done & inferred & ~unrecorded).any():
        notes.append("done (inferred): the rank did not record the end; its peers or later calls show that it is done")
    for code in np.unique(backends.codes[calls[is_done & unrecorded]]).tolist():
        who = backends.values[code] or "this backend"
        notes.append(f"done (inferred): {who} does not record whether calls complete; all ranks made the call")
    silent = np.unique(backends.codes[calls[is_done & ~inferred & ~completed]])
    names = sorted(backends.values[code] or "this backend" for code in silent.tolist())
    without_end = "leaves calls in the state `scheduled`: done means retired, which includes failed calls"
    return [*notes, *(f"{name} {without_end}" for name in names)]


# For people


def status_lines(statuses: Sequence[GroupStatus], show_all: bool, width: int | None) -> Iterator[str]:
    """One line per group; of many groups, only the unfinished ones unless `show_all`."""
    listed = [status for status in statuses if not status.is_in_order]
    if show_all or len(statuses) <= MAX_GROUPS:
        listed = list(statuses)
    shown = listed if show_all else listed[:MAX_GROUPS]
    has_transfers = any(status.n_transfers for status in shown)
    heads = ["group", "desc", "ranks", "collectives", "done", "mismatched"]
    heads += [*(["transfers", "done"] if has_transfers else []), "first unfinished"]
    if shown:
        yield from table_lines(heads, [_status_row(status, has_transfers) for status in shown], width)
    if len(shown) < len(listed):
        yield f"... and {count_noun(len(listed) - len(shown), 'more unfinished group')} (-v lists all)"
    if len(listed) < len(statuses):
        yield f"{count_noun(len(statuses) - len(listed), 'group')} with every call matched and done (-v lists them)"


def _status_row(status: GroupStatus, has_transfers: bool) -> list[str | int]:
    n_done = f"{status.n_done} ({status.n_inferred} inferred)" if status.n_inferred else status.n_done
    row: list[str | int] = [status.name, status.desc, status.size, status.n_collectives, n_done, status.n_mismatched]
    if has_transfers:
        row += [status.n_transfers, status.n_transfers_done]
    return [*row, _unfinished_text(status.first_unfinished, status.size)]


def _unfinished_text(unfinished: Unfinished | None, size: int) -> str:
    if unfinished is None:
        return ""
    absent = [f"not joined by {ranks_phrase(unfinished.missing)}"] if unfinished.missing else []
    absent += [f"no data from {ranks_phrase(unfinished.unknown)}"] if unfinished.unknown else []
    number = f"p2p {unfinished.seq}" if unfinished.p2p else unfinished.seq
    if not absent:
        is_partial = 0 < len(unfinished.waiting) < size
        absent = [f"all joined, not completed by {ranks_phrase(unfinished.waiting)}" if is_partial else "all joined"]
    return f"{number} {unfinished.op}: {', '.join(absent)}"


def mismatch_lines(
    mismatches: Sequence[Mismatch], n_left: dict[int, int], statuses: Sequence[GroupStatus], base: str = ""
) -> Iterator[str]:
    """Both sides of each, and for each group how many are not listed; files below `base` are relative to it."""
    groups = {status.group_id: status for status in statuses}
    for index, mismatch in enumerate(mismatches):
        group = groups[mismatch.group_id]
        desc = f' "{group.desc}"' if group.desc else ""
        kind = "transfer" if mismatch.p2p else "collective"
        yield escape(f"group {group.name}{desc} ({count_noun(group.size, 'rank')}), {kind} {mismatch.seq}:")
        yield from _side_lines(mismatch.sides, base)
        is_last = index + 1 == len(mismatches) or mismatches[index + 1].group_id != mismatch.group_id
        if is_last and mismatch.group_id in n_left:
            n_more = count_noun(n_left[mismatch.group_id], "more mismatch", "more mismatches")
            yield f"    ... and {n_more} in this group"
    unlisted = {group: n for group, n in n_left.items() if group not in {m.group_id for m in mismatches}}
    if unlisted:
        n_mismatches, n_groups = sum(unlisted.values()), len(unlisted)
        yield f"{count_noun(n_mismatches, 'mismatch', 'mismatches')} in {count_noun(n_groups, 'group')} not listed"


def _side_lines(sides: Sequence[MismatchSide], base: str) -> Iterator[str]:
    shown = sides[:MAX_SIDES]
    whose = [ranks_phrase(side.ranks) for side in shown]
    calls = [escape(f"{side.call} {side.status}") for side in shown]
    for side, ranks, call in zip(shown, whose, calls, strict=True):
        where = escape(shown_path(side.where, base))
        yield f"    {ranks:{max(map(len, whose))}}  {call:{max(map(len, calls))}}  {where}".rstrip()
    if len(sides) > len(shown):
        rest = [rank for side in sides[MAX_SIDES:] for rank in side.ranks]
        yield f"    and {count_noun(len(sides) - MAX_SIDES, 'more variant')} on ranks {format_ranks(rest, limit=6)}"
