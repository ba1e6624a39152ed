"""What a path on the command line stands for: a file or folder of this machine, or all that fit a pattern."""

from __future__ import annotations

import os
import re
from pathlib import Path

from rankscope.errors import InputError, did_you_mean

_DIGITS = re.compile("([0-9]+)")


def exists(path: str) -> bool:
    try:
        os.stat(path)
    except PermissionError as error:
        raise InputError(f"{path}: permission denied", "check the permissions of the file and its folders") from error
    except (OSError, ValueError):
        return False
    return True


def matching(given: str, where: str) -> list[Path]:
    """The path itself, or what fits it as a pattern: a shell leaves a quoted one as it is."""
    path = os.path.expanduser(where)
    if exists(path):
        if not os.path.isfile(path) and not os.path.isdir(path):
            raise InputError(f"{given} is a pipe, a socket or a device", "save its content to a file first")
        return [Path(path)]
    if not any(sign in path for sign in "*?["):
        hint = _close_name(path) or "give the file or folder that has the traces"
        raise InputError(f"{given}: no such file or folder", hint)
    import glob

    matches = sorted(glob.glob(path, recursive=True), key=natural_key)
    if not matches:
        raise InputError(f"{given}: nothing matches this pattern", "check it with: ls; ** also matches subfolders")
    return [Path(match) for match in matches]


def _close_name(path: str) -> str:
    folder, name = os.path.split(path.rstrip("/"))
    try:
        close = did_you_mean(name, os.listdir(folder or "."))
    except OSError:
        return f"there is no folder {folder}"
    return close


def natural_key(name: str) -> list[tuple[int, str]]:
    """Sorts rank_2 before rank_10: of two numbers the longer is the larger, however many digits they have."""
    parts = _DIGITS.split(name)
    parts[1::2] = [part.lstrip("0") for part in parts[1::2]]
    return [(len(part), part) if position % 2 else (-1, part) for position, part in enumerate(parts)]
