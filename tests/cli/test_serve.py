"""The page on 127.0.0.1: whom it answers, what it gives, and that it makes nothing before it is asked for."""

from __future__ import annotations

import http.client
import json
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

from cli.running import clean_environment
from demo_captures import demo
from rankscope.cli import main
from rankscope.commands import serve
from rankscope.commands.page_server import PageServer, Shown
from rankscope.render.html import markup
from rankscope.render.page.blocks import Block, Blocks
from rankscope.render.page.writer import Built


class Answer(NamedTuple):
    status: int
    headers: http.client.HTTPMessage
    content: bytes


def page_of(makers: Mapping[str, Callable[[], Block]]) -> Built:
    blocks = Blocks(is_served=True)
    for name, make in makers.items():
        blocks.add(name, make)
    return Built(markup("<body>"), markup("<main>the page</main>"), markup("</body>"), blocks, ())


@contextmanager
def serving(shown: Shown | None = None) -> Iterator[PageServer]:
    with PageServer(0) as server:
        server.shown = shown or Shown(
            page_of({"map": lambda: Block({"n": 1}, {"state": np.arange(3, dtype=np.uint8)})})
        )
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture(scope="module")
def server() -> Iterator[PageServer]:
    with serving() as own:
        yield own


def ask(server: PageServer, path: str = "", method: str = "GET", **headers: str) -> Answer:
    """`path` is below the token; one that begins with a slash is taken as it is."""
    target = path if path.startswith("/") else f"/{server.token}/{path}"
    with closing(http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=60)) as connection:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        connection.request(method, target, headers={"Host": f"127.0.0.1:{server.server_port}", **named})
        answer = connection.getresponse()
        return Answer(answer.status, answer.headers, answer.read())


def test_the_page_and_its_data_are_there(server: PageServer) -> None:
    page = ask(server)
    assert page.status == 200
    assert b"the page" in page.content
    assert b'data-from="data/map"' in page.content
    packed = zlib.decompress(ask(server, "data/map").content)
    assert json.loads(packed.partition(b"\n")[0])["meta"] == {"n": 1}


def test_whoever_asks_for_the_head_gets_no_more(server: PageServer) -> None:
    whole, head = ask(server, "data/map"), ask(server, "data/map", "HEAD")
    assert head.content == b""
    assert head.headers["Content-Length"] == whole.headers["Content-Length"] == str(len(whole.content))


def test_an_address_without_its_last_slash_leads_to_the_page(server: PageServer) -> None:
    answer = ask(server, f"/{server.token}")
    assert answer.status == 301
    assert answer.headers["Location"] == f"/{server.token}/"


@pytest.mark.parametrize("path", ["/", "/favicon.ico", "/data/map", "/wrong/", "/wrong/data/map", "//", "/%00/"])
def test_nothing_is_there_without_the_token(server: PageServer, path: str) -> None:
    answer = ask(server, path)
    assert answer.status == 403
    assert b"the full address" in answer.content


def test_a_part_of_the_token_is_not_enough(server: PageServer) -> None:
    assert ask(server, f"/{server.token[:-1]}/").status == 403
    assert ask(server, f"/{server.token}x/").status == 403


def test_every_server_has_a_token_of_its_own(server: PageServer) -> None:
    with serving() as other:
        assert other.token != server.token
        assert len(other.token) >= 20
        assert ask(other, f"/{server.token}/").status == 403


@pytest.mark.parametrize("host", ["evil.example", "evil.example:{port}", "127.0.0.1.evil.example:{port}", "[::1]", ""])
def test_a_name_that_is_not_of_this_machine_is_refused(server: PageServer, host: str) -> None:
    assert ask(server, Host=host.format(port=server.server_port)).status == 403


def test_a_request_without_a_name_is_refused(server: PageServer) -> None:
    with socket.create_connection(("127.0.0.1", server.server_port), timeout=60) as connection:
        connection.sendall(f"GET /{server.token}/ HTTP/1.0\r\n\r\n".encode())
        assert connection.recv(64).startswith(b"HTTP/1.0 403")


