"""The frames in C and C++ of threads that wait, with the names of their functions."""

from __future__ import annotations

import bisect
import ctypes
import functools
import time
from collections.abc import Iterable
from typing import NamedTuple

from rankscope.collect.native.elf import ElfFile
from rankscope.collect.native.threads import Mapping, Waiting, read_mappings, read_waiting, why_unreadable
from rankscope.collect.native.unwind_rules import RETURN_ADDRESS, SP, rules_at

_MAX_FRAMES = 200
_MAX_SHOWN_NAME = 400
_UNKNOWN = "??"


class NativeFrame(NamedTuple):
    function: str
    file: str  # the library: wheels have no lines of source


class _Place(NamedTuple):
    path: str
    address: int  # in the file, as the linker gave it


def prepare() -> str:
    """Loads what is needed, while the job is well: later it may hang in the loader. Returns why it cannot work here."""
    _demangler()
    return why_unreadable()


def native_stacks(threads: Iterable[int], seconds: float) -> dict[int, list[NativeFrame]]:
    """Innermost first, by the thread's number in the kernel. Threads that run, and not wait, are left out.

    `seconds` bounds the time: what is not done by then stays without a name.
    """
    deadline = time.monotonic() + seconds
    memory = _Memory(read_mappings())
    try:
        stacks: dict[int, list[_Place]] = {}
        for thread in threads:
            waiting = read_waiting(thread, memory.mappings)
            if waiting is not None and time.monotonic() < deadline:
                stacks[thread] = memory.unwind(waiting)
        names = memory.names({place for stack in stacks.values() for place in stack}, deadline)
    finally:
        memory.close()
    return {
        thread: [NativeFrame(names.get(place, _UNKNOWN), place.path) for place in stack]
        for thread, stack in stacks.items()
    }


class _Memory:
    """The code in the memory of this process, and the files that it came from."""

    def __init__(self, mappings: list[Mapping]) -> None:
        self.mappings = mappings
        self._code = [each for each in mappings if each.is_code and each.path.startswith("/")]
        self._starts = [each.start for each in self._code]
        self._files: dict[str, ElfFile | None] = {}

    def close(self) -> None:
        for file in filter(None, self._files.values()):
            file.close()

    def unwind(self, waiting: Waiting) -> list[_Place]:
        """As far as the rules and the copy of the stack reach. Registers that the kernel did not report are unknown."""
        registers: dict[int, int | None] = {SP: waiting.sp}
        pc: int | None = waiting.pc
        places: list[_Place] = []
        while pc and len(places) < _MAX_FRAMES:
            # A return address is behind the call, and may be in the next function already.
            place = self._place(pc - bool(places))
            if place is None:
                break
            places.append(place)
            try:
                pc = self._step(place, waiting, registers)
            except (OSError, ValueError):
                break
        return places

    def _step(self, place: _Place, waiting: Waiting, registers: dict[int, int | None]) -> int | None:
        """The return address; the registers become those of the caller."""
        file = self._file(place.path)
        rules = rules_at(file, place.address) if file is not None else None
        base = registers.get(rules.register) if rules is not None else None
        if rules is None or base is None:
            return None
        frame = base + rules.offset
        if frame <= (registers[SP] or 0):  # a stack grows: else it would go in circles
            return None
        for register, offset in rules.saved.items():
            registers[register] = waiting.word(frame + offset) if offset is not None else None
        registers[SP] = frame
        return registers.pop(RETURN_ADDRESS, None)

    def _place(self, pc: int) -> _Place | None:
        index = bisect.bisect_right(self._starts, pc) - 1
        if index < 0 or pc >= self._code[index].end:
            return None
        mapping = self._code[index]
        file = self._file(mapping.path)
        address = file.address_at(pc - mapping.start + mapping.offset) if file is not None else None
        return _Place(mapping.path, address) if address is not None else None

    def _file(self, path: str) -> ElfFile | None:
        if path not in self._files:
            try:
                self._files[path] = ElfFile(path)
            except (OSError, ValueError):  # replaced or removed since
                self._files[path] = None
        return self._files[path]

    def names(self, places: Iterable[_Place], deadline: float) -> dict[_Place, str]:
        by_path: dict[str, list[int]] = {}
        for place in places:
            by_path.setdefault(place.path, []).append(place.address)
        demangle = _demangler()
        shown: dict[_Place, str] = {}
        for path, addresses in sorted(by_path.items(), key=lambda item: len(item[1])):
            file = self._file(path)
            if file is None or time.monotonic() > deadline:
                continue
            try:
                names = file.function_names(addresses, deadline)
            except (OSError, ValueError):  # without names then
                continue
            shown.update((_Place(path, address), demangle(name)[:_MAX_SHOWN_NAME]) for address, name in names.items())
        return shown


class _Demangler:
    """The C++ library's own, if it can be found."""

    def __init__(self) -> None:
        self._function = self._free = None
        try:
            library = ctypes.CDLL("libstdc++.so.6")
            self._function, self._free = getattr(library, "__cxa_demangle"), ctypes.CDLL(None).free
        except (OSError, AttributeError):
            return
        self._function.restype = ctypes.c_void_p
        self._function.argtypes = (ctypes.c_char_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)
        self._free.argtypes = (ctypes.c_void_p,)

    def __call__(self, name: str) -> str:
        if self._function is None or self._free is None or not name.startswith("_Z"):
            return name
        demangled = self._function(name.encode(), None, None, None)
        if not demangled:
            return name
        try:
            return ctypes.string_at(demangled).decode("utf-8", "replace")
        finally:
            self._free(demangled)


@functools.cache
def _demangler() -> _Demangler:
    return _Demangler()
