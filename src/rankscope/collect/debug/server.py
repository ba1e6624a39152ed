"""Starts torch's debug server in the job, for `rankscope attach`: one worker in each rank, one frontend next to rank 0.

It has no authentication. Anyone who can reach its ports can read the stacks and calls of the job, and profile it.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from rankscope.collect.debug import frontend as debug_frontend
from rankscope.collect.debug import worker_server
from rankscope.collect.part import Part
from rankscope.collect.stores import own_connection
from rankscope.collect.telling import tell_line

if TYPE_CHECKING:
    from rankscope.collect.run import Run

_JOIN_SECONDS = 2.0
# Name of the handler -> the part whose dump it sends.
_DUMPS = {"rankscope_trace": "desync", "rankscope_recorder": "recorder"}

Content = Callable[[], tuple[bytes, str]]  # and what kind of content it is
# torch keeps handlers for the life of the process and takes each name once; what they send is looked up here.
_contents: dict[str, Content] = {}
_registered: set[str] = set()


class _Place(NamedTuple):
    """The job's store: where it listens, and a connection to it."""

    host: str
    port: int
    store: Any


class DebugServer(Part):
    NAME: ClassVar[str] = "debug_server"

    def __init__(self, run: Run) -> None:
        super().__init__(run)
        self._starting: threading.Thread | None = None
        self._worker: Any = None
        self._frontend: subprocess.Popen[bytes] | None = None

    def joined(self) -> None:
        """In a thread: the store may be slow, and the job does not wait for us."""
        if self._starting is None:
            self._starting = threading.Thread(target=self._start, name="rankscope-debug-server", daemon=True)
            self._starting.start()

    def tick(self) -> None:
        if self._frontend is not None and self._frontend.poll() is not None:
            self._end_frontend(is_expected=False)

    def close(self) -> None:
        if self._starting is not None:
            self._starting.join(_JOIN_SECONDS)
        if self._frontend is not None:
            self._end_frontend(is_expected=True)
        if self._worker is not None:
            worker_server.stop_worker_server(self._worker)
            self._worker = None
        _contents.clear()

    def _start(self) -> None:
        try:
            if "torch.distributed.debug" in sys.modules and sys.modules["torch.distributed.debug"]._WORKER_SERVER:
                self._offer()  # the job has started it by itself
                return
            place = _place_of_store()
            if place is None:
                self.run.problem(
                    self.NAME, "the job's store is not a TCPStore", "start the job with torchrun, or with env://"
                )
                return
            self._offer()
            self._start_worker(place)
            if self.run.rank == 0:
                self._start_frontend(place)
        except ImportError as error:
            self.run.problem(self.NAME, f"this torch has no debug server: {error}", "use torch 2.10 or newer")
        except Exception as error:
            self.run.problem(self.NAME, f"did not start: {type(error).__name__}: {error}")

    def _offer(self) -> None:
        """What torch's handlers do not report: the rank, and the calls with their stacks."""
        import torch.distributed.debug  # noqa: F401  # registers torch's own

        run = self.run
        about = {"rank": run.rank, "world_size": run.world_size, "host": run.host, "pid": os.getpid()}
        _register("rankscope_about", lambda: (json.dumps(about).encode(), "application/json"))
        for name, part_name in _DUMPS.items():
            to_bytes = getattr(run.part(part_name), "to_bytes", None)
            if to_bytes is not None:
                _register(name, partial(_dump, to_bytes))

    def _start_worker(self, place: _Place) -> None:
        from torch.distributed import PrefixStore

        self._worker = worker_server.start_worker_server()
        address = f"http://{socket.gethostname()}:{self._worker.port}"
        PrefixStore("debug_server", place.store).set(f"rank{self.run.rank}", address)

    def _start_frontend(self, place: _Place) -> None:
        port = self.run.settings.debug_port
        absent = debug_frontend.missing_packages()
        if absent:
            self.run.problem(
                self.NAME,
                f"its frontend needs packages that are not installed: {absent}; the ranks can still be asked directly",
                f"pip install {absent.replace(',', '')}, or pass the address of each rank to rankscope attach",
            )
            return
        job = {"RANK": "0", "WORLD_SIZE": str(self.run.world_size)}
        where = {"MASTER_ADDR": place.host, "MASTER_PORT": str(place.port)}
        self._frontend = debug_frontend.start_frontend(port, {**job, **where})
        url = f"http://{socket.gethostname()}:{port}"
        tell_line(
            f"the job's debug server is at {url} (rankscope attach {url}). "
            "It has no authentication: anyone who can reach it can read the job's stacks."
        )

    def _end_frontend(self, *, is_expected: bool) -> None:
        frontend, self._frontend = self._frontend, None
        said = debug_frontend.end_frontend(frontend) if frontend else ""
        if said or not is_expected:
            port = self.run.settings.debug_port
            self.run.problem(
                self.NAME,
                f"its frontend ended: {said or 'reason unknown'}",
                f"check that port {port} is free on {self.run.host}",
            )


def _place_of_store() -> _Place | None:
    from torch.distributed.distributed_c10d import _get_default_store

    store = _get_default_store()
    while hasattr(store, "underlying_store"):
        store = store.underlying_store
    if not hasattr(store, "host") or not hasattr(store, "port"):
        return None
    return _Place(store.host, store.port, own_connection(store))


def _register(name: str, content: Content) -> None:
    _contents[name] = content
    if name not in _registered:
        worker_server.register_handler(name, lambda request, response: _answer(name, response))
        _registered.add(name)


def _dump(to_bytes: Callable[[], bytes]) -> tuple[bytes, str]:
    return to_bytes(), "application/octet-stream"


def _answer(name: str, response: Any) -> None:
    content = _contents.get(name)
    if content is None:
        response.set_content(b"this collector has ended", "text/plain")
        response.set_status(404)
        return
    body, kind = content()  # what it raises torch answers with status 500
    response.set_content(body, kind)
    response.set_status(200)
