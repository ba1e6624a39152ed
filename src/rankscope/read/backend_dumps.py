"""Joins the dumps of several recorders in one process: torch keeps a ring per backend, and torchcomms has its own.

Dumps belong to one process if they are in one folder, have the same rank and time, and cover different backends or
different groups. A group that two backends serve (`cpu:gloo,cuda:nccl`) counts its calls once per backend, so each
backend's share of it is a separate group.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from rankscope.model.numbers import whole
from rankscope.model.tables import MISSING, Array, Table, Text, distinct
from rankscope.read.stale_dumps import MAX_APART_NS
from rankscope.read.two_recorders import OWN


@dataclass(frozen=True)
class _Dump:
    row: dict[str, Any]  # of the table ranks
    backends: frozenset[str]
    groups: frozenset[str]
    members: Mapping[str, str]  # of the groups it knows
    first_ns: int
    last_ns: int

    @property
    def file_id(self) -> int:
        return whole(self.row["file_id"])

    def is_beside(self, other: _Dump) -> bool:
        """Whether both can be of one process at one time."""
        if any(other.members.get(name, members) != members for name, members in self.members.items()):
            return False
        apart_ns = max(self.first_ns, other.first_ns) - min(self.last_ns, other.last_ns)
        shares_backend, shares_group = self.backends & other.backends, self.groups & other.groups
        if shares_backend or shares_group:
            return apart_ns <= 0 and not (shares_backend and shares_group)
        return apart_ns <= MAX_APART_NS


def join_backends(tables: dict[str, Table]) -> dict[int, int]:
    """Merges the dumps of one process, in every table. Returns file -> file that replaces it."""
    ranks = tables["ranks"]
    if "collectives" not in tables or len(distinct(ranks.array("rank"))) == len(ranks):
        return {}
    processes = list(_processes(tables))
    if not processes:
        return {}
    _part_shared_groups(tables, processes)
    stands_for = {dump.file_id: process[0].file_id for process in processes for dump in process[1:]}
    tables["collectives"] = _joined_calls(tables["collectives"], stands_for)
    for name in ("group_config", "group_status"):
        if name in tables:
            tables[name] = _moved(tables[name], stands_for)
    merged = {process[0].file_id: _joined_row(process) for process in processes}
    rows = [merged.get(row["file_id"], row) for row in ranks.rows() if row["file_id"] not in stands_for]
    tables["ranks"] = Table.from_rows("ranks", rows)
    return stands_for


def _processes(tables: Mapping[str, Table]) -> Iterator[list[_Dump]]:
    files = tables["files"]
    paths = dict(zip(files.array("file_id").tolist(), files.text("path").tolist(), strict=True))
    by_place: dict[tuple[int, str], list[dict[str, Any]]] = defaultdict(list)
    for row in sorted(tables["ranks"].rows(), key=lambda row: paths.get(row["file_id"], "")):
        folder = paths.get(row["file_id"], "").replace("!", "/").rpartition("/")[0]
        if row["recorder"] != OWN and row["n_calls"]:
            by_place[row["rank"], folder].append(row)
    for rows in by_place.values():
        dumps = [_dump(tables, row) for row in rows] if len(rows) > 1 else []
        # Two of one backend and group are two runs: which of them the third belongs to is not for here to tell.
        if dumps and all(one.is_beside(other) for index, one in enumerate(dumps) for other in dumps[:index]):
            yield dumps


def _dump(tables: Mapping[str, Table], row: dict[str, Any]) -> _Dump:
    calls = tables["collectives"]
    rows = np.flatnonzero(calls.array("file_id") == row["file_id"])
    backends, groups = (frozenset(calls.text(name).take(rows).tolist()) for name in ("backend", "group_name"))
    created = calls.array("created_ns")[rows]
    config = tables["group_config"].rows() if "group_config" in tables else ()
    members = {
        group["name"]: group["members"] for group in config if group["file_id"] == row["file_id"] and group["name"]
    }
    return _Dump(row, backends, groups, members, whole(created.min()), whole(created.max()))


def _part_shared_groups(tables: dict[str, Table], processes: Sequence[Sequence[_Dump]]) -> None:
    """If several backends serve a group, all but one get a name that says which."""
    served: dict[str, set[str]] = defaultdict(set)
    for process in processes:
        for name in set().union(*(dump.groups for dump in process)):
            users = [dump for dump in process if name in dump.groups]
            if len(users) > 1:
                served[name].update(*(dump.backends for dump in users))
    renamed = {
        (name, backend): f"{name} ({backend})"
        for name, backends in served.items()
        for backend in sorted(backends, key=lambda backend: (backend == "gloo", backend))[1:]
    }
    calls = tables["collectives"]
    names, backends, files = calls.text("group_name").tolist(), calls.text("backend").tolist(), calls.array("file_id")
    if not renamed:
        return
    backend_of = dict(zip(zip(files.tolist(), names, strict=True), backends, strict=True))
    new_names = [renamed.get((name, backend), name) for name, backend in zip(names, backends, strict=True)]
    tables["collectives"] = calls.replaced({"group_name": Text.encode(new_names)})
    for table_name, column in (("group_config", "name"), ("group_status", "group_name")):
        table = tables.get(table_name)
        if table is not None:
            keys = list(zip(table.array("file_id").tolist(), table.text(column).tolist(), strict=True))
            new_names = [renamed.get((name, backend_of.get((file, name), "")), name) for file, name in keys]
            tables[table_name] = table.replaced({column: Text.encode(new_names)})


def _moved(table: Table, stands_for: Mapping[int, int]) -> Table:
    """The rows with the merged file; group numbers are each recorder's own and must not collide."""
    files = table.array("file_id")
    columns: dict[str, Array | Text] = {}
    moved = files.copy()
    for file, other in stands_for.items():
        moved[files == file] = other
    columns["file_id"] = moved
    if "pg_id" in table.columns:
        places = {file: index for index, file in enumerate(stands_for, 1)}
        pg_id = table.array("pg_id").copy()
        for file, index in places.items():
            pg_id[files == file] += index << 16
        columns["pg_id"] = pg_id
    return table.replaced(columns)


