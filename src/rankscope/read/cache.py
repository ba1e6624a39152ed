"""Where the Parquet parts of large traces are kept, so that a second run does not read the traces again.

The place is a folder or a URL. Each trace has an entry in it, which is filled aside and appears complete or not at all:
a process that is killed halfway leaves nothing that could be mistaken for a result.
"""

from __future__ import annotations

import atexit
import errno
import functools
import hashlib
import os
import shutil
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

from rankscope.errors import OutputError, RankscopeError
from rankscope.read.remote import is_url, located, open_store, reason, without_secrets

LAYOUT = 3  # to be raised when the columns of a stored table or the way they are computed change
_DONE = "profile.json"
_HINT = "choose another folder with --cache, or use --no-cache"


class Entry(NamedTuple):
    note: bytes  # what was noted when the entry was filled
    folder: str  # of its parts


@functools.lru_cache(maxsize=1)
def _scratch() -> tempfile.TemporaryDirectory[str]:
    folder = tempfile.TemporaryDirectory(prefix="rankscope-parts-")
    atexit.register(folder.cleanup)
    return folder


def root_of(chosen: str | None) -> str:
    """The place of all entries, in the form that is right in every process; for this run alone when none is chosen."""
    if chosen is None:
        return _scratch().name
    root = located(os.fspath(chosen))
    if not is_url(root):
        return os.path.abspath(root)
    try:
        store, path = open_store(root)
        own_form = str(store.unstrip_protocol(path))  # the database names files so
        open_store(own_form)
    except RankscopeError:
        raise
    except Exception as error:  # each store has exceptions of its own
        raise OutputError(f"cannot write the cache in {without_secrets(root)}: {reason(error)}", _HINT) from error
    return own_form


def entry_name(identity: str) -> str:
    """The folder of one file: a change of the file, its size, its time or the layout gives another one."""
    return hashlib.sha256(f"{LAYOUT}\n{identity}".encode("utf-8", "surrogateescape")).hexdigest()[:32]


def stored(workspace: str) -> Entry | None:
    """The entry; None when it was not filled completely."""
    if is_url(workspace):
        return _stored_remotely(workspace)
    try:
        return Entry((Path(workspace) / _DONE).read_bytes(), workspace)
    except OSError:
        return None


def is_stored(workspace: str) -> bool:
    """A quick look, for planning; a store elsewhere is not asked."""
    return not is_url(workspace) and os.path.exists(os.path.join(workspace, _DONE))


def kept(workspace: str) -> Entry:
    """The entry that has just been filled."""
    entry = stored(workspace)
    if entry is None:
        raise OutputError(f"{without_secrets(workspace)} was written, but does not exist", _HINT)
    return entry


def forget(workspace: str) -> None:
    """Removes an entry of this machine."""
    shutil.rmtree(workspace, ignore_errors=True)


@contextmanager
def filling(workspace: str) -> Iterator[Path]:
    """A folder to write into, which takes its place only when all went well: others never see half of it."""
    if is_url(workspace):
        with tempfile.TemporaryDirectory(prefix="rankscope-parts-") as scratch, _full_disk_told(scratch):
            yield Path(scratch)
            _upload(Path(scratch), workspace)
        return
    folder = Path(workspace)
    aside = folder.with_name(f".{folder.name}-{uuid.uuid4().hex}")
    try:
        aside.mkdir(parents=True)  # readable for whoever shares the cache, as a temporary folder would not be
    except OSError as error:
        raise OutputError(f"cannot write the cache in {folder.parent}: {error.strerror}", _HINT) from error
    try:
        with _full_disk_told(str(folder.parent)):
            yield aside
        _move(aside, folder)
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def _move(aside: Path, folder: Path) -> None:
    """The second writer leaves the entry of the first as it is: another process may be reading it."""
    try:
        aside.replace(folder)
    except OSError:
        if stored(str(folder)) is None:
            shutil.rmtree(folder, ignore_errors=True)
            aside.replace(folder)


@contextmanager
def _full_disk_told(folder: str) -> Iterator[None]:
    try:
        yield
    except Exception as error:  # the database has exceptions of its own
        if any(os.strerror(number).lower() in str(error).lower() for number in (errno.ENOSPC, errno.EDQUOT)):
            raise OutputError(f"cannot write the cache in {folder}: the disk is full", _HINT) from error
        raise


def note_done(folder: Path, note: bytes) -> None:
    """The last file to be written: with it the folder is whole."""
    (folder / _DONE).write_bytes(note)


def _upload(folder: Path, workspace: str) -> None:
    """The parts go to a place of their own, so that two writers of one entry never mix theirs; the note says which."""
    subfolder = uuid.uuid4().hex
    try:
        store, path = open_store(workspace)
        for file in sorted(file for file in folder.rglob("*") if file.is_file() and file.name != _DONE):
            _put(store, file, path, f"{subfolder}/{file.relative_to(folder).as_posix()}")
        note = (folder / _DONE).read_bytes()
        store.pipe_file(f"{path}/{_DONE}", f"{subfolder} {len(note)}\n".encode() + note)
    except Exception as error:  # each store has exceptions of its own
        raise OutputError(f"cannot write the cache in {without_secrets(workspace)}: {reason(error)}", _HINT) from error


def _put(store: Any, file: Path, entry: str, name: str) -> None:
    """Object stores have no folders. Others get them, but never one above the entry: that could be a new bucket."""
    try:
        store.put_file(str(file), f"{entry}/{name}")
    except FileNotFoundError:
        *folders, _ = name.split("/")
        for depth in range(len(folders) + 1):
            with suppress(FileExistsError):
                store.mkdir("/".join((entry, *folders[:depth])), create_parents=False)
        store.put_file(str(file), f"{entry}/{name}")


def _stored_remotely(workspace: str) -> Entry | None:
    try:
        store, path = open_store(workspace)
        head, _, note = store.cat_file(f"{path}/{_DONE}").partition(b"\n")
    except FileNotFoundError:
        return None
    except Exception as error:  # each store has exceptions of its own
        raise OutputError(f"cannot read the cache in {without_secrets(workspace)}: {reason(error)}", _HINT) from error
    subfolder, _, n_bytes = head.decode("utf-8", "replace").partition(" ")
    # Not every store shows a file only when it was written to the end.
    return Entry(note, f"{workspace}/{subfolder}") if n_bytes == str(len(note)) else None
