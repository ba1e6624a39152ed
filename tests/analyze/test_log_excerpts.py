"""Excerpts of the kinds that people paste: each has the verdict of a careful reader, or says that it cannot."""

# ruff: noqa: E501  (the messages are whole lines)
from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import pytest

from analyze.log_texts import closed, failed, lost, traceback
from analyze.test_log_mistakes import timed_out, told_to_dump
from analyze.test_log_verdicts import findings, only
from rankscope.model.finding import Action, Certainty


class Excerpt(NamedTuple):
    text: str
    code: str
    ranks: tuple[int, ...]
    certainty: Certainty
    action: Action
    words: str  # of the title


PLAIN = 'Traceback (most recent call last):\n  File "/home/user/train.py", line 61, in step\n    run()\n'
LAUNCHER = 'Traceback (most recent call last):\n  File "/opt/bin/accelerate", line 8, in <module>\n    main()\n'
STUCK = "[rank{}]:[E1118 10:08:00.0 ProcessGroupNCCL.cpp:1743] [PG ID 0 PG GUID 0(default_pg) Rank {}] ProcessGroupNCCL's watchdog got stuck for 480 seconds without making progress\n"
BARRIER = "Timed out initializing process group in store based barrier on rank: {}, for key: store_based_barrier_key:{} (world_size={}, worker_count={}, timeout=0:30:00)\n"
MISMATCH = "Detected mismatch between collectives on ranks. Rank 1 is running collective: CollectiveFingerPrint(SequenceNumber=3, OpType=ALLREDUCE, TensorShape=[8]), but Rank 0 is running collective: CollectiveFingerPrint(SequenceNumber=3, OpType=ALLREDUCE, TensorShape=[9]).Collectives differ"
DEEPSPEED = "[2026-11-18 10:00:00,123] [INFO] [launch.py:319:sigkill_handler] Killing subprocess 812\n[2026-11-18 10:00:00,223] [ERROR] [launch.py:325:sigkill_handler] ['python', 'train.py', '--local_rank=3'] exits with return code = {}\n"
VLLM = "(VllmWorker rank=2 pid=410) ERROR 11-18 10:00:00 [multiproc_executor.py:487] "
ENGINE = "ERROR 11-18 10:00:04 [core.py:586] "


def table(*exits: tuple[int, int, str]) -> str:
    """torchrun's last word: rank, exit code and second."""
    blocks = [
        f"[{number}]:\n  time      : 2026-11-18_10:{second}\n  host      : gpu-3\n  rank      : {rank} (local_rank: {rank})\n"
        f"  exitcode  : {code} (pid: {4001 + rank})\n  error_file: <N/A>\n  traceback : To enable traceback see: x\n"
        for number, (rank, code, second) in enumerate(exits)
    ]
    head = "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: \n=====\ntrain.py FAILED\n-----\nFailures:\n"
    return head + "".join(blocks[1:]) + "-----\nRoot Cause (first observed failure):\n" + blocks[0] + "=====\n"


