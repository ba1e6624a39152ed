"""Looks over the opcodes of a pickle before it is loaded: what would hang the loader or fill the memory is refused.

A tuple of twice the same tuple of twice the same tuple ... is short, and takes for ever to hash. Python looks at
strings and tuples alone; what lies between them is passed over by a regular expression.
"""

from __future__ import annotations

import pickle
import re
from collections.abc import Sequence

_MAX_NESTED = 16  # tuples in tuples: each can double the time that hashing takes, and no dump has any
# Opcodes of fixed length that dumps are made of.
_RUN = re.compile(rb"(?:[N)\](}aesu\x88\x89\x94]|[Kqh].|M..|[Jj]....|G.{8}){1,500}", re.DOTALL)
_TOKEN = re.compile(rb"[Kqh].|M..|[Jj]....|G.{8}|.", re.DOTALL)
_CONTAINERS = frozenset((b"]", b"(", b"}", b"a", b"e", b"s", b"u"))  # what they make cannot be hashed
_TUPLES = frozenset(b"\x85\x86\x87")
_LENGTHS = {ord("X"): 4, 0x8C: 1, 0x8D: 8, 0x8A: 1, 0x8B: 4}  # strings and long numbers: bytes that tell their length
_PUT_FAR, _FRAME, _STOP = ord("r"), 0x95, ord(".")
_MEMOIZE = b"\x94"


class FloodError(pickle.UnpicklingError):
    """The pickle is made to hang its reader or to fill its memory."""


def is_usual(content: bytes) -> bool:
    """Whether it has only opcodes that dumps have, in harmless order; else it is to be loaded with care.

    FloodError: no dump is like that.
    """
    scan = _Scan(content)
    position = 2
    while position < len(content) and content[position] != _STOP:
        n_bytes = scan.pass_over(position)
        if not n_bytes:
            return False
        position += n_bytes
    return True


class _Scan:
    def __init__(self, content: bytes) -> None:
        self.content = content
        self.fetches_tuple: set[bytes] = set()  # opcodes that put a known tuple on the stack again
        self.is_above_tuple = False  # since the last tuple there came only what may share a tuple with it
        self.n_memoized = 0
        self.n_nested = 0

    def pass_over(self, position: int) -> int:
        """How many bytes are harmless from here on; 0 when none."""
        opcode = self.content[position]
        if run := _RUN.match(self.content, position):
            self._add_tokens(_TOKEN.findall(run.group()))
            return len(run.group())
        if opcode in _LENGTHS:
            return 1 + _LENGTHS[opcode] + self._number(position + 1, _LENGTHS[opcode])
        if opcode in _TUPLES:
            self._add_tuple(position + 1)
            return 1
        if opcode == _PUT_FAR:
            if self._number(position + 1, 4) > len(self.content):
                raise FloodError("reserves far more memory than its size explains")
            return 5
        return 9 if opcode == _FRAME else 0

    def _number(self, position: int, n_bytes: int) -> int:
        return int.from_bytes(self.content[position : position + n_bytes], "little")

    def _add_tokens(self, tokens: Sequence[bytes]) -> None:
        self.n_memoized += tokens.count(_MEMOIZE)
        for token in reversed(tokens):
            if token in _CONTAINERS or token in self.fetches_tuple:
                self.is_above_tuple = token not in _CONTAINERS
                return

    def _add_tuple(self, position: int) -> None:
        """It is followed by where it is kept, if it is."""
        self.n_nested += self.is_above_tuple
        if self.n_nested > _MAX_NESTED:
            raise FloodError("nests tuples, which takes for ever to hash")
        self.is_above_tuple = True
        following = self.content[position : position + 5]
        if following[:1] == _MEMOIZE:
            following = b"r" + self.n_memoized.to_bytes(4, "little")
        if following[:1] == b"q":
            self._keep(following[1])
        elif following[:1] == b"r":
            self._keep(int.from_bytes(following[1:5], "little"))

    def _keep(self, number: int) -> None:
        self.fetches_tuple.add(b"j" + (number & 0xFFFFFFFF).to_bytes(4, "little"))
        if number < 256:
            self.fetches_tuple.add(b"h%c" % number)
