"""Reads one file within a budget. Whatever the file makes its reader do, the result is tables or a BadFileError."""

from __future__ import annotations

import signal
import threading
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from rankscope.errors import BadFileError, RankscopeError
from rankscope.model.border import PLEASE_REPORT, bug_text, bugs_are_raised
from rankscope.model.numbers import MAX_RANKS
from rankscope.model.tables import Part, Table, Text
from rankscope.read import Reader
from rankscope.read.files import Source

# What no honest file needs: a small one gets the first number, a large one as much more per byte. Readers take a few
# seconds per 100 MB, and packed files unfold to twenty times their size.
CPU_S, CPU_S_PER_MB = 60.0, 10.0
ROWS, ROWS_PER_BYTE = 1 << 20, 20
NAMES, NAMES_PER_BYTE = 1 << 19, 10
_RANK_COLUMNS = frozenset(("rank", "world_size", "local_rank", "group_rank", "member", "peer"))
_HINT = "it is corrupt or malicious: copy it again, or remove it from the folder"


class OverBudget(BaseException):
    """Raised by the clock. No reader handles it: one that catches every Exception must not continue."""


def sniffs(reader: Reader, head: bytes, source: Source) -> bool:
    """Whether the reader takes the file. BadFileError: it failed on the first bytes or on the name."""
    try:
        return reader.sniff(head, source.shown)
    except RankscopeError:
        raise
    except Exception as error:
        raise _bug(reader, error) from error


def read_bounded(reader: Reader, source: Source, *, is_limited: bool = True) -> list[Table | Part]:
    """The tables of a file. BadFileError: nothing of it is usable, for whatever reason."""
    seconds = CPU_S + CPU_S_PER_MB * source.n_bytes / (1 << 20)
    try:
        with cpu_budget(seconds if is_limited else 0):
            return list(_counted(reader, source) if is_limited else reader.read(source))
    except RankscopeError:  # one that is not about the file, such as a cache that cannot be written, ends the command
        raise
    except OverBudget as error:
        raise BadFileError(f"takes longer to read than any file of its size ({seconds:.0f} s)", _HINT) from error
    except (MemoryError, RecursionError) as error:
        raise BadFileError("needs an absurd amount of memory or nesting", _HINT) from error
    except OverflowError as error:
        raise BadFileError("has a number that is larger than any trace's", _HINT) from error
    except UnicodeError as error:
        raise BadFileError("has text that is not UTF-8", _HINT) from error
    except (OSError, EOFError, zlib.error) as error:
        raise BadFileError(f"cannot be read: {str(error) or type(error).__name__}", "copy the file again") from error
    except Exception as error:
        raise _bug(reader, error) from error


def _bug(reader: Reader, error: Exception) -> BadFileError:
    if bugs_are_raised():
        raise error
    return BadFileError(f"could not be read: the reader {reader.NAME} failed with {bug_text(error)}", PLEASE_REPORT)


def _counted(reader: Reader, source: Source) -> Iterator[Table | Part]:
    n_rows = n_names = 0
    for result in reader.read(source):
        n_rows += result.n_rows
        if isinstance(result, Table):
            _check_ranks(result)
            _mend_text(result)
            n_names += sum(len(column.values) for column in result.columns.values() if isinstance(column, Text))
        if n_rows > ROWS + ROWS_PER_BYTE * source.n_bytes:
            raise BadFileError(f"has over {n_rows - 1:,} rows, more than any file of its size", _HINT)
        if n_names > NAMES + NAMES_PER_BYTE * source.n_bytes:
            raise BadFileError(f"has over {n_names - 1:,} different names, more than any file of its size", _HINT)
        yield result


def _check_ranks(table: Table) -> None:
    """Ranks are ids, but what is shown by rank is as long as the job is large."""
    for name in _RANK_COLUMNS & table.columns.keys():
        largest = table.array(name).max(initial=0)
        if largest > MAX_RANKS:
            words = name.replace("_", " ")
            raise BadFileError(f"says {words} {largest}: no job has more than {MAX_RANKS:,} ranks", _HINT)


def _mend_text(table: Table) -> None:
    """Half a character, as pickles and JSON can hold, is text that no terminal, page or database takes."""
    for column in table.columns.values():
        if isinstance(column, Text):
            try:
                "".join(column.values).encode()
            except UnicodeEncodeError:
                column.values[:] = [value.encode("utf-8", "replace").decode() for value in column.values]


@contextmanager
def cpu_budget(seconds: float) -> Iterator[None]:
    """Ends what takes more CPU time than that. Signals reach the main thread alone: in others there is no limit."""
    is_main = threading.current_thread() is threading.main_thread()
    if not seconds or not hasattr(signal, "setitimer") or not is_main or signal.getsignal(signal.SIGPROF):
        yield  # SIGPROF is taken: the caller profiles this process
        return

    def end(_number: int, _frame: FrameType | None) -> None:
        raise OverBudget

    signal.signal(signal.SIGPROF, end)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, signal.SIG_DFL)
