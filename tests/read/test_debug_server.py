"""What is read from torch's debug server, and what is not believed of it."""

from __future__ import annotations

import json
import pickle
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from typing import Any

import pytest

from live_serving import (
    FRONTEND_INDEX,
    TRACEBACK,
    WORKER_INDEX,
    Answer,
    calls_json,
    page,
    serving,
    serving_job,
    unused_url,
    worker_routes,
)
from rankscope.errors import InputError, UsageError
from rankscope.read import bounded_http, debug_server
from rankscope.read.bounded_http import Address, NoAnswerError, fetch, parse_address
from rankscope.read.debug_server import CALLS, OWN_CALLS, STACKS, Job, Reading, Worker, find_job, read_job, read_worker
from read.dumps import make_dump, make_entry

SECONDS = 10.0
HANDLERS: dict[str, Answer] = {"fr_trace_json": calls_json(3), "dump_traceback": TRACEBACK % (31, b"step")}


def read_by_rank(job: Job, seconds: float = SECONDS) -> dict[int, Reading]:
    return {reading.worker.rank: reading for reading in read_job(job, seconds)}


def asked(handlers: dict[str, Answer], seconds: float = SECONDS) -> Reading:
    with serving(worker_routes(handlers)) as url:
        return read_worker(Worker(0, parse_address(url, 1)), seconds)


# Addresses


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("http://gpu-1:25999", Address("gpu-1", 25999)),
        ("gpu-1:80", Address("gpu-1", 80)),
        ("gpu-1", Address("gpu-1", 25999)),
        ("http://[fe80::1]:7/", Address("fe80::1", 7)),
        ("HTTP://gate/job/7/", Address("gate", 25999, "/job/7")),
        ("http://user:secret@gpu-1:1", Address("gpu-1", 1)),
    ],
)
def test_addresses_as_people_write_them(text: str, address: Address) -> None:
    assert parse_address(text, 25999) == address
    assert "secret" not in address.url
    assert parse_address(address.url, 25999) == address


@pytest.mark.parametrize(
    "text", ["https://gpu-1", "file:///etc/passwd", "ftp://x", "http://", "http://x:port", "http://x:99999", "a b", ""]
)
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(UsageError):
        parse_address(text, 25999)


# Finding the workers


def test_the_frontend_names_the_workers() -> None:
    with serving_job([HANDLERS, HANDLERS]) as served:
        job = find_job([served.url], SECONDS)
    assert [(worker.rank, worker.address.url) for worker in job.workers] == list(enumerate(served.workers))
    assert job.frontend is not None
    assert job.frontend.url == served.url


def test_a_frontend_without_a_page_of_the_store_names_them_on_another() -> None:
    shown = page("wait_counter_values", {0: ("http://gpu-1:7", b"{}"), 1: ("http://gpu-2:7", (503, b"down"))})
    with serving({"GET /": FRONTEND_INDEX, "GET /tcpstore": (500, b""), "GET /wait_counters": shown}) as url:
        job = find_job([url], SECONDS)
    assert [worker.address.url for worker in job.workers] == ["http://gpu-1:7", "http://gpu-2:7"]


def test_workers_given_one_by_one_are_told_apart_by_what_is_known_of_their_ranks() -> None:
    about = {**HANDLERS, "rankscope_about": b'{"rank": 5, "world_size": 8}'}
    with (
        serving(worker_routes(about)) as tells,
        serving(worker_routes(HANDLERS)) as told,
        serving(worker_routes(HANDLERS)) as third,
    ):
        job = find_job([tells, f"7={told}", third], SECONDS)
    assert {worker.rank: worker.address.url for worker in job.workers} == {5: tells, 7: told, 2: third}
    assert job.frontend is None


def test_two_workers_of_one_rank_are_refused() -> None:
    with (
        serving(worker_routes(HANDLERS)) as one,
        serving(worker_routes(HANDLERS)) as other,
        pytest.raises(UsageError, match="rank 0"),
    ):
        find_job([f"0={one}", f"0={other}"], SECONDS)


def test_nobody_there_is_said_with_what_to_do() -> None:
    with pytest.raises(InputError, match="refused") as failure:
        find_job([unused_url()], SECONDS)
    assert "debug server" in failure.value.hint


