"""The same load on a Dask cluster, also when workers are lost in the middle of it."""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from cli.running import run_rankscope
from rankscope import scale
from rankscope.errors import BadFileError, InputError, OutputError, RankscopeError, UsageError
from rankscope.model.tables import Trace
from rankscope.pipeline import load
from rankscope.read import cache
from rankscope.read.capture import Claim, Result
from rankscope.read.files import Source
from rankscope.scale import on_cluster
from scale.comparing import contents, write_traces

distributed = pytest.importorskip("distributed")
pytestmark = pytest.mark.e2e

PATIENCE_S = 120
N_RANKS = 4


def local_cluster(n_workers: int) -> Any:
    return distributed.LocalCluster(
        n_workers=n_workers,
        threads_per_worker=1,
        processes=True,
        host="127.0.0.1",
        dashboard_address="127.0.0.1:0",
        scheduler_kwargs={"dashboard": False, "allowed_failures": 1},
        silence_logs=50,
    )


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """Two workers, each a process; one that is lost is replaced."""
    with local_cluster(2) as running:
        yield running


@pytest.fixture
def client(cluster: Any) -> Iterator[Any]:
    with distributed.Client(cluster, set_as_default=False) as connected:
        connected.wait_for_workers(2, timeout=PATIENCE_S)
        yield connected


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("job")
    write_traces(folder, N_RANKS)
    return folder


@pytest.fixture(scope="module")
def expected(job: Path) -> dict[str, list[Any]]:
    return contents(load(job))


def load_in_background(pool: ThreadPoolExecutor, job: Path, address: str, place: Path) -> Future[Trace]:
    return pool.submit(load, job, cache=str(place), cluster=on_cluster(address))


