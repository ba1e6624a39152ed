"""Messages of launchers, schedulers, kernels and devices, with the kind and the numbers that they have."""

# ruff: noqa: E501  (the messages are whole lines)
from __future__ import annotations

from typing import Any

NCCL = "gpu-3:4002:4410 [2] "
AGENT = "W1118 10:00:09.000000 4000 torch/distributed/elastic/multiprocessing/api.py:908] "
Sample = tuple[str, str, dict[str, Any]]

LAUNCHERS: list[Sample] = [
    (
        "subprocess.CalledProcessError: Command '['python', 'train.py']' died with <Signals.SIGKILL: 9>.",
        "exit",
        {"signal": "SIGKILL"},
    ),
    (
        "subprocess.CalledProcessError: Command '['python', 'train.py']' returned non-zero exit status 3.",
        "exit",
        {"exit_code": 3},
    ),
    (
        "[rank: 0] Child process with PID 812 terminated with code 1. Forcefully terminating all other processes",
        "exit",
        {"exit_pid": 812, "exit_code": 1},
    ),
    (
        "(raylet) A worker died or was killed while executing a task by an unexpected system error. Worker IP address: "
        "10.0.0.4 Worker port: 10004 Worker PID: 812 Worker exit type: SYSTEM_ERROR Worker exit detail: Worker",
        "died",
        {"exit_pid": 812, "node": "10.0.0.4"},
    ),
    (
        "(raylet) node_manager.cc:3007: 1 Workers (tasks / actors) killed due to memory pressure (OOM), 0 Workers crashed "
        "due to other reasons at node (ID: 5c, IP: 10.0.0.4) over the last time period.",
        "host-oom",
        {"node": "10.0.0.4"},
    ),
    (
        "slurmstepd: error: *** STEP 812.0 ON gpu-3 CANCELLED AT 2026-11-18T10:00:00 DUE TO JOB REQUEUE ***",
        "scheduler",
        {"reason": "JOB REQUEUE"},
    ),
    (
        f"{AGENT}failed (exitcode: -9) local_rank: 1 (pid: 4002) of binary: /usr/bin/python",
        "exit",
        {"exit_code": -9, "local_rank": 1, "exit_pid": 4002},
    ),
    (
        "[2024-02-03 10:00:00,123] torch.distributed.elastic.multiprocessing.api: [ERROR] failed (exitcode: 1) "
        "local_rank: 0 (pid: 4001) of binary: python",
        "exit",
        {"exit_code": 1},
    ),
    (
        "ERROR:torch.distributed.elastic.multiprocessing.api:failed (exitcode: 1) local_rank: 0 (pid: 41) of binary: python",
        "exit",
        {"exit_pid": 41},
    ),
    (f"{AGENT}Sending process 4001 closing signal SIGTERM", "told-to-stop", {"told_pid": 4001}),
    (
        f"{AGENT}Unable to shutdown process 4001 via SIGTERM, forcefully exiting via SIGKILL",
        "told-to-stop",
        {"told_pid": 4001, "hung": "SIGTERM"},
    ),
    (f"{AGENT}Worker pid=4001 stuck in uninterruptible sleep (D-state)", "unkillable", {"stuck_pid": 4001}),
    (f"{AGENT}Process 4001 did not exit after SIGKILL within 5s; giving up", "unkillable", {"stuck_pid": 4001}),
    (f"{AGENT}[default] Worker group FAILED. 2/3 attempts left; will restart worker group", "restart", {"left": 2}),
    (f"{AGENT}Detected 1 new nodes from group_rank=0; will restart worker group", "restart", {"n_new": 1}),
    (f"{AGENT}Received Signals.SIGHUP death signal, shutting down workers", "agent-signal", {"signal": "SIGHUP"}),
    (
        "torch.distributed.elastic.multiprocessing.api.SignalException: Process 4000 got signal: 15",
        "agent-signal",
        {"agent_pid": 4000, "signal_number": 15},
    ),
    ("RendezvousConnectionError: The connection to the C10d store has failed.", "rendezvous", {}),
    (
        f"{AGENT}The node 'gpu-3_41_0' has failed to send a keep-alive heartbeat to the rendezvous 'none' due to an error",
        "rendezvous",
        {"node_name": "gpu-3_41_0"},
    ),
    (
        "[2026-11-18 10:00:00,1] [INFO] [launch.py:347:main] Process 812 exits with return code = -9",
        "exit",
        {"exit_code": -9},
    ),
    (
        "mpirun noticed that process rank 2 with PID 812 on node gpu-3 exited on signal 9 (Killed).",
        "exit",
        {"exit_rank": 2, "signal_number": 9},
    ),
    ("=   EXIT CODE: 139", "exit", {"exit_code": 139}),
    ("srun: error: gpu-3: task 5: Out Of Memory", "exit", {"node": "gpu-3", "tasks": 5, "how": "Out Of Memory"}),
    ("srun: error: gpu-3: tasks 0-7: Exited with exit code 1", "exit", {"tasks": "0-7", "exit_code": 1}),
    (
        "slurmstepd: error: *** STEP 8.0 ON gpu-3 CANCELLED AT 2026-11-18T10:00:00 DUE TO NODE FAILURE, SEE SLURMCTLD",
        "scheduler",
        {"reason": "NODE FAILURE", "node": "gpu-3"},
    ),
    (
        "slurmstepd: error: Detected 1 oom_kill event in StepId=812.0. Some of the step tasks have been OOM Killed.",
        "host-oom",
        {"step": "812.0"},
    ),
    ("slurmstepd: error: Detected 1 oom-kill event(s) in step 812.0 cgroup.", "host-oom", {"step": "812.0"}),
    (
        "  Normal  Preempted  12s  default-scheduler  Preempted by a pod on node gpu-3",
        "scheduler",
        {"reason": "Preempted"},
    ),
    ("  Reason:       OOMKilled", "host-oom", {"by": "OOMKilled"}),
    ("Evicted: The node was low on resource: memory. Threshold quantity", "host-oom", {"by": "memory"}),
    ("  Warning  NodeNotReady  3m  node-controller  Node is not ready", "scheduler", {"reason": "NodeNotReady"}),
    ("[rank: 3] Received SIGTERM: 15", "told-to-stop", {"signal": "SIGTERM"}),
]
DEVICES: list[Sample] = [
    ("RuntimeError: CUDA error: out of memory", "device-oom", {}),
    ("RuntimeError: CUDA error: uncorrectable NVLink error detected during the execution", "device-ecc", {}),
    ("NVRM: GPU at 0000:3b:00.0 has fallen off the bus and is not responding to commands.", "device-lost", {}),
    (
        "  what():  CUDA error: device-side assert triggered",
        "watchdog-error",
        {"text": "CUDA error: device-side assert triggered"},
    ),
    ("AssertionError: Rank 11: found NaN in local grad norm in backward pass", "nan", {"named_rank": 11}),
    (
        "Nov 18 10:00:00 gpu-3 kernel: [701.4] NVRM: Xid (PCI:0000:3b:00): 79, pid='<unknown>', name=<unknown>, GPU has "
        "fallen off the bus.",
        "xid",
        {"xid": 79, "bus": "0000:3b:00", "node": "gpu-3"},
    ),
    ("[701.4] NVRM: Xid (PCI:0000:3b:00): 31, pid=812, name=python, Ch 00000008", "xid", {"xid": 31, "xid_pid": 812}),
    (
        "[701.4] nvidia-nvswitch0: SXid (PCI:0000:c1:00.0): 20034, Fatal, Link 30 LTSSM Fault Up",
        "switch",
        {"sxid": 20034},
    ),
    (
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.15 GiB "
        "of which 1.06 GiB is free. Process 812 has 70.00 GiB memory in use. Including non-PyTorch memory, this process "
        "has 8.0 GiB memory in use. Of the allocated memory 7.0 GiB is allocated by PyTorch, and 500.00 MiB is reserved "
        "by PyTorch but unallocated.",
        "device-oom",
        {"wanted": "2.00 GiB", "capacity": "79.15 GiB", "free": "1.06 GiB", "other_pid": 812, "unused": "500.00 MiB"},
    ),
    (
        "RuntimeError: CUDA out of memory. Tried to allocate 20.00 MiB (GPU 3; 23.69 GiB total capacity; 22.10 GiB already "
        "allocated; 10.00 MiB free; 22.50 GiB reserved in total by PyTorch)",
        "device-oom",
        {"device": 3, "capacity": "23.69 GiB", "free": "10.00 MiB"},
    ),
    (
        "../aten/src/ATen/native/cuda/Indexing.cu:1290: indexSelect: block: [1,0,0], thread: [3,0,0] Assertion `srcIndex "
        "< srcSelectDimSize` failed.",
        "device-assert",
        {"condition": "srcIndex < srcSelectDimSize"},
    ),
    ("RuntimeError: CUDA error: uncorrectable ECC error encountered", "device-ecc", {}),
    ("RuntimeError: CUDA error: no CUDA-capable device is detected", "device-lost", {}),
    ("Memory access fault by GPU node-4 (Agent handle: 0x1) on address 0x7f. Reason: Unknown.", "device-fault", {}),
    ("HW Exception by GPU node-2 (Agent handle: 0x1) reason :GPU Hang", "device-fault", {}),
    (
        "Nov 18 10:00:00 gpu-3 kernel: Memory cgroup out of memory: Killed process 812 (python) total-vm:9kB, "
        "anon-rss:8kB, file-rss:0kB",
        "host-oom",
        {"killed_pid": 812, "rss_kb": 8, "node": "gpu-3"},
    ),
    (
        "oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=x,mems_allowed=0,task=python,pid=812,uid=0",
        "host-oom",
        {"by": "CONSTRAINT_MEMCG", "killed_pid": 812},
    ),
    ("train.sh: line 3:   812 Killed                  python train.py", "killed", {}),
    (
        "RuntimeError: DataLoader worker (pid 812) is killed by signal: Bus error. It is possible",
        "loader-killed",
        {"worker_pid": 812, "signal": "Bus error"},
    ),
    ("RuntimeError: DataLoader worker (pid(s) 812, 813) exited unexpectedly", "loader-killed", {}),
    ("RuntimeError: DataLoader timed out after 60 seconds", "loader-timeout", {"seconds": 60}),
    (
        "ERROR: Unexpected bus error encountered in worker. This might be caused by insufficient shared memory (shm).",
        "shm-full",
        {},
    ),
    (
        f"{NCCL}misc/shmutils.cc:9 NCCL WARN Error while creating shared memory segment /dev/shm/nccl-x (size 9637888)",
        "shm-full",
        {"path": "/dev/shm/nccl-x"},
    ),
    ("[gpu-3:812] Caught signal 7 (Bus error: nonexistent physical address)", "shm-full", {}),
    ("OSError: [Errno 28] No space left on device: '/ckpt/model.pt'", "disk-full", {"path": "/ckpt/model.pt"}),
    ("OSError: [Errno 122] Disk quota exceeded: '/ckpt/model.pt'", "disk-full", {"path": "/ckpt/model.pt"}),
    ("OSError: [Errno 24] Too many open files", "limit", {}),
    ("RuntimeError: can't start new thread", "limit", {}),
]
