"""compile_events: spans that nest, whatever the log makes of begins and ends."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rankscope.model.tables import MISSING
from rankscope.simulate.compile_log import LogBuilder, ids_of
from read.compile_log_reading import Row, load_logs, rows_of

START_US = 1_794_809_954_349_966
SAMPLES = Path(__file__).resolve().parents[4] / "shared" / "samples" / "compile_logs"

Event = tuple[str, str, float]  # phase, name, microseconds after the start


def with_events(events: Iterable[Event], compile_id: str = "0/0", rank: int | None = None) -> LogBuilder:
    log = LogBuilder(rank=rank)
    for phase, name, after_us in events:
        event(log, compile_id, name=name, ph=phase, ts=START_US + after_us)
    return log


def event(log: LogBuilder, compile_id: str = "0/0", **fields: Any) -> LogBuilder:
    payload = {"args": {"compile_id": compile_id}, "cat": "dynamo_timed", "tid": 0, "pid": 0, **fields}
    return log.record("chromium_event", {}, json.dumps(payload, indent=0), **ids_of(compile_id))


def events_of(folder: Path, *logs: LogBuilder) -> list[Row]:
    return rows_of(load_logs(folder, *logs), "compile_events")


def by_name(rows: list[Row]) -> dict[str, Row]:
    return {row["name"]: row for row in rows}


def assert_nested(rows: list[Row]) -> None:
    """Rows of one track, in their order: each lies within the one that its depth says."""
    stacks: dict[Any, list[Row]] = {}
    for row in rows:
        around = stacks.setdefault((row["file_id"], row["rank"], row["track"]), [])
        if row["state"] == "moment":
            continue
        del around[row["depth"] :]
        assert len(around) == row["depth"]
        if around:
            outer = around[-1]
            assert outer["start_ns"] <= row["start_ns"]
            assert row["start_ns"] + row["duration_ns"] <= outer["start_ns"] + outer["duration_ns"]
        around.append(row)
        assert 0 <= row["own_ns"] <= row["duration_ns"]


def test_spans_know_their_depth_and_what_is_theirs_alone(tmp_path: Path) -> None:
    log = with_events([("B", "dynamo", 0), ("B", "backend", 10), ("E", "backend", 40), ("E", "dynamo", 50.5)])
    outer, inner = events_of(tmp_path, log)
    assert (outer["name"], outer["depth"], outer["duration_ns"], outer["own_ns"]) == ("dynamo", 0, 50_500, 20_500)
    assert (inner["name"], inner["depth"], inner["duration_ns"], inner["own_ns"]) == ("backend", 1, 30_000, 30_000)
    assert outer["start_ns"] == START_US * 1000
    assert (outer["compile_id"], outer["state"], outer["record"], outer["end_record"]) == ("0/0", "span", 0, 3)


def test_ends_out_of_order_are_matched_by_name_and_put_on_tracks_of_their_own(tmp_path: Path) -> None:
    log = with_events(
        [("B", "a", 0), ("B", "b", 10), ("B", "inside b", 12), ("E", "inside b", 14), ("E", "a", 20), ("E", "b", 30)]
    )
    rows = by_name(events_of(tmp_path, log))
    assert [(rows[name]["duration_ns"], rows[name]["track"]) for name in "ab"] == [(20_000, 0), (20_000, 1)]
    assert (rows["inside b"]["track"], rows["inside b"]["depth"]) == (1, 1)
    assert rows["a"]["own_ns"] == 20_000


def test_an_end_belongs_to_its_own_compilation_first(tmp_path: Path) -> None:
    log = LogBuilder()
    event(log, "0/0", name="gc", ph="B", ts=START_US)
    event(log, "1/0", name="gc", ph="B", ts=START_US + 10)
    event(log, "0/0", name="gc", ph="E", ts=START_US + 20)
    event(log, "1/0", name="gc", ph="E", ts=START_US + 50)
    rows = events_of(tmp_path, log)
    assert [(row["compile_id"], row["duration_ns"]) for row in rows] == [("0/0", 20_000), ("1/0", 40_000)]


def test_a_missing_end_is_closed_by_what_encloses_it(tmp_path: Path) -> None:
    log = with_events(
        [("B", "dynamo", 0), ("B", "lost", 10), ("B", "later", 20), ("E", "later", 30), ("E", "dynamo", 40)]
    )
    rows = by_name(events_of(tmp_path, log))
    assert (rows["lost"]["state"], rows["lost"]["duration_ns"], rows["lost"]["end_record"]) == ("open", 30_000, MISSING)
    assert rows["dynamo"]["state"] == rows["later"]["state"] == "span"


def test_a_process_that_was_ended_leaves_spans_up_to_its_last_event(tmp_path: Path) -> None:
    rows = events_of(tmp_path, with_events([("B", "dynamo", 0), ("B", "inductor", 10), ("i", "miss", 25)]))
    assert [(row["name"], row["state"], row["duration_ns"]) for row in rows] == [
        ("dynamo", "open", 25_000),
        ("inductor", "open", 15_000),
        ("miss", "moment", 0),
    ]


def test_a_lost_end_does_not_stretch_over_other_compilations(tmp_path: Path) -> None:
    log = with_events([("B", "compile_file", 0)], "")
    event(log, "0/0", name="dynamo", ph="B", ts=START_US + 10)
    event(log, "0/0", name="dynamo", ph="E", ts=START_US + 5_000)
    rows = by_name(events_of(tmp_path, log))
    assert (rows["compile_file"]["state"], rows["compile_file"]["duration_ns"]) == ("open", 0)
    assert (rows["dynamo"]["depth"], rows["dynamo"]["duration_ns"]) == (0, 4_990_000)


def test_an_end_without_a_begin_is_a_moment(tmp_path: Path) -> None:
    [row] = events_of(tmp_path, with_events([("E", "lost", 5)]))
    assert (row["state"], row["duration_ns"], row["record"], row["end_record"]) == ("moment", 0, 0, 0)


def test_times_that_go_backward_give_no_negative_span(tmp_path: Path) -> None:
    rows = events_of(tmp_path, with_events([("B", "a", 10), ("E", "a", 4), ("i", "told later", 1)]))
    assert [(row["name"], row["duration_ns"]) for row in rows] == [("told later", 0), ("a", 0)]


def test_moments_stand_where_they_happened_not_where_they_were_logged(tmp_path: Path) -> None:
    log = with_events([("B", "a", 0), ("B", "b", 10), ("E", "b", 20), ("E", "a", 30), ("i", "miss", 15)])
    row = by_name(events_of(tmp_path, log))["miss"]
    assert (row["start_ns"], row["depth"], row["state"]) == ((START_US + 15) * 1000, 2, "moment")


def test_an_event_that_tells_its_length_is_a_span(tmp_path: Path) -> None:
    log = event(LogBuilder(), name="whole", ph="X", ts=START_US, dur=12.5)
    [row] = events_of(tmp_path, log)
    assert (row["state"], row["duration_ns"], row["end_record"]) == ("span", 12_500, 0)


@pytest.mark.parametrize(
    "payload",
    ["", "{", "[1]", '{"name": "a"}', '{"ph": "B", "ts": "now"}', '{"ph": "B", "ts": 1e300}', "[" * 100_000],
)
def test_payloads_that_are_no_events_are_left_out(tmp_path: Path, payload: str) -> None:
    log = with_events([("B", "a", 0)]).record("chromium_event", {}, payload, **ids_of("0/0"))
    event(log, name="a", ph="E", ts=START_US + 10)
    assert [(row["name"], row["duration_ns"]) for row in events_of(tmp_path, log)] == [("a", 10_000)]


def test_numbers_that_only_python_writes_do_not_lose_the_event(tmp_path: Path) -> None:
    log = with_events([("B", "a", 0)])
    event(log, name="a", ph="E", ts=START_US + 10, args={"ratio": float("nan"), "bound": float("inf")})
    [row] = events_of(tmp_path, log)
    assert (row["state"], row["duration_ns"]) == ("span", 10_000)


def test_ranks_and_files_are_kept_apart(tmp_path: Path) -> None:
    first = with_events([("B", "a", 0), ("E", "a", 10)], rank=0)
    second = with_events([("B", "a", 5), ("E", "a", 25)], rank=1)
    rows = events_of(tmp_path, first, second)
    assert sorted((row["rank"], row["track"], row["duration_ns"]) for row in rows) == [(0, 0, 10_000), (1, 0, 20_000)]


def test_a_log_made_to_have_endless_tracks_is_cut_to_fit(tmp_path: Path) -> None:
    n_spans = 300
    begins = [("B", f"s{number}", float(number)) for number in range(n_spans)]
    ends = [("E", f"s{number}", float(n_spans + number)) for number in range(n_spans)]
    rows = events_of(tmp_path, with_events([*begins, *ends]))
    assert len(rows) == n_spans
    assert max(row["track"] for row in rows) < n_spans / 2
    assert_nested(rows)


EVENTS = st.lists(st.tuples(st.sampled_from("BBBEEEiX"), st.sampled_from("abc"), st.integers(0, 30)), max_size=40)


@given(EVENTS)
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_whatever_is_logged_nests_and_nothing_is_lost(
    tmp_path_factory: pytest.TempPathFactory, events: list[Event]
) -> None:
    log = with_events([("i", "first", 0), *events])
    rows = events_of(tmp_path_factory.mktemp("log"), log)
    assert_nested(rows)
    told = [row["record"] for row in rows] + [row["end_record"] for row in rows if row["end_record"] != row["record"]]
    assert sorted(record for record in told if record != MISSING) == list(range(len(events) + 1))


@pytest.mark.skipif(not SAMPLES.exists(), reason="the samples are not beside the repository")
def test_tlparse_defect_mis_nested_events_of_a_damaged_log_are_repaired() -> None:
    from rankscope.pipeline import load

    rows = rows_of(load(SAMPLES / "simple_corrupted_json.log", jobs=1), "compile_events")
    assert_nested(rows)
    assert [row["name"] for row in rows if row["state"] == "open"] == ["compile_file"]
    assert len(rows) == 26