@pytest.mark.parametrize(
    "answer", [b"<html>It works!</html>", b"", b"\x80\x02}.", (302, b"moved"), (500, b"no"), b"x" * (2 << 20)]
)
def test_a_foreign_server_is_told_from_torch(answer: Answer) -> None:
    with serving({"GET /": answer}) as url, pytest.raises(InputError):
        find_job([url], SECONDS)


@pytest.mark.parametrize("shown", [b"", b"<pre>\nnothing\n</pre>", (500, b"KeyError"), b"\xff\xfe" * 100])
def test_a_frontend_that_names_no_worker_is_said(shown: Answer) -> None:
    pages: dict[str, Answer] = dict.fromkeys(("GET /tcpstore", "GET /wait_counters", "GET /stacks"), shown)
    with serving({"GET /": FRONTEND_INDEX, **pages}) as url, pytest.raises(InputError, match="does not list"):
        find_job([url], SECONDS)


def test_only_http_addresses_are_taken_from_a_page() -> None:
    addresses = (b"file:///etc/passwd", b"http://gpu-1:7", b"http://\x1b[2Jgpu-1:7", b"http://gpu-1:99999", b"http://")
    lines = b"".join(b" debug_server/rank%d: b'%s'\n" % pair for pair in enumerate(addresses))
    with serving({"GET /": FRONTEND_INDEX, "GET /tcpstore": lines}) as url:
        assert [worker.rank for worker in find_job([url], SECONDS).workers] == [1]


# Asking them


def test_every_rank_tells_its_calls_and_stacks() -> None:
    other = {"fr_trace_json": calls_json(2), "dump_traceback": TRACEBACK % (17, b"load")}
    with serving_job([HANDLERS, other]) as served:
        readings = read_by_rank(find_job([served.url], SECONDS))
    assert readings[0].contents == {CALLS: HANDLERS["fr_trace_json"], STACKS: HANDLERS["dump_traceback"]}
    assert readings[1].contents == {CALLS: other["fr_trace_json"], STACKS: other["dump_traceback"]}
    assert not readings[0].problems
    assert readings[0].is_reached


def test_the_dump_with_stacks_is_preferred_and_the_collectors_own_comes_beside_it() -> None:
    full, own = pickle.dumps(make_dump([make_entry(1)]), 2), pickle.dumps(make_dump([make_entry(2)]), 2)
    reading = asked({**HANDLERS, "dump_nccl_trace_pickle": full, "rankscope_trace": own})
    assert (reading.contents[CALLS], reading.contents[OWN_CALLS]) == (full, own)


def test_a_recorder_without_calls_gives_way_to_one_with_calls() -> None:
    empty = pickle.dumps(make_dump([]), 2)
    assert asked({**HANDLERS, "dump_nccl_trace_pickle": empty}).contents[CALLS] == HANDLERS["fr_trace_json"]
    assert asked({"dump_nccl_trace_pickle": empty, "fr_trace_json": b"{}"}).contents[CALLS] == empty


def test_an_empty_answer_is_no_answer() -> None:
    assert set(asked({**HANDLERS, "rankscope_trace": b""}).contents) == {CALLS, STACKS}


def test_a_handler_that_fails_costs_only_its_own_answer() -> None:
    reading = asked({**HANDLERS, "dump_traceback": (500, b"boom")})
    assert set(reading.contents) == {CALLS}
    assert reading.problems == ("dump_traceback answers with status 500",)


def never(release: threading.Event) -> Callable[[BaseHTTPRequestHandler], None]:
    return lambda _: void(release.wait(30))


def void(_: Any) -> None:
    pass


@contextmanager
def held() -> Iterator[threading.Event]:
    event = threading.Event()
    try:
        yield event
    finally:
        event.set()


def test_a_rank_whose_python_is_held_still_tells_its_calls() -> None:
    with held() as release:
        silent = never(release)
        handlers: dict[str, Answer] = dict.fromkeys(("dump_nccl_trace_pickle", "rankscope_trace"), silent)
        reading = asked({**HANDLERS, "rankscope_recorder": silent, "dump_traceback": silent, **handlers}, 1.0)
    assert reading.contents == {CALLS: HANDLERS["fr_trace_json"]}
    assert "holding the GIL" in reading.problems[0]


