"""The text of desync reports, rankscope's own and that of torch's tracker, line by line -> one report per group."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

import msgspec

from rankscope.errors import BadFileError
from rankscope.model.numbers import MAX_LONG, MAX_RANKS, integer, rank_number
from rankscope.model.tables import MISSING
from rankscope.read.job_log_lines import dated_ns

TITLE = b"rankscope desync report, "
TORCH_MARK = b"] Timeout at collective: "
_LAST_LINE = "end of desync report"
MAX_LINE = 1 << 20  # 100,000 ranks that are no ranges fit in it
MAX_STATES = 1 << 22  # of all groups of a text: ranges make millions of a few lines

_NUMBERS = r"\[(?P<ranks>[\d, -]*)\]"
# What launchers put before each line of a rank: torch and torchrun's tee, srun --label.
LAUNCHER = re.compile(r"(?:\[(?:rank|default)(?P<rank>\d{1,9})\]:|(?P<task>\d{1,9}): )")
_HEADER = re.compile(
    r"rankscope desync report, (?P<time>\d{4}-\d\d-\d\d \d\d:\d\d:\d\d) UTC, "
    r"(?:rank (?P<rank>\d{1,9}) of \d{1,9} on host (?P<host>\S+)|.*)"
)
_GROUP = re.compile(
    r'group (?P<name>"(?:[^"\\]|\\.)*"|\S+)(?: (?P<desc>"(?:[^"\\]|\\.)*"))? '
    r"\((?P<size>\d{1,7}) ranks?(?:: (?P<ranks>[\d, -]+))?\), collective state"
)
# What follows the first line of a group is indented.
_TORCH_GROUP = re.compile(r"PG GUID (?P<name>[^\s()]{1,200})\((?P<desc>[^)]{0,200})\)")
_TIMEOUT = re.compile(r"\s+- \[(?P<rank>\d{1,9})\] Timeout at collective: (?P<op>[^\s,]+), #(?P<seq>\d{1,18})")
_ABSENT = re.compile(rf"\s+- (?:To our best knowledge, ranks|Ranks that never joined any collective:) {_NUMBERS}.*")
_SEQ = re.compile(r"\s+#(?P<seq>\d{1,18}) (?:started|finished)(?: ranks)?:")
_STATE = re.compile(rf"\s+{_NUMBERS} (?P<state>started|finished) (?P<op>\S+)")
_UNREADABLE = re.compile(r" - Partial report: the store gave nothing readable for ranks? (?P<ranks>[\d, -]+) \(.*")
_OTHER_LINE = re.compile(
    r"\s+- (?:Lagging ranks:|No rank lags: .*|Latest state of each rank:|Snapshot of ranks' latest states:"
    r"|To our best knowledge, the lagging/dead/mismatched ranks .*)"
    rf"|\s+(?:- )?{_NUMBERS} (?:joined but did|finished collective #).*"
)


class Latest(NamedTuple):
    """What a report says about one rank of its group."""

    seq: int
    op: str
    state: str  # started, finished, absent or unreadable


@dataclass
class GroupReport:
    """The report about one group."""

    origin: str  # rankscope or torch
    rank: int  # who speaks
    time_ns: int
    name: str
    desc: str
    members: tuple[int, ...] = ()
    size: int = 0
    latest: dict[int, Latest] = field(default_factory=dict)
    seq: int = MISSING  # of the lines that follow
    n_listed: int = 0  # ranks, each as often as a line has it

    def add_line(self, line: str) -> bool:
        """False when the line is not part of a report."""
        if match := _SEQ.fullmatch(line):
            self.seq = integer(match["seq"], MAX_LONG)
        elif match := _STATE.fullmatch(line):
            self._put(match["ranks"], Latest(self.seq, match["op"], match["state"]))
        elif match := _TIMEOUT.fullmatch(line):
            self.latest.setdefault(
                rank_number(match["rank"]), Latest(integer(match["seq"], MAX_LONG), match["op"], "started")
            )
        elif match := _ABSENT.fullmatch(line):
            self._put(match["ranks"], Latest(MISSING, "", "absent"))
        elif match := _UNREADABLE.fullmatch(line):
            self._put(match["ranks"], Latest(MISSING, "", "unreadable"))
        else:
            return bool(_OTHER_LINE.fullmatch(line))
        return True

    def _put(self, ranks: str, latest: Latest) -> None:
        numbers = parse_numbers(ranks)
        self.n_listed += len(numbers)
        self.latest.update((rank, latest) for rank in numbers)


def parse_numbers(text: str) -> list[int]:
    """`0, 1, 5-7` -> [0, 1, 5, 6, 7]; what is no rank is left out."""
    numbers: list[int] = []
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        begin, end = rank_number(first), rank_number(last if dash else first)
        if 0 <= begin <= end:
            if len(numbers) + end - begin >= MAX_RANKS:
                break
            numbers += range(begin, end + 1)
    return numbers


class _Spoken(NamedTuple):
    rank: int  # who spoke
    name: str
    desc: str


class DesyncText:
    """All reports of a text, be it a file of its own or the output of a job."""

    def __init__(self, modified_ns: int) -> None:
        self.modified_ns = modified_ns  # torch's text has no time of its own
        self.reports: list[GroupReport] = []
        self.rank = MISSING  # of the rank that rankscope's own header names
        self.host = ""
        self.is_cut = False
        self.is_own = False
        self._time_ns = modified_ns
        self._n_listed = 0
        self._open: dict[str, GroupReport] = {}  # by what the launcher put before the lines
        self._groups: dict[str, _Spoken] = {}  # the same: the group that torch spoke of last

    @property
    def has_own(self) -> bool:
        """It is rankscope's own report, or has one of them."""
        return any(report.origin == "rankscope" for report in self.reports)

    def read(self, lines: Iterable[bytes]) -> None:
        """Reads lines that are cut at MAX_LINE bytes. What was read when they end, or reading fails, is kept."""
        try:
            for line in lines:
                if self._open or self.is_own or _may_matter(line):
                    self._add(line)
        finally:
            for report in self.reports:
                _settle(report)

    def _add(self, line: bytes) -> None:
        if not line.endswith(b"\n"):  # the end is missing, so that it may say anything; or it is longer than any
            self.is_cut |= len(line) < MAX_LINE
            return
        text = line.decode("utf-8", "replace").rstrip("\r\n")
        launcher = LAUNCHER.match(text)
        key, text = (launcher.group(), text[launcher.end() :]) if launcher else ("", text)
        if match := _HEADER.fullmatch(text):
            self._begin_own(match)
        elif text == _LAST_LINE:
            self._open.pop(key, None)
            self.is_own = self.is_cut = False
        elif self.is_own and (match := _GROUP.match(text)):
            self._begin_group(key, match)
        elif not self.is_own and _TIMEOUT.fullmatch(text):
            self._begin_torch(key, launcher_rank(launcher))
        elif match := _TORCH_GROUP.search(text):
            # torch itself puts the rank before the first line of a message only.
            self._groups[key] = self._groups[""] = _Spoken(launcher_rank(launcher), match["name"], match["desc"])
        report = self._open.get(key)
        if report is not None:
            n_before = report.n_listed
            if not report.add_line(text) and not _GROUP.match(text):
                del self._open[key]
            self._count(report.n_listed - n_before)

    def _count(self, n_ranks: int) -> None:
        self._n_listed += n_ranks
        if self._n_listed > MAX_STATES:
            raise BadFileError("lists more ranks than any report", "it is corrupt or malicious: remove it")

    def _begin_own(self, match: re.Match[str]) -> None:
        if (moment_ns := dated_ns(match["time"][:10], match["time"][11:])) != MISSING:
            self._time_ns = moment_ns
        self.rank, self.host = rank_number(match["rank"]), match["host"] or ""
        self.is_own = self.is_cut = True  # until its last line is seen
        self._open.clear()

    def _begin_group(self, key: str, match: re.Match[str]) -> None:
        name, desc = _unquoted(match["name"]), _unquoted(match["desc"] or "")
        report = GroupReport("rankscope", self.rank, self._time_ns, name, desc)
        report.size, report.members = rank_number(match["size"]), tuple(parse_numbers(match["ranks"] or ""))
        self._count(len(report.members))
        self._open[key] = report
        self.reports.append(report)

    def _begin_torch(self, key: str, rank: int) -> None:
        # If the text does not name the group, it is that of all ranks: others are rarely tracked alone.
        spoken = self._groups.get(key) or _Spoken(rank, "0", "default_pg")
        rank = spoken.rank if rank == MISSING else rank
        self._open[key] = GroupReport("torch", rank, self.modified_ns, spoken.name, spoken.desc)
        self.reports.append(self._open[key])


