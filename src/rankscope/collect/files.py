"""How files get into the folder: complete or not at all, never over those of an earlier run, within a size limit."""

from __future__ import annotations

import gzip
import os
import shutil
from collections.abc import Callable
from pathlib import Path

PARTIAL = ".partial"
_CHUNK = 1 << 20


class Publisher:
    """Writes the files of one rank: aside first, under their names when they are whole."""

    def __init__(self, folder: Path, max_bytes: int) -> None:
        self.folder = folder
        self.max_bytes = max_bytes
        self.n_bytes = 0
        self._sizes: dict[str, int] = {}

    def wrote(self, name: str) -> bool:
        return name in self._sizes

    def aside(self, name: str) -> Path:
        """Where a file is written until it is whole; other processes use other names."""
        return self.folder / f"{name}.{os.getpid()}{PARTIAL}"

    def publish(self, name: str, write: Callable[[Path], object], *, pack: bool = False, replace: bool = False) -> str:
        """Has `write` fill a file, packs it if asked to, and gives it its name; returns the name.

        OSError: the disk is full, the folder is gone, or the name is taken. With `replace` a newer state takes the
        place of an older one of the same process.
        """
        partial = self.aside(name)
        try:
            write(partial)
            return self.publish_written(name, partial, pack=pack, replace=replace)
        finally:
            partial.unlink(missing_ok=True)

    def publish_written(self, name: str, partial: Path, *, pack: bool = False, replace: bool = False) -> str:
        """As publish, for a file that other code has written aside; it is gone afterwards."""
        packed: Path | None = None
        try:
            if pack:
                name += ".gz"
                packed = self.aside(name)
                _pack(partial, packed)
            whole = packed or partial
            n_bytes = whole.stat().st_size
            earlier = self._sizes.get(name, 0)
            if self.n_bytes - earlier + n_bytes > self.max_bytes:
                limit = f"the limit of {self.max_bytes:,} bytes per rank"
                raise OSError(f"{name} needs {n_bytes:,} bytes, which exceeds {limit}")
            _rename(whole, self.folder / name, may_replace=replace and self.wrote(name))
            self.n_bytes += n_bytes - earlier
            self._sizes[name] = n_bytes
            return name
        finally:
            partial.unlink(missing_ok=True)
            if packed:
                packed.unlink(missing_ok=True)

    def size(self, name: str) -> int:
        return self._sizes.get(name, 0)


def _pack(plain: Path, packed: Path) -> None:
    with plain.open("rb") as stream, gzip.open(packed, "wb", compresslevel=3) as out:
        shutil.copyfileobj(stream, out, _CHUNK)


def _rename(partial: Path, final: Path, *, may_replace: bool) -> None:
    if may_replace:
        os.replace(partial, final)
        return
    try:
        os.link(partial, final)  # unlike a rename it fails where the name is taken
    except FileExistsError:
        raise
    except OSError:  # a file system without hard links
        if final.exists():
            raise FileExistsError(f"{final} already exists") from None
        os.rename(partial, final)
