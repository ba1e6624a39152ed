"""Builds small jobs by hand: each rank's calls in compact words, through the shared steps, without any file.

A call reads `dp:1 all_reduce [8] f32 done @loop.py:10`: description and name of the group, operation, then in any order

- sizes: `[8]`, `[8]->[16]`, `[8][4]->[16]` (several tensors), `[8]->` (no output);
- type: a key of TYPES;
- state: done, waiting (when none is given), started, aborted (completed after its time-out) or failed;
- `@file:line` for the user's line, `#7` for a sequence number out of the row, `^3` for the number that the process gave
  the group, `+20` for the time of the call and `=25` for the time of its end (milliseconds), `gloo` for the other
  backend, `member` and `batch` for coalesced groups.

`send>1` and `recv<0` name the other side by its position in the group.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from rankscope.analyze import run_rules
from rankscope.analyze.hangs.clocks import align_clocks
from rankscope.analyze.hangs.groups import resolve_groups
from rankscope.analyze.hangs.matching import match_collectives
from rankscope.analyze.stages import table_makers
from rankscope.model.finding import Finding
from rankscope.model.tables import MISSING, Table, Trace

START_NS = 1_700_000_000_000_000_000
MS = 1_000_000
TIMEOUT_NS = 600_000 * MS
TYPES = {"f32": ("Float", 4), "bf16": ("BFloat16", 2), "i64": ("Long", 8)}
STATES = ("done", "waiting", "started", "aborted", "failed")
_TRANSFER = re.compile(r"^(send|recv)[<>](\d+)$")

Programs = Mapping[int, Sequence[str]]


@dataclass(frozen=True)
class Setting:
    """What the dumps say beside the calls. A rank that only `config` names has left no dump."""

    config: Mapping[str, Sequence[Sequence[int]]] | None = None  # name -> member lists; None: whoever uses the name
    silent: frozenset[int] = frozenset()  # ranks whose dump has no configuration
    dropped: Mapping[int, int] = field(default_factory=dict)
    counters: Mapping[tuple[int, str], tuple[int, int]] = field(default_factory=dict)  # last enqueued, last completed
    hosts: Mapping[int, str] = field(default_factory=dict)
    damaged: frozenset[int] = frozenset()


def job(programs: Programs, setting: Setting | None = None) -> Trace:
    """A trace as the rules see it: groups resolved, clocks aligned, calls matched."""
    trace = unresolved(programs, setting)
    trace.tables.update(resolve_groups(trace))
    trace.tables.update(align_clocks(trace))
    trace.tables.update(match_collectives(trace))
    trace.makers = table_makers()
    return trace


def unresolved(programs: Programs, setting: Setting | None = None) -> Trace:
    """The tables as readers leave them."""
    setting = setting or Setting()
    sites = _Sites()
    rows = [row for rank, calls in programs.items() for row in _program_rows(rank, calls, sites)]
    return Trace(
        ("traces",),
        {
            "files": Table.from_rows("files", [_file_row(rank, setting) for rank in programs]),
            "ranks": Table.from_rows("ranks", [_rank_row(rank, calls, setting) for rank, calls in programs.items()]),
            "group_config": Table.from_rows("group_config", list(_config_rows(programs, rows, setting))),
            "group_status": Table.from_rows("group_status", list(_status_rows(setting))),
            "collectives": Table.from_rows("collectives", rows),
            "stacks": Table.from_rows("stacks", sites.stack_rows),
            "frames": Table.from_rows("frames", sites.frame_rows),
        },
    )


class _Sites:
    """Stacks of two frames: one of torch, and the user's line."""

    def __init__(self) -> None:
        self.frame_rows: list[dict[str, Any]] = [
            {"frame_id": 0, "file": "torch/distributed/ops.py", "line": 1, "function": "wrapper", "is_user": False}
        ]
        self.stack_rows: list[dict[str, Any]] = []
        self._stack_of: dict[str, int] = {}

    def stack(self, site: str) -> tuple[int, int]:
        """Numbers of the stack and of its user frame."""
        if site not in self._stack_of:
            number = self._stack_of[site] = len(self._stack_of)
            file, line = site.rsplit(":", 1)
            frame = {"frame_id": number + 1, "file": file, "line": int(line), "function": "step", "is_user": True}
            self.frame_rows.append(frame)
            self.stack_rows += [
                {"stack_id": number, "depth": depth, "frame_id": frame_id}
                for depth, frame_id in enumerate((0, number + 1))
            ]
        return self._stack_of[site], self._stack_of[site] + 1


