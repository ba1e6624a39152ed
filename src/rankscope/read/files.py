"""Finds the files of a capture: folders, archives, compressed files; rank and host from their names."""

from __future__ import annotations

import io
import os
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import BinaryIO, cast

from rankscope.errors import BadFileError
from rankscope.read.archives import (
    TAR,
    ZIP,
    BadMember,
    members,
    open_errors,
    scratch_folder,
    stamp,
    unpacked_limit,
    zip_archive,
)
from rankscope.read.file_names import rank_and_host
from rankscope.read.given_paths import exists, matching, natural_key
from rankscope.read.remote import RemoteFile, RemoteStream, find_remote, is_url, located
from rankscope.read.unpacking import is_packed, unpacked
from rankscope.read.walking import Unreadable, os_reason, walk

HEAD_BYTES = 4096


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
            return cast(BinaryIO, unpacked(raw, unpacked_limit(self.n_bytes)) or raw)
        except open_errors() as error:
            raise BadFileError(f"cannot be opened: {os_reason(error)}", "check the file's permissions") from error

    def _open_raw(self) -> io.BufferedReader:
        if self.remote is not None:
            return io.BufferedReader(RemoteStream(self.remote), 1 << 16)
        if self.member:
            data = zip_archive(self.path).open(self.member)
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
        where = f"{self.path.resolve()}\n{self.member}\n{self.offset}\n{self.n_bytes}"
        return f"{where}\n{stamp(self.path)}\n{self.with_stacks}"

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
            raise BadFileError(f"cannot be read: {os_reason(error)}", "copy the file again") from error


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
    files, failed = walk(path) if path.is_dir() else ([path], [])
    for file in files:
        try:
            for unfolded in _unfold(file):
                if isinstance(unfolded, Unreadable):
                    failed.append(unfolded)
                else:
                    sources.append(unfolded)
        except OSError as error:
            failed.append(Unreadable(str(file), f"cannot be opened: {os_reason(error)}", "copy the file again"))
    return sources, failed


def _at_address(url: str, progress: Callable[[int, int, str], None] | None) -> tuple[list[Source], list[Unreadable]]:
    """What can be downloaded as if it lay here, under the name of its address."""
    import tempfile

    from rankscope.read.download import download, is_download  # with http and ssl, which few captures need

    if not is_download(url):
        return _remote_sources(url)
    copy = download(url, Path(tempfile.mkdtemp(dir=scratch_folder().name)), progress)
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
        if file.url.lower().endswith((*TAR, ZIP)):
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


def _unfold(path: Path) -> Iterator[Source | Unreadable]:
    if not path.name.lower().endswith((*TAR, ZIP)):
        yield Source(path, str(path), path.stat().st_size)
        return
    for member in members(path):
        if isinstance(member, BadMember):
            shown = f"{path}!{member.name}" if member.name else str(path)
            hint = "copy the archive again" if member.status == "damaged" else ""
            yield Unreadable(shown, member.problem, hint, member.status)
        elif member.offset < 0:
            yield Source(path, f"{path}!{member.name}", member.n_bytes, member=member.name)
        else:
            yield Source(member.path, f"{path}!{member.name}", member.n_bytes, offset=member.offset)


def name_source(source: Source, prefix: str | None = None) -> Source | None:
    """Adds rank and host from the file's name; None when a forced prefix does not fit or no rank follows it."""
    named = rank_and_host(source.shown, prefix)
    return None if named is None else replace(source, rank=named[0], host=named[1])


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
