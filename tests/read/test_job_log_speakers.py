"""Whose line it is and when it was written, for every prefix, file layout and damage; unknown where nothing says it."""

# ruff: noqa: E501  (the messages are whole lines)
from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from analyze.log_texts import traceback
from read.log_events_of import events, one

A = (
    "[Rank 1] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=17, OpType=ALLREDUCE, NumelIn=8192, "
    "NumelOut=8192, Timeout(ms)=600000) ran for 600020 milliseconds before timing out.\n"
)
C10 = "[rank3]:[E1118 10:10:00.123456789 ProcessGroupNCCL.cpp:632] "
BARE = traceback(0, "KeyError: 'a'").replace("[rank0]: ", "")


def lines_of(prefix: str, text: str) -> str:
    return "".join(f"{prefix}{line}\n" for line in text.splitlines())


@pytest.mark.parametrize(
    ("before", "rank"),
    [
        ("[rank12]:[E817 10:10:00.123456789 ProcessGroupNCCL.cpp:632] ", 12),
        ("[rank12]:[E ProcessGroupNCCL.cpp:475] ", 12),
        ("[E ProcessGroupNCCL.cpp:828] ", 1),  # the watchdog's own [Rank 1] is all there is
        ("E1118 10:10:00.123456 812 ProcessGroupNCCL.cpp:632] ", 1),
        ("[default0]:[rank12]:[E817 10:10:00.1 ProcessGroupNCCL.cpp:632] ", 12),
        ("(Trainer[rank=12] pid=812) ", 12),
        ("(Worker rank=3 pid=812) [rank12]:", 12),
        ("  5: [rank12]:", 12),
        ("gpu-3: [rank12]:", 12),
        ("[1,12]<stderr>:", 12),
        ("[rank: 12] ", 12),
        ("[RANK 12] ", 12),
        ("[2026-11-18 10:00:00,123] [INFO] [engine.py:30:step] [Rank 12] ", 12),
        ("[2026-11-18 10:00:00 TP0 EP0] [rank12]:", 12),
        ("[ERROR] 2026-11-18-10:00:00 (PID:812, Device:3, RankID:12) ", 12),
        ("[80746] [rank12]:", 12),
        ("1784] [rank12]:", 12),
        (" 30%|###   | 3/10 [00:01<00:02,  1.2it/s][rank12]:[E817 10:10:00.1 ProcessGroupNCCL.cpp:632] ", 12),
        ("step 12 lo[default1]:[rank12]:[E817 10:10:00.1 ProcessGroupNCCL.cpp:632] ", 12),
    ],
)
def test_the_global_rank_is_the_prefix_nearest_to_the_message(tmp_path: Path, before: str, rank: int) -> None:
    assert one(tmp_path / "job", before + A)["rank"] == rank


def test_a_watchdog_s_own_rank_is_not_believed_beside_global_ranks(tmp_path: Path) -> None:
    """It is a rank inside of a group."""
    unknown, known = events(tmp_path / "job", f"[E ProcessGroupNCCL.cpp:828] {A}{C10}{A}")
    assert (unknown["rank"], known["rank"], known["rank_from"]) == (-1, 3, "prefix")


def test_two_streams_with_the_same_own_rank_are_of_two_groups(tmp_path: Path) -> None:
    text = f"(Train pid=7, ip=10.0.0.1) {A}(Train pid=8, ip=10.0.0.2) {A}"
    assert [event["rank"] for event in events(tmp_path / "job", text)] == [-1, -1]


def test_a_tee_s_number_is_local_where_a_line_shows_another_rank(tmp_path: Path) -> None:
    text = f"[default0]:[rank8]: started\n{lines_of('[default1]:', BARE)}[default1]:[rank9]: Error\n"
    assert [event["rank"] for event in events(tmp_path / "job", text)] == [9]
    unknown = f"[default0]:[rank8]:NCCL error: invalid usage\n{lines_of('[default1]:', BARE)}"
    [first, second] = events(tmp_path / "job", unknown)
    assert (second["rank"], second["local_rank"]) == (-1, 1)
    assert first["rank"] == 8


