"""What it costs to look through training output: `python bench/job_log.py [MB]`.

Compares the reader of job logs with a search for one word in the same file, both in CPU seconds, best of three.
"""

from __future__ import annotations

import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from rankscope.read.files import Source
from rankscope.read.job_log_scan import JobLog

LINE = "[rank{rank}]: step {step:>8} | loss {loss:.4f} | lr 3.00e-04 | 18,204 tokens/s | gradient norm 1.02 | epoch 1\n"


def cpu_seconds(work: Callable[[], object]) -> float:
    """Own time and that of children."""
    best = float("inf")
    for _ in range(3):
        before = _used()
        work()
        best = min(best, _used() - before)
    return best


def _used() -> float:
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + children.ru_utime + children.ru_stime


def search(path: Path) -> None:
    """As a program would look for one word."""
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            block.find(b"Traceback")


def main() -> None:
    n_bytes = int(sys.argv[1] if len(sys.argv) > 1 else 1000) << 20
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "job.log")
        chunk = "".join(LINE.format(rank=n % 8, step=n, loss=2 + 1 / (n + 1)) for n in range(20_000)).encode()
        with path.open("wb") as file:
            while file.tell() < n_bytes:
                file.write(chunk)
        source = Source(path, str(path), path.stat().st_size, file_id=0)
        grep = cpu_seconds(
            lambda: subprocess.run(["grep", "-c", "Traceback", str(path)], check=False, stdout=subprocess.DEVNULL)
        )
        one_word = cpu_seconds(lambda: search(path))
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        reader = cpu_seconds(lambda: JobLog(source).scan_file())
        grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
        print(f"{path.stat().st_size >> 20:,} MB of training output, CPU seconds")
        print(f"  grep for one word      {grep:.2f}")
        print(f"  bytes.find of one word {one_word:.2f}")
        print(f"  rankscope              {reader:.2f}  ({reader / one_word:.1f}x), memory grew by {grown >> 10} MB")


if __name__ == "__main__":
    main()
