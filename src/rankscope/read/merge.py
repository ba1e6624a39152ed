"""Joins the tables of all files into those of the capture: one numbering of frames and stacks, one dump per rank."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from rankscope.model.numbers import whole
from rankscope.model.tables import MISSING, Array, Table, concat
from rankscope.read.recorder_entries import stack_table
from rankscope.read.recorder_shapes import frame_row

_WITH_STACKS = {"collectives", "thread_stacks"}


@dataclass
class Merger:
    """Takes the tables of one file after the other and keeps only columns, never the files' objects."""

    parts: dict[str, list[Table]] = field(default_factory=dict)
    _frames: dict[tuple[str, int, str], int] = field(default_factory=dict)
    _stacks: dict[tuple[int, ...], int] = field(default_factory=dict)

    def add(self, tables: Sequence[Table]) -> None:
        by_name = {table.name: table for table in tables}
        frames, stacks = by_name.pop("frames", None), by_name.pop("stacks", None)
        if frames is not None and stacks is not None:
            for name in by_name.keys() & _WITH_STACKS:
                by_name[name] = self._renumbered(by_name[name], frames, stacks)
        for name, table in by_name.items():
            if len(table):
                self.parts.setdefault(name, []).append(table)

    def _renumbered(self, table: Table, frames: Table, stacks: Table) -> Table:
        keys = zip(
            frames.text("file").tolist(), frames.array("line").tolist(), frames.text("function").tolist(), strict=True
        )
        frame_ids = [self._frames.setdefault(key, len(self._frames)) for key in keys]
        stack_frames: dict[int, list[int]] = {}
        for stack, frame in zip(stacks.array("stack_id").tolist(), stacks.array("frame_id").tolist(), strict=True):
            stack_frames.setdefault(stack, []).append(frame_ids[frame])
        local = table.array("stack_id")
        n_local = whole(local.max()) + 1 if len(local) else 0
        stack_ids = np.full(n_local, MISSING, np.int32)
        for stack in range(n_local):
            stack_ids[stack] = self._stacks.setdefault(tuple(stack_frames.get(stack, ())), len(self._stacks))
        sites = table.array("site_id")
        site_ids = np.array([*frame_ids, MISSING], np.int32)[sites]
        return table.replaced({"stack_id": stack_ids[local], "site_id": site_ids})

    def tables(self) -> dict[str, Table]:
        """The merged tables; the parts are consumed."""
        merged = {name: concat(name, parts) for name, parts in self.parts.items()}
        self.parts.clear()
        merged["frames"] = Table.from_rows(
            "frames", [frame_row(number, *site) for site, number in self._frames.items()]
        )
        merged["stacks"] = stack_table(self._stacks)
        return merged


def drop_duplicate_ranks(tables: dict[str, Table]) -> dict[int, int]:
    """Keeps the newest dump of each rank in every table. Returns dropped file -> file used for the rank."""
    ranks = tables["ranks"]
    order = np.lexsort((-ranks.array("file_id"), ranks.array("last_created_ns"), ranks.array("rank")))
    rank_of, file_of = ranks.array("rank")[order], ranks.array("file_id")[order]
    is_last = np.append(rank_of[1:] != rank_of[:-1], True)
    kept_file = dict(zip(rank_of[is_last].tolist(), file_of[is_last].tolist(), strict=True))
    dropped = {
        file: kept_file[rank] for rank, file in zip(rank_of[~is_last].tolist(), file_of[~is_last].tolist(), strict=True)
    }
    if dropped:
        gone = np.array(list(dropped), np.int32)
        for name in ("ranks", "collectives", "group_config", "group_status"):
            if name in tables:
                tables[name] = tables[name].take(_rows_outside(tables[name].array("file_id"), gone))
    return dropped


def _rows_outside(file_ids: Array, gone: Array) -> Array:
    return np.flatnonzero(~np.isin(file_ids, gone))