def test_a_rank_that_never_answers_is_a_hole_and_the_others_are_read() -> None:
    with (
        held() as release,
        serving({"GET /": WORKER_INDEX, "GET /handler/": never(release)}) as silent,
        serving(worker_routes(HANDLERS)) as well,
    ):
        job = Job((Worker(0, parse_address(silent, 1)), Worker(1, parse_address(well, 1))))
        readings = read_by_rank(job, 1.0)
    assert not readings[0].contents
    assert "no complete answer within" in readings[0].problems[0]
    assert set(readings[1].contents) == {CALLS, STACKS}


def test_a_rank_that_cannot_be_reached_is_read_from_the_pages_of_the_frontend() -> None:
    with serving_job([HANDLERS, HANDLERS], told=[unused_url(), unused_url()]) as served:
        readings = read_by_rank(find_job([served.url], SECONDS))
    expected = json.loads(calls_json(3))
    for reading in readings.values():
        assert json.loads(reading.contents[CALLS]) == expected
        assert reading.contents[STACKS] == HANDLERS["dump_traceback"]
        assert not reading.problems


def test_a_rank_that_the_frontend_cannot_reach_either_is_told_with_the_reason() -> None:
    with serving_job([{}, HANDLERS], told=[unused_url()] * 2) as served:
        readings = read_by_rank(find_job([served.url], SECONDS))
    assert not readings[0].contents
    assert "refused" in readings[0].problems[0]
    assert set(readings[1].contents) == {CALLS, STACKS}


def test_a_large_job_is_not_asked_for_all_its_pages_for_the_sake_of_one_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(debug_server, "_SMALL_JOB", 1)
    with serving_job([HANDLERS, HANDLERS]) as served:
        job = find_job([served.url], SECONDS)
        lost = Worker(1, parse_address(unused_url(), 1))
        readings = read_by_rank(Job((job.workers[0], lost), job.frontend))
    assert set(readings[0].contents) == {CALLS, STACKS}
    assert not readings[1].contents


def test_a_page_that_is_cut_gives_the_whole_sections_only() -> None:
    whole = page("dump_traceback", {0: ("http://a:1", b"first <frame> & more"), 1: ("http://b:1", b"second")})
    assert debug_server.page_sections(whole) == {0: b"first <frame> & more", 1: b"second"}
    assert debug_server.page_sections(whole[: whole.index(b"second") + 3]) == {0: b"first <frame> & more"}
    failed = page("dump_traceback", {0: ("http://a:1", (503, b"ConnectionError")), 1: ("http://b:1", b"second")})
    assert debug_server.page_sections(failed) == {1: b"second"}
    assert debug_server.page_sections(b"\xff<h2>Rank x</h2><pre>") == {}


@pytest.mark.parametrize("names", [b"{}", b"[1, null]", b"not json", b"[" * 100_000, (404, b"")])
def test_a_worker_that_lists_no_handlers_tells_nothing(names: Answer) -> None:
    with serving({"GET /": WORKER_INDEX, "GET /handler/": names}) as url:
        assert not read_worker(Worker(0, parse_address(url, 1)), SECONDS).contents


# Limits of a request


def drip(content: bytes) -> Callable[[BaseHTTPRequestHandler], None]:
    def answer(handler: BaseHTTPRequestHandler) -> None:
        for number in range(len(content)):
            handler.wfile.write(content[number : number + 1])
            handler.wfile.flush()
            time.sleep(0.05)

    return answer


def raw(content: bytes) -> Callable[[BaseHTTPRequestHandler], None]:
    return lambda handler: void(handler.wfile.write(content))


def fetched(answer: Answer, *, seconds: float = SECONDS, max_bytes: int = 1000) -> bytes:
    with serving({"GET /": answer}) as url:
        return fetch(parse_address(url, 1), "/", seconds=seconds, max_bytes=max_bytes).content


