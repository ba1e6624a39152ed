"""Pickles that a genuine dump never is, written opcode by opcode where the pickle module would not write them."""

from __future__ import annotations

import os
import pickle
from pathlib import Path
from typing import Any

from read.dumps import make_dump, make_entry


class RunsCommand:
    """Unpickled by a plain pickle.load, it runs a shell command."""

    def __init__(self, command: str) -> None:
        self.command = command

    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return os.system, (self.command,)


def command_pickles(marker: Path) -> dict[str, bytes]:
    """Each would create the marker file, were it loaded by pickle.load."""
    payload = RunsCommand(f"touch {marker}")
    function = f"(S'touch {marker}'\nios\nsystem\n.".encode()
    return {
        "at-top": pickle.dumps(payload, protocol=2),
        "protocol-0": pickle.dumps(payload, protocol=0),
        "protocol-5": pickle.dumps(payload, protocol=5),
        "as-entry": pickle.dumps(make_dump([make_entry(1), payload]), protocol=2),
        "as-field": pickle.dumps(make_dump([make_entry(1, state=payload)]), protocol=2),
        "as-key": pickle.dumps({"version": "2.10", payload: 1}, protocol=2),
        "after-the-dump": pickle.dumps(make_dump([make_entry(1)], version=payload), protocol=4),
        "instance-opcode": b"\x80\x02" + function,
        "object-opcode": b"\x80\x02}(cos\nsystem\nS'touch " + str(marker).encode() + b"'\no.",
    }


def nested(depth: int) -> bytes:
    """A list in a list in a list ..."""
    return b"\x80\x02}(X\x07\x00\x00\x00entries" + b"]" * depth + b"a" * (depth - 1) + b"u."


def shared(value: Any, times: int) -> list[Any]:
    return [value] * times


def unfolding(levels: int, width: int = 10) -> list[Any]:
    """Small in the file, width ** levels numbers when it is written out."""
    value: list[Any] = [1] * width
    for _ in range(levels - 1):
        value = [value] * width
    return value


# A string of 4 GB is announced, and ten bytes follow.
ANNOUNCES_MUCH = b"\x80\x04}(\x8d\x00\x00\x00\x00\x01\x00\x00\x00" + b"x" * 10
ANNOUNCES_LONG = b"\x80\x02}(X\x07\x00\x00\x00entries\x8b\xff\xff\xff\x7f" + b"\x01" * 10
FAR_MEMO = b"\x80\x02}r\xff\xff\xff\x7f."
ABSENT_MEMO = b"\x80\x02}(h\x07u."
SELF_REFERENCE = b"\x80\x02}q\x00(X\x07\x00\x00\x00entriesh\x00u."
LIST_OF_ITSELF = b"\x80\x02}(X\x07\x00\x00\x00entries]q\x00h\x00au."
EXTENSION = b"\x80\x02\x82\x01."
PERSISTENT = b"\x80\x02X\x01\x00\x00\x00aQ."
