"""Which rank a line is of: from its prefix, its file's name, the process named elsewhere; else unknown."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, NamedTuple

from rankscope.model.tables import MISSING
from rankscope.read.job_log_lines import Line, parse_line, plain_parts
from rankscope.read.job_log_patterns import Fields

_LAUNCHED = re.compile(r"attempt_(?P<attempt>\d{1,6})/(?P<local>\d{1,9})/(?:std(?:err|out)\.log|error\.json)")
_FILTERED = re.compile(r"attempt_(?P<attempt>\d{1,6})/filtered_std(?:err|out)\.log")
_NAMED = re.compile(r"(?:^|[/_.-])(?:rank|task|proc|global_rank)[_.-]?(?P<rank>\d{1,9})(?=[_./-]|$)", re.IGNORECASE)
_HOST = re.compile(r"(?:^|[/_.-])(?:node|host)[_.-]?(?P<host>[A-Za-z0-9-]{1,60})(?=[_./]|$)", re.IGNORECASE)
_RAY_FILE = re.compile(r"worker-[0-9a-f]{8,}-[0-9a-fA-F]+-(?P<pid>\d{1,10})\.(?:out|err)")
_SAMPLE = 1 << 10
_MAX_LABELS = 1 << 16
_MAX_TEXT = 300
_WHOLE = (MISSING, "")  # lines that no launcher put a name before


class PathFacts(NamedTuple):
    rank: int = MISSING
    local: int = MISSING
    attempt: int = MISSING
    pid: int = MISSING
    host: str = ""


def path_facts(shown: str) -> PathFacts:
    """What the file's place says: torchrun's log folder has local ranks, other names global ones."""
    path = shown.replace("!", "/").replace("\\", "/")
    host = match["host"] if (match := _HOST.search(path)) else ""
    if launched := _LAUNCHED.search(path):
        return PathFacts(local=int(launched["local"]), attempt=int(launched["attempt"]), host=host)
    if filtered := _FILTERED.search(path):
        return PathFacts(attempt=int(filtered["attempt"]), host=host)
    name = path.rsplit("/", 1)[-1]
    if ray := _RAY_FILE.search(name):
        return PathFacts(pid=int(ray["pid"]), host=host)
    named = _NAMED.search(name)
    return PathFacts(rank=int(named["rank"]) if named else MISSING, host=host)


class _Output(NamedTuple):
    line: int
    text: str
    speaker: Line


class _Member(NamedTuple):
    """One process in a communicator of NCCL."""

    n_ranks: int
    node: str
    pid: int
    rank: int


class Speakers:
    """The streams of one text, and what links them to ranks."""

    def __init__(self) -> None:
        self._by_label: dict[str, set[int]] = {}
        self._by_pid: dict[int, set[int]] = {}
        self._last: dict[tuple[int, str], _Output] = {}
        self._first: dict[tuple[int, str], int] = {}
        self._locals: dict[int, set[int]] = {}  # of torchrun's table: local rank -> ranks
        self._hosts: dict[int, str] = {}
        self._labels_are_ranks = True
        self._members: set[_Member] = set()
        self._said: dict[str, set[int]] = {}  # of watchdogs that know no other rank: stream -> `[Rank 3]`
        self._n_sampled = self._n_tasks = 0
        self._has_agents = False  # torchrun on each node: tasks of the scheduler are nodes then
        self._has_tasks = True  # numbers before lines are those of `srun --label`
        self._path = PathFacts()
        self._file_ranks: set[int] = set()

    def note(self, line: Line, number: int) -> None:
        if line.rank != MISSING:
            self._file_ranks.add(line.rank)
            if line.label and len(self._by_label) < _MAX_LABELS:
                self._by_label.setdefault(line.label, set()).add(line.rank)
            if line.pid != MISSING and len(self._by_pid) < _MAX_LABELS:
                self._by_pid.setdefault(line.pid, set()).add(line.rank)
        self._note_output(number, line)

    def note_first(self, line: Line, number: int) -> None:
        if len(self._first) < _MAX_LABELS:
            self._first.setdefault((line.rank, line.label), number)

    def _note_output(self, number: int, line: Line) -> None:
        key = (line.rank, line.label)
        if (len(self._last) >= _MAX_LABELS and key not in self._last) or not line.text.strip():
            return
        # What torch logs says less about where the rank was than what the job printed.
        if not line.is_logged or key not in self._last or self._last[key].speaker.is_logged:
            self._last[key] = _Output(number, line.text[:_MAX_TEXT], line)

    def note_message(self, line: Line, fields: Fields) -> None:
        """What a message says about who is who."""
        if "n_ranks" in fields and len(self._members) < _MAX_LABELS:
            named = (fields["n_ranks"], fields["node"], fields["nccl_pid"], fields["group_rank"])
            self._members.add(_Member(*named))
        if "told_pid" in fields or "agent_pid" in fields or "local_rank" in fields:
            self._has_agents = True
        if "said_rank" in fields and line.rank == MISSING and len(self._said) < _MAX_LABELS:
            self._said.setdefault(line.label, set()).add(fields["said_rank"])

    def note_exit(self, entry: Fields) -> None:
        self._by_pid.setdefault(entry["exit_pid"], set()).add(entry["exit_rank"])
        self._locals.setdefault(entry["local_rank"], set()).add(entry["exit_rank"])
        self._hosts[entry["exit_rank"]] = entry["node"]

    def sample(self, block: bytes, n_before: int) -> None:
        """A few lines of every block: which streams have output at all."""
        is_short = len(block) <= 2 * _SAMPLE
        head = block[: 2 * _SAMPLE].split(b"\n") if is_short else block[:_SAMPLE].split(b"\n")[:-1]
        for raw in head if is_short else (*head, *block[-_SAMPLE:].split(b"\n")[1:]):
            for text in plain_parts(raw[:1000]):
                line = parse_line(text, MISSING)
                self.note(line, n_before)
                self._n_sampled += bool(text.strip())
                self._n_tasks += line.label.startswith("task ")

    def settle(self, facts: PathFacts) -> None:
        """A launcher's number is a rank unless a line or torchrun's table says otherwise."""
        self._path = facts
        for label, ranks in self._by_label.items():
            kind, _, number = label.partition(" ")
            if kind in ("task", "local") and (len(ranks) > 1 or int(number) not in ranks):
                self._labels_are_ranks = False
        if any(local not in ranks or len(ranks) > 1 for local, ranks in self._locals.items()):
            self._labels_are_ranks = False
        if self._n_tasks * 2 < self._n_sampled:  # a program prints lines that begin with a number, too
            for label in [label for label in self._by_label if label.startswith("task ")]:
                del self._by_label[label]
            self._last = {key: value for key, value in self._last.items() if not key[1].startswith("task ")}
            self._has_tasks = False
        self._settle_members()

    def _settle_members(self) -> None:
        """The largest communicator is the world, unless a line is of a rank beyond it."""
        world = max((member.n_ranks for member in self._members), default=0)
        if world <= max(self._file_ranks, default=-1):
            return
        for member in self._members:
            if member.n_ranks == world:
                self._by_pid.setdefault(member.pid, set()).add(member.rank)
                self._hosts.setdefault(member.rank, member.node)

    def n_streams(self) -> int:
        """Those that a launcher told apart, or the file of one process."""
        return len(self._last) - (_WHOLE in self._last and not self._is_of_one)

    @property
    def _is_of_one(self) -> bool:
        return (self._path.rank, self._path.local, self._path.pid) != (MISSING, MISSING, MISSING)

    def outputs(self) -> Iterator[dict[str, Any]]:
        """The last thing that each stream printed: silence says something only of a rank whose log is here."""
        for key, output in self._last.items():
            yield {
                "line": output.line,
                "speaker": output.speaker,
                "near": output.speaker,
                "kind": "last-output",
                "text": output.text,
                "fields": {"first_line": self._first.get(key, output.line)}
                | ({"is_whole_file": True} if key == _WHOLE else {}),
            }

    def attribution(self, line: Line, fields: Fields) -> dict[str, Any]:
        rank, by = self._rank(line, fields)
        local = MISSING
        if line.label.startswith("local "):
            local = int(line.label.split()[1])
        elif self._path.local != MISSING:
            local = self._path.local
        host = line.host or self._hosts.get(rank, "") or str(fields.get("node", "")) or self._path.host
        named = fields.get("exit_pid", fields.get("nccl_pid"))
        pid = line.pid if named is None else named
        return {"rank": rank, "rank_from": by, "local_rank": local, "host": host, "pid": int(pid)}

    def _rank(self, line: Line, fields: Fields) -> tuple[int, str]:
        if "exit_rank" in fields:
            return int(fields["exit_rank"]), "table"
        if "xid" in fields or "killed_pid" in fields:  # the kernel's words, wherever they stand
            return MISSING, ""
        if "exit_pid" in fields or "tasks" in fields:  # of the process that it names, not of the launcher
            return self._named_rank(fields)
        if line.rank != MISSING:
            return line.rank, "prefix"
        known = self._by_label.get(line.label, set()) if line.label else set()
        if len(known) == 1:
            return next(iter(known)), "prefix"
        kind, _, number = line.label.partition(" ")
        is_rank = self._labels_are_ranks and (kind == "local" or (kind == "task" and self._has_tasks))
        if is_rank and kind in ("task", "local"):
            return int(number), kind
        named = self._by_pid.get(line.pid, set()) if line.pid != MISSING else self._by_pid.get(self._path.pid, set())
        if "nccl_pid" in fields:
            named = self._by_pid.get(int(fields["nccl_pid"]), set())
        if len(named) == 1:
            return next(iter(named)), "process"
        by_path = self._path_rank(line)
        if by_path[0] != MISSING:
            return by_path
        message = fields.get("says", fields)
        named_there = message.get("named_rank", message.get("waiting_rank"))
        return (int(named_there), "message") if named_there is not None else self._said_rank(line, fields)

    def _said_rank(self, line: Line, fields: Fields) -> tuple[int, str]:
        """Up to torch 2.1 a watchdog's own `[Rank 3]` is all there is; it is a rank inside of a group."""
        if "said_rank" not in fields or self._file_ranks:
            return MISSING, ""
        streams = [stream for stream, ranks in self._said.items() if fields["said_rank"] in ranks]
        is_one_each = len(streams) == 1 and (not line.label or len(self._said[line.label]) == 1)
        return (int(fields["said_rank"]), "watchdog") if is_one_each else (MISSING, "")

    def _path_rank(self, line: Line) -> tuple[int, str]:
        if line.label:
            return MISSING, ""
        if self._is_of_one and len(self._file_ranks) == 1:  # a file of one rank, some of whose lines say which
            return next(iter(self._file_ranks)), "file"
        if not self._file_ranks and self._path.rank != MISSING:
            return self._path.rank, "name"
        if not self._file_ranks and self._path.local != MISSING:
            return self._path.local, "local"
        return MISSING, ""

    def _named_rank(self, fields: Fields) -> tuple[int, str]:
        known = self._by_pid.get(int(fields.get("exit_pid", MISSING)), set())
        if len(known) == 1:
            return next(iter(known)), "process"
        if "local_rank" in fields and self._labels_are_ranks and not self._locals:
            return int(fields["local_rank"]), "local"
        tasks = str(fields.get("tasks", ""))
        if tasks.isdecimal() and self._labels_are_ranks and not self._has_agents:
            return int(tasks), "task"
        return MISSING, ""
