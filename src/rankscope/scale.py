"""The same load on a Dask cluster: workers turn files into parts in a shared folder or store, and return summaries.

A lost worker does no harm: Dask gives its files to the others, and an entry of the cache appears complete or not at
all, so it does not matter how far it came.
"""

from __future__ import annotations

import importlib
import json
import logging
import os
import socket
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from rankscope.errors import BadFileError, InputError, OutputError, RankscopeError, UsageError
from rankscope.model.tables import Part
from rankscope.read.capture import Claim, Result, Spread
from rankscope.read.remote import is_url, open_store, without_secrets

if TYPE_CHECKING:
    from distributed import Client

LOCAL = "local"
CONNECT_S = 5  # in which a scheduler has to answer
NO_WORKER_S = 120  # that files may wait while there is no worker at all
_POLL_S = 0.02
_RETRIES = 2  # of a file whose reading failed for a reason that is not the file's
_BATCH = 1000  # files that are handed to the scheduler at once

_ReadOne = Callable[[Claim], Result]


class _Answer(NamedTuple):
    worker: str
    result: Result


def on_cluster(address: str, n_workers: int | None = None) -> Spread:
    """Where to read: an existing scheduler (tcp://..., tls://..., or the .json file it wrote), or `local`.

    `local` starts workers on this machine, one per core by default, and ends them afterwards.
    """
    if address != LOCAL and n_workers is not None:
        raise UsageError("the cluster determines the number of workers", "omit --jobs, or use --cluster local")

    def spread(read: _ReadOne, claims: Sequence[Claim]) -> Iterator[Result]:
        with _connected(address, min(n_workers or os.cpu_count() or 1, len(claims))) as client:
            yield from _in_order(_answers(client, read, claims), len(claims))

    return spread


@contextmanager
def _connected(address: str, n_workers: int) -> Iterator[Client]:
    try:
        import distributed
    except ImportError as error:
        raise UsageError("--cluster needs Dask", "pip install 'rankscope[cluster]'") from error
    with ExitStack() as stack:
        stack.enter_context(_quiet())
        if address == LOCAL:
            cluster = distributed.LocalCluster(
                n_workers=n_workers,
                threads_per_worker=1,
                processes=True,
                host="127.0.0.1",
                dashboard_address="127.0.0.1:0",  # Dask asks for one even where the dashboard is off
                scheduler_kwargs={"dashboard": False},
                silence_logs=logging.CRITICAL,
            )
            target: Any = stack.enter_context(cluster)
        else:
            target = _reachable(address)
        try:
            client = distributed.Client(target, timeout=CONNECT_S, set_as_default=False)
        except (OSError, TimeoutError) as error:
            raise _no_scheduler(address) from error
        yield stack.enter_context(client)


def _reachable(address: str) -> str:
    """The address of a scheduler, after a check: Dask itself may wait forever if another program listens there."""
    from distributed import Security

    given = address
    try:
        if address.endswith(".json"):
            with open(address, encoding="utf-8") as file:
                address = str(json.load(file)["address"])
        protocol, _, endpoint = address.rpartition("://")
        host, _, port = endpoint.rpartition(":")
        if protocol not in ("", "tcp", "tls"):
            raise ValueError(protocol)
        with socket.create_connection((host.strip("[]"), int(port)), CONNECT_S) as door:
            if protocol != "tls" and not door.recv(1):  # a scheduler speaks first
                raise ConnectionError("it closed the connection")
    except (OSError, OverflowError, ValueError, KeyError, TypeError) as error:
        raise _no_scheduler(given) from error
    if protocol == "tls" and not Security().tls_ca_file:
        raise UsageError(f"{address} needs certificates", "set them in Dask's configuration: distributed.comm.tls")
    return address


def _no_scheduler(address: str) -> InputError:
    return InputError(
        f"no Dask scheduler answers at {address}",
        "start one with `dask scheduler` and pass the address that it prints, or use --cluster local",
    )


