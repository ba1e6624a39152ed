"""compile_ledger: what is added up, under whose name, and that phases exclude each other."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from analyze.compile.building import FILE, SECOND, Made, broke, compiled, frame, log, trace_of
from rankscope.analyze.compile.ledger import PHASES

RESUMED = "torch_dynamo_resume_in_step_at_14"


def ledger(*made: Made) -> list[dict[str, Any]]:
    return list(trace_of(*made).table("compile_ledger").rows())


def test_all_phases_of_a_compilation_are_added_up() -> None:
    [row] = ledger(
        compiled("0/0", seconds=5),
        compiled("0/0", seconds=2, phase="backward"),
        compiled("0/0", seconds=1, phase="runtime", autotune_ns=SECOND),
        compiled("0/1", seconds=3),
    )
    assert (row["file"], row["line"], row["function"]) == (FILE, 10, "step")
    assert (row["n_compilations"], row["n_recompiles"]) == (2, 1)
    assert row["total_ns"] == 11 * SECOND
    assert (row["forward_ns"], row["backward_ns"], row["runtime_ns"]) == (8 * SECOND, 2 * SECOND, SECOND)
    assert row["recompile_ns"] == 3 * SECOND
    assert row["autotune_ns"] == SECOND


def test_phases_are_told_without_what_they_call() -> None:
    [row] = ledger(
        compiled(
            "0/0",
            seconds=10,
            aot_ns=8 * SECOND,
            inductor_ns=6 * SECOND,
            code_gen_ns=3 * SECOND,
            triton_ns=SECOND,
            autotune_ns=SECOND,
        )
    )
    assert [row[phase] // SECOND for phase in PHASES] == [2, 2, 2, 2, 1, 1]


times = st.one_of(st.just(-1), st.integers(0, 20 * SECOND))


@given(
    duration=st.integers(0, 10 * SECOND),
    told=st.fixed_dictionaries(dict.fromkeys(("aot_ns", "backend_ns", *PHASES), times)),
    phase=st.sampled_from(["forward", "backward", "runtime"]),
)
def test_phases_are_never_negative_and_add_up_to_the_total(duration: int, told: dict[str, int], phase: str) -> None:
    for row in ledger(compiled("0/0", phase=phase, **told | {"duration_ns": duration})):
        assert all(row[name] >= 0 for name in PHASES)
        assert sum(row[name] for name in PHASES) == row["total_ns"]


def test_old_logs_without_a_duration_have_the_time_of_tracing() -> None:
    [row] = ledger(compiled("0/0", duration_ns=-1, dynamo_ns=4 * SECOND, aot_ns=3 * SECOND))
    assert (row["total_ns"], row["dynamo_ns"], row["aot_ns"]) == (4 * SECOND, SECOND, 3 * SECOND)


def test_what_begins_behind_a_graph_break_counts_with_its_function() -> None:
    rows = ledger(compiled("0/0"), compiled("1/0", function=RESUMED, line=14), broke("0/0"), broke("1/0"))
    [row] = rows
    assert (row["line"], row["n_compilations"], row["n_graph_breaks"]) == (10, 2, 2)


def test_of_functions_with_one_name_the_resumed_part_belongs_to_the_one_above_it() -> None:
    rows = ledger(
        compiled("0/0", seconds=1, line=10),
        compiled("1/0", seconds=1, line=30),
        compiled("2/0", seconds=5, function="torch_dynamo_resume_in_step_at_33", line=33),
    )
    assert {row["line"]: row["n_compilations"] for row in rows} == {10: 1, 30: 2}


def test_torchs_own_wrapper_counts_for_the_line_that_calls_it() -> None:
    [row] = ledger(
        compiled("0/0", function="inner", file="torch/_dynamo/external_utils.py", line=67),
        frame("0/0", 0, FILE, 99, "main", is_user=True),
        frame("0/0", 1, "torch/_dynamo/external_utils.py", 67, "inner", is_user=False),
    )
    assert (row["file"], row["line"], row["function"]) == (FILE, 99, "main")


def test_old_logs_whose_stacks_leave_out_the_compiled_frame_keep_the_users_function() -> None:
    [row] = ledger(
        compiled("0/0"),
        frame("0/0", 0, FILE, 99, "main", is_user=True),
        frame("0/0", 1, "torch/_dynamo/convert_frame.py", 700, "catch_errors", is_user=False),
    )
    assert (row["line"], row["function"]) == (10, "step")


def test_ranks_and_runs_are_kept_apart_and_the_dearest_comes_first() -> None:
    rows = ledger(
        log(0, rank=0, run=0),
        log(1, rank=0, run=1),
        log(2, rank=2, run=0),
        compiled("0/0", seconds=1),
        compiled("0/0", seconds=3, file_id=1),
        compiled("0/0", rank=2, seconds=2),
    )
    assert [(row["run"], row["rank"], row["total_ns"] // SECOND) for row in rows] == [(1, 0, 3), (0, 2, 2), (0, 0, 1)]


def test_a_log_without_metrics_takes_its_times_from_the_spans() -> None:
    def span(name: str, seconds: int) -> Made:
        row = {"file_id": 0, "rank": 0, "compile_id": "0/0", "name": name, "state": "span"}
        return "compile_events", row | {"duration_ns": seconds * SECOND}

    unfinished = compiled("0/0", status="unfinished", duration_ns=-1)
    [row] = ledger(unfinished, span("dynamo", 9), span("backend_compile", 7), span("inductor_compile", 4))
    assert (row["total_ns"], row["dynamo_ns"], row["aot_ns"], row["inductor_ns"]) == (
        9 * SECOND,
        2 * SECOND,
        3 * SECOND,
        4 * SECOND,
    )


def test_what_no_record_tells_the_time_of_has_no_row() -> None:
    assert ledger(compiled("0/0", duration_ns=-1)) == []
