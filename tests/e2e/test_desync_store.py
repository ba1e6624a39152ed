"""The desync state in torch's real stores: the same keys and bytes as torch's own tracker, read by either side."""

from __future__ import annotations

import datetime
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from launching import run_job

from rankscope.collect.desync.report import Group, read_group, report_lines
from rankscope.collect.desync.values import encode_state, end_key, start_key
from rankscope.read.tcp_store import Address, TcpStore

torch = pytest.importorskip("torch")
dist = pytest.importorskip("torch.distributed")
pytestmark = pytest.mark.e2e

SECOND = datetime.timedelta(seconds=1)
WORLD = Group("0", "default_pg", 4, (0, 1, 2, 3))
VALUE = b"\x05\x01\x00\x00\x00\x00\x00\x00ALLREDUCE\x00"


def tcp_store(use_libuv: bool) -> Any:
    return dist.TCPStore("127.0.0.1", 0, 1, True, SECOND, wait_for_workers=False, use_libuv=use_libuv)


STORES: dict[str, Callable[[Path], Any]] = {
    "TCPStore": lambda folder: tcp_store(use_libuv=True),
    "TCPStore of one thread": lambda folder: tcp_store(use_libuv=False),
    "FileStore": lambda folder: dist.FileStore(str(folder / "store"), 1),
    "HashStore": lambda folder: dist.HashStore(),
    "PrefixStore": lambda folder: dist.PrefixStore("0/", dist.PrefixStore("default_pg", dist.HashStore())),
}
each_store = pytest.mark.parametrize("make", STORES.values(), ids=list(STORES))
each_server = pytest.mark.parametrize("use_libuv", [True, False], ids=["libuv", "one thread"])


def put(store: Any, rank: int, seq: int, op: str, finished: int | None, group: str = "0") -> None:
    store.set(start_key(group, rank), encode_state(seq, op))
    if finished is not None:
        store.set(end_key(group, rank), encode_state(finished, op))


@each_store
def test_keys_and_values_byte_for_byte(make: Callable[[Path], Any], tmp_path: Path) -> None:
    store = make(tmp_path)
    put(store, 3, 261, "ALLREDUCE", 261)
    assert store.get("0_3_trace_start") == VALUE
    assert store.get("0_3_trace_end") == VALUE


@each_store
def test_what_torch_would_have_written_is_reported(make: Callable[[Path], Any], tmp_path: Path) -> None:
    store = make(tmp_path)
    for rank in (0, 1, 3):
        store.set(f"0_{rank}_trace_start", VALUE)
    store.set("0_1_trace_end", VALUE)
    state = read_group(store, WORLD)
    assert [(member.rank, member.seq, member.op, member.is_finished) for member in state.members] == [
        (0, 261, "ALLREDUCE", False), (1, 261, "ALLREDUCE", True), (3, 261, "ALLREDUCE", False)
    ]  # fmt: skip
    assert state.never_joined == (2,)


@each_store
def test_each_branch_of_the_report(make: Callable[[Path], Any], tmp_path: Path) -> None:
    store = make(tmp_path)
    for rank in (0, 2, 3):
        put(store, rank, 5, "ALLREDUCE", 4)
    assert " - Ranks that never joined any collective: [1]" in report_of(store)
    put(store, 1, 4, "ALLREDUCE", 4)
    assert "   - [1] finished collective #4 but did not join collective #5 (counted from 1)" in report_of(store)
    put(store, 1, 5, "ALLREDUCE", 4)
    assert "   - [0, 1, 2, 3] joined but did not finish collective #5 (counted from 1)" in report_of(store)
    store.set("0_1_trace_start", b"\x05")
    assert any(line.startswith(" - Partial report: ") and "rank 1 (" in line for line in report_of(store))


def report_of(store: Any) -> list[str]:
    return report_lines([read_group(store, WORLD)], "rank 0 of 4 on host here", 0)


