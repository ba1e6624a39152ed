"""The machine that a rank runs on: what it may use, and second by second what is used of it."""

from __future__ import annotations

import os
import sys
from typing import Any

from rankscope.collect.host.kernel import cpu_of_process_ns, text

_CGROUP = "/sys/fs/cgroup"
_OLD_QUOTA, _OLD_PERIOD = f"{_CGROUP}/cpu/cpu.cfs_quota_us", f"{_CGROUP}/cpu/cpu.cfs_period_us"
_TICK_NS = 1_000_000_000 // os.sysconf("SC_CLK_TCK") if hasattr(os, "sysconf") else 10_000_000
# Variables that say how many threads and ranks there are, each with the name of its number.
_TOLD = {
    "OMP_NUM_THREADS": "n_omp_threads",
    "LOCAL_WORLD_SIZE": "n_local_ranks",
    "SLURM_CPUS_PER_TASK": "n_slurm_cores",
}


def machine() -> dict[str, Any]:
    """Cores, limits and threads, as they are now."""
    about: dict[str, Any] = {"n_cores": os.cpu_count() or 0}
    if hasattr(os, "sched_getaffinity"):
        about["n_usable_cores"] = len(os.sched_getaffinity(0))
    quota, _, period = text(f"{_CGROUP}/cpu.max").strip().partition(" ")
    if not quota:
        quota, period = text(_OLD_QUOTA).strip(), text(_OLD_PERIOD).strip()
    if quota.isdecimal() and period.isdecimal() and int(period):
        about["cgroup_cores"] = int(quota) / int(period)
    limit = text(f"{_CGROUP}/memory.max").strip()
    if limit.isdecimal():
        about["cgroup_memory_bytes"] = int(limit)
    for variable, name in _TOLD.items():
        value = os.environ.get(variable, "")
        if value.isdecimal() and len(value) < 10:
            about[name] = int(value)
    torch = sys.modules.get("torch")
    if torch is not None and hasattr(torch, "get_num_threads"):  # not while torch is being imported
        about["n_torch_threads"] = int(torch.get_num_threads())
    if hasattr(os, "getloadavg"):
        about["load"] = round(os.getloadavg()[0], 2)
    return about


def second() -> list[int]:
    """Counters since the start, and sizes as they are: read about once per second.

    Of this process: bytes read and written, resident bytes, threads, page faults that had to read, nanoseconds on
    cores. Of the machine: bytes that are available, nanoseconds in which its cores worked, and threads that want to
    run, in hundredths.
    """
    read = written = available = 0
    for line in text("/proc/self/io").splitlines():
        key, _, value = line.partition(": ")
        read = int(value) if key == "rchar" else read
        written = int(value) if key == "wchar" else written
    for line in text("/proc/meminfo").splitlines():
        if line.startswith("MemAvailable:"):
            available = int(line.split()[1]) << 10
            break
    words = text("/proc/self/stat").rpartition(")")[2].split()
    faults, threads, resident = (int(words[position]) for position in (9, 17, 21)) if len(words) > 21 else (0, 0, 0)
    load = int(100 * os.getloadavg()[0]) if hasattr(os, "getloadavg") else 0
    pages = os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else 4096
    return [read, written, resident * pages, threads, faults, cpu_of_process_ns(), available, _busy_ns(), load]


def _busy_ns() -> int:
    """Of all cores together: user, nice, system, interrupts, and what other guests of the hardware took."""
    words = text("/proc/stat").partition("\n")[0].split()
    if len(words) < 9 or words[0] != "cpu":
        return 0
    return sum(int(words[position]) for position in (1, 2, 3, 6, 7, 8)) * _TICK_NS
