"""A job's output -> log_events: whose line it is, when it was written, what it says; and no text can do harm."""

from __future__ import annotations

import gzip
import time
from pathlib import Path

import pytest

from analyze.log_texts import closed, failed, traceback
from rankscope.simulate.job_log import LogJob, text_of
from read.log_events_of import events, one

WATCHDOG = (
    "[rank3]:[E1118 10:10:00.123456789 ProcessGroupNCCL.cpp:632] [Rank 1] Watchdog caught collective operation "
    "timeout: WorkNCCL(SeqNum=17, OpType=ALLREDUCE, NumelIn=8192, NumelOut=8192, Timeout(ms)=600000) ran for 600020 "
    "milliseconds before timing out.\n"
)


def test_a_watchdog_line_has_its_numbers_time_and_global_rank(tmp_path: Path) -> None:
    event = one(tmp_path / "job", WATCHDOG)
    assert (event["kind"], event["rank"], event["rank_from"], event["line"]) == ("watchdog-timeout", 3, "prefix", 1)
    wanted = {"seq": 17, "op": "ALLREDUCE", "n_in": 8192, "n_out": 8192, "timeout_ms": 600000, "ran_ms": 600020}
    assert wanted.items() <= event["fields"].items()
    assert time.gmtime(event["time_ns"] / 1e9)[:6] == (2026, 11, 18, 10, 10, 0)


@pytest.mark.parametrize(
    "before",
    [
        *("3: ", "[default3]:", "2026-11-18T10:10:01Z ", "[pod/train-worker-1/main] ", "\x1b[36m(Train pid=7)\x1b[0m "),
        *("(Train pid=7, ip=10.0.0.3) ", "2026-11-18T10:10:01.5+08:00 stdout F ", "\r 30%|###   | 3/10\r", "[80746] "),
    ],
)
def test_prefixes_of_launchers_and_collectors_stack(tmp_path: Path, before: str) -> None:
    event = one(tmp_path / "job", before + WATCHDOG)
    assert (event["kind"], event["rank"]) == ("watchdog-timeout", 3)


def test_colors_line_ends_and_packing_change_nothing(tmp_path: Path) -> None:
    plain = events(tmp_path / "plain", text_of(LogJob("exception")))
    text = text_of(LogJob("exception"))
    variants = {
        "crlf": text.replace("\n", "\r\n").encode(),
        "color": text.replace("[rank", "\x1b[31m[rank").encode(),
        "packed.gz": gzip.compress(text.encode()),
    }
    for name, content in variants.items():
        same = events(tmp_path / name, content)
        assert [(row["kind"], row["rank"], row["line"]) for row in same] == [
            (row["kind"], row["rank"], row["line"]) for row in plain
        ], name


def test_a_wrapped_line_is_put_together(tmp_path: Path) -> None:
    wrapped = WATCHDOG[:180] + "\n" + WATCHDOG[180:]
    assert one(tmp_path / "job", wrapped)["fields"]["seq"] == 17


def test_two_ranks_on_one_line_are_two_events(tmp_path: Path) -> None:
    text = WATCHDOG.rstrip("\n") + WATCHDOG.replace("[rank3]", "[rank5]")
    assert [event["rank"] for event in events(tmp_path / "job", text)] == [3, 5]


def test_interleaved_tracebacks_stay_apart(tmp_path: Path) -> None:
    mixed = [
        line
        for pair in zip(closed(0).splitlines(), traceback(2, "KeyError: 'a'").splitlines(), strict=True)
        for line in pair
    ]
    rows = events(tmp_path / "job", "\n".join(mixed) + "\n")
    assert {(row["rank"], row["fields"]["type"]) for row in rows} == {(0, "RuntimeError"), (2, "KeyError")}


@pytest.mark.parametrize(
    ("name", "rank"),
    [("run_1/attempt_0/2/stderr.log", 2), ("logs/rank_5.err", 5), ("slurm-812.out", -1), ("train_node7.log", -1)],
)
def test_the_rank_of_a_bare_traceback_comes_from_the_file_or_is_unknown(tmp_path: Path, name: str, rank: int) -> None:
    text = traceback(0, "KeyError: 'a'").replace("[rank0]: ", "")
    assert one(tmp_path / name, text)["rank"] == rank


def test_the_agent_s_line_is_of_the_process_that_failed(tmp_path: Path) -> None:
    event = one(tmp_path / "job", failed(1, -9))
    assert (event["kind"], event["rank"], event["fields"]["exit_code"]) == ("exit", 1, -9)


HOSTILE = {
    "one line": b"Error " * 400_000,
    "no line end": b"[rank0]:" * 300_000,
    "prefixes": b"[default0]:[rank0]:[E1118 " * 100_000,
    "fingerprints": b"Rank 1 is running collective: CollectiveFingerPrint(" * 40_000,
    "digits": b"Error SeqNum=" + b"9" * 2_000_000,
    "frames": b"Traceback (most recent call last):\n" + b'  File "a", line 1, in f\n' * 80_000,
    "headings": b"Traceback (most recent call last):\n" * 60_000,
    "escapes": b"\x1b[" * 500_000 + b"Error\n",
    "not utf-8": bytes(range(256)) * 8_000 + b"Killed\n",
    "spaces": b"Error" + b" " * 2_000_000,
    "returns": b"Error\r" * 300_000,
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_text_takes_linear_time_and_few_rows(tmp_path: Path, name: str) -> None:
    """Compared with half of it, in CPU time: what explodes takes many times as long."""
    content = HOSTILE[name]
    used = []
    for part in (content[: len(content) // 2], content):
        begin = time.process_time()
        rows = events(tmp_path / "odd", part)
        used.append(time.process_time() - begin)
        assert len(rows) <= 60_000
    assert used[1] < 8 * used[0] + 2


def test_unknown_lines_are_dropped_while_reading(tmp_path: Path) -> None:
    text = "".join(f"step {step} loss 2.0\n" for step in range(50_000)) + WATCHDOG
    assert one(tmp_path / "job", text)["line"] == 50_001
