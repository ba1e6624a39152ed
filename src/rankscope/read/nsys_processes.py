"""Which ranks the processes of an nsys export are, where they ran and on which devices."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rankscope.model.numbers import integer, is_number
from rankscope.model.tables import MISSING
from rankscope.read.files import Source
from rankscope.read.nsys_export import Export

# Set by torchrun, Open MPI, PMIx, MPICH and SLURM for each process that they start.
_RANK_VARIABLES = ("RANK", "OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "SLURM_PROCID", "LOCAL_RANK")
_NODE_VARIABLES = ("GROUP_RANK", "NODE_RANK", "SLURM_NODEID")
_WORLD_VARIABLES = ("WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_NTASKS")
_WANTED = (*_RANK_VARIABLES, *_NODE_VARIABLES, *_WORLD_VARIABLES)
_RANK_IN_NAME = re.compile(r"(?:rank|nsys|gpu|worker)[-_.]?(\d{1,6})(?!\d)", re.IGNORECASE)
_NODE_IN_NAME = re.compile(r"(?:node|host)[-_.]?(\d{1,6})(?!\d)", re.IGNORECASE)
_RANK_IN_ARGUMENT = re.compile(r"^--(?:local[-_])?rank=(\d{1,9})$")


@dataclass(frozen=True)
class Ranks:
    of: Mapping[int, int]  # process -> rank
    world_size: int
    note: str  # how the ranks were found, where the export does not say them


def find_ranks(
    export: Export, source: Source, processes: Sequence[int], joined: Mapping[int, tuple[int, int]]
) -> Ranks:
    """`processes` in the order of their devices; `joined`: rank and size of the largest communicator of each."""
    variables = _variables(export)
    world_size = _first(variables, _WORLD_VARIABLES)
    seen = {process: joined[process][0] for process in processes if process in joined}
    is_told = len(seen) == len(processes) == len(set(seen.values()))
    largest = max((n_ranks for _, n_ranks in joined.values()), default=MISSING)
    if len(processes) == 1:
        rank, note = _single_rank(export, source, variables)
        if note and is_told:
            rank, note = seen[processes[0]], "its rank was taken from its largest NCCL communicator"
        return Ranks({processes[0]: rank}, world_size if world_size > 0 else largest, note)
    # The launcher's own variables count launchers, one per node: only a size beyond this node's can be that of the job.
    if is_told and (world_size <= len(processes) or world_size == largest):
        note = "" if world_size == largest else "its rank was taken from its largest NCCL communicator"
        return Ranks(seen, largest, note)
    node = _first(variables, _NODE_VARIABLES)
    if node < 0:
        named = _NODE_IN_NAME.search(_name(source))
        node = integer(named.group(1)) if named else 0
    ranks = {process: node * len(processes) + index for index, process in enumerate(processes)}
    return Ranks(ranks, largest, "its rank was inferred from the order of the processes' devices")


def _single_rank(export: Export, source: Source, variables: Mapping[str, int]) -> tuple[int, str]:
    rank = _first(variables, _RANK_VARIABLES)
    if rank >= 0:
        return rank, ""
    for _, value in _capture(export):
        if match := _RANK_IN_ARGUMENT.match(value):
            return integer(match.group(1)), ""
    if named := _RANK_IN_NAME.search(_name(source)):
        return integer(named.group(1)), ""
    if source.rank >= 0:
        return source.rank, "its rank was inferred from the number in its name"
    return 0, "its rank is unknown: assumed to be rank 0"


def _name(source: Source) -> str:
    parts = source.shown.replace("!", "/").rsplit("/", 2)
    return parts[-2] if parts[-1].endswith(".parquet") and len(parts) > 1 else parts[-1]


def _first(variables: Mapping[str, int], names: Sequence[str]) -> int:
    return next((variables[name] for name in names if name in variables), MISSING)


def _capture(export: Export) -> list[tuple[str, str]]:
    return [(str(name), str(value)) for name, value in export.rows("META_DATA_CAPTURE", ("name", "value"))]


def _variables(export: Export) -> dict[str, int]:
    """The numbers among the wanted variables of the environment. All others may be secrets and are not read."""
    assigned = [value for name, value in _capture(export) if name.endswith(":ENVIRONMENT_VARIABLE")]
    for name, value in export.rows("TARGET_INFO_SYSTEM_ENV", ("name", "value")):
        if name == "DeviceEnvironment":
            assigned += str(value).split(";")
    numbers: dict[str, int] = {}
    for assignment in assigned:
        name, _, value = assignment.partition("=")
        value = value.strip('"')
        if name in _WANTED and is_number(value):
            numbers.setdefault(name, integer(value))
    return numbers


def find_host(export: Export) -> str:
    for name, value in export.rows("TARGET_INFO_SYSTEM_ENV", ("name", "value")):
        if name == "Hostname":
            return str(value)
    return ""


def start_time(export: Export) -> int:
    """When the capture began, in nanoseconds since the epoch; MISSING where an old version did not write it."""
    for (value,) in export.rows("TARGET_INFO_SESSION_START_TIME", ("utcEpochNs",)):
        if isinstance(value, int) and 0 < value < 2**62:
            return value
    return MISSING


def find_devices(export: Export, pid: int) -> list[dict[str, Any]]:
    """The devices as the process numbers them, which is not how the host does when some were hidden from it."""
    columns = ("id", "name", "smCount", "totalMemory", "maxWarpsPerSm", "threadsPerWarp")
    present = {row[0]: row for row in export.rows("TARGET_INFO_GPU", columns)}
    numbered = {
        cuda_id: gpu_id
        for gpu_id, cuda_id, owner in export.rows("TARGET_INFO_CUDA_DEVICE", ("gpuId", "cudaId", "pid"))
        if owner == pid and gpu_id in present
    }
    numbered = numbered or {gpu_id: gpu_id for gpu_id in present}
    return [_device(number, present[gpu_id]) for number, gpu_id in sorted(numbered.items()) if isinstance(number, int)]


def _device(number: int, row: Sequence[Any]) -> dict[str, Any]:
    _, name, n_sms, n_bytes, n_warps, n_warp = row
    numbers = {"n_sms": n_sms, "n_bytes": n_bytes, "n_warp": n_warp}
    if isinstance(n_warps, int) and isinstance(n_warp, int):
        numbers["max_threads"] = n_warps * n_warp
    known = {column: value for column, value in numbers.items() if isinstance(value, int) and 0 < value < 2**31}
    if isinstance(n_bytes, int) and 0 < n_bytes < 2**62:
        known["n_bytes"] = n_bytes
    return {"device": number, "name": str(name or ""), **known}
