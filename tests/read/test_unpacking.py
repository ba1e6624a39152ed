"""Packed streams: whole, joined, padded, cut, broken, and far larger than they look."""

from __future__ import annotations

import gzip
import io

import pytest

from rankscope.read.unpacking import unpacked

TEXT = b"".join(b"line %d\n" % number for number in range(50_000))


def opened(content: bytes, limit: int = 1 << 30) -> io.BufferedReader:
    stream = unpacked(io.BufferedReader(io.BytesIO(content)), limit)
    assert stream is not None
    return stream


def read_until_broken(stream: io.BufferedReader) -> tuple[bytes, Exception | None]:
    content = b""
    try:
        while piece := stream.read1(1 << 16):
            content += piece
    except (OSError, EOFError) as error:
        return content, error
    return content, None


def packed_as(name: str, content: bytes) -> bytes:
    if name == "gzip":
        return gzip.compress(content)
    packed: bytes = pytest.importorskip("zstandard").compress(content)
    return packed


@pytest.mark.parametrize("name", ["gzip", "zstd"])
def test_what_was_packed_comes_out(name: str) -> None:
    assert opened(packed_as(name, TEXT)).read() == TEXT


def test_plain_content_is_left_alone() -> None:
    assert unpacked(io.BufferedReader(io.BytesIO(b"{}")), 10) is None


def test_members_that_follow_each_other_are_one_stream() -> None:
    assert opened(gzip.compress(TEXT) + gzip.compress(b"more") + bytes(512)).read() == TEXT + b"more"


@pytest.mark.parametrize("name", ["gzip", "zstd"])
def test_of_a_cut_stream_the_beginning_is_given_before_the_error(name: str) -> None:
    whole = packed_as(name, bytes(range(256)) * 4000 + TEXT)
    content, error = read_until_broken(opened(whole[: len(whole) * 3 // 4]))
    assert isinstance(error, EOFError)
    if name == "gzip":  # zstd gives whole blocks alone
        assert len(content) > 500_000


def test_a_broken_stream_is_an_error_of_the_file() -> None:
    whole = bytearray(gzip.compress(TEXT))
    whole[len(whole) // 2 :] = b"\xff" * (len(whole) - len(whole) // 2)
    _, error = read_until_broken(opened(bytes(whole)))
    assert isinstance(error, (OSError, EOFError))


def test_a_stream_that_unfolds_without_end_is_stopped() -> None:
    bomb = gzip.compress(bytes(64 << 20))
    with pytest.raises(OSError, match="far more than a trace"):
        opened(bomb, limit=1 << 20).read()
