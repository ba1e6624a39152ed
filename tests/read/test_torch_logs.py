"""What is made of TORCH_LOGS text, in whatever a job printed around it."""

from __future__ import annotations

import datetime
import gzip
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rankscope.errors import BadFileError, InputError
from rankscope.model.tables import MISSING, Trace
from rankscope.pipeline import diagnose, load
from rankscope.read import torch_logs
from rankscope.read.files import Source
from rankscope.read.log_messages import id_columns
from read.log_lines import JOB, Logger, traceback_text

SIZE = "0/{}: tensor 'x' size mismatch at index 0. expected {}, actual {}"
Rows = list[dict[str, Any]]


def loaded(folder: Path, text: str | bytes, name: str = "job.log") -> Trace:
    path = folder / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return load([str(path)])


def rows_of(trace: Trace, table: str) -> Rows:
    return list(trace.table(table).rows()) if trace.has(table) else []


def one(rows: Rows) -> dict[str, Any]:
    (row,) = rows
    return row


def picked(rows: Rows, *columns: str) -> list[tuple[Any, ...]]:
    return [tuple(row[column] for column in columns) for row in rows]


def test_a_recompilation_gives_one_row_per_failed_guard(tmp_path: Path) -> None:
    text = Logger().recompile("0/2", SIZE.format(1, 9, 10), SIZE.format(0, 8, 10))
    trace = loaded(tmp_path, text)
    assert picked(rows_of(trace, "recompiles"), "compile_id", "frame_compile_id", "against", "expected", "actual") == [
        ("0/2", 2, "0/1", "9", "10"),
        ("0/2", 2, "0/0", "8", "10"),
    ]
    compiled = one(rows_of(trace, "compilations"))
    assert (compiled["function"], compiled["file"], compiled["line"]) == ("step", JOB, 12)
    assert compiled["recompile_reason"] == SIZE.format(1, 9, 10)
    assert compiled["duration_ns"] == MISSING


def test_the_stack_of_a_guard_tells_its_line(tmp_path: Path) -> None:
    stack = f"User stack trace:\n  File \"{JOB}\", line 22, in step\n    if mode == 'up':"
    text = Logger().recompile("0/1", f"0/0: mode == 'down'  # if mode == 'up':  # ob/train.py:22 in step\n{stack}")
    failed = one(rows_of(loaded(tmp_path, text), "recompiles"))
    assert (failed["guard"], failed["file"], failed["line"], failed["code"]) == (
        "mode == 'down'",
        JOB,
        22,
        "if mode == 'up':",
    )


def test_a_file_that_a_guard_names_in_part_is_named_in_full(tmp_path: Path) -> None:
    text = Logger().recompile("0/1", "0/0: mode == 'down'  # if mode == 'up':  # ob/train.py:22 in step")
    assert one(rows_of(loaded(tmp_path, text), "recompiles"))["file"] == JOB


def test_verbose_recompilations_give_the_same_rows(tmp_path: Path) -> None:
    heading = f"Recompiling function step in {JOB}:12\n    triggered by the following guard failure(s):\n"
    guards = "    guard 0 failures:\n    - 0/1: mode == 'up'\n\n    guard 1 failures:\n    - 0/0: mode == 'down'"
    trace = loaded(tmp_path, Logger().lines(heading + guards, "0/2", "recompiles_verbose"))
    assert picked(rows_of(trace, "recompiles"), "against", "guard") == [
        ("0/1", "mode == 'up'"),
        ("0/0", "mode == 'down'"),
    ]


def test_the_limit_is_a_failed_compilation(tmp_path: Path) -> None:
    trace = loaded(tmp_path, Logger().limit("0/8", SIZE.format(7, 9, 10)))
    failed = one(rows_of(trace, "compilations"))
    assert (failed["compile_id"], failed["status"], failed["function"], failed["line"]) == ("0/8", "failed", "step", 12)
    assert "recompile_limit (currently set to 8)" in failed["fail_reason"]
    assert picked(rows_of(trace, "recompiles"), "against", "actual") == [("0/7", "10")]


