"""Logs of others, where they lie beside the repository: the counts are those that tlparse reports of them."""

from __future__ import annotations

from collections import Counter
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from rankscope.model.payloads import damaged_payloads, payloads
from rankscope.model.tables import Trace
from rankscope.pipeline import load

SAMPLES = Path(__file__).resolve().parents[3] / "shared" / "samples" / "compile_logs"
pytestmark = pytest.mark.skipif(not SAMPLES.exists(), reason="the samples are not beside the repository")

SCHEDULE = "multi_rank_schedule/dedicated_log_torch_trace_rank_"
MANY = "multi_rank_logs/dedicated_log_torch_trace_rank_"
# File: records but for strings, of these chromium events, and payloads whose checksum is wrong.
COUNTS = {
    "simple.log": (64, 50, 0),
    "simple_corrupted_json.log": (64, 50, 1),
    "comp_metrics.log": (12, 0, 0),
    "comp_failure.log": (13, 6, 0),
    "artifacts.log": (7, 0, 0),
    "cache_hit_miss.log": (369, 128, 0),
    "links.log": (9, 0, 0),
    "export.log": (18, 0, 1),
    "inductor_provenance_aot_cuda_log.txt": (105, 79, 0),
    "inductor_provenance_jit_log.txt": (101, 65, 0),
    "collectives_parity/dedicated_log_torch_trace_rank_0.log": (500, 350, 6),
    f"{SCHEDULE}0_6u3fubwl.log": (159, 118, 0),
    f"{SCHEDULE}1_n8zycf07.log": (159, 118, 1),
    f"{SCHEDULE}2.log": (159, 118, 0),
    f"{MANY}0.log": (13, 6, 0),
    f"{MANY}1.log": (808, 544, 0),
    f"{MANY}2.log": (13, 6, 0),
    f"{MANY}3.log": (297, 179, 0),
}


@cache
def sample(name: str) -> Trace:
    return load(SAMPLES / name, jobs=1)


def rows(name: str, table: str) -> list[dict[str, Any]]:
    return list(sample(name).table(table).rows())


@pytest.mark.parametrize("name", COUNTS)
def test_every_record_is_read(name: str) -> None:
    kinds = Counter(sample(name).table("compile_records").text("kind").tolist())
    n_damaged = len(list(damaged_payloads(sample(name))))

    assert (kinds.total() - kinds["str"], kinds["chromium_event"], n_damaged) == COUNTS[name]
    assert [log["n_bad"] for log in rows(name, "compile_logs")] == [0]


def test_the_payloads_that_no_parser_knows_are_those_of_the_metrics_sample() -> None:
    """The first letters of the names that its own test expects."""
    unknown = [md5[:8] for md5 in sample("comp_metrics.log").table("compile_records").text("md5").tolist() if md5]

    assert {"11726d08", "29e35548", "e18e1bcb"} <= set(unknown)


def test_restarts_are_told_with_their_reasons() -> None:
    found = [
        (row["compile_id"], row["attempt"], bool(row["restart_reasons"]))
        for row in rows("comp_metrics.log", "compilations")
    ]

    assert found == [("0/0", 1, True), ("1/0", 1, True), ("2/0", 0, False)]


def test_the_failure_is_told_with_its_cause() -> None:
    [failed] = rows("comp_failure.log", "compilations")
    [error] = rows("comp_failure.log", "compile_errors")

    assert (failed["compile_id"], failed["status"]) == ("0/0", "failed")
    assert failed["fail_type"]
    assert error["message"]


def test_cache_events_are_in_their_order() -> None:
    events = [(row["cache"], row["outcome"]) for row in rows("cache_hit_miss.log", "cache_events")]

    assert [outcome for cache, outcome in events if cache == "fx_graph"] == ["miss", "hit", "miss"]
    assert [outcome for cache, outcome in events if cache == "aotautograd"] == ["bypass"] * 3


def test_a_damaged_event_does_not_lose_the_others() -> None:
    damaged = list(damaged_payloads(sample("simple_corrupted_json.log")))

    assert [row["kind"] for row in damaged] == ["chromium_event"]
    assert len(list(payloads(sample("simple_corrupted_json.log"), "chromium_event"))) == 50


def test_links_keep_their_names() -> None:
    links = [row for row in rows("links.log", "compile_records") if row["kind"] == "link"]

    assert links
    assert all(row["name"] for row in links)


@pytest.mark.parametrize(
    ("folder", "ranks"),
    [("multi_rank_logs", [0, 1, 2, 3]), ("multi_rank_schedule", [0, 1, 2]), ("multi_rank_messy_input", [0, 1])],
)
def test_a_folder_gives_all_its_ranks(folder: str, ranks: list[int]) -> None:
    logs = rows(folder, "compile_logs")

    assert sorted(log["rank"] for log in logs) == ranks


def test_files_that_are_no_logs_are_ignored_and_named() -> None:
    ignored = {Path(row["path"]).name for row in rows("multi_rank_messy_input", "files") if row["status"] == "ignored"}

    assert ignored == {"another.log", "some_other_file.txt"}


def test_ranks_are_grouped_by_what_their_caches_did() -> None:
    """Groups {1}, {3}, {0, 2}: how often and in which order the caches hit and missed."""
    outcomes: dict[int, list[str]] = {log["rank"]: [] for log in rows("multi_rank_logs", "compile_logs")}
    for event in rows("multi_rank_logs", "cache_events"):
        outcomes[event["rank"]].append(f"{event['cache']} {event['outcome']}")
    groups: dict[tuple[str, ...], set[int]] = {}
    for rank, pattern in outcomes.items():
        groups.setdefault(tuple(pattern), set()).add(rank)

    assert sorted(map(sorted, groups.values())) == [[0, 2], [1], [3]]


def test_every_record_of_every_sample_has_a_time_and_a_kind() -> None:
    for name in COUNTS:
        records = sample(name).table("compile_records")
        assert (records.array("time_ns") > 0).all(), name
        assert "" not in records.text("kind").tolist(), name


def test_years_are_those_of_the_records_and_not_of_today() -> None:
    """Written in 2024 and 2025."""
    for name in COUNTS:
        [log] = rows(name, "compile_logs")
        if log["clock"] == "absolute":
            assert 1_700_000_000 < log["first_ns"] / 1e9 < 1_767_225_600, name
