"""Where a run's files go: never into the folder of an earlier run, all nodes and ranks of one run into the same."""

from __future__ import annotations

import json
import os
import re
import socket
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from rankscope.collect import manifest

NAME = "run.json"
SCHEMA = "rankscope.run/1"
_MAX_RUNS = 10_000
_READ_ATTEMPTS, _READ_PAUSE_S = 20, 0.05
# What a folder may hold of an earlier run, or of a job that wrote its traces without this package.
_TRACE = re.compile(
    r"(torch_et|kineto_trace|kineto_clean|nccl_trace_rank|rankscope_trace_rank|stacks|torch_logs|nsys|metrics|desync)_\d+\b"
    rf"|(torch_trace|{re.escape(manifest.PARTS)}|{re.escape(manifest.NAME)})$"
)
_RENDEZVOUS_OPTIONS = ("nnodes", "rdzv-id", "rdzv-endpoint", "master-addr", "master-port")


def claim(base: str | Path, run_id: str) -> Path:
    """The folder of the run: `base`, or the first of base/run_2, run_3, ... that holds no other run.

    A process with the id of a running run joins it. OSError: the folder cannot be made or written.
    """
    base = Path(base)
    for number in range(1, _MAX_RUNS):
        folder = base if number == 1 else base / f"run_{number}"
        folder.mkdir(parents=True, exist_ok=True)
        if _is_claimed(folder, run_id):
            return folder
    raise FileExistsError(f"{base} already has {_MAX_RUNS:,} runs")


def claim_rank(folder: Path, rank: int, attempt: int = 0) -> Path:
    """Where a rank writes: `folder`, or the first of its attempt_<k> that this rank has not written into.

    A rank comes again when torchrun restarts it, or when a script starts one job after the other.
    """
    for number in range(attempt, _MAX_RUNS):
        attempt_folder = folder / f"attempt_{number}" if number else folder
        (attempt_folder / manifest.PARTS).mkdir(parents=True, exist_ok=True)
        try:
            os.close(
                os.open(
                    attempt_folder / manifest.PARTS / f"rank_{rank}.json", os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644
                )
            )
        except FileExistsError:
            continue
        return attempt_folder
    raise FileExistsError(f"{folder} already has {_MAX_RUNS:,} attempts")


def places(folder: Path) -> list[Path]:
    """The folder of a run and its attempts, oldest first."""
    attempts = (path for path in folder.glob("attempt_*") if path.name[8:].isdecimal())
    return [folder, *sorted(attempts, key=lambda path: int(path.name[8:]))]


def newest_place(folder: Path) -> Path:
    """Where the ranks of the newest attempt write."""
    written = [attempt for attempt in places(folder) if manifest.read_parts(attempt)]
    return written[-1] if written else folder


def has_rank_since(folder: Path, time_ns: int) -> bool:
    """Whether some process of the run was a rank at that time or later."""
    parts = (part for attempt in places(folder) for part in manifest.read_parts(attempt))
    return any(part.get("ended_ns") is None or part["ended_ns"] >= time_ns for part in parts)


def restart_count(environment: Mapping[str, str] = os.environ) -> int:
    """How often torchrun has started its workers again."""
    count = environment.get("TORCHELASTIC_RESTART_COUNT", "")
    return int(count) if count.isdecimal() else 0


def launcher_run_id(command: Sequence[str], environment: Mapping[str, str] = os.environ) -> str:
    """What the launchers of one job on several nodes agree on; unique where there is one launcher."""
    options = _options(command)
    if _is_several(options.get("nnodes", "")):
        endpoint = options.get("rdzv-endpoint") or ":".join(
            options.get(name, "") for name in ("master-addr", "master-port")
        )
        return f"rdzv-{options.get('rdzv-id', 'none')}@{endpoint}"
    return _cluster_id(environment) or _unique_id()