def test_the_limit_adds_no_guard_that_was_logged_before(tmp_path: Path) -> None:
    log = Logger()
    text = log.recompile("0/8", SIZE.format(7, 9, 10)) + log.limit("0/8", SIZE.format(7, 9, 10))
    assert len(rows_of(loaded(tmp_path, text), "recompiles")) == 1


def test_a_graph_break_has_its_line_reason_and_hint(tmp_path: Path) -> None:
    broken = one(rows_of(loaded(tmp_path, Logger().graph_break("3/0", 31, "It prints")), "graph_breaks"))
    assert (broken["file"], broken["line"], broken["function"], broken["code"]) == (JOB, 31, "step", "print(loss)")
    assert (broken["reason"], broken["hints"], broken["break_id"]) == ("It prints", "Leave it out.", "gb0059")
    assert (broken["compile_id"], broken["is_user"]) == ("3/0", True)


def test_a_break_that_is_told_again_takes_its_function_from_the_first_time(tmp_path: Path) -> None:
    log = Logger()
    text = log.graph_break("3/0", 31, "It prints") + log.repeated_break("4/0", 31, "It sings")
    again = rows_of(loaded(tmp_path, text), "graph_breaks")[1]
    assert (again["compile_id"], again["line"], again["function"], again["reason"]) == ("4/0", 31, "step", "It sings")


ITEM_WARNING = f"""Graph break from `Tensor.item()`, consider setting:
    torch._dynamo.config.capture_scalar_outputs = True
or:

Graph break: from user code at:
  File "{JOB}", line 31, in step
    loss.item()
"""


def test_a_break_that_is_only_warned_of_counts(tmp_path: Path) -> None:
    text = Logger().lines(ITEM_WARNING, "0/0", level="W", module="torch/_dynamo/variables/tensor.py:1759")
    warned = one(rows_of(loaded(tmp_path, text), "graph_breaks"))
    assert (warned["file"], warned["line"], warned["code"]) == (JOB, 31, "loss.item()")
    assert warned["hints"] == "torch._dynamo.config.capture_scalar_outputs = True"


def test_a_break_that_is_logged_is_not_counted_again_for_its_warning(tmp_path: Path) -> None:
    log = Logger()
    text = log.lines(ITEM_WARNING, "0/0", level="W") + log.graph_break("0/0", 31, "Unsupported Tensor.item() call")
    assert picked(rows_of(loaded(tmp_path, text), "graph_breaks"), "reason") == [("Unsupported Tensor.item() call",)]


def test_symbols_guards_and_constants(tmp_path: Path) -> None:
    log = Logger()
    named_in_full = log.recompile("1/1", "1/0: mode == 'up'")
    text = log.symbol("0/0_1", "s7", 48, "L['x'].size()[0]") + log.constant("0/0_1", "s7", 48) + named_in_full
    symbol, guard, constant = rows_of(loaded(tmp_path, text), "guards")
    assert (symbol["kind"], symbol["symbol"], symbol["expression"], symbol["value"], symbol["source"]) == (
        *("symbol", "s7", "[2, int_oo]", "48", "L['x'].size()[0]"),
    )
    assert (symbol["compile_id"], symbol["attempt"], symbol["code"]) == ("0/0", 1, "y = x + 1")
    assert (guard["kind"], guard["expression"], guard["file"], guard["line"]) == ("guard", "Eq(s7, 48)", JOB, 15)
    assert guard["code"] == "if n == 48:  # the last batch"
    assert (constant["kind"], constant["value"], constant["source"], constant["line"], constant["reason"]) == (
        *("specialization", "48", "L['x'].size()[0]", 15, "range_refined_to_singleton"),
    )


TREE = """
TREE_GUARD_MANAGER:
+- RootGuardManager
| | +- EQUALS_MATCH: L['mode'] == 'down'            # if mode == 'up':  # ob/train.py:22 in step
+- LAMBDA_GUARD: L['x'].size()[0] != 48  # if n == 48:  # ob/train.py:15 in step (_dynamo/variables/tensor.py:9 in f)
+- LAMBDA_GUARD: 2 <= L['x'].size()[0]  # x + 1  # ob/train.py:14 in step (the guard itself is not due user code but)
"""


