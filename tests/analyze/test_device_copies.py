"""Bandwidth of copies and fills, and copies that the device waits for."""

from __future__ import annotations

import pytest

from analyze.device_tables import Row, at, copy, findings, kernel, on_ranks, only_row, rows_of, step, trace_of

US = 1000
MIB = 1 << 20


def test_bandwidth_of_copies_that_run_at_once_adds_up_and_ends_at_zero() -> None:
    copies = [copy(0, 10, bandwidth_gbps=10.1), copy(5, 20, bandwidth_gbps=0.2), copy(30, 30, bandwidth_gbps=3.0)]
    rows = rows_of(trace_of(kernels=[*copies, kernel(0, 50)]), "bandwidth")
    assert [((row["time_ns"] - at(0)) // US, row["bandwidth_gbps"]) for row in rows] == [
        (0, 10.1),
        (5, 10.3),
        (10, 0.2),
        (20, 0.0),
        (30, 3.0),  # without duration: taken for a microsecond
        (31, 0.0),
    ]


def test_bandwidth_that_was_not_recorded_follows_from_size_and_time() -> None:
    rows = rows_of(trace_of(kernels=[copy(0, 1000, n_bytes=12_000_000)]), "bandwidth")
    assert [row["bandwidth_gbps"] for row in rows] == [12.0, 0.0]


def test_kinds_ranks_and_files_have_series_of_their_own() -> None:
    copies = [copy(0, 10, bandwidth_gbps=1.0), copy(0, 10, bandwidth_gbps=2.0, name="Memset (Device)", kind="memset")]
    rows = rows_of(trace_of(kernels=on_ranks((0, 1), copies)), "bandwidth")
    assert len(rows) == 8
    assert {row["bandwidth_gbps"] for row in rows} == {0.0, 1.0, 2.0}


def test_summary_by_hand() -> None:
    sizes = [copy(0, 10, n_bytes=10_000), copy(20, 30, n_bytes=20_000), copy(40, 60, n_bytes=90_000)]
    row = only_row(trace_of(kernels=sizes), "bandwidth_summary")
    assert (row["n_copies"], row["total_bytes"], row["total_ns"], row["median_bytes"]) == (3, 120_000, 40 * US, 20_000)
    assert (row["min_gbps"], row["median_gbps"], row["max_gbps"]) == (1.0, 2.0, 4.5)
    assert row["mean_gbps"] == pytest.approx(3.0)


def copying(**columns: object) -> list[Row]:
    """A step of a millisecond: 300 us of copying, then computation."""
    return [copy(0, 300, step=1, **columns), kernel(300, 990, step=1)]


@pytest.mark.parametrize(
    ("columns", "reason", "advice"),
    [
        ({"name": "Memcpy HtoD (Pageable -> Device)", "n_bytes": 3 * MIB}, "not pinned", "pin_memory=True"),
        ({"name": "Memcpy DtoH (Device -> Pageable)", "n_bytes": 3 * MIB}, "not pinned", "into pinned memory"),
        ({"n_bytes": MIB}, "less than 6 GB/s", "check the link"),
        ({"n_bytes": 512}, "copies of less than 64 KiB", "pack small tensors"),
        ({"n_bytes": 6 * MIB}, "", "copy with non_blocking=True"),
    ],
)
def test_copies_that_the_device_waits_for(columns: dict[str, object], reason: str, advice: str) -> None:
    steps = on_ranks((0, 1), [step(1, 0, 1000)])
    [finding] = findings(trace_of(kernels=on_ranks((0, 1), copying(**columns)), steps=steps), "P304")
    assert finding.severity == "warning"
    assert finding.ranks == (0, 1)
    assert "up to 30% of the step (300 us, rank 0)" in finding.title
    assert finding.title.endswith(reason)
    assert bool(finding.evidence.facts["reasons"]) == bool(reason)
    assert finding.help.startswith(advice) or advice in finding.help.split(";")[0]
    assert ("pin" in finding.help.replace("PATH", "")) == ("Pageable" in str(columns)), "pinned memory needs no pinning"


@pytest.mark.parametrize(
    "kernels",
    [
        pytest.param([*copying(), kernel(0, 300, step=1, stream=8)], id="hidden by computation"),
        pytest.param(copying(name="Memcpy DtoD (Device -> Device)"), id="within the device"),
        pytest.param([copy(0, 20, step=1), kernel(20, 990, step=1)], id="two percent"),
    ],
)
def test_nothing_is_said_about_copies(kernels: list[Row]) -> None:
    assert findings(trace_of(kernels=kernels, steps=[step(1, 0, 1000)]), "P304") == []
