"""Findings of the rules that no whole capture of the test suite triggers, on hand-made tables as in their tests."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from analyze import (
    building,
    comm_jobs,
    device_tables,
    host_events,
    late_jobs,
    log_texts,
    test_comm_holes,
    test_device_memory,
    test_holes,
    test_late_absent,
    test_small_ops,
)
from analyze import test_ending as endings
from analyze import test_host_rules as host
from analyze import test_stack_rules as stacks
from analyze import test_training as training
from analyze.compile import building as compiling
from analyze.compile import test_caches as caches
from analyze.compile import test_failures as failures
from analyze.compile import test_rank_rules as ranks
from analyze.compile import test_stalls as stalls
from analyze.device_tables import copy, kernel, on_ranks, step
from analyze.link import test_rules as links
from analyze.test_comm_traffic import exchanging
from analyze.test_device_idle import host_bound
from rankscope import pipeline
from rankscope.model.finding import Finding
from rankscope.model.tables import Trace
from rankscope.simulate.compile_log import LogBuilder
from rankscope.simulate.execution import write_pairs
from rankscope.simulate.job_log import LogJob, text_of
from rankscope.simulate.profiler import ProfileSpec, simulate_profile
from read import test_mixed_dumps as dumps

RANKS = (0, 1)
Sample = Callable[[Path], list[Finding]]


def of_tables(code: str, make: Callable[[], Trace]) -> Sample:
    """What one rule says about hand-made tables."""
    return lambda folder: device_tables.findings(make(), code)


def of_calls(code: str, make: Callable[[], Trace]) -> Sample:
    """What all rules together leave of it, effects included."""
    return lambda folder: [building.found(make(), code)]


def of_folder(code: str, write: Callable[[Path], object]) -> Sample:
    def found(folder: Path) -> list[Finding]:
        folder.mkdir()
        write(folder)
        report = pipeline.diagnose(pipeline.load([str(folder)]))
        return [finding for finding in (*report.findings, *report.effects) if finding.code == code]

    return found


def of_log(code: str, text: str) -> Sample:
    """What all rules together say about a job's output."""
    return of_folder(code, lambda folder: (folder / "job.log").write_text(text))


def logs(*fills: ranks.Fill) -> Callable[[Path], object]:
    return lambda folder: ranks.diagnosed(folder, *fills)


def scheduled(*calls: str, code: tuple[str, ...] | None = None) -> ranks.Fill:
    return lambda log: ranks.scheduled(log, *calls, code=code)


def ran(*compile_ids: str) -> ranks.Fill:
    def fill(log: LogBuilder) -> None:
        ranks.compiled(log, "0/0", line=30)
        ranks.compiled(log, "1/0", line=50)
        log.artifact("graph_execution", {"graph_execution_order": [{"compile_id": one} for one in compile_ids]})

    return fill


def bypassed() -> Trace:
    return compiling.trace_of(compiling.compiled("0/0", seconds=3), caches.bypassed("0/0", caches.APPLY))


def unfinished() -> Trace:
    phases = [failures.span(name, depth) for depth, name in enumerate(("dynamo", "inductor_compile", "code_gen"))]
    return compiling.trace_of(compiling.compiled("0/0"), failures.UNFINISHED, *failures.STARTS, *phases)


def without_cudagraphs() -> Trace:
    reason = "skipping cudagraphs due to mutated inputs (1 instances)"
    return compiling.trace_of(*(compiling.compiled("0/0", rank=rank, cudagraph_skip=reason) for rank in RANKS))


def exported() -> Trace:
    missing: dict[str, Any] = {
        "kind": "missing_fake_kernel",
        "message": "mylib::foo",
        "file": compiling.FILE,
        "line": 21,
    }
    return compiling.trace_of(failures.error("-", **missing))


def doubled() -> Trace:
    older = {"path": "old/rank_1", "status": "duplicate", "problem": "is older than traces/rank_1"}
    files = [test_holes.file_row(0), test_holes.file_row(1), test_holes.file_row(1, **older)]
    return building.with_rows(building.job({0: test_holes.DONE, 1: test_holes.DONE}), "files", files)


def without_partners() -> Trace:
    spec = ProfileSpec(data_parallel=2, stages=3, n_layers=1, n_microbatches=2, n_steps=3)
    return comm_jobs.recorded(simulate_profile(spec), "nothing").trace


def three_of_four() -> Trace:
    columns = {"seq": 1, "group_name": "0", "group_ranks": "[0, 1, 2, 3]"}
    return comm_jobs.job([comm_jobs.call(rank, 0, 10, **columns) for rank in range(3)], world_size=4)


def stale(folder: Path) -> None:
    dumps.write(dumps.job(1, dumps.STUCK), folder, ranks=(0, 1, 2))
    dumps.write(dumps.job(2), folder, -24 * dumps.HOUR, ranks=(3,))


def aborted() -> Trace:
    calls = ["dp:1 all_reduce done", "dp:1 all_reduce aborted @loop.py:4"]
    return building.job({0: calls, 1: calls, 2: calls[:1]})


def raised() -> Trace:
    closed = "RuntimeError: Connection closed by peer"
    later = {rank: [(7 + rank, closed, stacks.WAITING)] for rank in (0, 1, 3)}
    return stacks.stacks_alone({**later, 2: [(5, "ValueError: bad batch", stacks.LOADING)]})


def hung_outside() -> Trace:
    calls = {rank: ["dp:1 all_reduce @/job/train.py:40 done"] * 3 for rank in range(4)}
    looks = {rank: [(300, stacks.STALL, stacks.SAVING if rank < 2 else stacks.LOADING)] for rank in range(4)}
    return stacks.with_stacks(building.job(calls), looks)


