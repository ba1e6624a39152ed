"""Ranks that did the same with the compiler, and the first step at which others did not."""

from __future__ import annotations

from pathlib import Path

import pytest

from rankscope.model.code_collectives import collectives_parity
from rankscope.model.tables import Trace
from rankscope.pipeline import load
from rankscope.render.rank_groups import (
    ASPECTS,
    Aspect,
    Difference,
    RankGroup,
    Step,
    compile_runs,
    first_difference,
    graph_estimates,
    rank_groups,
)
from rankscope.simulate.compile_log import LogBuilder, ids_of, log_name
from read.compile_log_reading import load_logs

PREFIX = "torch.ops._c10d_functional."
REDUCE, WAIT, GATHER = (f"{PREFIX}{op}.default" for op in ("all_reduce_", "wait_tensor", "all_gather_into_tensor"))
SCHEDULE = "inductor_collective_schedule"
ESTIMATES = "inductor_runtime_and_tensor_meta"


def ranks_by_letter(trace: Trace, aspect: Aspect, run: int = 0) -> dict[str, tuple[int, ...]]:
    return {group.letter: group.ranks for group in rank_groups(trace, run, aspect)}


def with_code(log: LogBuilder, compile_id: str, *calls: str, text: str = "") -> LogBuilder:
    body = text or "def call(args):\n" + "".join(f"    buf = {call}(buf0, '0')\n" for call in calls)
    return log.record("inductor_output_code", {"filename": "/cache/abc.py"}, body, **ids_of(compile_id))


def compiled(rank: int, *ids: str) -> LogBuilder:
    log = LogBuilder(rank=rank).torch_version()
    for compile_id in ids:
        log.start(compile_id).metrics(compile_id)
    return log


def test_the_largest_group_is_a_and_the_odd_rank_is_told(tmp_path: Path) -> None:
    trace = load_logs(tmp_path, compiled(0, "0/0"), compiled(1, "0/0", "0/1", "1/0"), compiled(2, "0/0"))
    assert ranks_by_letter(trace, "compilations") == {"A": (0, 2), "B": (1,)}
    usual, odd = rank_groups(trace, 0, "compilations")
    assert first_difference(usual, odd) == Difference(1, None, Step("0/1", "compiled"))


def test_records_without_an_id_are_no_compilation(tmp_path: Path) -> None:
    """Rank 0 alone logs events that belong to none, as it does when it compiles a file for all."""
    first = compiled(0, "0/0").chromium("compile_file", compile_id="")
    assert ranks_by_letter(load_logs(tmp_path, first, compiled(1, "0/0")), "compilations") == {"A": (0, 1)}


def test_attempts_are_not_compared(tmp_path: Path) -> None:
    restarted = LogBuilder(rank=1).start("0/0").start("0/0", attempt=1).metrics("0/0")
    assert ranks_by_letter(load_logs(tmp_path, compiled(0, "0/0"), restarted), "compilations") == {"A": (0, 1)}


def test_ids_are_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    trace = load_logs(tmp_path, compiled(0, "0/10", "0/2", "1/0"))
    [group] = rank_groups(trace, 0, "compilations")
    assert [step.compile_id for step in group.steps] == ["0/2", "0/10", "1/0"]


def test_logs_of_different_runs_are_never_compared(tmp_path: Path) -> None:
    for number, at in enumerate(("2026-11-16 06:00:00", "2026-11-16 08:00:00")):
        for rank in (0, 1):
            log = LogBuilder(rank=rank, at=at)
            for compile_id in ("0/0", "0/1")[: number + 1]:
                log.start(compile_id).metrics(compile_id)
            log.write(tmp_path, log_name(rank, f"run{number}"))
    trace = load(tmp_path, jobs=1)
    assert compile_runs(trace) == {0: (0, 1), 1: (0, 1)}
    for run in (0, 1):
        assert ranks_by_letter(trace, "compilations", run) == {"A": (0, 1)}


def test_both_logs_of_a_rank_are_its_own(tmp_path: Path) -> None:
    """A forked child writes a second log of the rank beside its parent's."""
    for pid, compile_id in ((1, "0/0"), (2, "1/0")):
        LogBuilder(rank=0, pid=pid).start(compile_id).metrics(compile_id).write(tmp_path, log_name(0, f"p{pid}"))
    compiled(1, "0/0", "1/0").write(tmp_path)
    assert ranks_by_letter(load(tmp_path, jobs=1), "compilations") == {"A": (0, 1)}


