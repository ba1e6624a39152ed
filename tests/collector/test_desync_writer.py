"""What the store is told of the tracked calls, and the report that is made of what it was told."""

from __future__ import annotations

import gc
import json
import threading
import time
from pathlib import Path

import pytest

from collector.tracked_calls import SEND, SPEAKER, Backend, Handle, Job, OneStore, Stored, Values
from rankscope.collect.desync import hang_report
from rankscope.collect.desync.calls import Calls
from rankscope.collect.desync.connections import Connections
from rankscope.collect.desync.groups import Group
from rankscope.collect.desync.prefetch import Prefetched
from rankscope.collect.desync.values import encode_state
from rankscope.collect.desync.writer import Writer

distributed = pytest.importorskip("torch.distributed")


def test_the_store_is_told_what_has_changed_and_details_of_what_stands_still() -> None:
    job, store, problems = Job(), Stored(), list[str]()
    writer = Writer(job.calls, OneStore(store), SPEAKER, problems.append)
    writer.write()
    assert not store.values, "nothing has been called"
    job.call()
    handle = Handle()
    job.call(work=handle)
    writer.write()
    told = {"0_1_trace_start": encode_state(2, "ALLREDUCE"), "0_1_trace_end": encode_state(1, "ALLREDUCE")}
    assert store.values == told
    writer.write()
    assert store.n_trips == 1
    writer.write(is_urgent=True)
    detail = json.loads(store.values["0_1_rankscope"])
    assert (detail["rank"], detail["group"]["name"], detail["entry"]["collective_seq_id"]) == (3, "0", 2)
    assert detail["status"] == {"last_enqueued": 2, "last_completed": 1}
    assert detail["entry"]["frames"]
    here = test_the_store_is_told_what_has_changed_and_details_of_what_stands_still.__name__
    assert here in [frame["name"] for frame in detail["now"]], "where the main thread is"
    job.calls.waited(handle)
    writer.write()
    assert store.values["0_1_trace_end"] == store.values["0_1_trace_start"] == encode_state(2, "ALLREDUCE")
    assert not problems


def test_details_are_told_again_while_nothing_moves(monkeypatch: pytest.MonkeyPatch) -> None:
    job, store = Job(), Stored()
    writer = Writer(job.calls, OneStore(store), SPEAKER, lambda problem: None)
    job.call(work=(handle := Handle()))
    writer.write(is_urgent=True)
    first = store.values["0_1_rankscope"]
    writer.write(is_urgent=True)
    assert store.values["0_1_rankscope"] == first
    real = time.monotonic
    monkeypatch.setattr(time, "monotonic", lambda: real() + 60)
    writer.write(is_urgent=True)
    assert json.loads(store.values["0_1_rankscope"])["time_ns"] > json.loads(first)["time_ns"]
    assert not handle.is_completed()


def test_a_transfer_goes_by_the_number_of_the_collective_before_it() -> None:
    job, store = Job(), Stored()
    writer = Writer(job.calls, OneStore(store), SPEAKER, lambda problem: None)
    for n_transfers in (1, 2):
        handle = Handle()
        if n_transfers == 1:
            job.call()
        job.call(SEND, [Values(4)], 0, work=handle)
        writer.write()
        assert store.values["0_1_trace_start"] == encode_state(1, "SEND")
        assert store.values["0_1_trace_end"] == encode_state(1, "ALLREDUCE"), "it waits"
        job.calls.waited(handle)
        writer.write()
        assert store.values["0_1_trace_end"] == encode_state(1, "SEND")


def test_a_store_that_is_down_is_left_alone_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    job, store, problems = Job(), Stored(), list[str]()
    writer = Writer(job.calls, OneStore(store), SPEAKER, problems.append)
    job.call()
    store.is_down = True
    for _ in range(3):
        writer.write()
    assert store.n_trips == 1
    assert problems == ["the job's store does not answer: ConnectionError: the store is gone"]
    store.is_down = False
    later = time.monotonic() + 3600
    monkeypatch.setattr(time, "monotonic", lambda: later)
    writer.write()
    assert store.values["0_1_trace_start"] == encode_state(1, "ALLREDUCE")


