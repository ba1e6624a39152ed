"""Short outputs of jobs, as launchers, kernels and schedulers print them."""

from __future__ import annotations


def traceback(rank: int, exception: str, line: int = 61) -> str:
    """As torch's excepthook prints it."""
    lines = ("Traceback (most recent call last):", f'  File "/home/user/train.py", line {line}, in step', exception)
    return "".join(f"[rank{rank}]: {text}\n" for text in lines)


def closed(rank: int) -> str:
    where = "/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:553"
    return traceback(rank, f"RuntimeError: [{where}] Connection closed by peer [10.0.0.2]:35")


def failed(local_rank: int, code: int) -> str:
    """The agent's line."""
    module = "torch/distributed/elastic/multiprocessing/api.py:882"
    pid = 4001 + local_rank
    return f"E1118 10:00:09.000000 4000 {module}] failed (exitcode: {code}) local_rank: {local_rank} (pid: {pid}) of\n"


KILLED = closed(0) + closed(2) + failed(1, -9)
TIME_LIMIT = (
    "step 100 loss 2.1\n"
    "slurmstepd: error: *** JOB 812 ON gpu-3 CANCELLED AT 2026-11-18T10:00:00 DUE TO TIME LIMIT ***\n"
)
HANGUP = (
    "step 100 loss 2.1\n"
    "W1118 10:00:09.000000 4000 torch/distributed/elastic/agent/server/api.py:719] "
    "Received Signals.SIGHUP death signal, shutting down workers\n"
)
OFF_THE_BUS = (
    "[70123.4] NVRM: Xid (PCI:0000:3b:00): 79, pid=4002, name=python, GPU has fallen off the bus.\n"
    + closed(0)
    + failed(1, -6)
)
NOT_JOINED = traceback(
    0, "torch.distributed.DistStoreError: Timed out after 61 seconds waiting for clients. 3/4 clients joined."
)


def lost(node: str, pid: int, peer: str, status: int = 12) -> str:
    """What NCCL prints when a transfer ends with an error."""
    where = f"{node}:{pid}:{pid + 400} [0] transport/net_ib.cc:2050"
    return f"{where} NCCL WARN NET/IB : Got completion from peer {peer}<48210> with status={status} opcode=0 len=0\n"


LINK_DOWN = lost("gpu-3", 812, "10.0.0.4") + lost("gpu-3", 812, "10.0.0.4", 5) + lost("gpu-3", 813, "10.0.0.5")
ONLY_VICTIMS = closed(0) + closed(1)
# An event, so that there is something to read, of a job that ended well.
HEALTHY_EVENT = "[W1118 10:00:00.1 ProcessGroupNCCL.cpp:1] destroy_process_group() was not called before program exit\n"