def test_numbers_before_a_few_lines_are_no_task(tmp_path: Path) -> None:
    text = "".join(f"step {step}\n" for step in range(20)) + lines_of("3: ", "Killed")
    assert [event["rank"] for event in events(tmp_path / "job", text)] == [-1]


def test_nccl_s_lines_show_the_rank_of_a_process(tmp_path: Path) -> None:
    init = (
        "gpu-3:{pid}:9 [0] NCCL INFO comm 0x5 rank {rank} nranks {n} cudaDev 0 busId 4d000 commId 0x9 - Init COMPLETE\n"
    )
    world = "".join(init.format(pid=700 + rank, rank=rank, n=4) for rank in range(4))
    pair = "".join(init.format(pid=700 + rank, rank=rank % 2, n=2) for rank in range(4))
    warn = "gpu-3:702:9 [0] init.cc:9 NCCL WARN something\n"
    event = events(tmp_path / "job", world + pair + warn)[-1]
    assert (event["kind"], event["rank"], event["rank_from"], event["host"]) == ("nccl-warn", 2, "process", "gpu-3")
    assert events(tmp_path / "job", pair + "[rank3]: Error\n" + warn)[-1]["rank"] == -1  # two groups of two


def test_ray_says_how_many_lines_it_left_out(tmp_path: Path) -> None:
    event = one(tmp_path / "job", f"(Train pid=7) {C10}{A.rstrip()} [repeated 7x across cluster]\n")
    assert (event["rank"], event["fields"]["n_merged"]) == (3, 7)


def test_torchrun_s_error_file_has_the_traceback_and_its_time(tmp_path: Path) -> None:
    details = {"py_callstack": BARE, "timestamp": "1795000000"}
    content = json.dumps({"message": {"message": "KeyError: 'a'", "extraInfo": details}})
    event = one(tmp_path / "run_x" / "attempt_1" / "2" / "error.json", content)
    assert (event["kind"], event["rank"], event["local_rank"], event["attempt"]) == ("traceback", 2, 2, 1)
    assert (event["fields"]["type"], event["time_ns"]) == ("KeyError", 1_795_000_000 * 10**9)


@pytest.mark.parametrize("name", ["train-worker-1.log", "slurm-812_3.out", "node3.err"])
def test_a_file_s_name_that_may_mean_a_node_is_no_rank(tmp_path: Path, name: str) -> None:
    assert one(tmp_path / name, BARE)["rank"] == -1


def utc(event: dict[str, int]) -> tuple[int, ...]:
    return time.gmtime(event["time_ns"] / 1e9)[:5]


def test_a_zone_is_learned_from_lines_with_two_stamps(tmp_path: Path) -> None:
    collected = f"2026-11-18T02:10:01.5Z {C10}{A}"
    first, second = events(tmp_path / "job", collected + C10.replace("rank3", "rank4") + A)
    assert utc(first) == utc(second) == (2026, 11, 18, 2, 10)
    assert utc(one(tmp_path / "job", f"2026-11-18T10:10:01.5+08:00 {C10}{A}")) == (2026, 11, 18, 2, 10)


def test_the_year_is_that_of_a_dated_line(tmp_path: Path) -> None:
    text = f"{C10.replace('1118', '1231')}{A}[2024-01-01 00:05:00,123] torch.distributed.run: [ERROR] Error Killed\n"
    assert utc(events(tmp_path / "job", text)[0]) == (2023, 12, 31, 10, 10)
    assert utc(one(tmp_path / "job", C10.replace("1118", "1231") + A)) == (2025, 12, 31, 10, 10)  # before the file's
    assert utc(one(tmp_path / "job", C10.replace("1118", "321") + A)) == (2026, 3, 21, 10, 10)