@pytest.mark.parametrize("kind", ["HashStore", "FileStore", "TCPStore"])
def test_every_kind_of_store_is_written_to_through_another_connection(kind: str, tmp_path: Path) -> None:
    inner = {
        "HashStore": lambda: distributed.HashStore(),
        "FileStore": lambda: distributed.FileStore(str(tmp_path / "store"), 1),
        "TCPStore": lambda: distributed.TCPStore("127.0.0.1", 0, 1, True, wait_for_workers=False),
    }[kind]()
    backend = Backend()
    backend.store = distributed.PrefixStore("0/", distributed.PrefixStore("default_pg", inner))
    job, problems = Job(backend), list[str]()
    job.call()
    connections = Connections()
    Writer(job.calls, connections, SPEAKER, problems.append).write()
    connections.drop()
    assert not problems
    assert inner.get("default_pg/0//0_1_trace_start") == b"\x01\0\0\0\0\0\0\0ALLREDUCE\0"
    assert inner.get("default_pg/0//0_1_trace_end") == b"\x01\0\0\0\0\0\0\0ALLREDUCE\0"


def test_a_store_that_has_closed_the_connection_is_noticed_before_torch_complains() -> None:
    backend = Backend()
    backend.store = server = distributed.TCPStore("127.0.0.1", 0, 1, True, wait_for_workers=False)
    job = Job(backend)
    group = job.call().group
    connections = Connections()
    assert connections.store_of(group) is not None
    del server
    backend.store = None
    gc.collect()
    with pytest.raises(ConnectionError, match="it closed the connection"):
        ask_until_refused(connections, group)


def ask_until_refused(connections: Connections, group: Group) -> None:
    """A thread of the store closes the connection."""
    deadline = time.monotonic() + 60
    while connections.store_of(group) is not None and time.monotonic() < deadline:
        time.sleep(0.01)


def test_many_ranks_write_less_often() -> None:
    def interval(world_size: int) -> float:
        speaker = SPEAKER._replace(world_size=world_size)
        return Writer(Calls(1, lambda call: None), Connections(), speaker, lambda problem: None).interval

    assert [interval(world_size) for world_size in (1, 8, 10_000)] == [0.25, 0.25, 5.0]


def test_states_of_many_ranks_are_read_in_few_trips() -> None:
    store = Stored()
    keys = [f"key_{number}" for number in range(10_000)]
    store.values = {key: key.encode() for key in keys if key not in ("key_77", "key_78")}
    fetched = Prefetched(store, keys, seconds=60)
    assert store.n_trips < 150
    assert fetched.check(["key_76"])
    assert fetched.get("key_76") == b"key_76"
    assert not fetched.check(["key_77"])


def test_a_store_that_fails_or_is_slow_says_so_to_whoever_asks() -> None:
    store = Stored()
    store.values = {"here": b"1"}
    assert isinstance(Prefetched(store, ["here"], seconds=-1).failure, TimeoutError)
    store.is_down = True
    with pytest.raises(ConnectionError, match="the store is gone"):
        Prefetched(store, ["here"], seconds=60).check(["here"])


def test_at_a_big_world_size_few_ranks_read_the_states_of_all() -> None:
    job, store = Job(), Stored()
    job.call(work=Handle())
    big = SPEAKER._replace(world_size=10_000)
    told = [hang_report.hang_report(job.calls, OneStore(store), big, "time-out") for _ in range(6)]
    assert [each.is_first for each in told] == [True, False, False, False, False, False]
    assert ["collective state from the job's store" in each.text for each in told] == [True] * 4 + [False] * 2
    assert "see their desync_<rank>.txt" in told[-1].text
    small = hang_report.hang_report(job.calls, OneStore(store), SPEAKER, "time-out")
    assert "collective state from the job's store" in small.text


def test_a_store_that_keeps_everybody_waiting_delays_no_report(monkeypatch: pytest.MonkeyPatch) -> None:
    class Frozen(Stored):
        def add(self, key: str, amount: int) -> int:
            thaw.wait(60)
            raise ConnectionError

    thaw = threading.Event()
    monkeypatch.setattr(hang_report, "ANSWER_SECONDS", 0.1)
    job = Job()
    job.call(work=Handle())
    told = hang_report.hang_report(job.calls, OneStore(Frozen()), SPEAKER, "SIGUSR2")
    thaw.set()
    assert "nothing readable for ranks 0, 1 (the store did not answer within 0.1 s)" in told.text


def test_a_report_without_a_store_tells_where_this_rank_waits(tmp_path: Path) -> None:
    job, store = Job(), Stored()
    handle = Handle()
    job.call(work=handle)
    store.is_down = True
    told = hang_report.hang_report(job.calls, OneStore(store), SPEAKER, "no collective has finished for 30 s")
    assert "Partial report: the store gave nothing readable for ranks 0, 1 (the store does not answer" in told.text
    assert "rank 3: no collective has finished for 30 s\n" in told.text
    assert "rank 3 has been waiting in ALLREDUCE #1 of group 0 for 0 s, called from:\n#0 " in told.text
    assert told.is_first
