"""The view of metrics, on hand-made tables."""

from __future__ import annotations

import re

import numpy as np
import pytest

from page_timings import MARKUP, measured, report, straggler
from rankscope.model.finding import CollectiveRef, Finding, GroupRef, Report
from rankscope.model.tables import Array, Table, Trace
from rankscope.render.page.contents import Contents, PageOptions
from rankscope.render.page.metrics import metrics_view, odd_ranks


def shown(trace: Trace, own: Report | None = None, max_bytes: int = 10_000_000) -> tuple[str, Contents]:
    contents = Contents(trace, own or report(), PageOptions(max_bytes=max_bytes))
    return metrics_view(contents).body, contents


def noisy(n_ranks: int, n_steps: int, seed: int = 1) -> Array:
    return np.random.default_rng(seed).normal(1.0, 0.05, (n_ranks, n_steps))


def test_without_metrics_it_says_what_to_run() -> None:
    own = metrics_view(Contents(Trace(("traces",)), report(), PageOptions()))
    assert own.is_absent
    assert "rankscope record" in own.body
    assert "rankscope.metric(&quot;loss&quot;, value)" in own.body


def test_few_ranks_are_lines_each() -> None:
    body, contents = shown(measured("loss", noisy(8, 20)))
    assert body.count('<path class="line s') == 8
    assert 'class="band' not in body
    assert contents.remarks == []


def test_a_log_that_does_not_tell_its_rank_is_drawn_without_one() -> None:
    trace = measured("loss", np.full((2, 3), np.nan))
    table = trace.table("metrics")
    trace.tables["metrics"] = table.replaced({"rank": np.where(table.array("rank") == 1, -1, 0).astype(np.int32)})
    body, _ = shown(trace)
    assert ">rank not recorded</span>" in body
    assert "rank -1" not in body
    assert "at step 0 on rank 0, the first of 6" in body


def test_traffic_is_shown_in_bytes_per_second() -> None:
    body, _ = shown(measured("network_sent_bytes_per_s", np.full((2, 3), 5.0 * (1 << 20))))
    assert re.search(r"rank 0: 5(\.\d+)? \w*B/s", body)


def test_more_ranks_are_a_median_with_bands_and_the_odd_ones() -> None:
    values = noisy(64, 20)
    values[41] += 2
    body, _ = shown(measured("loss", values))
    assert body.count('<path class="band') == 2
    assert re.findall(r'<path class="line (\w+)"', body) == ["middle", "s1"]
    assert ">rank 41</span>" in body


def test_ranks_that_agree_have_no_odd_ones() -> None:
    assert odd_ranks(np.full((20, 5), 3.0)) == []
    assert odd_ranks(noisy(64, 50)) == []
    alone = np.full((20, 5), 3.0)
    alone[7] = 4.0
    assert odd_ranks(alone) == [7]


def test_a_loss_that_becomes_no_number_is_said_and_marked() -> None:
    values = noisy(4, 30)
    values[2, 17:] = np.nan
    body, _ = shown(measured("loss", values))
    assert "loss is not a number at step 17 on rank 2, the first of 13 such values." in body
    assert 'class="flag broken"' in body
    row = re.search(r"<tbody.*?<tr>(.*?)</tr>", body, re.S)
    assert row
    assert "not a number" in row.group(1)


def test_values_that_are_all_no_numbers_are_drawn() -> None:
    body, _ = shown(measured("loss", np.full((2, 3), np.inf)))
    assert "loss is infinite at step 0 on ranks 0,1" in body
    body, _ = shown(measured("loss", np.full((20, 3), np.nan)))
    assert "loss is not a number" in body


def test_a_spike_survives_thinning_and_thinning_is_said() -> None:
    values = np.ones((2, 5_000))
    values[1, 2_345] = 50.0
    body, contents = shown(measured("grad_norm", values))
    assert re.search(r"rank 1: 1 to 50\b", body)
    assert "1 metric with more than" in contents.remarks[0]
    assert len(body) < 500_000


def test_a_spike_of_one_among_many_ranks_is_in_the_band() -> None:
    values = np.ones((32, 5_000))
    values[9, 2_345] = 50.0
    assert re.search(r"all ranks: 1 to 50\b", shown(measured("grad_norm", values))[0])


def test_the_page_keeps_to_its_room() -> None:
    tables = [measured(f"metric-{number:02}", noisy(16, 300)).tables["metrics"] for number in range(30)]
    rows = [row for table in tables for row in table.rows()]
    body, contents = shown(Trace(("traces",), {"metrics": Table.from_rows("metrics", rows)}))
    assert len(body) < 0.05 * 10_000_000
    assert "The first 24 of 30 metrics are shown." in contents.remarks


def test_names_tell_the_units() -> None:
    assert "100 ms" in shown(measured("step_time_s", np.full((1, 3), 0.1)))[0]
    assert "2 GB" in shown(measured("host_memory_bytes", np.full((1, 3), 2e9)))[0]
    assert "step 0\nrank 0: 320<" in shown(measured("samples_per_s", np.full((1, 3), 320.0)))[0]


def test_metrics_without_steps_are_counted() -> None:
    body, _ = shown(measured("loss", noisy(2, 10), has_steps=False))
    assert "<title>value 9\n" in body
    assert "step" not in re.sub(r"<[^>]*>", "", body.split("<table")[0]).lower()


def test_findings_stand_at_their_step() -> None:
    body, _ = shown(measured("loss", noisy(4, 10)), report(4, straggler(2, [6])))
    flag = re.search(r'<g class="flag ">.*?</g>', body)
    assert flag
    assert 'href="#S202-1"' in flag.group()
    place = re.search(r'x1="([\d.]+)%"', flag.group())
    assert place
    assert float(place.group(1)) == pytest.approx(2 + 96 * 6 / 9, abs=0.1)
    assert 'class="flag' not in shown(measured("loss", noisy(4, 10)), report(4, straggler(2, [60])))[0]


def test_a_finding_about_a_call_stands_at_the_step_of_that_time() -> None:
    trace = measured("loss", noisy(2, 10))
    call = {"rank": 0, "group_id": 3, "group_name": "dp", "seq": 77, "p2p_seq": -1, "created_ns": 10**18 + 450_000_000}
    trace.tables["collectives"] = Table.from_rows("collectives", [call])
    trace.tables["groups"] = Table.from_rows("groups", [{"group_id": 3, "name": "dp"}])
    members = [{"group_id": 3, "rank": rank} for rank in (0, 1)]
    trace.tables["group_members"] = Table.from_rows("group_members", members)
    group, call_ref = GroupRef("dp", "", (0, 1)), CollectiveRef(77, "all_reduce")
    found = Finding(
        code="H104",
        rule="rank-stuck",
        severity="error",
        certainty="certain",
        title=MARKUP,
        ranks=(1,),
        group=group,
        collective=call_ref,
    )
    body, _ = shown(trace, report(2, found))
    place = re.search(r'<g class="flag ">.*?x1="([\d.]+)%"', body)
    assert place
    assert float(place.group(1)) == pytest.approx(2 + 96 * 5 / 9, abs=0.1)
    assert "<img" not in body


def test_names_are_text() -> None:
    body, contents = shown(measured(MARKUP * 100, noisy(2, 3)))
    assert "<img" not in body
    assert "<script" not in body
    assert len(body) < 20_000
    assert contents.remarks == []
