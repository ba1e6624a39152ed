"""The debug server that the collector starts: what it does to the job, which is nothing, and what it tells."""

from __future__ import annotations

import contextlib
import io
import json
import socket
import subprocess
import sys
import textwrap
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, cast

import pytest

from rankscope.collect.debug import frontend as debug_frontend
from rankscope.collect.debug import server as debug_server
from rankscope.collect.debug import worker_server
from rankscope.collect.debug.server import DebugServer
from rankscope.collect.run import Run
from rankscope.collect.settings import VARIABLE, Settings

PLACE = debug_server._Place("gpu-1", 29500, store=None)


@pytest.fixture
def run(tmp_path: Path) -> Run:
    run = Run(Settings(str(tmp_path), debug_port=25999))
    run.rank, run.world_size = 0, 2
    return run


def problems(run: Run) -> list[dict[str, str]]:
    found: list[dict[str, str]] = run.describe()["problems"]
    return found


def test_what_the_frontend_needs_is_one_clear_problem(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    monkeypatch.setattr(debug_frontend, "start_frontend", lambda *_: pytest.fail("started"))
    DebugServer(run)._start_frontend(PLACE)
    [problem] = problems(run)
    assert problem["what"] == "debug_server"
    assert "jinja2, tabulate, aiohttp" in problem["problem"]
    assert problem["hint"].startswith("pip install jinja2 tabulate aiohttp")


def test_one_of_two_http_clients_is_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None if name == "aiohttp" else object())
    assert debug_frontend.missing_packages() == ""


def test_where_it_is_and_that_anybody_can_read_it_is_told(
    run: Run, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    asked: list[Any] = []
    monkeypatch.setattr(debug_frontend, "missing_packages", lambda: "")
    monkeypatch.setattr(debug_frontend, "start_frontend", lambda *arguments: asked.append(arguments))
    DebugServer(run)._start_frontend(PLACE)
    told = capfd.readouterr().err
    assert f"rankscope attach http://{socket.gethostname()}:25999" in told
    assert "no authentication" in told
    where = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "gpu-1", "MASTER_PORT": "29500"}
    assert asked == [(25999, where)]


def test_a_frontend_that_ends_by_itself_is_told_once(run: Run) -> None:
    part = DebugServer(run)
    part._frontend = cast(Any, ended("OSError: address already in use"))
    part.tick()
    part.tick()
    [problem] = problems(run)
    assert "address already in use" in problem["problem"]
    assert "25999" in problem["hint"]
    part.close()
    assert len(problems(run)) == 1


def ended(said: str) -> SimpleNamespace:
    def nothing(*_: object) -> int:
        return 1

    pipes = {"stdin": io.BytesIO(), "stdout": io.BytesIO(said.encode())}
    return SimpleNamespace(poll=nothing, wait=nothing, terminate=nothing, kill=nothing, **pipes)


def test_the_frontend_does_not_collect_and_sees_no_device(monkeypatch: pytest.MonkeyPatch) -> None:
    started: dict[str, Any] = {}
    monkeypatch.setenv(VARIABLE, "{}")
    monkeypatch.setenv("TORCH_TRACE", "/traces")
    monkeypatch.setattr(subprocess, "Popen", lambda command, **options: started.update(options))
    debug_frontend.start_frontend(1, {"MASTER_ADDR": "gpu-1"})
    environment = started["env"]
    assert VARIABLE not in environment
    assert "TORCH_TRACE" not in environment
    assert (environment["MASTER_ADDR"], environment["CUDA_VISIBLE_DEVICES"]) == ("gpu-1", "")


