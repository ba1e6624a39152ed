"""A client of torch's TCPStore in plain sockets: reads the keys of a running or hanging job.

Only ever reads. Both of torch's servers are spoken to. The older one serves all ranks from a single thread that waits
for the rest of a request once it has begun: so a request is sent whole, and small enough to never fill its buffers.
"""

from __future__ import annotations

import re
import socket
import struct
import time
from collections.abc import Iterator, Sequence
from types import TracebackType
from typing import NamedTuple

from rankscope.errors import InputError, UsageError
from rankscope.model.numbers import integer

_VALIDATE, _CHECK, _GETNUMKEYS, _MULTI_GET, _PING, _LIST_KEYS = 0, 5, 7, 10, 13, 17
_MAGIC = struct.pack("<BI", _VALIDATE, 0x3C85F7CE)
_NONCE = 0x52534350
_READY, _NOT_READY = b"\0", b"\1"
# Every key of a TCPStore begins so, whatever prefixes follow.
_ROOT = "/"
_BATCH = 64
_MAX_VALUE_BYTES = 4 << 20
_MAX_KEY_BYTES = 8 << 10
_MAX_KEYS = 1 << 20
_MAX_LISTED_BYTES = 256 << 20

_PLAIN_ADDRESS = re.compile(r"(?P<host>[^:\[\]\s/]+):(?P<port>\d{1,5})")
_V6_ADDRESS = re.compile(r"\[(?P<host>[0-9A-Fa-f:.%\w]+)\]:(?P<port>\d{1,5})")
WHERE_HINT = (
    "the job's store is at MASTER_ADDR:MASTER_PORT of its ranks (tr '\\0' '\\n' < /proc/PID/environ | grep MASTER_ on "
    "rank 0's host); the port in torchrun's --rdzv-endpoint is the store of its agents, not of the job"
)


class Address(NamedTuple):
    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class StoreClosedError(InputError):
    """The server closed the connection instead of answering."""


def parse_address(text: str) -> Address:
    """`HOST:PORT` or `[v6]:PORT`."""
    match = _PLAIN_ADDRESS.fullmatch(text) or _V6_ADDRESS.fullmatch(text)
    if match is None or not 0 < integer(match["port"]) < 1 << 16:
        raise UsageError(f"{text!r} is not HOST:PORT", f"for example node-1:29500 or [fe80::1]:29500; {WHERE_HINT}")
    return Address(match["host"], integer(match["port"]))


