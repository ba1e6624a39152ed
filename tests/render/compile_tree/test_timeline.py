"""chromium_events.json: what viewers load and what scripts built on tlparse read."""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

from rankscope.model.tables import Trace
from rankscope.pipeline import load
from rankscope.render.compile_tree.timeline import write_chromium_events
from rankscope.simulate.compile_log import LogBuilder, ids_of
from read.compile_log_reading import load_logs

START_US = 1_794_809_954_349_966
SAMPLES = Path(__file__).resolve().parents[4] / "shared" / "samples" / "compile_logs"
Event = dict[str, Any]


def event(log: LogBuilder, phase: str, name: str, after_us: float, **fields: Any) -> LogBuilder:
    """Keys in the order in which torch writes them."""
    made = {"name": name, "ts": START_US + after_us, "args": {"compile_id": "0/0"}, "ph": phase, "cat": "dynamo_timed"}
    payload = {**made, "tid": 0, "pid": 0, **({"s": "p"} if phase == "i" else {}), **fields}
    return log.record("chromium_event", {}, json.dumps(payload, indent=0), **ids_of("0/0"))


def written(trace: Trace, folder: Path) -> list[Event]:
    path = folder / "chromium_events.json"
    write_chromium_events(trace, trace.table("compile_logs").array("file_id").tolist(), path)
    events: list[Event] = json.loads(path.read_bytes())
    return events


def timed(events: list[Event]) -> list[Event]:
    return [event for event in events if event["ph"] != "M"]


def assert_loadable(events: list[Event]) -> None:
    """What a viewer needs: on each thread, ends that answer the last begin, and times that do not go back."""
    stacks: dict[Any, list[Event]] = defaultdict(list)
    last: dict[Any, float] = defaultdict(float)
    for own in events:
        thread = (own["pid"], own["tid"])
        if own["ph"] in "BE":
            assert own["ts"] >= last[thread]
            last[thread] = own["ts"]
        if own["ph"] == "B":
            stacks[thread].append(own)
        elif own["ph"] == "E":
            assert stacks[thread].pop()["name"] == own["name"]
    assert not any(stacks.values())


def test_events_are_kept_as_they_were_logged(tmp_path: Path) -> None:
    log = LogBuilder(rank=3)
    event(log, "B", "dynamo", 0, args={"compile_id": "0/0", "list": [1, {"a": None}], "text": 'a\n"b"\t\\'})
    event(log, "i", "cache_miss", 5.25)
    event(log, "E", "dynamo", 10.5, args={"fail": 1.5})
    events = timed(written(load_logs(tmp_path, log), tmp_path))
    assert events == [
        {
            "name": "dynamo",
            "ts": START_US,
            "args": {"compile_id": "0/0", "list": [1, {"a": None}], "text": 'a\n"b"\t\\'},
            "ph": "B",
            "cat": "dynamo_timed",
            "tid": 0,
            "pid": 3,
        },
        {
            "name": "cache_miss",
            "ts": START_US + 5.25,
            "args": {"compile_id": "0/0"},
            "ph": "i",
            "cat": "dynamo_timed",
            "tid": 0,
            "pid": 3,
            "s": "p",
        },
        {
            "name": "dynamo",
            "ts": START_US + 10.5,
            "args": {"fail": 1.5},
            "ph": "E",
            "cat": "dynamo_timed",
            "tid": 0,
            "pid": 3,
        },
    ]


def test_processes_and_threads_have_names_and_the_names_a_time(tmp_path: Path) -> None:
    log = event(event(LogBuilder(rank=3, pid=99), "B", "a", 7), "E", "a", 8)
    names = [own for own in written(load_logs(tmp_path, log), tmp_path) if own["ph"] == "M"]
    assert [(own["name"], own["args"]["name"], own["pid"], own["tid"]) for own in names] == [
        ("process_name", "rank 3", 3, 0),
        ("thread_name", "process 99", 3, 0),
    ]
    assert {own["ts"] for own in names} == {START_US + 7}


def test_tlparse_defect_17_parallel_work_is_on_a_track_of_its_own(tmp_path: Path) -> None:
    log = LogBuilder()
    for phase, name, after_us in [("B", "a", 0), ("B", "b", 10), ("E", "a", 20), ("E", "b", 30)]:
        event(log, phase, name, after_us)
    events = written(load_logs(tmp_path, log), tmp_path)
    assert_loadable(events)
    assert {own["name"]: own["tid"] for own in timed(events)} == {"a": 0, "b": 1}