@pytest.fixture
def handlers(monkeypatch: pytest.MonkeyPatch) -> dict[str, Callable[[Any, Any], None]]:
    """What torch would be given."""
    found: dict[str, Callable[[Any, Any], None]] = {}

    def register(name: str, handler: Callable[[Any, Any], None]) -> None:
        assert name not in found, "torch takes each name once"
        found[name] = handler

    monkeypatch.setattr(worker_server, "register_handler", register)
    monkeypatch.setattr(debug_server, "_registered", set())
    monkeypatch.setattr(debug_server, "_contents", {})
    for name in ("torch", "torch.distributed", "torch.distributed.debug"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    return found


class Response:
    def __init__(self) -> None:
        self.status, self.content = 0, b""

    def set_content(self, content: bytes, kind: str) -> None:
        self.content = content

    def set_status(self, status: int) -> None:
        self.status = status


def asked(handler: Callable[[Any, Any], None]) -> tuple[int, bytes]:
    response = Response()
    handler(None, response)
    return response.status, response.content


def test_the_handlers_send_the_dumps_of_the_parts_that_run(
    run: Run, monkeypatch: pytest.MonkeyPatch, handlers: dict[str, Callable[[Any, Any], None]]
) -> None:
    parts = {"recorder": SimpleNamespace(to_bytes=lambda: b"dump"), "desync": None}
    monkeypatch.setattr(run, "part", parts.get)
    part = DebugServer(run)
    part._offer()
    assert handlers.keys() == {"rankscope_about", "rankscope_recorder"}
    assert asked(handlers["rankscope_recorder"]) == (200, b"dump")
    about = json.loads(asked(handlers["rankscope_about"])[1])
    assert (about["rank"], about["world_size"], about["host"]) == (0, 2, run.host)
    part.close()
    assert asked(handlers["rankscope_recorder"])[0] == 404
    DebugServer(run)._offer()  # a second run of the process
    assert asked(handlers["rankscope_recorder"]) == (200, b"dump")


def test_a_store_that_cannot_be_reached_from_outside_is_told(
    run: Run, monkeypatch: pytest.MonkeyPatch, handlers: dict[str, Callable[[Any, Any], None]]
) -> None:
    monkeypatch.setattr(debug_server, "_place_of_store", lambda: None)
    monkeypatch.setattr(sys.modules["torch.distributed.debug"], "_WORKER_SERVER", None, raising=False)
    DebugServer(run)._start()
    assert "not a TCPStore" in problems(run)[0]["problem"]


def test_whatever_fails_is_told_and_not_raised(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> None:
        raise RuntimeError("the store is gone")

    monkeypatch.setattr(debug_server, "_place_of_store", broken)
    monkeypatch.delitem(sys.modules, "torch.distributed.debug", raising=False)
    part = DebugServer(run)
    part.joined()
    part.close()
    assert "the store is gone" in problems(run)[0]["problem"]


# With torch

SERVED = """
    import sys, time
    import torch.distributed.debug
    from rankscope.collect.debug import worker_server
    def slow(request, response):
        time.sleep(0.3)
        response.set_content(b"told", "text/plain")
        response.set_status(200)
    def register(answer):
        worker_server.register_handler("rankscope_test", lambda request, response: answer(request, response))
    register(slow)
    server = worker_server.start_worker_server()
    print(server.port, flush=True)
    sys.stdin.readline()
    time.sleep(0.5)  # by now requests are under way
    print(worker_server.stop_worker_server(server), flush=True)
    sys.exit(7)
"""


@pytest.mark.e2e
def test_the_worker_ends_under_a_flood_of_requests_and_leaves_the_exit_code_alone() -> None:
    """Its own shutdown would wait for ever for a request under way; without one, a late request aborts the process."""
    pytest.importorskip("torch.distributed.debug")
    with child(SERVED) as job:
        port = line_of(job)
        with child(FLOOD, port) as asking:
            assert line_of(asking) == "told"
            printed, _ = job.communicate("\n", timeout=60)
    assert job.returncode == 7
    if sys.platform == "linux":
        assert printed == "True\n"


@contextlib.contextmanager
def child(source: str, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-c", textwrap.dedent(source), *arguments]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def line_of(process: subprocess.Popen[str]) -> str:
    assert process.stdout
    return process.stdout.readline().rstrip()


FLOOD = """
    import http.client, sys, threading
    def ask(name):
        connection = http.client.HTTPConnection("127.0.0.1", int(sys.argv[1]), timeout=1)
        try:
            connection.request("POST", "/handler/" + name, headers={"Connection": "close"})
            return connection.getresponse().read()
        except OSError:
            return b""
        finally:
            connection.close()
    def keep_asking(name):
        while True:
            ask(name)
    print(ask("rankscope_test").decode(), flush=True)
    threads = [threading.Thread(target=keep_asking, args=(name,)) for name in ("rankscope_test", "dump_traceback")]
    for thread in threads:
        thread.start()
"""


@pytest.mark.e2e
def test_a_port_that_is_taken_ends_the_frontend_which_says_so() -> None:
    for needed in ("torch.distributed.debug", "jinja2", "tabulate"):
        pytest.importorskip(needed)
    with socket.create_server(("::", 0), family=socket.AF_INET6) as taken:
        frontend = debug_frontend.start_frontend(taken.getsockname()[1], {"WORLD_SIZE": "1", "RANK": "0"})
        assert frontend.wait(90) != 0
    assert "Address already in use" in debug_frontend.end_frontend(frontend)


@pytest.mark.e2e
def test_the_frontend_ends_with_the_rank_that_started_it() -> None:
    for needed in ("torch.distributed.debug", "jinja2", "tabulate"):
        pytest.importorskip(needed)
    with socket.socket(socket.AF_INET6) as probe:
        probe.bind(("::", 0))
        port = probe.getsockname()[1]
    frontend = debug_frontend.start_frontend(port, {"WORLD_SIZE": "1", "RANK": "0"})
    wait_until_it_answers(port, frontend)
    assert frontend.stdin
    frontend.stdin.close()  # as the end of the process that holds it does
    assert frontend.wait(30) == 0
    assert debug_frontend.end_frontend(frontend) == ""


def wait_until_it_answers(port: int, frontend: subprocess.Popen[bytes]) -> None:
    while True:
        try:
            urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=60).close()
            return
        except OSError:
            assert frontend.poll() is None, debug_frontend.end_frontend(frontend)
            time.sleep(0.1)
