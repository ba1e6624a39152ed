"""Folders of Flight Recorder dumps for the pages fr_trace and loader."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from rankscope.simulate import Fault, JobSpec, Mesh, Noise, simulate
from read.dumps import make_dump, make_entry, write_dump

PREFIX = "nccl_trace_rank_"
_WORLD = {"pg_config": {"0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1, 2, 3]"}}, "pg_status": {}}
_SPEC = JobSpec(Mesh(dp=4, tp=1), steps=3)


def _simulated(fault: str, noise: Noise | None = None) -> Callable[[Path], object]:
    def build(folder: Path) -> object:
        return simulate(_SPEC, Fault(fault, rank=2, step=2), noise or Noise()).write(folder)

    return build


def _written(calls: Callable[[int], list[dict[str, Any]]]) -> Callable[[Path], object]:
    def build(folder: Path) -> None:
        for rank in range(4):
            entries = [{**entry, "record_id": number} for number, entry in enumerate(calls(rank))]
            write_dump(folder / f"{PREFIX}{rank}", make_dump(entries, **_WORLD))

    return build


def _ended(seq: int, **fields: Any) -> dict[str, Any]:
    at = 10**9 * (seq + 2)
    return make_entry(seq, state="completed", retired=True, time_discovered_completed_ns=at, **fields)


def _broadcasting(rank: int) -> list[dict[str, Any]]:
    """Rank 3 does not complete the broadcast that the others complete."""
    broadcast = {"profiling_name": "nccl:broadcast"}
    return [_ended(1), make_entry(2, **broadcast) if rank == 3 else _ended(2, **broadcast)]


def _coalescing(rank: int) -> list[dict[str, Any]]:
    """Two gathers in one coalesced group; then rank 2 does not reach the next all_reduce."""
    gather = {"profiling_name": "nccl:_all_gather_base"}
    trailer: dict[str, list[Any]] = {"input_sizes": [], "output_sizes": [], "input_dtypes": [], "output_dtypes": []}
    return [
        make_entry(1, **gather, input_sizes=[[4]], output_sizes=[[16]]),
        make_entry(1, **gather, input_sizes=[[8]], output_sizes=[[32]]),
        _ended(1, profiling_name="nccl:ALLGATHER_coalesced", **trailer),
        *([make_entry(2)] if rank != 2 else []),
    ]


def _exchanging(rank: int) -> list[dict[str, Any]]:
    sizes = {"input_sizes": [[8]], "output_sizes": [[8 if rank else 9]]}
    return [_ended(1), make_entry(2, profiling_name="nccl:all_to_all", **sizes)]


def _batching(rank: int) -> list[dict[str, Any]]:
    """Every rank sends to the next and receives from the one before, in one batch; rank 3 never makes its own."""
    batch = {"p2p_seq_id": 1, "collective_seq_id": 1}
    trailer: dict[str, list[Any]] = {"input_sizes": [], "output_sizes": [], "input_dtypes": [], "output_dtypes": []}
    return [_ended(1)] + [
        make_entry(2, profiling_name=f"nccl:send {rank}->{(rank + 1) % 4}", is_p2p=True, **batch),
        make_entry(2, profiling_name=f"nccl:recv {rank}<-{(rank - 1) % 4}", is_p2p=True, **batch),
        make_entry(2, profiling_name="nccl:coalesced", **trailer, **batch),
    ] * (rank != 3)


def _untyped(rank: int) -> list[dict[str, Any]]:
    """The dump of rank 1 has no types, as before layout 2.1; rank 2 does not reach the last call."""
    calls = [_ended(1), make_entry(2)] if rank != 2 else [_ended(1)]
    return [{name: value for name, value in call.items() if rank != 1 or "dtypes" not in name} for call in calls]


def _incomplete(folder: Path) -> None:
    _simulated("op")(folder)
    (folder / f"{PREFIX}3").unlink()


def _hosts_in_names(folder: Path) -> None:
    for path in simulate(_SPEC, Fault("op", rank=2, step=2)).write(folder):
        path.rename(folder / f"gpu{int(path.name[-1]) // 2}-mydump_{path.name[-1]}")


def _nested(folder: Path) -> None:
    for path in simulate(_SPEC, Fault("op", rank=2, step=2)).write(folder):
        host = folder / f"gpu{int(path.name[-1]) // 2}"
        host.mkdir(exist_ok=True)
        path.rename(host / path.name)


def _two_runs(folder: Path) -> None:
    simulate(_SPEC).write(folder, prefix="monday_")
    simulate(_SPEC, Fault("op", rank=2, step=2)).write(folder, prefix="tuesday_")


def _replicas(folder: Path) -> None:
    """Two replicas of a torchft job, each of which numbers its ranks from 0; the fault is in the second."""
    for first, fault in ((0, None), (4, Fault("op", rank=1))):
        for rank, dump in simulate(JobSpec(Mesh(dp=2, tp=2)), fault).dumps():
            folder.mkdir(exist_ok=True)
            (folder / f"{PREFIX}{first + rank}").write_bytes(pickle.dumps(dump, protocol=2))


def _damaged(folder: Path) -> None:
    _simulated("op")(folder)
    path = folder / f"{PREFIX}3"
    path.write_bytes(path.read_bytes()[:87])


def _hostile(folder: Path) -> None:
    """A pickle that would run a command when it is loaded by pickle.load."""
    _simulated("op")(folder)
    (folder / f"{PREFIX}3").write_bytes(b"cos\nsystem\n(S'touch run-by-pickle'\ntR.")


def _no_dumps(folder: Path) -> None:
    folder.mkdir()
    (folder / "notes.txt").write_text("dumps go here\n")


DUMP_SCENES: Mapping[str, Callable[[Path], object]] = {
    "stuck": _simulated("stuck"),
    "sizes": _simulated("size"),
    "types": _simulated("dtype"),
    "wrapped": _simulated("stuck", Noise(ring=6)),
    "layouts": _simulated("op", Noise(version="mixed")),
    "broadcast": _written(_broadcasting),
    "coalesced": _written(_coalescing),
    "exchange": _written(_exchanging),
    "batches": _written(_batching),
    "untyped": _written(_untyped),
    "incomplete": _incomplete,
    "hosts": _hosts_in_names,
    "nested": _nested,
    "runs": _two_runs,
    "replicas": _replicas,
    "damaged": _damaged,
    "hostile": _hostile,
    "nodumps": _no_dumps,
}
