"""What the kernel says about threads of this process. Whatever it does not report is left out."""

from __future__ import annotations

import os
import socket
import sys

_FIRST_IS_FILE = ("read", "write", "pread64", "pwrite64", "readv", "writev", "fsync", "fdatasync", "recvfrom", "sendto")
RUNS, SLEEPS, DISK = "R", "S", "D"
PAGE_FAULT = "page fault"
_STANDARD = {1: "stdout", 2: "stderr"}
_MAX_ENDS = 256  # sockets whose other end is kept
_MAX_CONNECTIONS = 1 << 22  # bytes of the table of connections that are looked through
_MAX_TASKS = 256  # threads that are looked at, of a process with more
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


class Standing:
    """A file of /proc that is read again and again through one descriptor: a call, and no search for its name."""

    def __init__(self, path: str) -> None:
        self._path, self._descriptor = path, -1

    def text(self) -> str:
        """Empty where it cannot be read. A job that closes all files takes the descriptor away."""
        for _ in range(2):
            try:
                if self._descriptor < 0:
                    self._descriptor = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
                return os.pread(self._descriptor, 4096, 0).decode("ascii", "replace")
            except OSError:
                self._descriptor = -1  # not closed: it may be the job's own by now
        return ""

    def reopen(self) -> None:
        """What it says is not what such a file says: the job has closed it and opened another one."""
        self._descriptor = -1

    def close(self) -> None:
        descriptor, self._descriptor = self._descriptor, -1
        try:
            if descriptor >= 0 and os.readlink(f"/proc/self/fd/{descriptor}").startswith("/proc/"):
                os.close(descriptor)
        except OSError:
            pass


class Counters:
    """Of one thread: how it is found, and how long it ran and waited for a core."""

    def __init__(self, thread: int) -> None:
        self._task = f"/proc/self/task/{thread}"
        self._calls = _CALLS.get(os.uname().machine, {}) if hasattr(os, "uname") else {}
        self._ends: dict[str, str] = {}
        self._times, self._call = Standing(f"{self._task}/schedstat"), Standing(f"{self._task}/syscall")

    def close(self) -> None:
        self._times.close()
        self._call.close()

    def times(self) -> tuple[int, int]:
        """Nanoseconds on a core and nanoseconds of waiting for one, since the thread began."""
        words = self._times.text().split()
        if len(words) != 3 or not all(word.isdecimal() for word in words):
            self._times.reopen()
            return 0, 0
        return int(words[0]), int(words[1])

    def state(self) -> tuple[str, str]:
        """Whether it runs, and if it does not: the system call that it sleeps in, with its file, as far as known."""
        number, _, rest = self._call.text().partition(" ")
        if number.strip() == "running":
            return RUNS, ""
        if number == "-1":
            return DISK, PAGE_FAULT
        call = self._calls.get(int(number)) if number.isdecimal() else None
        if call is None:
            return self._state_without_call()
        if call not in _FIRST_IS_FILE:
            return SLEEPS, call
        try:
            return SLEEPS, f"{call} {self._target(int(rest.split()[0], 16))}"[:200]
        except (OSError, ValueError, IndexError):
            return SLEEPS, call

    def _target(self, descriptor: int) -> str:
        """The file behind it; of a socket the other end, looked up once."""
        link = os.readlink(f"/proc/self/fd/{descriptor}")
        if link.startswith("socket:["):
            if link not in self._ends and len(self._ends) < _MAX_ENDS:
                self._ends[link] = other_end(link[8:-1])
            return self._ends.get(link) or link
        return f"{_STANDARD[descriptor]} ({link})" if descriptor in _STANDARD else link

    def _state_without_call(self) -> tuple[str, str]:
        self._call.reopen()
        state = text(f"{self._task}/stat").rpartition(")")[2].split()[:1]
        name = text(f"{self._task}/wchan").strip() if state and state[0] != RUNS else ""
        return (state[0] if state else ""), "" if name == "0" else name[:80]


def other_end(inode: str) -> str:
    """Address and port that a TCP socket of this process is connected to; empty if there is none."""
    for name, family in (("tcp", socket.AF_INET), ("tcp6", socket.AF_INET6)):
        try:
            with open(f"/proc/self/net/{name}", encoding="ascii") as stream:
                rows = (line.split() for line in stream.readlines(_MAX_CONNECTIONS))
                remote = next((row[2] for row in rows if len(row) > 9 and row[9] == inode), "")
            address, _, port = remote.partition(":")
            words = [int(address[at : at + 8], 16).to_bytes(4, sys.byteorder) for at in range(0, len(address), 8)]
            if words:
                return f"{socket.inet_ntop(family, b''.join(words))} port {int(port, 16)}"
        except (OSError, ValueError):
            continue
    return ""


def cpu_of(thread: int) -> int:
    """Nanoseconds that a thread of this process has spent on a core."""
    ran = text(f"/proc/self/task/{thread}/schedstat").split()
    return int(ran[0]) if ran and ran[0].isdecimal() else 0


def threads() -> dict[int, int]:
    """The threads of this process, Python's and others, each with its nanoseconds on a core."""
    try:
        numbers = sorted(map(int, os.listdir("/proc/self/task")))[:_MAX_TASKS]
    except (OSError, ValueError):
        return {}
    return {number: cpu_of(number) for number in numbers}


def name_of(thread: int) -> str:
    return text(f"/proc/self/task/{thread}/comm").strip()[:80]


def cpu_of_process_ns() -> int:
    spent = os.times()
    return int((spent.user + spent.system) * 1e9)


def text(path: str) -> str:
    """Empty if there is no such file, or if it says nothing to us."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return ""
    try:
        return os.read(descriptor, 1 << 16).decode("utf-8", "replace")
    except OSError:
        return ""
    finally:
        os.close(descriptor)