def job_run_id(environment: Mapping[str, str] = os.environ) -> str:
    """What the ranks of one job agree on, without talking to each other; unique for a process on its own."""
    if cluster_id := _cluster_id(environment):
        return cluster_id
    if environment.get("GROUP_WORLD_SIZE", "1") != "1":  # torchrun on several nodes
        name = environment.get("TORCHELASTIC_RUN_ID", "none")
        where = f"{environment.get('MASTER_ADDR', '')}:{environment.get('MASTER_PORT', '')}"
        return f"rdzv-{name}@{where if name == 'none' else ''}"
    if "RANK" in environment or is_spawned():
        return f"{socket.gethostname()}-{os.getppid()}-{_started(os.getppid())}"  # all have the same parent
    return _unique_id()


def _is_claimed(folder: Path, run_id: str) -> bool:
    """Whether the folder is this run's, after having been made so if it was nobody's."""
    if not (folder / NAME).exists():
        if any(map(_TRACE.match, os.listdir(folder))):
            return False
        if _write_once(folder / NAME, {"schema": SCHEMA, "id": run_id, "host": socket.gethostname()}):
            return True
    return _read_id(folder / NAME) == run_id and not _has_ended(folder)


def _write_once(path: Path, content: Mapping[str, str]) -> bool:
    """False when another process was first."""
    text = json.dumps(content) + "\n"
    partial = manifest.unique_beside(path)
    try:
        partial.write_text(text, encoding="utf-8")
        try:
            os.link(partial, path)  # unlike O_EXCL it shows nobody an empty file
        except FileExistsError:
            return False
        except OSError:  # a file system without hard links
            try:
                with path.open("x", encoding="utf-8") as file:
                    file.write(text)
            except FileExistsError:
                return False
    finally:
        partial.unlink(missing_ok=True)
    return True


def _read_id(path: Path) -> str | None:
    for _ in range(_READ_ATTEMPTS):
        try:
            value = json.loads(path.read_text(encoding="utf-8"))
        except ValueError:  # another node is just writing it
            time.sleep(_READ_PAUSE_S)
            continue
        except OSError:
            return None
        return str(value.get("id")) if isinstance(value, dict) else None
    return None


def _has_ended(folder: Path) -> bool:
    """A job may be started again with the same rendezvous: that is another run."""
    try:
        about = json.loads((folder / manifest.NAME).read_text(encoding="utf-8"))["run"]
        return about.get("ended_ns") is not None
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return False


def _options(command: Sequence[str]) -> dict[str, str]:
    """torchrun's options that distinguish several nodes from one, as --name value or --name=value."""
    options: dict[str, str] = {}
    for position, word in enumerate(command):
        name, equals, value = word.lstrip("-").partition("=")
        name = name.replace("_", "-")
        if word.startswith("--") and name in _RENDEZVOUS_OPTIONS:
            options.setdefault(name, value if equals else "".join(command[position + 1 : position + 2]))
    return options


def _is_several(n_nodes: str) -> bool:
    return bool(n_nodes) and n_nodes.rpartition(":")[2] != "1"


def _cluster_id(environment: Mapping[str, str]) -> str:
    """The id of a Slurm step or MPI job with several tasks: each task has its own launcher, or is a rank."""
    if environment.get("SLURM_STEP_NUM_TASKS", "1") != "1":
        names = ("SLURM_JOB_ID", "SLURM_STEP_ID", "SLURM_RESTART_COUNT")
        return "-".join(["slurm", *(environment.get(name, "0") for name in names)])
    return environment.get("PMIX_NAMESPACE", "")


def _unique_id() -> str:
    return f"{socket.gethostname()}-{os.getpid()}-{time.time_ns():x}"


def is_spawned() -> bool:
    process = sys.modules.get("multiprocessing.process")
    return process is not None and process.parent_process() is not None


def _started(pid: int) -> str:
    """Ticks since boot, as numbers of processes come again."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace")
        return stat.rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        return "0"
