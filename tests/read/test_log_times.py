"""Times of log lines: year and zone are those of the records' absolute times, never those of the reader's day."""

from __future__ import annotations

import os
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest

from rankscope.model.tables import MISSING
from rankscope.read.log_times import LineClock
from rankscope.simulate.compile_log import LogBuilder, log_name
from read.compile_log_reading import read_tables


def utc(ns: int) -> str:
    return datetime.fromtimestamp(ns / 1e9, timezone.utc).isoformat(" ", "milliseconds").removesuffix("+00:00")


def times_of(path: Path) -> list[str]:
    return [utc(ns) for ns in read_tables(path)["compile_records"].array("time_ns").tolist()]


def clock_of(path: Path) -> str:
    return str(read_tables(path)["compile_logs"].text("clock")[0])


@pytest.mark.parametrize(
    ("local", "zone", "expected"),
    [
        ("2026-11-16 06:18:20", 0, "2026-11-16 06:18:20.000"),
        ("2024-04-04 12:00:00", -7, "2024-04-04 19:00:00.000"),
        ("2019-07-01 00:10:00", 9, "2019-06-30 15:10:00.000"),
        ("2025-03-03 03:30:00", 5.75, "2025-03-02 21:45:00.000"),
        ("2025-03-03 03:30:00", -3.5, "2025-03-03 07:00:00.000"),
        ("2025-03-03 03:30:00", 14, "2025-03-02 13:30:00.000"),
        ("2025-03-03 03:30:00", -12, "2025-03-03 15:30:00.000"),
        ("2024-02-29 23:59:00", -1, "2024-03-01 00:59:00.000"),
        ("2024-03-01 00:30:00", 2, "2024-02-29 22:30:00.000"),
        ("2025-12-31 23:30:00", -2, "2026-01-01 01:30:00.000"),
        ("2026-01-01 00:30:00", 2, "2025-12-31 22:30:00.000"),
    ],
)
def test_year_and_zone_are_taken_from_the_records(tmp_path: Path, local: str, zone: float, expected: str) -> None:
    path = LogBuilder(0, at=local, zone=zone).chromium("dynamo").start().write(tmp_path)

    assert times_of(path)[0] == expected
    assert clock_of(path) == "absolute"


def test_records_before_the_first_absolute_time_are_set_right_as_well(tmp_path: Path) -> None:
    path = LogBuilder(0, at="2023-05-05 10:00:00", zone=2).torch_version().start().metrics().write(tmp_path)

    assert times_of(path) == [f"2023-05-05 08:00:00.00{ms}" for ms in range(4)]


@pytest.mark.parametrize("kind", ["chromium_event", "compilation_metrics", "early metrics"])
def test_any_record_with_an_absolute_time_will_do(tmp_path: Path, kind: str) -> None:
    log = LogBuilder(0, at="2022-08-01 10:00:00", zone=-5)
    if kind == "chromium_event":
        log.chromium("dynamo")
    elif kind == "compilation_metrics":
        log.metrics(seconds=1.0)
    else:
        log.metrics(seconds=1.0, start_time_us=None, end_time_us=None, duration_us=None)

    assert times_of(log.write(tmp_path)) == ["2022-08-01 15:00:00.000"]


def test_a_compilation_of_an_hour_does_not_shift_the_zone(tmp_path: Path) -> None:
    """Early metrics tell when they began; their record was written when they ended."""
    early: dict[str, Any] = {"start_time_us": None, "end_time_us": None, "duration_us": None}
    log = LogBuilder(0, at="2024-08-01 10:00:00", zone=1).metrics(seconds=3600.0, **early)

    assert times_of(log.write(tmp_path)) == ["2024-08-01 09:00:00.000"]


def test_a_log_that_runs_into_the_new_year_goes_on(tmp_path: Path) -> None:
    log = LogBuilder(0, at="2025-12-31 23:59:59", zone=0).chromium("dynamo").wait(2).chromium("dynamo", "E")

    assert times_of(log.write(tmp_path)) == ["2025-12-31 23:59:59.000", "2026-01-01 00:00:01.001"]