def test_a_cluster_gives_what_one_machine_gives(
    client: Any, job: Path, expected: dict[str, list[Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(job.parent)  # the workers are in another folder
    scheduler_file = tmp_path / "scheduler.json"
    scheduler_file.write_text(json.dumps({"type": "Scheduler", "address": client.scheduler.address}))
    done: list[tuple[str, int]] = []
    trace = load(
        job.name,
        cache=str(tmp_path / "kept"),
        cluster=on_cluster(str(scheduler_file)),
        progress=lambda n_done, n_all, what: done.append((what, n_done)),
    )
    assert contents(trace) == expected
    assert [n_done for what, n_done in done if what == "reading" and n_done] == list(range(1, N_RANKS + 1))
    assert {part.path for part in trace.parts["ops"]} <= {str(path) for path in (tmp_path / "kept").rglob("*.parquet")}


def claims_of(paths: Sequence[Path]) -> list[Claim]:
    return [
        (Source(path, path.name, path.stat().st_size, file_id=number), "rankscope.read.kineto")
        for number, path in enumerate(paths)
    ]


def read_or_die(deadly: str, claim: Claim) -> Result:
    """In a worker: what a file does that needs more memory than there is."""
    source, _ = claim
    if source.shown == deadly:
        time.sleep(1)  # its nanny replaces no worker that ends before it was ready
        os.kill(os.getpid(), signal.SIGKILL)
    return source, "kineto", [], None


def test_a_cache_that_is_not_shared_is_told(client: Any, job: Path) -> None:
    """Each process has a memory of its own, like machines have disks of their own."""
    with pytest.raises(OutputError) as caught:
        load(job, cache="memory://kept", cluster=on_cluster(client.scheduler.address))
    assert "cannot see" in caught.value.message
    assert "--cache" in caught.value.hint


def test_a_cache_that_a_worker_cannot_write_is_told(client: Any, job: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError) as caught:
        load(job, cache=str(tmp_path / "file" / "kept"), cluster=on_cluster(client.scheduler.address))
    assert caught.value.message.startswith("worker tcp://127.0.0.1:")
    assert "cannot write the cache" in caught.value.message


@pytest.mark.parametrize(
    ("change", "kind", "says"),
    [
        ({"version": "0.0.0"}, UsageError, "this machine has 0.0.0"),
        ({"path": Path("/no/such/folder/kineto_trace_0.json")}, InputError, "cannot see /no/such/folder"),
    ],
)
def test_a_worker_that_is_set_up_otherwise_is_told(
    change: dict[str, Any], kind: type[RankscopeError], says: str, client: Any, job: Path
) -> None:
    path = change.get("path", job / "kineto_trace_0.json")
    claim = (Source(path, path.name, 1), "rankscope.read.kineto")
    version = change.get("version", scale._version())
    with pytest.raises(kind, match=says):
        client.submit(scale._read_on_worker, partial(read_or_die, ""), version, claim).result(PATIENCE_S)


def test_workers_without_rankscope_are_told(client: Any, job: Path) -> None:
    def hide() -> None:
        for name in [name for name in sys.modules if name.startswith("rankscope")]:
            sys.modules[f"hidden.{name}"] = sys.modules.pop(name)
        sys.modules["rankscope"] = None  # type: ignore[assignment]

    def show() -> None:
        for name in [name for name in sys.modules if name.startswith("hidden.")]:
            sys.modules[name.removeprefix("hidden.")] = sys.modules.pop(name)

    client.run(hide)
    try:
        with pytest.raises(UsageError, match="workers do not have rankscope"):
            load(job, cluster=on_cluster(client.scheduler.address))
    finally:
        client.run(show)


def test_files_do_not_wait_for_ever_where_there_is_no_worker(job: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scale, "NO_WORKER_S", 1)
    with local_cluster(0) as empty, pytest.raises(InputError) as caught:
        load(job, cluster=on_cluster(empty.scheduler_address))
    assert "no worker for 1 s" in caught.value.message


def test_a_scheduler_that_goes_away_is_told(job: Path, tmp_path: Path) -> None:
    with ThreadPoolExecutor(1) as pool:
        with local_cluster(0) as leaving:
            loading = load_in_background(pool, job, leaving.scheduler_address, tmp_path)
            deadline = time.monotonic() + PATIENCE_S
            while not leaving.scheduler.tasks:
                assert time.monotonic() < deadline
                time.sleep(0.01)
        with pytest.raises(InputError, match="scheduler disappeared"):
            loading.result(PATIENCE_S)


QUERY = "select rank, count(*) as n from kernels group by all order by all"


def test_the_command_line_starts_a_cluster_of_its_own(
    job: Path, expected: dict[str, list[Any]], tmp_path: Path
) -> None:
    environment = {"RANKSCOPE_CACHE": str(tmp_path / "kept"), "TMPDIR": str(tmp_path)}
    done = run_rankscope("query", str(job), QUERY, "--json", "--cluster", "local", "--jobs", "2", env=environment)
    assert (done.returncode, done.stderr) == (0, "")
    counts = Counter(row[1] for row in expected["kernels"])
    assert [(row["rank"], row["n"]) for row in json.loads(done.stdout)] == sorted(counts.items())
    assert len(list((tmp_path / "kept").iterdir())) == N_RANKS


def test_the_command_line_says_that_nobody_answers(job: Path) -> None:
    done = run_rankscope("tables", str(job), "--no-cache", "--cluster", "tcp://127.0.0.1:9")
    assert done.returncode == 2
    error, hint = done.stderr.splitlines()
    assert "no Dask scheduler answers at tcp://127.0.0.1:9" in error
    assert "dask scheduler" in hint


@pytest.mark.parametrize(
    "address", ["nonsense", "127.0.0.1:9", "tcp://", "tcp://127.0.0.1:99999", "foo://127.0.0.1:9", "no_such_file.json"]
)
def test_an_address_where_nobody_answers(address: str, job: Path) -> None:
    with pytest.raises(InputError, match=f"no Dask scheduler answers at {address}"):
        load(job, cluster=on_cluster(address))


def test_a_server_that_is_no_scheduler(job: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scale, "CONNECT_S", 0.5)
    with socket.create_server(("127.0.0.1", 0)) as server, pytest.raises(InputError, match="no Dask scheduler answers"):
        load(job, cluster=on_cluster(f"tcp://127.0.0.1:{server.getsockname()[1]}"))


def test_an_encrypted_address_needs_certificates(cluster: Any, job: Path) -> None:
    with pytest.raises(UsageError, match="needs certificates"):
        load(job, cluster=on_cluster(cluster.scheduler_address.replace("tcp:", "tls:")))


def test_a_cluster_has_its_own_number_of_workers() -> None:
    with pytest.raises(UsageError, match="determines the number of workers"):
        on_cluster("tcp://127.0.0.1:9", n_workers=2)


def test_without_dask_the_extra_is_named(job: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "distributed", None)
    with pytest.raises(UsageError) as caught:
        load(job, cluster=on_cluster("local"))
    assert caught.value.hint == "pip install 'rankscope[cluster]'"


@pytest.fixture(scope="module")
def fragile_cluster() -> Iterator[Any]:
    """One whose workers may be killed; they are replaced, but that takes its time."""
    with local_cluster(2) as running:
        yield running


def wait_for(path: Path) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not path.exists():
        assert time.monotonic() < deadline, f"{path} does not appear"
        time.sleep(0.01)


def stop_before_the_end(marker: str) -> None:
    """In a worker: from now on it stops when all parts of a file are written, but are not yet in their place."""

    def say_and_wait(folder: Path, note: bytes) -> None:
        Path(marker).touch()
        time.sleep(PATIENCE_S)

    cache.note_done = say_and_wait


def test_a_worker_killed_in_the_middle_loses_nothing(
    fragile_cluster: Any, job: Path, expected: dict[str, list[Any]], tmp_path: Path
) -> None:
    marker, kept = tmp_path / "marker", tmp_path / "kept"
    with distributed.Client(fragile_cluster, set_as_default=False) as client, ThreadPoolExecutor(1) as pool:
        pids = client.run(os.getpid)
        victim = next(iter(pids))
        client.run(stop_before_the_end, str(marker), workers=[victim])
        loading = load_in_background(pool, job, fragile_cluster.scheduler_address, kept)
        wait_for(marker)
        assert len(client.processing()[victim]) >= 1
        os.kill(pids[victim], signal.SIGKILL)
        trace = loading.result(PATIENCE_S)
        assert len(pids) == 2
        assert victim not in client.run(os.getpid)
    assert contents(trace) == expected
    assert len([entry for entry in kept.iterdir() if not entry.name.startswith(".")]) == N_RANKS


def test_a_file_that_ends_its_workers_is_a_bad_file(fragile_cluster: Any, job: Path) -> None:
    paths = sorted(job.iterdir())
    read = partial(read_or_die, paths[1].name)
    results = list(on_cluster(fragile_cluster.scheduler_address)(read, claims_of(paths)))
    assert [source.shown for source, *_ in results] == [path.name for path in paths]
    problems = [problem for *_, problem in results]
    assert isinstance(problems[1], BadFileError)
    assert problems[1].message == "crashed 2 workers in a row"
    assert "memory" in problems[1].hint
    assert [problem for problem in problems if problem is not None] == [problems[1]]
