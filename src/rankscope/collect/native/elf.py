"""A library or program on disk: which rule unwinds an address of it, and which function the address is in."""

from __future__ import annotations

import mmap
import struct
from collections.abc import Iterable
from typing import NamedTuple

_IS_64_LITTLE = b"\x7fELF\x02\x01"
_X86_64 = 62
_LOAD, _EH_FRAME = 1, 0x6474E550
_SYMTAB, _DYNSYM = 2, 11
_FUNCTION = 2
_SYMBOL = struct.Struct("<IBBHQQ")
_STANDARD_TABLE = b"\x01\x1b\x03\x3b"  # version 1; the encodings that every linker writes
_MAX_NAME = 4096
_MAX_SYMBOLS = 4 << 20


class Segment(NamedTuple):
    offset: int
    address: int
    size: int


class ElfFile:
    """ValueError: it is not a file of this machine's kind. OSError: it cannot be read."""

    def __init__(self, path: str) -> None:
        with open(path, "rb") as file:
            self.data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        try:
            machine = struct.unpack_from("<H", self.data, 18)[0]
            if self.data[:6] != _IS_64_LITTLE or machine != _X86_64:
                raise ValueError(f"{path} is no program of x86-64")
            self.segments, self._table = self._program_headers()
        except struct.error as error:
            raise ValueError(f"{path} is cut short") from error

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
        if self.data[start : start + 4] != _STANDARD_TABLE:
            return None
        low, high = 0, struct.unpack_from("<I", self.data, start + 8)[0]
        wanted = address - self._table
        while low < high:
            middle = (low + high) // 2
            if struct.unpack_from("<i", self.data, start + 12 + 8 * middle)[0] <= wanted:
                low = middle + 1
            else:
                high = middle
        if not low:
            return None
        return int(self._table + struct.unpack_from("<i", self.data, start + 12 + 8 * (low - 1) + 4)[0])

    def function_names(self, addresses: Iterable[int]) -> dict[int, str]:
        """Names as the linker knows them, of those addresses that are within a function."""
        wanted = sorted(set(addresses))
        found: dict[int, tuple[int, str]] = {}
        for kind in (_SYMTAB, _DYNSYM):  # the first one has the functions of the file alone, too
            for symbols, names in self._tables_of(kind):
                self._look_up(wanted, symbols, names, found)
            if len(found) == len(wanted):
                break
        return {address: name for address, (_, name) in found.items()}

    def _look_up(self, wanted: list[int], symbols: Segment, names: Segment, found: dict[int, tuple[int, str]]) -> None:
        n_symbols = min(symbols.size // _SYMBOL.size, _MAX_SYMBOLS)
        last = wanted[-1] if wanted else -1
        with memoryview(self.data) as view, view[symbols.offset : symbols.offset + n_symbols * _SYMBOL.size] as table:
            for name, info, _, section, value, size in _SYMBOL.iter_unpack(table):
                if not size or value > last or not section or info & 15 != _FUNCTION:
                    continue
                for address in wanted:
                    if value <= address < value + size and value >= found.get(address, (0, ""))[0]:
                        found[address] = (value, self._text(names.offset + name))

    def _text(self, start: int) -> str:
        end = self.data.find(b"\0", start, start + _MAX_NAME)
        return self.data[start : end if end >= 0 else start + _MAX_NAME].decode("utf-8", "replace")

    def _tables_of(self, kind: int) -> Iterable[tuple[Segment, Segment]]:
        start, size, count = self._table_of_sections()
        sections = [struct.unpack_from("<IIQQQQII", self.data, start + index * size) for index in range(count)]
        for section in sections:
            link = section[6]
            if section[1] == kind and link < len(sections):
                names = sections[link]
                yield Segment(section[4], 0, section[5]), Segment(names[4], 0, names[5])

    def _table_of_sections(self) -> tuple[int, int, int]:
        start = struct.unpack_from("<Q", self.data, 40)[0]
        size, count = struct.unpack_from("<HH", self.data, 58)
        return (start, size, count) if start and size >= 48 and start + size * count <= len(self.data) else (0, 0, 0)

    def _program_headers(self) -> tuple[list[Segment], int | None]:
        start = struct.unpack_from("<Q", self.data, 32)[0]
        size, count = struct.unpack_from("<HH", self.data, 54)
        segments, table = [], None
        for index in range(count):
            kind, _, offset, address, _, n_bytes = struct.unpack_from("<IIQQQQ", self.data, start + index * size)
            if kind == _LOAD:
                segments.append(Segment(offset, address, n_bytes))
            elif kind == _EH_FRAME:
                table = address
        return segments, table