@pytest.mark.parametrize(
    ("answer", "problem"),
    [
        (b"x" * 1001, "larger than 1,000"),
        (raw(b"HTTP/1.0 200 OK\r\n\r\n" + b"x" * 200_000), "larger than 1,000"),
        (raw(b"HTTP/1.1 200 OK\r\nContent-Length: 99999999999999\r\n\r\n"), "larger than 1,000"),
        (raw(b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nabc"), "truncated after 3"),
        (raw(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nab"), "HTTP"),
        (raw(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n"), "HTTP"),
        (raw(b"SSH-2.0-OpenSSH_9.6\r\n"), "HTTP"),
        (raw(b"HTTP/1.1 200 OK\r\nX: " + b"x" * 70_000), "HTTP"),
        (raw(b""), "remote end closed|HTTP"),
    ],
)
def test_hostile_answers_end_at_their_limits(answer: Answer, problem: str) -> None:
    with pytest.raises(NoAnswerError, match=problem) as failure:
        fetched(answer)
    assert not failure.value.is_unreachable


@pytest.mark.parametrize(
    "content", [b"HTTP/1.1 200 OK\r\n\r\n" + b"x" * 900, b"HTTP/1.1 200 OK\r\n" + b"X: 1\r\n" * 90]
)
def test_a_drip_of_bytes_ends_at_the_limit_of_time(content: bytes) -> None:
    with pytest.raises(NoAnswerError, match=r"no complete answer within 0\.3 s"):
        fetched(drip(content), seconds=0.3)


def test_no_redirect_is_followed() -> None:
    visited: list[str] = []

    def trap(handler: BaseHTTPRequestHandler) -> None:
        visited.append(handler.path)

    with serving({"GET /secret": trap}) as other:
        redirect = f"HTTP/1.1 302 Found\r\nLocation: {other}/secret\r\nContent-Length: 0\r\n\r\n".encode()
        with serving({"GET /": raw(redirect)}) as url:
            assert fetch(parse_address(url, 1), "/", seconds=SECONDS, max_bytes=100).status == 302
    assert visited == []


def test_a_whole_answer_without_length_is_taken() -> None:
    assert fetched(raw(b"HTTP/1.0 200 OK\r\n\r\nabc")) == b"abc"
    assert fetched(raw(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n")) == b"abc"


def test_proxies_of_the_environment_are_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", unused_url())
    assert fetched(b"abc") == b"abc"
    assert bounded_http.Address("::1", 7).url == "http://[::1]:7"


def test_addresses_on_other_hosts_are_not_contacted_unless_followed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server may name any address: nobody knocks at doors for it."""
    from rankscope.read import debug_server
    from rankscope.read.bounded_http import Address
    from rankscope.read.debug_server import NOT_FOLLOWED, Job, Reading, Worker, read_job

    named = [Worker(0, Address("127.0.0.1", 2000)), Worker(1, Address("localhost", 2001))]
    named += [Worker(rank, Address("192.0.2.7", 2000 + rank)) for rank in range(2, 30)]
    named += [Worker(rank, Address("127.0.0.1", rank)) for rank in range(100, 400)]
    held_back = debug_server._not_of(["127.0.0.1"], named)
    assert not held_back & set(named[:2])
    assert set(named[2:30]) <= held_back
    assert len(named) - len(held_back) == 64
    asked: list[Worker] = []

    def answer(worker: Worker, seconds: float) -> Reading:
        asked.append(worker)
        return Reading(worker, 0, {}, ())

    monkeypatch.setattr(debug_server, "read_worker", answer)
    readings = {reading.worker: reading for reading in read_job(Job(tuple(named), None, held_back), 1.0)}
    assert set(asked) == set(named) - held_back
    assert readings[named[2]].problems == (NOT_FOLLOWED,)


def test_a_compressed_answer_is_not_unpacked(monkeypatch: pytest.MonkeyPatch) -> None:
    from rankscope.read import debug_server
    from rankscope.read.bounded_http import Address, Reply

    monkeypatch.setattr(debug_server, "fetch", lambda *args, **kwargs: Reply(200, b"\x1f\x8b bomb"))
    conversation = debug_server._Conversation(Address("127.0.0.1", 1), time.monotonic() + 60)
    question = next(iter(debug_server._QUESTIONS[debug_server.CALLS]))
    assert conversation.ask(question) is None
    assert "compressed" in conversation.problems[0]
