"""The answer about Chakra files: the rules they break, and how their graph replays."""

from __future__ import annotations

import re

import msgspec

from rankscope.model.numbers import rank_number

_RANK_IN_NAME = re.compile(r"\.(\d{1,9})\.et(?:\.\w+)?$")


def rank_of(path: str) -> int | None:
    """The rank that a file belongs to: simulators know it only from the name, <prefix>.<rank>.et."""
    match = _RANK_IN_NAME.search(path)
    return rank_number(match[1]) if match else None


class Problem(msgspec.Struct, frozen=True):
    rule: str
    severity: str  # error: the simulator stops, hangs or reads what is not there; warning: it runs, but not this job
    path: str
    rank: int | None
    node: int | None  # its id; None: the file as a whole
    name: str
    message: str
    help: str


class RuleCheck(msgspec.Struct, frozen=True):
    rule: str
    severity: str
    about: str
    status: str  # ran, skipped
    why: str  # of a skipped one
    n_broken: int


class RankReplay(msgspec.Struct, frozen=True):
    path: str
    rank: int | None
    n_nodes: int
    n_executed: int
    simulated_ns: int
    measured_ns: int
    ratio: float | None  # simulated to measured; None when the file has no start times


class StuckNode(msgspec.Struct, frozen=True):
    path: str
    rank: int | None
    node: int
    name: str
    waits_for: str


class Deadlock(msgspec.Struct, frozen=True):
    n_stuck: int
    nodes: tuple[StuckNode, ...]  # the first of those that hold up the others


class Replay(msgspec.Struct, frozen=True):
    ranks: tuple[RankReplay, ...]
    n_nodes: int
    n_executed: int
    simulated_ns: int
    measured_ns: int
    ratio: float | None
    deadlock: Deadlock | None


class Verdict(msgspec.Struct, frozen=True):
    paths: tuple[str, ...]
    n_nodes: int
    problems: tuple[Problem, ...]  # the first few of each rule, errors before warnings
    rules: tuple[RuleCheck, ...]  # all there are
    notes: tuple[str, ...]  # worth knowing, but no rule
    replay: Replay | None  # None: ids are not unique, so dependencies have no meaning
    valid: bool  # no rule of severity error is broken
    n_errors: int  # how often rules are broken, those left off `problems` included
    n_warnings: int