def _program_rows(rank: int, calls: Sequence[str], sites: _Sites) -> Iterable[dict[str, Any]]:
    next_seq: dict[str, int] = defaultdict(lambda: 1)
    n_transfers: dict[tuple[str, int | None], int] = defaultdict(int)
    for position, text in enumerate(calls):
        row = _call_row(text, START_NS + position * MS, sites)
        name = row["group_name"]
        # A transfer, and a member of a coalesced group, shows the number of the group's current collective.
        counts = not row["is_p2p"] and row["role"] != "member"
        row.setdefault("seq", next_seq[name] - (1 if row["is_p2p"] else 0))
        n_transfers[name, row.get("pg_id")] += row["is_p2p"]
        row["p2p_seq"] = n_transfers[name, row.get("pg_id")]
        next_seq[name] = row["seq"] + 1 if counts else next_seq[name]
        yield {**row, "file_id": rank, "rank": rank, "record_id": position}


def _call_row(text: str, created_ns: int, sites: _Sites) -> dict[str, Any]:
    group, op, *words = text.split()
    desc, _, name = group.rpartition(":")
    row: dict[str, Any] = {"group_name": name, "group_desc": desc, "op": op, "peer": MISSING, "role": "call"}
    transfer = _TRANSFER.match(op)
    if transfer:
        row.update(op=transfer[1], peer=int(transfer[2]))
    row.update(is_p2p=transfer is not None, backend="nccl", stack_id=MISSING, created_ns=created_ns)
    sizes, kind, state, ended_ns = "" if op == "barrier" else "[8]", "f32", "waiting", 0
    for word in words:
        if "[" in word:
            sizes = word
        elif word in TYPES:
            kind = word
        elif word in STATES:
            state = word
        elif word[0] == "@":
            row["stack_id"], row["site_id"] = sites.stack(word[1:])
        elif word[0] == "#":
            row["seq"] = int(word[1:])
        elif word[0] == "^":
            row["pg_id"] = int(word[1:])
        elif word[0] == "+":
            row["created_ns"] = START_NS + int(word[1:]) * MS
        elif word[0] == "=":
            ended_ns = START_NS + int(word[1:]) * MS
        elif word in ("member", "batch"):
            row["role"] = word
        else:
            assert word in ("gloo", "p2p"), f"unknown word {word} in {text}"
            row.update({"backend": "gloo"} if word == "gloo" else {"is_p2p": True})
    return {**row, **_shape_columns(sizes, kind), **_state_columns(row, state, ended_ns)}


def _shape_columns(sizes: str, kind: str) -> dict[str, Any]:
    inputs, arrow, outputs = sizes.partition("->")
    columns: dict[str, Any] = {}
    for side, text in (("input", inputs), ("output", outputs if arrow else inputs)):
        shapes = [[int(extent) for extent in part.split(",") if extent] for part in re.findall(r"\[([\d,]*)\]", text)]
        type_name, n_bytes = TYPES[kind]
        columns[f"{side}_sizes"] = _to_json(shapes)
        columns[f"{side}_dtypes"] = _to_json([type_name] * len(shapes))
        columns[f"n_{side}_bytes"] = sum(math.prod(shape) for shape in shapes) * n_bytes
    return columns


