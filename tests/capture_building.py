"""Simulated captures of one job by every source: mixed, with junk, of one rank, large, and hostile."""

from __future__ import annotations

import json
import pickle
import random
from pathlib import Path
from typing import Any

from compile_page_building import hostile_log, job_log
from rankscope.simulate import Fault, JobSpec, Mesh, simulate
from rankscope.simulate.profiler import ProfileFault, ProfileSpec, simulate_profile

N_RANKS = 4
# Markup that would run, writing that turns around, what one cannot see, and a name that never ends.
SCRIPT = "<img src=x onerror=\"document.title='owned'\"></script><script>document.title='owned'</script>"
ODD = f"{SCRIPT}\u202e\x00&amp;"
HOSTILE = f"{ODD}{'n' * 10_000}"


def mixed_capture(folder: Path) -> Path:
    """One job by every source: a call is left out, a rank has slow kernels, functions are compiled anew."""
    folder.mkdir()
    simulate(JobSpec(Mesh(dp=2, tp=2), steps=4), Fault("skip", rank=1)).write(folder, "nccl_trace_rank_")
    slow = simulate_profile(
        ProfileSpec(data_parallel=N_RANKS, n_steps=3, n_layers=2, n_microbatches=2), ProfileFault("slow-kernels", 3)
    )
    slow.write(folder, gzip=False, names="kineto_trace_{rank}.json")
    for rank in range(N_RANKS):
        job_log(rank).write(folder / f"compile_{rank}")
        write_metrics(folder, rank, "loss")
    return folder


def one_rank(folder: Path) -> Path:
    """A job of one process: nobody to wait for."""
    folder.mkdir()
    job_log(0).write(folder)
    write_metrics(folder, 0, "loss")
    return folder


def large_capture(folder: Path, n_bytes: int) -> Path:
    """Compilations whose files are larger than a page may be: text that cannot be packed well."""
    folder.mkdir()
    log = job_log(0)
    noise = random.Random(0)
    for number in range(8):
        log.artifact(f"notes_{number}", noise.randbytes(n_bytes // 8).hex(), "0/0")
    log.write(folder)
    return folder


def write_metrics(folder: Path, rank: int, name: str, host: str = "node00") -> None:
    head = {"schema": "rankscope.metrics/1", "rank": rank, "world_size": N_RANKS, "host": host, "pid": 100 + rank}
    values = [
        {"time_ns": 1_768_485_720 * 10**9 + step * 10**8, "step": step, "name": name, "value": 1 / (1 + step + rank)}
        for step in range(20)
    ]
    (folder / f"metrics_{rank}.jsonl").write_text("".join(json.dumps(each) + "\n" for each in (head, *values)))


def add_junk(folder: Path) -> None:
    """What a folder of traces has in it as well, and a dump that ends in the middle."""
    (folder / "core.4711").write_bytes(bytes(range(256)) * 40)
    (folder / "empty.json").write_bytes(b"")
    (folder / "notes.txt").write_text("rank 3 looked slow to me\n")
    (folder / "settings.json").write_text('{"lr": 0.1}')
    (folder / "wandb").mkdir()
    (folder / "wandb" / "run.log").write_text("epoch 1\n" * 100)
    dump = folder / "nccl_trace_rank_2"
    dump.write_bytes(dump.read_bytes()[:-2000])


def hostile_capture(folder: Path) -> Path:
    """The job by every source, with hostile names wherever a job chooses its own."""
    mixed_capture(folder)
    for path in folder.glob("nccl_trace_rank_*"):
        dump = pickle.loads(path.read_bytes())
        path.write_bytes(pickle.dumps(_spoilt_dump(dump)))
    for path in folder.glob("kineto_trace_*"):
        path.write_text(json.dumps(_spoilt_profile(json.loads(path.read_text()))))
    hostile_log().write(folder / "compile_0")
    for rank in range(N_RANKS):
        write_metrics(folder, rank, HOSTILE, HOSTILE)
    odd_folder = folder / SCRIPT.replace("/", "|")
    odd_folder.mkdir()
    (folder / "nccl_trace_rank_2").rename(odd_folder / "nccl_trace_rank_2")
    return folder


def _spoilt_dump(dump: dict[str, Any]) -> dict[str, Any]:
    for group in dump["pg_config"].values():
        group["desc"] += HOSTILE
    for entry in dump["entries"]:
        name, desc = entry["process_group"]
        entry["process_group"] = (name, desc + HOSTILE)
        entry["thread_name"] = ODD
        for frame in entry["frames"]:
            frame["name"] += ODD
            frame["filename"] = frame["filename"].removesuffix(".py") + SCRIPT + ".py"
    dump["entries"][-1]["frames"][2]["name"] += HOSTILE
    dump["entries"][-1]["profiling_name"] = f"nccl:{HOSTILE}"
    return dump


def _spoilt_profile(profile: dict[str, Any]) -> dict[str, Any]:
    profile["host_name"] += HOSTILE
    for device in profile["deviceProperties"]:
        device["name"] += SCRIPT
    for group in profile["distributedInfo"]["pg_config"]:
        group["pg_desc"] += SCRIPT
    for event in profile["traceEvents"]:
        if event.get("cat") in ("kernel", "cpu_op") and "nccl" not in event["name"]:
            event["name"] += ODD
        if event.get("cat") == "user_annotation" and "#" not in event["name"]:
            event["name"] += HOSTILE
    return profile