def test_guards_on_shapes_are_found_in_the_tree_of_guards(tmp_path: Path) -> None:
    guards = rows_of(loaded(tmp_path, Logger().lines(TREE, "0/1", "guards")), "guards")
    assert picked(guards, "kind", "expression", "line") == [("guard", "L['x'].size()[0] != 48", 15)]


def test_the_tree_is_left_out_where_the_guards_were_logged_one_by_one(tmp_path: Path) -> None:
    log = Logger()
    text = log.constant("0/1", "s7", 48) + log.lines(TREE, "0/1", "guards")
    assert picked(rows_of(loaded(tmp_path, text), "guards"), "kind") == [("guard",), ("specialization",)]


def test_the_latency_of_guards(tmp_path: Path) -> None:
    trace = loaded(tmp_path, Logger().lines("Guard eval latency = 81.50 us", "0/1", "guards"))
    assert picked(rows_of(trace, "compilations"), "guard_latency_ns", "status") == [(81_500, "ok")]


def test_the_stack_of_a_compilation(tmp_path: Path) -> None:
    text = f"torchdynamo start compiling step {JOB}:12, stack (elided 5 frames):\n"
    text += f'  File "{JOB}", line 90, in <module>\n    main()\n'
    trace = loaded(tmp_path, Logger().lines(text, "0/0", module="torch/_dynamo/convert_frame.py:2041"))
    stack = rows_of(trace, "compile_stacks")
    assert picked(stack, "depth", "line", "function") == [(0, 90, "<module>"), (1, 12, "step")]
    assert picked(rows_of(trace, "compilations"), "function", "line") == [("step", 12)]


def test_lines_of_several_ranks_may_be_mixed(tmp_path: Path) -> None:
    ranks = [Logger(rank, 4711 + rank).recompile("0/1", SIZE.format(0, 8, 9 + rank)).splitlines() for rank in range(3)]
    mixed = "\n".join(line for lines in zip(*ranks, strict=True) for line in lines) + "\n"
    trace = loaded(tmp_path, mixed)
    assert sorted(picked(rows_of(trace, "recompiles"), "rank", "actual")) == [(0, "9"), (1, "10"), (2, "11")]
    assert picked(rows_of(trace, "compile_logs"), "rank", "pid", "n_records") == [
        (0, 4711, 3),
        (1, 4712, 3),
        (2, 4713, 3),
    ]
    assert one(rows_of(trace, "files"))["rank"] == MISSING


def test_a_process_keeps_the_rank_that_it_tells_later(tmp_path: Path) -> None:
    before, after = Logger(None, 99), Logger(5, 99)
    trace = loaded(
        tmp_path, before.recompile("0/1", SIZE.format(0, 8, 9)) + after.recompile("0/2", SIZE.format(1, 9, 10))
    )
    assert picked(rows_of(trace, "recompiles"), "rank") == [(5,), (5,)]
    assert one(rows_of(trace, "compile_logs"))["rank"] == 5


@pytest.mark.parametrize("label", ["[default3]:", " 3: ", "[trainer3]: "])
def test_the_label_of_a_launcher_is_the_rank_where_torch_tells_none(tmp_path: Path, label: str) -> None:
    text = Logger().recompile("0/1", SIZE.format(0, 8, 9))
    trace = loaded(tmp_path, "".join(f"{label}{line}\n" for line in text.splitlines()))
    assert picked(rows_of(trace, "recompiles"), "rank", "actual") == [(3, "9")]


