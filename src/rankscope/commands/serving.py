"""Serves to a browser on this machine: what every server of ours refuses, and the one for a written report.

A server on 127.0.0.1 is within reach of every page that the user has open. So it answers only to a name of this
machine (another name that leads here is an attack), only to reading, and only to pages of its own.
"""

from __future__ import annotations

import gc
import os
import sys
import threading
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, SimpleHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple

from rankscope.commands import output
from rankscope.errors import OutputError

ADDRESS = "127.0.0.1"
_NAMES = (ADDRESS, "localhost")
_PATIENCE_S = 5  # while all threads are taken, the next connection waits so long
_IDLE_S = 60  # after this a connection that says nothing is closed
_HEADERS = {
    "Allow": "GET, HEAD",
    "Cache-Control": "no-store",
    "Referrer-Policy": "no-referrer",  # the address may hold a secret
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}


class Refusal(NamedTuple):
    status: HTTPStatus
    why: str


class LocalHandler(BaseHTTPRequestHandler):
    """Refuses before anything is looked up."""

    timeout = _IDLE_S
    server_version, sys_version = "rankscope", ""
    error_message_format = "%(message)s\n"
    error_content_type = "text/plain; charset=utf-8"

    def parse_request(self) -> bool:
        if not super().parse_request():
            return False
        refused = self.refusal()
        if refused:
            self.send_error(*refused)
        return refused is None

    def refusal(self) -> Refusal | None:
        host = self.headers.get("Host", "")
        # Any port: the user may have forwarded another one to ours. It is the name that tells friend from foe.
        if host.partition(":")[0] not in _NAMES:
            return Refusal(HTTPStatus.FORBIDDEN, "this report is served to 127.0.0.1 and localhost only")
        if self.command not in ("GET", "HEAD"):
            return Refusal(HTTPStatus.METHOD_NOT_ALLOWED, "this report can only be read")
        if self._is_foreign(host):
            return Refusal(HTTPStatus.FORBIDDEN, "this report does not answer to other pages")
        return None

    def _is_foreign(self, host: str) -> bool:
        """Asked for by a page from elsewhere. A link to here does no harm: the page that has it learns nothing."""
        if self.headers.get("Origin", f"http://{host}") != f"http://{host}":
            return True
        is_link = (self.headers.get("Sec-Fetch-Mode"), self.headers.get("Sec-Fetch-Dest")) == ("navigate", "document")
        return not is_link and self.headers.get("Sec-Fetch-Site", "none") not in ("none", "same-origin")

    def end_headers(self) -> None:
        for name, value in _HEADERS.items():
            self.send_header(name, value)
        super().end_headers()

    def log_message(self, format: str, *args: Any) -> None:
        """Requests are nobody's business."""


class LocalServer(ThreadingHTTPServer):
    """One thread per connection, up to a limit: browsers open some that they do not use."""

    daemon_threads = True
    max_threads = 32

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._free = threading.BoundedSemaphore(self.max_threads)
        super().__init__(*args, **kwargs)

    def process_request(self, request: Any, client_address: Any) -> None:
        if self._free.acquire(timeout=_PATIENCE_S):
            super().process_request(request, client_address)
        else:  # all are taken, and none ends: whoever takes them gains nothing by more
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._free.release()

    allow_reuse_address = os.name == "posix"  # elsewhere two servers could share a port

    @property
    def url(self) -> str:
        return f"http://{ADDRESS}:{self.server_port}/"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A browser that goes away in the middle is no error."""
        if not isinstance(sys.exc_info()[1], OSError):
            super().handle_error(request, client_address)


def listening_failed(port: int, error: Exception, hint: str) -> OutputError:
    return OutputError(f"cannot listen on port {port}: {getattr(error, 'strerror', None) or error}", hint)


def serve_until_interrupted(server: LocalServer, open_browser: bool) -> None:
    if open_browser:
        import webbrowser

        webbrowser.open(server.url)
    gc.enable()  # the command line has it off, which is for those that end soon
    try:
        server.serve_forever()
    except KeyboardInterrupt:
        output.tell("")


class _ReportHandler(LocalHandler, SimpleHTTPRequestHandler):
    def list_directory(self, path: Any) -> None:
        self.send_error(HTTPStatus.NOT_FOUND, "no such page")


def report_server(folder: str, port: int) -> LocalServer:
    """Port 0 takes any that is free."""

    class Handler(_ReportHandler):
        def __init__(self, *args: Any) -> None:
            super().__init__(*args, directory=folder)

    try:
        return LocalServer((ADDRESS, port), Handler)
    except (OSError, OverflowError) as error:
        raise listening_failed(port, error, "choose another port: --serve 8123") from error


def serve_report(folder: str, port: int, open_browser: bool) -> None:
    """Until Ctrl-C. For where file:// does not work: containers, remote editors."""
    with report_server(folder, port) as server:
        output.tell(f"Serving the report at {server.url} until Ctrl-C")
        serve_until_interrupted(server, open_browser)
