from __future__ import annotations

import socket
import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rankscope.errors import InputError, RankscopeError, UsageError
from rankscope.read.tcp_store import Address, TcpStore, parse_address
from read.store_server import CHECK, GETNUMKEYS, LIST_KEYS, MULTI_GET, OLDER, PING, VALIDATE, StoreServer, sized

VALUES = {f"default_pg/0//0_{rank}_trace_start": bytes([rank % 256]) * (rank % 7) for rank in range(300)}
HUGE = struct.pack("<Q", 1 << 60)
LIMIT_S = 0.3  # where nothing is to come
PATIENCE_S = 30.0


def open_store(server: StoreServer, limit_s: float = PATIENCE_S) -> TcpStore:
    return TcpStore(parse_address(server.address), limit_s)


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("node-1:29500", ("node-1", 29500)),
        ("10.0.0.1:1", ("10.0.0.1", 1)),
        ("[::1]:29500", ("::1", 29500)),
        ("[fe80::1%eth0]:29500", ("fe80::1%eth0", 29500)),
    ],
)
def test_addresses_as_people_write_them(text: str, address: tuple[str, int]) -> None:
    assert parse_address(text) == address
    assert str(parse_address(text)) == text


@pytest.mark.parametrize(
    "text", ["", "node-1", "node-1:", ":29500", "node-1:x", "node:0", "node:65536", "::1:29500", "[::1]", "http://a:80"]
)
def test_what_is_no_address_is_told_with_where_to_find_one(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_address(text)
    assert "MASTER_PORT" in caught.value.hint


@pytest.mark.parametrize("unknown", [frozenset[int](), OLDER], ids=["today's", "older"])
def test_keys_are_read_from_either_generation_of_servers(unknown: frozenset[int]) -> None:
    with StoreServer(VALUES, unknown=unknown) as server, open_store(server) as store:
        assert store.n_keys() == len(VALUES)
        assert store.list_keys() == (None if unknown else list(VALUES))
        assert store.list_keys() == (None if unknown else list(VALUES)), "asked again"
        keys = list(VALUES)
        assert store.check(keys)
        assert not store.check([*keys, "absent"])
        assert store.get(keys[5]) == VALUES[keys[5]]
        assert store.fetch([*keys[:200], "absent", *keys[200:]]) == VALUES
        assert store.fetch([]) == {}
        with pytest.raises(InputError, match="has no key absent"):
            store.get("absent")
        assert store.check(keys[:1]), "the connection goes on"
    assert server.n_connections == (3 if unknown else 1)


def test_only_requests_that_read_are_ever_sent() -> None:
    with StoreServer(VALUES) as server, open_store(server) as store:
        store.list_keys()
        store.fetch(list(VALUES))
        store.n_keys()
    assert set(server.requests) <= {VALIDATE, PING, CHECK, MULTI_GET, GETNUMKEYS, LIST_KEYS}


def test_keys_that_are_no_text_are_listed_and_fetched() -> None:
    with StoreServer() as server:
        server.values[b"/\xff\xfe_0_trace_start"] = b"odd"
        with open_store(server) as store:
            [key] = store.list_keys() or []
            assert store.fetch([key]) == {key: b"odd"}


def test_nobody_listens() -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        port = closed.getsockname()[1]
        assert_refused(Address("127.0.0.1", port), "cannot connect")


def test_a_silent_port_is_given_up_in_time() -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        assert_refused(Address(*silent.getsockname()), "did not answer within 0.3 s", LIMIT_S)


def assert_refused(address: Address, message: str, limit_s: float = PATIENCE_S) -> None:
    with pytest.raises(InputError, match=message) as caught:
        TcpStore(address, limit_s)
    assert "\n" not in caught.value.message
    assert "MASTER_ADDR" in caught.value.hint
    assert "rdzv" in caught.value.hint


@pytest.mark.parametrize(
    ("server", "message"),
    [
        (StoreServer(greeting=b"HTTP/1.0 400 Bad Request\r\n\r\n"), "it answers in HTTP"),
        (StoreServer(greeting=b"SSH-2.0-OpenSSH_9.6\r\n"), "in another protocol"),
        (StoreServer(answers={PING: b"\0\0\0\0"}), "in another protocol"),
        (StoreServer(answers={VALIDATE: b""}), "it closes the connection"),
        (StoreServer(unknown=OLDER, answers={GETNUMKEYS: HUGE}), "in another protocol"),
        (StoreServer(unknown=OLDER, answers={GETNUMKEYS: b"abc"}), "it closes the connection"),
    ],
    ids=["http", "ssh", "wrong nonce", "closes at once", "absurd count", "half a count"],
)
def test_another_protocol_is_recognised(server: StoreServer, message: str) -> None:
    with server:
        assert_refused(parse_address(server.address), message)


@pytest.mark.parametrize(
    "answers",
    [
        {CHECK: b"\7"},
        {CHECK: b""},
        {MULTI_GET: HUGE},
        {MULTI_GET: struct.pack("<Q", 64) + b"cut"},
        {MULTI_GET: b"\1\0\0"},
        {LIST_KEYS: HUGE},
        {LIST_KEYS: struct.pack("<Q", 2) + HUGE},
        {GETNUMKEYS: struct.pack("<q", -1)},
    ],
    ids=repr,
)
def test_an_odd_answer_is_an_error_and_ends_the_connection(answers: dict[int, bytes]) -> None:
    with StoreServer(VALUES, answers=answers) as server, open_store(server) as store:
        for _ in range(2):  # the second time there is nothing left to ask
            with pytest.raises(InputError) as caught:
                read_all(store)
            assert caught.value.hint


def read_all(store: TcpStore) -> None:
    store.n_keys()
    store.fetch(store.list_keys() or list(VALUES))


def test_a_list_that_is_cut_counts_as_none() -> None:
    cut = struct.pack("<Q", 2) + sized(b"/a")
    with StoreServer(VALUES, answers={LIST_KEYS: cut}) as server, open_store(server) as store:
        assert store.list_keys() is None
        assert store.fetch(list(VALUES)) == VALUES


def test_an_answer_that_drips_is_given_up_in_time() -> None:
    server = StoreServer({"a": bytes(1 << 12)}, pause_s=0.01)
    with server, pytest.raises(InputError, match="did not answer within"), open_store(server, LIMIT_S) as store:
        store.get("a")


@settings(max_examples=40, deadline=None)
@given(st.binary(max_size=64), st.sampled_from([CHECK, MULTI_GET, LIST_KEYS, GETNUMKEYS, PING]))
def test_whatever_is_answered_ends_in_values_or_a_clear_error(answer: bytes, query: int) -> None:
    failure = None
    with StoreServer(dict(list(VALUES.items())[:3]), answers={query: answer}) as server:
        try:
            with open_store(server) as store:
                store.list_keys()
                store.fetch(list(VALUES)[:3])
        except RankscopeError as error:
            failure = error
    assert failure is None or (failure.message and failure.hint)
