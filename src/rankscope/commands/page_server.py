"""The page on 127.0.0.1: its data is made when it is asked for, and its timeline can be handed to Perfetto.

Everything lies below a random token, which no other page or user of the machine knows. A trace and its database
belong to one thread at a time, so that whatever is made of them is made under one lock.
"""

from __future__ import annotations

import hmac
import io
import os
import secrets
import shutil
import tempfile
import threading
from collections.abc import Callable
from http import HTTPStatus
from typing import TYPE_CHECKING, BinaryIO, NamedTuple, cast

from rankscope.commands import output
from rankscope.commands.serving import ADDRESS, LocalHandler, LocalServer, Refusal
from rankscope.errors import RankscopeError

if TYPE_CHECKING:
    from rankscope.render.html import Html
    from rankscope.render.page.writer import Built

PERFETTO = "https://ui.perfetto.dev"
TIMELINE = "timeline.json.gz"
_DATA = "/data/"
_HTML, _BYTES = "text/html; charset=utf-8", "application/octet-stream"
# The page itself says what it may run and load; only a header can keep it out of frames.
_POLICIES = {
    _HTML: "frame-ancestors 'none'; base-uri 'none'; form-action 'none'",
    _BYTES: "default-src 'none'; frame-ancestors 'none'; sandbox",
}


class Shown(NamedTuple):
    """`write_timeline` writes a file at a path; a page without it has no button for it."""

    page: Built
    write_timeline: Callable[[str], object] | None = None


class PageServer(LocalServer):
    """Listens from the start, so that a port in use is reported before the traces are read."""

    shown: Shown  # to be set before it serves

    def __init__(self, port: int, perfetto: str = PERFETTO) -> None:
        """Tests, which must not leave the machine, have a Perfetto of their own."""
        self.token = secrets.token_urlsafe(16)
        self._perfetto = perfetto
        self._lock = threading.Lock()
        self._html: bytes | None = None
        self._folder = tempfile.TemporaryDirectory(prefix="rankscope-serve-", ignore_cleanup_errors=True)
        super().__init__((ADDRESS, port), _PageHandler)

    @property
    def url(self) -> str:
        return f"{super().url}{self.token}/"

    def server_close(self) -> None:
        super().server_close()
        self._folder.cleanup()

    def page(self) -> bytes:
        with self._lock:
            if self._html is None:
                parts = [*self.shown.page.parts()]
                parts.insert(-1, self._button())  # before the scripts
                self._html = "".join(parts).encode("utf-8", "replace")
            return self._html

    def block(self, name: str) -> bytes | None:
        """The packed data of that name, if there is such."""
        blocks = self.shown.page.blocks
        with self._lock:
            return blocks.get(name) if name in blocks.makers else None

    def timeline(self) -> BinaryIO | None:
        path = os.path.join(self._folder.name, TIMELINE)
        write = self.shown.write_timeline
        if write is None:
            return None
        with self._lock:
            if not os.path.exists(path):
                write(path)
            return open(path, "rb")

    def _button(self) -> Html:
        """For serve.js, which puts it where it belongs."""
        from rankscope.render.html import NOTHING, markup

        if self.shown.write_timeline is None:
            return NOTHING
        return markup(
            '<button type="button" id="perfetto" data-from="{}" data-to="{}" hidden>'
            "Open the timeline in Perfetto</button>\n",
            TIMELINE,
            self._perfetto,
        )


class _PageHandler(LocalHandler):
    def refusal(self) -> Refusal | None:
        refused = super().refusal()
        if refused:
            return refused
        token = self.path.split("/")[1] if self.path.startswith("/") else ""
        if not hmac.compare_digest(token.encode("latin-1", "replace"), self._server.token.encode()):
            return Refusal(HTTPStatus.FORBIDDEN, "use the full address that rankscope serve printed")
        return None

    @property
    def _server(self) -> PageServer:
        return cast(PageServer, self.server)

    def do_GET(self) -> None:  # noqa: N802 - http.server's own name
        path = self.path.partition("?")[0].removeprefix(f"/{self._server.token}")
        if path == "":
            self._lead_to_page()
            return
        try:
            content = self._find(path)
        except Exception as error:
            _complain(path, error)
            self.send_error(HTTPStatus.INTERNAL_SERVER_ERROR, "this could not be made; see the terminal for the reason")
        else:
            self._send(content, _HTML if path == "/" else _BYTES)

    do_HEAD = do_GET  # noqa: N815

    def _find(self, path: str) -> BinaryIO | None:
        if path == "/":
            return io.BytesIO(self._server.page())
        if path == f"/{TIMELINE}":
            return self._server.timeline()
        block = self._server.block(path.removeprefix(_DATA)) if path.startswith(_DATA) else None
        return None if block is None else io.BytesIO(block)

    def _send(self, content: BinaryIO | None, kind: str) -> None:
        if content is None:
            self.send_error(HTTPStatus.NOT_FOUND, "nothing here has this name")
            return
        with content:
            n_bytes = content.seek(0, os.SEEK_END)
            content.seek(0)
            self.send_response(HTTPStatus.OK)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(n_bytes))
            self.send_header("Content-Security-Policy", _POLICIES[kind])
            self.end_headers()
            if self.command != "HEAD":
                shutil.copyfileobj(content, self.wfile, 1 << 20)

    def _lead_to_page(self) -> None:
        """Relative addresses need the slash."""
        self.send_response(HTTPStatus.MOVED_PERMANENTLY)
        self.send_header("Location", f"/{self._server.token}/")
        self.send_header("Content-Length", "0")
        self.end_headers()


def _complain(path: str, error: Exception) -> None:
    """Reports the error where the server was started; the browser shows where to look."""
    from rankscope.render.escape import escape

    hint = error.hint if isinstance(error, RankscopeError) else "run it again with RANKSCOPE_DEBUG=1 for the traceback"
    output.tell(f"error: {escape(path)}: {escape(f'{type(error).__name__}: {error}')}")
    if hint:
        output.tell(f"  = fix: {escape(hint)}")
    if os.environ.get("RANKSCOPE_DEBUG"):
        import traceback

        traceback.print_exception(error)
