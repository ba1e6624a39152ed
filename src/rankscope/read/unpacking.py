"""Undoes gzip and zstd while a file streams in; of a cut or broken file all that comes before the damage is given."""

from __future__ import annotations

import io
import zlib
from collections.abc import Callable
from typing import Any

from rankscope.errors import BadFileError

_GZIP = b"\x1f\x8b"
_ZSTD = b"\x28\xb5\x2f\xfd"
# What one piece can unfold to at most is a thousand times its size: small pieces keep a bomb small.
_PIECE_BYTES = 1 << 16


def is_packed(head: bytes) -> bool:
    return head[:2] == _GZIP or head[:4] == _ZSTD


def unpacked(packed: io.BufferedReader, limit: int) -> io.BufferedReader | None:
    """The content of a packed stream, which stops at the limit; None when the first bytes are those of plain data."""
    magic = packed.peek(4)[:4]
    if magic[:2] == _GZIP:
        return io.BufferedReader(_Unpacked(packed, _gzip_decoder(), limit), 1 << 20)
    if magic == _ZSTD:
        return io.BufferedReader(_Unpacked(packed, _zstd_decoder(), limit), 1 << 20)
    return None


class _Unpacked(io.RawIOBase):
    """Packed members follow each other; each has a decoder of its own."""

    def __init__(self, packed: io.BufferedReader, make_decoder: Callable[[], Any], limit: int) -> None:
        self._packed = packed
        self._make_decoder = make_decoder
        self._decoder: Any = make_decoder()
        self._ready = memoryview(b"")
        self._left = limit

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        while not self._ready:
            piece = self._packed.read(_PIECE_BYTES)
            if not piece:
                if self._decoder is not None and not self._decoder.eof:
                    raise EOFError("the compressed data ends too early")
                return 0
            self._ready = memoryview(self._decoded(piece))
        n_read = min(len(buffer), len(self._ready))
        memoryview(buffer)[:n_read] = self._ready[:n_read]
        self._ready = self._ready[n_read:]
        return n_read

    def _decoded(self, piece: bytes) -> bytes:
        decoded = []
        while piece:
            if self._decoder is None or self._decoder.eof:
                if not piece.strip(b"\0"):  # padding at the end, which tape and disk blocks leave
                    self._decoder = None
                    break
                self._decoder = self._make_decoder()
            try:
                decoded.append(self._decoder.decompress(piece))
            except Exception as error:  # each library has exceptions of its own
                raise OSError(f"the compressed data is broken: {error}") from error
            piece = self._decoder.unused_data if self._decoder.eof else b""
        self._left -= sum(map(len, decoded))
        if self._left < 0:
            raise OSError("decompresses to far more than a trace would")
        return b"".join(decoded)

    def close(self) -> None:
        self._packed.close()
        super().close()


def _gzip_decoder() -> Callable[[], Any]:
    """The extra `fast` brings one that is several times as fast."""
    with_header = 16 + zlib.MAX_WBITS
    try:
        from isal import isal_zlib

        return lambda: isal_zlib.decompressobj(with_header)
    except ImportError:
        return lambda: zlib.decompressobj(with_header)


def _zstd_decoder() -> Callable[[], Any]:
    try:
        from compression.zstd import ZstdDecompressor  # Python 3.14 has it

        return lambda: ZstdDecompressor()
    except ImportError:
        pass
    try:
        import zstandard
    except ImportError as error:
        raise BadFileError(
            "is compressed with zstd", "pip install 'rankscope[zstd]', or decompress it with zstd -d"
        ) from error
    return lambda: zstandard.ZstdDecompressor().decompressobj()
