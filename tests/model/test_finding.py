"""The records of a report, and how ranks and times are put into words."""

from __future__ import annotations

import msgspec
import pytest

from rankscope.model.finding import (
    SCHEMA_NAME,
    Capture,
    Check,
    Evidence,
    Finding,
    Report,
    count_noun,
    format_duration,
    format_ranks,
    ranks_phrase,
)

FINDING = Finding(
    code="H102", rule="op-mismatch", severity="error", certainty="certain", title="rank 1 is odd", ranks=(1,)
)


@pytest.mark.parametrize(
    ("ranks", "text"),
    [
        ([], ""),
        ([3], "3"),
        ([3, 4], "3,4"),
        ([3, 4, 5], "3-5"),
        ([*range(512), 513], "0-511,513"),
        ([5, 1, 1, 3], "1,3,5"),
        ([0, 1, 7, 8, 9, 20], "0,1,7-9,20"),
    ],
)
def test_ranks_are_compressed(ranks: list[int], text: str) -> None:
    assert format_ranks(ranks) == text


def test_the_middle_of_a_long_list_is_left_out() -> None:
    scattered = list(range(1, 1024, 16))
    assert format_ranks(scattered, limit=4) == "1,17,33,...,1009"
    assert format_ranks([1, 3, 5, 7], limit=4) == "1,3,5,7"


@pytest.mark.parametrize(
    ("ranks", "text"),
    [((3,), "rank 3"), ((2, 1), "ranks 1,2"), (tuple(range(512)), "512 ranks (0-511)")],
)
def test_ranks_in_a_sentence(ranks: tuple[int, ...], text: str) -> None:
    assert ranks_phrase(ranks) == text


@pytest.mark.parametrize(
    ("nanoseconds", "text"),
    [
        (600_000_000_000, "10 min 0 s"),
        (3_200_000_000, "3.2 s"),
        (41_000_000, "41 ms"),
        (950, "1 us"),
        (7_260_000_000_000, "2 h 1 min"),
    ],
)
def test_durations_are_for_people(nanoseconds: int, text: str) -> None:
    assert format_duration(nanoseconds) == text


def test_numbers_and_nouns_agree() -> None:
    assert count_noun(1, "call") == "1 call"
    assert count_noun(1023, "peer") == "1,023 peers"
    assert count_noun(2, "batch", "batches") == "2 batches"


def test_records_cannot_be_changed() -> None:
    with pytest.raises(AttributeError):
        FINDING.title = "another"  # type: ignore[misc]


def test_a_report_survives_its_json() -> None:
    capture = Capture(("traces",), (0, 1), 2, {"flight_recorder": 2})
    report = Report(SCHEMA_NAME, capture, (FINDING,), (Check("op-mismatch", "ran"),))
    assert msgspec.json.decode(msgspec.json.encode(report), type=Report) == report
    assert (report.count("error"), report.count("warning")) == (1, 0)


def test_the_names_of_the_json_are_those_that_others_rely_on() -> None:
    plain = msgspec.to_builtins(FINDING)
    wanted = "code rule severity certainty title ranks group collective location peer_location evidence help"
    wanted += " action action_hosts"
    assert list(plain) == wanted.split()
    # Evidence shows only what there is; the frame of a finding is always whole.
    assert msgspec.to_builtins(Evidence(certain=("a",))) == {"certain": ("a",)}
