"""How paths are shown: relative to where the user is."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterable, Iterator, Sequence

from rankscope.model.finding import Report

_INSTALLED = re.compile(r".*/(?:site-packages|dist-packages)/(?=.)", re.DOTALL)
_PLACEHOLDER = re.compile(r"(`rankscope [^`]*?)\bPATH\b")  # where a text was written before the capture was known
_STANDARD_LIBRARY = re.compile(r".*/lib(?:64)?/python\d[^/]*/(?=.)", re.DOTALL)


def shown_path(path: str, *folders: str) -> str:
    """`package/file.py` for installed code, else relative to the first of `folders` that it lies below."""
    installed = _INSTALLED.match(path) or _STANDARD_LIBRARY.match(path)
    if installed:
        return path[installed.end() :]
    return next((path[len(folder.rstrip(os.sep)) + 1 :] for folder in folders if _is_below(path, folder)), path)


def package_of(path: str) -> str:
    """The installed package that a file belongs to; "" for the user's own code."""
    installed = _INSTALLED.match(path)
    if installed:
        return path[installed.end() :].partition("/")[0].removesuffix(".py")
    return "Python" if _STANDARD_LIBRARY.match(path) or path.startswith("<") else ""


def code_folder(report: Report, base: str) -> str:
    """The deepest folder that holds all of the user's code that the findings name."""
    return common_folder(_code_files(report), base)


def _code_files(report: Report) -> Iterator[str]:
    for finding in (*report.findings, *report.effects):
        sites = (finding.location, finding.peer_location, *(f for s in finding.evidence.stacks for f in s.frames))
        yield from (site.file for site in sites if site)


def common_folder(paths: Iterable[str], base: str) -> str:
    """The deepest folder that holds all of the user's code, apart from what lies below `base`; "" if there is none."""
    folders = {
        os.path.dirname(path)
        for path in paths
        if path.startswith(os.sep) and not package_of(path) and not _is_below(path, base)
    }
    return os.path.commonpath(folders).rstrip(os.sep) if folders else ""


def typed_paths(paths: Sequence[str], base: str) -> str:
    """The capture as one would type it in the folder `base`."""
    relative = [path[len(base.rstrip(os.sep)) + 1 :] if _is_below(path, base) else path for path in paths]
    return shlex.join(relative)


def with_paths(text: str, typed: str) -> str:
    """The commands in a text, ready to be copied: with the capture in place of PATH."""
    return _PLACEHOLDER.sub(lambda match: match[1] + typed, text) if typed else text


def _is_below(path: str, folder: str) -> bool:
    below = folder.rstrip(os.sep) + os.sep
    return bool(folder) and path.startswith(below) and path != below