@each_server
def test_rankscope_reads_what_torch_stores(use_libuv: bool) -> None:
    server = tcp_store(use_libuv)
    group = dist.PrefixStore("0/", dist.PrefixStore("default_pg", server))
    for rank in range(300):
        put(group, rank, rank, "ALLREDUCE", rank)
    assert server.num_keys() == 600, "a set is not answered: only now is the last of them known to have arrived"
    with TcpStore(Address("127.0.0.1", server.port), 10) as store:
        listed = store.list_keys()
        assert listed is not None
        assert sorted(listed) == sorted(server.list_keys())
        assert {f"default_pg/0//0_{rank}_trace_start" for rank in range(300)} <= set(listed)
        assert store.fetch([*listed, "absent"]) == {key: server.get(key) for key in listed}
        assert store.n_keys() == server.num_keys()
        assert store.check(listed)
        assert not store.check([*listed, "absent"])
    assert group.get("0_7_trace_start") == encode_state(7, "ALLREDUCE"), "the server goes on"


@each_server
def test_a_client_that_goes_away_does_not_disturb_the_server(use_libuv: bool) -> None:
    server = tcp_store(use_libuv)
    server.set("a", b"1")
    assert server.check(["a"]), "it has arrived"
    for _ in range(3):
        store = TcpStore(Address("127.0.0.1", server.port), 10)
        store._send(99)  # what no server knows: it closes the connection
        store.close()
    with TcpStore(Address("127.0.0.1", server.port), 10) as store:
        assert store.get("a") == b"1"


SERVER = """
import datetime, sys, torch.distributed as dist
store = dist.TCPStore("127.0.0.1", 0, 1, True, datetime.timedelta(seconds=1), wait_for_workers=False)
print(store.port, flush=True)
sys.stdin.read()
"""


def test_a_store_that_is_killed_gives_a_partial_report() -> None:
    with subprocess.Popen([sys.executable, "-c", SERVER], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout
        port = int(process.stdout.readline())
        store = dist.TCPStore("127.0.0.1", port, None, False, SECOND, wait_for_workers=False)
        for rank in range(4):
            put(store, rank, 5, "ALLREDUCE", 4)
        assert len(read_group(store, WORLD).members) == 4
        process.kill()
        process.wait()
    state = read_group(store, WORLD)
    assert not state.members
    assert [each.rank for each in state.unreadable] == [0, 1, 2, 3]
    last = report_lines([state], "rank 0 of 4 on host here", 0)[-2]
    assert last.startswith(" - Partial report: the store gave nothing readable for ranks 0, 1, 2, 3 (the store does")


def test_a_running_job_is_asked_and_judged(tmp_path: Path) -> None:
    assert run_job("tracked_by_hand", tmp_path, ["--tracker", "rankscope"], {}) == 0
    record = json.loads((tmp_path / "answer.json").read_text())
    world, pair = record["groups"]
    assert world["group"] == {"name": "0", "desc": "default_pg", "size": 4, "ranks": [0, 1, 2, 3]}
    assert world["lagging"] == {"seq": 4, "joined": [], "finished": [2]}
    assert pair["group"] == {"name": "1", "desc": "", "size": 2, "ranks": []}
    assert record["notes"] == ["not judged: the store does not say which ranks are in group 1"]
    [error] = [finding for finding in record["report"]["findings"] if finding["severity"] == "error"]
    assert (error["rule"], error["ranks"], error["collective"]["seq"]) == ("rank-stuck", [2], 5)


def test_keys_of_torchs_own_tracker_are_found_below_its_prefixes(tmp_path: Path) -> None:
    assert run_job("tracked_by_hand", tmp_path, ["--tracker", "torch"], {}) == 0
    record = json.loads((tmp_path / "answer.json").read_text())
    assert [(each["group"]["name"], each["tracker"]) for each in record["groups"]] == [("0", "torch"), ("1", "torch")]
    assert record["groups"][0]["lagging"] == {"seq": 4, "joined": [], "finished": [2]}
    assert record["report"]["findings"][0]["ranks"] == [2]
