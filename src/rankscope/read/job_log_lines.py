"""Who wrote a line of a job's output, and when: what launchers, schedulers and loggers put before a message."""

from __future__ import annotations

import calendar
import re
import time
from collections.abc import Iterator
from typing import NamedTuple

from rankscope.model.tables import MISSING

_NUMBER = r"(\d{1,9})"
_DATE = (
    r"(?P<date>\d{4}[-/]\d\d[-/]\d\d)[T_ -](?P<time>\d\d:\d\d:\d\d(?:[.,]\d{1,9})?) ?(?P<zone>Z\b|UTC|[+-]\d\d:?\d\d)?"
)
# Each is peeled off the left end of the line, in any order and number: they stack.
_RFC3339 = re.compile(rf"{_DATE}(?: (?:stdout|stderr) [FP])? ?")
_BRACKETED = re.compile(rf"\[{_DATE}(?: [A-Z]{{2}}\d[^\]]{{0,40}})?\] ?")
_TASK = re.compile(r"\s{0,6}(?P<task>\d{1,6}): ")
_TEE = re.compile(r"\[(?!rank)[A-Za-z_]{1,40}(?P<local>\d{1,9})\]: ?")
_RANK = re.compile(r"\[?rank(?P<rank>\d{1,9})\]: ?")
_NAMED = re.compile(r"\[(?:rank: |RANK )(?P<rank>\d{1,9})\] ?")
_DEEPSPEED = re.compile(r"\[[A-Z]{4,8}\] \[[\w.]{1,80}\.py:\d{1,9}:\w{1,80}\](?: \[Rank (?P<rank>\d{1,9})\])? ?")
_ASCEND = re.compile(
    rf"\[ERROR\] {_DATE} \(PID:(?P<pid>\d{{1,10}}), Device:-?\d{{1,6}}, RankID:(?P<rank>\d{{1,9}})\) ?"
)
_MPI = re.compile(r"\[\d{1,9},(?P<rank>\d{1,9})\]<std(?:err|out)>: ?")
_RAY = re.compile(
    r"\((?P<actor>[A-Za-z_][\w.:]{0,80})(?:\[rank=(?P<rank>\d{1,9})\])?(?: [\w=]{1,40})? pid=(?P<pid>\d{1,10})"
    r"(?:, ip=(?P<host>[\w.:-]{1,64}))?\) ?"
)
_WORKER = re.compile(r"\((?P<actor>\w{1,80}) rank=(?P<rank>\d{1,9}) pid=(?P<pid>\d{1,10})\) ?")  # vLLM
_VLLM = re.compile(r"(?:ERROR|WARNING|INFO|CRITICAL|DEBUG) \d\d-\d\d \d\d:\d\d:\d\d \[[\w./-]{1,200}\.py:\d{1,9}\] ?")
_COMPOSE = re.compile(
    r"(?P<pod>[A-Za-z][\w.-]{0,80}-\d{1,6}) {1,40}\| "
    r"(?=\[rank|\[default|Traceback |  File |    |[EWIF]\d{4} |[\w.]{1,80}(?:Error|Exception|Interrupt)\b)"
)
_SYSLOG = re.compile(r"[A-Z][a-z]{2} [ 123]\d \d\d:\d\d:\d\d ")
_STREAM = re.compile(r"(?P<pod>[A-Za-z][\w.-]{0,120}) \[std(?:err|out)\] ")
_POD = re.compile(r"\[pod/(?P<pod>[\w.-]{1,253})/[\w.-]{1,253}\] ?")
_HOST = re.compile(
    r"(?P<host>[A-Za-z][\w-]{0,60}(?:\.[\w-]{1,60}){0,6}): (?=\[rank|\[default|\[[EWIF]\d|  File |Traceback )"
)
_QUOTED = re.compile(r"> (?!File)(?=\s{0,40}\S)")  # in an e-mail or a forum
_VIEWER = re.compile(r"\[?\d{1,7}\] (?=\[|Traceback|[EWIF]\d{4} )")
_C10 = re.compile(
    r"\[(?P<level>[IWEF])(?:(?P<day>\d{3,4}) (?P<clock>\d\d:\d\d:\d\d\.\d{1,9}))? "
    r"(?P<module>[\w./-]{1,200}\.(?:cpp|h|cc)):\d{1,9}\] ?"
)
_GLOG = re.compile(
    r"(?P<level>[VIWEFC])(?P<day>\d{4}) (?P<clock>\d\d:\d\d:\d\d\.\d{6}) +(?P<pid>\d{1,18}) "
    r"(?P<module>[^\]\n]{1,300}?):\d{1,9}\] ?"
)
_PEELED = (
    *(_RFC3339, _BRACKETED, _POD, _WORKER, _RAY, _TEE, _RANK, _NAMED, _MPI, _C10, _GLOG, _DEEPSPEED, _ASCEND, _VIEWER),
    *(_HOST, _VLLM, _COMPOSE, _STREAM, _SYSLOG),
)
_MAX_PREFIXES = 10
_NEXT_SPEAKER = re.compile(r"(?=\[(?:rank|default)\d{1,9}\]:)|(?=(?:WARNING|ERROR|INFO):torch\.)")
_DAY_NS = 24 * 3600 * 10**9
_MAX_SPEAKERS = 64