@pytest.mark.parametrize("host", ["localhost:{port}", "localhost", "127.0.0.1:9000"])
def test_a_forwarded_port_is_no_other_machine(server: PageServer, host: str) -> None:
    assert ask(server, Host=host.format(port=server.server_port)).status == 200


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "https://evil.example"},
        {"Origin": "null"},
        {"Origin": "http://127.0.0.1:1"},
        {"Sec_Fetch_Site": "cross-site", "Sec_Fetch_Mode": "cors"},
        {"Sec_Fetch_Site": "same-site", "Sec_Fetch_Mode": "no-cors", "Sec_Fetch_Dest": "script"},
        {"Sec_Fetch_Site": "cross-site", "Sec_Fetch_Mode": "navigate", "Sec_Fetch_Dest": "iframe"},
    ],
)
def test_pages_from_elsewhere_are_refused(server: PageServer, headers: Mapping[str, str]) -> None:
    assert ask(server, "data/map", **headers).status == 403


def test_the_page_itself_and_links_to_it_are_let_in(server: PageServer) -> None:
    own = f"http://127.0.0.1:{server.server_port}"
    assert ask(server, "data/map", Origin=own, Sec_Fetch_Site="same-origin").status == 200
    link = {"Sec_Fetch_Site": "cross-site", "Sec_Fetch_Mode": "navigate", "Sec_Fetch_Dest": "document"}
    assert ask(server, **link).status == 200


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "CONNECT", "NONSENSE"])
def test_it_can_only_be_read(server: PageServer, method: str) -> None:
    answer = ask(server, method=method)
    assert answer.status == 405
    assert answer.headers["Allow"] == "GET, HEAD"


@pytest.mark.parametrize(
    "path",
    [
        "data/",
        "data/none",
        "data/../../etc/passwd",
        "../",
        "%2e%2e/",
        "../../../../etc/passwd",
        "index.html",
        "data/map/",
    ],
)
def test_there_are_no_files_behind_it(server: PageServer, path: str) -> None:
    answer = ask(server, path)
    assert answer.status == 404
    assert b"root:" not in answer.content


@pytest.mark.parametrize(("path", "method"), [("", "GET"), ("data/map", "GET"), ("none", "GET"), ("", "POST")])
def test_every_answer_protects_itself(server: PageServer, path: str, method: str) -> None:
    headers = ask(server, path, method).headers
    assert headers["X-Content-Type-Options"] == "nosniff"
    assert headers["X-Frame-Options"] == "DENY"
    assert headers["Referrer-Policy"] == "no-referrer"
    assert headers["Cache-Control"] == "no-store"
    assert not [name for name in headers if name.lower().startswith("access-control")]


def test_neither_page_nor_data_can_be_framed(server: PageServer) -> None:
    assert "frame-ancestors 'none'" in ask(server).headers["Content-Security-Policy"]
    assert "default-src 'none'" in ask(server, "data/map").headers["Content-Security-Policy"]


def test_data_is_made_when_it_is_asked_for_once_and_one_at_a_time() -> None:
    made: list[str] = []
    being_made: list[str] = []

    def maker(name: str) -> Callable[[], Block]:
        def make() -> Block:
            assert being_made == []
            being_made.append(name)
            time.sleep(0.02)  # long enough for the others to come
            being_made.remove(name)
            made.append(name)
            return Block(name)

        return make

    with serving(Shown(page_of({name: maker(name) for name in "abc"}))) as server:
        ask(server)
        assert made == []
        threads = [threading.Thread(target=ask, args=(server, f"data/{name}")) for name in "abab"]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(made) == ["a", "b"]
        assert ask(server, "data/a").status == 200


