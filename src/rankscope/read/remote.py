"""Files in object stores and elsewhere behind a URL, read with fsspec (the extra `remote`).

A file is read in ranges, one request each: nothing has to stay open, and a request that failed is simply made again.
"""

from __future__ import annotations

import io
import re
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any

from rankscope.errors import BadFileError, InputError
from rankscope.model.numbers import whole

_LOCAL = ("file", "local")
# The first request is small, as most files are only looked at to see what they are; then each is twice the one before.
_FIRST_BYTES = 128 << 10
_MOST_BYTES = 8 << 20
_PAUSES_S = (0.5, 2.0)  # before a failed request is made again
_HOPELESS = (FileNotFoundError, PermissionError, IsADirectoryError)
_MODIFIED = ("LastModified", "last_modified", "mtime", "modified", "updated", "created")
_READ_TIMES = ("atime", "accessed", "time")  # change without a change of the content
_PASSWORD = re.compile(r"(://[^/@:\s]*):[^/\s]*@")
_TOKEN = re.compile(r"(https?://)[^/:\s]+@")
_QUERY = re.compile(r"(https?://[^\s?'\"]{0,2000})\?[^\s'\"]*")


@dataclass(frozen=True)
class RemoteFile:
    url: str  # may hold credentials: never shown
    n_bytes: int  # -1 where the store does not tell
    tag: str  # changes with the content
    modified_ns: int  # 0 where the store does not tell

    @property
    def shown(self) -> str:
        return without_secrets(self.url)


def located(path: str) -> str:
    """file:///a/b is a path of this machine like any other; other URLs stay what they are."""
    protocol, separator, rest = path.partition("://")
    return rest if separator and protocol in _LOCAL else path


def is_url(path: str) -> bool:
    return "://" in path


def without_secrets(text: str) -> str:
    """A URL, or a message with URLs in it, as it may be shown: no passwords, tokens or signatures."""
    return _QUERY.sub(r"\1?***", _TOKEN.sub(r"\1***@", _PASSWORD.sub(r"\1:***@", text)))


def reason(error: BaseException) -> str:
    """Why a store refused, in one line."""
    text = str(error).strip().partition("\n")[0] or type(error).__name__
    if isinstance(error, OSError) and error.strerror:
        text = error.strerror.lower()
    elif isinstance(error, FileNotFoundError):  # whose text is only the path
        text = "no such file or folder"
    return without_secrets(text)


def open_store(url: str) -> tuple[Any, str]:
    """The file system that a URL names, and the path in it. Credentials are found the way that store finds them."""
    try:
        import fsspec
    except ImportError as error:
        raise InputError(
            f"{without_secrets(url)} needs fsspec",
            "pip install 'rankscope[remote]', or copy the traces to this machine",
        ) from error
    protocol = url.partition("://")[0]
    try:
        store, path = fsspec.core.url_to_fs(url)
    except ImportError as error:
        raise InputError(f"{protocol}:// needs another package: {error}", "install it next to rankscope") from error
    except ValueError as error:
        raise InputError(
            f"{without_secrets(url)}: {reason(error)}", "rankscope help reading lists what a path can be"
        ) from error
    return store, path


def find_remote(url: str) -> list[RemoteFile]:
    """The file, or all files below the folder, or all that a name with * fits."""
    shown = without_secrets(url)
    if "::" in url:
        raise InputError(f"{shown}: chained URLs are not read", "copy or unpack it first, or give one plain URL")
    try:
        store, root = open_store(url)
        infos = list(_listed(store, root))
    except InputError:
        raise
    except FileNotFoundError as error:
        raise InputError(f"{shown}: no such file or folder", "pass the folder that contains the traces") from error
    except Exception as error:  # each store has exceptions of its own
        raise InputError(f"{shown}: cannot be listed: {reason(error)}", "check the URL and the credentials") from error
    return [_described(store, info, url) for info in infos]


def _listed(store: Any, root: str) -> Iterator[Mapping[str, Any]]:
    for start in store.glob(root) if "*" in root else [root]:
        about = store.info(start)
        if about["type"] != "directory":
            yield about
            continue
        for name, info in sorted(store.find(start, detail=True).items()):
            below = name.removeprefix(about["name"])
            if not name.endswith("/") and "/." not in f"/{below}".replace("//", "/"):
                yield info if info.get("size") is not None else store.info(name)


def _described(store: Any, info: Mapping[str, Any], url: str) -> RemoteFile:
    size = info.get("size")
    tag = sorted((key, str(value)) for key, value in info.items() if key not in _READ_TIMES)
    modified = next((info[key] for key in _MODIFIED if info.get(key) is not None), None)
    n_bytes = whole(size) if size is not None else -1
    return RemoteFile(_url_of(store, info["name"], url), n_bytes, repr(tag), _nanoseconds(modified))


def _url_of(store: Any, name: str, url: str) -> str:
    """Stores list paths without the account, the host and the password."""
    root = store._strip_protocol(url)
    if name.strip("/") == root.strip("/"):
        return url
    below = name.removeprefix(root)
    return f"{url.rstrip('/')}/{below.strip('/')}" if below != name else str(store.unstrip_protocol(name))


def _nanoseconds(modified: object) -> int:
    """Stores give times as dates, as text, or as seconds since 1970."""
    if isinstance(modified, str):
        try:
            modified = datetime.fromisoformat(modified.replace("Z", "+00:00"))
        except ValueError:
            return 0
    if isinstance(modified, datetime):
        known = modified if modified.tzinfo is not None else modified.replace(tzinfo=timezone.utc)
        return whole(known.timestamp() * 1e9)
    return whole(modified * 1e9) if isinstance(modified, (int, float)) else 0


class RemoteStream(io.RawIOBase):
    """The content of a file in a store, from its beginning to its end."""

    def __init__(self, file: RemoteFile) -> None:
        self._store, self._path = open_store(file.url)
        self._n_left = file.n_bytes
        self._position = 0
        self._n_ahead = _FIRST_BYTES
        self._block = memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        if not self._block and self._n_left > 0:
            self._block = memoryview(self._next_range(min(self._n_ahead, self._n_left)))
            self._position += len(self._block)
            # Nothing comes although something should: the file has become shorter since it was listed.
            self._n_left = self._n_left - len(self._block) if self._block else 0
            self._n_ahead = min(2 * self._n_ahead, _MOST_BYTES)
        n_given = min(len(buffer), len(self._block))
        buffer[:n_given] = self._block[:n_given]
        self._block = self._block[n_given:]
        return n_given

    def _next_range(self, n_wanted: int) -> bytes:
        for pause in (*_PAUSES_S, None):
            try:
                data: bytes = self._store.cat_file(self._path, start=self._position, end=self._position + n_wanted)
                break
            except Exception as error:  # each store has exceptions of its own
                if pause is None or isinstance(error, _HOPELESS):
                    # Not an OSError: what a broken connection left must not pass for a file that was cut short.
                    raise BadFileError(
                        f"cannot be read from its store after {self._position:,} bytes: {reason(error)}",
                        "run it again, or copy the file to this machine",
                    ) from error
                time.sleep(pause)
        if len(data) > n_wanted:
            raise BadFileError("is on a server that does not support range requests", "copy the file to this machine")
        return data