@pytest.mark.parametrize(("name", "rank"), [("rank_7.log", 7), ("attempt_0/2/stderr.log", 2), ("slurm-8123.out", 0)])
def test_the_name_of_the_file_tells_the_rank(tmp_path: Path, name: str, rank: int) -> None:
    (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
    trace = loaded(tmp_path, Logger().recompile("0/1", SIZE.format(0, 8, 9)), name)
    assert one(rows_of(trace, "recompiles"))["rank"] == rank
    assert one(rows_of(trace, "files"))["rank"] == rank


def test_lines_of_the_launcher_itself_are_of_no_rank(tmp_path: Path) -> None:
    agent = Logger(None, 1).lines(
        "Sending process 99 closing signal SIGTERM", module="torch/distributed/elastic/api.py:1"
    )
    trace = loaded(tmp_path, Logger(5, 99).recompile("0/1", SIZE.format(0, 8, 9)) + agent)
    assert picked(rows_of(trace, "compile_logs"), "rank") == [(5,)]
    assert "Sending process" in rows_of(trace, "log_lines")[1]["message"]


def test_what_a_job_prints_in_between_does_not_matter(tmp_path: Path) -> None:
    lines = Logger().graph_break("3/0", 31, "It prints").splitlines()
    colours = [f"\x1b[33m{line}\x1b[0m" if number % 2 else line for number, line in enumerate(lines)]
    bar = "\r 10%|#    | 1/10 [00:01]\r 20%|##   | 2/10 [00:02]"
    text = b"\xff\xfe loss 1.5\r\n" + f"{bar}{colours[0]}\r\n".encode()
    text += b"".join(line.encode() + b"\r\nstep 12, loss \xe9\r\n" for line in colours[1:])
    broken = one(rows_of(loaded(tmp_path, text), "graph_breaks"))
    assert (broken["line"], broken["function"], broken["reason"]) == (31, "step", "It prints")


def test_two_messages_of_one_moment_stay_two(tmp_path: Path) -> None:
    log = Logger()
    first = log.symbol("0/0", "s1", 8, "L['x'].size()[0]")
    log.second -= 0.1
    trace = loaded(tmp_path, first + log.symbol("0/0", "s2", 9, "L['y'].size()[0]"))
    assert picked(rows_of(trace, "guards"), "symbol") == [("s1",), ("s2",)]


@pytest.mark.parametrize("label", ["", "[rank2]: "])
def test_an_error_that_was_printed_is_an_error_of_the_compiler(tmp_path: Path, label: str) -> None:
    trace = loaded(tmp_path, f"step 1\n{traceback_text(label)}\nthe job's last words\n")
    error, failed = one(rows_of(trace, "compile_errors")), one(rows_of(trace, "compilations"))
    assert (error["rank"], error["type"]) == (2 if label else 0, "torch._dynamo.exc.Unsupported")
    assert (error["file"], error["line"], error["function"], error["code"]) == (JOB, 31, "step", "print(loss)")
    assert "last words" not in error["message"]
    assert (failed["rank"], failed["status"], failed["fail_type"]) == (error["rank"], "failed", "Unsupported")
    assert (failed["function"], failed["fail_file"], failed["fail_line"]) == ("step", JOB, 31)


def test_errors_of_several_ranks_may_be_mixed(tmp_path: Path) -> None:
    texts = [[line for line in traceback_text(f"[rank{rank}]: ").splitlines() if line] for rank in range(2)]
    mixed = "\n".join(line for lines in zip(*texts, strict=True) for line in lines) + "\n"
    assert picked(rows_of(loaded(tmp_path, mixed), "compile_errors"), "rank", "line") == [(0, 31), (1, 31)]


def test_an_error_of_the_job_itself_is_none_of_the_compiler(tmp_path: Path) -> None:
    text = Logger().graph_break("0/0", 31, "It prints") + traceback_text(exception="ValueError: bad batch")
    assert rows_of(loaded(tmp_path, text), "compile_errors") == []


def test_a_function_that_is_left_to_python_after_an_error(tmp_path: Path) -> None:
    message = f"WON'T CONVERT step {JOB} line 12 \ndue to: \n{traceback_text()}"
    trace = loaded(tmp_path, Logger().lines(message, level="W", module="torch/_dynamo/convert_frame.py:2415"))
    assert one(rows_of(trace, "compile_errors"))["line"] == 31
    assert picked(rows_of(trace, "compilations"), "function", "line", "status", "fail_type") == [
        ("step", 12, "failed", "Unsupported")
    ]


def test_the_year_is_the_one_closest_to_the_file_and_the_clock_is_assumed(tmp_path: Path) -> None:
    path = tmp_path / "job.log"
    path.write_text(Logger(second=1.9).recompile("0/1", SIZE.format(0, 8, 9)))
    written = datetime.datetime(2024, 1, 3, tzinfo=datetime.timezone.utc).timestamp()
    os.utime(path, (written, written))
    log = one(rows_of(load([str(path)]), "compile_logs"))
    expected = datetime.datetime(2023, 11, 16, 6, 0, 2, tzinfo=datetime.timezone.utc)
    assert (log["first_ns"], log["clock"]) == (int(expected.timestamp()) * 10**9, "assumed")


def test_messages_are_kept_whole_with_level_place_and_channel(tmp_path: Path) -> None:
    log = Logger()
    text = "job\n" + log.lines("first\nsecond", "!2/3/1_4", "perf_hints", level="W", module="torch/_inductor/x.py:7")
    line = one(rows_of(loaded(tmp_path, text), "log_lines"))
    assert (line["line"], line["level"], line["pid"], line["module"], line["module_line"]) == (
        *(2, "warning", 4711, "torch/_inductor/x.py", 7),
    )
    assert (line["compile_id"], line["attempt"], line["channel"], line["message"]) == (
        *("!2/3/1", 4, "perf_hints", "first\nsecond"),
    )


@pytest.mark.parametrize(
    ("trace_id", "expected"),
    [
        ("0/1", ("0/1", 0, 1, MISSING, 0)),
        ("0/1_2", ("0/1", 0, 1, MISSING, 2)),
        ("!3/0/1", ("!3/0/1", 0, 1, 3, 0)),
        ("!3", ("!3", MISSING, MISSING, 3, 0)),
        ("", ("", MISSING, MISSING, MISSING, MISSING)),
    ],
)
def test_compile_ids(trace_id: str, expected: tuple[object, ...]) -> None:
    assert tuple(id_columns(trace_id).values()) == expected


def test_a_log_that_ends_within_a_line_is_used_and_named(tmp_path: Path) -> None:
    text = Logger().recompile("0/1", SIZE.format(0, 8, 9)) + "V1116 06:00:0"
    trace = loaded(tmp_path, text)
    assert len(rows_of(trace, "recompiles")) == 1
    assert one(rows_of(trace, "compile_logs"))["is_cut"]
    assert one(rows_of(trace, "files"))["status"] == "damaged"


def test_a_packed_log_that_breaks_off_is_used_as_far_as_it_goes(tmp_path: Path) -> None:
    log = Logger()
    text = "".join(log.recompile(f"0/{number}", SIZE.format(0, 8, os.urandom(99).hex())) for number in range(1, 40))
    packed = gzip.compress(text.encode())
    trace = loaded(tmp_path, packed[: len(packed) // 2], "job.log.gz")
    assert 5 < len(rows_of(trace, "recompiles")) < 39
    assert one(rows_of(trace, "files"))["status"] == "damaged"


def test_text_without_a_line_of_torch_is_passed_over(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("V1116 was a good rocket\n")
    (tmp_path / "agent.out").write_text(Logger().lines("closing", module="torch/distributed/elastic/api.py:1"))
    trace = loaded(tmp_path, Logger().recompile("0/1", SIZE.format(0, 8, 9)))
    paths = [str(tmp_path)]
    files = {Path(row["path"]).name: row["status"] for row in rows_of(load(paths), "files")}
    assert files == {"notes.txt": "ignored", "agent.out": "ignored", "job.log": "read"}
    assert len(rows_of(trace, "compile_logs")) == 1


def test_text_without_a_line_of_torch_alone_is_no_trace(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no trace in this file"):
        loaded(tmp_path, "step 1\n", "notes.txt")


def test_lines_of_torch_far_behind_are_found_by_the_name_of_the_file(tmp_path: Path) -> None:
    text = "loading\n" * 10_000 + Logger().recompile("0/1", SIZE.format(0, 8, 9))
    assert rows_of(loaded(tmp_path, text), "log_lines")[0]["line"] == 10_001


def test_records_of_torch_trace_are_left_to_their_own_reader() -> None:
    record = b'V1116 06:18:20.896000 1 torch/_logging/structured.py:28] {"str": ["/job/train.py", 0]}\n'
    assert not torch_logs.sniff(record, "job.log")
    assert torch_logs.sniff(Logger().recompile("0/1", "0/0: x").encode(), "anything")
    assert not torch_logs.sniff(b"\x00\x01", "job.log")


PIECES = (
    *(Logger().recompile("0/1", SIZE.format(0, 8, 9)), Logger(2).graph_break("!1/0/0_1", 31, "It prints")),
    *(Logger().limit("0/8", "0/7: mode == 'up'"), Logger().constant("0/0", "s7", 48), traceback_text("[rank1]: ")),
    *(
        "\r 10%|#  |",
        "[default1]:",
        "\n",
        "Traceback (most recent call last):\n",
        "[2023-99-99 06:18:20,896] torch.x: [INFO] a\n",
    ),
    *(
        "V9999 99:99:99.999999 1 torch/a.py:1] [99999999999/1_99999999999] [__guards] +- LAMBDA_GUARD: a  # b\n",
        "\x1b[3",
    ),
)


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(
    pieces=st.lists(st.sampled_from([piece.encode() for piece in PIECES]) | st.binary(max_size=40), max_size=12),
    cut=st.integers(0, 400),
)
def test_no_text_is_too_odd(tmp_path: Path, pieces: list[bytes], cut: int) -> None:
    content = b"".join(pieces)[cut:]
    path = tmp_path / "odd"
    path.write_bytes(content)
    try:
        tables = list(torch_logs.read(Source(path, str(path), len(content), file_id=0)))
    except BadFileError:
        return
    names = {table.name for table in tables}
    assert "files" in names
    assert names & {"compile_logs", "log_events"}


def test_stacks_of_python_and_cpp_in_a_log_are_read(tmp_path: Path) -> None:
    log = tmp_path / "job.log"
    log.write_text(
        "starting\n"
        "[rank1]:[E1118 00:00:00 ProcessGroupNCCL.cpp:700] [Rank 1] Stack trace of the failed collective: \n"
        "#0 all_reduce from /x/torch/distributed/distributed_c10d.py:2501\n"
        "#1 train from /job/train.py:77\n"
        "#2 c10d::Reducer::run(int) from /x/torch/lib/libtorch_cpu.so:0\n"
        "\n"
        "[rank0]: #0 load from /job/data.py:1\n"
        "[rank2]: #0 other from /job/other.py:1\n"
        "[rank0]: #1 train from /job/train.py:2\n"
        "[rank0]: #7 is no frame of it from /job/train.py:2\n"
        "we came from here: 1\n"
    )
    trace = load([str(log)])
    rows = list(trace.table("thread_stacks").rows())
    assert [(row["rank"], row["is_main"], row["line"]) for row in rows] == [(1, False, 3), (0, False, 7), (2, False, 8)]
    assert rows[0]["reason"].endswith("[Rank 1] Stack trace of the failed collective:")
    frames = list(trace.table("frames").rows())
    assert [(row["function"], row["is_user"], row["language"]) for row in frames] == [
        ("all_reduce", False, "python"),
        ("train", True, "python"),
        ("c10d::Reducer::run(int)", False, "c++"),
        ("load", True, "python"),
        ("train", True, "python"),
        ("other", True, "python"),
    ]
    report = diagnose(trace)
    assert not report.findings
    [check] = [check for check in report.checks if check.rule == "rank-elsewhere"]
    assert (check.status, check.why) == ("skipped", "no stack trace of a rank's main thread")
