"""The data model: every table and column, and the columnar containers that hold them.

Names here are public: they are what `rankscope query` and `rankscope export` show.
A missing integer is -1 in memory (no column has negative values otherwise) and NULL in the database.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Array: TypeAlias = NDArray[Any]
else:
    Array = np.ndarray  # numpy.typing costs start-up time and says nothing at run time
MISSING = -1


@dataclass(frozen=True)
class Column:
    name: str
    kind: str  # "text", "bool", or a numpy integer/float type name
    doc: str

    @property
    def is_text(self) -> bool:
        return self.kind == "text"


@dataclass(frozen=True)
class TableSpec:
    name: str
    doc: str
    columns: tuple[Column, ...]

    @cached_property
    def kinds(self) -> dict[str, str]:
        return {column.name: column.kind for column in self.columns}


def _spec(name: str, doc: str, columns: str) -> TableSpec:
    """Reads one `name kind sentence` per line, so that the schema below stays readable."""
    rows = (line.strip().split(None, 2) for line in columns.strip().splitlines())
    return TableSpec(name, doc, tuple(Column(column, kind, doc) for column, kind, doc in rows))


SCHEMA: dict[str, TableSpec] = {
    spec.name: spec
    for spec in (
        _spec(
            "files",
            "Every file that was looked at, and what became of it.",
            """
            file_id   int32  Number of the file in this capture.
            path      text   Where it is, as it was found (archive members after "!").
            source    text   Name of the reader that took it; empty when no reader knows the format.
            rank      int32  Global rank, taken from the name or the content.
            host      text   Host, as far as the name tells.
            n_bytes   int64  Size on disk.
            status    text   read, damaged (partly or wholly), duplicate (another file of the rank was used) or ignored.
            problem   text   What is wrong with it, in one sentence.
            hint      text   What to do about it.
            """,
        ),
        _spec(
            "ranks",
            "Every rank that left a readable trace.",
            """
            rank             int32  Global rank.
            host             text   Host, as far as the file names tell.
            file_id          int32  The Flight Recorder dump that speaks for the rank.
            version          text   Version of the dump's layout.
            comm_version     text   Version of the communication library.
            n_calls          int64  Calls kept in the dump.
            n_dropped        int64  Calls that the ring buffer had already dropped.
            last_created_ns  int64  When the rank enqueued its newest call.
            clock_offset_ns  int64  Estimated offset of the host's clock against the job's median clock.
            clock_error_ns   int64  Uncertainty of that estimate; NULL where the clock was taken as it is.
            """,
        ),
        _spec(
            "group_config",
            "Process groups as each rank's dump describes them.",
            """
            file_id  int32  The dump.
            rank     int32  Global rank that wrote it.
            name     text   Name of the group.
            description  text   Description of the group.
            members  text   Global ranks in group order, as JSON.
            """,
        ),
        _spec(
            "group_status",
            "The progress counters that each rank keeps per process group; they never wrap.",
            """
            file_id         int32  The dump.
            rank            int32  Global rank that wrote it.
            pg_id           int32  The group's number in that process.
            group_name      text   Its name, through the calls of the same dump; empty when none is left.
            last_enqueued   int64  Sequence number of the newest collective enqueued.
            last_started    int64  Newest collective seen to start.
            last_completed  int64  Newest collective seen to complete.
            """,
        ),
        _spec(
            "groups",
            "Process groups, merged over all ranks: identity is the name and the ordered members.",
            """
            group_id  int32  Number of the group in this capture.
            name      text   Name that torch gave it.
            description  text   What the group is for (default_pg, dp, tp, ...).
            size      int32  Number of members.
            origin    text   Where the members are known from: config, world, name-hash or use.
            inferred  bool   True when the members were inferred from who uses the name.
            """,
        ),
        _spec(
            "group_members",
            "The members of each group in group order.",
            """
            group_id    int32  The group.
            group_rank  int32  Position in the group.
            rank        int32  Global rank.
            """,
        ),
        _spec(
            "group_progress",
            "Each member's collectives in each group: below first_seq is evicted, above last_seq not joined.",
            """
            group_id        int32  The group.
            rank            int32  Global rank.
            first_seq       int64  Oldest sequence number kept; NULL when none is.
            last_seq        int64  Newest sequence number enqueued; NULL when not known.
            last_completed  int64  Newest sequence number known to be complete.
            n_kept          int64  Calls kept.
            known           bool   False when the rank left no readable dump, or its ring kept nothing of the group.
            """,
        ),
        _spec(
            "collectives",
            "One row per rank and call, as the Flight Recorder kept it.",
            """
            file_id         int32  The dump.
            rank            int32  Global rank.
            record_id       int64  The rank's own counter over all groups; not comparable between ranks.
            group_id        int32  The process group.
            match_id        int32  The logical collective or transfer that this call is part of.
            group_name      text   Name of the group.
            group_desc      text   Description of the group.
            pg_id           int32  The group's number in the rank's process.
            seq             int64  Sequence number of the collective in its group.
            p2p_seq         int64  Sequence number among the rank's sends and receives in the group.
            op_id           int64  Counter of logical operations in the group.
            op              text   Operation: all_reduce, all_gather, send, recv, barrier, ...
            backend         text   nccl, gloo, ...
            name            text   The name as recorded.
            is_p2p          bool   True for sends, receives and their batches.
            role            text   call, member (of a coalesced group) or batch (the trailer that carries its state).
            peer            int32  Global rank of the other side of a send or receive.
            state           text   scheduled, started or completed, as recorded.
            status          text   done, waiting, aborted (completed only by the abort after its time-out) or failed.
            retired         bool   True when the watchdog let go of it.
            created_ns      int64  When the CPU enqueued it.
            started_ns      int64  When its start was noticed.
            completed_ns    int64  When its end was noticed.
            duration_ns     int64  Time on the device, where recorded.
            timeout_ns      int64  Its time-out.
            input_sizes     text   Shapes of the inputs, as JSON.
            output_sizes    text   Shapes of the outputs, as JSON.
            input_dtypes    text   Types of the inputs, as JSON.
            output_dtypes   text   Types of the outputs, as JSON.
            n_input_bytes   int64  Bytes of the inputs; NULL when a type is unknown.
            n_output_bytes  int64  Bytes of the outputs; NULL when a type is unknown.
            stack_id        int32  The call stack.
            site_id         int32  The frame of the stack that is the user's own code (see frames).
            thread          text   Name of the thread that made the call.
            """,
        ),
        _spec(
            "matches",
            "One row per logical collective (all ranks of the group) or transfer (one send with one receive).",
            """
            match_id          int32  Number of the match.
            group_id          int32  The process group.
            is_p2p            bool   True for a transfer.
            seq               int64  Sequence number of the collective; for a transfer its number within the pair.
            op                text   Operation that most ranks called.
            src               int32  Global rank of the sender of a transfer.
            dst               int32  Global rank of the receiver of a transfer.
            n_members         int32  Ranks that have to join.
            n_joined          int32  Ranks whose dump has the call.
            n_evicted         int32  Ranks whose ring had dropped it: no evidence either way.
            n_missing         int32  Ranks that certainly have not joined.
            n_unknown         int32  Ranks without a readable dump.
            n_done            int32  Ranks that finished it.
            n_signatures      int32  Different operations, sizes or types among the joined ranks.
            state             text   done, waiting, missing (a rank has not joined) or mismatch.
            first_created_ns  int64  When the first rank joined (that rank's clock).
            last_created_ns   int64  When the last rank joined (that rank's clock).
            last_rank         int32  The rank that joined last, clocks aligned.
            """,
        ),
        _spec(
            "stacks",
            "Call stacks, innermost frame first; equal stacks of all ranks are stored once.",
            """
            stack_id  int32  The stack.
            depth     int32  Position, 0 is the innermost frame.
            frame_id  int32  The frame.
            """,
        ),
        _spec(
            "frames",
            "Source positions that occur in stacks.",
            """
            frame_id  int32  The frame.
            file      text   Source file.
            line      int32  Line.
            function  text   Function.
            is_user   bool   False for frames of torch, of Python itself and of launchers.
            """,
        ),
    )
}


class Text:
    """A text column: integer codes into a list of distinct values, so that 2 million rows cost 4 bytes each."""

    __slots__ = ("codes", "values")

    def __init__(self, codes: Array, values: Sequence[str]) -> None:
        self.codes = codes
        self.values = list(values)

    @classmethod
    def constant(cls, value: str, n_rows: int) -> Text:
        return cls(np.zeros(n_rows, np.int32), [value])

    @classmethod
    def encode(cls, strings: Iterable[str]) -> Text:
        pool: dict[str, int] = {}
        codes = [pool.setdefault(string, len(pool)) for string in strings]
        return cls(np.asarray(codes, np.int32), list(pool))

    def __len__(self) -> int:
        return len(self.codes)

    def __getitem__(self, row: int) -> str:
        return self.values[int(self.codes[row])]

    def take(self, rows: Array) -> Text:
        return Text(self.codes[rows], self.values)

    def to_objects(self) -> Array:
        values = np.empty(len(self.values), dtype=object)
        values[:] = self.values
        return values[self.codes] if len(values) else np.empty(0, dtype=object)

    def equals(self, value: str) -> Array:
        """Which rows hold the value; distinct values are compared once, not row by row."""
        hits = np.fromiter((own == value for own in self.values), bool, len(self.values))
        return hits[self.codes] if len(hits) else np.zeros(len(self.codes), bool)

    def tolist(self) -> list[str]:
        values = self.values
        return [values[code] for code in self.codes.tolist()]


class Table:
    """Named columns of equal length, as declared in SCHEMA."""

    def __init__(self, name: str, columns: Mapping[str, Array | Text]) -> None:
        spec = SCHEMA[name]
        self.name = name
        self.columns: dict[str, Array | Text] = {column.name: columns[column.name] for column in spec.columns}
        lengths = {len(column) for column in self.columns.values()}
        if len(lengths) > 1:
            raise ValueError(f"columns of {name} differ in length: {sorted(lengths)}")
        self.n_rows = lengths.pop() if lengths else 0

    @classmethod
    def from_rows(cls, name: str, rows: Sequence[Mapping[str, Any]]) -> Table:
        """For small tables: one mapping per row, absent values are missing."""
        columns: dict[str, Array | Text] = {}
        for column in SCHEMA[name].columns:
            if column.is_text:
                columns[column.name] = Text.encode(str(row.get(column.name, "")) for row in rows)
            else:
                default: Any = False if column.kind == "bool" else MISSING
                columns[column.name] = np.array([row.get(column.name, default) for row in rows], dtype=column.kind)
        return cls(name, columns)

    def __len__(self) -> int:
        return self.n_rows

    def array(self, column: str) -> Array:
        values = self.columns[column]
        assert not isinstance(values, Text), f"{self.name}.{column} is text"
        return values

    def text(self, column: str) -> Text:
        values = self.columns[column]
        assert isinstance(values, Text), f"{self.name}.{column} is not text"
        return values

    def take(self, rows: Array) -> Table:
        return Table(
            self.name,
            {
                name: values.take(rows) if isinstance(values, Text) else values[rows]
                for name, values in self.columns.items()
            },
        )

    def replaced(self, columns: Mapping[str, Array | Text]) -> Table:
        return Table(self.name, {**self.columns, **columns})

    def rows(self) -> Iterator[dict[str, Any]]:
        """Row by row, for small tables and tests."""
        lists = {name: values.tolist() for name, values in self.columns.items()}
        for row in range(self.n_rows):
            yield {name: values[row] for name, values in lists.items()}


def concat(name: str, parts: Sequence[Table]) -> Table:
    """Appends tables of one kind, with one common list of values per text column. The parts are consumed."""
    spec = SCHEMA[name]
    columns: dict[str, Array | Text] = {}
    for column in spec.columns:
        if column.is_text:
            columns[column.name] = _concat_text([part.text(column.name) for part in parts])
        elif parts:
            columns[column.name] = np.concatenate([part.array(column.name) for part in parts])
        else:
            columns[column.name] = np.empty(0, dtype=column.kind)
        for part in parts:  # frees each column as soon as it is copied: the peak is one column, not one table
            part.columns[column.name] = np.empty(0, dtype=np.int8)
    return Table(name, columns)


def _concat_text(parts: Sequence[Text]) -> Text:
    pool: dict[str, int] = {}
    codes = []
    for part in parts:
        lookup = np.fromiter((pool.setdefault(value, len(pool)) for value in part.values), np.int32, len(part.values))
        codes.append(lookup[part.codes] if len(lookup) else part.codes)
    # Most columns have few distinct values: one byte per row instead of four.
    small = np.min_scalar_type(len(pool))
    return Text(np.concatenate([part.astype(small) for part in codes]) if codes else np.empty(0, small), list(pool))


@dataclass
class Trace:
    """Everything that was read from one capture: named tables, and the paths it came from."""

    paths: tuple[str, ...]
    tables: dict[str, Table] = field(default_factory=dict)
    derived: dict[Any, Any] = field(
        default_factory=dict, repr=False
    )  # what analyses computed from the tables, by maker

    def has(self, name: str) -> bool:
        """True when the table holds rows."""
        return name in self.tables and len(self.tables[name]) > 0

    def table(self, name: str) -> Table:
        """The table, empty when the capture has nothing of its kind."""
        if name not in self.tables:
            return concat(name, [])
        return self.tables[name]
