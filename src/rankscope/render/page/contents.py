"""What the views of the page share: the capture, how it is to be shown, and the room that is left."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from types import MappingProxyType
from typing import NamedTuple
from urllib.parse import urlencode

import msgspec

from rankscope.model.finding import GroupRef, Report
from rankscope.model.tables import Trace
from rankscope.render.html import Html, markup
from rankscope.render.listing import Later
from rankscope.render.page.blocks import Blocks
from rankscope.render.source import code_folder

MAX_BYTES = 10_000_000
_ALWAYS_BYTES = 120_000  # styles, scripts, the top of the page and a few findings


class PageOptions(NamedTuple):
    source: bool = True  # lines of code
    redact: bool = False  # neither lines of code nor paths nor names of hosts
    base: str = ""  # files below this folder are shown relative to it, relative ones are looked up in it
    max_bytes: int = MAX_BYTES
    meanings: Mapping[str, str] = MappingProxyType({})  # code of a rule -> what it finds, in one sentence
    is_served: bool = False  # blocks of data are asked for when they are needed, whatever their size

    @property
    def shows_source(self) -> bool:
        return self.source and not self.redact


class View(NamedTuple):
    """A section of the page. The body is HTML: whatever came from a trace has been escaped."""

    anchor: str
    title: str
    body: Html
    is_absent: bool = False  # there is no data for it; the body says how to collect some
    badge: str = ""  # a word or number beside its name in the bar


def view(name: str, *, place: int = 50) -> Callable[[ViewFunction], ViewFunction]:
    """Says that a function makes a view of the page; those with a lower place come first. The arguments are literals.

    The name is for people who wait for the page.
    """
    return lambda function: function


@dataclass
class Contents:
    trace: Trace
    report: Report
    options: PageOptions
    later: Later = field(default_factory=Later)
    blocks: Blocks = field(default_factory=Blocks)
    remarks: list[str] = field(default_factory=list)  # what was thinned or left out, in sentences; shown at the top

    def room(self, share: float) -> int:
        """How many bytes a view may add; no limit where data is asked for when needed."""
        left = max(0, self.options.max_bytes - _ALWAYS_BYTES)
        return 1 << 40 if self.options.is_served else int(left * share)

    @cached_property
    def folders(self) -> tuple[str, str]:
        """Files below these are shown relative to them."""
        return self.options.base, code_folder(self.report, self.options.base)

    @cached_property
    def group_ids(self) -> dict[tuple[str, tuple[int, ...]], int]:
        """By name and sorted members: as findings name a group."""
        members: dict[int, list[int]] = {}
        table = self.trace.table("group_members")
        for group_id, rank in zip(table.array("group_id").tolist(), table.array("rank").tolist(), strict=True):
            members.setdefault(group_id, []).append(rank)
        groups = self.trace.table("groups")
        named = zip(groups.array("group_id").tolist(), groups.text("name").tolist(), strict=True)
        return {(name, tuple(sorted(members.get(group_id, ())))): group_id for group_id, name in named}

    def group_id(self, group: GroupRef) -> int | None:
        return self.group_ids.get((group.name, tuple(sorted(group.ranks))))

    def map_group(self, group: GroupRef) -> str | None:
        """The group as links into the map name it: p2 is the third one that profilers know."""
        known = self.group_id(group)
        if known is not None:
            return str(known)
        wanted = (group.name, tuple(sorted(group.ranks)))
        for row in self.trace.table("comm_groups").rows() if self.trace.has("profiles") else ():
            if (row["name"], tuple(sorted(msgspec.json.decode(row["ranks"] or "[]")))) == wanted:
                return f"p{row['group_key']}"
        return None


ViewFunction = Callable[[Contents], View]


def map_link(group: int | str | None = None, rank: int | None = None, seq: int | None = None, p2p: bool = False) -> str:
    """A place on the map, as rank_map.js reads it. A transfer has its number in `matches`, within its pair of ranks."""
    query = {"group": group, "rank": rank, "seq": seq, "p2p": 1 if p2p else None}
    known = {name: value for name, value in query.items() if value is not None}
    return f"#map?{urlencode(known)}" if known else "#map"


def absent(anchor: str, title: str, what: str, command: str) -> View:
    """A view without data: `what` is missing, and `command` collects it."""
    body = markup('<p class="absent">{} To collect the data: <code>{}</code></p>', what, command)
    return View(anchor, title, body, is_absent=True)
