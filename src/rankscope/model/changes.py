"""What changed between two captures; `rankscope compare --json` prints this.

A is the capture before (or the good one), B the one after. In every list what costs most comes first.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from rankscope.model.compile_changes import CompileChanges
from rankscope.model.finding import SEVERITIES, Capture, Location, Severity

SCHEMA_NAME = "rankscope.changes/1"
FindingKind = Literal["new", "gone", "changed", "unchecked"]
TimeKind = Literal["new", "gone", "slower", "faster", "same"]
NumberKind = Literal["worse", "better", "higher", "lower", "same"]
Basis = Literal["step", "call"]
WORSE_TIMES: tuple[TimeKind, ...] = ("new", "slower")


class FindingChange(msgspec.Struct, frozen=True):
    """A finding that only one capture has, or that differs. Text and location are B's, unless it is gone.

    `unchecked`: the other capture could not be checked for it, so it is unknown whether it is new (or gone).
    """

    kind: FindingKind
    is_in_new: bool
    code: str
    rule: str
    severity: Severity
    old_severity: Severity | None
    title: str
    old_title: str
    group: str
    location: Location | None
    old_location: Location | None
    old_ranks: tuple[int, ...]
    new_ranks: tuple[int, ...]
    old_cost_ns: int | None
    new_cost_ns: int | None
    old_cost_pct: float | None
    new_cost_pct: float | None
    why: str = ""  # why the other capture was not checked

    @property
    def is_worse(self) -> bool:
        """True when B has it and A does not, as far as known, or when it became more severe."""
        if self.kind == "changed" and self.old_severity is not None:
            return SEVERITIES.index(self.severity) < SEVERITIES.index(self.old_severity)
        return self.is_in_new


class TimeChange(msgspec.Struct, frozen=True):
    """Time that something takes, on average over `ranks`, per rank and step or per call."""

    kind: TimeKind
    name: str
    source: str  # profiler, flight_recorder or metrics
    per: Basis
    old_ns: int | None
    new_ns: int | None
    noise_ns: int  # what a change has to be beyond
    ranks: tuple[int, ...] = ()  # those that it changed for; empty: for all
    part: str = ""  # of a collective: waiting, transfer, duration or arrival (how far apart the members join)
    group: str = ""
    location: Location | None = None
    old_location: Location | None = None
    old_count: float | None = None  # how often, per rank and step
    new_count: float | None = None
    waits_for: tuple[int, ...] = ()  # who comes last in B, mostly

    @property
    def change_ns(self) -> int:
        return (self.new_ns or 0) - (self.old_ns or 0)


class StepChange(msgspec.Struct, frozen=True):
    """The step of the whole job: of each step the median rank, and of these the median.

    Where that is the same, steps of B may still take longer than any of A by half a step: these are `slow_steps`.
    """

    kind: TimeKind
    source: str
    old_ns: int
    new_ns: int
    noise_ns: int
    old_mean_ns: int
    new_mean_ns: int
    n_old: int
    n_new: int
    slow_steps: tuple[int, ...] = ()
    slow_ns: int | None = None  # what these take, on average

    @property
    def is_worse(self) -> bool:
        return self.kind == "slower" or bool(self.slow_steps)


class NumberChange(msgspec.Struct, frozen=True):
    """A number that the job logged during training: the median over its steps, of the median rank."""

    kind: NumberKind
    name: str
    old: float
    new: float
    noise: float


class SetupChange(msgspec.Struct, frozen=True):
    """A condition under which the two captures were made."""

    name: str
    old: str
    new: str


class Changes(msgspec.Struct, frozen=True):
    """The whole comparison."""

    schema: str
    old: Capture
    new: Capture
    verdict: str
    worst: Severity | None  # of what got worse; None when nothing did
    findings: tuple[FindingChange, ...]
    step: StepChange | None
    parts: tuple[TimeChange, ...]  # where the time of a step goes
    collectives: tuple[TimeChange, ...]
    kernels: tuple[TimeChange, ...]
    compile: CompileChanges | None
    numbers: tuple[NumberChange, ...]
    setup: tuple[SetupChange, ...]
    not_compared: tuple[str, ...]
    notes: tuple[str, ...] = ()
