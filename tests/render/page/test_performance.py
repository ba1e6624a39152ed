"""The view of profiled jobs, on hand-made tables."""

from __future__ import annotations

import re

import msgspec
import numpy as np
import pytest

from page_timings import MARKUP, MS, profiled, report, straggler, with_tables
from rankscope.model.finding import Report
from rankscope.model.tables import Trace
from rankscope.render.page.contents import Contents, PageOptions, View
from rankscope.render.page.performance import performance_view


def contents(trace: Trace, own: Report | None = None, **options: int) -> Contents:
    return Contents(trace, own or report(), PageOptions(**options))  # type: ignore[arg-type]


def view(trace: Trace, own: Report | None = None) -> View:
    return performance_view(contents(trace, own))


def bar_labels(body: str, chart: str) -> list[str]:
    found = re.search(rf'<figure class="chart" id="{chart}".*?</figure>', body, re.S)
    assert found, f"no {chart}"
    labels = re.findall(r'<span class="of"[^>]*>(.*?)</span>', found.group())
    return [re.sub("<[^>]*>", "", label).strip() for label in labels]


def test_without_profiler_traces_it_says_what_to_run() -> None:
    shown = view(Trace(("traces",)))
    assert shown.is_absent
    assert "rankscope record" in shown.body


def test_the_slow_rank_stands_first_and_is_marked() -> None:
    shown = view(profiled(6, 8, slow=4), report(6, straggler(4, [1, 2, 3, 4, 5, 6, 7, 8])))
    labels = bar_labels(shown.body, "chart-breakdown")
    assert labels[0] == "S202 rank 4"
    assert labels[-1] == "median rank"
    assert len(labels) == 7
    assert 'href="#S202-1"' in shown.body


def test_a_finding_on_most_ranks_marks_none() -> None:
    everywhere = msgspec.structs.replace(straggler(0, []), ranks=(0, 1, 2, 3, 4, 5))
    shown = view(profiled(6, 8), report(6, everywhere))
    assert not any("S202" in label for label in bar_labels(shown.body, "chart-breakdown"))
    assert "S202" in shown.body


def test_steps_that_a_finding_names_are_marked_unless_it_names_all() -> None:
    some = view(profiled(4, 8, slow=2), report(4, straggler(2, [3])))
    assert "S202 step 3" in bar_labels(some.body, "chart-steps")
    every = view(profiled(4, 8, slow=2), report(4, straggler(2, [*range(1, 9)])))
    assert not any("S202" in label for label in bar_labels(every.body, "chart-steps"))


def test_parts_of_a_step_add_up() -> None:
    body = view(profiled(3, 2)).body
    found = re.search(r'id="chart-breakdown".*?</figure>', body, re.S)
    assert found
    titles = re.findall("<title>(.*?)</title>", found.group())[:3]
    assert titles == [
        "computation: 60 ms (60.0%)",
        "exposed communication: 30 ms (30.0%)",
        "nothing recorded: 10 ms (10.0%)",
    ]


def test_few_ranks_are_lines_and_more_are_a_map() -> None:
    assert '<path class="line s3"' in view(profiled(4, 8)).body
    many = view(profiled(9, 8, slow=5)).body
    assert '<path class="line' not in many
    assert many.count('class="mark h') == 2 * 9 * 8
    assert "<title>rank 5, step 8: 95 ms</title>" in many


def test_many_cells_are_data_for_a_canvas() -> None:
    own = contents(profiled(1024, 20, slow=513), report(1024))
    body = performance_view(own).body
    assert 'data-block-name="own-time"' in body
    block = own.blocks.makers["own-time"]()
    values = block.arrays["value"].reshape(1024, 20)
    assert np.argmax(values.max(axis=1)) == 513
    assert block.arrays["rank"][513] == 513
    assert block.arrays["step"].tolist() == [*range(1, 21)]
    assert own.remarks == []
    assert len(body) < 200_000


def test_more_steps_than_there_is_room_for_are_joined_and_said() -> None:
    own = contents(profiled(1024, 200), report(1024), max_bytes=1_000_000)
    performance_view(own)
    assert any("200 steps" in remark for remark in own.remarks)
    assert sum(len(own.blocks.get(name)) for name in own.blocks.makers) * 4 / 3 < 0.1 * 1_000_000


