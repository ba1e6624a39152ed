"""Files that appear whole or not at all."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, cast

from rankscope.errors import OutputError

if TYPE_CHECKING:
    from typing import BinaryIO

_GZIP_LEVEL = 4


@contextmanager
def whole_file(path: str) -> Iterator[str]:
    """A path beside to write to, whose file then takes the name."""
    part = f"{path}.part-{os.getpid()}"
    try:
        yield part
        os.replace(part, path)
    except OSError as error:
        raise OutputError(f"cannot write {path}: {error.strerror}", "choose a folder you can write to") from error
    finally:
        if os.path.lexists(part):
            os.unlink(part)


@contextmanager
def whole_binary(path: str) -> Iterator[BinaryIO]:
    """The file to write to, packed where its name says so."""
    with whole_file(path) as part, open(part, "xb") as file:
        if not path.lower().endswith(".gz"):
            yield file
            return
        from gzip import GzipFile

        # Neither name nor time: the same content gives the same file.
        with GzipFile("", "wb", _GZIP_LEVEL, file, mtime=0) as packed:
            yield cast("BinaryIO", packed)