EXCERPTS = {
    "all watchdogs stuck": Excerpt(
        "".join(STUCK.format(rank, rank) for rank in range(4)), "H138", (), "certain", "collect-more", "does not show"
    ),
    "one watchdog stuck": Excerpt(
        "[rank0]: step\n[rank1]: step\n[rank2]: step\n" + STUCK.format(3, 3),
        "H134",
        (3,),
        "possible",
        "collect-more",
        "watchdog thread",
    ),
    "dump signals alone": Excerpt(
        told_to_dump(1, 0, 40) + told_to_dump(0, 1, 40), "H138", (), "certain", "collect-more", "does not show"
    ),
    "told, but had enqueued it": Excerpt(
        timed_out(0) + timed_out(1) + told_to_dump(2, 1, 17), "H138", (), "certain", "collect-more", "does not show"
    ),
    "launcher saw SIGKILL": Excerpt(
        f"{LAUNCHER}subprocess.CalledProcessError: Command '['python', 'train.py']' died with <Signals.SIGKILL: 9>.\n",
        "H131",
        (),
        "likely",
        "collect-more",
        "SIGKILL",
    ),
    "launcher saw exit 1 of what raised": Excerpt(
        f"{PLAIN}KeyError: 'a'\n{LAUNCHER}subprocess.CalledProcessError: Command 'x' returned non-zero exit status 1.\n",
        "H130",
        (),
        "certain",
        "fix-first",
        "KeyError",
    ),
    "deepspeed SIGKILL": Excerpt(DEEPSPEED.format(-9), "H131", (), "likely", "collect-more", "SIGKILL"),
    "deepspeed SIGBUS": Excerpt(DEEPSPEED.format(-7), "H131", (), "likely", "fix-first", "SIGBUS"),
    "deepspeed exit 1": Excerpt(DEEPSPEED.format(1), "H131", (), "likely", "collect-more", "with code 1"),
    "killed by the launcher half a minute later": Excerpt(
        table((1, 1, "02:58"), (3, 1, "02:58"), (0, -9, "03:29")),
        "H131",
        (1, 3),
        "likely",
        "collect-more",
        "with code 1",
    ),
    "lightning saw a child end": Excerpt(
        "[rank: 3] Received SIGTERM: 15\n[rank: 0] Child process with PID 812 terminated with code 1. Forcefully\n",
        "H131",
        (),
        "likely",
        "collect-more",
        "process 812",
    ),
    "ray lost a worker": Excerpt(
        "(Train pid=812) [rank5]: step 7\n(raylet) A worker died Worker IP address: 10.0.0.4 Worker port: 1 Worker PID: 812 Worker exit type: SYSTEM_ERROR Worker exit detail: x\n",
        "H131",
        (5,),
        "likely",
        "collect-more",
        "died without",
    ),
    "slurm names the task": Excerpt(
        "slurmstepd: error: Detected 1 oom_kill event in StepId=8.0. Some of the\nsrun: error: gpu-3: task 4: Out Of Memory\n",
        "H131",
        (4,),
        "certain",
        "fix-first",
        "memory limit",
    ),
    "requeued": Excerpt(
        "slurmstepd: error: *** JOB 8 ON gpu-3 CANCELLED AT 2026-11-18T10:00:00 DUE TO JOB REQUEUE ***\n",
        "H132",
        (),
        "certain",
        "restart",
        "queue",
    ),
    "CUDA has no memory": Excerpt(
        f"{PLAIN}RuntimeError: CUDA error: out of memory\n", "H130", (), "likely", "fix-first", "out of memory"
    ),
    "NVLink": Excerpt(
        f"{PLAIN}RuntimeError: CUDA error: uncorrectable NVLink error detected\n",
        "H133",
        (),
        "likely",
        "restart",
        "NVLink",
    ),
    "ECC, met by the watchdog": Excerpt(
        "[rank12]:[E817 17:40:34.2 ProcessGroupNCCL.cpp:1515] [PG 0 (default_pg) Rank 12] Process group watchdog thread terminated with exception: CUDA error: uncorrectable ECC error encountered\n",
        "H133",
        (12,),
        "certain",
        "restart",
        "ECC",
    ),
    "asserts alone": Excerpt(
        "/pytorch/Loss.cu:250: nll_loss: block: [0,0,0], thread: [0,0,0] Assertion `t >= 0 && t < n_classes` failed.\n"
        * 3,
        "H133",
        (),
        "likely",
        "fix-first",
        "n_classes",
    ),
    "C++ died of a CUDA error": Excerpt(
        "terminate called after throwing an instance of 'c10::CUDAError'\n  what():  CUDA error: device-side assert triggered\n",
        "H133",
        (),
        "certain",
        "fix-first",
        "assert",
    ),
    "port": Excerpt(
        f"{PLAIN}torch.distributed.DistNetworkError: The server socket has failed to listen on any local network address. port: 29500, useIpv6: 0, code: -98, name: EADDRINUSE, message: address already in use\n",
        "H130",
        (),
        "likely",
        "fix-first",
        "29500",
    ),
    "shared memory": Excerpt(
        "step 7\nERROR: Unexpected bus error encountered in worker. This might be caused by insufficient shared memory (shm).\n",
        "H130",
        (),
        "likely",
        "fix-first",
        "shared memory",
    ),
    "NaN names its rank": Excerpt(
        f"{PLAIN}AssertionError: Rank 11: found NaN in local grad norm in backward pass\n",
        "H130",
        (11,),
        "likely",
        "fix-first",
        "NaN",
    ),
    "one of two joined": Excerpt(
        f"{PLAIN}RuntimeError: {BARRIER.format(0, 1, 2, 1)}",
        "H137",
        (1,),
        "likely",
        "collect-more",
        "did not join the job",
    ),
    "half of a new group": Excerpt(
        f"{PLAIN}RuntimeError: {BARRIER.format(7, 32, 8, 4)}",
        "H137",
        (),
        "likely",
        "collect-more",
        "a new process group",
    ),
    "more joined than there are": Excerpt(
        f"{PLAIN}RuntimeError: {BARRIER.format(2, 1, 4, 16)}", "H137", (), "likely", "fix-first", "share one store"
    ),
    "two sides of a mismatch": Excerpt(
        traceback(1, f"RuntimeError: {MISMATCH}"), "H135", (0, 1), "certain", "fix-first", "made calls"
    ),
    "a serving worker": Excerpt(
        "".join(
            f"{VLLM}{line}\n"
            for line in (*PLAIN.splitlines(), "RuntimeError: NCCL error: unhandled cuda error (run with")
        )
        + "".join(f"{ENGINE}{line}\n" for line in (*PLAIN.splitlines(), "Exception: WorkerProc initialization failed")),
        "H130",
        (2,),
        "likely",
        "fix-first",
        "unhandled cuda error",
    ),
    "link": Excerpt(
        lost("gpu-3", 812, "10.0.0.4") + lost("gpu-3", 812, "10.0.0.4", 5),
        "H139",
        (),
        "likely",
        "restart",
        "between gpu-3 and 10.0.0.4",
    ),
    "links of one host": Excerpt(
        lost("gpu-3", 812, "10.0.0.4") + lost("gpu-3", 813, "10.0.0.5"),
        "H139",
        (),
        "likely",
        "restart-without",
        "with gpu-3",
    ),
    "link, and everybody waits": Excerpt(
        lost("gpu-3", 812, "10.0.0.4") + timed_out(0) + timed_out(1),
        "H139",
        (),
        "likely",
        "restart",
        "lost the connection",
    ),
    "a logged traceback of a victim": Excerpt(
        f"[2026-11-18 10:00:00 TP4] Scheduler hit an exception: {PLAIN}RuntimeError: [/gloo/transport/tcp/pair.cc:534] Connection closed by peer [10.0.0.2]:35\n\n",
        "H138",
        (),
        "certain",
        "collect-more",
        "does not show",
    ),
    "begins inside of a traceback": Excerpt(
        "ning/loop.py\", line 4, in step\n    y = x['a']\nKeyError: 'a'\n" + failed(0, 1),
        "H130",
        (),
        "certain",
        "fix-first",
        "KeyError",
    ),
    "out of memory, its traceback cut off": Excerpt(
        "[rank2]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 336.00 MiB. GPU 2 has\n"
        + timed_out(0)
        + timed_out(1)
        + timed_out(3),
        "H130",
        (2,),
        "likely",
        "fix-first",
        "out of memory",
    ),
    "Ascend, a peer is late": Excerpt(
        traceback(1, "RuntimeError: OPS function error: HcclAllreduce, error code is 6")
        + "[rank1]: [ERROR] 2026-11-18-10:00:00 (PID:8, Device:1, RankID:1) ERR01100 OPS call acl api failed.\n[rank1]: EI0006: [PID: 8] Getting socket times out.\n",
        "H138",
        (),
        "certain",
        "collect-more",
        "does not show",
    ),
    "Ascend, a process is left over": Excerpt(
        traceback(1, "RuntimeError: [ERROR] HCCL error in: ProcessGroupHCCL.cpp:64")
        + "[rank1]: EJ0001: Failed to initialize the HCCP process.\n",
        "H130",
        (1,),
        "certain",
        "fix-first",
        "HCCL",
    ),
    "a peer cannot be reached": Excerpt(
        "gpu-3:812:900 [0] misc/socket.cc:483 NCCL WARN socketStartConnect: Connect to 10.0.0.4<45763> failed : Software caused\n",
        "H138",
        (),
        "certain",
        "collect-more",
        "does not show",
    ),
    "the store cannot be reached": Excerpt(
        f"{PLAIN}torch.distributed.DistNetworkError: The client socket has timed out after 60000ms while trying to connect to (10.0.0.9, 29500).\n",
        "H137",
        (),
        "likely",
        "collect-more",
        "10.0.0.9",
    ),
    "the watchdog of a waiting rank lost its prefix": Excerpt(
        timed_out(3).splitlines()[0].partition("] ")[2].replace("[Rank 0]", "[Rank 3]")
        + "\n"
        + timed_out(0)
        + timed_out(1)
        + timed_out(4),
        "H134",
        (2,),
        "possible",
        "collect-more",
        "while its peers timed out",
    ),
    "its first bracket is cut": Excerpt(
        timed_out(1)[1:] + timed_out(0) + timed_out(2), "H136", (), "likely", "collect-more", "no rank is missing"
    ),
    "the output's size differs": Excerpt(
        timed_out(0) + timed_out(1) + timed_out(2).replace("NumelOut=8", "NumelOut=16"),
        "H135",
        (2,),
        "certain",
        "fix-first",
        "output of 16",
    ),
    "a development environment": Excerpt(
        "epoch 1\n\nProcess finished with exit code 139 (interrupted by signal 11: SIGSEGV)\n",
        "H131",
        (),
        "likely",
        "collect-more",
        "SIGSEGV",
    ),
    "two failures, and no times": Excerpt(
        traceback(1, "KeyError: 'a'") + traceback(2, "ValueError: b", 88),
        "H130",
        (1,),
        "likely",
        "fix-first",
        "KeyError",
    ),
    "told to stop, and no more": Excerpt(
        "[rank: 3] Received SIGTERM: 15\n", "H138", (), "certain", "collect-more", "does not show"
    ),
    "its loss is NaN": Excerpt(
        "Loss is nan, stopping training\n" + failed(0, 1), "H130", (), "likely", "fix-first", "nan"
    ),
    "killed long before the others gave up": Excerpt(
        table((2, -9, "00:10")) + timed_out(0) + timed_out(1) + timed_out(3),
        "H131",
        (2,),
        "certain",
        "collect-more",
        "SIGKILL",
    ),
    "killed long after the others gave up": Excerpt(
        timed_out(0) + timed_out(1) + timed_out(3) + table((2, -9, "20:10")),
        "H134",
        (2,),
        "possible",
        "collect-more",
        "while its peers timed out",
    ),
}


