"""Output of jobs that are fine: banners, warnings, errors that were handled. Nothing in it is a failure."""

# ruff: noqa: E501  (the messages are whole lines)
from __future__ import annotations

from pathlib import Path

import pytest

from analyze import log_texts
from analyze.test_log_verdicts import findings

FRAMES = 'Traceback (most recent call last):\n  File "/home/user/data.py", line 31, in fetch\n    return get(url)\n'
HARMLESS = {
    "launcher's banner": "W1118 10:00:00.000000 812 torch/distributed/run.py:766] Setting OMP_NUM_THREADS environment "
    "variable for each process to be 1 in default, to avoid your system being overloaded\nstep 1 loss 2.0\n",
    "retry": f"{FRAMES}ConnectionResetError: [Errno 104] Connection reset by peer\nretrying in 2 s (1 of 5)\nstep 7\n",
    "logged exception": f"2026-11-18 10:00:00,123 ERROR data: could not read shard 7\n{FRAMES}OSError: shard 7\nstep 8\n",
    "chained and caught": f"{FRAMES}KeyError: 'a'\n\nDuring handling of the above exception, another exception "
    f"occurred:\n\n{FRAMES}ValueError: no a\nusing the default instead\nstep 9\n",
    "optional package": "Failed to import flash_attn: No module named 'flash_attn', falling back to sdpa\n"
    "ImportError caught, Error code 0, using the slow tokenizer\nstep 1\n",
    "hub": "Error while downloading from https://example.com/model.safetensors: timed out\nTrying to resume download...\n"
    "model.safetensors: 100%|######| 4.98G/4.98G [01:00<00:00, 80MB/s]\n",
    "nccl": "gpu-3:812:812 [0] NCCL INFO Bootstrap : Using eth0:10.0.0.3<0>\nNCCL version 2.27.5+cuda12.9\n"
    "gpu-3:812:900 [0] NCCL INFO NET/Plugin: Could not find: libnccl-net.so. Using internal network plugin.\n"
    "gpu-3:812:900 [0] NCCL INFO comm 0x5 rank 0 nranks 8 cudaDev 0 busId 4d000 commId 0x9 - Init COMPLETE\n"
    "gpu-3:812:901 [0] NCCL INFO [Service thread] Connection closed by localRank 0\n"
    "gpu-3:812:901 [0] NCCL INFO comm 0x5 rank 0 nranks 8 cudaDev 0 busId 4d000 - Abort COMPLETE\n",
    "barrier device": "[rank0]:[W1118 10:00:00.1 ProcessGroupNCCL.cpp:4115] [PG ID 0 PG GUID 0 Rank 0]  using GPU 0 to "
    "perform barrier as devices used by this process are currently unknown. This can potentially cause a hang if this "
    "rank to GPU mapping is incorrect.\nstep 1\n",
    "deepspeed": "[2026-11-18 10:00:00,123] [INFO] [launch.py:256:main] process 812 spawned with command: ['python']\n"
    "[2026-11-18 10:00:09,123] [INFO] [loss_scaler.py:183:update_scale] [deepspeed] OVERFLOW! Rank 0 Skipping step.\n"
    "[2026-11-18 10:09:00,123] [INFO] [launch.py:351:main] Process 812 exits successfully.\n",
    "lightning": "GPU available: True (cuda), used: True\n[rank: 0] Seed set to 42\nInitializing distributed: "
    "GLOBAL_RANK: 0, MEMBER: 1/8\nThe 'train_dataloader' does not have many workers which may be a bottleneck.\n"
    "`Trainer.fit` stopped: `max_steps=10` reached.\n",
    "serving": "(EngineCore_0 pid=812) INFO 11-18 10:00:00 [core.py:70] Initializing a V1 LLM engine\n"
    "WARNING 11-18 10:00:01 [scheduler.py:1] Sequence group 3 is preempted by PreemptionMode.RECOMPUTE mode\n"
    "(Worker_TP0 pid=813) INFO 11-18 10:00:05 [shm_broadcast.py:1] No available shared memory broadcast block found\n",
    "store at the start": "[W1118 10:00:00.1 socket.cpp:752] [c10d] The client socket has failed to connect to "
    "[gpu-3]:29500 (errno: 111 - Connection refused).\n[W1118 10:00:01.1 socket.cpp:752] [c10d] The client socket has "
    "failed to connect to [gpu-3]:29500 (errno: 111 - Connection refused).\nstep 1 loss 2.0\nstep 2 loss 1.9\n",
    "caught memory error": "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.15 GiB\n"
    "halving the batch size to 16 and trying again\nstep 1 loss 2.0\n",
    "ignored at exit": "Exception ignored in: <function _releaseLock at 0x7f>\nTraceback (most recent call last):\n"
    '  File "/usr/lib/python3.11/logging/__init__.py", line 228, in _releaseLock\nKeyboardInterrupt: \n',
    "store gone at the end": "training finished\n[rank1]:[W1118 10:00:00.1 TCPStore.cpp:125] [c10d] recvValue failed on "
    "SocketImpl(fd=5, addr=[a]:1, remote=[b]:2): Failed to recv, got 0 bytes. Connection was likely closed.\n"
    '[rank1]:[W1118 10:00:00.2 ProcessGroupNCCL.cpp:1662] [PG ID 0 PG GUID 0 Rank 1] Failed to check the "should dump" '
    "flag on TCPStore, (maybe TCPStore server has shut down too early), with error: Failed to recv\n",
    "words": "error rate 0.02 | Killed 3 monsters | signal 5 dB | segmentation loss 0.3 | exitcode 0 | Traceback depth 4\n",
}


@pytest.mark.parametrize("name", HARMLESS)
@pytest.mark.parametrize("prefix", ["", "0: ", "(Train pid=812) "])
def test_a_job_that_is_fine_has_no_finding(tmp_path: Path, name: str, prefix: str) -> None:
    (tmp_path / "beside.log").write_text(log_texts.TIME_LIMIT)  # so that there is something to read
    text = "".join(f"{prefix}{line}\n" for line in HARMLESS[name].splitlines())
    assert [finding.code for finding in findings(tmp_path, job=text)] == ["H132"]


@pytest.mark.parametrize("name", HARMLESS)
def test_alone_it_has_none_either(tmp_path: Path, name: str) -> None:
    (tmp_path / "beside.log").write_text(log_texts.HEALTHY_EVENT)
    assert findings(tmp_path, job=HARMLESS[name]) == []
