"""Call frame information (.eh_frame): how the registers of a caller are found from those of the function it called."""

from __future__ import annotations

import struct
from dataclasses import dataclass, field

from rankscope.collect.native.elf import ElfFile

# DWARF's numbers of x86-64's registers.
SP, RETURN_ADDRESS = 7, 16
_ABSOLUTE, _RELATIVE_4 = 0x00, 0x1B
_FORMATS = {0x00: "<Q", 0x02: "<H", 0x03: "<I", 0x04: "<Q", 0x0A: "<h", 0x0B: "<i", 0x0C: "<q"}
_MAX_INSTRUCTIONS = 4096
_WIDE = 0xFFFFFFFF


class UnsupportedRuleError(ValueError):
    """A rule that is rare: frames beyond it are not known."""


@dataclass
class Rules:
    """Unwinding at one address: the frame's address (CFA) is a register plus an offset; saved registers are below."""

    register: int = SP
    offset: int = 8
    saved: dict[int, int | None] = field(default_factory=dict)  # register -> offset from the CFA; None: lost

    def copy(self) -> Rules:
        return Rules(self.register, self.offset, dict(self.saved))


@dataclass(frozen=True)
class _Common:
    """What entries share (CIE)."""

    code_unit: int
    data_unit: int
    encoding: int
    is_signal: bool
    has_length: bool
    instructions: tuple[int, int]  # from, to


def rules_at(file: ElfFile, address: int) -> Rules | None:
    """None where nothing is known of the address. ValueError: what is known makes no sense here."""
    entry = file.frame_entry(address)
    if entry is None:
        return None
    reader = _Reader(file, file.offset_at(entry))
    end = reader.length()
    here = reader.place
    common = _common(file, here - reader.number("<I"))
    begin = reader.encoded(common.encoding)
    size = reader.encoded(common.encoding & 0x0F)
    if not begin <= address < begin + size:
        return None
    if common.has_length:
        reader.skip(reader.unsigned())
    if common.is_signal:
        raise UnsupportedRuleError("a signal handler")
    program = _Program(file, common)
    program.run(*common.instructions, address, begin)
    program.initial = program.rules.copy()
    program.run(reader.place, end, address, begin)
    return program.rules


def _common(file: ElfFile, start: int) -> _Common:
    reader = _Reader(file, start)
    end = reader.length()
    reader.skip(4)
    version = reader.number("<B")
    augmentation = reader.text()
    code_unit, data_unit = reader.unsigned(), reader.signed()
    _ = reader.number("<B") if version == 1 else reader.unsigned()  # the column of the return address: always 16
    encoding, has_length = _ABSOLUTE, augmentation.startswith("z")
    if has_length:
        after = reader.unsigned()
        after += reader.place
        for letter in augmentation[1:]:
            if letter == "R":
                encoding = reader.number("<B")
            elif letter == "P":
                reader.encoded(reader.number("<B"))
            elif letter == "L":
                reader.skip(1)
        reader.place = after
    return _Common(code_unit, data_unit, encoding, "S" in augmentation, has_length, (reader.place, end))


class _Reader:
    def __init__(self, file: ElfFile, offset: int) -> None:
        self._file = file
        self.place = offset  # in the file

    def number(self, layout: str) -> int:
        value = self._file.data.unpack(layout, self.place)[0]
        self.place += struct.calcsize(layout)
        return value

    def skip(self, n_bytes: int) -> None:
        self.place += n_bytes

    def length(self) -> int:
        """Reads the length of an entry and returns where it ends."""
        n_bytes = self.number("<I")
        if n_bytes == _WIDE:
            raise UnsupportedRuleError("an entry of more than 4 GiB")
        return self.place + n_bytes

    def text(self) -> str:
        value = self._file.data.text(self.place, 16)
        if value is None:
            raise ValueError("a name without an end")
        self.place += len(value) + 1
        return value

    def unsigned(self) -> int:
        value, shift = 0, 0
        while True:
            byte = self.number("<B")
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return value

    def signed(self) -> int:
        start = self.place
        value = self.unsigned()
        bits = 7 * (self.place - start)
        return value - (1 << bits) if value >> (bits - 1) & 1 else value

    def encoded(self, encoding: int) -> int:
        """A number that may be relative to its own place."""
        layout = _FORMATS.get(encoding & 0x0F)
        if layout is None or encoding & 0x70 not in (0x00, 0x10):
            raise UnsupportedRuleError(f"an address in the encoding {encoding:#x}")
        address = self._file.address_at(self.place) or 0
        return self.number(layout) + (address if encoding & 0x70 else 0)


class _Program:
    """Runs the instructions up to those that are in force at an address."""

    def __init__(self, file: ElfFile, common: _Common) -> None:
        self.rules = self.initial = Rules()
        self._file = file
        self._common = common
        self._kept: list[Rules] = []

    def run(self, start: int, end: int, address: int, begin: int) -> None:
        reader, location = _Reader(self._file, start), begin
        for _ in range(_MAX_INSTRUCTIONS):
            if reader.place >= end:
                return
            code = reader.number("<B")
            step = self._step(code, reader)
            if step is not None:
                location += step * self._common.code_unit
                if location > address:
                    return
            else:
                self._change(code, reader)
        raise UnsupportedRuleError("a rule without an end")

    @staticmethod
    def _step(code: int, reader: _Reader) -> int | None:
        if code & 0xC0 == 0x40:
            return code & 0x3F
        layout = {0x02: "<B", 0x03: "<H", 0x04: "<I"}.get(code)
        return reader.number(layout) if layout else None

    def _change(self, code: int, reader: _Reader) -> None:
        rules, unit = self.rules, self._common.data_unit
        if code & 0xC0 == 0x80:
            rules.saved[code & 0x3F] = reader.unsigned() * unit
        elif code & 0xC0 == 0xC0:
            self._restore(code & 0x3F)
        elif code == 0x05:
            register = reader.unsigned()
            rules.saved[register] = reader.unsigned() * unit
        elif code == 0x06:
            self._restore(reader.unsigned())
        elif code == 0x07:
            rules.saved[reader.unsigned()] = None
        elif code == 0x08:
            rules.saved.pop(reader.unsigned(), None)
        elif code == 0x0A:
            self._kept.append(rules.copy())
        elif code == 0x0B and self._kept:
            self.rules = self._kept.pop()
        elif code == 0x0C:
            rules.register, rules.offset = reader.unsigned(), reader.unsigned()
        elif code == 0x0D:
            rules.register = reader.unsigned()
        elif code == 0x0E:
            rules.offset = reader.unsigned()
        elif code == 0x10:  # an expression for one register: its value is not worth a calculator
            rules.saved[reader.unsigned()] = None
            reader.skip(reader.unsigned())
        elif code == 0x2E:
            reader.unsigned()
        elif code != 0x00:
            raise UnsupportedRuleError(f"the instruction {code:#x}")

    def _restore(self, register: int) -> None:
        if register in self.initial.saved:
            self.rules.saved[register] = self.initial.saved[register]
        else:
            self.rules.saved.pop(register, None)