@pytest.mark.parametrize("width", [60, 80, 97, 120, 200])
def test_lines_wrapped_at_any_width_are_put_together(tmp_path: Path, width: int) -> None:
    status = (
        "[PG ID 0 PG GUID 0(default_pg) Rank 3]  failure detected by watchdog at work sequence id: 17 PG status: last "
        "enqueued work: 31, last completed work: 16"
    )
    text = "".join(
        line[at : at + width] + "\n"
        for line in (C10 + A.strip(), C10 + status, "step 1", "[rank4]: step 2")
        for at in range(0, len(line), width)
    )
    first, second = events(tmp_path / "job", text)
    assert (first["fields"]["seq"], first["fields"]["ran_ms"]) == (17, 600020)
    assert (second["fields"]["enqueued"], second["fields"]["completed"]) == (31, 16)


def test_a_number_cut_by_the_terminal_is_whole(tmp_path: Path) -> None:
    text = (
        f"{C10}[PG 0 Rank 3] Timeout at NCCL work: 17, last enqueued NCCL work: 31, last completed NCCL work: 1\n6.\n"
    )
    assert one(tmp_path / "job", text)["fields"]["completed"] == 16


def test_half_a_message_does_not_take_the_next_speaker_s_words(tmp_path: Path) -> None:
    cut = (C10 + A)[:190]
    first, second = events(tmp_path / "job", f"{cut}\n[rank5]:[E1118 10:10:00.1 ProcessGroupNCCL.cpp:632] {A}")
    assert (first["rank"], first["fields"]["seq"], "ran_ms" in first["fields"]) == (3, 17, False)
    assert (second["rank"], second["fields"]["ran_ms"]) == (5, 600020)


def test_a_wrapped_frame_is_put_together(tmp_path: Path) -> None:
    text = BARE.replace("train.py", "tra\nin.py")
    assert one(tmp_path / "job", text)["fields"]["place"]["file"] == "/home/user/train.py"


def test_a_worker_s_own_traceback_has_the_line(tmp_path: Path) -> None:
    text = (
        "Traceback (most recent call last):\n"
        '  File "/home/user/train.py", line 9, in main\n    for batch in loader:\n'
        '  File "/usr/lib/python3.11/site-packages/torch/_utils.py", line 733, in reraise\n    raise exception\n'
        "KeyError: Caught KeyError in DataLoader worker process 0.\n"
        "Original Traceback (most recent call last):\n"
        '  File "/usr/lib/python3.11/site-packages/torch/utils/data/_utils/worker.py", line 349, in _worker_loop\n'
        '  File "/home/user/data.py", line 31, in __getitem__\n    return self.samples[index]["tokens"]\n'
        "KeyError: 'tokens'\n"
    )
    fields = one(tmp_path / "job", text)["fields"]
    assert (fields["place"]["file"], fields["place"]["line"], fields["message"]) == (
        "/home/user/data.py",
        31,
        "'tokens'",
    )


def test_a_traceback_in_a_box(tmp_path: Path) -> None:
    text = (
        "╭───── Traceback (most recent call last) ─────╮\n"
        "│ /home/user/train.py:88 in load_batch        │\n│                                             │\n"
        "│ ❱ 88 │   return samples[index]              │\n╰─────────────────────────────────────────────╯\n"
        "KeyError: 'tokens'\n"
    )
    fields = one(tmp_path / "job", text)["fields"]
    assert (fields["type"], fields["place"]["file"], fields["place"]["line"]) == ("KeyError", "/home/user/train.py", 88)


def test_two_jobs_in_one_file_are_two_attempts(tmp_path: Path) -> None:
    table = (
        "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: \n=====\ntrain.py FAILED\n-----\nFailures:\n"
        "  <NO_OTHER_FAILURES>\n-----\nRoot Cause (first observed failure):\n[0]:\n  time      : 2026-11-18_10:00:00\n"
        "  host      : gpu-3\n  rank      : 1 (local_rank: 1)\n  exitcode  : 1 (pid: {pid})\n  error_file: <N/A>\n"
        "  traceback : To enable traceback see: x\n=====\n"
    )
    job = traceback(1, "KeyError: 'a'")
    rows = events(tmp_path / "job", job + table.format(pid=41) + job + table.format(pid=51))
    assert [(row["kind"], row["attempt"]) for row in rows] == [
        *(("traceback", 0), ("exit", 0), ("traceback", 1), ("exit", 1)),
    ]
