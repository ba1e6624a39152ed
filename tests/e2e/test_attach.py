"""Real gloo jobs that are asked while they run, through torch's own debug server."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from launching import JOB_ENVIRONMENT, Started, code_site, run_forked

from rankscope.read.bounded_http import Address
from rankscope.read.debug_server import CALLS, STACKS, Job, Worker, find_job, read_job

for needed in ("torch", "torch.distributed.debug", "jinja2", "tabulate", "requests"):
    pytest.importorskip(needed)
pytestmark = pytest.mark.e2e

N_RANKS = 2
START_LIMIT_S = 240
STUCK_AT = code_site("served", "load_batch", "open(gate)")
WAITING_AT = code_site("served", "average_gradients", "dist.all_reduce")


class Running(NamedTuple):
    url: str
    folder: Path
    ended: Future[list[int]]

    def stop(self) -> list[int]:
        (self.folder / "stop").touch()
        while not self.ended.done():
            with contextlib.suppress(OSError):  # nobody waits at the gate
                os.close(os.open(self.folder / "gate", os.O_WRONLY | os.O_NONBLOCK))
            time.sleep(0.05)
        return self.ended.result()


@pytest.fixture(scope="module")
def starter() -> Iterator[ThreadPoolExecutor]:
    """One thread, as each has a process of its own from which it forks the ranks."""
    with ThreadPoolExecutor(1) as pool:
        yield pool


@contextlib.contextmanager
def running(starter: ThreadPoolExecutor, folder: Path, *arguments: str) -> Iterator[Running]:
    os.mkfifo(folder / "gate")
    port = free_port()
    paths = ["--gate", str(folder / "gate"), "--stop", str(folder / "stop")]
    output = folder / "output.txt"
    started = Started("served", [*paths, "--port", str(port), *arguments], JOB_ENVIRONMENT, N_RANKS, output)
    job = Running(f"http://127.0.0.1:{port}", folder, starter.submit(run_forked, started))
    try:
        yield job
    finally:
        codes = job.stop()
        print(codes, output.read_text(errors="replace"))


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def wait_for_ranks(job: Running) -> None:
    """Until all have said where they are to be asked."""
    deadline = time.monotonic() + START_LIMIT_S
    while True:
        with contextlib.suppress(OSError), urllib.request.urlopen(f"{job.url}/tcpstore", timeout=60) as page:
            if page.read().count(b"debug_server/rank") >= N_RANKS:
                return
        assert time.monotonic() < deadline, "the debug server did not start"
        assert not job.ended.done(), job.ended.result()
        time.sleep(0.1)


def wait_for_standstill(job: Running) -> None:
    """Until two readings are the same."""
    deadline = time.monotonic() + START_LIMIT_S
    found = find_job([job.url], 10)
    before: Any = None
    while before != (now := [reading.contents[CALLS] for reading in read_job(found, 10)]):
        assert time.monotonic() < deadline
        before = now
        time.sleep(0.5)


def attach(*arguments: str) -> tuple[int, dict[str, Any]]:
    command = [sys.executable, "-m", "rankscope", "attach", *arguments, "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode in (0, 1), done.stderr
    return done.returncode, json.loads(done.stdout)


def sole_error(report: dict[str, Any]) -> dict[str, Any]:
    errors: list[dict[str, Any]] = [finding for finding in report["findings"] if finding["severity"] == "error"]
    assert len(errors) == 1, errors
    return errors[0]


def test_a_rank_that_sleeps_is_found_where_it_sleeps(starter: ThreadPoolExecutor, tmp_path: Path) -> None:
    with running(starter, tmp_path, "--fault", "asleep") as job:
        wait_for_ranks(job)
        wait_for_standstill(job)
        code, report = attach(job.url, "--watch", "0.5")
        found = find_job([job.url], 10)
        lost = tuple(Worker(worker.rank, Address("127.0.0.1", free_port())) for worker in found.workers)
        by_pages = list(read_job(Job(lost, found.frontend), 10))
    cause = sole_error(report)
    assert (code, cause["rule"], cause["ranks"]) == (1, "rank-stuck", [1])
    assert cause["location"] == STUCK_AT
    assert report["live"]["progress"]["verdict"] == "hung"
    assert [each["state"] for each in report["live"]["progress"]["ranks"]] == ["still", "still"]
    # What the frontend's pages show instead, where the ranks themselves cannot be reached.
    for reading in by_pages:
        assert reading.contents.keys() == {CALLS, STACKS}
        assert json.loads(reading.contents[CALLS])["entries"]
    assert b"load_batch" in by_pages[1].contents[STACKS]


def test_a_job_that_goes_on_is_not_called_hung(starter: ThreadPoolExecutor, tmp_path: Path) -> None:
    with running(starter, tmp_path) as job:
        wait_for_ranks(job)
        for seconds in ("1", "5", "25"):  # on a busy machine a rank may get no turn for a second
            code, report = attach(job.url, "--watch", seconds)
            progress = report["live"]["progress"]
            if progress["verdict"] != "partly":
                break
        assert job.stop() == [0] * N_RANKS
    assert (code, progress["verdict"]) == (0, "moving")
    assert progress["collectives_per_s"] > 0
    assert [finding for finding in report["findings"] if finding["severity"] == "error"] == []


def test_the_server_that_the_collector_starts_tells_the_lines_of_the_calls(
    starter: ThreadPoolExecutor, tmp_path: Path
) -> None:
    traces = tmp_path / "traces"
    with running(starter, tmp_path, "--fault", "asleep", "--collect", str(traces)) as job:
        wait_for_ranks(job)
        wait_for_standstill(job)
        code, report = attach(job.url, "-o", str(tmp_path / "kept"))
        codes = job.stop()
    cause = sole_error(report)
    assert (code, cause["rule"], cause["ranks"]) == (1, "rank-stuck", [1])
    assert (cause["location"], cause["peer_location"]) == (STUCK_AT, WAITING_AT)
    kinds = {path.name.rpartition("_")[0] for path in (tmp_path / "kept").iterdir()}
    assert kinds == {"nccl_trace_rank", "rankscope_trace_rank", "stacks"}
    assert [worker["problems"] for worker in report["live"]["workers"]] == [[], []]
    # The job ends as if nobody had asked, and the server with it.
    assert codes == [0] * N_RANKS
    with pytest.raises(OSError, match="refused"):
        urllib.request.urlopen(job.url, timeout=60)
    assert problems(traces) == []


def problems(traces: Path) -> list[dict[str, str]]:
    manifest = json.loads((traces / "manifest.json").read_text())
    return [problem for rank in manifest["ranks"] for problem in rank["problems"]]
