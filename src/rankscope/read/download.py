"""A file or an archive at an http(s) address, copied into a temporary folder before it is read like any other.

The other side is not trusted: there is a limit to the bytes and to the time, and a redirect may only lead to the same
host, never to a file of this machine or from https to http.
"""

from __future__ import annotations

import base64
import hashlib
import http.client
import os
import re
import shutil
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import IO, NamedTuple, NoReturn
from urllib.parse import unquote, urlsplit, urlunsplit

from rankscope.errors import InputError
from rankscope.model.numbers import MAX_LONG, integer
from rankscope.read.remote import without_secrets

MAX_BYTES = 16 << 30
SILENCE_S = 30.0  # without a byte
TOTAL_S = 3600.0
_CHUNK = 1 << 20
_SCHEMES = ("http", "https")
_UNSAFE = re.compile(r"[^A-Za-z0-9._-]")


class Downloaded(NamedTuple):
    path: Path
    shown: str
    origin: str  # the address and what was found there: changes with the content


def is_download(url: str) -> bool:
    """True for the address of one file. A folder ends with a slash, and lists its files only to fsspec."""
    parts = urlsplit(url)
    return parts.scheme.lower() in _SCHEMES and not parts.path.endswith("/") and bool(parts.path) and "*" not in url


def download(url: str, folder: Path, progress: Callable[[int, int, str], None] | None = None) -> Downloaded:
    """Copies the file into the folder under its own name, from which its rank may be read."""
    shown = without_secrets(url)
    path = folder / _file_name(url)
    try:
        with _open(url) as answer, open(path, "xb") as file:
            n_bytes = _checked_size(answer, folder, shown)
            tag = _copy(answer, file, n_bytes, lambda done: _report(progress, done, n_bytes, path.name))
            modified = answer.headers.get("Last-Modified")
    except _RedirectError as error:
        _fail(shown, f"redirects to {without_secrets(error.target)}", "give that address, if you trust it", error)
    except urllib.error.HTTPError as error:
        error.close()
        _fail(shown, f"the server answers {error.code} {error.reason}", "check the address", error)
    except (OSError, http.client.HTTPException, ValueError) as error:
        reason = getattr(error, "reason", None) or error
        text = getattr(reason, "strerror", None) or str(reason) or type(error).__name__
        _fail(shown, without_secrets(str(text)).lower(), "check the address and the network", error)
    _set_time(path, modified)
    return Downloaded(path, shown, f"{shown}\n{tag}")


def _fail(shown: str, problem: str, hint: str, error: Exception) -> NoReturn:
    copy = f"or download it yourself: curl -LO '{shown}', then rankscope FILE"
    raise InputError(f"cannot download {shown}: {problem}", f"{hint}; {copy}") from error


def _file_name(url: str) -> str:
    name = _UNSAFE.sub("_", unquote(urlsplit(url).path).rsplit("/", 1)[-1])
    return name.lstrip(".")[-200:] or "download"


class _RedirectError(Exception):
    def __init__(self, target: str) -> None:
        super().__init__(target)
        self.target = target


class _SameHost(urllib.request.HTTPRedirectHandler):
    def redirect_request(
        self,
        req: urllib.request.Request,
        fp: IO[bytes],
        code: int,
        msg: str,
        headers: http.client.HTTPMessage,
        newurl: str,
    ) -> urllib.request.Request | None:
        before, after = urlsplit(req.full_url), urlsplit(newurl)
        is_safer = (before.scheme, after.scheme) == ("http", "https")
        if after.hostname != before.hostname or not (after.scheme == before.scheme or is_safer):
            fp.close()
            raise _RedirectError(newurl)
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def _open(url: str) -> http.client.HTTPResponse:
    parts = urlsplit(url)
    user, _, host = parts.netloc.rpartition("@")
    request = urllib.request.Request(urlunsplit(parts._replace(netloc=host, fragment="")))
    request.add_header("User-Agent", "rankscope")
    if user:
        request.add_unredirected_header("Authorization", f"Basic {base64.b64encode(unquote(user).encode()).decode()}")
    handlers = (_SameHost(), urllib.request.HTTPHandler(), urllib.request.HTTPSHandler(), urllib.request.ProxyHandler())
    opener = urllib.request.OpenerDirector()  # without the handlers of files and of FTP
    for handler in (*handlers, urllib.request.HTTPDefaultErrorHandler(), urllib.request.HTTPErrorProcessor()):
        opener.add_handler(handler)
    answer: http.client.HTTPResponse = opener.open(request, timeout=SILENCE_S)
    return answer


def _checked_size(answer: http.client.HTTPResponse, folder: Path, shown: str) -> int:
    """0 where the server does not say."""
    if answer.headers.get_content_type() == "text/html":
        raise InputError(
            f"{shown} is a web page, not a trace",
            "give the address of a file or an archive; the address of a folder ends with / and needs "
            "pip install 'rankscope[remote]' aiohttp",
        )
    n_bytes = integer(answer.headers.get("Content-Length"), MAX_LONG, default=0)
    if n_bytes > MAX_BYTES:
        raise ValueError(f"it has {n_bytes >> 30} GiB, and {MAX_BYTES >> 30} GiB is the limit")
    if n_bytes > shutil.disk_usage(folder).free:
        raise ValueError(f"it has {n_bytes:,} bytes, more than {folder} has room for")
    return n_bytes


def _copy(answer: http.client.HTTPResponse, file: IO[bytes], n_bytes: int, report: Callable[[int], None]) -> str:
    """Returns a digest of the content."""
    digest, n_copied, deadline = hashlib.sha256(), 0, time.monotonic() + TOTAL_S
    while chunk := answer.read1(_CHUNK):
        file.write(chunk)
        digest.update(chunk)
        n_copied += len(chunk)
        report(n_copied)
        if n_copied > MAX_BYTES:
            raise ValueError(f"it has more than {MAX_BYTES >> 30} GiB, which is the limit")
        if time.monotonic() > deadline:
            raise ValueError(f"it takes longer than {TOTAL_S:.0f} s")
    if n_bytes and n_copied < n_bytes:
        raise ValueError(f"the connection ended after {n_copied:,} of {n_bytes:,} bytes")
    return digest.hexdigest()


def _report(progress: Callable[[int, int, str], None] | None, done: int, total: int, name: str) -> None:
    if progress is not None:
        progress(done >> 20, total >> 20, f"downloading {name}, MiB")


def _set_time(path: Path, modified: str | None) -> None:
    from email.utils import parsedate_to_datetime

    try:
        seconds = parsedate_to_datetime(modified or "").timestamp()
    except ValueError:
        return
    os.utime(path, (seconds, seconds))
