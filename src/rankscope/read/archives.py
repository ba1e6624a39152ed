"""Looks into archives: which members a zip or a tar has, and whether all of it is there."""

from __future__ import annotations

import functools
import io
import os
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, TYPE_CHECKING, NamedTuple, cast

from rankscope.model.schema_recorder import MAY_HOLD_MORE
from rankscope.read.unpacking import unpacked
from rankscope.read.walking import os_reason

if TYPE_CHECKING:  # archives are rare, and their modules slow to import
    import tempfile
    import zipfile

# A compressed file may unfold to far more than it is; beyond this it is an attack or a mistake, not a trace.
MAX_UNPACKED_BYTES = 16 << 30
MAX_UNPACKED_RATIO = 200
MIN_UNPACKED_LIMIT = 256 << 20
ZIP = ".zip"
TAR = (".tar", ".tar.gz", ".tgz")
_MAX_NAME = 1024  # characters of a member's name: a quarter of the longest path of most systems
_BLOCK = 512  # bytes: a tar is made of them, and ends with two of zeros

Stamp = tuple[int, int, int]


class Member(NamedTuple):
    """A file in an archive: where it is, and how many bytes of the disk it takes at most when unpacked."""

    path: Path  # of the archive, or of what it was unpacked to
    name: str
    n_bytes: int
    offset: int = -1  # in a tar


class BadMember(NamedTuple):
    """What an archive has, or should have, and is not read; without a name it is the archive itself."""

    name: str
    problem: str
    status: str = "damaged"


def unpacked_limit(n_bytes: int) -> int:
    return min(max(MIN_UNPACKED_LIMIT, n_bytes * MAX_UNPACKED_RATIO), MAX_UNPACKED_BYTES)


def open_errors() -> tuple[type[Exception], ...]:
    """All that opening a file or an archive can fail with.

    RuntimeError: a zip with a password, or packed by an unknown method; ValueError: a path with a zero byte, or a
    number in a header that is none.
    """
    import tarfile
    import zipfile

    return (OSError, EOFError, RuntimeError, ValueError, zlib.error, tarfile.TarError, zipfile.BadZipFile)


def members(path: Path) -> Iterator[Member | BadMember]:
    """All files of an archive. Where its end is lost or broken, that follows the members before."""
    entries = _zip_members(path) if path.name.lower().endswith(ZIP) else _tar_members(path)
    is_empty = True
    try:
        for member in entries:
            is_empty = False
            if len(member.name) > _MAX_NAME:
                yield BadMember(f"{member.name[:80]}...", f"has a name of {len(member.name):,} characters")
            else:
                yield member
    except open_errors() as error:
        yield BadMember("", f"cannot be opened ({os_reason(error)}): {MAY_HOLD_MORE}")
        return
    if is_empty:
        yield BadMember("", "is an empty archive", "ignored")


def stamp(path: str | Path) -> Stamp:
    """Changes when a file is replaced by another of the same name: caches need it beside the path."""
    status = os.stat(path)
    return status.st_size, status.st_mtime_ns, status.st_ino


# --- zip --------------------------------------------------------------------------------------------------------------


def zip_archive(path: Path) -> zipfile.ZipFile:
    return _zip_archive(str(path), stamp(path), os.getpid())


@functools.lru_cache(maxsize=8)
def _zip_archive(path: str, _stamp: Stamp, _pid: int) -> zipfile.ZipFile:
    """One per process: a file that was opened before a fork would be shared, and with it the position in it."""
    import zipfile

    return zipfile.ZipFile(path)


def _zip_members(path: Path) -> Iterator[Member | BadMember]:
    left = unpacked_limit(path.stat().st_size)  # members may share their packed bytes
    for info in zip_archive(path).infolist():
        if info.is_dir() and not info.file_size:
            continue
        left -= info.file_size
        if info.file_size > unpacked_limit(info.compress_size):
            yield BadMember(info.filename, f"unpacks to {info.file_size:,} bytes, far more than a trace would")
        elif left < 0:
            yield BadMember("", f"unpacks to far more than a capture would: {MAY_HOLD_MORE}")
            return
        else:
            yield Member(path, info.filename, info.file_size)


# --- tar --------------------------------------------------------------------------------------------------------------


def _tar_members(path: Path) -> Iterator[Member | BadMember]:
    import tarfile

    plain, problem = path, ""
    linked: dict[str, tarfile.TarInfo] = {}
    if not path.name.lower().endswith(".tar"):
        plain, problem = _unpacked(str(path), stamp(path))
    n_bytes, last = plain.stat().st_size, ""
    with tarfile.open(plain, "r:") as archive:
        try:
            for info in archive:
                last = info.name
                if info.isdir():
                    continue
                if info.isfile():
                    linked[info.name] = info
                content = linked.get(info.linkname if info.islnk() else info.name)
                if content is None or not (info.isfile() or info.islnk()):
                    yield BadMember(info.name, "is a link" if info.linkname else "is no file", "ignored")
                elif content.size < 0 or content.offset_data + content.size > n_bytes:
                    yield BadMember(info.name, "is cut: the archive ends before it does")
                else:  # of a file with two names, tar keeps the content under the first
                    yield Member(plain, info.name, content.size, content.offset_data)
            problem = problem or _end_problem(plain, archive.offset)
        except tarfile.TarError:
            problem = problem or "is cut or damaged"
    if problem:
        behind = f" behind {last[:80]}" if last else ""
        yield BadMember("", f"{problem}{behind}: {MAY_HOLD_MORE}")


def _end_problem(path: Path, offset: int) -> str:
    """tarfile stops at whatever is no header, and says nothing. A whole archive ends with blocks of zeros alone."""
    with open(path, "rb") as file:
        file.seek(offset)
        header = file.read(_BLOCK)
        if len(header) < _BLOCK:
            return "is cut"
        if header.strip(b"\0"):
            return "is damaged"
        while chunk := file.read(1 << 20):
            if chunk.strip(b"\0"):
                return "is damaged"
    return ""


@functools.lru_cache(maxsize=8)
def _unpacked(path: str, _stamp: Stamp) -> tuple[Path, str]:
    """A compressed tar cannot be entered at a member: it is unpacked once, aside, and deleted at exit.

    Of a cut one the part before the cut is there, and what is wrong with it.
    """
    import tempfile

    problem = ""
    handle, name = tempfile.mkstemp(suffix=".tar", dir=scratch_folder().name)
    with open(path, "rb") as packed, os.fdopen(handle, "wb") as plain:
        stream = unpacked(packed, unpacked_limit(_stamp[0])) or packed
        try:
            copy_limited(cast(IO[bytes], stream), plain)
        except EOFError:
            problem = "is cut"
        except OSError as error:
            if error.errno is not None:  # the disk's, not the archive's
                raise
            problem = f"is damaged: {error}"
    return Path(name), problem


@functools.lru_cache(maxsize=1)
def scratch_folder() -> tempfile.TemporaryDirectory[str]:
    import tempfile

    return tempfile.TemporaryDirectory(prefix="rankscope-")


def copy_limited(packed: IO[bytes], plain: IO[bytes], limit: int = MAX_UNPACKED_BYTES) -> None:
    """Copies a decompressing stream, and stops at a size that no genuine capture reaches."""
    n_copied = 0
    while chunk := cast(io.BufferedReader, packed).read1(1 << 20):  # of a cut stream, all that comes before the cut
        n_copied += len(chunk)
        if n_copied > limit:
            raise OSError(f"unpacks to more than {limit >> 30} GiB")
        plain.write(chunk)
