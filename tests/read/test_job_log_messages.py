"""Every kind of message that a job's output may hold is found in it, with its numbers."""

# ruff: noqa: E501  (the messages are whole lines)
from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from read.log_events_of import events, one

P = "[rank3]:[E817 10:10:00.123456789 ProcessGroupNCCL.cpp:2268] "
G = "[PG ID 2 PG GUID 17(tp) Rank 1] "
WORK = "WorkNCCL(SeqNum=17, OpType=ALLREDUCE, NumelIn=8, NumelOut=8, Timeout(ms)=600000)"
NCCL = "gpu-3:4002:4410 [2] "
AGENT = "W1118 10:00:09.000000 4000 torch/distributed/elastic/multiprocessing/api.py:908] "
Sample = tuple[str, str, dict[str, Any]]

WATCHDOG: list[Sample] = [
    (
        f"{P}[Rank 1] Watchdog caught collective operation timeout: {WORK} ran for 600021 milliseconds before timing out.",
        "watchdog-timeout",
        {"seq": 17, "op": "ALLREDUCE", "n_in": 8, "ran_ms": 600021, "said_rank": 1},
    ),
    (
        f"{P}[PG GUID 17 Rank 1] Watchdog caught collective operation timeout: {WORK} ran for 600021 milliseconds",
        "watchdog-timeout",
        {"seq": 17, "group": "17", "group_rank": 1},
    ),
    (
        "[E ProcessGroupNCCL.cpp:828] [Rank 3] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=17, "
        "OpType=ALLREDUCE, Timeout(ms)=1800000) ran for 1800100 milliseconds before timing out.",
        "watchdog-timeout",
        {"seq": 17, "timeout_ms": 1800000},
    ),
    (
        f"{P}[Rank 1] Watchdog caught collective operation timeout: {WORK.replace('NCCL', 'HCCL')} ran for 600021 "
        "milliseconds",
        "watchdog-timeout",
        {"op": "ALLREDUCE"},
    ),
    (f"{P}[Rank 1] Work {WORK} timed out in blocking wait.", "watchdog-timeout", {"timeout_ms": 600000}),
    (
        f"{P}{G} failure detected by watchdog at work sequence id: 17 PG status: last enqueued work: 31, last completed "
        "work: 16",
        "watchdog-status",
        {"seq": 17, "enqueued": 31, "completed": 16, "group": "17", "desc": "tp"},
    ),
    (
        f"{P}{G} failure detected by watchdog at work sequence id: 17 PG status: last enqueued work: 31, last started "
        "work: 17 (ALLREDUCE), last completed work: 16",
        "watchdog-status",
        {"started": 17, "started_op": "ALLREDUCE"},
    ),
    (
        f"{P}[PG 0 (default_pg) Rank 3] Exception (either an error or timeout) detected by watchdog at work: 17, last "
        "enqueued NCCL work: 31, last completed NCCL work: 16.",
        "watchdog-status",
        {"enqueued": 31, "group": "0"},
    ),
    (
        f"{P}[PG 0 Rank 3] Timeout at NCCL work: 17, last enqueued NCCL work: 31, last completed NCCL work: 16.",
        "watchdog-status",
        {"completed": 16},
    ),
    (f"{P}{G}First PG on this rank to signal dumping.", "watchdog-fired", {"group_rank": 1}),
    (
        f"{P}[PG ID 0 PG GUID 0(default_pg) Rank 3] Observed flight recorder dump signal from another rank via TCPStore.",
        "dump-observed",
        {},
    ),
    (
        f"{P}[PG ID 0 PG GUID 0(default_pg) Rank 3] Received a dump signal due to a collective timeout from  rank 5 and "
        "we will try our best to dump the debug info. Last enqueued NCCL work: 16, last completed NCCL work: 16.This is",
        "dump-signal",
        {"from_rank": 5, "enqueued": 16, "completed": 16},
    ),
    (
        f"{P}[PG ID 0 PG GUID 0(default_pg) Rank 3] Received a dump signal due to a collective timeout from this local "
        "rank and we will try our best to dump the debug info. Last enqueued NCCL work: 17, last completed NCCL work: 16.",
        "dump-signal",
        {"by": "this local rank", "enqueued": 17},
    ),
    (f"{P}{G}ProcessGroupNCCL preparing to dump debug info. Include stack trace: 1", "dump-written", {}),
    (f"{P}[Rank 1] Some NCCL operations have failed or timed out. Due to the asynchronous nature", "taken-down", {}),
    (f"{P}[Rank 1] To avoid data inconsistency, we are taking the entire process down.", "taken-down", {}),
    (
        f"{P}{G}Terminating the process after attempting to dump debug info, due to collective timeout or exception.",
        "taken-down",
        {},
    ),
    (
        f"{P}{G}Process group watchdog thread terminated with exception: CUDA error: an illegal memory access was "
        "encountered",
        "watchdog-error",
        {"text": "CUDA error: an illegal memory access was encountered"},
    ),
    (
        f"{P}{G}ProcessGroupNCCL's watchdog got stuck for 480 seconds without making progress in monitoring",
        "watchdog-stuck",
        {"seconds": 480},
    ),
    (
        f"{P}{G}Heartbeat monitor timed out! Process will be terminated after dumping debug info. workMetaList_.size()=3",
        "watchdog-stuck",
        {},
    ),
    (f"{P}{G}Could not acquire GIL within 300 ms on exit, possible GIL induced hang", "gil", {}),
    (
        f"{P}[Rank 1] Collective {WORK} raised the following async exception: NCCL error: remote process exited or there "
        "was a network error, NCCL version 2.21.5",
        "remote-error",
        {},
    ),
    (
        f'{P}{G}Failed to check the "should dump" flag on TCPStore, (maybe TCPStore server has shut down too early), '
        "with error: Broken pipe",
        "store-gone",
        {},
    ),
    (
        f"{P}Failed to update state for entry 5: nccl:all_reduce with error: CUDA error: an illegal memory access",
        "cascade",
        {"entry": 5},
    ),
    (
        "[rank0]:[W1118 10:00:00.000000000 ProcessGroupNCCL.cpp:1538] Warning: WARNING: destroy_process_group() was not "
        "called before program exit, which can leak resources.",
        "left-normally",
        {},
    ),
]
STORE: list[Sample] = [
    (
        f"{P}[c10d] recvValue failed on SocketImpl(fd=58, addr=[n2]:51234, remote=[n1]:29500): Connection reset by peer",
        "store-gone",
        {"where": "n1"},
    ),
    (
        f"{P}[c10d] sendBytes failed on SocketImpl(fd=58, addr=[n2]:51234, remote=[n1]:29500): Broken pipe",
        "store-gone",
        {"where": "n1"},
    ),
    (
        "RuntimeError: [3] is setting up NCCL communicator and retreiving ncclUniqueId from [0] via c10d key-value store "
        "by key '0', but store->get('0') got error: Socket Timeout",
        "unique-id",
        {"group_rank": 3},
    ),
    (
        "Error: Timed out initializing process group in store based barrier on rank: 2, for key: "
        "store_based_barrier_key:1 (world_size=4, num_workers_joined=3, timeout=0:00:10)",
        "init-missing",
        {"expected": 4, "joined": 3},
    ),
    (
        "Error: The client socket has timed out after 60000ms while trying to connect to (10.0.0.1, 29500).",
        "store-unreachable",
        {"where": "10.0.0.1"},
    ),
    (
        f"{P}[c10d] The client socket has failed to connect to [gpu-3]:29500 (errno: 111 - Connection refused).",
        "store-unreachable",
        {"where": "gpu-3"},
    ),
    (
        "DistNetworkError: The server socket has failed to listen on any local network address. port: 29500, "
        "useIpv6: false, code: -98, name: EADDRINUSE, message: address already in use",
        "port-taken",
        {"port": 29500},
    ),
    ("DistStoreError: wait timeout after 4000ms, keys: /default_pg/0//cpu//0/2", "store-wait", {"timeout_ms": 4000}),
]
BACKENDS: list[Sample] = [
    ("RuntimeError: [/gloo/transport/tcp/pair.cc:534] Connection closed by peer [10.0.0.2]:35", "gloo-closed", {}),
    (
        "RuntimeError: [/gloo/transport/tcp/pair.cc:534] Read error [10.0.0.2]:35: Connection reset by peer. This is",
        "gloo-closed",
        {},
    ),
    (
        "RuntimeError: [/gloo/transport/tcp/unbound_buffer.cc:78] Timed out waiting 1800000ms for recv operation to "
        "complete",
        "gloo-timeout",
        {"timeout_ms": 1800000, "what": "recv"},
    ),
    ("RuntimeError: Application timeout caused pair closure", "gloo-closed", {}),
    (
        "RuntimeError: [enforce fail at /gloo/transport/tcp/pair.cc:456] op.preamble.length <= op.nbytes. 256 vs 32",
        "gloo-mismatch",
        {"sent": 256, "expected": 32},
    ),
    (
        "RuntimeError: Gloo connectFullMesh failed with [/gloo/transport/tcp/pair.cc:144] timed out connecting: SO_ERROR: "
        "Connection refused, remote=[127.0.0.1]:5 (rank=1, size=2, local=[127.0.0.1])",
        "gloo-connect",
        {},
    ),
    (
        "[ERROR] 2026-11-18-10:00:00 (PID:812, Device:3, RankID:11) ERR02200 DIST call hccl api failed. EI0006: socket",
        "hccl-connect",
        {},
    ),
    ("Error EI0002: [PID: 812] 2026-11-18-10:00:00 The wait execution of the notify timed out", "hccl-wait", {}),
    (
        f"{NCCL}NCCL INFO comm 0x55d0 rank 2 nranks 8 cudaDev 2 nvmlDev 2 busId 4d000 commId 0x9 - Init START",
        "nccl-init",
        {"group_rank": 2, "n_ranks": 8, "bus": "4d000", "state": "START", "node": "gpu-3"},
    ),
    (
        f"{NCCL}NCCL INFO ncclCommInitRank comm 0x55d0 rank 2 nranks 8 cudaDev 2 nvmlDev 2 busId 4d000 commId 0x9 - Init "
        "COMPLETE",
        "nccl-init",
        {"state": "COMPLETE"},
    ),
    (f"{NCCL}NCCL INFO [Service thread] Connection closed by localRank 5", "nccl-closed", {"closed_local": 5}),
    (
        f"[2026-11-18 10:00:00] {NCCL}transport/net_ib.cc:2050 NCCL WARN NET/IB : Got completion from peer "
        "10.0.0.4<48210> with status=12 opcode=0 len=0 vendor err 129 (Recv) localGid ::ffff:10.0.0.3 remoteGids",
        "network",
        {"peer": "10.0.0.4", "status": 12},
    ),
    (
        f"{NCCL}misc/ib.cc:9 NCCL WARN NET/IB : Got completion from peer 10.0.0.4<48210> with error 12, opcode 0",
        "network",
        {"status": 12},
    ),
    (f"{NCCL}transport/net_ib.cc:9 NCCL WARN NET/IB : mlx5_0:1 async fatal event: port error", "network", {}),
    (
        f"{NCCL}misc/socket.cc:9 NCCL WARN socketProgress: Connection closed by remote peer gpu-4<48210>",
        "network-peer",
        {"peer": "gpu-4"},
    ),
    (
        f"{NCCL}misc/socket.cc:9 NCCL WARN Call to recv from 10.0.0.4<48210> failed : Connection reset by peer",
        "network-peer",
        {"peer": "10.0.0.4"},
    ),
    (
        f"{NCCL}init.cc:9 NCCL WARN Duplicate GPU detected : rank 1 and rank 0 both on CUDA device 1000",
        "duplicate-device",
        {"a": 1, "b": 0},
    ),
    (f"{NCCL}bootstrap.cc:9 NCCL WARN Bootstrap : no socket interface found", "no-interface", {}),
    (f"{NCCL}init.cc:9 NCCL WARN something new", "nccl-warn", {"text": "something new"}),
]
REPORTS: list[Sample] = [
    (
        "RuntimeError: Detected mismatch between collectives on ranks. Rank 0 is running collective: CollectiveFingerPrint"
        "(SequenceNumber=17OpType=BARRIER), but Rank 2 is running collective: CollectiveFingerPrint(SequenceNumber=17, "
        "OpType=ALLREDUCE, TensorShape=[8], TensorDtypes=Float, TensorDeviceTypes=x).Collectives differ in",
        "detail-mismatch",
        {},
    ),
    (
        "RuntimeError: Detected mismatch between collectives on ranks. Rank 0 is running inconsistent collective: "
        "CollectiveFingerPrint(OpType=BARRIER",
        "detail-mismatch",
        {},
    ),
    (
        "Error: [Rank 0]: Ranks 1, 2 failed to pass monitoredBarrier in 2000 ms",
        "monitored-barrier",
        {"missing": "1, 2"},
    ),
    (
        "Error: Rank 1 successfully reached monitoredBarrier, but received errors while waiting for send/recv from rank 0",
        "barrier-victim",
        {},
    ),
    (
        "\t - To our best knowledge, ranks [2, 3] are the lagging ranks that caused this timeout. They never joined",
        "desync",
        {"missing": "2, 3"},
    ),
    (
        "\t\t[2] finished collective #4, but didn't join collective #5 (count from 1)",
        "desync",
        {"missing": 2, "seq": 5},
    ),
]
LAUNCHERS: list[Sample] = [
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
ALL = [*WATCHDOG, *STORE, *BACKENDS, *REPORTS, *LAUNCHERS, *DEVICES]


@pytest.mark.parametrize(("text", "kind", "fields"), ALL, ids=range(len(ALL)))
def test_a_message_has_its_kind_and_numbers(tmp_path: Path, text: str, kind: str, fields: dict[str, Any]) -> None:
    """Among other output: the search must stop at its line."""
    event = one(tmp_path / "job", f"step 1 loss 2.0\nstep 2 loss 2.0\n{text}\nstep 3 loss 2.0\n")
    assert (event["kind"], event["line"]) == (kind, 3)
    assert {name: event["fields"].get(name) for name in fields} == fields


def test_sides_of_a_mismatch_are_read_also_where_a_comma_is_missing(tmp_path: Path) -> None:
    first, second = one(tmp_path / "job", REPORTS[0][0] + "\n")["fields"]["sides"]
    assert (first["rank"], first["seq"], first["op"]) == (0, 17, "BARRIER")
    assert (second["rank"], second["op"], second["shape"], second["dtype"]) == (2, "ALLREDUCE", "8", "Float")


def test_ordinary_output_has_no_event(tmp_path: Path) -> None:
    text = (
        "Killed: 0, signal to noise 3.1, error rate 0.02, 3 nodes preempted so far\n"
        "Sequence group 0 is preempted by PreemptionMode.RECOMPUTE mode\n"
        "NCCL version 2.27.5+cuda12.9\n[Gloo] Rank 0 is connected to 1 peer ranks. Expected number of connected peer\n"
    )
    assert events(tmp_path / "job", text) == []