def smaller_message(folder: Path) -> None:
    def change(node: dict[str, Any]) -> None:
        node["inputs"]["values"][0][0][3] = 1000
        for attribute in node["attrs"]:
            if attribute["name"].endswith("msg_nelems"):
                attribute["value"] = 1000

    write_pairs(links.JOB, folder)
    links.change_collectives(folder / "torch_et_1.json", change)


def without_launches(folder: Path) -> None:
    write_pairs(links.JOB, folder)
    links.without_launches(folder / "kineto_trace_0.json")


def without_operators(folder: Path) -> None:
    write_pairs(links.JOB, folder)
    links.without_operators(folder / "torch_et_1.json")


def copying() -> Trace:
    pageable = copy(0, 300, step=1, name="Memcpy HtoD (Pageable -> Device)", n_bytes=3 << 20)
    rows = on_ranks(RANKS, [pageable, kernel(300, 990, step=1)])
    return device_tables.trace_of(kernels=rows, steps=on_ranks(RANKS, [step(1, 0, 1000)]))


def nearly_empty() -> Trace:
    kernels = [kernel(0, 60, step=1, blocks_per_sm=0.25, name="scan"), kernel(60, 90, step=1, blocks_per_sm=8.0)]
    return device_tables.trace_of(kernels=on_ranks(RANKS, kernels), steps=on_ranks(RANKS, [step(1, 0, 100)]))


def growing() -> Trace:
    mebibytes = (1, 50, 52, 54, 56)
    return test_device_memory.steps_ending_with(*(number << 20 for number in mebibytes))


def climbing() -> Trace:
    used = {("host_memory_bytes", 1): training.samples() + np.arange(600) * training.MIB}
    return training.trace_of({**used, ("host_memory_available_bytes", 1): np.full(600, 3600 * training.MIB)})


def apart() -> Trace:
    losses = {("loss", rank): training.curve(rank, 800) for rank in range(8)}
    losses["loss", 5][400:] *= 2.5
    return training.trace_of(losses)


USUAL = scheduled(ranks.GATHER, ranks.WAIT)
ODD = scheduled(ranks.GATHER, ranks.WAIT, ranks.SCATTER, ranks.WAIT)
UNWAITED = scheduled(ranks.REDUCE, ranks.WAIT, ranks.GATHER, ranks.WAIT, code=(ranks.REDUCE, ranks.GATHER, ranks.WAIT))
HAND_MADE: dict[str, Sample] = {
    "C408": of_tables("C408", bypassed),
    "C412": of_folder("C412", logs(USUAL, ODD, USUAL)),
    "C414": of_tables("C414", unfinished),
    "C415": of_tables("C415", without_cudagraphs),
    "C417": of_tables("C417", exported),
    "C418": of_folder("C418", logs(UNWAITED, UNWAITED)),
    "C419": of_folder("C419", logs(ran("0/0", "1/0"), ran("0/0", "1/0"), ran("1/0", "0/0"))),
    "D903": of_calls("D903", doubled),
    "D906": of_tables("D906", without_partners),
    "D907": of_tables("D907", three_of_four),
    "D908": of_tables("D908", lambda: test_comm_holes.windows((0, 0, 0, 10), (1, 0, 5, 15), (2, 1, 0, 10))),
    "D911": of_folder("D911", stale),
    "H110": of_calls("H110", aborted),
    "H113": of_calls("H113", raised),
    "H115": of_calls("H115", hung_outside),
    "H116": of_calls("H116", endings.crashed),
    "H117": of_calls("H117", endings.not_joined),
    "H118": of_calls("H118", endings.kept_by_a_thread),
    "H119": of_calls("H119", endings.left_early),
    "H121": of_calls("H121", endings.late_joiner),
    "H131": of_log("H131", log_texts.KILLED),
    "H132": of_log("H132", log_texts.HANGUP),
    "H133": of_log("H133", log_texts.OFF_THE_BUS),
    "H134": of_log("H134", text_of(LogJob("stuck"))),
    "H135": of_log("H135", text_of(LogJob("mismatch"))),
    "H136": of_log("H136", text_of(LogJob("stalled"))),
    "H137": of_log("H137", log_texts.NOT_JOINED),
    "H138": of_log("H138", log_texts.ONLY_VICTIMS),
    "H139": of_log("H139", log_texts.LINK_DOWN),
    "L502": of_folder("L502", smaller_message),
    "L504": of_folder("L504", without_launches),
    "L505": of_folder("L505", without_operators),
    "P301": of_tables("P301", lambda: host_bound(RANKS)),
    "P304": of_tables("P304", copying),
    "P305": of_tables("P305", growing),
    "P306": of_tables("P306", nearly_empty),
    "P312": of_tables("P312", lambda: host_events.capture(host.training(pace=1, kernel=50, n_launches=1200))),
    "P313": of_tables("P313", lambda: host_events.capture(host.with_items())),
    "P314": of_tables("P314", host.time_sliced),
    "P332": of_tables("P332", climbing),
    "S203": of_tables("S203", lambda: exchanging([{0: 667, 1: 2_000, 2: 667, 3: 666}] * 4)),
    "P315": lambda folder: test_small_ops.looping(),
    "S205": of_folder("S205", lambda folder: test_late_absent.write(folder, "data-loading")),
    "S212": of_tables("S212", apart),
    **{code: of_folder(code, late_jobs.writer(code)) for code in late_jobs.SCENES},
    "X601": lambda folder: stalls.stalls(stalls.recorded({2: 4}), [stalls.compiling(2, 5.2, 8.9)]),
}
