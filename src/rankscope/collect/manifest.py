"""manifest.json: what ran where, what was requested and what was recorded.

Each rank writes its own part into manifest.d; a process that ends merges all parts that exist. So no two
processes ever wait for each other.
"""

from __future__ import annotations

import json
import os
import re
import socket
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

SCHEMA = "rankscope.manifest/1"
PART_SCHEMA = "rankscope.manifest-part/1"
PARTS = "manifest.d"
NAME = "manifest.json"

_TELLING = re.compile(
    r"(TORCH|NCCL|PYTORCH|GLOO|CUDA|HIP|ROCR|OMP|MKL|UCX|FI|TP_SOCKET|TRITON|SLURM|LOCAL|GROUP|ROLE|NODE)_"
    r"|(RANK|WORLD_SIZE|MASTER_ADDR|MASTER_PORT|HOSTNAME|PYTHONPATH|PYTHONHASHSEED|PYTHONUNBUFFERED)$"
)
_SECRET = re.compile(r"TOKEN|KEY|SECRET|PASSW|CREDENTIAL|AUTH|COOKIE|SESSION|SIGNATURE", re.IGNORECASE)
_IN_URL = re.compile(r"(?<=://)[^/@\s]+@")
HIDDEN = "(hidden)"


def telling_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """The variables that change how torch, NCCL or the launcher behave. Nothing that may be a secret."""
    names = sorted(name for name in environment if _TELLING.match(name) and not _SECRET.search(name))
    return {name: _IN_URL.sub("", environment[name])[:2000] for name in names}


def telling_command(arguments: Sequence[str]) -> list[str]:
    """A command line, the values of options that sound secret left out."""
    shown: list[str] = []
    hides_next = False
    for argument in arguments:
        name, equals, _ = argument.partition("=")
        is_option = argument.startswith("-") or bool(equals)
        if hides_next and not argument.startswith("-"):
            shown.append(HIDDEN)
        elif equals and is_option and _SECRET.search(name):
            shown.append(f"{name}={HIDDEN}")
        else:
            shown.append(_IN_URL.sub("", argument)[:2000])
        hides_next = argument.startswith("-") and not equals and bool(_SECRET.search(name))
    return shown


def write_part(folder: Path, rank: int, part: Mapping[str, Any]) -> None:
    (folder / PARTS).mkdir(exist_ok=True)
    _write(folder / PARTS / f"rank_{rank}.json", {"schema": PART_SCHEMA, **part})


def write_whole(folder: Path, run: Mapping[str, Any] | None = None) -> None:
    """Makes manifest.json of the parts; again when another rank has ended meanwhile, as it may have seen fewer."""
    seen: list[str] | None = None
    while (names := _part_names(folder)) != seen:
        seen = names
        ranks = [part for name in names if (part := _read(folder / PARTS / name))]
        for part in ranks:
            part.pop("schema", None)
        ranks.sort(key=lambda part: part.get("rank", -1))
        about = run or _read(folder / NAME).get("run") or {}
        _write(folder / NAME, {"schema": SCHEMA, "run": about, "ranks": ranks})


def read_parts(folder: Path) -> list[dict[str, Any]]:
    return [part for name in _part_names(folder) if (part := _read(folder / PARTS / name))]


def unique_beside(path: Path) -> Path:
    """A name that no other thread, process or host uses for what it is about to write to the same place."""
    return path.with_name(f"{path.name}.{socket.gethostname()}.{os.getpid()}.{threading.get_ident()}.partial")


def _part_names(folder: Path) -> list[str]:
    try:
        return sorted(name for name in os.listdir(folder / PARTS) if name.endswith(".json"))
    except OSError:
        return []


def _read(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return value if isinstance(value, dict) else {}


def _write(path: Path, value: Mapping[str, Any]) -> None:
    partial = unique_beside(path)
    try:
        partial.write_text(json.dumps(value, indent=1) + "\n", encoding="utf-8")
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)
