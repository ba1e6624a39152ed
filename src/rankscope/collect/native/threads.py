"""Where a thread of this process waits in the kernel, and a copy of its stack.

Nothing is stopped and no signal is sent: the kernel reports the stack pointer of a thread that waits in a system call,
and copies memory without a fault when the thread has ended meanwhile.
"""

from __future__ import annotations

import ctypes
import functools
import os
import platform
import re
import sys
from dataclasses import dataclass
from typing import Any, NamedTuple

_MAX_STACK_BYTES = 512 << 10
_MAX_MAPPINGS = 1 << 16
_MAPPING = re.compile(r"([0-9a-f]+)-([0-9a-f]+) (....) ([0-9a-f]+) \S+ \d+ *(.*)")


class Mapping(NamedTuple):
    start: int
    end: int
    is_code: bool
    offset: int  # in the file
    path: str


@dataclass(frozen=True)
class Waiting:
    """A thread in a system call: where it called from, and the part of its stack above."""

    pc: int
    sp: int
    stack: bytes

    def word(self, address: int) -> int | None:
        """The 8 bytes at an address, if they are in the copy."""
        start = address - self.sp
        return int.from_bytes(self.stack[start : start + 8], "little") if 0 <= start <= len(self.stack) - 8 else None


def read_mappings() -> list[Mapping]:
    """What is in the memory of this process, in the order of the addresses."""
    mappings = []
    with open("/proc/self/maps", encoding="utf-8", errors="surrogateescape") as file:
        for line, _ in zip(file, range(_MAX_MAPPINGS), strict=False):
            if match := _MAPPING.match(line):
                start, end, rights, offset, path = match.groups()
                mappings.append(Mapping(int(start, 16), int(end, 16), "x" in rights, int(offset, 16), path))
    return mappings


def waiting_at(thread: int) -> tuple[int, int] | None:
    """Stack pointer and program counter of a thread, by its number in the kernel; None while it runs."""
    try:
        with open(f"/proc/self/task/{thread}/syscall", encoding="ascii") as file:
            words = file.read().split()
    except OSError:  # it has ended, or the kernel does not tell
        return None
    return (int(words[-2], 16), int(words[-1], 16)) if len(words) >= 3 and words[0] != "running" else None


def read_waiting(thread: int, mappings: list[Mapping]) -> Waiting | None:
    """None while it runs, and if it moved on while its stack was copied."""
    before = waiting_at(thread)
    if before is None:
        return None
    sp, pc = before
    end = next((each.end for each in mappings if each.start <= sp < each.end), 0)
    stack = _copy(sp, min(end - sp, _MAX_STACK_BYTES)) if end else b""
    return Waiting(pc, sp, stack) if stack and waiting_at(thread) == before else None


class _Span(ctypes.Structure):
    _fields_ = (("base", ctypes.c_void_p), ("length", ctypes.c_size_t))


def why_unreadable() -> str:
    """Empty if this machine and its kernel let a process look at its threads."""
    if sys.platform != "linux" or platform.machine() != "x86_64":
        return "C++ frames are read only on Linux on x86-64"
    try:
        with open("/proc/self/syscall", "rb") as file:
            file.read()
        probe = ctypes.create_string_buffer(b"probe")
        is_copied = _copy(ctypes.addressof(probe), 5) == b"probe"
    except (OSError, AttributeError) as error:
        return f"the kernel does not report where threads wait: {error}"
    return "" if is_copied else "the kernel, or the container, forbids process_vm_readv"


def _copy(address: int, n_bytes: int) -> bytes:
    """Memory of this process, read by the kernel: what is not there any more is an error, not a crash."""
    target = ctypes.create_string_buffer(n_bytes)
    local, remote = _Span(ctypes.addressof(target), n_bytes), _Span(address, n_bytes)
    n_read: int = _reading()(os.getpid(), local, 1, remote, 1, 0)
    return target.raw[:n_read] if n_read > 0 else b""


@functools.cache
def _reading() -> Any:
    """The system call. It is looked up once: the loader may be where the job hangs later."""
    read = ctypes.CDLL(None, use_errno=True).process_vm_readv
    read.restype = ctypes.c_ssize_t
    read.argtypes = (
        ctypes.c_int,
        ctypes.POINTER(_Span),
        ctypes.c_ulong,
        ctypes.POINTER(_Span),
        ctypes.c_ulong,
        ctypes.c_ulong,
    )
    return read
