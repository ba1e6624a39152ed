"""torch's HTTP server inside a rank, and how to end it without harm to the rank.

Its shutdown waits for the requests that it is answering, and holds Python's lock meanwhile. A request that needs the
lock then waits for ever, and so does the job. One that comes while the interpreter ends aborts the process, which
changes the job's exit code. So no new requests are let in first, and then those under way are waited for.
"""

from __future__ import annotations

import ctypes
import os
import socket
import struct
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

_SO_ATTACH_FILTER = 26
_DROP_ALL = struct.pack("HBBI", 0x06, 0, 0, 0)  # one instruction: return 0, which keeps nothing of a packet
_LAST_REQUESTS_SECONDS = 2.0
_POLL_SECONDS = 0.05


def start_worker_server(port: int = 0) -> Any:
    """Listens on every interface, as torch's own start of it does."""
    from torch._C._distributed_c10d import _WorkerServer

    try:
        server = _WorkerServer("::", port)
    except RuntimeError:  # a host without IPv6
        server = _WorkerServer("0.0.0.0", port)
    _keep_for_ever(server)  # its destructor shuts it down, at a moment that nobody chose
    return server


def register_handler(name: str, handler: Callable[[Any, Any], None]) -> None:
    """For the life of the process, and once for each name."""
    from torch._C._distributed_c10d import _register_handler

    _register_handler(name, handler)
    _keep_for_ever(handler)  # torch lets go of it when there is no interpreter any more, which would abort the process


def _keep_for_ever(thing: object) -> None:
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(thing))


def stop_worker_server(server: Any) -> bool:
    """False if it has to keep running until the process ends."""
    if sys.platform != "linux":
        return False
    with _sockets_of(server.port) as sockets:
        for each in sockets:
            if _listens(each):
                _refuse_connections(each)
    end = time.monotonic() + _LAST_REQUESTS_SECONDS
    while time.monotonic() < end:
        time.sleep(_POLL_SECONDS)  # also for those that were let in but not yet taken up
        with _sockets_of(server.port) as sockets:
            if all(map(_listens, sockets)):
                server.shutdown()
                return True
    return False


@contextmanager
def _sockets_of(port: int) -> Iterator[list[socket.socket]]:
    """All sockets of this process that are bound to the port: the one that listens, and one for each request."""
    sockets = [each for each in _own_sockets() if _port(each) == port]
    try:
        yield sockets
    finally:
        for each in sockets:
            each.close()


def _own_sockets() -> Iterator[socket.socket]:
    for name in os.listdir("/proc/self/fd"):
        try:
            copy = os.dup(int(name))
        except OSError:  # the folder's own, closed meanwhile
            continue
        try:
            copied = socket.socket(fileno=copy)
        except OSError:  # a file, a pipe
            os.close(copy)
            continue
        if copied.family in (socket.AF_INET, socket.AF_INET6):
            yield copied
        else:
            copied.close()


def _port(listener: socket.socket) -> int:
    try:
        return int(listener.getsockname()[1])
    except OSError:
        return 0


def _listens(listener: socket.socket) -> bool:
    return bool(listener.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN))


def _refuse_connections(listener: socket.socket) -> None:
    """By a filter on its packets: a listener that is closed or shut down makes torch's server end the process."""
    instructions = ctypes.create_string_buffer(_DROP_ALL, len(_DROP_ALL))
    program = struct.pack("HL", 1, ctypes.addressof(instructions))
    listener.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, program)
