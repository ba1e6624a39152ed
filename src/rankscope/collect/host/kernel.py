"""What the kernel says about the main thread and its machine. Whatever it does not report is left out."""

from __future__ import annotations

import os
import sys
from typing import Any

_CGROUP = "/sys/fs/cgroup"
_FIRST_IS_FILE = ("read", "write", "pread64", "pwrite64", "readv", "writev", "fsync", "fdatasync", "recvfrom", "sendto")
# Calls that a thread sleeps in, by their number.
_CALLS = {
    "x86_64": {
        0: "read", 1: "write", 7: "poll", 17: "pread64", 18: "pwrite64", 19: "readv", 20: "writev", 23: "select",
        35: "nanosleep", 42: "connect", 43: "accept", 44: "sendto", 45: "recvfrom", 46: "sendmsg", 47: "recvmsg",
        61: "wait4", 73: "flock", 74: "fsync", 75: "fdatasync", 202: "futex", 230: "clock_nanosleep", 232: "epoll_wait",
        247: "waitid", 257: "openat", 270: "pselect6", 271: "ppoll", 281: "epoll_pwait",
    },
    "aarch64": {
        22: "epoll_pwait", 32: "flock", 56: "openat", 63: "read", 64: "write", 65: "readv", 66: "writev", 67: "pread64",
        68: "pwrite64", 72: "pselect6", 73: "ppoll", 82: "fsync", 83: "fdatasync", 95: "waitid", 98: "futex",
        101: "nanosleep", 115: "clock_nanosleep", 202: "accept", 203: "connect", 206: "sendto", 207: "recvfrom",
        211: "sendmsg", 212: "recvmsg", 260: "wait4",
    },
}  # fmt: skip


class Counters:
    """Files of /proc that are read again and again, without looking up anything."""

    def __init__(self, thread: int) -> None:
        self._task = f"/proc/self/task/{thread}"
        self._calls = _CALLS.get(os.uname().machine, {}) if hasattr(os, "uname") else {}

    def main_thread(self) -> tuple[str, int, int]:
        """State, nanoseconds on a core and nanoseconds of waiting for one, since the thread began; "" if unknown."""
        try:
            state = text(f"{self._task}/stat").rpartition(")")[2].split()[0]
            ran, waited = text(f"{self._task}/schedstat").split()[:2]
            return state, int(ran), int(waited)
        except (ValueError, IndexError):
            return "", 0, 0

    def waits_in(self) -> str:
        """The system call that the main thread sleeps in, with its file; else the kernel's function, or nothing."""
        number, _, rest = text(f"{self._task}/syscall").partition(" ")
        call = self._calls.get(int(number)) if number.isdecimal() else None
        if call is None:
            name = text(f"{self._task}/wchan").strip()
            return "" if name == "0" else name[:80]
        if call not in _FIRST_IS_FILE:
            return call
        try:
            return f"{call} {os.readlink(f'/proc/self/fd/{int(rest.split()[0], 16)}')}"[:200]
        except (OSError, ValueError, IndexError):
            return call

    def cpu_of(self, thread: int) -> int:
        """Nanoseconds that a thread has spent on a core."""
        ran = text(f"/proc/self/task/{thread}/schedstat").split()
        return int(ran[0]) if ran else 0

    def process(self) -> tuple[int, int, int, int]:
        """Bytes read and written by calls of this process, its resident bytes and its threads."""
        read = written = 0
        for line in text("/proc/self/io").splitlines():
            key, _, value = line.partition(": ")
            read = int(value) if key == "rchar" else read
            written = int(value) if key == "wchar" else written
        resident = text("/proc/self/statm").split()
        n_bytes = int(resident[1]) * os.sysconf("SC_PAGE_SIZE") if len(resident) > 1 else 0
        threads = text("/proc/self/stat").rpartition(")")[2].split()
        return read, written, n_bytes, int(threads[17]) if len(threads) > 17 else 0


def cpu_of_process_ns() -> int:
    spent = os.times()
    return int((spent.user + spent.system) * 1e9)


def machine() -> dict[str, Any]:
    """Cores, limits and threads, as they are now."""
    about: dict[str, Any] = {"n_cores": os.cpu_count() or 0}
    if hasattr(os, "sched_getaffinity"):
        about["n_usable_cores"] = len(os.sched_getaffinity(0))
    quota, _, period = text(f"{_CGROUP}/cpu.max").strip().partition(" ")
    if quota.isdecimal() and period.isdecimal() and int(period):
        about["cgroup_cores"] = int(quota) / int(period)
    torch = sys.modules.get("torch")
    if torch is not None:
        about["n_torch_threads"] = int(torch.get_num_threads())
    if hasattr(os, "getloadavg"):
        about["load"] = round(os.getloadavg()[0], 2)
    return about


def text(path: str) -> str:
    try:
        with open(path, "rb", buffering=0) as stream:
            return stream.read().decode("utf-8", "replace")
    except OSError:
        return ""
