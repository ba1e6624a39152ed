"""Connections of our own to the stores of process groups: one for all groups, as a store has to bear every rank's."""

from __future__ import annotations

import os
import re
import socket
import weakref
from typing import Any

from rankscope.collect.desync.groups import Group
from rankscope.collect.desync.values import detail_key
from rankscope.collect.stores import own_connection

_CONNECT_SECONDS = 2.0
_DESCRIPTOR = re.compile(r"client=TCPClient\(SocketImpl\(fd=(\d+),")


class Connections:
    """Made when first asked for, by whichever thread asks; never one of the job's."""

    def __init__(self) -> None:
        self._by_group: dict[int, Any] = {}
        self._lines: dict[int, socket.socket] = {}  # further handles of the sockets below, by their descriptors
        self._shared: Any = None
        self._shared_world: weakref.ref[Any] | None = None

    def store_of(self, group: Group) -> Any | None:
        """The group's store; None where the group is gone. Whatever torch raises when it is down passes through."""
        pg = group.pg()
        if pg is None:
            return None
        if any(map(_is_cut, tuple(self._lines.values()))):
            self.drop()
            raise ConnectionError("it closed the connection")
        store = self._by_group.get(group.local_id)
        if store is None:
            store = self._by_group[group.local_id] = self._connect(group, pg)
            self._watch(store)
        return store

    def drop(self) -> None:
        """At the end, and after a failure: the next request reconnects."""
        lines, self._lines = self._lines, {}
        for line in lines.values():
            line.close()
        self._by_group.clear()
        self._shared = self._shared_world = None

    def _watch(self, store: Any) -> None:
        """torch has no way to ask whether the other end is still there, and logs a long warning on every attempt."""
        match = _DESCRIPTOR.search(repr(_innermost(store)))
        descriptor = int(match[1]) if match else -1
        if descriptor >= 0 and descriptor not in self._lines:
            self._lines[descriptor] = socket.socket(fileno=os.dup(descriptor))

    def _connect(self, group: Group, pg: Any) -> Any:
        jobs_store = pg.get_group_store()
        _check_reachable(jobs_store)
        connection = own_connection(jobs_store)
        try:
            shared = self._through_shared(group, pg, connection)
        except Exception:  # an internal of torch has changed: a connection per group does as well
            shared = None
        return shared if shared is not None else connection

    def _through_shared(self, group: Group, pg: Any, connection: Any) -> Any | None:
        """The group's store over the one connection, if that turns out to be the same place."""
        from torch.distributed import PrefixStore, distributed_c10d

        world = distributed_c10d._get_default_group()
        if self._shared is None or self._shared_world is None or self._shared_world() is not world:
            self._shared = own_connection(distributed_c10d._get_default_store())
            self._shared_world = weakref.ref(world)
        shared = self._shared if pg is world else PrefixStore(f"{group.name}/", self._shared)
        trial = f"{detail_key(group.name, group.rank)}_trial"
        connection.set(trial, b"")
        is_same = shared.check([trial])
        connection.delete_key(trial)
        return shared if is_same else None


def _check_reachable(store: Any) -> None:
    """torch tries to connect for as long as the job's own time limit, which may be half an hour."""
    store = _innermost(store)
    host, port = getattr(store, "host", ""), getattr(store, "port", 0)
    if host and port:
        socket.create_connection((host, port), timeout=_CONNECT_SECONDS).close()


def _innermost(store: Any) -> Any:
    while hasattr(store, "underlying_store"):
        store = store.underlying_store
    return store


def _is_cut(line: socket.socket) -> bool:
    try:
        return line.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT) == b""
    except BlockingIOError:  # nothing to read: as it should be between two questions
        return False
    except OSError:
        return True
