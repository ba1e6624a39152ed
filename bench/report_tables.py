"""A capture too large to simulate call by call: one group whose ranks made thousands of collectives, as tables."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from rankscope.model.finding import SCHEMA_NAME, Capture, CollectiveRef, Finding, GroupRef, Report
from rankscope.model.tables import MISSING, SCHEMA, Array, Table, Text, Trace
from rankscope.render.page.contents import PageOptions
from rankscope.render.page.writer import write_page

START_NS = 1_768_485_720 * 10**9
_PERIOD_NS = 100_000_000
_SIZES = [f"[[{1024 * size}]]" for size in range(1, 51)]


def write_wide_page(path: Path, n_ranks: int, n_columns: int) -> None:
    """One rank never reaches the last collective."""
    culprit = n_ranks // 2 + 1
    everyone = tuple(range(n_ranks))
    found = Finding(
        code="H105",
        rule="rank-stuck",
        severity="error",
        certainty="certain",
        title=f"rank {culprit} never reached all_reduce",
        ranks=(culprit,),
        group=GroupRef("0", "default_pg", everyone),
        collective=CollectiveRef(n_columns, "all_reduce"),
    )
    capture = Capture(("traces",), everyone, n_ranks, {"flight_recorder": n_ranks}, n_groups=1)
    report = Report(SCHEMA_NAME, capture, (found,), ())
    write_page(wide_trace(n_ranks, n_columns, culprit), report, str(path), PageOptions())


def wide_trace(n_ranks: int, n_columns: int, culprit: int) -> Trace:
    ranks = [{"rank": rank, "host": f"gpu-{rank // 8:04}", "clock_offset_ns": 0} for rank in range(n_ranks)]
    members = [{"group_id": 0, "group_rank": rank, "rank": rank} for rank in range(n_ranks)]
    progress = [
        {"group_id": 0, "rank": rank, "first_seq": 1, "last_seq": n_columns - (rank == culprit), "known": True}
        for rank in range(n_ranks)
    ]
    group = {"group_id": 0, "name": "0", "description": "default_pg", "size": n_ranks}
    frames = [
        {"frame_id": line, "file": "train.py", "line": line, "function": "step", "is_user": True} for line in range(8)
    ]
    tables = {
        "ranks": Table.from_rows("ranks", ranks),
        "groups": Table.from_rows("groups", [group]),
        "group_members": Table.from_rows("group_members", members),
        "group_progress": Table.from_rows("group_progress", progress),
        "frames": Table.from_rows("frames", frames),
        "stacks": Table.from_rows("stacks", [{"stack_id": at, "depth": 0, "frame_id": at} for at in range(8)]),
        "collectives": _calls(n_ranks, n_columns, culprit),
        "matches": _matches(n_ranks, n_columns),
    }
    return Trace(("traces",), tables)


def _calls(n_ranks: int, n_columns: int, culprit: int) -> Table:
    noise = np.random.default_rng(1)
    rank = np.repeat(np.arange(n_ranks, dtype=np.int32), n_columns)
    seq = np.tile(np.arange(1, n_columns + 1, dtype=np.int64), n_ranks)
    is_made = ~((rank == culprit) & (seq == n_columns))
    rank, seq = rank[is_made], seq[is_made]
    created = START_NS + seq * _PERIOD_NS + noise.exponential(2e6, len(seq)).astype(np.int64)
    is_last = seq == n_columns
    ended = np.where(is_last, MISSING, created + noise.exponential(8e6, len(seq)).astype(np.int64))
    size = Text((seq % len(_SIZES)).astype(np.uint8), _SIZES)
    kind = Text(np.zeros(len(seq), np.uint8), ['["BFloat16"]'])
    return _table(
        "collectives",
        len(seq),
        rank=rank,
        seq=seq,
        group_id=np.zeros(len(seq), np.int32),
        match_id=(seq - 1).astype(np.int32),
        stack_id=(seq % 8).astype(np.int32),
        created_ns=created,
        completed_ns=ended,
        op=Text(np.zeros(len(seq), np.uint8), ["all_reduce"]),
        status=Text(is_last.astype(np.uint8), ["done", "waiting"]),
        input_sizes=size,
        output_sizes=size,
        input_dtypes=kind,
        output_dtypes=kind,
    )


def _matches(n_ranks: int, n_columns: int) -> Table:
    seq = np.arange(1, n_columns + 1)
    is_last = seq == n_columns
    began = START_NS + seq * _PERIOD_NS
    return _table(
        "matches",
        n_columns,
        match_id=seq - 1,
        group_id=np.zeros(n_columns, np.int32),
        seq=seq,
        op=Text.constant("all_reduce", n_columns),
        n_members=np.full(n_columns, n_ranks),
        n_joined=n_ranks - is_last,
        n_missing=is_last.astype(np.int32),
        n_signatures=np.ones(n_columns, np.int32),
        state=Text(is_last.astype(np.uint8), ["done", "missing"]),
        first_created_ns=began,
        last_created_ns=began + _PERIOD_NS // 5,
    )


def _table(name: str, n_rows: int, **columns: Array | Text) -> Table:
    """What is not given is missing."""
    missing: dict[str, Any] = {
        column.name: Text(np.zeros(n_rows, np.uint8), [""])
        if column.is_text
        else np.broadcast_to(np.zeros((), bool) if column.kind == "bool" else np.array(MISSING, column.kind), n_rows)
        for column in SCHEMA[name].columns
    }
    return Table(name, {**missing, **columns})
