"""What the launcher does when the job is over: what ranks could not finish themselves, as they were killed."""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from rankscope.collect import manifest, requests
from rankscope.collect.dumps import stacks, worker_stacks
from rankscope.collect.files import PARTIAL
from rankscope.collect.launching import child_exits, folders, nsys
from rankscope.collect.run import LEFT

# Written line by line while the job runs: whole up to the last line.
_LINES = {"metrics_{rank}.jsonl": "metrics", "host_{rank}.jsonl": "host", "torch_logs_{rank}.txt": "torch_logs"}
_PROFILED = {
    "torch_et_{rank}.json": "execution_trace",
    "kineto_trace_{rank}.json": "kineto",
    "kineto_clean_{rank}.json": "kineto_clean",
}
# What a rank's part of the manifest may lack: it is written at the start, with each dump, and at the end.
_FILES = {
    **_LINES,
    **{name + packed: what for name, what in _PROFILED.items() for packed in ("", ".gz")},
    "nccl_trace_rank_{rank}": "recorder",
    "rankscope_trace_rank_{rank}": "desync",
    "desync_{rank}.txt": "desync",
    "stacks_{rank}.txt": "stacks",
    **{nsys.REPORT + suffix: nsys.Nsys.NAME for suffix in nsys.SUFFIXES},
}
KILLED = "the rank did not exit normally: it was killed or it crashed"
KILLED_HINT = "its files are from its last dump; check the job's output and the kernel log for why it ended"

Part = dict[str, Any]


def finish(folder: Path, run: Mapping[str, Any]) -> None:
    """Completes the files of the ranks that ran here, and writes the manifest. OSError: the folder is gone."""
    about = _with_other_launchers(folder, run)
    codes = child_exits.take(folder)
    for attempt in folders.places(folder):
        for part in manifest.read_parts(attempt):
            if part.get("host") == socket.gethostname() and not _is_running(part):
                manifest.write_part(attempt, part["rank"], _completed(attempt, part, codes.get(part["pid"])))
        requests.take_back(attempt)
        manifest.write_whole(attempt, about)


def _with_other_launchers(folder: Path, run: Mapping[str, Any]) -> dict[str, Any]:
    """Several nodes are one run: it began with the first of them, and failed if it failed on one."""
    try:
        other = json.loads((folder / manifest.NAME).read_text(encoding="utf-8"))["run"]
        is_same = other["id"] == run["id"]
    except (OSError, ValueError, KeyError, TypeError):
        is_same = False
    if not is_same:
        return dict(run)
    code = other.get("exit_code") or run["exit_code"]
    return {**run, "exit_code": code, "started_ns": min(other["started_ns"], run["started_ns"])}


def unfinished(folder: Path) -> list[int]:
    """Ranks that still run: those of other nodes, or what the job has left behind."""
    return sorted({part["rank"] for part in all_parts(folder) if part.get("ended_ns") is None})


def all_parts(folder: Path) -> Iterator[Part]:
    for attempt in folders.places(folder):
        yield from manifest.read_parts(attempt)


def _is_running(part: Part) -> bool:
    try:
        os.kill(part["pid"], 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True


def _completed(attempt: Path, part: Part, code: int | None) -> Part:
    rank = part["rank"]
    problems = list(part["problems"])
    has_left = part.get("ending") == LEFT and not code
    if part["ended_ns"] is None and not has_left:
        problems.append({"what": "rank", "problem": KILLED, "hint": KILLED_HINT})
    for name in (template.format(rank=rank) for template in _LINES):
        _finish_lines(attempt / f"{name}.{part['pid']}{PARTIAL}", attempt / name)
    stacks.publish_left_behind(attempt, rank)
    worker_stacks.clean(attempt, part["pid"])
    known = {record["file"] for record in part["got"]}
    names = [(what, template.format(rank=rank)) for template, what in _FILES.items()]
    records = {name: {"what": what, "file": name, "n_bytes": n} for what, name in names if (n := _size(attempt / name))}
    got = [*part["got"], *(record for name, record in records.items() if name not in known)]
    ended = part["ended_ns"] or time.time_ns()
    noted = {} if code is None else {"exit_code": code}
    return {**part, "got": got, "problems": problems, "ended_ns": ended, **noted}


def _finish_lines(partial: Path, final: Path) -> None:
    """Cuts a line that was begun, and gives the file its name."""
    try:
        with partial.open("r+b") as file:
            content = file.read()
            file.truncate(content.rfind(b"\n") + 1)
        if content and not final.exists():
            partial.rename(final)
    except FileNotFoundError:
        pass  # there was none


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0