@contextmanager
def _quiet() -> Iterator[None]:
    """Dask logs every lost connection; the results show what matters."""
    loggers = [logging.getLogger(name) for name in logging.root.manager.loggerDict if name.startswith("distributed")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


def _in_order(answers: Iterator[tuple[int, Result]], n_claims: int) -> Iterator[Result]:
    """The same files give the same tables, in whatever order they finish."""
    early: dict[int, Result] = {}
    for position in range(n_claims):
        while position not in early:
            number, result = next(answers)
            early[number] = result
        yield early.pop(position)


def _answers(client: Client, read: _ReadOne, claims: Sequence[Claim]) -> Iterator[tuple[int, Result]]:
    """The number of each claim and its result, as they come in."""
    from distributed import KilledWorker
    from distributed.protocol.pickle import dumps

    # The largest first: a large one that is begun last would be waited for alone.
    order = sorted(range(len(claims)), key=lambda number: -claims[number][0].n_bytes)
    tasks = {number: dumps(partial(_read_on_worker, read, _version(), _absolute(claims[number]))) for number in order}
    known_workers: set[str] = set()
    suspects: list[int] = []
    for number, outcome in _outcomes(client, tasks):
        if isinstance(outcome, KilledWorker):
            suspects.append(number)
            continue
        answer = _answer(outcome)
        _check_shared(answer, known_workers)
        yield number, answer.result
    for number in suspects:
        # Alone: it may only have waited its turn at workers that another file ended.
        ((_, outcome),) = _outcomes(client, {number: tasks[number]})
        is_guilty = isinstance(outcome, KilledWorker)
        yield number, _deadly(claims[number], outcome) if is_guilty else _answer(outcome).result


def _outcomes(client: Client, tasks: Mapping[int, bytes]) -> Iterator[tuple[int, object]]:
    """The outcome of each task, as they come in: an answer or an error."""
    from distributed import as_completed

    futures = client.map(_self_contained_call(), list(tasks.values()), pure=False, retries=_RETRIES, batch_size=_BATCH)
    numbers = dict(zip((future.key for future in futures), tasks, strict=True))
    coming = as_completed(futures, loop=client.loop, with_results=True, raise_errors=False)
    futures.clear()  # as_completed holds those that are still to come; a worker may forget the others
    patience = _Patience(client)
    while numbers:
        batch = coming.next_batch(block=False)
        if not batch:
            patience.spend(_POLL_S)
        for future, outcome in batch:
            # Not by the future's state: that changes when a worker is lost after its answer has come.
            is_answer = isinstance(outcome, (_Answer, BaseException))
            yield numbers.pop(future.key), outcome if is_answer else outcome[1]  # type, error, traceback


def _self_contained_call() -> Callable[[bytes], _Answer]:
    """Travels without a reference to rankscope: a worker that lacks it says so, instead of breaking its connection."""

    def call(task: bytes) -> _Answer:
        from distributed.protocol.pickle import loads

        answer: _Answer = loads(task)()
        return answer

    return call


def _absolute(claim: Claim) -> Claim:
    """A worker has its own working folder."""
    source, reader = claim
    return (source if source.remote else replace(source, path=source.path.absolute())), reader


def _version() -> str:
    from rankscope import __version__

    return __version__


def _read_on_worker(read: _ReadOne, version: str, claim: Claim) -> _Answer:
    from distributed import get_worker

    source, _ = claim
    worker = f"{get_worker().address} on {socket.gethostname()}"
    if version != _version():
        raise UsageError(
            f"worker {worker} has rankscope {_version()}, this machine has {version}",
            "install the same version on both",
        )
    if source.remote is None and not source.path.parent.is_dir():
        raise InputError(
            f"worker {worker} cannot see {source.path}",
            "traces have to be on a file system that all workers share, or in an object store; unpack archives first",
        )
    try:
        return _Answer(worker, read(claim))
    except RankscopeError as error:
        raise type(error)(f"worker {worker}: {error.message}", error.hint) from error


def _answer(outcome: object) -> _Answer:
    from concurrent.futures import CancelledError

    if isinstance(outcome, _Answer):
        return outcome
    if isinstance(outcome, CancelledError):  # by nobody but Dask itself
        raise InputError(
            "the Dask scheduler disappeared", "run the command again: files in the cache are not read again"
        )
    if isinstance(outcome, ModuleNotFoundError) and (outcome.name or "").partition(".")[0] == "rankscope":
        raise UsageError("the workers do not have rankscope", f"run pip install rankscope=={_version()} on the workers")
    assert isinstance(outcome, BaseException)
    raise outcome


def _deadly(claim: Claim, error: Any) -> Result:
    source, module = claim
    problem = BadFileError(
        f"crashed {error.allowed_failures + 1} workers in a row",
        "they probably ran out of memory: give each worker more, or read this file on one machine",
    )
    return source, importlib.import_module(module).NAME, [], problem


def _check_shared(answer: _Answer, known: set[str]) -> None:
    """A folder may exist on every machine and still be a different one on each."""
    worker, (_, _, results, _) = answer
    part = next((result for result in results if isinstance(result, Part)), None)
    if part is None or worker in known:
        return
    known.add(worker)
    if not (_exists_remotely(part.path) if is_url(part.path) else os.path.exists(part.path)):
        raise OutputError(
            f"worker {worker} has written {without_secrets(part.path)}, which this machine cannot see",
            "use a folder that all machines share, or a URL: --cache /shared/rankscope, --cache s3://bucket/rankscope",
        )


def _exists_remotely(url: str) -> bool:
    store, path = open_store(url)
    return bool(store.exists(path))


class _Patience:
    """Waits for results, but not forever if no workers are left."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._last_seen = self._next_look = time.monotonic()

    def spend(self, seconds: float) -> None:
        time.sleep(seconds)
        now = time.monotonic()
        if now < self._next_look:
            return
        self._next_look = now + 1
        if self._has_workers():
            self._last_seen = now
        elif now > self._last_seen + NO_WORKER_S:
            raise InputError(
                f"the Dask scheduler at {self._client.scheduler.address} has had no worker for {NO_WORKER_S} s",
                "start workers with `dask worker ADDRESS`; files in the cache are not read again",
            )

    def _has_workers(self) -> bool:
        try:
            return bool(self._client.nthreads())
        except OSError:  # the scheduler is gone: the files that it had will come back as cancelled
            return False