class Line(NamedTuple):
    """A message without its prefixes, and what they say; MISSING and "" where they are silent."""

    text: str
    rank: int = MISSING  # global, as the line says it
    label: str = ""  # what the launcher calls the stream: `task 3`, `local 3`, `pid 812 10.0.0.3`, `pod worker-1`
    pid: int = MISSING
    host: str = ""
    time_ns: int = MISSING
    inner_ns: int = MISSING  # a second stamp, the process's own where the first is its collector's
    is_dated: bool = False  # the first stamp has a year
    is_zoned: bool = False  # and says which zone it is of
    is_hooked: bool = False  # by torch's excepthook, which prints only what nobody caught
    is_logged: bool = False  # by a logger of torch


def split_speakers(text: str) -> list[str]:
    """Two writers may share a line, or a message begin behind half of a progress bar: cut before each `[rank3]:`."""
    if "[rank" not in text and "[default" not in text and ":torch." not in text:
        return [text]
    parts: list[str] = []
    before = ""  # prefixes that belong to what follows them: `[default0]:[rank12]:`
    for part in _NEXT_SPEAKER.split(text, maxsplit=_MAX_SPEAKERS):
        if len(before) + len(part) < 200 and _is_prefix_only(before + part):
            before += part
        else:
            parts.append(before + part)
            before = ""
    return [part for part in (*parts, before) if part]


def _is_prefix_only(text: str) -> bool:
    return not text or not parse_line(text, MISSING).text


class _Prefixes:
    """What the prefixes of one line say together."""

    def __init__(self) -> None:
        self.rank = self.pid = MISSING
        self.label = self.host = ""
        self.stamps: list[tuple[int, bool, bool]] = []
        self.is_hooked = self.is_logged = False

    def add(self, match: re.Match[str], text: str, near_ns: int) -> None:
        parts = match.groupdict()
        if parts.get("rank"):
            self.rank = int(parts["rank"])
            self.is_hooked |= match.re is _RANK and text[match.end() - 1 : match.end()] == " "
        if parts.get("local"):
            self.label = f"local {int(parts['local'])}"
        if parts.get("pid"):
            self.pid = int(parts["pid"])
            if match.re in (_RAY, _WORKER):
                self.label = f"pid {self.pid} {parts.get('host') or ''}".rstrip()
        if parts.get("pod"):
            self.label = self.label or f"pod {parts['pod']}"
        self.host = parts.get("host") or self.host
        self.is_logged |= match.re in (_C10, _GLOG)
        if parts.get("date"):
            self._stamp(dated_ns(parts["date"], parts["time"], parts["zone"] or ""), True, bool(parts["zone"]))
        elif parts.get("clock"):
            self._stamp(undated_ns(parts["day"], parts["clock"], near_ns), False, False)

    def _stamp(self, moment: int, is_dated: bool, is_zoned: bool) -> None:
        if moment != MISSING:
            self.stamps.append((moment, is_dated, is_zoned))


def parse_line(text: str, near_ns: int) -> Line:
    """Peels the prefixes; `near_ns` is a moment after the line was written, for stamps without a year."""
    position = 0
    prefixes = _Prefixes()
    for _ in range(_MAX_PREFIXES):
        match = next((hit for pattern in _PEELED if (hit := pattern.match(text, position))), None)
        if match is None and not position and (match := _TASK.match(text)):
            prefixes.label = f"task {int(match['task'])}"
        if match is None and not position:
            match = _QUOTED.match(text)
        if match is None or match.end() == position:
            break
        prefixes.add(match, text, near_ns)
        position = match.end()
    moment, is_dated, is_zoned = prefixes.stamps[0] if prefixes.stamps else (MISSING, False, False)
    inner = prefixes.stamps[1][0] if len(prefixes.stamps) > 1 else MISSING
    who = (prefixes.rank, prefixes.label, prefixes.pid, prefixes.host)
    return Line(text[position:], *who, moment, inner, is_dated, is_zoned, prefixes.is_hooked, prefixes.is_logged)


def dated_ns(date: str, clock: str, zone: str = "") -> int:
    """`2026-11-18`, `10:11:12.5` -> nanoseconds since the epoch; without a zone as if it were UTC."""
    try:
        seconds = calendar.timegm(time.strptime(f"{date.replace('/', '-')} {clock[:8]}", "%Y-%m-%d %H:%M:%S"))
    except (ValueError, OverflowError):
        return MISSING
    if zone[:1] in ("+", "-"):
        digits = zone[1:].replace(":", "")
        shift = int(digits[:2]) * 3600 + int(digits[2:4]) * 60
        seconds -= shift if zone[0] == "+" else -shift
    return seconds * 10**9 + _fraction_ns(clock) if 0 < seconds < 1 << 32 else MISSING


def undated_ns(day: str, clock: str, near_ns: int) -> int:
    """`1118` or `817` (month and day), in the last year that is not after the file itself."""
    if near_ns == MISSING or not day:
        return MISSING
    year = time.gmtime(near_ns / 1e9).tm_year
    for candidate in (year + 1, year, year - 1):
        moment = dated_ns(f"{candidate}-{int(day[:-2]):02d}-{day[-2:]}", clock)
        if moment != MISSING and moment <= near_ns + _DAY_NS:
            return moment
    return MISSING


def _fraction_ns(clock: str) -> int:
    return int(clock[9:18].ljust(9, "0")) if len(clock) > 9 else 0


def plain_parts(raw: bytes) -> Iterator[str]:
    """The texts that a terminal would have shown on one line: without colors, a progress bar's stages apart."""
    from rankscope.read.log_text import plain_lines

    for part in plain_lines(raw):
        yield from split_speakers(part.decode("utf-8", "replace"))