def test_a_log_without_absolute_times_takes_the_year_of_its_file(tmp_path: Path) -> None:
    path = LogBuilder(0, at="2026-07-01 10:00:00").start().write(tmp_path)
    written = datetime(2021, 7, 1, 12, tzinfo=timezone.utc).timestamp()
    os.utime(path, (written, written))

    assert times_of(path)[0] == "2021-07-01 10:00:00.000"
    assert clock_of(path) == "assumed"


def test_a_file_of_january_with_lines_of_december_is_of_the_year_before(tmp_path: Path) -> None:
    path = LogBuilder(0, at="2026-12-31 23:00:00").start().write(tmp_path)
    written = datetime(2022, 1, 1, 1, tzinfo=timezone.utc).timestamp()
    os.utime(path, (written, written))

    assert times_of(path)[0] == "2021-12-31 23:00:00.000"


def test_a_29th_of_february_in_a_year_without_one_does_not_lose_the_record(tmp_path: Path) -> None:
    """The file was copied in 2025: no record tells that it is of 2024."""
    path = LogBuilder(0, at="2024-02-29 10:00:00").start().write(tmp_path)
    copied = datetime(2025, 6, 1, tzinfo=timezone.utc).timestamp()
    os.utime(path, (copied, copied))

    tables = read_tables(path)

    assert tables["compile_records"].text("kind").tolist() == ["str", "dynamo_start"]


@pytest.mark.parametrize("event_time", ["0", "-5", "1e400", "99999999999999999999999", "1", '"soon"'])
def test_absurd_absolute_times_are_not_believed(tmp_path: Path, event_time: str) -> None:
    """The next record that tells a time is asked."""
    log = LogBuilder(0, at="2024-05-01 10:00:00")
    log.record("chromium_event", {}, f'{{"name": "dynamo", "ts": {event_time}}}').metrics()

    assert times_of(log.write(tmp_path))[-1] == "2024-05-01 10:00:00.001"


@pytest.mark.parametrize("stamp", ["1331 06:18:20.896000", "0000 00:00:00.000000", "1116 99:99:99.999999", "1116 xx"])
def test_an_impossible_time_does_not_lose_the_other_records(tmp_path: Path, stamp: str) -> None:
    log = LogBuilder(0).chromium("dynamo").raw(f'V{stamp} 1 torch/x.py:1] {{"aot_joint_graph": {{}}}}\n'.encode())
    path = log.metrics().write(tmp_path, log_name(0))

    kinds = read_tables(path)["compile_records"].text("kind").tolist()

    assert (kinds[0], kinds[-1]) == ("chromium_event", "compilation_metrics")
    assert len(kinds) == 3
    assert times_of(path)[-1] == "2026-11-16 06:18:20.001"


def test_what_is_no_time_is_missing() -> None:
    clock = LineClock(1_794_809_852 * 10**9)

    assert clock.times_ns([b"", b"1116 06:18:20.896000", b"garbage garbage gar!"]).tolist() == [
        MISSING,
        1_794_809_900_896_000_000,
        MISSING,
    ]


@pytest.mark.parametrize(
    ("stamp", "expected"),
    [
        (b"0211 16:42:20.419000", "2026-02-11 16:42:20"),  # closer to the next February, which has not come yet
        (b"1116 20:00:00.000000", "2026-11-16 20:00:00"),  # the file's own day, in a zone ahead of UTC
        (b"1224 00:00:00.000000", "2025-12-24 00:00:00"),
        (b"0229 00:00:00.000000", "2024-02-29 00:00:00"),
    ],
)
def test_without_an_absolute_time_no_line_is_younger_than_its_file(stamp: bytes, expected: str) -> None:
    written = datetime(2026, 11, 16, 9, tzinfo=timezone.utc)
    clock = LineClock(int(written.timestamp()) * 10**9)

    [found] = clock.times_ns([stamp]).tolist()

    told = datetime.fromtimestamp(found / 1e9, timezone.utc)
    assert told.strftime("%Y-%m-%d %H:%M:%S") == expected
