"""Nsight Systems (SQLite and Parquet exports; reports where nsys is installed) -> operators, kernels, calls, steps."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rankscope.errors import BadFileError
from rankscope.model.tables import MISSING, Part, Table
from rankscope.read.files import Source
from rankscope.read.nsys_export import (
    PARQUET_MAGIC,
    REPORT_MAGIC,
    SQLITE_MAGIC,
    STRINGS,
    TABLES,
    Export,
    Parts,
    opened_export,
    show_tables,
)
from rankscope.read.nsys_processes import Ranks, find_devices, find_host, find_ranks, start_time
from rankscope.read.profile_store import Profile, store_profiles
from rankscope.read.staging import staging

if TYPE_CHECKING:
    from rankscope.read.profile_tables import StagedRows

NAME = "nsys"
MARKS = ("SQLite format 3", "NVIDIA Tegra Profiler Report", "PAR1")

_SQLITE_NAME = re.compile(r"\.sqlite3?(\.(gz|zst))?$", re.IGNORECASE)
# The first page of a small export lists some of its tables; that of a large one only points to other pages.
_TABLE_NAMES = re.compile(rb"CUPTI_ACTIVITY|StringIds|TARGET_INFO_|NVTX_EVENTS|DIAGNOSTIC_EVENT|ANALYSIS_DETAILS")
_EPOCH_NS = 10**18  # times beyond are counted from 1970 already (nsys export --ts-normalize=true)


def sniff(head: bytes, name: str) -> bool:
    if head.startswith(SQLITE_MAGIC):
        return bool(_SQLITE_NAME.search(name) or _TABLE_NAMES.search(head))
    return head.startswith(REPORT_MAGIC) or (head.startswith(PARQUET_MAGIC) and name.endswith(f"{STRINGS}.parquet"))


def read(source: Source) -> Iterator[Table | Part]:
    return store_profiles(source, NAME, _convert)


def _convert(sources: Sequence[Source], folder: Path) -> Iterator[Profile]:
    from rankscope.read.nsys_nccl import communicator_ranks
    from rankscope.read.nsys_stages import list_processes

    [source] = sources
    with staging() as connection, opened_export(source, folder, connection) as export:
        parts = {table: list(export.parts(table, kinds, folder, connection)) for table, kinds in TABLES.items()}
        show_tables(connection, parts)
        processes = list_processes(connection)
        if not processes:
            raise BadFileError(
                "has neither CUDA nor NVTX events",
                "record with nsys profile --trace=cuda,nvtx,osrt; rankscope record --nsys does it",
            )
        ranks = find_ranks(export, source, processes, communicator_ranks(connection))
        for process in processes:
            yield _profile(export, folder, parts, process, ranks)


def _profile(export: Export, folder: Path, parts: Parts, process: int, ranks: Ranks) -> Profile:
    """One process, in its own connection: what is staged for one must not mix with the next."""
    from rankscope.read.nsys_stages import stage_process
    from rankscope.read.profile_tables import staged_rows, write_profiles

    subfolder = f"process-{process}"
    process_folder = folder / subfolder
    process_folder.mkdir()
    devices = find_devices(export, process & 0xFFFFFF)
    with staging() as connection:
        show_tables(connection, parts)
        stage_process(connection, process_folder, process, ranks.of[process], devices)
        staged = staged_rows(connection)
        base_ns, time_note = _base_time(staged.get(0, {}), start_time(export))
        [written] = write_profiles(connection, process_folder, staged, {0: base_ns}).values()
        [(has_shapes,)] = connection.execute("SELECT count(input_dims) > 0 FROM raw_ops").fetchall()
    columns = {
        "device_type": "cuda" if "kernels" in written.n_rows else "cpu",
        "backend": "nccl" if "comms" in written.n_rows else "",
        "world_size": ranks.world_size,
        "groups": "[]",
        "has_shapes": bool(has_shapes),
        "has_stacks": False,
        "note": "; ".join(note for note in (ranks.note, time_note) if note),
    }
    return Profile(ranks.of[process], find_host(export), columns, devices, written, subfolder=subfolder)


def _base_time(staged: StagedRows, started_ns: int) -> tuple[int, str]:
    timed = ("raw_ops", "raw_calls", "raw_kernels", "raw_annotations")
    if min((staged[stage].first_ns for stage in timed if stage in staged), default=0) >= _EPOCH_NS:
        return 0, ""
    if started_ns == MISSING:
        return 0, "it does not say when it started: its times are counted from 1970"
    return started_ns, ""
