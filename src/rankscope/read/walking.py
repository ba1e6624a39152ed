"""The files below a folder, in a fixed order; what is left out is listed with the reason."""

from __future__ import annotations

import errno
import os
import re
import shlex
import stat
from dataclasses import dataclass, field
from pathlib import Path

from rankscope.model.schema_recorder import MAY_HOLD_MORE
from rankscope.read.given_paths import natural_key

# What the collector leaves where it has collected; a later run into the same folder, or a restart, has its own below.
RUN_FILE = "run.json"
_OTHER_RUN = re.compile(r"(run|attempt)_[0-9]+")
_KINDS = {
    stat.S_IFIFO: "a pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


@dataclass(frozen=True)
class Unreadable:
    """A path that could not even be looked at, or that belongs to another capture."""

    shown: str
    problem: str
    hint: str
    status: str = "damaged"


def walk(folder: Path) -> tuple[list[Path], list[Unreadable]]:
    """However deep: what waits to be looked at is in a list, not on the stack."""
    walked = _Walk(os.path.realpath(folder))
    waiting = [str(folder)]
    while waiting:
        waiting += reversed(walked.look_into(waiting.pop()))
    return walked.files, walked.left_out


@dataclass
class _Walk:
    top: str  # links lead out of it, or do not
    files: list[Path] = field(default_factory=list)
    left_out: list[Unreadable] = field(default_factory=list)

    def look_into(self, folder: str) -> list[str]:
        """Adds the files of a folder. Returns the folders below it."""
        entries: list[os.DirEntry[str]] = []
        try:
            with os.scandir(folder) as listing:
                entries.extend(listing)
        except OSError as error:
            problem = f"cannot be listed ({os_reason(error)}): {MAY_HOLD_MORE}"
            self.left_out.append(Unreadable(folder, problem, "check its permissions"))
            return []
        entries = [entry for entry in entries if not entry.name.startswith(".")]
        folders = sorted(entry.name for entry in entries if entry.is_dir(follow_symlinks=False))
        names = [entry.name for entry in entries if not entry.is_dir(follow_symlinks=False)]
        if RUN_FILE in names:
            others = sorted(filter(_OTHER_RUN.fullmatch, folders), key=natural_key)
            folders = [name for name in folders if name not in others]
            self.left_out += [_other_run(os.path.join(folder, name)) for name in others]
        known = frozenset(names), frozenset(folders)
        for name in sorted(names, key=natural_key):
            if not _is_told(name, *known):
                self._add(Path(folder, name))
        return [os.path.join(folder, name) for name in folders if not _is_told(name, *known)]

    def _add(self, file: Path) -> None:
        try:
            mode = file.stat().st_mode
            is_link = file.is_symlink()
        except OSError as error:
            if file.is_symlink() and error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP):
                self.left_out.append(Unreadable(str(file), "is a broken link", "copy the file itself"))
            else:
                problem = f"cannot be opened: {os_reason(error)}"
                self.left_out.append(Unreadable(str(file), problem, "check its permissions"))
            return
        if is_link and not self._is_inside(file):
            problem = f"is a link to {os.path.realpath(file)}, which is not in this folder"
            self.left_out.append(Unreadable(str(file), problem, "give that path as well, or copy it here", "ignored"))
        elif stat.S_ISREG(mode):
            self.files.append(file)
        elif stat.S_ISDIR(mode):
            problem = "is a link to a folder of this capture, which is read once"
            self.left_out.append(Unreadable(str(file), problem, "", "ignored"))
        else:  # to open it could wait for ever
            kind = _KINDS.get(stat.S_IFMT(mode), "no file")
            self.left_out.append(Unreadable(str(file), f"is {kind}", "save its content to a file", "ignored"))

    def _is_inside(self, link: Path) -> bool:
        target = os.path.realpath(link)
        return target == self.top or target.startswith(self.top.rstrip(os.sep) + os.sep)


def _other_run(path: str) -> Unreadable:
    """Ranks of two runs in one capture would be mistaken for one job."""
    return Unreadable(
        path, "contains another run of the job", f"to read that run: rankscope {shlex.quote(path)}", "other-run"
    )


def _is_told(name: str, names: frozenset[str], folders: frozenset[str]) -> bool:
    """True for what Nsight Systems leaves beside the file that is read: a trace must not count twice."""
    stem, _, suffix = name.rpartition(".")
    if suffix == "parquet":  # a table per file: the table of strings stands for all
        return name != "StringIds.parquet" and "StringIds.parquet" in names
    if suffix == "nsys-rep":
        return f"{stem}.sqlite" in names or f"{stem}_pqtdir" in folders
    return name.endswith("_pqtdir") and f"{name.removesuffix('_pqtdir')}.sqlite" in names


def os_reason(error: BaseException) -> str:
    if isinstance(error, OSError) and error.strerror:
        return error.strerror.lower()
    return str(error) or type(error).__name__
