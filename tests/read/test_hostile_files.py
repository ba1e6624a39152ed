"""Files that ended the command, or changed its verdict in silence: each costs itself alone, and is told."""

from __future__ import annotations

import json
import os
import pickle
import shutil
from pathlib import Path
from typing import Any

import pytest

from rankscope import diagnose, load
from rankscope.cli import main
from rankscope.model.border import raise_bugs
from rankscope.model.finding import Report
from read.dumps import make_dump, make_entry

DATA = Path(__file__).parents[1] / "data"
DUMP = "nccl_trace_rank_0"
METRICS = '{"schema": "rankscope.metrics/1", "rank": 0, "world_size": 2, "host": "gpu-1", "pid": 4711'


def dumped(value: Any) -> bytes:
    return pickle.dumps(value, protocol=2)


def node(**fields: Any) -> bytes:
    trace = json.loads((DATA / "execution_trace" / "torch_et_0.json").read_bytes())
    trace["nodes"][1] |= fields
    return json.dumps(trace).encode()


def desync_report(date: str) -> bytes:
    return (DATA / "desync" / "desync_0.txt").read_bytes().replace(b"2026-11-16", date.encode())


DAMAGED = {
    "entries None": (DUMP, dumped(make_dump([], entries=None))),
    "entries text": (DUMP, dumped(make_dump([], entries="x"))),
    "sizes bool": (DUMP, dumped(make_dump([make_entry(1, input_sizes=[True])]))),
    "sizes None": (DUMP, dumped(make_dump([make_entry(1, input_sizes=[[None]])]))),
    "metrics with a deep header": ("metrics_0.jsonl", (METRICS + ', "x": ' + "[" * 50_000).encode()),
    "execution trace that is deep": ("torch_et_0.json", node().replace(b'"nodes"', b'"x": ' + b"[" * 9000)),
    "execution trace that is not UTF-8": ("torch_et_0.json", node().replace(b'"name": "', b'"name": "\xff')),
}
UNDAMAGED = {
    "config of another type": (DUMP, dumped(make_dump([make_entry(1)], pg_config=7, pg_status=[1]))),
    "desync report of another age": ("desync_0.txt", desync_report("6026-11-16")),
    "desync report of no day": ("desync_0.txt", desync_report("2026-11-96")),
    "a superscript in a name": ("notes1²", b"nothing"),
}


@pytest.fixture
def job(tmp_path: Path) -> Path:
    """Rank 1 waits in a call that rank 0 is a member of."""
    (tmp_path / "nccl_trace_rank_1").write_bytes(dumped(make_dump([make_entry(1), make_entry(2)])))
    return tmp_path


def codes(report: Report) -> list[str]:
    return [finding.code for finding in report.findings]


@pytest.mark.parametrize("kind", DAMAGED)
def test_a_damaged_file_costs_itself_alone(kind: str, job: Path) -> None:
    alone = codes(diagnose(load(job)))
    name, content = DAMAGED[kind]
    (job / name).write_bytes(content)
    report = diagnose(load(job))
    (damage,) = (finding for finding in report.findings if finding.code == "D902")
    assert name in damage.title
    assert damage.help
    assert set(alone) <= set(codes(report))
    assert report.capture.sources["flight_recorder"] >= 1


@pytest.mark.parametrize("kind", UNDAMAGED)
def test_an_odd_field_or_name_costs_nothing(kind: str, job: Path) -> None:
    name, content = UNDAMAGED[kind]
    (job / name).write_bytes(content)
    assert "D902" not in codes(diagnose(load(job)))


@pytest.mark.parametrize("entries", [None, "x"])
def test_a_rank_whose_dump_is_damaged_is_not_lost(entries: object, job: Path) -> None:
    (job / DUMP).write_bytes(dumped(make_dump([], entries=entries)))
    report = diagnose(load(job))
    (waiting,) = (finding for finding in report.findings if finding.code == "H101")
    assert waiting.certainty == "possible"
    assert waiting.title == "the dump of rank 0 cannot be read, and 1 rank is waiting for it"
    assert not any("died" in line for line in waiting.evidence.likely)
    (job / DUMP).unlink()
    (lost,) = (finding for finding in diagnose(load(job)).findings if finding.code == "H101")
    assert lost.title == "rank 0 left no dump, and 1 rank is waiting for it"


def test_a_trace_without_a_name_in_common_with_its_profile(tmp_path: Path) -> None:
    shutil.copy(DATA / "kineto" / "kineto_trace_0.json.gz", tmp_path)
    (tmp_path / "torch_et_0.json").write_bytes(node().replace(b'"name": "', b'"name": "x'))
    report = diagnose(load(tmp_path))
    assert [check.why for check in report.checks if check.status == "failed"] == []


def test_a_trace_that_lost_all_its_nodes_is_linked_to_nothing(tmp_path: Path) -> None:
    shutil.copy(DATA / "kineto" / "kineto_trace_0.json.gz", tmp_path)
    (tmp_path / "torch_et_0.json").write_bytes(node().replace(b'"id": ', b'"id": null, "was": '))
    assert "D902" in codes(diagnose(load(tmp_path)))


def test_execution_traces_alone_are_exported(tmp_path: Path) -> None:
    for path in (DATA / "execution_trace").iterdir():
        shutil.copy(path, tmp_path)
    raise_bugs()
    assert main(["export", str(tmp_path), "-o", str(tmp_path / "x.sqlite"), "--no-cache"]) == 0


def test_a_pipe_given_as_the_path_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    os.mkfifo(tmp_path / "pipe")
    assert main(["diagnose", str(tmp_path / "pipe")]) == 2
    assert "pipe" in capsys.readouterr().err