def test_cache_patterns_are_compared_in_order(tmp_path: Path) -> None:
    logs = []
    for rank, outcomes in enumerate((("hit", "miss"), ("miss", "hit"), ("hit", "miss"), ())):
        log = compiled(rank, "0/0")
        for outcome in outcomes:
            log.cache_event("0/0", f"fx_graph_cache_{outcome}", key="k")
        logs.append(log)
    trace = load_logs(tmp_path, *logs)
    assert ranks_by_letter(trace, "caches") == {"A": (0, 2), "B": (1,), "C": (3,)}
    usual, odd, _ = rank_groups(trace, 0, "caches")
    assert first_difference(usual, odd) == Difference(0, Step("0/0", "fx_graph hit"), Step("0/0", "fx_graph miss"))


def test_all_schedules_of_a_compilation_are_compared(tmp_path: Path) -> None:
    """The second one, of the backward graph, is where they differ."""
    logs = [compiled(rank, "0/0").artifact(SCHEDULE, [REDUCE, WAIT], "0/0") for rank in range(3)]
    for rank, log in enumerate(logs):
        log.artifact(SCHEDULE, [GATHER if rank == 1 else REDUCE, WAIT], "0/0")
    trace = load_logs(tmp_path, *logs)
    assert ranks_by_letter(trace, "collectives") == {"A": (0, 2), "B": (1,)}
    usual, odd = rank_groups(trace, 0, "collectives")
    assert first_difference(usual, odd) == Difference(2, Step("0/0", REDUCE), Step("0/0", GATHER))


def test_a_rank_that_took_the_graph_from_its_cache_is_judged_by_the_code(tmp_path: Path) -> None:
    cold = [with_code(compiled(rank, "0/0").artifact(SCHEDULE, [REDUCE], "0/0"), "0/0", REDUCE) for rank in (0, 1)]
    warm = with_code(compiled(2, "0/0"), "0/0", REDUCE)
    without = with_code(compiled(3, "0/0"), "0/0", "torch.ops.aten.mm.default")
    unseen = compiled(4, "0/0")
    unreadable = with_code(
        compiled(5, "0/0"), "0/0", text="cpp_wrapper_src = 'aoti_torch_cpu__c10d_functional_all_reduce_'"
    )
    trace = load_logs(tmp_path, *cold, warm, without, unseen, unreadable)
    assert ranks_by_letter(trace, "collectives") == {"A": (0, 1, 2, 4, 5), "B": (3,)}


def test_graphs_without_collectives_make_no_difference(tmp_path: Path) -> None:
    same = compiled(0, "0/0").artifact(SCHEDULE, [REDUCE], "0/0")
    more = with_code(compiled(1, "0/0", "1/0").artifact(SCHEDULE, [REDUCE], "0/0"), "1/0", "torch.ops.aten.mm.default")
    assert ranks_by_letter(load_logs(tmp_path, same, more), "collectives") == {"A": (0, 1)}


def estimates(*ops: tuple[float, str, list[int]]) -> dict[str, object]:
    outputs = [{"shape": shape, "stride": [1] * len(shape), "dtype": dtype} for _, dtype, shape in ops]
    return {
        "ops": [
            {"name": f"op{at}", "type": "compute", "estimated_runtime_ns": op[0], "outputs": [outputs[at]]}
            for at, op in enumerate(ops)
        ]
    }


def test_other_estimates_are_no_other_tensors(tmp_path: Path) -> None:
    logs = [
        compiled(rank, "0/0").artifact(ESTIMATES, estimates((1e6 + rank, "float16", [8])), "0/0") for rank in (0, 1)
    ]
    logs.append(compiled(2, "0/0").artifact(ESTIMATES, estimates((1e6, "float16", [9])), "0/0"))
    trace = load_logs(tmp_path, *logs)
    assert ranks_by_letter(trace, "tensors") == {"A": (0, 1), "B": (2,)}
    usual, odd = rank_groups(trace, 0, "tensors")
    assert first_difference(usual, odd).own == Step("0/0", "float16[9] stride [1]")


