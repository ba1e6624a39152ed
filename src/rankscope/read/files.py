"""Finds the files of a capture: folders, archives, compressed files; rank and host from their names."""

from __future__ import annotations

import functools
import io
import os
import re
import shlex
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, TYPE_CHECKING, BinaryIO, cast

from rankscope.errors import BadFileError
from rankscope.read.given_paths import exists, matching, natural_key
from rankscope.read.remote import RemoteFile, RemoteStream, find_remote, is_url, located
from rankscope.read.unpacking import is_packed, unpacked

if TYPE_CHECKING:  # archives are rare, and their modules slow to import
    import tempfile
    import zipfile

HEAD_BYTES = 4096
# A compressed file may unfold to far more than it is; beyond this it is an attack or a mistake, not a trace.
MAX_UNPACKED_BYTES = 16 << 30
MAX_UNPACKED_RATIO = 200
MIN_UNPACKED_LIMIT = 256 << 20

_SUFFIX = re.compile(r"\.(json|jsonl|txt|log|pickle|pkl|pt|bin|trace|dump|sqlite|nsys-rep|gz|zst)$", re.IGNORECASE)
_TAR, _ZIP = (".tar", ".tar.gz", ".tgz"), ".zip"
# What the collector leaves where it has collected; a later run into the same folder, or a restart, has its own below.
RUN_FILE = "run.json"
_OTHER_RUN = re.compile(r"(run|attempt)_\d+")
_LAST_INTEGER = re.compile(r"(\d+)(?!.*\d)")
COMPILE_LOG_NAME = re.compile(r"dedicated_log_torch_trace_(?:rank_(?P<rank>\d{1,9})(?=[_.]))?", re.IGNORECASE)
# Words that the names of traces are made of. What is left of a name without them and the rank is the host.
_PREFIX_WORDS = re.compile(
    r"((torchcomms_)?fr|comm_lib|[nrx]ccl|nccl2|hccl|gloo|ucc|mpi|rankscope|torchcomms|kineto)?_?"
    r"(trace_rank|trace|clean|rank|dump)"
    r"|torch_(et|logs)|stacks|metrics|desync|nsys",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class Source:
    """One file to read: on disk, inside a zip (`member`) or a tar (`offset`), or in an object store (`remote`)."""

    path: Path
    shown: str
    n_bytes: int
    rank: int = -1
    host: str = ""
    file_id: int = -1
    member: str = ""
    offset: int = -1
    remote: RemoteFile | None = None
    workspace: str = ""  # folder or URL for the Parquet parts of a large trace
    scratch: str = ""  # folder of this machine for what else is made of the file
    with_stacks: bool = False  # whether Python functions of profiler traces are wanted
    is_limited: bool = True  # whether reading it may take only what honest files of its size need
    origin: str = ""  # where a downloaded file is from, and what it was: the copy's path is another every time

    def open(self) -> BinaryIO:
        """The content as a buffered stream, with gzip and zstd undone."""
        try:
            raw = self._open_raw()
            limit = max(MIN_UNPACKED_LIMIT, self.n_bytes * MAX_UNPACKED_RATIO)
            return cast(BinaryIO, unpacked(raw, limit) or raw)
        except _open_errors() as error:
            raise BadFileError(f"cannot be opened: {_reason(error)}", "check the file's permissions") from error

    def _open_raw(self) -> io.BufferedReader:
        if self.remote is not None:
            return io.BufferedReader(RemoteStream(self.remote), 1 << 16)
        if self.member:
            data = _zip_archive(str(self.path), os.getpid()).open(self.member)
            return io.BufferedReader(cast(io.RawIOBase, data), 1 << 16)
        if self.offset >= 0:
            return io.BufferedReader(_Slice(self.path, self.offset, self.n_bytes), 1 << 16)
        return cast(io.BufferedReader, open(self.path, "rb", buffering=1 << 16))

    @property
    def is_plain(self) -> bool:
        """True when the file on disk is the content: neither packed nor part of another file."""
        if self.remote is not None or self.member or self.offset >= 0:
            return False
        with open(self.path, "rb") as file:
            return not is_packed(file.read(4))

    @property
    def modified_ns(self) -> int:
        return self.path.stat().st_mtime_ns if self.remote is None else self.remote.modified_ns

    @property
    def identity(self) -> str:
        """Changes whenever the content may have changed, or what is read from it."""
        if self.remote is not None:
            return f"{self.remote.url}\n{self.remote.tag}\n{self.with_stacks}"
        if self.origin:
            return f"{self.origin}\n{self.member}\n{self.offset}\n{self.n_bytes}\n{self.with_stacks}"
        where = f"{self.path.resolve()}\n{self.member}\n{self.offset}"
        return f"{where}\n{self.n_bytes}\n{self.modified_ns}\n{self.with_stacks}"

    def file_columns(self) -> dict[str, object]:
        """What the table of files says about it before anything was read."""
        known = {"path": self.shown, "rank": self.rank, "host": self.host}
        return {"file_id": self.file_id, "n_bytes": self.n_bytes, **known}

    def head(self) -> bytes:
        """The first bytes of the content, for recognizing the format; empty when there are none."""
        try:
            with self.open() as stream:
                return stream.read(HEAD_BYTES)
        except (OSError, EOFError, zlib.error) as error:
            raise BadFileError(f"cannot be read: {_reason(error)}", "copy the file again") from error


class _Slice(io.RawIOBase):
    """A byte range of a file: a member of an uncompressed tar, read without unpacking it."""

    def __init__(self, path: Path, offset: int, length: int) -> None:
        self._file = open(path, "rb", buffering=0)  # noqa: SIM115 - closed with the slice
        self._file.seek(offset)
        self._left = length

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        n_read = self._file.readinto(memoryview(buffer)[: self._left]) or 0
        self._left -= n_read
        return n_read

    def close(self) -> None:
        self._file.close()
        super().close()


@dataclass(frozen=True)
class Unreadable:
    """A path that could not even be looked at, or that belongs to another capture."""

    shown: str
    problem: str
    hint: str
    status: str = "damaged"


def find_sources(
    paths: Sequence[str], progress: Callable[[int, int, str], None] | None = None
) -> tuple[list[Source], list[Unreadable]]:
    """Everything at the given paths, patterns, folders and archives unfolded, in a fixed order."""
    sources: list[Source] = []
    unreadable: list[Unreadable] = []
    for given in paths:
        where = located(given)
        if is_url(where) and not exists(where):
            files, failed = _at_address(where, progress)
            sources += files
            unreadable += failed
            continue
        for path in matching(given, where):
            files, failed = _local_sources(path)
            sources += files
            unreadable += failed
    unique = {(source.path, source.member, source.offset): source for source in sources}
    return list(unique.values()), unreadable


def _local_sources(path: Path) -> tuple[list[Source], list[Unreadable]]:
    sources: list[Source] = []
    files, failed = _walk(path) if path.is_dir() else ([path], [])
    for file in files:
        try:
            sources += _unfold(file)
        except _open_errors() as error:
            failed.append(Unreadable(str(file), f"cannot be opened: {_reason(error)}", "copy the file again"))
    return sources, failed


def _at_address(url: str, progress: Callable[[int, int, str], None] | None) -> tuple[list[Source], list[Unreadable]]:
    """What can be downloaded as if it lay here, under the name of its address."""
    import tempfile

    from rankscope.read.download import download, is_download  # with http and ssl, which few captures need

    if not is_download(url):
        return _remote_sources(url)
    copy = download(url, Path(tempfile.mkdtemp(dir=_scratch_folder().name)), progress)
    sources, failed = _local_sources(copy.path)
    here = str(copy.path)
    return (
        [replace(each, shown=each.shown.replace(here, copy.shown, 1), origin=copy.origin) for each in sources],
        [replace(each, shown=each.shown.replace(here, copy.shown, 1)) for each in failed],
    )


def _remote_sources(url: str) -> tuple[list[Source], list[Unreadable]]:
    """In the order in which a folder of this machine would give them."""
    sources: list[Source] = []
    failed: list[Unreadable] = []
    for file in sorted(find_remote(url), key=lambda file: _remote_key(file.url)):
        if file.url.lower().endswith((*_TAR, _ZIP)):
            failed.append(
                Unreadable(file.shown, "is an archive on remote storage", "unpack it there, or copy it to this machine")
            )
        elif file.n_bytes < 0:
            failed.append(
                Unreadable(file.shown, "has an unknown size: its store does not report it", "copy it to this machine")
            )
        else:
            sources.append(Source(Path(file.url), file.shown, file.n_bytes, remote=file))
    return sources, failed


def _remote_key(url: str) -> tuple[list[str], list[tuple[int, str]]]:
    *folders, name = url.split("/")
    return folders, natural_key(name)


def _walk(folder: Path) -> tuple[list[Path], list[Unreadable]]:
    failed: list[Unreadable] = []

    def note_failure(error: OSError) -> None:
        failed.append(Unreadable(str(error.filename), f"cannot be listed: {_reason(error)}", "check its permissions"))

    files: list[Path] = []
    for root, folders, names in os.walk(folder, onerror=note_failure):
        if RUN_FILE in names:
            others = sorted(filter(_OTHER_RUN.fullmatch, folders), key=natural_key)
            folders[:] = [name for name in folders if name not in others]
            failed += [_other_run(os.path.join(root, name)) for name in others]
        folders[:] = sorted(name for name in folders if not name.startswith(".") and not _is_told(name, names, folders))
        kept = (name for name in names if not name.startswith(".") and not _is_told(name, names, folders))
        for file in (Path(root, name) for name in sorted(kept, key=natural_key)):
            if file.is_file():  # pipes and sockets, which would block, are left out
                files.append(file)
            elif file.is_symlink() and not file.exists():
                failed.append(Unreadable(str(file), "is a broken link", "copy the file itself"))
    return files, failed


def _other_run(path: str) -> Unreadable:
    """Ranks of two runs in one capture would be mistaken for one job."""
    return Unreadable(
        path, "contains another run of the job", f"to read that run: rankscope {shlex.quote(path)}", "other-run"
    )


def _is_told(name: str, names: Sequence[str], folders: Sequence[str]) -> bool:
    """True for what Nsight Systems leaves beside the file that is read: a trace must not count twice."""
    stem, _, suffix = name.rpartition(".")
    if suffix == "parquet":  # a table per file: the table of strings stands for all
        return name != "StringIds.parquet" and "StringIds.parquet" in names
    if suffix == "nsys-rep":
        return f"{stem}.sqlite" in names or f"{stem}_pqtdir" in folders
    return name.endswith("_pqtdir") and f"{name.removesuffix('_pqtdir')}.sqlite" in names


def _unfold(path: Path) -> Iterator[Source]:
    name = path.name.lower()
    if name.endswith(_TAR):
        yield from _tar_members(path, compressed=not name.endswith(".tar"))
    elif name.endswith(_ZIP):
        for info in _zip_archive(str(path), os.getpid()).infolist():
            if info.file_size > MAX_UNPACKED_BYTES:
                raise OSError(f"{info.filename} unpacks to {info.file_size >> 30} GiB")
            if not info.is_dir():
                yield Source(path, f"{path}!{info.filename}", info.file_size, member=info.filename)
    else:
        yield Source(path, str(path), path.stat().st_size)


def _open_errors() -> tuple[type[Exception], ...]:
    """All that opening a file or an archive can fail with (RuntimeError: a zip with a password)."""
    import tarfile
    import zipfile

    return OSError, EOFError, RuntimeError, zlib.error, tarfile.TarError, zipfile.BadZipFile


def _tar_members(path: Path, compressed: bool) -> Iterator[Source]:
    import tarfile

    plain = _unpacked(str(path)) if compressed else path
    with tarfile.open(plain, "r:") as archive:
        for info in archive:
            if info.isfile():
                yield Source(plain, f"{path}!{info.name}", info.size, offset=info.offset_data)


@functools.lru_cache(maxsize=8)
def _zip_archive(path: str, _pid: int) -> zipfile.ZipFile:
    """One per process: a file that was opened before a fork would be shared, and with it the position in it."""
    import zipfile

    return zipfile.ZipFile(path)


@functools.lru_cache(maxsize=8)
def _unpacked(path: str) -> Path:
    """A compressed tar cannot be entered at a member: it is unpacked once, aside, and deleted at exit."""
    import gzip
    import tempfile

    folder = _scratch_folder()
    handle, name = tempfile.mkstemp(suffix=".tar", dir=folder.name)
    with gzip.open(path, "rb") as packed, os.fdopen(handle, "wb") as plain:
        copy_limited(cast(IO[bytes], packed), plain)
    return Path(name)


@functools.lru_cache(maxsize=1)
def _scratch_folder() -> tempfile.TemporaryDirectory[str]:
    import tempfile

    return tempfile.TemporaryDirectory(prefix="rankscope-")


def copy_limited(packed: IO[bytes], plain: IO[bytes], limit: int = MAX_UNPACKED_BYTES) -> None:
    """Copies a decompressing stream, and stops at a size that no genuine capture reaches."""
    n_copied = 0
    while chunk := packed.read(1 << 20):
        n_copied += len(chunk)
        if n_copied > limit:
            raise OSError(f"unpacks to more than {limit >> 30} GiB")
        plain.write(chunk)


def name_source(source: Source, prefix: str | None = None) -> Source | None:
    """Adds rank and host from the file's name; None when a forced prefix does not fit or no rank follows it."""
    name = source.shown.replace("!", "/").rsplit("/", 1)[-1]
    compile_log = COMPILE_LOG_NAME.search(name)
    if compile_log and prefix is None:  # what follows the rank is random, and may hold digits
        return replace(source, rank=int(compile_log["rank"] or -1))
    while shorter := _SUFFIX.sub("", name):
        if shorter == name:
            break
        name = shorter
    before = ""
    if prefix is not None:
        before, separator, name = name.partition(prefix)  # anywhere: names may begin with the host or the job
        if not separator:
            return None
    integer = _LAST_INTEGER.search(name)
    if integer is None:
        return None if prefix is not None else source
    rest = before + name[: integer.start()] + name[integer.end() :]
    host = _PREFIX_WORDS.sub("", rest, count=1).strip("_-. ")
    return replace(source, rank=int(integer.group()[:9]), host=host)


def add_folder_hosts(sources: Sequence[Source]) -> list[Source]:
    """Where files lie in one folder per host, the folder names the host (unless the names do)."""
    folders = {_folder(source) for source in sources}
    if len(folders) < 2 or any(source.host for source in sources):
        return list(sources)
    try:
        common = os.path.commonpath(folders)
    except ValueError:  # absolute paths and others
        return list(sources)
    return [replace(source, host=os.path.relpath(_folder(source), common or ".").strip("./")) for source in sources]


def _folder(source: Source) -> str:
    """An archive is a folder as well: what lies at its top lies in it."""
    return source.shown.replace("!", "/").rpartition("/")[0] or "."


def _reason(error: BaseException) -> str:
    if isinstance(error, OSError) and error.strerror:
        return error.strerror.lower()
    return str(error) or type(error).__name__