class TcpStore:
    """A connection to a torch store, checked on connecting. Every call takes `limit_s` at most."""

    def __init__(self, address: Address, limit_s: float = 10.0) -> None:
        self.address = address
        self.limit_s = limit_s
        self._deadline = 0.0
        self._socket: socket.socket | None = None
        self._can_list = True
        try:
            self._make_sure()
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> TcpStore:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def check(self, keys: Sequence[str]) -> bool:
        """True when all of the keys are there."""
        self._send(_CHECK, struct.pack("<Q", len(keys)), *map(_key_bytes, keys))
        return self._receive_check()

    def get(self, key: str) -> bytes:
        """InputError: the key does not exist, or its value cannot be read."""
        values = self.fetch([key])
        if key not in values:
            raise InputError(f"the store at {self.address} has no key {key}")
        return values[key]

    def fetch(self, keys: Sequence[str]) -> dict[str, bytes]:
        """The values of those of the keys that are there."""
        values: dict[str, bytes] = {}
        for start in range(0, len(keys), _BATCH):
            asked = keys[start : start + _BATCH]
            # One request each, all in one go: a single one would only tell whether all of them are there.
            self._send_all(_request(_CHECK, struct.pack("<Q", 1), _key_bytes(key)) for key in asked)
            present = [key for key in asked if self._receive_check()]
            if present:
                self._send(_MULTI_GET, struct.pack("<Q", len(present)), *map(_key_bytes, present))
                values.update((key, self._receive_bytes(_MAX_VALUE_BYTES)) for key in present)
        return values

    def n_keys(self) -> int:
        self._send(_GETNUMKEYS)
        return self._receive_number()

    def list_keys(self) -> list[str] | None:
        """All keys; None where the server is too old to list them (before torch 2.9 or so)."""
        if not self._can_list:
            return None
        try:
            self._send(_LIST_KEYS)
            n_keys = self._receive_number(_MAX_KEYS)
            listed, n_bytes = [], 0
            for _ in range(n_keys):
                key = self._receive_bytes(_MAX_KEY_BYTES)
                n_bytes += len(key)
                if n_bytes > _MAX_LISTED_BYTES:
                    raise self._odd("its keys are larger than any job's")
                listed.append(key.decode("utf-8", "surrogateescape").removeprefix(_ROOT))
        except StoreClosedError:  # it does not know the request
            self._can_list = False
            self._connect()
            return None
        return listed

    # What is said over the wire

    def _make_sure(self) -> None:
        self._connect()
        try:
            self._send(_PING, struct.pack("<I", _NONCE))
            answer = self._receive(4)
        except StoreClosedError:  # torch before 2.4 knows no ping
            self._connect()
            try:
                self._send(_GETNUMKEYS)
                answer = self._receive(8)
            except StoreClosedError:
                raise self._odd("it closes the connection") from None
            is_store = struct.unpack("<Q", answer)[0] <= _MAX_KEYS
        else:
            is_store = answer == struct.pack("<I", _NONCE)
        if not is_store:
            raise self._odd("it answers in HTTP" if answer.startswith(b"HTTP") else "it answers in another protocol")

    def _connect(self) -> None:
        self.close()
        try:
            self._socket = socket.create_connection(self.address, self.limit_s)
            self._socket.sendall(_MAGIC)
        except OSError as error:
            raise InputError(f"cannot connect to {self.address}: {_reason(error)}", WHERE_HINT) from error

    def _send(self, query: int, *parts: bytes) -> None:
        self._send_all([_request(query, *parts)])

    def _send_all(self, requests: Iterator[bytes] | list[bytes]) -> None:
        if self._socket is None:  # an earlier answer made no sense: what follows it would make none either
            raise InputError(f"the connection to {self.address} is closed", "run the command again")
        self._deadline = time.monotonic() + self.limit_s
        self._socket.settimeout(self.limit_s)
        try:
            self._socket.sendall(b"".join(requests))
        except TimeoutError:
            raise self._silent() from None
        except OSError as error:
            raise self._closed(error) from error

    def _receive(self, n_bytes: int) -> bytes:
        """Exactly `n_bytes` bytes, within the time that the request has left."""
        assert self._socket is not None
        received = bytearray()
        while len(received) < n_bytes:
            left = self._deadline - time.monotonic()
            try:
                self._socket.settimeout(max(left, 1e-3))
                part = self._socket.recv(min(n_bytes - len(received), 1 << 16)) if left > 0 else None
            except TimeoutError:
                part = None
            except OSError as error:
                raise self._closed(error) from error
            if part is None:
                raise self._silent()
            if not part:
                raise self._closed()
            received += part
        return bytes(received)

    def _receive_number(self, limit: int = 1 << 40) -> int:
        number: int = struct.unpack("<Q", self._receive(8))[0]
        if number > limit:
            raise self._odd(f"it claims {number:,} keys or bytes")
        return number

    def _receive_bytes(self, limit: int) -> bytes:
        return self._receive(self._receive_number(limit))

    def _receive_check(self) -> bool:
        answer = self._receive(1)
        if answer not in (_READY, _NOT_READY):
            raise self._odd("it answers neither yes nor no")
        return answer == _READY

    def _silent(self) -> InputError:
        self.close()
        return InputError(
            f"{self.address} accepts connections but did not answer within {self.limit_s:g} s",
            f"it is another program or a stopped process (raise --timeout if it is only slow); {WHERE_HINT}",
        )

    def _closed(self, error: OSError | None = None) -> StoreClosedError:
        self.close()
        why = f": {_reason(error)}" if error else ""
        return StoreClosedError(f"{self.address} closed the connection{why}", f"the job may have ended; {WHERE_HINT}")

    def _odd(self, what: str) -> InputError:
        self.close()
        return InputError(f"{self.address} is not a torch store: {what}", WHERE_HINT)


def _request(query: int, *parts: bytes) -> bytes:
    return b"".join((bytes((query,)), *parts))


def _key_bytes(key: str) -> bytes:
    encoded = (_ROOT + key).encode("utf-8", "surrogateescape")
    return struct.pack("<Q", len(encoded)) + encoded


def _reason(error: OSError) -> str:
    if isinstance(error, TimeoutError):
        return "no answer in time"
    return (error.strerror or str(error)).lower()
