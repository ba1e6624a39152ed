"""TORCH_LOGS text of older versions, and of jobs that print too much."""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import Any

import pytest

from rankscope.model.tables import MISSING, Trace
from rankscope.pipeline import load
from rankscope.read import log_messages
from read.log_lines import JOB, Logger

OLD = "[2023-12-31 23:59:59,896] [0/1] torch._dynamo.{}: [{}] "
SIZE = "0/0: tensor 'x' size mismatch at index 0. expected 8, actual {}"


def loaded(folder: Path, text: str) -> Trace:
    path = folder / "job.log"
    path.write_text(text)
    return load([str(path)])


def rows_of(trace: Trace, table: str) -> list[dict[str, Any]]:
    return list(trace.table(table).rows()) if trace.has(table) else []


def old_message(text: str, logger: str, level: str = "DEBUG", label: str = "") -> str:
    return "".join(f"{label}{OLD.format(logger, level)}{line}\n" for line in text.split("\n"))


def test_recompilations_of_old_versions_name_no_earlier_version(tmp_path: Path) -> None:
    text = f"Recompiling function step in {JOB}:12\n    triggered by the following guard failure(s):\n"
    text += "    - tensor 'L['x']' size mismatch at index 0. expected 8, actual 9\n"
    text += f"    - L['mode'] == 'up'  # if mode == 'up':  # {JOB}:22 in step"
    trace = loaded(tmp_path, old_message(text, "guards.__recompiles"))
    size, mode = rows_of(trace, "recompiles")
    assert (size["against"], size["cause"], size["subject"], size["expected"], size["actual"]) == (
        "",
        "size",
        "x",
        "8",
        "9",
    )
    assert (mode["cause"], mode["subject"], mode["line"]) == ("value", "mode", 22)
    assert (size["compile_id"], size["frame_compile_id"]) == ("0/1", 1)


def test_graph_breaks_of_old_versions_have_the_reason_first(tmp_path: Path) -> None:
    text = "Graph break: call_function print [] {} from user code at:\n"
    text += f'  File "{JOB}", line 31, in step\n    print(loss)\n'
    (broken,) = rows_of(loaded(tmp_path, old_message(text, "symbolic_convert.__graph_breaks")), "graph_breaks")
    assert (broken["reason"], broken["file"], broken["line"]) == ("call_function print [] {}", JOB, 31)
    assert (broken["function"], broken["code"], broken["is_user"]) == ("step", "print(loss)", True)


def test_the_limit_of_old_versions(tmp_path: Path) -> None:
    text = f"torch._dynamo hit config.cache_size_limit (8)\n   function: 'step' ({JOB}:12)\n"
    text += "   last reason: tensor 'L['x']' size mismatch at index 0. expected 9, actual 10\nTo log all recompilation"
    (failed,) = rows_of(loaded(tmp_path, old_message(text, "convert_frame", "WARNING")), "compilations")
    assert (failed["status"], failed["function"], failed["line"]) == ("failed", "step", 12)
    assert "cache_size_limit (currently set to 8)" in failed["fail_reason"]
    assert failed["recompile_reason"] == "tensor 'L['x']' size mismatch at index 0. expected 9, actual 10"


def test_old_lines_tell_the_year_and_no_process(tmp_path: Path) -> None:
    trace = loaded(tmp_path, old_message("create_env", "output_graph", "INFO"))
    (log,) = rows_of(trace, "compile_logs")
    written = datetime.datetime(2023, 12, 31, 23, 59, 59, tzinfo=datetime.timezone.utc)
    assert (log["first_ns"], log["pid"]) == (int(written.timestamp()) * 10**9 + 896_000_000, MISSING)
    (line,) = rows_of(trace, "log_lines")
    assert (line["module"], line["level"], line["module_line"]) == ("torch._dynamo.output_graph", "info", MISSING)


def test_old_lines_of_two_ranks_are_not_taken_for_one_process(tmp_path: Path) -> None:
    text = f"Recompiling function step in {JOB}:12\n    triggered by\n    - L['mode'] == 'up'"
    ranks = [old_message(text, "guards.__recompiles", label=f"[rank{rank}]:").splitlines() for rank in range(2)]
    mixed = "\n".join(line for lines in zip(*ranks, strict=True) for line in lines) + "\n"
    trace = loaded(tmp_path, mixed)
    assert sorted(row["rank"] for row in rows_of(trace, "compilations")) == [0, 1]
    assert sorted(row["rank"] for row in rows_of(trace, "recompiles")) == [0, 1]


def test_of_very_long_logs_only_what_matters_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_messages, "MAX_LINES", 3)
    log = Logger()
    chatter = "".join(log.lines(f"create_env {number}", "0/0", level="I") for number in range(5))
    text = chatter + log.recompile("0/1", SIZE.format(9)) + log.lines("mind", level="W", module="torch/_dynamo/x.py:1")
    trace = loaded(tmp_path, text)
    kept = [row["message"].split("\n")[0] for row in rows_of(trace, "log_lines")]
    assert kept == ["create_env 0", "create_env 1", "create_env 2", f"Recompiling function step in {JOB}:12", "mind"]
    assert rows_of(trace, "compile_logs")[0]["n_records"] == text.count("\n")


def test_a_progress_bar_without_end_does_not_hide_what_follows(tmp_path: Path) -> None:
    bar = "".join(f"\r{number:8} of 200000 [00:00]" for number in range(100_000))
    (failed,) = rows_of(loaded(tmp_path, bar + Logger().recompile("0/1", SIZE.format(9))), "recompiles")
    assert failed["actual"] == "9"


def test_lines_that_are_far_too_long_are_cut_and_messages_stay_whole(tmp_path: Path) -> None:
    log = Logger()
    text = log.lines("x" * 100_000 + "\nlast", "0/0", "graph_code") + log.recompile("0/1", SIZE.format(9))
    trace = loaded(tmp_path, text)
    message = rows_of(trace, "log_lines")[0]["message"]
    assert len(message) < 20_000
    assert message.endswith("\nlast")
    assert len(rows_of(trace, "recompiles")) == 1
