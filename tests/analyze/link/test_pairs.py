"""et_pairs: which profile belongs to an execution trace, and the reason when none does or nodes are missing."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

import rankscope
from analyze.link.recordings import (
    PID,
    Run,
    found_calls,
    links_of,
    observed,
    pair_of,
    profiled,
    trace_of,
    training,
)
from rankscope.analyze.link.partners import is_other_time

SAMPLES = Path(__file__).resolve().parents[4] / "shared" / "samples" / "execution_trace"
needs_samples = pytest.mark.skipif(not SAMPLES.exists(), reason="needs the sample traces")
DAY_NS = 86_400 * 10**9


def test_a_whole_pair() -> None:
    calls = training().calls
    pair = pair_of(trace_of(observed(calls), profiled(calls)))
    n_calls = len(calls)
    assert (pair["file_id"], pair["profile_id"], pair["method"], pair["why"]) == (1, 0, "id", "")
    assert (pair["n_nodes"], pair["n_linkable"], pair["n_linked"]) == (n_calls + 3, n_calls, n_calls)
    assert (pair["link_pct"], pair["covered_pct"]) == (100, 100)
    assert (pair["n_wrong_names"], pair["n_outside"]) == (0, 0)


def test_the_description_of_the_groups_is_not_looked_for() -> None:
    calls = training().calls
    rows = observed(calls)
    rows["et_nodes"].append({"file_id": 1, "rank": 0, "node_id": 90, "kind": "groups", "record_id": 999, "thread": 1})
    assert pair_of(trace_of(rows, profiled(calls)))["n_linkable"] == len(calls)


def test_an_observer_that_ran_longer_is_no_failure() -> None:
    calls = training(6).calls
    half = len(calls) // 2
    pair = pair_of(trace_of(observed(calls), profiled(calls[half:])))
    assert (pair["why"], pair["n_outside"], pair["n_linked"]) == ("partial", half, len(calls) - half)
    assert (pair["link_pct"], pair["covered_pct"]) == (50, 100)


def test_what_the_profiler_lost_in_between_is_not_outside() -> None:
    calls = training().calls
    pair = pair_of(trace_of(observed(calls), profiled([*calls[:7], *calls[9:]])))
    assert (pair["n_outside"], pair["n_linked"], pair["why"]) == (0, len(calls) - 2, "")


def test_windows_between_two_profiles_are_outside() -> None:
    calls = training(6).calls
    third = len(calls) // 3
    profiles = profiled(calls[:third]), profiled(calls[2 * third :], file_id=2)
    pair = pair_of(trace_of(observed(calls), *profiles))
    assert (pair["n_outside"], pair["why"], pair["covered_pct"]) == (third, "partial", 100)


def test_equal_numbers_under_other_names_are_another_run() -> None:
    calls = training().calls
    others = [replace(call, name=f"{call.name}_") if place % 3 else call for place, call in enumerate(calls)]
    trace = trace_of(observed(calls), profiled(others))
    pair = pair_of(trace)
    assert (pair["why"], pair["method"], pair["profile_id"]) == ("different-run", "none", -1)
    assert pair["n_wrong_names"] == sum(bool(place % 3) for place in range(len(calls)))
    assert found_calls(trace) == {}


def test_equal_numbers_and_names_of_another_process_on_another_day_are_another_run() -> None:
    calls = training().calls
    trace = trace_of(observed(calls), profiled(calls, pid=PID + 1, shift_ns=3 * DAY_NS))
    assert (pair_of(trace)["why"], found_calls(trace)) == ("different-run", {})


def test_a_rewritten_process_number_alone_does_not_matter_where_numbers_and_names_agree() -> None:
    calls = training().calls
    assert pair_of(trace_of(observed(calls), profiled(calls, pid=0)))["link_pct"] == 100


def test_of_two_runs_the_one_of_the_same_process_is_taken() -> None:
    calls = training().calls
    other = profiled([*calls, *training(5).calls[len(calls) :]], pid=PID + 1)
    assert pair_of(trace_of(observed(calls, file_id=2), other, profiled(calls, file_id=1)))["profile_id"] == 1


def test_windows_that_do_not_overlap() -> None:
    calls = training(6).calls
    half = len(calls) // 2
    pair = pair_of(trace_of(observed(calls[:half]), profiled(calls[half:])))
    assert (pair["why"], pair["n_linked"]) == ("no-overlap", 0)


def test_no_profile_of_the_rank() -> None:
    calls = training().calls
    [pair] = trace_of(observed(calls), profiled(calls, rank=1)).table("et_pairs").rows()
    assert (pair["why"], pair["method"], pair["profile_id"], pair["link_pct"]) == ("no-profile", "none", -1, 0)


def test_a_profile_of_other_steps_without_the_observer() -> None:
    calls = training(6).calls
    half = len(calls) // 2
    pair = pair_of(trace_of(observed(calls[:half]), profiled(calls[half:], ids="zero")))
    assert (pair["why"], pair["n_linked"]) == ("no-observer", 0)


def test_names_alone_do_not_contradict_a_profiler_that_saw_no_observer() -> None:
    calls = training(is_numbered=False).calls
    assert pair_of(trace_of(observed(calls), profiled(calls, ids="zero")))["why"] == "no-observer"


def test_a_clean_profile_beside_the_pair_is_no_failure() -> None:
    calls = training(6).calls
    half = len(calls) // 2
    clean = profiled(calls[half:], file_id=2, ids="zero")
    pair = pair_of(trace_of(observed(calls[:half]), profiled(calls[:half]), clean))
    assert (pair["profile_id"], pair["why"], pair["link_pct"]) == (0, "", 100)


def test_without_numbers_names_are_aligned() -> None:
    calls = training().calls
    trace = trace_of(observed(calls), profiled(calls, ids="absent"))
    pair = pair_of(trace)
    assert (pair["method"], pair["why"], pair["link_pct"], pair["covered_pct"]) == ("alignment", "no-ids", 100, 100)
    assert found_calls(trace) == {call.number: place for place, call in enumerate(calls)}
    assert all(row["is_inflated"] for row in links_of(trace).values())


def test_an_execution_trace_without_numbers_is_aligned_as_well() -> None:
    calls = training().calls
    assert pair_of(trace_of(observed(calls, has_ids=False), profiled(calls)))["method"] == "alignment"


def test_an_alignment_tells_what_is_outside() -> None:
    calls = training(6).calls
    half = len(calls) // 2
    pair = pair_of(trace_of(observed(calls), profiled(calls[half:], ids="absent")))
    assert (pair["why"], pair["n_outside"], pair["n_linked"]) == ("partial", half, half)


def test_names_of_another_model_are_another_run() -> None:
    other = Run()
    for layer in range(40):
        other.leaf(f"aten::conv{layer % 7}", seq=layer)
    pair = pair_of(trace_of(observed(training().calls), profiled(other.calls, ids="absent")))
    assert (pair["why"], pair["n_linked"]) == ("different-run", 0)


@pytest.mark.parametrize(("pid", "shift_ns"), [(PID + 1, 0), (PID, 3 * DAY_NS)])
def test_names_are_not_aligned_with_another_process_or_day(pid: int, shift_ns: int) -> None:
    calls = training().calls
    pair = pair_of(trace_of(observed(calls), profiled(calls, ids="absent", pid=pid, shift_ns=shift_ns)))
    assert (pair["why"], pair["n_linked"]) == ("different-run", 0)


START_NS = 1_689_180_447 * 10**9  # 2023-07-12 16:47:27


@pytest.mark.parametrize(
    ("recorded", "lasted_ms", "is_other"),
    [
        ("2023-07-12 12:47:27", 2000, False),  # four hours west
        ("2023-07-12 22:17:27", 2000, False),  # five and a half hours east
        ("2023-07-12 12:50:27", 2000, True),  # begun three minutes too late, in every zone
        ("2023-07-12 12:44:27", 2000, True),  # over three minutes too early
        ("2023-07-12 12:44:27", 200_000, False),
        ("2023-07-12 12:44:27", None, False),  # cut off: nobody knows when it ended
        ("2023-07-14 16:47:27", None, True),
        ("2022-01-01 00:00:00", None, False),
        ("2022-01-01 00:00:00", 2000, True),
        ("", 2000, False),
    ],
)
def test_local_time_without_a_zone(recorded: str, lasted_ms: int | None, is_other: bool) -> None:
    assert is_other_time(recorded, lasted_ms, START_NS, START_NS + 10**9) is is_other


def test_a_clock_that_does_not_count_from_the_epoch_says_nothing() -> None:
    assert not is_other_time("2023-07-12 12:50:27", 2000, 5 * 10**12, 6 * 10**12)


@pytest.mark.cases
@needs_samples
@pytest.mark.parametrize(
    ("names", "n_linkable", "n_linked", "why"),
    [
        (("linear_et.json.gz", "linear_kineto.json.gz"), 928, 928, "no-ids"),
        (("simple_add",), 36, 36, "no-ids"),
        (("resnet_et.json.gz", "resnet_kineto.json.gz"), 14388, 0, "different-run"),
    ],
)
def test_real_pairs_without_numbers(names: tuple[str, ...], n_linkable: int, n_linked: int, why: str) -> None:
    pair = pair_of(rankscope.load([SAMPLES / name for name in names]))
    assert (pair["n_linkable"], pair["n_linked"], pair["why"]) == (n_linkable, n_linked, why)