def test_a_large_job_stays_small() -> None:
    own = contents(profiled(16_384, 4, slow=9_999), report(16_384))
    body = performance_view(own).body
    n_later = sum(len(item) for items in own.later.lists.values() for item in items)
    assert len(body) + n_later < 400_000
    assert "first 200 of 16,384 ranks" in body
    assert bar_labels(body, "chart-breakdown")[0] == "rank 9999"


@pytest.mark.parametrize(("n_ranks", "n_steps"), [(1, 1), (1, 8), (2, 1), (9, 1)])
def test_small_jobs_are_drawn(n_ranks: int, n_steps: int) -> None:
    assert 'id="chart-breakdown"' in view(profiled(n_ranks, n_steps)).body


def test_without_marked_steps_the_whole_trace_is_shown() -> None:
    trace = profiled(2, 1)
    breakdown = trace.tables["step_breakdown"]
    trace.tables["step_breakdown"] = breakdown.replaced({"step": np.full(2, -1)})
    body = view(trace).body
    assert "no steps were marked" in body
    assert 'id="step-times"' not in body
    assert "step -1" not in body


def test_without_a_device_it_says_what_is_measured() -> None:
    body = view(profiled(2, 3, has_device=False)).body
    assert "No device was traced" in body
    assert "operators on the host: 60 ms" in body
    assert "No device was traced" not in view(profiled(2, 3)).body


def test_kernels_with_the_odd_rank() -> None:
    rows = [
        {
            "rank": rank,
            "name": name,
            "type": "computation",
            "n_kernels": 10,
            "total_ns": total,
            "mean_ns": total // 10,
            "min_ns": 1,
            "max_ns": 2,
        }
        for rank in range(4)
        for name, total in (("gemm", 20 * MS if rank == 2 else 10 * MS), (MARKUP, MS))
    ]
    body = view(with_tables(profiled(4, 2), kernel_breakdown=rows)).body
    assert "rank 2: 2.0 times the median" in body
    assert body.index("gemm") < body.index("&lt;img")
    assert "<img" not in body


def test_who_is_waited_for_and_why() -> None:
    stragglers = [
        {"rank": rank, "cost_ns": cost * MS, "cost_pct": float(cost), "n_late_steps": 3, "n_steps": 8, "n_peers": 3}
        for rank, cost in ((0, 0), (1, 20), (2, 0))
    ]
    causes = [
        {"rank": 1, "part": "computation", "cause": "slow-kernels", "is_main": True, "own_ns": 9, "peers_ns": 5},
        {"rank": 1, "part": "copies", "cause": "", "is_main": False, "own_ns": 1, "peers_ns": 1},
    ]
    body = view(with_tables(profiled(3, 8), stragglers=stragglers, late_causes=causes)).body
    assert bar_labels(body, "chart-stragglers") == ["rank 1"]
    assert "20 ms (slow-kernels)" in body
    assert "<b>computation</b>" in body


def test_shares_of_nothing_are_drawn() -> None:
    """A share without a whole is NULL in the database."""
    none = {"cost_ns": 0, "cost_pct": np.nan, "n_late_steps": 0, "n_steps": 1, "n_peers": 1}
    speed = {"group_size": 2, "op": "all_reduce", "n_bytes": 4, "n_matches": 1, "transfer_ns": 0, "bus_gbps": np.nan}
    body = view(
        with_tables(
            profiled(2, 1),
            stragglers=[{"rank": rank, **none} for rank in (0, 1)],
            comm_waits=[{"rank": 0, "op": "all_reduce", "n_calls": 1, "wait_ns": 0, "transfer_ns": 0, "exposed_ns": 0}],
            comm_bandwidth=[speed],
        )
    ).body
    assert "No rank costs its peers more than" in body
    assert "None" not in body


