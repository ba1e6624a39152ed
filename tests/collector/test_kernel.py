"""What the kernel says about a thread that waits, and about the other end of its sockets."""

from __future__ import annotations

import os
import socket
import sys
import threading
import time
from collections.abc import Callable

import pytest

from rankscope.collect.host import kernel

LIMIT_S = 30

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="/proc")


def wait_of(act: Callable[[], object]) -> str:
    """What a thread is found to wait in."""
    started = threading.Event()
    numbers: list[int] = []

    def run() -> None:
        numbers.append(threading.get_native_id())
        started.set()
        act()

    threading.Thread(target=run, daemon=True).start()
    assert started.wait(LIMIT_S)
    counters, deadline = kernel.Counters(numbers[0]), time.monotonic() + LIMIT_S
    try:
        while time.monotonic() < deadline:
            state, wait = counters.state()
            if state == kernel.SLEEPS and wait.split(" ")[0] in ("read", "recvfrom"):
                return wait
            time.sleep(0.01)
    finally:
        counters.close()
    if state == kernel.SLEEPS or state == "":
        pytest.skip("this kernel does not tell the system call")
    raise AssertionError(f"found it in {state} {wait}")


@pytest.mark.parametrize("address", ["127.0.0.1", "::1"])
def test_a_socket_is_named_by_its_other_end(address: str) -> None:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    try:
        server = socket.create_server((address, 0), family=family)
    except OSError:
        pytest.skip("no such network here")
    with server, socket.create_connection(server.getsockname()[:2]) as client, server.accept()[0] as answering:
        port = server.getsockname()[1]
        found = wait_of(lambda: client.recv(1))
        answering.sendall(b".")
    assert found == f"recvfrom {address} port {port}"


def test_a_pipe_stays_a_pipe() -> None:
    source, target = os.pipe()
    found = wait_of(lambda: os.read(source, 1))
    os.write(target, b".")
    assert found.startswith("read pipe:[")


def test_what_is_no_connection_has_no_other_end() -> None:
    assert kernel.other_end("1") == ""
    with socket.socket() as alone:
        inode = os.readlink(f"/proc/self/fd/{alone.fileno()}")[8:-1]
        assert kernel.other_end(inode) in ("", "0.0.0.0 port 0")
