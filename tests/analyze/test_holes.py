"""D901-D904: what is missing from the data, and whether the verdict depends on it."""

from __future__ import annotations

from typing import Any

import pytest

from analyze.building import Setting, findings, found, job, root_cause, with_rows

DONE = ["dp:1 all_reduce done"]
HANGS = [*DONE, "dp:1 all_reduce"]


def codes(trace: Any) -> list[str]:
    return [finding.code for finding in findings(trace)]


def file_row(number: int, **values: Any) -> dict[str, Any]:
    return {"file_id": number, "path": f"traces/rank_{number}", "rank": number, "status": "read", **values}


def test_a_whole_capture_has_no_holes() -> None:
    assert codes(job({0: DONE, 1: DONE})) == []


def test_a_member_without_a_dump_is_missed() -> None:
    finding = found(job({0: DONE, 1: DONE}, Setting(config={"1": [(0, 1, 2, 3)]})), "D901")
    assert (finding.ranks, finding.severity) == ((2, 3), "warning")
    assert finding.title == "no readable dump from ranks 2,3 of 4"
    assert finding.evidence.notes == ("no rank with a dump is waiting for them",)


def test_it_is_said_when_the_verdict_does_not_depend_on_the_missing_dump() -> None:
    programs = {0: HANGS, 1: HANGS, 2: DONE, 3: ["x:2 barrier done"]}
    trace = job(programs, Setting(config={"1": [(0, 1, 2)], "2": [(3, 4)]}))
    assert root_cause(trace).rule == "rank-stuck"
    assert found(trace, "D901").evidence.notes == ("the verdict does not depend on these ranks",)


def test_a_lost_rank_that_is_the_cause_is_not_reported_twice() -> None:
    trace = job({0: HANGS, 1: HANGS}, Setting(config={"1": [(0, 1, 2)]}))
    assert (root_cause(trace).rule, root_cause(trace).ranks) == ("rank-lost", (2,))
    assert "D901" not in codes(trace)


def test_one_damaged_file_is_named_with_what_is_wrong() -> None:
    damaged = file_row(2, status="damaged", problem="ends in the middle", hint="copy it again")
    trace = with_rows(job({0: DONE, 1: DONE}), "files", [file_row(0), file_row(1), damaged])
    finding = found(trace, "D902")
    assert (finding.title, finding.ranks) == ("traces/rank_2 ends in the middle", (2,))
    assert finding.help == "copy it again"
    assert finding.evidence.facts["files"] == [{"path": "traces/rank_2", "problem": "ends in the middle"}]


def test_many_damaged_files_are_one_finding() -> None:
    damaged = [file_row(number, status="damaged", problem="is empty") for number in range(2, 22)]
    finding = found(with_rows(job({0: DONE, 1: DONE}), "files", damaged), "D902")
    assert finding.title == "20 files are damaged (20 ranks (2-21))"
    assert finding.evidence.certain[-1] == "and 12 more"
    assert len(finding.evidence.facts["files"]) == 20


@pytest.mark.parametrize("status", ["read", "ignored"])
def test_other_files_are_no_finding(status: str) -> None:
    trace = with_rows(job({0: DONE, 1: DONE}), "files", [file_row(0), file_row(1, status=status)])
    assert codes(trace) == []


def test_doubled_ranks_are_named() -> None:
    doubled = file_row(1, path="old/rank_1", status="duplicate", problem="is older than traces/rank_1")
    finding = found(with_rows(job({0: DONE, 1: DONE}), "files", [file_row(0), file_row(1), doubled]), "D903")
    assert finding.ranks == (1,)
    assert finding.evidence.certain == ("old/rank_1 is older than traces/rank_1",)
    assert finding.evidence.facts["left_out"] == ["old/rank_1"]


def test_a_ring_too_small_for_the_hang_is_a_warning() -> None:
    # Rank 1 is busy in its pair and has dropped every call of the group that hangs; its counter is all that is left.
    programs = {0: HANGS, 1: ["tp:2 all_reduce #90 done"], 2: HANGS, 3: ["tp:2 all_reduce #90 done"]}
    setting = Setting(
        config={"1": [(0, 1, 2)], "2": [(1, 3)]},
        dropped={1: 89, 3: 89},
        counters={(1, "1"): (1, 1), (1, "2"): (90, 90)},
    )
    trace = job(programs, setting)
    assert (root_cause(trace).rule, root_cause(trace).ranks) == ("rank-stuck", (1,))
    finding = found(trace, "D904")
    assert (finding.severity, finding.ranks) == ("warning", (1,))
    assert finding.evidence.notes == ("the verdict is based on the counters of these ranks, not on their calls",)
    assert "TORCH_FR_BUFFER_SIZE" in finding.help


def test_a_ring_that_dropped_a_group_nobody_waits_for_is_a_remark() -> None:
    setting = Setting(config={"1": [(0, 1)], "2": [(0, 1)]}, dropped={0: 5}, counters={(0, "2"): (4, 4)})
    trace = job({0: DONE, 1: [*DONE, *["tp:2 all_reduce done"] * 4]}, setting)
    finding = found(trace, "D904")
    assert finding.severity == "info"
    assert finding.title == "the ring buffer dropped all calls of group 2 (tp) on 1 rank"


def test_dropped_groups_are_named_with_their_descriptions_each_name_once() -> None:
    config: dict[str, list[tuple[int, ...]]] = {"1": [(0, 1, 2, 3)], "2": [(0, 1), (2, 3)], "3": [(0, 1, 2, 3)]}
    counters = {(0, "2"): (4, 4), (2, "2"): (4, 4), (0, "3"): (4, 4)}
    others = ["pp:3 all_reduce done"] * 4
    tp = ["tp:2 all_reduce done"] * 4
    programs = {0: DONE, 1: [*DONE, *tp, *others], 2: [*DONE, *others], 3: [*DONE, *tp, *others]}
    trace = job(programs, Setting(config=config, dropped={0: 8, 2: 4}, counters=counters))
    expected = "the ring buffer dropped all calls of 3 groups: group 2 (tp), group 3 (pp) on 2 ranks"
    assert found(trace, "D904").title == expected


def test_a_wrapped_ring_that_kept_every_group_is_no_finding() -> None:
    assert codes(job({0: DONE, 1: DONE}, Setting(dropped={0: 500, 1: 3}))) == []


def test_a_group_never_used_was_not_dropped() -> None:
    setting = Setting(config={"1": [(0, 1)], "2": [(0, 1)]}, dropped={0: 9}, counters={(0, "2"): (-1, -1)})
    assert codes(job({0: DONE, 1: DONE}, setting)) == []