def test_the_critical_path_shows_what_took_most_of_each_moment() -> None:
    pieces = [
        {"rank": 0, "kind": "kernel", "name": "gemm", "start_ns": 0, "duration_ns": 60 * MS, "step": 1},
        {"rank": 1, "kind": "communication", "name": MARKUP, "start_ns": 60 * MS, "duration_ns": 40 * MS, "step": 1},
    ]
    body = view(with_tables(profiled(2, 1), critical_path=pieces)).body
    assert bar_labels(body, "chart-path") == ["rank 0", "rank 1"]
    spans = re.findall(r'<rect class="mark (\w+)" x="([\d.]+)%" width="([\d.]+)%" height="100%"><title>rank', body)
    assert spans == [("computation", "0", "60"), ("communication", "60", "40")]
    assert "<img" not in body


def test_a_long_path_has_few_marks() -> None:
    n = 50_000
    kinds = ("kernel", "kernel-gap")
    pieces = [
        {"rank": k % 3, "kind": kinds[k % 2], "name": "x", "start_ns": k * 1000, "duration_ns": 1000} for k in range(n)
    ]
    body = view(with_tables(profiled(3, 1), critical_path=pieces)).body
    found = re.search(r'id="chart-path".*?</figure>', body, re.S)
    assert found
    assert found.group().count("<rect") <= 400


def test_hidden_and_exposed_communication() -> None:
    rows = [
        {"rank": rank, "comm_ns": 100 * MS, "overlap_ns": hidden * MS, "exposed_comm_ns": (100 - hidden) * MS}
        for rank, hidden in ((0, 75), (1, 20))
    ]
    body = view(with_tables(profiled(2, 1), comm_overlap=rows)).body
    assert bar_labels(body, "chart-overlap") == ["rank 1", "rank 0"]
    assert "20% hidden" in body


def test_idle_time_by_cause() -> None:
    rows = [
        {"rank": 0, "duration_ns": 3 * MS, "cause": "data"},
        {"rank": 0, "duration_ns": 2 * MS, "cause": "sync"},
        {"rank": 1, "duration_ns": MS, "cause": "host"},
    ]
    body = view(with_tables(profiled(2, 1), idle_gaps=rows)).body
    assert "data loading: 3 ms" in body
    assert bar_labels(body, "chart-idle") == ["rank 0", "rank 1"]


def test_collectives_by_waiting_and_moving() -> None:
    rows = [
        {
            "rank": rank,
            "group_key": 0,
            "group_name": "dp",
            "op": "all_reduce",
            "n_calls": 8,
            "total_ns": 90 * MS,
            "wait_ns": wait * MS,
            "transfer_ns": 20 * MS,
            "exposed_ns": 40 * MS,
        }
        for rank, wait in ((0, 70), (1, 10))
    ]
    body = view(with_tables(profiled(2, 1), comm_waits=rows)).body
    assert "waiting for others: 40 ms" in body
    assert "moving data: 20 ms" in body


def test_pipeline_stages() -> None:
    rows = [
        {
            "rank": stage,
            "stage": stage,
            "step": 1,
            "step_ns": 100 * MS,
            "compute_ns": 50 * MS,
            "bubble_ns": 40 * MS,
            "wait_ns": 0,
            "transfer_ns": 0,
            "idle_ns": 10 * MS,
        }
        for stage in (0, 1)
    ]
    body = view(with_tables(profiled(2, 1), pipeline_bubbles=rows)).body
    assert "40% bubble" in body


def test_what_would_help() -> None:
    rows = [
        {"kind": "replayed", "what": "as recorded", "step_ns": 100 * MS, "saved_ns": 0},
        {"kind": "rank", "what": "rank 3", "step_ns": 80 * MS, "saved_ns": 20 * MS},
        {"kind": "rank", "what": "rank 1", "step_ns": 100 * MS, "saved_ns": 1},
    ]
    body = view(with_tables(profiled(4, 1), what_if=rows)).body
    assert "rank 3: saves 20 ms, 80 ms per step" in body
    assert bar_labels(body, "chart-what-if") == ["rank 3"]


def test_the_same_capture_gives_the_same_bytes() -> None:
    assert view(profiled(16, 8, slow=3)).body == view(profiled(16, 8, slow=3)).body
