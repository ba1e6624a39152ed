"""Manifests: the whole one and the ranks' own parts, and which of them speaks for a rank."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rankscope.analyze.covered import describe_capture
from rankscope.errors import BadFileError
from rankscope.model.tables import Trace
from rankscope.pipeline import load
from rankscope.read import manifest
from rankscope.read.files import Source, name_source
from read.collected_files import START_NS, manifest_part, whole_manifest


def write(path: Path, content: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    return path


def rows(trace: Trace, table: str = "manifests") -> list[dict[str, Any]]:
    return list(trace.table(table).rows())


def test_a_manifest_tells_every_rank(tmp_path: Path) -> None:
    write(tmp_path / "manifest.json", whole_manifest(manifest_part(0), manifest_part(1, host="gpu-2"), exit_code=-9))
    trace = load(tmp_path)
    first, second = rows(trace)
    assert (first["rank"], first["host"], second["rank"], second["host"]) == (0, "gpu-1", 1, "gpu-2")
    assert (first["torch"], first["n_steps"], first["started_ns"]) == ("2.13.0+cpu", 12, START_NS)
    assert first["exit_code"] == 137
    assert first["run"] == "run-1"
    assert json.loads(first["asked"])["nsys"] is True
    assert next(row["file"] for row in rows(trace, "collected_files") if row["rank"] == 1) == "kineto_trace_1.json"
    assert {row["what"] for row in rows(trace, "collection_problems")} == {"nsys"}
    capture = describe_capture(trace)
    assert (capture.world_size, capture.hosts, capture.ranks) == (2, ("gpu-1", "gpu-2"), (0, 1))


def test_values_that_are_not_known_are_missing(tmp_path: Path) -> None:
    part = manifest_part(0, ended_ns=None, clock_offset_ns=None, clock_error_ns=None)
    write(tmp_path / "manifest.json", whole_manifest(part, exit_code=None))
    (row,) = rows(load(tmp_path))
    assert [row[name] for name in ("ended_ns", "clock_offset_ns", "clock_error_ns", "exit_code")] == [-1] * 4


def test_a_part_speaks_only_for_a_rank_that_the_whole_lacks(tmp_path: Path) -> None:
    write(tmp_path / "manifest.json", whole_manifest(manifest_part(0)))
    write(tmp_path / "manifest.d" / "rank_0.json", manifest_part(0, n_steps=3, started_ns=START_NS + 1))
    write(tmp_path / "manifest.d" / "rank_1.json", manifest_part(1, n_steps=7))
    trace = load(tmp_path)
    assert sorted((row["rank"], row["n_steps"]) for row in rows(trace)) == [(0, 12), (1, 7)]
    assert len(rows(trace, "collected_files")) == 6
    assert len(rows(trace, "collection_problems")) == 2
    statuses = {row["path"].rsplit("/", 1)[-1]: row["status"] for row in rows(trace, "files")}
    assert statuses == {"manifest.json": "read", "rank_0.json": "ignored", "rank_1.json": "read"}


def test_of_two_whole_ones_the_newer_speaks(tmp_path: Path) -> None:
    write(tmp_path / "a" / "manifest.json", whole_manifest(manifest_part(0, started_ns=START_NS + 5, n_steps=2)))
    write(tmp_path / "b" / "manifest.json", whole_manifest(manifest_part(0)))
    assert [row["n_steps"] for row in rows(load(tmp_path))] == [2]


@pytest.mark.parametrize(
    "content",
    [
        whole_manifest({"rank": "zero"}),
        whole_manifest({"rank": 1 << 40}),
        {"schema": "rankscope.manifest/1", "ranks": 3},
        {"schema": "rankscope.manifest/1"},
        manifest_part(0, got="all"),
        manifest_part(0, started_ns=1 << 70),
    ],
)
def test_what_is_laid_out_otherwise_is_refused(content: Any, tmp_path: Path) -> None:
    path = write(tmp_path / "manifest.json", content)
    assert manifest.sniff(path.read_bytes(), path.name)
    source = name_source(Source(path, str(path), path.stat().st_size))
    assert source is not None
    with pytest.raises(BadFileError) as caught:
        list(manifest.read(replace(source, file_id=0)))
    assert caught.value.hint