def _state_columns(row: Mapping[str, Any], state: str, ended_ns: int) -> dict[str, Any]:
    """As the recorder writes it: gloo never leaves `scheduled`, and an aborted call looks complete."""
    created, has_states = row["created_ns"], row["backend"] != "gloo"
    columns: dict[str, Any] = {"state": "scheduled", "timeout_ns": TIMEOUT_NS, "retired": state in ("done", "failed")}
    if state == "started":
        columns.update(state="started", started_ns=created + MS)
    if state in ("done", "aborted") and has_states:
        ended = created + TIMEOUT_NS + 1000 * MS if state == "aborted" else ended_ns or created + MS
        columns.update(state="completed", retired=True, completed_ns=ended)
    return columns


def _file_row(rank: int, setting: Setting) -> dict[str, Any]:
    status = "damaged" if rank in setting.damaged else "read"
    return {"file_id": rank, "path": f"traces/rank_{rank}", "source": "hand", "rank": rank, "status": status}


def _rank_row(rank: int, calls: Sequence[str], setting: Setting) -> dict[str, Any]:
    return {
        "rank": rank,
        "file_id": rank,
        "host": setting.hosts.get(rank, ""),
        "n_calls": len(calls),
        "n_dropped": setting.dropped.get(rank, 0),
        "clock_offset_ns": 0,
    }


def _config_rows(programs: Programs, rows: Sequence[Mapping[str, Any]], setting: Setting) -> Iterable[dict[str, Any]]:
    config = setting.config
    if config is None:
        names = dict.fromkeys(row["group_name"] for row in rows)
        config = {name: [sorted({row["rank"] for row in rows if row["group_name"] == name})] for name in names}
    for name, member_lists in config.items():
        for members in member_lists:
            # A nameless entry is every process's own view of the world.
            for rank in programs if not name else members:
                if rank in programs and rank not in setting.silent:
                    yield {"file_id": rank, "rank": rank, "name": name, "members": _to_json(list(members))}


def _status_rows(setting: Setting) -> Iterable[dict[str, Any]]:
    for number, ((rank, name), (enqueued, completed)) in enumerate(setting.counters.items()):
        yield {
            "file_id": rank,
            "rank": rank,
            "pg_id": number,
            "group_name": name,
            "last_enqueued": enqueued,
            "last_completed": completed,
        }


def _to_json(value: Any) -> str:
    return msgspec.json.encode(value).decode()


def hashed_name(members: Sequence[int], counter: int) -> str:
    """The name that torch derives from the members of a group."""
    return hashlib.sha1(("_".join(map(str, members)) + f"_{counter}").encode(), usedforsecurity=False).hexdigest()


def with_rows(trace: Trace, table: str, rows: Sequence[Mapping[str, Any]]) -> Trace:
    """The same trace with another table in place of its own."""
    return Trace(trace.paths, {**trace.tables, table: Table.from_rows(table, rows)})


def column(trace: Trace, table: str, name: str) -> list[Any]:
    values: list[Any] = trace.table(table).columns[name].tolist()
    return values


def findings(trace: Trace) -> list[Finding]:
    return run_rules(trace)[0]


def effects(trace: Trace) -> list[Finding]:
    return run_rules(trace)[1]


def root_cause(trace: Trace) -> Finding:
    """The only finding of severity error; more than one would mean that effects are listed as causes."""
    errors = [finding for finding in findings(trace) if finding.severity == "error"]
    assert len(errors) == 1, [finding.title for finding in errors]
    return errors[0]


def verdict(trace: Trace) -> tuple[str, tuple[int, ...], str]:
    """Rule, culprits and certainty of the root cause."""
    cause = root_cause(trace)
    return cause.rule, cause.ranks, cause.certainty


def lines(cause: Finding) -> tuple[int | None, int | None]:
    """Lines of the culprits and of their peers."""
    own, peer = cause.location, cause.peer_location
    return own.line if own else None, peer.line if peer else None


def alarms(trace: Trace) -> list[str]:
    """Titles of everything that is said to be wrong with the job; empty for a healthy one."""
    return [finding.title for finding in findings(trace) if finding.severity != "info"]


def found(trace: Trace, code: str) -> Finding:
    """The one finding with this code."""
    (finding,) = [finding for finding in findings(trace) if finding.code == code]
    return finding