def test_the_slowest_rank_of_each_graph_is_told(tmp_path: Path) -> None:
    logs = [
        compiled(rank, "0/0", "0/1")
        .artifact(ESTIMATES, estimates((first, "float16", [8]), (100, "float16", [8])), "0/0")
        .artifact(ESTIMATES, estimates((second, "float16", [8])), "0/1")
        for rank, (first, second) in enumerate(((500, 70), (900, 60), (700, 50)))
    ]
    first, second = graph_estimates(load_logs(tmp_path, *logs), 0)
    assert tuple(first) == ("0/0", 3, 0, 600, 1, 1000)
    assert tuple(second) == ("0/1", 3, 2, 50, 0, 70)


def test_only_ranks_that_recorded_their_order_are_compared(tmp_path: Path) -> None:
    logs = [compiled(rank, "0/0", "0/1") for rank in range(4)]
    for rank, order in ((0, ["0/0", "0/1"]), (1, ["0/1", "0/0"]), (3, ["0/0", "0/1"])):
        logs[rank].artifact("graph_execution", {"graph_execution_order": order})
    trace = load_logs(tmp_path, *logs)
    assert ranks_by_letter(trace, "executions") == {"A": (0, 3), "B": (1,)}
    usual, odd = rank_groups(trace, 0, "executions")
    assert first_difference(usual, odd) == Difference(0, Step("0/0", "run"), Step("0/1", "run"))


def test_without_data_there_are_no_groups(tmp_path: Path) -> None:
    trace = load_logs(tmp_path, compiled(0, "0/0"), compiled(1, "0/0"))
    assert [aspect for aspect in ASPECTS if rank_groups(trace, 0, aspect)] == ["compilations"]
    assert graph_estimates(trace, 0) == []
    assert compile_runs(Trace(("nowhere",))) == {}


def test_letters_go_on_behind_z(tmp_path: Path) -> None:
    trace = load_logs(tmp_path, *(compiled(rank, *(f"0/{n}" for n in range(rank + 1))) for rank in range(28)))
    letters = [group.letter for group in rank_groups(trace, 0, "compilations")]
    assert letters[:2] + letters[-3:] == ["A", "B", "Z", "AA", "AB"]


def test_one_side_may_have_no_more_steps() -> None:
    usual = RankGroup("A", (0, 1), (Step("0/0", "run"), Step("0/1", "run")))
    odd = RankGroup("B", (2,), usual.steps[:1])
    assert first_difference(usual, odd) == Difference(1, Step("0/1", "run"), None)
    assert first_difference(odd, usual) == Difference(1, None, Step("0/1", "run"))


@pytest.mark.parametrize(
    ("schedule", "calls", "offset", "missing_waits"),
    [
        ([REDUCE, WAIT], (REDUCE, WAIT), 0, 0),
        ([REDUCE, WAIT], (REDUCE,), 0, 1),
        ([REDUCE, WAIT], (REDUCE, WAIT, GATHER, WAIT), 1, 0),
        ([REDUCE, GATHER], (GATHER, GATHER), 2, 2),
        ([f"{PREFIX}all_reduce.default"], (REDUCE, WAIT), 0, 0),
    ],
)
def test_schedule_and_code_are_compared(
    schedule: list[str], calls: tuple[str, ...], offset: int, missing_waits: int, tmp_path: Path
) -> None:
    log = with_code(compiled(1, "0/0").artifact(SCHEDULE, schedule, "0/0"), "0/0", *calls)
    [parity] = collectives_parity(load_logs(tmp_path, log))
    assert (parity.rank, parity.compile_id, parity.offset, parity.missing_waits) == (1, "0/0", offset, missing_waits)


def test_calls_in_comments_are_no_calls(tmp_path: Path) -> None:
    text = f"def call(args):\n    # was {GATHER}(buf1)\n    {REDUCE}(buf0)  # then {WAIT}(buf0)\n"
    log = with_code(compiled(0, "0/0").artifact(SCHEDULE, [REDUCE], "0/0"), "0/0", text=text)
    [parity] = collectives_parity(load_logs(tmp_path, log))
    assert (parity.n_called, parity.n_waits, parity.offset) == (1, 0, 0)


def test_code_that_proves_nothing_is_not_compared(tmp_path: Path) -> None:
    no_schedule = with_code(compiled(0, "0/0"), "0/0", REDUCE)
    no_code = compiled(1, "0/0").artifact(SCHEDULE, [REDUCE], "0/0")
    text = f"cpp_wrapper_src = '''{PREFIX}'''"
    from_cpp = with_code(compiled(2, "0/0").artifact(SCHEDULE, [REDUCE], "0/0"), "0/0", text=text)
    assert collectives_parity(load_logs(tmp_path, no_schedule, no_code, from_cpp)) == []
