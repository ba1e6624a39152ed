"""Stacks of threads: every form in which they are printed, and what is told apart in them."""

from __future__ import annotations

import faulthandler
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rankscope.errors import BadFileError
from rankscope.model.tables import Table
from rankscope.pipeline import load
from rankscope.read import thread_stacks
from rankscope.read.files import Source, name_source
from read.collected_files import LOADING, SPIED, STALL, TRAINING, WATCHING, stack_section

MAIN = f"Thread 0x0000000000000001 (most recent call first):\n{TRAINING}"
PRINTER = f"Current thread 0x0000000000000002 (most recent call first):\n{WATCHING}"


def read_file(path: Path) -> dict[str, Table]:
    source = name_source(Source(path, str(path), path.stat().st_size))
    assert source is not None
    return {table.name: table for table in thread_stacks.read(replace(source, file_id=0))}


def read_text(folder: Path, text: str, name: str = "stacks_3.txt") -> list[dict[str, Any]]:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return list(read_file(path)["thread_stacks"].rows())


def frames(tables: dict[str, Table], stack: int) -> list[str]:
    known = {row["frame_id"]: row for row in tables["frames"].rows()}
    chosen = [known[row["frame_id"]] for row in tables["stacks"].rows() if row["stack_id"] == stack]
    return [f"{row['function']}:{row['line']}" for row in chosen]


def test_a_section_tells_its_rank_time_and_reason(tmp_path: Path) -> None:
    rows = read_text(tmp_path, stack_section(5, 7, STALL, TRAINING), "left_by_somebody.txt")
    assert {(row["rank"], row["pid"], row["reason"]) for row in rows} == {(5, 4716, STALL)}
    assert rows[0]["time_ns"] == 1_763_294_707_500_000_000
    assert [(row["thread_name"], row["is_current"], row["is_main"], row["line"]) for row in rows] == [
        ("rankscope", True, False, 2),
        ("MainThread", False, True, 8),
    ]


def test_sections_are_counted_and_threads_keep_their_stacks(tmp_path: Path) -> None:
    path = tmp_path / "stacks_1.txt"
    path.write_text(stack_section(1, 0, STALL, LOADING) + stack_section(1, 9, "SIGTERM", TRAINING), encoding="utf-8")
    tables = read_file(path)
    mains = [row for row in tables["thread_stacks"].rows() if row["is_main"]]
    assert [(row["section"], row["reason"]) for row in mains] == [(0, STALL), (1, "SIGTERM")]
    assert frames(tables, mains[0]["stack_id"]) == ["readinto:706", "load_batch:31", "main:66", "<module>:80"]
    sites = [tables["frames"].text("function")[row["site_id"]] for row in mains]
    assert sites == ["load_batch", "average_gradients"]


def test_a_thread_that_is_in_nobodys_code_has_no_site(tmp_path: Path) -> None:
    rows = read_text(tmp_path, stack_section(0, 0, STALL, TRAINING))
    assert rows[0]["site_id"] == -1  # the collector's own thread


def test_without_names_the_oldest_thread_is_the_main_one(tmp_path: Path) -> None:
    rows = read_text(tmp_path, f"{PRINTER}\n{MAIN}")
    assert [row["is_main"] for row in rows] == [False, True]
    assert {row["rank"] for row in rows} == {3}


def test_a_thread_that_c_code_started_is_not_the_main_one(tmp_path: Path) -> None:
    backward = f"Thread 0x0000000000000003 (most recent call first):\n{LOADING}"
    rows = read_text(tmp_path, f"{PRINTER}\n{backward}\n{MAIN}")
    assert [row["is_main"] for row in rows] == [False, False, True]


def test_where_threads_were_left_out_none_is_taken_for_the_main_one(tmp_path: Path) -> None:
    worker = f"Thread 0x0000000000000004 (most recent call first):\n{LOADING}"
    rows = read_text(tmp_path, f"{PRINTER}\n{worker}...\n")
    assert [row["is_main"] for row in rows] == [False, False]


def test_a_thread_that_comes_again_begins_a_section_that_had_no_header(tmp_path: Path) -> None:
    rows = read_text(tmp_path, f"{stack_section(3, 0, STALL, TRAINING)}{PRINTER}\n{MAIN}\n{PRINTER}\n{MAIN}")
    assert [row["section"] for row in rows] == [0, 0, 0, 0, 1, 1]
    assert {row["rank"] for row in rows} == {3}
    assert rows[-1]["time_ns"] == -1


@pytest.mark.parametrize("heading", ["Timeout (0:05:00)!", "Fatal Python error: Segmentation fault"])
def test_what_faulthandler_prints_by_itself_is_a_section(heading: str, tmp_path: Path) -> None:
    rows = read_text(tmp_path, f"{stack_section(3, 0, STALL, TRAINING)}{heading}\n\n{MAIN}")
    assert [(row["section"], row["reason"]) for row in rows][-1] == (1, heading)


def test_a_file_of_the_debug_server_has_all_ranks(tmp_path: Path) -> None:
    text = f"2 of 3 answered\n\n=== Rank 0: http://a:1 ===\n{PRINTER}\n{MAIN}\n=== Rank 1: http://b:1 ===\n{PRINTER}\n"
    text += f"Thread 0x0000000000000001 (most recent call first):\n{LOADING}\n=== Rank 2: http://c:1 ===\nError: 500"
    path = tmp_path / "stacks_20251116_120500.txt"
    path.write_text(text, encoding="utf-8")
    assert thread_stacks.sniff(path.read_bytes(), path.name)
    tables = read_file(path)
    assert [row["rank"] for row in tables["thread_stacks"].rows() if row["is_main"]] == [0, 1]
    assert set(tables["thread_stacks"].array("time_ns").tolist()) == {1_763_294_700_000_000_000}
    assert [(row["rank"], row["status"]) for row in tables["files"].rows()] == [(-1, "read")]