def _joined_calls(calls: Table, stands_for: Mapping[int, int]) -> Table:
    """In the order of their times, renumbered; members of a coalesced call stay before their trailer."""
    time = _block_times(calls)
    calls = _moved(calls, stands_for)
    file, ids = calls.array("file_id"), calls.array("record_id").copy()
    order = np.arange(len(calls))
    for joined in set(stands_for.values()):
        rows = np.flatnonzero(file == joined)
        sorted_rows = rows[np.argsort(time[rows], kind="stable")]
        order[rows] = sorted_rows
        ids[sorted_rows] = whole(ids[rows].min()) + np.arange(len(rows))
    return calls.replaced({"record_id": ids}).take(order)


def _block_times(calls: Table) -> Array:
    """When each call was made, for members of a coalesced call that of its trailer."""
    rows = np.arange(len(calls))
    is_member = calls.text("role").equals("member")
    trailer = np.minimum.accumulate(np.where(is_member, len(calls) - 1, rows)[::-1])[::-1]
    is_same_file = calls.array("file_id")[trailer] == calls.array("file_id")
    times: Array = calls.array("created_ns")[np.where(is_same_file, trailer, rows)]
    return times


def _joined_row(process: Sequence[_Dump]) -> dict[str, Any]:
    rows = [dump.row for dump in process]
    first = rows[0]
    return {
        **first,
        "host": next((row["host"] for row in rows if row["host"]), ""),
        "comm_version": next((row["comm_version"] for row in rows if row["comm_version"]), ""),
        "n_calls": sum(row["n_calls"] for row in rows),
        "n_dropped": max(row["n_dropped"] for row in rows),
        "last_created_ns": max(row["last_created_ns"] for row in rows),
        "written_ns": max((row["written_ns"] for row in rows), default=MISSING),
    }