def launcher_rank(launcher: re.Match[str] | None) -> int:
    return rank_number(launcher["rank"] or launcher["task"]) if launcher else MISSING


def _may_matter(line: bytes) -> bool:
    return TORCH_MARK in line or TITLE in line or b"PG GUID " in line


def _settle(report: GroupReport) -> None:
    """Members of the group, as far as the report shows."""
    if report.origin == "torch":
        report.size = max(report.latest, default=-1) + 1
        if report.name == "0" or report.desc == "default_pg":
            report.members = tuple(range(report.size))
            if report.rank == MISSING:  # in the group of all ranks, who timed out is who speaks
                report.rank = next(iter(report.latest), MISSING)
    if len(report.members) != report.size:
        report.members = ()
    report.latest = {rank: latest for rank, latest in report.latest.items() if 0 <= rank < report.size}


def _unquoted(text: str) -> str:
    if not text.startswith('"'):
        return text
    try:
        return msgspec.json.decode(text, type=str)
    except msgspec.DecodeError:
        return text.strip('"')


def state_rows(reports: Iterable[GroupReport]) -> Iterator[dict[str, object]]:
    """The reports as rows of desync_states, but for the file."""
    for report in reports:
        group = {"group_name": report.name, "group_desc": report.desc}
        members = msgspec.json.encode(report.members).decode() if report.members else ""
        for group_rank, latest in sorted(report.latest.items()):
            yield {
                "rank": report.rank,
                "time_ns": report.time_ns,
                "origin": report.origin,
                **group,
                "members": members,
                "group_rank": group_rank,
                "member": report.members[group_rank] if report.members else MISSING,
                **latest._asdict(),
            }