@pytest.mark.parametrize("error", [ValueError("\x1b[31mbad\n"), FileNotFoundError(2, "gone", "x.log")])
def test_what_cannot_be_made_is_told_and_the_rest_goes_on(error: Exception, capsys: pytest.CaptureFixture[str]) -> None:
    def fail() -> Block:
        raise error

    with serving(Shown(page_of({"bad": fail, "good": lambda: Block(1)}))) as server:
        answer = ask(server, "data/bad")
        assert answer.status == 500
        assert b"terminal" in answer.content
        assert ask(server, "data/good").status == 200
    told = capsys.readouterr().err
    assert f"error: /data/bad: {type(error).__name__}: " in told
    assert "\x1b" not in told


def test_a_page_without_a_timeline_has_no_button_for_it(server: PageServer) -> None:
    assert b'id="perfetto"' not in ask(server).content
    assert ask(server, "timeline.json.gz").status == 404


def test_the_timeline_is_written_once_and_gone_at_the_end() -> None:
    written: list[Path] = []

    def write(path: str) -> None:
        written.append(Path(path))
        Path(path).write_bytes(b"timeline" * 1000)

    with serving(Shown(page_of({}), write)) as server:
        assert b'data-to="https://ui.perfetto.dev"' in ask(server).content
        assert written == []
        answers = [ask(server, "timeline.json.gz") for _ in range(2)]
        assert [answer.content for answer in answers] == [b"timeline" * 1000] * 2
        assert len(written) == 1
        assert written[0].exists()
    assert not written[0].parent.exists()


@contextmanager
def running(*arguments: str) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-m", "rankscope", "serve", *arguments]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, env=clean_environment(), text=True, **pipes) as process:  # type: ignore[call-overload]
        try:
            yield process
        finally:
            process.kill()


@pytest.fixture(scope="module")
def capture(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return demo(tmp_path_factory.mktemp("serve") / "job", "skip", 8)


def test_the_command_serves_what_it_read_until_it_is_interrupted(capture: Path, tmp_path: Path) -> None:
    folder = tmp_path / "job"
    shutil.copytree(capture, folder)
    with running(str(folder), "--port", "0", "--json") as process:
        assert process.stdout is not None
        assert process.stderr is not None
        url = json.loads("".join(process.stdout.readline() for _ in range(3)))["url"]
        assert f"Serving the page at {url} until Ctrl-C" in process.stderr.readline()
        shutil.rmtree(folder)
        with urllib.request.urlopen(url, timeout=30) as answer:
            page = answer.read().decode()
        assert "<h1>" in page
        assert "connect-src 'self'" in page
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 0


def test_a_port_in_use_is_told_before_anything_is_read(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        assert main(["serve", "/no/such/folder", "--port", str(port)]) == 2
    told = capsys.readouterr().err
    assert f"cannot listen on port {port}" in told
    assert "--port 0" in told


def test_when_the_usual_port_is_taken_another_is_used(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        monkeypatch.setattr(serve, "DEFAULT_PORT", other.getsockname()[1])
        with serve.listening(None) as server:
            assert server.server_port != serve.DEFAULT_PORT
        assert f"Port {serve.DEFAULT_PORT} is in use" in capsys.readouterr().err


@pytest.mark.parametrize("port", ["-1", "65536", "many"])
def test_a_port_is_a_number_that_there_is(port: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", ".", f"--port={port}"]) == 2
    assert "is not a port" in capsys.readouterr().err


def test_connections_are_served_by_a_limited_number_of_threads(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    import socket
    import threading

    from rankscope.commands import serving

    monkeypatch.setattr(serving.LocalServer, "max_threads", 3)
    monkeypatch.setattr(serving, "_PATIENCE_S", 0.01)
    (tmp_path / "index.html").write_text("here")
    n_before = threading.active_count()
    with serving.report_server(str(tmp_path), 0) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        idle = [socket.create_connection(("127.0.0.1", server.server_port)) for _ in range(3)]
        try:
            refused = socket.create_connection(("127.0.0.1", server.server_port))
            refused.settimeout(60)
            assert refused.recv(1) == b""  # closed, as all threads are taken
            refused.close()
            assert threading.active_count() <= n_before + 1 + 3
        finally:
            for each in idle:
                each.close()
            server.shutdown()