def test_a_missing_end_is_made_up_and_says_so(tmp_path: Path) -> None:
    log = event(event(event(LogBuilder(), "B", "a", 0), "B", "lost", 10), "E", "a", 20)
    events = written(load_logs(tmp_path, log), tmp_path)
    assert_loadable(events)
    [end] = [own for own in events if own["name"] == "lost" and own["ph"] == "E"]
    assert (end["ts"], end["args"]) == (START_US + 20, {"end_is_missing": True})


def test_a_lost_begin_leaves_a_mark_that_ends_nothing(tmp_path: Path) -> None:
    log = event(event(event(LogBuilder(), "B", "a", 0), "E", "lost", 10), "E", "a", 20)
    events = written(load_logs(tmp_path, log), tmp_path)
    assert_loadable(events)
    assert [own["ph"] for own in events if own["name"] == "lost"] == ["i"]


def test_an_end_before_its_begin_is_put_right(tmp_path: Path) -> None:
    events = written(load_logs(tmp_path, event(event(LogBuilder(), "B", "a", 10), "E", "a", 4)), tmp_path)
    assert_loadable(events)


def test_an_event_that_tells_its_length_stays_one(tmp_path: Path) -> None:
    log = event(event(event(LogBuilder(), "X", "whole", 0, dur=40), "B", "inside", 10), "E", "inside", 20)
    events = written(load_logs(tmp_path, log), tmp_path)
    assert_loadable(events)
    assert [(own["ph"], own.get("dur")) for own in timed(events)] == [("X", 40), ("B", None), ("E", None)]


@pytest.mark.parametrize("value", [float("nan"), float("inf"), "\udcff", "ä"])
def test_every_reader_of_json_takes_the_file(tmp_path: Path, value: object) -> None:
    log = event(event(LogBuilder(), "B", "a", 0), "E", "a", 9, args={"odd": value})
    trace = load_logs(tmp_path, log)
    events = written(trace, tmp_path)
    assert_loadable(events)
    content = (tmp_path / "chromium_events.json").read_text("utf-8")
    assert "NaN" not in content
    assert "Infinity" not in content


def test_bytes_that_are_not_utf8_do_not_spoil_the_file(tmp_path: Path) -> None:
    log = event(LogBuilder(), "B", "a", 0)
    payload = (
        json.dumps({"name": "a", "ph": "E", "ts": START_US + 5, "args": {"x": "?"}}).encode().replace(b"?", b"\xff")
    )
    log.record("chromium_event", {}, payload, **ids_of("0/0"))
    assert_loadable(written(load_logs(tmp_path, log), tmp_path))
    (tmp_path / "chromium_events.json").read_text("utf-8")


def test_a_log_without_events_gives_an_empty_list(tmp_path: Path) -> None:
    trace = load_logs(tmp_path, LogBuilder().start("0/0"))
    assert written(trace, tmp_path) == []
    assert (tmp_path / "chromium_events.json").read_bytes() == b"[]"


def test_ranks_are_processes_and_two_logs_of_a_rank_are_drawn_below_each_other(tmp_path: Path) -> None:
    logs = [
        event(event(LogBuilder(rank=rank, pid=pid), "B", "a", 0), "E", "a", 9) for rank, pid in [(0, 1), (0, 2), (5, 3)]
    ]
    events = written(load_logs(tmp_path, *logs), tmp_path)
    assert_loadable(events)
    assert {(own["pid"], own["tid"]) for own in timed(events)} == {(0, 0), (0, 1), (5, 0)}
    assert [own["pid"] for own in events if own["name"] == "process_name"] == [0, 5]


@pytest.mark.skipif(not SAMPLES.exists(), reason="the samples are not beside the repository")
@pytest.mark.parametrize(
    ("name", "n_events"), [("cache_hit_miss.log", 128), ("simple.log", 50), ("simple_corrupted_json.log", 49 + 1)]
)
def test_all_events_of_the_samples_are_there(tmp_path: Path, name: str, n_events: int) -> None:
    """The damaged log has one end less, which is made up."""
    events = written(load(SAMPLES / name, jobs=1), tmp_path)
    assert_loadable(events)
    assert len(timed(events)) == n_events
