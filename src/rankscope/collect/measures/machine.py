"""Memory of the process and its host, and bytes that went over disk and network, from the kernel's own counters.

Read in the collector's thread, now and then. What a system does not report is left out.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

_PROC, _SYS = Path("/proc"), Path("/sys")
_CGROUP = "fs/cgroup"
_RDMA_WORD = 4  # bytes, in which its counters count
_LOOPBACK = "lo"

Numbers = Iterator[tuple[str, float]]


class Machine:
    def __init__(self, proc: Path = _PROC, system: Path = _SYS) -> None:
        self._proc, self._sys = proc, system
        self._counted: dict[str, int] = {}
        self._counted_ns = 0
        self._interfaces: frozenset[str] | None = None

    def memory(self) -> Numbers:
        words = _text(self._proc / "self/statm").split()
        if len(words) > 1:
            yield "host_memory_bytes", int(words[1]) * os.sysconf("SC_PAGE_SIZE")

    def sample(self, now_ns: int) -> Numbers:
        """What is left of the host's memory, and the traffic since the last sample."""
        available = _available(self._proc, self._sys)
        if available is not None:
            yield "host_memory_available_bytes", available
        yield from self._rates(now_ns)

    def _rates(self, now_ns: int) -> Numbers:
        counted = dict(self._counters())
        before, self._counted = self._counted, counted
        seconds, self._counted_ns = (now_ns - self._counted_ns) / 1e9, now_ns
        if seconds <= 0:
            return
        for name, count in counted.items():
            if count >= before.get(name, count + 1):  # a counter that was set back tells nothing
                yield f"{name}_bytes_per_s", (count - before[name]) / seconds

    def _counters(self) -> Iterator[tuple[str, int]]:
        for line in _text(self._proc / "self/io").splitlines():
            key, _, value = line.partition(": ")
            if key in ("read_bytes", "write_bytes"):
                yield "disk_read" if key == "read_bytes" else "disk_written", int(value)
        received = sent = 0
        lines = [line.partition(":") for line in _text(self._proc / "net/dev").splitlines()[2:]]
        chosen = self._physical({name.strip() for name, _, _ in lines})
        for name, _, numbers in lines:
            words = numbers.split()
            if name.strip() in chosen and len(words) > 8:
                received, sent = received + int(words[0]), sent + int(words[8])
        if chosen:
            yield "network_received", received
            yield "network_sent", sent
        yield from self._rdma()

    def _physical(self, names: set[str]) -> frozenset[str]:
        """Bridges and tunnels count again what goes over a card. In a container no card is seen: then all count."""
        if self._interfaces is None:
            cards = {name for name in names if (self._sys / "class/net" / name / "device").exists()}
            self._interfaces = frozenset(cards or names - {_LOOPBACK})
        return self._interfaces

    def _rdma(self) -> Iterator[tuple[str, int]]:
        """What InfiniBand and the like move past the kernel."""
        for name, counter in (("rdma_received", "port_rcv_data"), ("rdma_sent", "port_xmit_data")):
            texts = [_text(path) for path in self._sys.glob(f"class/infiniband/*/ports/*/counters/{counter}")]
            if texts:
                yield name, _RDMA_WORD * sum(int(text) for text in texts if text.strip().isdecimal())


def _available(proc: Path, system: Path) -> int | None:
    """What is left on the host, or in the container where that is less."""
    free = None
    for line in _text(proc / "meminfo").splitlines():
        if line.startswith("MemAvailable:"):
            free = int(line.split()[1]) << 10
    limit, used = _text(system / _CGROUP / "memory.max").strip(), _text(system / _CGROUP / "memory.current").strip()
    if limit.isdecimal() and used.isdecimal():
        left = max(0, int(limit) - int(used) + _reclaimable(system))
        free = left if free is None else min(free, left)
    return free


def _reclaimable(system: Path) -> int:
    """The cache of files counts as used, but is given up when memory is short."""
    for line in _text(system / _CGROUP / "memory.stat").splitlines():
        if line.startswith("inactive_file "):
            return int(line.split()[1])
    return 0


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
