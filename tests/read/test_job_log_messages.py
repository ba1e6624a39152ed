"""Every kind of message that a job's output may hold is found in it, with its numbers."""

# ruff: noqa: E501  (the messages are whole lines)
from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from read.log_events_of import events, one
from read.system_messages import DEVICES, LAUNCHERS, NCCL, Sample

P = "[rank3]:[E817 10:10:00.123456789 ProcessGroupNCCL.cpp:2268] "
G = "[PG ID 2 PG GUID 17(tp) Rank 1] "
WORK = "WorkNCCL(SeqNum=17, OpType=ALLREDUCE, NumelIn=8, NumelOut=8, Timeout(ms)=600000)"

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
    (
        f"{NCCL}transport/net_ib.cc:9 NCCL WARN NET/IB : Got completion from peer fe80::1e34:da03:5:4%ib0<48210> with "
        "error 4, opcode 0",
        "network",
        {"peer": "fe80::1e34:da03:5:4%ib0", "status": 4},
    ),
    (f"{NCCL}include/alloc.h:9 NCCL WARN Cuda failure 710 'device-side assert triggered'", "device-error", {}),
    (
        "Unhandled exception: runtime_error. what(): NCCL Error 5: invalid usage",
        "nccl-error",
        {"text": "invalid usage"},
    ),
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
ALL = [*WATCHDOG, *STORE, *BACKENDS, *REPORTS, *LAUNCHERS, *DEVICES]


@pytest.mark.parametrize(("text", "kind", "fields"), ALL, ids=range(len(ALL)))
def test_a_message_has_its_kind_and_numbers(tmp_path: Path, text: str, kind: str, fields: dict[str, Any]) -> None:
    """Far down in other output: the search must stop at its line."""
    event = one(tmp_path / "job", "step 1 loss 2.0\n" * 200 + f"{text}\nstep 3 loss 2.0\n")
    assert (event["kind"], event["line"]) == (kind, 201)
    assert {name: event["fields"].get(name) for name in fields} == fields


def test_sides_of_a_mismatch_are_read_also_where_a_comma_is_missing(tmp_path: Path) -> None:
    first, second = one(tmp_path / "job", REPORTS[0][0] + "\n")["fields"]["sides"]
    assert (first["rank"], first["seq"], first["op"]) == (0, 17, "BARRIER")
    assert (second["rank"], second["op"], second["shape"], second["dtype"]) == (2, "ALLREDUCE", "8", "Float")


def test_ordinary_output_has_no_event(tmp_path: Path) -> None:
    waiting = "in store based barrier to initialize process group for rank: 0, key: store_based_barrier_key:1"
    text = (
        f"INFO:torch.distributed.distributed_c10d:Waiting {waiting} (world_size=4, worker_count=3, timeout=0:30:00)\n"
        "Killed: 0, signal to noise 3.1, error rate 0.02, 3 nodes preempted so far\n"
        "Sequence group 0 is preempted by PreemptionMode.RECOMPUTE mode\n"
        "NCCL version 2.27.5+cuda12.9\n[Gloo] Rank 0 is connected to 1 peer ranks. Expected number of connected peer\n"
    )
    assert events(tmp_path / "job", text) == []
