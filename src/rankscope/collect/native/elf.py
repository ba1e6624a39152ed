"""A library or program on disk: which rule unwinds an address of it, and which function the address is in."""

from __future__ import annotations

import os
import struct
import time
from collections.abc import Iterable
from typing import NamedTuple

_IS_64_LITTLE = b"\x7fELF\x02\x01"
_X86_64 = 62
_LOAD, _EH_FRAME = 1, 0x6474E550
_SYMTAB, _DYNSYM = 2, 11
_FUNCTION = 2
_SYMBOL = struct.Struct("<IBBHQQ")
_STANDARD_TABLE = b"\x01\x1b\x03\x3b"  # version 1; the encodings that every linker writes
_SECTION_BYTES = 64
_MAX_NAME = 4096
_PAGE, _MAX_PAGES = 1 << 12, 512
_CHUNK = _SYMBOL.size << 15


class Segment(NamedTuple):
    offset: int
    address: int
    size: int


class FileBytes:
    """Bytes of a file, read when they are asked for.

    Not mapped: a file that a network disk no longer gives would end the whole job then, here it is an OSError.
    """

    def __init__(self, path: str) -> None:
        self._descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        self.n_bytes = os.fstat(self._descriptor).st_size
        self._pages: dict[int, bytes] = {}

    def close(self) -> None:
        os.close(self._descriptor)

    def read(self, start: int, n_bytes: int) -> bytes:
        """As many as there are."""
        return os.pread(self._descriptor, n_bytes, start) if 0 <= start < self.n_bytes else b""

    def small(self, start: int, n_bytes: int) -> bytes:
        """The same for a few bytes, whose neighbors will be asked for as well."""
        page, within = divmod(start, _PAGE)
        if page not in self._pages:
            if len(self._pages) >= _MAX_PAGES:  # the job's memory is the job's
                self._pages.clear()
            self._pages[page] = self.read(page * _PAGE, _PAGE + _MAX_NAME)
        return self._pages[page][within : within + n_bytes]

    def unpack(self, layout: str, start: int) -> tuple[int, ...]:
        """ValueError: the file ends before."""
        try:
            return struct.unpack(layout, self.small(start, struct.calcsize(layout)))
        except struct.error as error:
            raise ValueError("the file is truncated") from error

    def text(self, start: int, n_most: int) -> str | None:
        """Up to the next zero byte; None where that is too far."""
        content, zero, _ = self.small(start, n_most).partition(b"\0")
        return content.decode("utf-8", "replace") if zero else None


class ElfFile:
    """ValueError: it is not a file of this machine's kind. OSError: it cannot be read."""

    def __init__(self, path: str) -> None:
        self.data = FileBytes(path)
        try:
            if self.data.small(0, 6) != _IS_64_LITTLE or self.data.unpack("<H", 18)[0] != _X86_64:
                raise ValueError(f"{path} is not an x86-64 program")
            self.segments, self._table = self._program_headers()
        except (OSError, ValueError):
            self.close()
            raise

    def close(self) -> None:
        self.data.close()

    def address_at(self, file_offset: int) -> int | None:
        """The address that the linker gave to a byte of the file."""
        for segment in self.segments:
            if segment.offset <= file_offset < segment.offset + segment.size:
                return file_offset - segment.offset + segment.address
        return None

    def offset_at(self, address: int) -> int:
        for segment in self.segments:
            if segment.address <= address < segment.address + segment.size:
                return address - segment.address + segment.offset
        raise ValueError("an address that is not in the file")

    def frame_entry(self, address: int) -> int | None:
        """The address of the entry of .eh_frame that may cover this one: found in the table that is sorted for it."""
        if self._table is None:
            return None
        start = self.offset_at(self._table)
        if self.data.small(start, 4) != _STANDARD_TABLE:
            return None
        low, high = 0, self.data.unpack("<I", start + 8)[0]
        wanted = address - self._table
        while low < high:
            middle = (low + high) // 2
            if self.data.unpack("<i", start + 12 + 8 * middle)[0] <= wanted:
                low = middle + 1
            else:
                high = middle
        return self._table + self.data.unpack("<i", start + 12 + 8 * low - 4)[0] if low else None

    def function_names(self, addresses: Iterable[int], deadline: float) -> dict[int, str]:
        """Names as the linker knows them, of those addresses that are within a function."""
        wanted = sorted(set(addresses))
        starts: dict[int, tuple[int, int]] = {}  # address -> (start of the function, place of its name)
        for kind in (_SYMTAB, _DYNSYM):  # the first one has the functions of the file alone, too
            for symbols, names in self._tables_of(kind):
                self._look_up(wanted, symbols, names, starts, deadline)
            if len(starts) == len(wanted):
                break
        named = ((address, self.data.text(offset, _MAX_NAME)) for address, (_, offset) in starts.items())
        return {address: name for address, name in named if name}

    def _look_up(
        self,
        wanted: list[int],
        symbols: Segment,
        names: Segment,
        starts: dict[int, tuple[int, int]],
        deadline: float,
    ) -> None:
        offset, end = symbols.offset, symbols.offset + symbols.size // _SYMBOL.size * _SYMBOL.size
        last = wanted[-1] if wanted else -1
        while offset < end and time.monotonic() < deadline:
            chunk = self.data.read(offset, min(_CHUNK, end - offset))
            offset += _CHUNK
            if len(chunk) % _SYMBOL.size:
                return
            for name, info, _, section, value, size in _SYMBOL.iter_unpack(chunk):
                if not size or value > last or not section or info & 15 != _FUNCTION:
                    continue
                for address in wanted:
                    if value <= address < value + size and value >= starts.get(address, (0, 0))[0]:
                        starts[address] = (value, names.offset + name)

    def _tables_of(self, kind: int) -> Iterable[tuple[Segment, Segment]]:
        start, size, count = self._table_of_sections()
        sections = [self.data.unpack("<IIQQQQII", start + index * size) for index in range(count)]
        for section in sections:
            link = section[6]
            if section[1] == kind and link < len(sections):
                names = sections[link]
                yield Segment(section[4], 0, section[5]), Segment(names[4], 0, names[5])

    def _table_of_sections(self) -> tuple[int, int, int]:
        [start] = self.data.unpack("<Q", 40)
        size, count = self.data.unpack("<HH", 58)
        is_whole = start and size >= _SECTION_BYTES and start + size * count <= self.data.n_bytes
        return (start, size, count) if is_whole else (0, 0, 0)

    def _program_headers(self) -> tuple[list[Segment], int | None]:
        [start] = self.data.unpack("<Q", 32)
        size, count = self.data.unpack("<HH", 54)
        segments, table = [], None
        for index in range(count):
            kind, _, offset, address, _, n_bytes = self.data.unpack("<IIQQQQ", start + index * size)
            if kind == _LOAD:
                segments.append(Segment(offset, address, n_bytes))
            elif kind == _EH_FRAME:
                table = address
        return segments, table
