"""A job as the hang rules look at it: the tables as arrays, indexed by rank, group and position in the program."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from rankscope.analyze.derived import derived
from rankscope.analyze.hangs.signatures import Signatures, call_signatures
from rankscope.model.call_ends import ends_unrecorded
from rankscope.model.schema_recorder import EARLIER_MOMENT, MAY_HOLD_MORE
from rankscope.model.tables import MISSING, Array, Table, Trace

# Sources that a rank writes while it trains: they neither tell its last calls nor that it was alive at the end.
_WRITTEN_BEFORE = frozenset(("kineto", "nsys", "execution_trace", "compile_log", "torch_logs", "metrics", "manifest"))
_NO_DUMPS = _WRITTEN_BEFORE | {"thread_stacks", "desync"}


def ranks_alive(trace: Trace) -> frozenset[int]:
    """Ranks that wrote something when the job hung, readable or not."""
    return _ranks(trace, ("read", "damaged", "duplicate"), _WRITTEN_BEFORE)


def ranks_stale(trace: Trace) -> frozenset[int]:
    """Ranks whose only dump is of another moment or attempt."""
    return _ranks(trace, ("stale",), _NO_DUMPS) - _ranks(trace, ("read", "damaged", "duplicate"), _NO_DUMPS)


def ranks_unreadable(trace: Trace) -> frozenset[int]:
    """Ranks whose dump is here, and damaged. Of those of which nothing was read, the state is unknown."""
    return _ranks(trace, ("damaged",), _NO_DUMPS)


def may_hold_more(trace: Trace) -> list[str]:
    """Archives and folders that could not be looked into to their end: any rank's dump may be in there."""
    files = trace.table("files")
    columns = zip(files.text("path").tolist(), files.text("problem").tolist(), strict=True)
    return [path for path, problem in columns if problem.endswith(MAY_HOLD_MORE)]


def ranks_gone_on(trace: Trace) -> frozenset[int]:
    """Ranks whose dump is older than the others': these show that it took part in calls which it does not have yet."""
    files = trace.table("files")
    columns = zip(files.array("rank").tolist(), files.text("problem").tolist(), strict=True)
    return frozenset(rank for rank, problem in columns if problem.startswith(EARLIER_MOMENT))


def ranks_cut(trace: Trace) -> frozenset[int]:
    """Ranks of which only the older part of the dump could be read, and no other dump is whole."""
    return ranks_unreadable(trace) - _ranks(trace, ("read",), _NO_DUMPS)


def _ranks(trace: Trace, statuses: tuple[str, ...], without: frozenset[str]) -> frozenset[int]:
    files = trace.table("files")
    columns = (files.array("rank").tolist(), files.text("source").tolist(), files.text("status").tolist())
    return frozenset(
        rank for rank, source, status in zip(*columns, strict=True) if status in statuses and source not in without
    )


def signatures_of(trace: Trace) -> Signatures:
    sizes = trace.table("groups").array("size")
    return call_signatures(trace.table("collectives"), trace.table("stacks"), trace.table("frames"), sizes)


@dataclass(frozen=True)
class Window:
    """What is known of one rank's collectives in one group."""

    first: int  # oldest sequence number kept, MISSING when none is
    last: int  # newest enqueued, MISSING when none was
    completed: int
    known: bool

    def has_joined(self, seq: int) -> bool:
        return self.known and self.last >= seq

    def has_not_joined(self, seq: int) -> bool:
        return self.known and self.last < seq


