"""Dumps of a pipeline whose stages exchange batches (batch_isend_irecv), run until it ends or hangs."""

from __future__ import annotations

import pickle
from collections import defaultdict
from pathlib import Path
from typing import Any

Half = tuple[str, int]  # send or recv, and the other rank
Step = tuple[Half, ...]  # transfers that are posted together; none: the all_reduce at the end of a training step
Program = list[Step]

ALL_REDUCE: Step = ()
_LINES = {("recv", -1): 101, ("send", 1): 102, ("recv", 1): 103, ("send", -1): 104}


def one_forward_one_backward(n_ranks: int, n_microbatches: int, n_steps: int) -> list[Program]:
    programs: list[Program] = [[] for _ in range(n_ranks)]
    for rank, program in enumerate(programs):
        before, after = rank - 1, rank + 1
        is_first, is_last = rank == 0, rank == n_ranks - 1
        n_warm = min(n_ranks - 1 - rank, n_microbatches)
        for _ in range(n_steps):
            for _ in range(n_warm):
                program += [] if is_first else [(("recv", before),)]
                program += [] if is_last else [(("send", after),)]
            program += [] if is_first or n_microbatches == n_warm else [(("recv", before),)]
            for number in range(n_warm, n_microbatches):
                program += [] if is_last else [(("send", after), ("recv", after))]
                if not is_first:
                    is_end = number == n_microbatches - 1
                    program.append((("send", before),) if is_end else (("send", before), ("recv", before)))
            for _ in range(n_warm):
                program += [] if is_last else [(("recv", after),)]
                program += [] if is_first else [(("send", before),)]
            program.append(ALL_REDUCE)
    return programs


class Run:
    """Each rank posts its next step when the one before has ended."""

    def __init__(self, programs: list[Program]) -> None:
        self.programs = programs
        self.created: list[list[int]] = [[] for _ in programs]
        self.done: list[list[int]] = [[] for _ in programs]
        self._posted: dict[Any, set[int]] = defaultdict(set)
        self._counts: dict[Any, int] = defaultdict(int)
        self._keys: dict[int, list[Any]] = {}
        self._now_ns = 10**18
        while sum(self._advance(rank) for rank in range(len(programs))):
            pass

    @property
    def is_hung(self) -> bool:
        return any(len(done) < len(program) for done, program in zip(self.done, self.programs, strict=True))

    def _advance(self, rank: int) -> bool:
        number = len(self.done[rank])
        if number == len(self.programs[rank]):
            return False
        self._now_ns += 10**6
        has_posted = len(self.created[rank]) == number
        if has_posted:
            self.created[rank].append(self._now_ns)
            self._keys[rank] = [self._post(rank, half) for half in self.programs[rank][number] or (("all", 0),)]
        is_over = all(len(self._posted[key]) == key[-1] for key in self._keys[rank])
        if is_over:
            self.done[rank].append(self._now_ns)
        return has_posted or is_over

    def _post(self, rank: int, half: Half) -> Any:
        kind, peer = half
        if kind == "all":
            channel: Any = ("all", rank)
        else:
            channel = (kind, rank, peer)
        number, self._counts[channel] = self._counts[channel], self._counts[channel] + 1
        ends = (rank, peer) if kind == "send" else (peer, rank)
        key = ("all", number, len(self.programs)) if kind == "all" else ("pair", *ends, number, 2)
        self._posted[key].add(rank)
        return key

    def write(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        for rank in range(len(self.programs)):
            (folder / f"nccl_trace_rank_{rank}").write_bytes(pickle.dumps(self._dump(rank), 2))

    def _dump(self, rank: int) -> dict[str, Any]:
        entries: list[dict[str, Any]] = []
        n_collectives = n_batches = 0
        for number, created_ns in enumerate(self.created[rank]):
            step = self.programs[rank][number]
            done_ns = self.done[rank][number] if number < len(self.done[rank]) else None
            n_collectives, n_batches = n_collectives + (not step), n_batches + bool(step)
            common: dict[str, Any] = {
                "collective_seq_id": n_collectives,
                "p2p_seq_id": n_batches,
                "time_created_ns": created_ns,
                "frames": [{"name": "schedule", "filename": "train.py", "line": _line(rank, step)}],
            }
            for half in step:
                arrow = f"{rank}->{half[1]}" if half[0] == "send" else f"{rank}<-{half[1]}"
                of_batch = len(step) > 1
                entries.append(common | _entry(f"{half[0]} {arrow}", None if of_batch else done_ns, is_p2p=True))
            if len(step) != 1:
                entries.append(common | _entry("coalesced" if step else "all_reduce", done_ns, is_p2p=False))
        for number, entry in enumerate(entries):
            entry["record_id"] = entry["op_id"] = number
        members = str(list(range(len(self.programs))))
        return {
            "version": "2.10",
            "pg_config": {"0": {"name": "0", "desc": "default_pg", "ranks": members}},
            "pg_status": {},
            "entries": entries,
        }


def _line(rank: int, step: Step) -> int:
    if len(step) == 1:
        return _LINES[step[0][0], 1 if step[0][1] > rank else -1]
    return (210 if step[0][1] > rank else 220) if step else 90


def _entry(name: str, done_ns: int | None, *, is_p2p: bool) -> dict[str, Any]:
    sizes = [] if name == "coalesced" else [[8, 16]]
    return {
        "pg_id": 0,
        "process_group": ("0", "default_pg"),
        "profiling_name": f"nccl:{name}",
        "input_sizes": sizes,
        "output_sizes": sizes,
        "input_dtypes": ["Float"] * len(sizes),
        "output_dtypes": ["Float"] * len(sizes),
        "state": "scheduled" if done_ns is None else "completed",
        "time_discovered_started_ns": None,
        "time_discovered_completed_ns": done_ns,
        "retired": done_ns is not None,
        "timeout_ms": 600_000,
        "is_p2p": is_p2p,
    }