def test_py_spy_within_a_file_of_the_debug_server(tmp_path: Path) -> None:
    rows = read_text(tmp_path, f"=== Rank 0: http://a:1 ===\n{SPIED}\n=== Rank 1: http://b:1 ===\n{SPIED}")
    assert [(row["rank"], row["pid"], row["thread_name"]) for row in rows if row["is_main"]] == [
        (0, 4713, "MainThread"),
        (1, 4713, "MainThread"),
    ]


def test_py_spy_frames_with_and_without_lines(tmp_path: Path) -> None:
    path = tmp_path / "pyspy_2.txt"
    path.write_text(SPIED, encoding="utf-8")
    tables = read_file(path)
    main, worker = tables["thread_stacks"].rows()
    assert frames(tables, main["stack_id"]) == ["__GI___poll:0", "all_reduce:2872", "average_gradients:40", "main:71",
                                                "<module>:80"]  # fmt: skip
    assert tables["frames"].text("function")[main["site_id"]] == "average_gradients"
    assert worker["thread_id"] == "4720"


def test_frames_of_python_and_c_together(tmp_path: Path) -> None:
    path = tmp_path / "stacks_0.txt"
    unwound = "#0 c10d::wait() from /pytorch/c10d/Work.cpp:12\n#1 step(int, x) from /job/train.py:9\n#2 ?? from ??:0\n"
    path.write_text(f"{unwound}\n{unwound}", encoding="utf-8")
    assert thread_stacks.sniff(path.read_bytes(), "any")
    tables = read_file(path)
    first, second = tables["thread_stacks"].rows()
    assert first["stack_id"] == second["stack_id"]
    assert frames(tables, first["stack_id"]) == ["c10d::wait():12", "step(int, x):9", "??:0"]
    assert tables["frames"].text("function")[first["site_id"]] == "step(int, x)"


def test_what_faulthandler_prints_here(tmp_path: Path) -> None:
    """The real thing, of this version of Python: a stuck worker, the printing thread, and the main one."""
    script = tmp_path / "job.py"
    script.write_text(
        "import faulthandler, sys, threading, time\n"
        "def work(): time.sleep(30)\n"
        "def tell(): faulthandler.dump_traceback(sys.stderr, all_threads=True)\n"
        "def train(): printer.join()\n"
        "threading.Thread(target=work, daemon=True).start()\n"
        "printer = threading.Thread(target=tell, daemon=True)\n"
        "def begin(): printer.start(); train()\n"
        "begin()\n",
        encoding="utf-8",
    )
    printed = subprocess.run([sys.executable, script], capture_output=True, check=True, timeout=60).stderr
    path = tmp_path / "stacks_0.txt"
    path.write_bytes(printed)
    assert thread_stacks.sniff(printed, "any")
    tables = read_file(path)
    rows = list(tables["thread_stacks"].rows())
    assert [row["is_current"] for row in rows] == [True, False, False]
    functions = [tables["frames"].text("function")[row["site_id"]] for row in rows if row["is_main"]]
    assert functions[0] in ("begin", "train")


def test_this_process_prints_its_main_thread_last(tmp_path: Path) -> None:
    """What telling the main thread without a name rests on."""
    ready, done = threading.Event(), threading.Event()

    def wait() -> None:
        ready.set()
        done.wait(30)

    worker = threading.Thread(target=wait)
    worker.start()
    ready.wait(30)
    path = tmp_path / "stacks_0.txt"
    with path.open("wb") as file:
        faulthandler.dump_traceback(file, all_threads=True)
    done.set()
    worker.join()
    main = [row["thread_id"] for row in read_file(path)["thread_stacks"].rows() if row["is_main"]]
    assert [int(number, 16) for number in main] == [threading.main_thread().ident]


def test_a_cut_line_is_told_and_the_rest_is_used(tmp_path: Path) -> None:
    path = tmp_path / "stacks_0.txt"
    path.write_text(stack_section(0, 0, STALL, TRAINING).rstrip()[:-5], encoding="utf-8")
    tables = read_file(path)
    assert [row["status"] for row in tables["files"].rows()] == ["damaged"]
    assert len(tables["thread_stacks"]) == 2


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("stacks_0.txt", stack_section(0, 0, STALL, "").partition("\n")[0] + "\n", "no thread stacks"),
        ("stacks.txt", MAIN, "no rank"),
    ],
)
def test_what_tells_nothing_is_refused(name: str, text: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(BadFileError, match=message) as caught:
        read_text(tmp_path, text, name)
    assert caught.value.hint


def test_a_jobs_own_log_with_stacks_in_it_is_not_taken() -> None:
    assert not thread_stacks.sniff(f"step 1 loss 0.5\n{MAIN}".encode(), "rank_0.log")


def test_stacks_and_dumps_share_one_numbering(tmp_path: Path) -> None:
    for rank, main in ((0, TRAINING), (1, LOADING)):
        (tmp_path / f"stacks_{rank}.txt").write_text(stack_section(rank, 0, STALL, main), encoding="utf-8")
    (tmp_path / "stacks_0.txt.77.partial").write_text("unfinished", encoding="utf-8")
    trace = load(tmp_path)
    mains = [row for row in trace.table("thread_stacks").rows() if row["is_main"]]
    functions = trace.table("frames").text("function")
    assert [functions[row["site_id"]] for row in mains] == ["average_gradients", "load_batch"]
    statuses = {row["path"].rsplit("/", 1)[-1]: row["status"] for row in trace.table("files").rows()}
    assert statuses["stacks_0.txt.77.partial"] == "ignored"