@pytest.mark.parametrize("name", EXCERPTS)
def test_an_excerpt_has_the_verdict_of_a_careful_reader(tmp_path: Path, name: str) -> None:
    excerpt = EXCERPTS[name]
    finding = only(tmp_path, excerpt.text)
    assert (finding.code, finding.ranks) == (excerpt.code, excerpt.ranks), finding.title
    assert (finding.certainty, finding.action) == (excerpt.certainty, excerpt.action), finding.title
    assert excerpt.words in finding.title


@pytest.mark.parametrize("name", EXCERPTS)
def test_line_endings_of_windows_change_nothing(tmp_path: Path, name: str) -> None:
    excerpt = EXCERPTS[name]
    assert only(tmp_path, excerpt.text.replace("\n", "\r\n")).ranks == excerpt.ranks


def test_tasks_of_the_scheduler_are_nodes_where_torchrun_runs_on_each(tmp_path: Path) -> None:
    text = closed(8) + failed(0, 1) + "srun: error: gpu-4: task 1: Exited with exit code 1\n"
    assert all(1 not in finding.ranks for finding in findings(tmp_path, job=text))


def test_the_file_of_a_silent_rank_counts_without_any_prefix(tmp_path: Path) -> None:
    """Its last line shows what it did while the others waited."""
    logs = {f"rank_{rank}": timed_out(rank) for rank in (0, 1, 3)}
    [finding] = findings(tmp_path, **logs, rank_2="step 16\nevaluating on 40,000 samples\n")
    assert (finding.code, finding.ranks, finding.certainty) == ("H134", (2,), "likely")
    assert any("evaluating on 40,000 samples" in note for note in finding.evidence.notes)
