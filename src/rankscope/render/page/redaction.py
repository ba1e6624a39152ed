"""What a page for outsiders must not show: directories, host names, source lines.

The views know nothing of it: the tables lose their lines of code before a view sees them, and paths and hosts are
taken out of the finished HTML and data, so that no view can forget it. The own name of a file stays: without it a
finding could not be read.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any

from rankscope.model.numbers import is_number
from rankscope.model.tables import Text, Trace
from rankscope.render.html import Html, text

_NAME = r"[\w.+@%=~-]"
_PATH = re.compile(
    r"(?P<web>https?://[^\s<>\"']+)"
    r"|(?P<remote>\b[a-z][a-z0-9+.-]*://[^\s<>\"'&]+)"
    rf"|(?P<path>(?<![<\w]){_NAME}*(?:/{_NAME}+)+/?)"
    r"|(?P<windows>(?:\b[A-Za-z]:|\\)\\[^\s\"'<>|:*?&]+)"
)
_FILE = re.compile(r"\.[A-Za-z]\w{0,7}$")
_NO_DIRECTORY = "…"
_PATH_COLUMNS = ("path", "file", "filename")


class Redaction:
    def __init__(
        self, hosts: Iterable[str], directories: Iterable[str] = (), worlds: Mapping[str, str] = MappingProxyType({})
    ) -> None:
        """Directories that are known are found whatever is in their names; the pattern is for those in sentences."""
        spelled = {spelling for name in directories for spelling in (name, text(name))}
        known = "|".join(map(re.escape, sorted(spelled, key=lambda name: (-len(name), name))))
        self._directory = re.compile(rf"(?<![\w/\\])(?:{known})") if known else None
        self._hosts = {host: f"host{number}" for number, host in enumerate(sorted(set(filter(None, hosts))), start=1)}
        self._hosts |= worlds  # named by their folders
        longest_first = sorted(self._hosts, key=len, reverse=True)
        named = "|".join(map(re.escape, longest_first))
        self._host = re.compile(rf"(?<![\w.-])(?:{named})(?![\w-])") if named else None

    def clean(self, said: str) -> str:
        """Plain text or HTML. Tags of HTML have no path in them but in their attributes."""
        said = self._directory.sub("", said) if self._directory else said
        said = _PATH.sub(_without_directory, said)
        return self._host.sub(lambda match: self._hosts[match.group()], said) if self._host else said

    def clean_html(self, shown: Html) -> Html:
        return Html(self.clean(shown))

    def clean_data(self, data: Any) -> Any:
        """The same within lists and mappings."""
        if isinstance(data, str):
            return self.clean(data)
        if isinstance(data, dict):
            return {self.clean_data(key): self.clean_data(value) for key, value in data.items()}
        return [self.clean_data(each) for each in data] if isinstance(data, (list, tuple)) else data


def _without_directory(match: re.Match[str]) -> str:
    whole = match.group()
    if match.group("web"):
        return whole
    *directories, name = re.split(r"[/\\]", whole)
    if _FILE.search(name):
        return name
    # A word such as GB/s or and/or is no path, nor is a compile id.
    is_word = match.group("path") and directories[0] not in ("", "~", ".", "..")
    return whole if is_word else _NO_DIRECTORY


def directories_of(trace: Trace, folders: Iterable[str]) -> set[str]:
    """Those of all files that the tables name, each with its last separator, also as seen from `folders`."""
    folders = [folder for folder in folders if folder]
    named = {f"{path.rstrip('/')}/" for path in (*trace.paths, *folders) if path}
    for table in trace.tables.values():
        for column in filter(table.columns.__contains__, _PATH_COLUMNS):
            named.update(table.text(column).values)
    directories = {name[: end + 1] for name in named if (end := max(name.rfind("/"), name.rfind("\\"))) > 0}
    inside = {name.removeprefix(f"{folder.rstrip('/')}/") for name in directories for folder in folders}
    # A folder may be called 0, and so is a frame: [0/1] is a compile id.
    return {name for name in directories | inside if not is_number(name[:-1])} - {""}


def without_source(trace: Trace) -> Trace:
    """The same capture as if nobody had recorded lines of code. Nothing in the original changes."""
    bare = Trace(trace.paths, dict(trace.tables), trace.parts, trace.makers)
    for name, table in trace.tables.items():
        if "code" in table.columns:
            bare.tables[name] = table.replaced({"code": Text.constant("", len(table))})
    return bare
