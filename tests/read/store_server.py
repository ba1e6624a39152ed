"""A stand-in for torch's TCPStore server, in a thread: speaks its protocol, or breaks it in the ways asked for."""

from __future__ import annotations

import socket
import socketserver
import struct
import threading
import time
from collections.abc import Mapping
from types import TracebackType

MAGIC = 0x3C85F7CE
VALIDATE, GET, CHECK, GETNUMKEYS, MULTI_GET, PING, LIST_KEYS = 0, 3, 5, 7, 10, 13, 17
# Requests that servers of older torch do not know: they close the connection.
OLDER = frozenset({PING, LIST_KEYS})


class StoreServer:
    """Serves `values`, whose keys are given as torch's clients give them: without the slash that begins each."""

    def __init__(
        self,
        values: Mapping[str, bytes] | None = None,
        *,
        unknown: frozenset[int] = frozenset(),
        answers: Mapping[int, bytes] | None = None,
        greeting: bytes = b"",
        pause_s: float = 0.0,
    ) -> None:
        self.values = {f"/{key}".encode(): value for key, value in (values or {}).items()}
        self.unknown = unknown
        self.answers = dict(answers or {})  # by request, instead of the right one; what follows is a closed connection
        self.greeting = greeting  # what is said at once, by a server of another protocol
        self.pause_s = pause_s  # between the bytes of an answer
        self.n_connections = 0
        self.requests: list[int] = []
        self._server = _Server(self)

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def port(self) -> int:
        return int(self._server.server_address[1])

    def __enter__(self) -> StoreServer:
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()


class _Server(socketserver.ThreadingTCPServer):
    daemon_threads = True
    block_on_close = False
    allow_reuse_address = True

    def __init__(self, store: StoreServer) -> None:
        self.store = store
        super().__init__(("127.0.0.1", 0), _Connection)

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that goes away is no news."""


class _Connection(socketserver.StreamRequestHandler):
    server: _Server

    def handle(self) -> None:
        store = self.server.store
        store.n_connections += 1
        if store.greeting:
            self.wfile.write(store.greeting)
            self.request.shutdown(socket.SHUT_WR)
            self.rfile.read()  # closed with something unread, the greeting might never arrive
            return
        while request := self.rfile.read(1):
            [query] = request
            store.requests.append(query)
            if query in store.answers:
                self._say(store.answers[query])
                return
            if query in store.unknown or not self._answer(query, store):
                return

    def _answer(self, query: int, store: StoreServer) -> bool:
        if query == VALIDATE:
            return self.rfile.read(4) == struct.pack("<I", MAGIC)
        if query == PING:
            self._say(self.rfile.read(4))
        elif query == CHECK:
            self._say(bytes([not all(key in store.values for key in self._keys())]))
        elif query == MULTI_GET:
            values = [store.values[key] for key in self._keys()]
            self._say(b"".join(map(sized, values)))
        elif query == GETNUMKEYS:
            self._say(struct.pack("<q", len(store.values)))
        elif query == LIST_KEYS:
            self._say(struct.pack("<Q", len(store.values)) + b"".join(map(sized, store.values)))
        else:
            return False
        return True

    def _keys(self) -> list[bytes]:
        [n_keys] = struct.unpack("<Q", self.rfile.read(8))
        return [self.rfile.read(struct.unpack("<Q", self.rfile.read(8))[0]) for _ in range(n_keys)]

    def _say(self, answer: bytes) -> None:
        if not self.server.store.pause_s:
            self.wfile.write(answer)
            return
        for byte in answer:
            time.sleep(self.server.store.pause_s)
            self.wfile.write(bytes([byte]))


def sized(content: bytes) -> bytes:
    return struct.pack("<Q", len(content)) + content
