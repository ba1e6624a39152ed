"""Reads pickles that hold only plain containers. No class is ever resolved, so no code of the file can run."""

from __future__ import annotations

import io
import pickle
import struct
from collections.abc import Callable
from typing import Any, BinaryIO, ClassVar, NoReturn, cast

from rankscope.errors import BadFileError
from rankscope.read.pickle_scan import FloodError, is_usual

REFUSED_HINT = "do not open it with other tools: a genuine dump has only plain containers"


class BrokenPickleError(pickle.UnpicklingError):
    """The pickle is invalid from some byte on, but continues: what comes before may be wrong as well."""


class RefusedClassError(pickle.UnpicklingError):
    """The pickle asks for a class or a function, which a genuine dump never does."""


def _refuse(module: str, name: str) -> Any:
    raise RefusedClassError(f"asks for {module}.{name}")


class _PlainUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        return _refuse(module, name)

    def persistent_load(self, pid: Any) -> Any:
        return _refuse("persistent object", str(pid)[:40])


def _refuse_flood(_unpickler: Any) -> NoReturn:
    raise FloodError("has what no dump has: copies of what is on the stack, or sets")


def _checking_keys(code: bytes, keys: slice) -> Callable[[Any], None]:
    """Loads as usual, but for keys that may take for ever to hash: tuples of tuples of tuples."""
    load = pickle._Unpickler.dispatch[code[0]]

    def checked(unpickler: Any) -> None:
        if not all(isinstance(key, (str, int, float, bytes, type(None))) for key in unpickler.stack[keys]):
            raise FloodError("has keys that are neither text nor numbers")
        load(unpickler)

    return checked


# The pure-Python unpickler is slow, but after an error its stacks show what had been read so far.
class _SalvagingUnpickler(pickle._Unpickler):
    dispatch: ClassVar[dict[int, Any]] = {
        **pickle._Unpickler.dispatch,
        **{code[0]: _refuse_flood for code in (pickle.DUP, pickle.EMPTY_SET, pickle.ADDITEMS, pickle.FROZENSET)},
        pickle.SETITEM[0]: _checking_keys(pickle.SETITEM, slice(-2, -1)),
        **{code[0]: _checking_keys(code, slice(None, None, 2)) for code in (pickle.SETITEMS, pickle.DICT)},
    }

    def __init__(self, stream: io.BytesIO) -> None:
        super().__init__(stream)
        self._stream = stream

    def find_class(self, module: str, name: str) -> Any:
        return _refuse(module, name)

    def persistent_load(self, pid: Any) -> Any:
        return _refuse("persistent object", str(pid)[:40])

    def salvage(self) -> Any:
        """Everything that was complete when the stream ended."""
        try:
            return self.load()
        except (RefusedClassError, FloodError):
            raise
        except Exception as error:  # whatever a cut or mutated stream provokes
            if self._stream.read(1):
                position = self._stream.tell() - 1
                raise BrokenPickleError(f"is invalid at byte {position:,}") from error
            return self._fold_unfinished()  # it was cut: what was read before still counts

    def _fold_unfinished(self) -> Any:
        items = list(getattr(self, "stack", []))
        for outer in reversed(getattr(self, "metastack", [])):
            if outer and isinstance(outer[-1], list):
                outer[-1].extend(items)
            elif outer and isinstance(outer[-1], dict):
                complete = len(items) // 2 * 2
                for key, value in zip(items[0:complete:2], items[1:complete:2], strict=True):
                    if isinstance(key, (str, int)):
                        outer[-1][key] = value
            items = outer
        return items[0] if items else None


def load_plain(stream: BinaryIO) -> Any:
    """As fast as pickle.load. RefusedClassError: it has more than plain containers. FloodError: it is an attack."""
    content = stream.read()
    if is_usual(content):
        return _PlainUnpickler(io.BytesIO(content)).load()
    try:
        return cast(Any, _SalvagingUnpickler(io.BytesIO(content))).load()
    except (struct.error, AssertionError) as error:  # what the one in C calls a bad pickle
        raise pickle.UnpicklingError(str(error)) from error


def salvage_plain(content: bytes) -> Any:
    """What a cut pickle still holds: its containers up to the last whole item, or None.

    BrokenPickleError: it was not cut, but changed.
    """
    return cast(Any, _SalvagingUnpickler(io.BytesIO(content))).salvage()


def refused(error: RefusedClassError | FloodError) -> BadFileError:
    return BadFileError(
        f"is not a dump but a malicious or foreign pickle: it {error}; none of it was run", REFUSED_HINT
    )
