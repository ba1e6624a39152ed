"""X601: delays in other traces that a compilation explains, and those that it does not."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest

from analyze import building, comm_jobs
from analyze.device_tables import EPOCH_NS, findings, step, trace_of
from rankscope import pipeline
from rankscope.model.finding import Finding
from rankscope.model.tables import Table, Trace
from rankscope.simulate import Fault, JobSpec, Mesh, simulate
from rankscope.simulate.compile_log import LogBuilder

SECOND_MS = 1000
SECOND_US = 1_000_000
SECOND_NS = 1_000_000_000
assert building.START_NS == EPOCH_NS  # both kinds of tables below are on one clock


def compiling(rank: int, start: float, end: float, compile_id: str = "0/1", **columns: Any) -> dict[str, Any]:
    """A compilation of `forward` from one second to another."""
    return {
        "file_id": 100 + rank,
        "rank": rank,
        "compile_id": compile_id,
        "phase": "forward",
        "status": "ok",
        "function": "forward",
        "file": "model.py",
        "line": 30,
        "start_ns": EPOCH_NS + round(start * SECOND_NS),
        "duration_ns": round((end - start) * SECOND_NS),
        **columns,
    }


def stalls(trace: Trace, compilations: Sequence[dict[str, Any]]) -> list[Finding]:
    """What X601 says when the logs with these compilations lie beside the trace."""
    files = sorted({(row["file_id"], row["rank"]) for row in compilations})
    logs = [
        {
            "file_id": file_id,
            "rank": rank,
            "run": 0,
            "source": "trace",
            "first_ns": min(row["start_ns"] for row in compilations),
            "last_ns": max(row["start_ns"] + max(row["duration_ns"], 0) for row in compilations),
        }
        for file_id, rank in files
    ]
    trace.tables["compile_logs"] = Table.from_rows("compile_logs", logs)
    trace.tables["compilations"] = Table.from_rows("compilations", compilations)
    return findings(trace, "X601")


def recorded(late_s: dict[int, float], n_ranks: int = 4) -> Trace:
    """Two all_reduces in Flight Recorder dumps: all join the first, some are late to the second at 5 s."""
    programs = {}
    for rank in range(n_ranks):
        at = 5 * SECOND_MS + round(late_s.get(rank, 0) * SECOND_MS)
        end = 5 * SECOND_MS + round(max(late_s.values(), default=0) * SECOND_MS) + 1
        programs[rank] = [
            "dp:1 all_reduce done @loop.py:8 +1000 =1001",
            f"dp:1 all_reduce done @loop.py:9 +{at} ={end}",
        ]
    return building.job(programs)


def test_a_rank_that_came_late_because_it_compiled_is_named_with_function_and_seconds() -> None:
    (finding,) = stalls(recorded({2: 4}), [compiling(2, 5.2, 8.9)])
    assert (finding.severity, finding.certainty, finding.ranks) == ("warning", "likely", (2,))
    assert finding.title == "rank 2 kept its peers waiting for 4.0 s while compiling forward"
    assert finding.location is not None
    assert (finding.location.file, finding.location.line) == ("model.py", 30)
    assert finding.evidence.cost_ns == 4 * SECOND_NS
    assert finding.collective is not None
    assert (finding.collective.seq, finding.collective.op) == (2, "all_reduce")
    assert "guard" in finding.help


@pytest.mark.parametrize(
    ("who", "start", "end"),
    [(2, 5.2, 6.5), (2, 1.0, 5.1), (2, 9.0, 12.0), (1, 5.2, 8.9)],
    ids=["too short", "before", "after", "another rank"],
)
def test_a_compilation_that_does_not_fill_the_delay_explains_nothing(who: int, start: float, end: float) -> None:
    assert stalls(recorded({2: 4}), [compiling(who, start, end)]) == []


def test_parts_that_overlap_count_once() -> None:
    rows = [compiling(2, 5.2, 6.4), compiling(2, 5.3, 6.5, phase="backward"), compiling(2, 5.4, 6.3, "0/2")]
    assert stalls(recorded({2: 4}), rows) == []
    nested = [compiling(2, 5, 6.5), compiling(2, 5.1, 5.2, "0/2"), compiling(2, 5.3, 6.4, "0/3")]
    assert stalls(recorded({2: 4}), nested) == []


def test_ranks_that_compile_the_same_at_once_are_one_finding_and_the_latest_counts() -> None:
    (finding,) = stalls(recorded({2: 4, 3: 3}, n_ranks=6), [compiling(2, 5, 9), compiling(3, 5, 8)])
    assert (finding.ranks, finding.evidence.cost_ns) == ((2, 3), 4 * SECOND_NS)


def test_small_delays_are_left_alone() -> None:
    assert stalls(recorded({2: 0.2}), [compiling(2, 5, 5.2)]) == []


def hung(rank: int) -> Trace:
    """All but the rank wait in the second all_reduce."""
    programs = {
        other: ["dp:1 all_reduce done @loop.py:8 +1000 =1001", "dp:1 all_reduce waiting @loop.py:9 +5000"]
        for other in range(4)
    }
    programs[rank] = programs[rank][:1]
    return building.job(programs)


def test_a_rank_that_never_came_and_is_still_compiling_is_the_cause() -> None:
    (finding,) = stalls(hung(3), [compiling(3, 2, 2, "1/0", status="unfinished", duration_ns=-1)])
    assert (finding.severity, finding.certainty, finding.ranks) == ("error", "likely", (3,))
    assert finding.title.startswith("rank 3 was still compiling forward while 3 peers waited for it in all_reduce")
    assert "its log ends inside [1/0]" in finding.evidence.certain[0]


def test_dumps_and_logs_in_one_folder_are_joined(tmp_path: Path) -> None:
    simulate(JobSpec(Mesh(dp=4, tp=2)), Fault("stuck", rank=5)).write(tmp_path)
    calls = pipeline.load(tmp_path).table("collectives")
    last_ns = int(calls.array("created_ns")[calls.array("rank") == 5].max())
    log = LogBuilder(5, at=datetime.fromtimestamp(last_ns / SECOND_NS, timezone.utc).strftime("%Y-%m-%d %H:%M:%S.%f"))
    log.start("3/1").chromium("dynamo", "B", "3/1").write(tmp_path)
    told = pipeline.diagnose(pipeline.load(tmp_path)).findings
    assert [finding.rule for finding in told[:2]] == ["rank-stuck", "compile-stall"]
    assert (told[1].ranks, told[1].severity) == ((5,), "error")
    assert told[1].title.startswith("rank 5 was still compiling forward while ")


def test_a_compilation_that_ended_does_not_explain_a_rank_that_never_came() -> None:
    assert stalls(hung(3), [compiling(3, 2, 3)]) == []


def test_a_log_of_another_day_does_not_explain_a_hang() -> None:
    day = 86_400
    assert stalls(hung(3), [compiling(3, 2 + day, 2 + day, status="unfinished", duration_ns=-1)]) == []


def profiled_steps(long_at: int | None, ranks: Sequence[int] = (0,)) -> Trace:
    """Six steps of 100 ms each; one of them may take 3 s longer."""
    rows = []
    for rank in ranks:
        start = 0.0
        for number in range(6):
            end = start + 0.1 * SECOND_US + (3 * SECOND_US if number == long_at else 0)
            rows.append(step(number, start, end, rank=rank, file_id=rank))
            start = end
    return trace_of(steps=rows)


def test_a_step_that_took_longer_because_something_was_compiled_is_explained() -> None:
    (finding,) = stalls(profiled_steps(long_at=2), [compiling(0, 0.25, 3.1)])
    assert finding.title == "a step of rank 0 took 3.0 s longer while compiling forward"
    assert "for step 2 instead of 100 ms" in finding.evidence.certain[0]


def test_a_compilation_in_another_step_explains_nothing() -> None:
    assert stalls(profiled_steps(long_at=2), [compiling(0, 4, 7)]) == []
    assert stalls(profiled_steps(long_at=None), [compiling(0, 0.25, 0.3)]) == []


@pytest.mark.parametrize("late_rank", [0, 3])
def test_late_arrivals_in_profiler_traces_are_explained_on_the_clock_of_their_host(late_rank: int) -> None:
    """The host of ranks 2 and 3 is two seconds ahead: its compile log is, too."""
    hosts = ("a", "a", "b", "b")
    # Uneven distances: evenly spaced calls fit each other just as well two calls later.
    starts = [number + 0.1 * (number * number % 7) for number in range(20)]
    calls = []
    for number, start in enumerate(starts):
        late = 0.8 if number == 10 else 0
        for rank in range(4):
            ahead = 2 if rank >= 2 else 0
            own, end = start + (late if rank == late_rank else 0) + ahead, start + late + 0.001 + ahead
            calls.append(comm_jobs.call(rank, own * SECOND_US, end * SECOND_US))

    def told(start: float) -> list[Finding]:
        return stalls(comm_jobs.job(calls, hosts=hosts, world_size=4), [compiling(late_rank, start, start + 0.75)])

    ahead = 2 if late_rank >= 2 else 0
    (finding,) = told(starts[10] + ahead)
    assert finding.ranks == (late_rank,)
    assert finding.evidence.cost_ns == pytest.approx(0.8 * SECOND_NS, rel=0.05)
    assert all(told(starts[10] + ahead + off) == [] for off in (-2, -1, 1, 2))


def test_nothing_is_said_without_another_trace() -> None:
    assert stalls(trace_of(), [compiling(0, 1, 9)]) == []
