"""What profilers recorded on the timeline: threads, streams, launches, counters, and what is left out of too much."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from analyze.building import START_NS
from analyze.building import job as recorded_job
from analyze.device_tables import EPOCH_NS, Row, at, kernel, span, step, trace_of
from rankscope.model.tables import Table, Trace
from rankscope.render.timeline import writer
from rankscope.render.timeline.chrome import LEAD_NS
from rankscope.render.timeline.thinning import NOTHING
from rankscope.render.timeline.windows import ranks_around, window_of_steps
from render.timeline.drawn import Drawn, draw
from render.timeline.test_recorded import finding

HOSTILE = '</script>"\\\u2028\x00\x1f' + "é" * 3
SAMPLES = Path(__file__).resolve().parents[4] / "shared" / "samples"


def profile(rank: int = 0, start: float = 0, end: float = 1000, **columns: Any) -> Row:
    times = {"start_ns": at(start), "end_ns": at(end)}
    return {"file_id": max(rank, 0), "rank": rank, "host": "node", "source": "kineto", **times, **columns}


def call(start: float, end: float, call_id: int, **columns: Any) -> Row:
    return span(start, end, name="cudaLaunchKernel", tid=1, call_id=call_id, correlation=call_id, **columns)


def op(name: str, start: float, end: float, **columns: Any) -> Row:
    return span(start, end, name=name, tid=1, **columns)


def one_step(**more: Any) -> Trace:
    tables: dict[str, Any] = {
        "profiles": [profile()],
        "steps": [step(3, 0, 100)],
        "ops": [op("aten::mm", 10, 30, step=3, input_dims="[[2,3]]"), op("aten::mul", 12, 14)],
        "runtime_calls": [call(20, 25, 1), call(26, 27, 2)],
        "kernels": [kernel(40, 60, call_id=1), kernel(60, 80, call_id=1), kernel(26, 90, call_id=2, stream=9)],
    }
    return trace_of(**{**tables, **more})


def names(drawn: Drawn, category: str) -> list[str]:
    return [event["name"] for event in drawn.of("X", category)]


def test_every_kind_has_its_track_and_its_time(tmp_path: Path) -> None:
    drawn = draw(one_step(), tmp_path)
    found = {(drawn.track(event), event["name"], *drawn.times(event)) for event in drawn.of("X")}
    assert found == {
        ("steps", "step 3", 0, 100_000),
        ("thread 1", "aten::mm", 10_000, 30_000),
        ("thread 1", "aten::mul", 12_000, 14_000),
        ("thread 1", "cudaLaunchKernel", 20_000, 25_000),
        ("thread 1", "cudaLaunchKernel", 26_000, 27_000),
        ("device 0, stream 7", "gemm", 40_000, 60_000),
        ("device 0, stream 7", "gemm", 60_000, 80_000),
        ("device 0, stream 9", "gemm", 26_000, 90_000),
    }
    assert drawn.of("X", "cpu_op")[0]["args"] == {"step": 3, "shapes": "[[2,3]]"}


def test_a_launch_has_one_arrow_and_it_goes_forward_in_time(tmp_path: Path) -> None:
    """The second call and its kernel begin at once: no viewer could tell which was first."""
    drawn = draw(one_step(), tmp_path)
    assert list(drawn.chains().values()) == [[(0, "cudaLaunchKernel"), (0, "gemm")]]
    [target] = [event for event in drawn.of("X", "kernel") if "bind_id" in event]
    assert drawn.times(target)[0] == 40_000


def test_profilers_times_are_on_the_common_clock_drift_included(tmp_path: Path) -> None:
    clock = {"file_id": 0, "rank": 0, "offset_ns": -5_000, "drift_ppb": 1e8, "at_ns": at(0), "error_ns": 7}
    trace = one_step(profile_clocks=[{**clock, "is_aligned": True}])
    drawn = draw(trace, tmp_path)
    [event] = [event for event in drawn.of("X", "cpu_op") if event["name"] == "aten::mm"]
    assert drawn.document["otherData"]["baseTimeNanoseconds"] == EPOCH_NS + 5_000 - LEAD_NS
    assert drawn.times(event) == (9_000, 27_000)
    assert drawn.written.clocks[0] == {"host": "node", "offset_ns": -5_000, "error_ns": 7, "is_aligned": True}


def test_memory_and_hardware_counters(tmp_path: Path) -> None:
    memory = [
        {"file_id": 0, "rank": 0, "time_ns": at(5), "device_type": "cuda", "device": 0}
        | {"allocated_bytes": 100, "reserved_bytes": 200},
        {"file_id": 0, "rank": 0, "time_ns": at(6), "device_type": "cpu", "allocated_bytes": 7},
    ]
    counters = [span(10, 20, counter="sm__cycles", value=3.5)]
    drawn = draw(one_step(memory=memory, counters=counters), tmp_path)
    assert [(event["name"], event["ts"], event["args"]) for event in drawn.of("C")] == [
        ("memory cpu", 7, {"allocated": 7}),
        ("memory cuda:0", 6, {"allocated": 100, "reserved": 200}),
        ("counter", 11, {"sm__cycles": 3.5}),
        ("counter", 21, {"sm__cycles": 0.0}),
    ]


def comms(rank: int) -> list[Row]:
    known = {"op": "all_reduce", "name": "nccl", "group_name": "0", "group_ranks": "[0,1]", "group_size": 2}
    return [
        span(100 * n + rank, 100 * n + 50, comm_id=n, kernel_id=n, seq=n, **known, rank=rank, file_id=rank)
        for n in range(4)
    ]


def test_collectives_of_profilers_are_drawn_where_no_dump_tells_them(tmp_path: Path) -> None:
    profiles = [profile(rank, groups='[{"pg_name": "0", "ranks": [0, 1]}]') for rank in (0, 1)]
    trace = trace_of(profiles=profiles, comms=[*comms(0), *comms(1)])
    drawn = draw(trace, tmp_path)
    assert names(drawn, "collective") == ["all_reduce"] * 8
    assert [[pid for pid, _ in chain] for chain in drawn.chains().values()] == [[0, 1]] * 4
    dumps = recorded_job({rank: ["dp:0 all_reduce done =2"] for rank in (0, 1)})
    assert START_NS == EPOCH_NS
    both = Trace(trace.paths, {**trace.tables, **dumps.tables}, makers=trace.makers)
    drawn = draw(both, tmp_path)
    assert [event["args"].get("status") for event in drawn.of("X", "collective")] == ["done", "done"]


def test_a_file_that_tells_no_rank_is_a_process_of_its_own(tmp_path: Path) -> None:
    files = [{"file_id": 0, "path": "traces/odd.json", "rank": -1}]
    trace = trace_of(files=files, profiles=[profile(-1)], ops=[op("aten::mm", 1, 2, rank=-1)])
    drawn = draw(trace, tmp_path)
    [event] = drawn.of("X")
    assert drawn.process_names()[event["pid"]] == "unknown rank (odd.json)"


def test_hostile_names_are_only_text(tmp_path: Path) -> None:
    trace = one_step(ops=[op(HOSTILE, 1, 2, input_dims=HOSTILE)], profiles=[profile(host=HOSTILE)])
    drawn = draw(trace, tmp_path)
    [event] = drawn.of("X", "cpu_op")
    assert event["name"] == event["args"]["shapes"] == HOSTILE
    assert drawn.process_names() == {0: f"rank 0 (host {HOSTILE})"}


def test_hostile_times_do_not_stop_it(tmp_path: Path) -> None:
    odd = [op("late", 1, 2) | {"start_ns": 2**63 - 1}, op("negative", 1, 2) | {"duration_ns": -(2**62)}]
    odd += [op("endless", 3, 4) | {"duration_ns": 2**63 - 1}, op("before", 0, 5) | {"start_ns": at(-2)}]
    drawn = draw(one_step(ops=odd), tmp_path)
    times = {event["name"]: drawn.times(event) for event in drawn.of("X", "cpu_op")}
    assert times.keys() == {"negative", "endless", "before"}
    assert times["negative"] == (1_000, 1_000)
    assert times["before"] == (0, 3_000)
    assert (drawn.written.counts["left_out"], drawn.written.counts["clamped"]) == (1, 3)


@pytest.mark.cases
@pytest.mark.parametrize(
    ("max_events", "ops", "calls", "kernels"),
    [(100, 30, 10, 10), (50, 29, 10, 10), (40, 19, 10, 10), (15, 0, 4, 10), (5, 0, 0, 4)],
)
def test_too_much_is_thinned_from_the_shortest_operators_on(
    tmp_path: Path, max_events: int, ops: int, calls: int, kernels: int
) -> None:
    trace = trace_of(
        profiles=[profile()],
        steps=[step(0, 0, 900)],
        ops=[op("op", 20 * n, 20 * n + 1 + n / 100) for n in range(30)],
        runtime_calls=[call(20 * n + 1, 20 * n + 2 + n / 100, n) for n in range(10)],
        kernels=[kernel(20 * n + 3, 20 * n + 4 + n / 100, call_id=n) for n in range(10)],
    )
    drawn = draw(trace, tmp_path, max_events=max_events)
    assert [len(drawn.of("X", kind)) for kind in ("cpu_op", "runtime", "kernel")] == [ops, calls, kernels]
    kept = [drawn.times(event)[1] - drawn.times(event)[0] for event in drawn.of("X", "cpu_op")]
    assert min(kept, default=NOTHING) >= drawn.written.least_ns.get("ops", 0)
    assert drawn.document["otherData"]["cut"]["shorterThanNanoseconds"] == drawn.written.least_ns
    assert bool(drawn.written.least_ns) == (max_events < 51)


def test_portions_of_ranks_give_the_same_events_and_each_flow_its_own_number(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = one_step().tables
    ranks = {
        name: [{**row, "rank": rank, "file_id": rank} for rank in range(3) for row in table.rows()]
        for name, table in rows.items()
    }
    trace = trace_of(**ranks)
    together = draw(trace, tmp_path)
    monkeypatch.setattr(writer, "_ROWS_AT_A_TIME", 1)
    apart = draw(trace, tmp_path)
    assert sorted(map(repr, apart.events)) == sorted(map(repr, together.events))
    assert len(apart.chains()) == apart.document["otherData"]["counts"]["flows"] == 3


def test_the_same_capture_gives_the_same_bytes(tmp_path: Path) -> None:
    draw(one_step(), tmp_path)
    first = (tmp_path / "trace.json").read_bytes()
    draw(one_step(), tmp_path)
    assert (tmp_path / "trace.json").read_bytes() == first


def test_the_window_of_steps_is_that_of_all_ranks(tmp_path: Path) -> None:
    trace = trace_of(
        profiles=[profile(0), profile(1)],
        steps=[step(3, 0, 10), step(4, 10, 20), step(4, 12, 25) | {"rank": 1, "file_id": 1}],
    )
    draw(trace, tmp_path)
    assert window_of_steps(trace, [4], None) == (at(10), at(25))
    assert window_of_steps(trace, [4], [1]) == (at(12), at(25))
    assert window_of_steps(trace, [9], None) is None


def test_around_a_finding_are_its_ranks_and_their_neighbours_in_the_group() -> None:
    ring = finding(ranks=(20,)).group
    assert ring is not None
    found = finding(ranks=(20,), group=type(ring)("12", "dp", tuple(range(0, 100, 2))))
    assert ranks_around(found, range(100)) == (12, 14, 16, 18, 20, 22, 24, 26, 28)
    assert ranks_around(found, range(19)) == (12, 14, 16, 18)
    assert ranks_around(finding(ranks=(), group=None), range(4)) == (0, 1, 2, 3)


def test_a_table_that_is_empty_is_nothing_to_draw(tmp_path: Path) -> None:
    trace = one_step()
    trace.tables["ops"] = Table.from_rows("ops", [])
    assert names(draw(trace, tmp_path), "cpu_op") == []


@pytest.mark.slow
@pytest.mark.skipif(not os.path.isdir(SAMPLES), reason="needs the samples")
@pytest.mark.parametrize("sample", ["kineto/trace_filter", "nsys/h100_2gpu_1s.sqlite", "compile_logs/simple.log"])
def test_samples_are_drawn_in_full(sample: str, tmp_path: Path) -> None:
    from rankscope.pipeline import load

    trace = load(SAMPLES / sample)
    drawn = draw(trace, tmp_path)
    sources = ("steps", "ops", "annotations", "runtime_calls", "kernels", "comm_calls", "compile_events")
    assert len(drawn.of("X")) + len(drawn.of("i")) == sum(trace.n_rows(name) for name in sources)
