"""Shows a written report to a browser on this machine, for where file:// is not at hand: containers, remote editors."""

from __future__ import annotations

import sys
from http import HTTPStatus
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from rankscope.errors import OutputError

ADDRESS = "127.0.0.1"


class _Handler(SimpleHTTPRequestHandler):
    """Reads only: the base class has no other methods than GET and HEAD."""

    def send_head(self) -> Any:
        # Any page on the web could reach this server through a name that leads to 127.0.0.1.
        port = self.server.server_address[1]  # type: ignore[index]
        if self.headers.get("Host", "") not in (f"{ADDRESS}:{port}", f"localhost:{port}"):
            self.send_error(HTTPStatus.FORBIDDEN, "this report is served to 127.0.0.1 and localhost only")
            return None
        return super().send_head()

    def log_message(self, format: str, *args: Any) -> None:
        """Requests are nobody's business."""


def report_server(folder: str, port: int) -> ThreadingHTTPServer:
    """Port 0 takes any that is free."""

    class Handler(_Handler):
        def __init__(self, *args: Any) -> None:
            super().__init__(*args, directory=folder)

    try:
        return ThreadingHTTPServer((ADDRESS, port), Handler)
    except OSError as error:
        raise OutputError(
            f"cannot listen on port {port}: {error.strerror}", "give another port: --serve 8123"
        ) from error


def serve_report(folder: str, port: int, open_browser: bool) -> None:
    """Until Ctrl-C."""
    with report_server(folder, port) as server:
        url = f"http://{ADDRESS}:{server.server_address[1]}/"
        sys.stderr.write(f"Serving the report at {url} until Ctrl-C\n")
        if open_browser:
            import webbrowser

            webbrowser.open(url)
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            sys.stderr.write("\n")