class JobView:
    """Calls in program order per rank, matches per group; everything by row number of `collectives`."""

    def __init__(self, trace: Trace) -> None:
        self.trace = trace
        self.calls: Table = trace.table("collectives")
        self.signatures = derived(trace, signatures_of)
        self.rank, self.group, self.seq = (self.calls.array(name) for name in ("rank", "group_id", "seq"))
        self.match = self.calls.array("match_id")
        self.is_p2p = self.calls.array("is_p2p")
        self.is_member = self.calls.text("role").equals("member")
        self.created = self.calls.array("created_ns") - self._offsets()
        status = self.calls.text("status")
        self.is_done = status.equals("done")
        self.ranks: list[int] = trace.table("ranks").array("rank").tolist()
        self.dumped = frozenset(self.ranks)

    def _offsets(self) -> Array:
        table = self.trace.table("ranks")
        by_rank = np.zeros(int(max(table.array("rank").max(initial=0), self.rank.max(initial=0))) + 1, np.int64)
        by_rank[table.array("rank")] = table.array("clock_offset_ns")
        return by_rank[self.rank]

    @cached_property
    def is_typed(self) -> Array:
        """False for calls of older layouts, which leave out the types of tensors."""
        lacks: Array = self.calls.text("input_dtypes").equals("[]") & self.calls.text("output_dtypes").equals("[]")
        return ~lacks

    @cached_property
    def ends_unrecorded(self) -> Array:
        """True for calls whose backend does not record how they end: all that is known is who has made them."""
        return ends_unrecorded(self.calls)

    @cached_property
    def blind_groups(self) -> dict[int, str]:
        """Groups with such calls, and the backend that does not record their ends."""
        backend = self.calls.text("backend")
        groups, rows = np.unique(self.group[self.ends_unrecorded], return_index=True)
        codes = backend.codes[self.ends_unrecorded][rows]
        return {group: backend.values[code] for group, code in zip(groups.tolist(), codes.tolist(), strict=True)}

    @cached_property
    def members(self) -> list[tuple[int, ...]]:
        table = self.trace.table("group_members")
        groups, ranks = table.array("group_id"), table.array("rank")
        bounds = np.searchsorted(groups, np.arange(len(self.trace.table("groups")) + 1))
        return [tuple(ranks[bounds[i] : bounds[i + 1]].tolist()) for i in range(len(bounds) - 1)]

    @cached_property
    def groups_of(self) -> dict[int, list[int]]:
        """Per rank the groups it is a member of."""
        groups: dict[int, list[int]] = defaultdict(list)
        for group, members in enumerate(self.members):
            for rank in members:
                groups[rank].append(group)
        return groups

    @cached_property
    def windows(self) -> dict[tuple[int, int], Window]:
        table = self.trace.table("group_progress")
        names = ("group_id", "rank", "first_seq", "last_seq", "last_completed", "known")
        columns = (table.array(name).tolist() for name in names)
        return {(row[0], row[1]): Window(*row[2:]) for row in zip(*columns, strict=True)}

    def window(self, group: int, rank: int) -> Window:
        return self.windows.get((group, rank), Window(MISSING, MISSING, MISSING, False))

    @cached_property
    def program(self) -> Array:
        """Rows in program order, rank after rank (members of coalesced groups left to their trailer)."""
        rows = np.flatnonzero(~self.is_member)
        return rows[np.lexsort((rows, self.rank[rows]))]

    @cached_property
    def _program_bounds(self) -> dict[int, tuple[int, int]]:
        ranks = self.rank[self.program]
        starts = np.searchsorted(ranks, self.ranks, "left").tolist()
        ends = np.searchsorted(ranks, self.ranks, "right").tolist()
        return dict(zip(self.ranks, zip(starts, ends, strict=True), strict=True))

    def rows_of(self, rank: int) -> Array:
        """The rank's calls in program order."""
        start, end = self._program_bounds.get(rank, (0, 0))
        return self.program[start:end]

    def parts_of(self, row: int) -> list[int]:
        """The transfers of a batch, or the call itself."""
        if self.match[row] != MISSING or not self.is_p2p[row]:
            return [row]
        first = row
        while first > 0 and self.is_member[first - 1] and self.rank[first - 1] == self.rank[row]:
            first -= 1
        return list(range(first, row)) or [row]

    @cached_property
    def first_waiting(self) -> dict[int, int]:
        """Per rank the oldest call that has not ended: later ones wait behind it."""
        waiting = self.program[~self.is_done[self.program] & ~self._may_be_part[self.program]]
        ranks, first = np.unique(self.rank[waiting], return_index=True)
        return dict(zip(ranks.tolist(), waiting[first].tolist(), strict=True))

    @cached_property
    def _may_be_part(self) -> Array:
        """True for transfers at the end of a cut dump: only the last entry of a batch, here lost, shows its end."""
        is_part = np.zeros(len(self.calls), bool)
        for rank in self.cut:
            rows = self.rows_of(rank)
            others = np.flatnonzero(~self.is_p2p[rows])
            is_part[rows[others[-1] + 1 if len(others) else 0 :]] = True
        return is_part

    @cached_property
    def cut(self) -> frozenset[int]:
        """Ranks of which only the older part of the dump could be read."""
        return ranks_cut(self.trace)

    @cached_property
    def headless(self) -> frozenset[int]:
        """The ends of batches whose transfers the ring has dropped: they look like collectives, and are none."""
        op = self.calls.text("op").equals("coalesced")
        first = (rows[0] for rank in self.ranks if len(rows := self.rows_of(rank)))
        return frozenset(int(row) for row in first if op[row] and not self.is_p2p[row])

    @cached_property
    def has_file(self) -> frozenset[int]:
        """Ranks that wrote something, readable or not: they were alive when the dumps were taken."""
        return ranks_alive(self.trace)

    @cached_property
    def _busy(self) -> frozenset[int]:
        """Ranks whose counters show a call that has not completed."""
        status = self.trace.table("group_status")
        is_open = status.array("last_enqueued") > status.array("last_completed")
        return frozenset(status.array("rank")[is_open].tolist())

    def is_idle(self, rank: int) -> bool:
        """True when the rank certainly waits in no call; a cut dump has lost the newest ones, but not the counters.

        An abort completes what waits: where there was one, such counters do not show who waited.
        """
        if rank in self.first_waiting:
            return False
        has_counters = bool((self.trace.table("group_status").array("rank") == rank).any())
        # The counters are of collectives: a rank that makes transfers may wait in one that was cut off.
        has_transfers = bool(self.is_p2p[self.rows_of(rank)].any())
        is_counted = has_counters and not has_transfers and not self._has_aborted and rank not in self._busy
        return rank not in self.cut or is_counted

    @cached_property
    def _has_aborted(self) -> bool:
        return bool(self.calls.text("status").equals("aborted").any())

    @cached_property
    def match_rows(self) -> tuple[Array, Array]:
        """Rows ordered by match, and where each match begins in them."""
        rows = np.flatnonzero(self.match >= 0)
        rows = rows[np.argsort(self.match[rows], kind="stable")]
        starts = np.searchsorted(self.match[rows], np.arange(len(self.trace.table("matches")) + 1))
        return rows, starts

    def rows_of_match(self, match: int) -> Array:
        rows, starts = self.match_rows
        return rows[starts[match] : starts[match + 1]]

    @cached_property
    def collective_match(self) -> dict[tuple[int, int], int]:
        """(group, seq) -> match of the collectives."""
        table = self.trace.table("matches")
        is_collective = np.flatnonzero(~table.array("is_p2p"))
        groups, seqs = table.array("group_id")[is_collective].tolist(), table.array("seq")[is_collective].tolist()
        return dict(zip(zip(groups, seqs, strict=True), is_collective.tolist(), strict=True))

    @cached_property
    def last_activity_ns(self) -> int:
        """The newest moment that any rank recorded, clocks aligned: the job was alive then."""
        offsets, ranks = self._offsets(), self.trace.table("ranks")
        started, ended = (self.calls.array(name) - offsets for name in ("started_ns", "completed_ns"))
        written = ranks.array("written_ns")  # only some dumps tell it
        dump_times = (written - ranks.array("clock_offset_ns"))[written > 0]
        moments = (self.created, started, ended[self.is_done], dump_times)
        return int(max(moment.max(initial=MISSING) for moment in moments))


def job_view(trace: Trace) -> JobView:
    return derived(trace, JobView)
