"""HTTP requests whose limits hold whatever the other side does: seconds in all, bytes, and no redirect is followed."""

from __future__ import annotations

import http.client
import socket
import time
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from rankscope.errors import UsageError

_CHUNK = 1 << 16


class Address(NamedTuple):
    """Where a server listens, and below which path."""

    host: str
    port: int
    path: str = ""

    @property
    def url(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{host}:{self.port}{self.path}"


class Reply(NamedTuple):
    status: int
    content: bytes


class NoAnswerError(Exception):
    """No complete answer came. `is_unreachable`: not even a connection was made."""

    def __init__(self, message: str, *, is_unreachable: bool = False) -> None:
        super().__init__(message)
        self.is_unreachable = is_unreachable


def parse_address(text: str, default_port: int) -> Address:
    """`http://host:port/path`, `host:port` or `host`. A name and password in it are left out."""
    scheme, separator, _ = text.partition("://")
    if separator and scheme.lower() != "http":
        raise UsageError(f"{scheme}:// is not supported", "the debug server uses plain http: http://HOST:PORT")
    try:
        parts = urlsplit(text if separator else f"http://{text}")
        host, port = parts.hostname, parts.port
    except ValueError as error:
        raise UsageError(f"{text!r} is not an address: {error}", "use http://HOST:PORT") from error
    if not host or any(char.isspace() or not char.isprintable() for char in text):
        raise UsageError(f"{text!r} is not an address", "use http://HOST:PORT")
    return Address(host, default_port if port is None else port, parts.path.rstrip("/"))


def fetch(address: Address, path: str, *, method: str = "GET", seconds: float, max_bytes: int) -> Reply:
    """The complete answer within the limits, or NoAnswerError."""
    connection = _Connection(address.host, address.port, time.monotonic() + seconds)
    try:
        connection.request(method, f"{address.path}{path}", headers={"Connection": "close"})
        with connection.getresponse() as response:
            return Reply(response.status, _content(response, max_bytes))
    except TimeoutError as error:
        what = "complete answer" if connection.is_reached else "connection"
        raise NoAnswerError(f"no {what} within {seconds:.3g} s", is_unreachable=not connection.is_reached) from error
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise NoAnswerError(_reason(error), is_unreachable=not connection.is_reached) from error
    finally:
        connection.close()


def _content(response: http.client.HTTPResponse, max_bytes: int) -> bytes:
    too_large = NoAnswerError(f"the answer is larger than {max_bytes:,} bytes")
    if (response.length or 0) > max_bytes:
        raise too_large
    content = bytearray()
    while chunk := response.read1(_CHUNK):
        content += chunk
        if len(content) > max_bytes:
            raise too_large
    if response.length:
        raise NoAnswerError(f"the answer is truncated after {len(content):,} bytes")
    return bytes(content)


def _reason(error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror:
        return error.strerror.lower()
    if isinstance(error, http.client.HTTPException):
        return f"no HTTP answer ({type(error).__name__})"
    return str(error) or type(error).__name__


class _DeadlineSocket(socket.socket):
    """Waits until one deadline for everything. A limit per wait would let a slow trickle of bytes last forever."""

    deadline = 0.0

    def recv_into(self, *arguments: Any) -> int:
        left = self.deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError
        self.settimeout(left)
        return super().recv_into(*arguments)


class _Connection(http.client.HTTPConnection):
    def __init__(self, host: str, port: int, deadline: float) -> None:
        super().__init__(host, port)
        self.is_reached = False
        self._deadline = deadline

    def connect(self) -> None:
        left = max(self._deadline - time.monotonic(), 0.001)
        plain = socket.create_connection((self.host, self.port), left)
        timed = _DeadlineSocket(plain.family, plain.type, plain.proto, plain.detach())
        timed.deadline = self._deadline
        timed.settimeout(left)
        self.sock = timed
        self.is_reached = True
