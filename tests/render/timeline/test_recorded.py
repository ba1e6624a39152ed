"""What is not from profilers on the timeline: collectives of dumps, compile phases, metrics, stacks; and findings."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from analyze.building import MS, START_NS, Setting, job, with_rows
from rankscope import __version__
from rankscope.model.finding import CollectiveRef, Finding, GroupRef, Location
from rankscope.model.tables import Table, Trace
from rankscope.render.timeline import writer
from rankscope.render.timeline.chrome import LEAD_NS
from render.snapshot import check_snapshot
from render.timeline.drawn import Drawn, draw

HANG = {
    0: ["dp:12 all_reduce [8] f32 done +0 =3 @loop.py:7", "dp:12 all_reduce [8] f32 +10 @loop.py:9"],
    1: ["dp:12 all_reduce [8] f32 done +1 =3 @loop.py:7", "dp:12 all_reduce [8] f32 +12 @loop.py:9"],
    2: ["dp:12 all_reduce [8] f32 done +2 =3 @loop.py:7"],
}


@pytest.fixture
def hang() -> Trace:
    return job(HANG, Setting(hosts=dict.fromkeys(HANG, "node")))


def finding(**columns: Any) -> Finding:
    known: dict[str, Any] = {
        "code": "H102",
        "rule": "op-mismatch",
        "severity": "error",
        "certainty": "certain",
        "title": "rank 1 called something else",
        "ranks": (1,),
        "group": GroupRef("12", "dp", (0, 1, 2)),
        "collective": CollectiveRef(2, "all_reduce"),
        "location": Location("loop.py", 9, "train"),
        "help": "call the same",
    }
    return Finding(**{**known, **columns})


def moved(trace: Trace, **offsets_ms: float) -> Trace:
    """The same capture with clocks that are known to be off."""
    rows = [
        {**row, "clock_offset_ns": round(offsets_ms.get(f"rank_{row['rank']}", 0) * MS), "clock_error_ns": 5 * MS}
        for row in trace.table("ranks").rows()
    ]
    return with_rows(trace, "ranks", rows)


def test_a_small_file_to_the_last_letter(hang: Trace, tmp_path: Path) -> None:
    draw(hang, tmp_path, [finding(), finding(code="D901", severity="warning", ranks=(2, 7), collective=None)])
    text = (tmp_path / "trace.json").read_text()
    check_snapshot("timeline.json", text.replace(f'"version":"{__version__}"', '"version":"VERSION"'))


def test_a_call_is_drawn_from_its_start_to_its_end_and_a_waiting_one_to_the_end_of_the_capture(
    hang: Trace, tmp_path: Path
) -> None:
    drawn = draw(hang, tmp_path)
    spans = {(event["pid"], event["name"]): drawn.times(event) for event in drawn.of("X", "collective")}
    assert spans == {
        (0, "all_reduce"): (0, 3 * MS),
        (1, "all_reduce"): (1 * MS, 3 * MS),
        (2, "all_reduce"): (2 * MS, 3 * MS),
        (0, "all_reduce (waiting)"): (10 * MS, 12 * MS),
        (1, "all_reduce (waiting)"): (12 * MS, 12 * MS),
    }
    assert {drawn.track(event) for event in drawn.of("X")} == {"collectives of dp (12)"}
    assert drawn.process_names() == {rank: f"rank {rank} (host node)" for rank in range(3)}


def test_the_time_of_the_dump_is_the_end_of_what_still_waits(hang: Trace, tmp_path: Path) -> None:
    written = [{**row, "written_ns": START_NS + 600 * MS} for row in hang.table("ranks").rows()]
    drawn = draw(with_rows(hang, "ranks", written), tmp_path)
    ends = {drawn.times(event)[1] for event in drawn.of("X") if "waiting" in event["name"]}
    assert ends == {600 * MS}


def test_ranks_of_one_collective_are_chained_in_the_order_of_their_arrival(hang: Trace, tmp_path: Path) -> None:
    drawn = draw(moved(hang, rank_0=1.5), tmp_path)  # rank 0 came first by its own clock only
    assert [[pid for pid, _ in chain] for chain in drawn.chains().values()] == [[0, 1, 2], [0, 1]]
    drawn = draw(moved(hang, rank_0=-1.5), tmp_path)
    assert [[pid for pid, _ in chain] for chain in drawn.chains().values()] == [[1, 0, 2], [0, 1]]
    assert drawn.document["otherData"]["counts"]["flows"] == 3


def test_times_are_on_the_common_clock_and_its_error_is_told(hang: Trace, tmp_path: Path) -> None:
    drawn = draw(moved(hang, rank_2=-7), tmp_path)
    [late] = [event for event in drawn.of("X") if event["pid"] == 2]
    assert drawn.times(late) == (9 * MS, 10 * MS)
    clocks = drawn.document["otherData"]["clocks"]
    assert clocks["2"]["offset_ns"] == -7 * MS
    assert drawn.document["otherData"]["baseTimeNanoseconds"] == START_NS - LEAD_NS


def test_a_rank_whose_clock_could_not_be_aligned_says_so(tmp_path: Path) -> None:
    trace = job(HANG, Setting(hosts={0: "a", 1: "a", 2: "b"}))
    drawn = draw(trace, tmp_path)
    assert drawn.written.unaligned == (0, 1, 2)
    assert drawn.process_names()[2] == "rank 2 (host b), clock not aligned"
    assert [event["args"] for event in drawn.events if event["name"] == "process_labels"] == [
        {"labels": "clock not aligned"}
    ] * 3
    shared = {rank: [f"dp:12 all_reduce done +{at} ={at + 2}" for at in (0, 10, 20)] for rank in (0, 1)}
    known = draw(job(shared, Setting(hosts={0: "a", 1: "b"})), tmp_path)
    assert known.written.unaligned == ()
    assert {clock["error_ns"] for clock in known.written.clocks.values()} == {100 * MS}


def test_what_overlaps_in_one_group_has_lanes(tmp_path: Path) -> None:
    crossed = ["dp:12 all_reduce done +0 =10", "dp:12 all_reduce done +5 =15"]
    drawn = draw(job({0: crossed}), tmp_path)
    assert [drawn.track(event) for event in drawn.of("X")] == [
        "collectives of dp (12)",
        "collectives of dp (12), lane 2",
    ]


def test_the_first_finding_is_over_all_ranks_the_others_on_their_own(hang: Trace, tmp_path: Path) -> None:
    others = [finding(code="S201", severity="warning", ranks=(0, 2)), finding(code="D901", ranks=(77,))]
    marks = draw(hang, tmp_path, [finding(), *others]).of("i", "finding")
    assert [(mark["s"], mark["pid"], mark["name"][:14]) for mark in marks] == [
        ("g", 1, "error[H102] ra"),
        ("t", 0, "warning[S201] "),
        ("t", 2, "warning[S201] "),
        ("t", 0, "error[D901] ra"),
    ]
    assert marks[0]["ts"] == 12_001  # when rank 1 made the call
    assert marks[0]["args"]["location"] == "loop.py:9 in train"
    assert marks[0]["args"]["help"] == "call the same"


def test_only_the_window_is_drawn_and_what_overlaps_it_is_drawn_whole(hang: Trace, tmp_path: Path) -> None:
    drawn = draw(hang, tmp_path, [finding()], since_ns=2 * MS + 1, until_ns=11 * MS)
    assert sorted(drawn.times(event) for event in drawn.of("X")) == [
        *((0, 3 * MS), (1 * MS, 3 * MS), (2 * MS, 3 * MS), (10 * MS, 12 * MS))
    ]
    assert drawn.of("i") == []
    assert len(draw(hang, tmp_path, since_ns=4 * MS).of("X")) == 2


def test_only_the_ranks_that_were_asked_for(hang: Trace, tmp_path: Path) -> None:
    drawn = draw(hang, tmp_path, ranks=(0, 2))
    assert {event["pid"] for event in drawn.events} == {0, 2}
    assert [[pid for pid, _ in chain] for chain in drawn.chains().values()] == [[0, 2]]


def test_rank_by_rank_gives_the_same_file(hang: Trace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def in_any_order(drawn: Drawn) -> list[str]:
        return sorted(map(repr, drawn.events))

    together = draw(hang, tmp_path)
    monkeypatch.setattr(writer, "_ROWS_AT_A_TIME", 1)
    assert in_any_order(draw(hang, tmp_path)) == in_any_order(together)


def test_compile_phases_metrics_and_stacks(hang: Trace, tmp_path: Path) -> None:
    time = START_NS + 4 * MS
    more = {
        "compile_events": [
            {"rank": 1, "file_id": 9, "name": "dynamo", "compile_id": "0/0", "track": 0, "state": "span"}
            | {"start_ns": time, "duration_ns": 2 * MS},
            {"rank": 1, "file_id": 9, "name": "hit", "track": 0, "state": "moment", "start_ns": time, "duration_ns": 0},
        ],
        "metrics": [
            {"rank": 2, "time_ns": time + step, "step": step, "name": 'lo"ss', "value": value}
            for step, value in enumerate((0.5, float("nan"), float("inf"), 1e15))
        ],
        "thread_stacks": [
            {"rank": 0, "time_ns": time, "reason": "asked", "thread_id": "0x1", "thread_name": "MainThread"}
            | {"stack_id": 0, "site_id": 1}
        ],
    }
    trace = Trace(hang.paths, {**hang.tables, **{name: Table.from_rows(name, rows) for name, rows in more.items()}})
    drawn = draw(trace, tmp_path)
    [phase] = drawn.of("X", "compile")
    assert (phase["name"], drawn.track(phase), drawn.times(phase)) == ("dynamo", "compile phases", (4 * MS, 6 * MS))
    assert [event["name"] for event in drawn.of("i", "compile")] == ["hit"]
    assert [event["args"] for event in drawn.of("C")] == [{'lo"ss': 0.5}, {'lo"ss': 1e15}]
    [stack] = drawn.of("i", "stack")
    assert stack["name"].startswith("MainThread: ")
    assert "loop.py:7" in stack["args"]["stack"]


def test_absurd_times_are_left_out_or_set_right_and_counted(hang: Trace, tmp_path: Path) -> None:
    rows = list(hang.table("collectives").rows())
    rows[0] |= {"created_ns": 2**62, "started_ns": -1}
    rows[1] |= {"created_ns": 5}
    rows[2] |= {"completed_ns": 2**63 - 1}
    drawn = draw(with_rows(hang, "collectives", rows), tmp_path)
    assert drawn.written.counts["left_out"] == 2
    assert drawn.written.counts["clamped"] == 1
    assert len(drawn.of("X")) == 3
    assert all(start >= 0 for start, _ in map(drawn.times, drawn.of("X")))


def test_an_empty_capture_is_a_valid_file(tmp_path: Path) -> None:
    drawn = draw(Trace(("nothing",), {}), tmp_path)
    assert drawn.events == []
