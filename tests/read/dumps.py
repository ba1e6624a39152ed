"""Dumps to read, made by hand where one field matters and by the simulator where a whole job does."""

from __future__ import annotations

import pickle
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

from rankscope.errors import BadFileError
from rankscope.model.finding import Finding, Report
from rankscope.model.tables import Table, Trace
from rankscope.pipeline import diagnose, load
from rankscope.read import flight_recorder
from rankscope.read.files import Source, name_source
from rankscope.simulate import Fault, JobSpec, Mesh, Noise, Simulation, simulate

Dump = dict[str, Any]
FRAME = {"name": "step", "filename": "/job/train.py", "line": 12}


def make_entry(seq: int = 1, **fields: Any) -> Dump:
    """One call as torch 2.13 records it, with what matters replaced."""
    return {
        "record_id": seq,
        "pg_id": 0,
        "process_group": ("0", "default_pg"),
        "thread_name": "python",
        "thread_id": "7",
        "collective_seq_id": seq,
        "p2p_seq_id": 0,
        "op_id": seq,
        "profiling_name": "nccl:all_reduce",
        "time_created_ns": 1_000_000_000 * (seq + 1),
        "input_sizes": [[4, 8]],
        "output_sizes": [[4, 8]],
        "input_dtypes": ["Float"],
        "output_dtypes": ["Float"],
        "state": "scheduled",
        "time_discovered_started_ns": None,
        "time_discovered_completed_ns": None,
        "retired": False,
        "timeout_ms": 600_000,
        "is_p2p": False,
        "frames": [FRAME],
        **fields,
    }


def make_dump(calls: Iterable[Any], **fields: Any) -> Dump:
    return {
        "version": "2.10",
        "pg_config": {"0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1]"}},
        "comm_lib_version": "2.27.5",
        "pg_status": {
            "0": {"last_enqueued_collective": 3, "last_started_collective": -1, "last_completed_collective": 2}
        },
        "entries": list(calls),
        **fields,
    }


def write_dump(path: Path, dump: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(pickle.dumps(dump, protocol=2))
    return path


def read_tables(path: Path) -> dict[str, Table]:
    """The tables of one file, through the reader alone."""
    source = name_source(Source(path, str(path), path.stat().st_size))
    assert source is not None
    return {table.name: table for table in flight_recorder.read(replace(source, file_id=0))}


def refusal(path: Path) -> BadFileError | None:
    """Why the reader refused the file; None when it was read. Any other exception is a failure of the test."""
    try:
        read_tables(path)
    except BadFileError as error:
        return error
    return None


def assert_clear(error: BadFileError | None) -> None:
    """The file was read, or refused with a reason and a way out."""
    if error is not None:
        assert error.message
        assert "\n" not in error.message
        assert error.hint


def assert_read_or_clearly_refused(path: Path) -> None:
    assert_clear(refusal(path))


def read_calls(path: Path) -> list[dict[str, Any]]:
    return list(read_tables(path)["collectives"].rows())


def read_entries(folder: Path, *entries: Any) -> list[dict[str, Any]]:
    return read_calls(write_dump(folder / "nccl_trace_rank_0", make_dump(entries)))


def hung_job(noise: Noise | None = None, mesh: Mesh | None = None) -> Simulation:
    """Rank 2 calls another collective than its peers."""
    return simulate(JobSpec(mesh or Mesh(dp=4, tp=1), steps=3), Fault("op", rank=2, step=1), noise or Noise())


def rows_of(trace: Trace, table: str = "files") -> list[dict[str, Any]]:
    return list(trace.table(table).rows())


def report_of(*paths: Path, **options: Any) -> Report:
    return diagnose(load(paths, **options))


def verdict(report: Report) -> Finding:
    return report.findings[0]


def codes(report: Report) -> set[str]:
    return {finding.code for finding in report.findings}
