"""Training numbers that other tools have logged: TensorBoard, W&B, CSV and JSON lines become rows of metrics."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from rankscope.errors import BadFileError, InputError
from rankscope.model.tables import Table, Trace
from rankscope.pipeline import load
from rankscope.read import metric_log, metric_rows, tensorboard, wandb
from rankscope.read.files import Source
from read.collected_files import START_NS, metric_lines
from read.metric_files import (
    csv_log,
    json_log,
    tfevents,
    tfrecord,
    wandb_history,
    wandb_log,
    wandb_stats,
)

SECOND = 10**9


def metrics_of(trace: Trace) -> list[tuple[int, str, float, int, int]]:
    return [
        (row["rank"], row["name"], row["value"], row["step"], row["time_ns"]) for row in trace.table("metrics").rows()
    ]


def read_bytes(reader: Any, path: Path, content: bytes) -> dict[str, Table]:
    path.write_bytes(content)
    return {table.name: table for table in reader.read(Source(path, str(path), len(content), file_id=3))}


def status(tables: dict[str, Table]) -> tuple[str, str]:
    (row,) = tables["files"].rows()
    return row["status"], row["problem"]


@pytest.mark.parametrize("as_tensors", [False, True])
def test_scalars_of_tensorboard(tmp_path: Path, as_tensors: bool) -> None:
    folder = tmp_path / "runs" / "rank_3"
    folder.mkdir(parents=True)
    path = folder / "events.out.tfevents.1763294400.gpu-7.4711.0"
    path.write_bytes(tfevents([(0, {"loss": 2.0}), (9, {"loss": 0.5, "lr": math.inf})], as_tensors=as_tensors))
    trace = load(tmp_path)
    start = START_NS
    assert metrics_of(trace) == [
        (3, "loss", 2.0, 0, start),
        (3, "loss", 0.5, 9, start + 9 * SECOND),
        (3, "lr", math.inf, 9, start + 9 * SECOND),
    ]
    (row,) = trace.table("files").rows()
    assert (row["source"], row["rank"], row["host"]) == ("tensorboard", 3, "gpu-7")


def test_numbers_in_names_of_other_tools_are_no_ranks(tmp_path: Path) -> None:
    (tmp_path / "events.out.tfevents.1763294400.gpu-7.4711.2").write_bytes(tfevents([(1, {"loss": 2.0})]))
    (tmp_path / "metrics_v2.csv").write_text(csv_log([{"step": 1, "loss": 2.0}]))
    assert {row[0] for row in metrics_of(load(tmp_path))} == {-1}


def test_what_is_no_scalar_is_passed_over(tmp_path: Path) -> None:
    picture = tfrecord(b"\x09" + bytes(8) + b"\x2a\x82\x80\x80\x01" + bytes(2 << 20))
    nonsense = tfrecord(b"\xff\xff\xff")
    content = tfevents([(1, {"loss": 2.0})]) + picture + nonsense + tfevents([(2, {"loss": 1.0})])
    tables = read_bytes(tensorboard, tmp_path / "events", content)
    assert tables["metrics"].array("step").tolist() == [1, 2]
    assert status(tables) == ("damaged", "has 1 entry that cannot be read")


def test_a_length_that_lies_costs_no_memory(tmp_path: Path) -> None:
    good = tfevents([(1, {"loss": 2.0})])
    lying = tfrecord(b"x")
    huge = (1 << 60).to_bytes(8, "little")
    lying = huge + tensorboard.masked_checksum(huge).to_bytes(4, "little") + lying[12:]
    tables = read_bytes(tensorboard, tmp_path / "events", good + lying)
    assert tables["metrics"].array("value").tolist() == [2.0]
    assert status(tables)[0] == "damaged"


def test_history_and_machine_of_wandb(tmp_path: Path) -> None:
    folder = tmp_path / "wandb" / "offline-run-1"
    (folder / "files").mkdir(parents=True)
    records = [
        wandb_history(0, {"loss": 2.0, "text": "no", "nested": {"a": 1}, "image": {"_type": "image-file", "size": 3}}),
        wandb_stats(5, {"gpu.0.gpu": 90.5}),
        wandb_history(7, {"blob": "x" * 70_000, "loss": math.nan}),
    ]
    (folder / "run-abc.wandb").write_bytes(wandb_log(records))
    (folder / "files" / "wandb-summary.json").write_text(summary(loss=0.5))
    trace = load(tmp_path)
    rows = metrics_of(trace)
    assert rows[:3] == [
        (-1, "loss", 2.0, 0, START_NS),
        (-1, "nested.a", 1.0, 0, START_NS),
        (-1, "system/gpu.0.gpu", 90.5, -1, START_NS + 5 * SECOND),
    ]
    assert rows[3][1:2] + rows[3][3:] == ("loss", 7, START_NS + 7 * SECOND)
    assert math.isnan(rows[3][2])
    assert len(rows) == 4
    ignored = [row for row in trace.table("files").rows() if row["status"] == "ignored"]
    assert [row["problem"] for row in ignored] == ["run-abc.wandb has the same values, step by step"]


def summary(**values: float) -> str:
    about = {"_step": 7, "_timestamp": START_NS / 1e9, "_runtime": 60.0, "_wandb": {"runtime": 60}}
    return json.dumps({**values, **about})


def test_a_summary_alone_tells_the_last_values(tmp_path: Path) -> None:
    (tmp_path / "wandb-summary.json").write_text(summary(loss=0.5))
    assert metrics_of(load(tmp_path)) == [(-1, "loss", 0.5, 7, START_NS)]


def test_a_broken_record_of_wandb_ends_the_log(tmp_path: Path) -> None:
    content = bytearray(wandb_log([wandb_history(step, {"loss": 1.0}) for step in range(3)]))
    content[-3] ^= 0xFF
    tables = read_bytes(wandb, tmp_path / "run.wandb", bytes(content))
    assert tables["metrics"].array("step").tolist() == [0, 1]
    assert status(tables) == ("damaged", "ends in the middle of a record (a record has a wrong checksum)")


def test_columns_of_csv(tmp_path: Path) -> None:
    """As Lightning writes it: most rows lack most columns."""
    rows: list[dict[str, object]] = [
        {"epoch": 0, "step": 4, "loss": 1.5},
        {"epoch": 0, "step": 9, "val_loss": "nan", "note": "best"},
    ]
    (tmp_path / "metrics.csv").write_text(csv_log(rows))
    told = [(name, step) for _, name, _, step, _ in metrics_of(load(tmp_path))]
    assert told == [("epoch", 4), ("loss", 4), ("epoch", 9), ("val_loss", 9)]


def test_lines_of_json(tmp_path: Path) -> None:
    rows = [{"train/global_step": 3, "rank": 1, "loss": 2, "time": START_NS / 1e6, "ok": True, "lr": None}] * 2
    (tmp_path / "log.jsonl").write_text(json_log(rows))
    assert metrics_of(load(tmp_path)) == [(1, "loss", 2.0, 3, START_NS)] * 2


def test_one_number_per_line(tmp_path: Path) -> None:
    rows = [{"step": step, "tag": "loss", "value": 1.0 / step} for step in (1, 2)]
    (tmp_path / "log.jsonl").write_text(json_log(rows))
    assert [(row[1], row[2]) for row in metrics_of(load(tmp_path))] == [("loss", 1.0), ("loss", 0.5)]


@pytest.mark.parametrize("when", ["2025-11-16T12:00:00", "2025-11-16 12:00:00+00:00", str(START_NS // 10**6)])
def test_a_time_may_stand_for_the_step(tmp_path: Path, when: str) -> None:
    (tmp_path / "gpu.csv").write_text(csv_log([{"timestamp": when, "power": 1}, {"timestamp": when, "power": 2}]))
    assert metrics_of(load(tmp_path)) == [(-1, "power", 1.0, -1, START_NS), (-1, "power", 2.0, -1, START_NS)]


FOREIGN = {
    "no step": csv_log([{"name": "a", "size": 3}] * 3),
    "text beside the time": csv_log([{"timestamp": "2025-11-16T12:00:00", "level": "INFO", "line": 3}] * 3),
    "seconds since the start": csv_log([{"time": 1.5, "value": 3}] * 3),
    "ragged": "step,loss\n1,2\n1,2,3\n4,5\n",
    "steps that are words": csv_log([{"step": "load", "seconds": 3}] * 3),
    "no number": csv_log([{"step": 1, "note": "x"}] * 3),
    "header twice": "step,step\n1,2\n3,4\n",
    "header of numbers": "1,2\n3,4\n5,6\n",
    "own export": csv_log([{"file_id": 1, "rank": 0, "step": 3, "duration": 4}] * 3),
    "own times": csv_log([{"rank": 0, "step": 3, "start_ns": 4}] * 3),
    "one object": json_log([{"step": 3, "loss": 1.0}]),
    "settings": '{\n "step": 3,\n "loss": 1.0\n}\n',
    "events": json_log([{"ph": "X", "name": "a", "ts": 1, "step": 3}] * 3),
    "nested": json_log([{"step": 3, "loss": {"a": 1}}] * 3),
    "messages": json_log([{"time": "2025-11-16T12:00:00", "message": "x"}] * 3),
    "prose": "step, then loss\nfirst the step is made\n",
    "compile log": 'V1116 06:18:20.896000 11287 torch/_logging.py:1] {"step": 1}\n' * 3,
    "metrics of ours": metric_lines(0, 3),
    "stacks of ours": "=== rankscope stacks: rank 0, pid 1, step 3, loss 4\nstep,loss\n1,2\n",
}


@pytest.mark.parametrize("content", FOREIGN.values(), ids=list(FOREIGN))
def test_what_only_looks_alike_is_left_alone(content: str) -> None:
    assert not metric_log.sniff(content.encode(), "log.csv")


def test_a_line_that_the_head_cuts_is_no_reason_to_refuse() -> None:
    long = csv_log([{"step": step, "loss": 1.5, "accuracy": 0.25} for step in range(1000)]).encode()
    lines = json_log([{"step": step, "loss": 1.5} for step in range(1000)]).encode()
    for n_bytes in range(4080, 4097):
        assert metric_log.sniff(long[:n_bytes], "0")
        assert metric_log.sniff(lines[:n_bytes], "0")


def test_a_bad_line_costs_only_itself(tmp_path: Path) -> None:
    tables = read_bytes(metric_log, tmp_path / "log.csv", b"step,loss\n1,2.0\nno\n2,1.0\n3,0.")
    assert tables["metrics"].array("step").tolist() == [1, 2]
    assert status(tables) == ("damaged", "ends in the middle of a line")


@pytest.mark.parametrize("content", [b"step,loss\n" + b"1" * (2 << 20), b'{"step": 1, "loss": ' + b"[" * 100_000])
def test_hostile_lines_are_refused(content: bytes, tmp_path: Path) -> None:
    with pytest.raises(BadFileError):
        read_bytes(metric_log, tmp_path / "log", content)


def test_values_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metric_rows, "MAX_VALUES", 10)
    rows = [{"step": step, "loss": 1.0} for step in range(30)]
    tables = read_bytes(metric_log, tmp_path / "log", json_log(rows).encode())
    assert len(tables["metrics"]) == 10
    assert "more than 10 values" in status(tables)[1]


def test_a_folder_without_any_trace_says_so(tmp_path: Path) -> None:
    (tmp_path / "notes.csv").write_text(FOREIGN["no step"])
    with pytest.raises(InputError):
        load(tmp_path)
