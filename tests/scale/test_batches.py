"""Small traces are read together: what comes out is the same as of each one alone, and one cannot harm another."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from rankscope.model.tables import Trace
from rankscope.pipeline import load
from rankscope.read import batches, kineto
from rankscope.read.files import Source
from scale.comparing import contents, write_traces

N_RANKS = 5


@pytest.fixture
def job(tmp_path: Path) -> Path:
    write_traces(tmp_path / "job", n_ranks=N_RANKS)
    return tmp_path / "job"


def alone(job: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    with monkeypatch.context() as patched:
        patched.delattr(kineto, "read_together")
        return contents(load(job))


def files_read(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the files that are read from now on."""
    names: list[str] = []
    convert = kineto._convert

    def noting(sources: list[Source], folder: Path) -> Any:
        names.extend(source.path.name for source in sources)
        return convert(sources, folder)

    monkeypatch.setattr(kineto, "_convert", noting)
    return names


def paths_of(trace: Trace) -> set[str]:
    return {part.path for part in trace.parts["ops"]}


@pytest.mark.parametrize("jobs", [1, 2])
def test_together_gives_the_same_as_alone(job: Path, jobs: int, monkeypatch: pytest.MonkeyPatch) -> None:
    trace = load(job, jobs=jobs)
    assert len(paths_of(trace)) == jobs
    assert contents(trace) == alone(job, monkeypatch)


def test_a_file_keeps_its_own_entry(job: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = str(tmp_path / "kept")
    before = contents(load(job, cache=kept))
    first = min(job.iterdir())
    os.utime(first, ns=(1, first.stat().st_mtime_ns + 1))
    names = files_read(monkeypatch)
    assert contents(load(job, cache=kept)) == before
    assert names == [first.name]
    alone_again = contents(load(max(job.iterdir()), cache=kept))
    assert names == [first.name]
    assert {row[1] for row in alone_again["ops"]} == {N_RANKS - 1}


def test_what_others_shared_may_be_removed(job: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trace = load(job, cache=str(tmp_path / "kept"))
    before = contents(trace)
    [path] = paths_of(trace)
    shutil.rmtree(Path(path).parent)
    names = files_read(monkeypatch)
    assert contents(load(job, cache=str(tmp_path / "kept"))) == before
    assert len(names) == N_RANKS


@pytest.mark.parametrize(
    "content",
    [b"", b'{"traceEvents": []}', b'{"traceEvents": [{"ph": "X", "ts": 1, "dur": 1, "cat": "nothing", "name": "x"}]}'],
)
def test_a_bad_file_costs_only_itself(content: bytes, job: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    victim = sorted(job.iterdir())[2]
    victim.write_bytes(content)
    trace = load(job)
    status = {Path(row["path"]).name: row["status"] for row in trace.table("files").rows()}
    assert {name for name, each in status.items() if each == "damaged"} == {victim.name}
    assert contents(trace) == alone(job, monkeypatch)


def test_a_truncated_file_gives_what_it_has(job: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    victim = sorted(job.iterdir())[2]
    victim.write_bytes(victim.read_bytes()[: victim.stat().st_size // 2])
    trace = load(job)
    assert len(paths_of(trace)) == 1
    assert contents(trace) == alone(job, monkeypatch)


def test_large_files_are_read_alone(job: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batches, "_BATCH_BYTES", 1)
    assert len(paths_of(load(job))) == N_RANKS
