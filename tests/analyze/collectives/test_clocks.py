"""One clock per host, from whichever source knows it best."""

from __future__ import annotations

from typing import Any

from analyze.building import MS
from rankscope.analyze.stages import table_makers
from rankscope.model.tables import Table, Trace

FIELDS = "SELECT rank, offset_ns, error_ns, origin FROM clocks ORDER BY rank"


def capture(**tables: list[dict[str, Any]]) -> Trace:
    trace = Trace(("traces",), {name: Table.from_rows(name, rows) for name, rows in tables.items()})
    trace.makers = table_makers()
    return trace


def manifest(rank: int, host: str, offset: int, error: int) -> dict[str, Any]:
    return {"rank": rank, "host": host, "clock_offset_ns": offset, "clock_error_ns": error}


def recorded(rank: int, host: str, offset: int = 0, error: int = -1) -> dict[str, Any]:
    return {"file_id": rank, **manifest(rank, host, offset, error)}


def test_ranks_of_a_host_share_its_clock_even_if_a_source_has_one_of_them() -> None:
    trace = capture(
        ranks=[recorded(0, "a"), recorded(1, "b", 5 * MS, 1 * MS)],
        manifests=[manifest(0, "a", 0, MS), manifest(1, "b", 5 * MS, MS), manifest(2, "b", 5 * MS, MS)],
    )
    assert trace.sql(FIELDS).rows() == [
        (0, 0, None, "recorder"),
        (1, 5 * MS, MS, "recorder"),
        (2, 5 * MS, MS, "recorder"),
    ]


def test_another_source_is_moved_to_the_same_zero_and_its_bound_grows_by_what_they_differ() -> None:
    trace = capture(
        ranks=[recorded(0, "a", 0, MS), recorded(1, "b", 10 * MS, MS)],
        manifests=[manifest(0, "a", 100 * MS, MS), manifest(1, "b", 114 * MS, MS), manifest(2, "c", 130 * MS, MS)],
    )
    assert trace.sql(FIELDS).rows()[2] == (2, 28 * MS, 3 * MS, "collector")


def test_on_one_host_no_clock_is_wrong_and_without_hosts_nothing_is_known() -> None:
    assert trace_errors("a", "a") == [0, 0]
    assert trace_errors("", "") == [None, None]
    assert trace_errors("a", "b") == [None, None]


def trace_errors(*hosts: str) -> list[int | None]:
    trace = capture(ranks=[recorded(rank, host) for rank, host in enumerate(hosts)])
    return [error for _, _, error, _ in trace.sql(FIELDS).rows()]
