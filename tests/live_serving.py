"""Stands in for torch's debug server: a frontend and its workers on this machine, well behaved or hostile."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple

from read.dumps import make_dump, make_entry

Behaviour = Callable[[BaseHTTPRequestHandler], None]
Answer = bytes | tuple[int, bytes] | Behaviour
Routes = Mapping[str, Answer]

WORKER_INDEX = b'<h1>torch.distributed.WorkerServer</h1>\n<a href="/handler/">Handler names</a>\n'
FRONTEND_INDEX = b"<!doctype html>\n<nav><h1>Torch Distributed Debug Server</h1></nav>\nHi\n"
TRACEBACK = b"""\
Current thread 0x00007f0000000001 (most recent call first):
  <no Python frame>

Thread 0x00007f0000000002 (most recent call first):
  File "/job/train.py", line %d in %s
  File "/job/train.py", line 90 in <module>
"""


@contextmanager
def serving(routes: Routes) -> Iterator[str]:
    """`routes`: "GET /" -> what is answered. Gives the URL of the server."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._answer()

        def do_POST(self) -> None:
            self._answer()

        def _answer(self) -> None:
            answer = routes.get(f"{self.command} {self.path.partition('?')[0]}", (404, b"Handler not found"))
            if callable(answer):
                answer(self)
                return
            status, content = answer if isinstance(answer, tuple) else (200, answer)
            self.send_response(status)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    server.handle_error = lambda *_: None  # type: ignore[method-assign]
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def worker_routes(handlers: Mapping[str, Answer]) -> dict[str, Answer]:
    answers: dict[str, Answer] = {"GET /": WORKER_INDEX, "GET /handler/": json.dumps([*handlers]).encode()}
    return {**answers, **{f"POST /handler/{name}": answer for name, answer in handlers.items()}}


def page(handler: str, answers: Mapping[int, tuple[str, Answer]]) -> bytes:
    """As the frontend shows what its workers answered: nothing is escaped."""
    parts = ["<!doctype html>\n<section class='content'>\n<h1>Title</h1>\n"]
    for rank, (url, answer) in answers.items():
        parts.append(f"<h2>Rank {rank}: {url}/handler/{handler}?</h2>\n")
        if isinstance(answer, bytes):
            parts.append(f"    <pre>{answer.decode()}</pre>\n")
        elif isinstance(answer, tuple):
            parts.append(f"<p>Failed to fetch: status={answer[0]}</p>\n<pre>{answer[1].decode()}</pre>\n")
    return "".join([*parts, "</section>\n"]).encode()


def store_page(urls: Sequence[str]) -> bytes:
    lines = [f"    debug_server/rank{rank}: b'{url}'" for rank, url in enumerate(urls)]
    return "\n".join(["<pre>", *lines, '    default_pg/0//cpu//0/0: b"\\x02...', "</pre>"]).encode()


def calls_json(n_calls: int, *, waits: bool = True, n_ranks: int = 2) -> bytes:
    """What fr_trace_json sends for gloo: no stacks, no states or times, counters as text. The last call may wait."""
    entries = []
    for seq in range(1, n_calls + 1):
        told = {"process_group": ["0", "default_pg"], "profiling_name": "gloo:all_reduce"}
        times = {"time_discovered_started_ns": 0, "time_discovered_completed_ns": 0}
        entry = make_entry(seq, retired=not waits or seq < n_calls, **told, **times)
        del entry["frames"]
        entries.append(entry)
    counters = {"last_enqueued_collective": str(n_calls), "last_completed_collective": str(n_calls - waits)}
    config = {"0": {"name": "0", "desc": "default_pg", "ranks": str([*range(n_ranks)])}}
    return json.dumps(make_dump(entries, pg_config=config, pg_status={"0": counters})).encode()


class ServedJob(NamedTuple):
    url: str
    workers: tuple[str, ...]


@contextmanager
def serving_job(ranks: Sequence[Mapping[str, Answer]], *, told: Sequence[str] | None = None) -> Iterator[ServedJob]:
    """One worker for each rank, by its handlers, and a frontend; `told` are the addresses that it gives for them."""
    with ExitStack() as stack:
        urls = [stack.enter_context(serving(worker_routes(handlers))) for handlers in ranks]
        shown = list(told) if told is not None else urls
        routes: dict[str, Answer] = {"GET /": FRONTEND_INDEX, "GET /tcpstore": store_page(shown)}
        for path, handler in (("/fr_trace_json", "fr_trace_json"), ("/stacks", "dump_traceback")):
            answers = {
                rank: (url, handlers.get(handler, (404, b"no such handler")))
                for rank, (url, handlers) in enumerate(zip(shown, ranks, strict=True))
            }
            routes[f"GET {path}"] = page(handler, answers)
        yield ServedJob(stack.enter_context(serving(routes)), tuple(urls))


def unused_url() -> str:
    """An address at which nobody listens."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{probe.getsockname()[1]}"
