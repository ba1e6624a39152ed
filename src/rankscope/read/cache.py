"""Where the Parquet parts of large traces are kept, so that a second run reads nothing again.

The place is a folder or a URL. Each trace has an entry in it, which is filled aside and appears whole or not at all:
whoever is ended in the middle leaves nothing that could be taken for a result.
"""

from __future__ import annotations

import functools
import hashlib
import os
import shutil
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from rankscope.errors import OutputError, RankscopeError
from rankscope.read.remote import is_url, located, open_store, reason, without_secrets

LAYOUT = 1  # to be raised when the columns of a stored table or the way they are computed change
_DONE = "profile.json"
_HINT = "choose another place with --cache, or read with --no-cache"


class Entry(NamedTuple):
    note: bytes  # what was noted when the entry was filled
    folder: str  # of its parts


@functools.lru_cache(maxsize=1)
def _scratch() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="rankscope-parts-")


def root_of(chosen: str | None) -> str:
    """The place of all entries, in the form that is right in every process; for this run alone when none is chosen."""
    if chosen is None:
        return _scratch().name
    place = located(os.fspath(chosen))
    if not is_url(place):
        return os.path.abspath(place)
    try:
        store, path = open_store(place)
        own_form = str(store.unstrip_protocol(path))  # the database names files so
        open_store(own_form)
    except RankscopeError:
        raise
    except Exception as error:  # each store has exceptions of its own
        raise OutputError(f"cannot keep parts in {without_secrets(place)}: {reason(error)}", _HINT) from error
    return own_form


def entry_name(identity: str) -> str:
    """The folder of one file: whoever changes the file, its size or its time, or the layout, gets another one."""
    return hashlib.sha256(f"{LAYOUT}\n{identity}".encode("utf-8", "surrogateescape")).hexdigest()[:32]


def stored(workspace: str) -> Entry | None:
    """The entry; None when it was not filled, or not to the end."""
    if is_url(workspace):
        return _stored_remotely(workspace)
    try:
        return Entry((Path(workspace) / _DONE).read_bytes(), workspace)
    except OSError:
        return None


def kept(workspace: str) -> Entry:
    """The entry that has just been filled."""
    entry = stored(workspace)
    if entry is None:
        raise OutputError(f"{without_secrets(workspace)} was written, but is not there", _HINT)
    return entry


@contextmanager
def filling(workspace: str) -> Iterator[Path]:
    """A folder to write into, which takes its place only when all went well: others never see half of it."""
    if is_url(workspace):
        with tempfile.TemporaryDirectory(prefix="rankscope-parts-") as aside:
            yield Path(aside)
            _upload(Path(aside), workspace)
        return
    folder = Path(workspace)
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        aside = tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent)
    except OSError as error:
        raise OutputError(f"cannot keep parts in {folder.parent}: {error.strerror}", _HINT) from error
    try:
        yield Path(aside)
        if stored(workspace) is None:
            shutil.rmtree(folder, ignore_errors=True)
            os.replace(aside, folder)
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def note_done(folder: Path, note: bytes) -> None:
    """The last file to be written: with it the folder is whole."""
    (folder / _DONE).write_bytes(note)


def _upload(folder: Path, workspace: str) -> None:
    """The parts go to a place of their own, so that two who fill one entry never mix theirs; the note tells which."""
    place = uuid.uuid4().hex
    try:
        store, path = open_store(workspace)
        for file in sorted(file for file in folder.rglob("*") if file.is_file() and file.name != _DONE):
            there = f"{path}/{place}/{file.relative_to(folder).as_posix()}"
            store.makedirs(there.rpartition("/")[0], exist_ok=True)
            store.put_file(str(file), there)
        note = (folder / _DONE).read_bytes()
        store.pipe_file(f"{path}/{_DONE}", f"{place} {len(note)}\n".encode() + note)
    except Exception as error:  # each store has exceptions of its own
        raise OutputError(f"cannot keep parts in {without_secrets(workspace)}: {reason(error)}", _HINT) from error


def _stored_remotely(workspace: str) -> Entry | None:
    try:
        store, path = open_store(workspace)
        head, _, note = store.cat_file(f"{path}/{_DONE}").partition(b"\n")
    except FileNotFoundError:
        return None
    except Exception as error:  # each store has exceptions of its own
        raise OutputError(f"cannot look into {without_secrets(workspace)}: {reason(error)}", _HINT) from error
    place, _, n_bytes = head.decode("utf-8", "replace").partition(" ")
    # Not every store shows a file only when it was written to the end.
    return Entry(note, f"{workspace}/{place}") if n_bytes == str(len(note)) else None
