"""What the ranks of a job with a known fault print: training output, and the watchdog's lines of two torch releases."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import NamedTuple

FAULTS = ("healthy", "stuck", "mismatch", "stalled", "exception", "killed")
RELEASES = ("2.3", "2.6")  # 2.3 prints no times and no dump signals
TIMEOUT_S = 600
_START_S = 10 * 3600
_WAIT = 600_020
_DOWN = "To avoid data inconsistency, we are taking the entire process down."
_WARNING = (
    "[PG ID 0 PG GUID 0 Rank {rank}]  using GPU {rank} as device used by this process is currently unknown. "
    "This can potentially cause a hang if this rank to GPU mapping is incorrect."
)


@dataclass(frozen=True)
class LogJob:
    fault: str
    n_ranks: int = 8
    culprit: int = 3
    release: str = "2.6"
    seed: int = 0


Printed = list[tuple[float, int, str]]  # second of the day, rank, line


def printed(job: LogJob) -> Printed:
    """All lines, in the order of their times. Rank -1 is the launcher."""
    draw = random.Random(job.seed)
    n_steps = draw.randrange(3, 40)
    lines: Printed = [
        (_START_S + rank / 1000, rank, _logged(job, rank, _START_S, "W", 5023, _WARNING.format(rank=rank)))
        for rank in range(job.n_ranks)
    ]
    lines += [(_START_S + 1.0 + step, 0, f"step {step} loss {3 / (step + 1):.4f}") for step in range(n_steps)]
    ended = _START_S + 1.0 + n_steps
    lines += _ending(job, draw, n_steps + 1, ended)
    return sorted(lines)


def text_of(job: LogJob) -> str:
    return "".join(f"{line}\n" for _, _, line in printed(job))


def _ending(job: LogJob, draw: random.Random, seq: int, now_s: float) -> Printed:
    if job.fault == "healthy":
        return [(now_s, 0, "training finished")]
    if job.fault in ("exception", "killed"):
        return _crash(job, now_s)
    others = [rank for rank in range(job.n_ranks) if rank != job.culprit or job.fault != "stuck"]
    lines: Printed = [(now_s, 0, "Saving checkpoint")] if job.fault == "stuck" and job.culprit == 0 else []
    for rank in others:
        is_odd = job.fault == "mismatch" and rank == job.culprit
        at_s = now_s + TIMEOUT_S + draw.random() / 10
        lines += _timeout(job, rank, seq, "_ALLGATHER_BASE" if is_odd else "ALLREDUCE", at_s)
    if job.fault == "stuck" and job.release != "2.3":
        lines += _dump_signal(job, job.culprit, seq - 1, others[0], now_s + TIMEOUT_S + 0.5)
    ends_s = now_s + TIMEOUT_S + 61
    lines += _launcher_end(job, others[0], -6, ends_s)
    return lines


def _timeout(job: LogJob, rank: int, seq: int, op: str, at_s: float) -> Printed:
    work = (
        f"WorkNCCL(SeqNum={seq}, OpType={op}, NumelIn=8192, NumelOut={8192 * (8 if op != 'ALLREDUCE' else 1)}, "
        f"Timeout(ms)={TIMEOUT_S * 1000})"
    )
    caught = f"[Rank {rank}] Watchdog caught collective operation timeout: {work} ran for {_WAIT} milliseconds"
    if job.release == "2.3":
        status = f"[PG 0 Rank {rank}] Timeout at NCCL work: {seq}, last enqueued NCCL work: {seq}, "
        status += f"last completed NCCL work: {seq - 1}."
    else:
        status = f"[PG ID 0 PG GUID 0(default_pg) Rank {rank}]  failure detected by watchdog at work sequence id: "
        status += f"{seq} PG status: last enqueued work: {seq}, last completed work: {seq - 1}"
    down_s = at_s + 60
    where = f"[PG ID 0 PG GUID 0(default_pg) Rank {rank}]" if job.release != "2.3" else f"[PG 0 Rank {rank}]"
    thread = "Process group" if job.release != "2.3" else "NCCL"
    lines = [
        (at_s, rank, _logged(job, rank, at_s, "E", 632, f"{caught} before timing out.")),
        (at_s + 0.1, rank, _logged(job, rank, at_s + 0.1, "E", 2268, status)),
        (down_s, rank, _logged(job, rank, down_s, "E", 684, f"[Rank {rank}] {_DOWN}")),
        (
            down_s + 0.01,
            rank,
            _logged(
                job,
                rank,
                down_s + 0.01,
                "E",
                1895,
                f"{where} {thread} watchdog thread terminated with exception: {caught} before timing out.",
            ),
        ),
    ]
    if job.release != "2.3":
        fired = f"{where} First PG on this rank to signal dumping."
        lines.append((at_s + 0.2, rank, _logged(job, rank, at_s + 0.2, "E", 1732, fired)))
    return lines


def _dump_signal(job: LogJob, rank: int, completed: int, by: int, at_s: float) -> Printed:
    where = f"[PG ID 0 PG GUID 0(default_pg) Rank {rank}]"
    received = (
        f"{where} Received a dump signal due to a collective timeout from  rank {by} and we will try our best to dump "
        f"the debug info. Last enqueued NCCL work: {completed}, last completed NCCL work: {completed}.This is most "
        "likely caused by incorrect usages of collectives, e.g., wrong sizes used across ranks, the order of "
        "collectives is not same for all ranks or the scheduled collective, for some reason, didn't run."
    )
    observed = f"{where} Observed flight recorder dump signal from another rank via TCPStore."
    return [
        (at_s, rank, _logged(job, rank, at_s, "E", 1655, observed)),
        (at_s + 0.01, rank, _logged(job, rank, at_s + 0.01, "E", 1724, received)),
    ]


def _crash(job: LogJob, now_s: float) -> Printed:
    """The peers learn of it at once: their connection closes."""
    lines: Printed = []
    if job.fault == "exception":
        error = _Raised(
            'File "/home/user/train.py", line 88, in load_batch', "batch = samples[index]", "KeyError: 'tokens'"
        )
        lines += _traceback(job.culprit, now_s, error)
    remote = _Raised(
        'File "/home/user/train.py", line 61, in step',
        "dist.all_reduce(grads)",
        "torch.distributed.DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:2772, remote process exited or there "
        "was a network error, NCCL version 2.27.5",
    )
    for rank in range(job.n_ranks):
        if rank != job.culprit:
            lines += _traceback(rank, now_s + 0.5 + rank / 100, remote)
    return lines + _launcher_end(job, job.culprit, 1 if job.fault == "exception" else -9, now_s + 1.5)


class _Raised(NamedTuple):
    """An exception as its traceback shows it."""

    frame: str
    code: str
    exception: str


def _traceback(rank: int, at_s: float, error: _Raised) -> Printed:
    texts = ("Traceback (most recent call last):", f"  {error.frame}", f"    {error.code}", error.exception)
    return [(at_s + number / 1e6, rank, f"[rank{rank}]: {text}") for number, text in enumerate(texts)]


def _launcher_end(job: LogJob, rank: int, code: int, at_s: float) -> Printed:
    agent = "torch/distributed/elastic/multiprocessing/api.py"
    lines = [
        f"W1118 {_clock(at_s)} 4000 {agent}:908] Sending process {4001 + other} closing signal SIGTERM"
        for other in range(job.n_ranks)
        if other != rank
    ]
    failed = f"failed (exitcode: {code}) local_rank: {rank} (pid: {4001 + rank}) of binary: /usr/bin/python"
    lines.append(f"E1118 {_clock(at_s)} 4000 {agent}:882] {failed}")
    return [(at_s + number / 1e6, -1, line) for number, line in enumerate(lines)]


def _logged(job: LogJob, rank: int, at_s: float, level: str, number: int, text: str) -> str:
    stamp = "" if job.release == "2.3" else f"1118 {_clock(at_s)}000"
    return f"[rank{rank}]:[{level}{stamp} ProcessGroupNCCL.cpp:{number}] {text}"


def _clock(at_s: float) -> str:
    minutes, seconds = divmod(at_s, 60)
    hours, minutes = divmod(int(minutes), 60)
    return f"{hours:02d}:{minutes:02d}:{seconds:09.6f}"
