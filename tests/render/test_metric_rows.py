from __future__ import annotations

from rankscope.model.tables import Table
from rankscope.render.metric_rows import has_moments, plain_rows, readable_rows

SECOND_NS = 10**9
START_NS = 1_700_000_000 * SECOND_NS


def test_programs_get_what_the_table_holds() -> None:
    gaps = Table.from_rows("idle_gaps", [{"rank": 3, "start_ns": START_NS, "duration_ns": 1500, "cause": "host"}])
    (row,) = plain_rows(gaps)
    assert dict(zip(gaps.columns, row, strict=True)) == {
        "file_id": None,
        "rank": 3,
        "device": None,
        "start_ns": START_NS,
        "duration_ns": 1500,
        "cause": "host",
        "late_ns": None,
        "delay_ns": None,
        "kernel_id": None,
        "wait_call_id": None,
        "step": None,
    }


def test_a_difference_of_one_less_is_not_missing() -> None:
    diff = Table.from_rows(
        "trace_diff", [{"name": "gemm", "n_before": 2, "n_after": 1, "diff_count": -1, "diff_ns": -1}]
    )
    (row,) = plain_rows(diff)
    assert dict(zip(diff.columns, row, strict=True))["diff_count"] == -1
    heads, (cells,) = readable_rows(diff, 0)
    shown = dict(zip(map(str.strip, heads), map(str.strip, cells), strict=True))
    assert (shown["diff_count"], shown["diff (us)"], shown["total_before (us)"]) == ("-1", "-0.001", "-")


def test_moments_are_counted_from_the_start_and_columns_have_one_unit() -> None:
    rows = [
        {"start_ns": START_NS + 5_000_000, "duration_ns": 1500, "rank": 7},
        {"start_ns": START_NS + 20_500_000, "duration_ns": 2_000_000},
    ]
    gaps = Table.from_rows("idle_gaps", rows)
    assert has_moments(gaps)
    heads, cells = readable_rows(gaps, START_NS)
    by_head = {head.strip(): column for head, column in zip(heads, zip(*cells, strict=True), strict=True)}
    assert by_head["start (ms)"] == ("     5.000", "    20.500")
    assert by_head["duration (us)"] == ("        1.500", "     2000.000")
    assert by_head["rank"] == ("   7", "   -")
    assert "start_ns" not in by_head


def test_shares_sizes_and_numbers_without_a_unit() -> None:
    queue = Table.from_rows("queue_blocked", [{"blocked_pct": 12.3456}, {}])
    heads, cells = readable_rows(queue, 0)
    assert heads[-1] == "blocked (%)"
    assert [row[-1].strip() for row in cells] == ["12.35", "-"]
    summary = Table.from_rows("queue_summary", [{"mean_queued": 1 / 3}])
    assert "0.333" in [cell.strip() for cell in readable_rows(summary, 0)[1][0]]
    memory = Table.from_rows("memory", [{"n_bytes": 3 * 2**30, "allocated_bytes": 512}])
    heads, cells = readable_rows(memory, 0)
    shown = dict(zip(map(str.strip, heads), map(str.strip, cells[0]), strict=True))
    assert (shown["size (MiB)"], shown["allocated (B)"]) == ("3072.000", "512")
    assert not has_moments(memory)


def test_long_texts_come_last() -> None:
    launches = Table.from_rows("launch_stats", [{"name": "cudaLaunchKernel", "kernel": "k" * 80, "rank": 1}])
    heads, _ = readable_rows(launches, 0)
    assert heads[-1] == "kernel"
    assert heads.index("name") < len(heads) - 1


def test_a_table_without_rows() -> None:
    heads, cells = readable_rows(Table.from_rows("ops", []), 0)
    assert "name" in heads
    assert cells == []
