"""What rankscope says: findings, their evidence, and the report that holds them.

`rankscope ... --json` prints exactly these records, and the JSON schema in docs/ is generated from them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any, Literal

import msgspec

Severity = Literal["error", "warning", "info"]
# What to do with a job that ended: as it is, without some hosts, after a change to it, or not before more is known.
Action = Literal["restart", "restart-without", "fix-first", "collect-more", ""]
Certainty = Literal["certain", "likely", "possible"]
SEVERITIES: tuple[Severity, ...] = ("error", "warning", "info")
SCHEMA_NAME = "rankscope.report/1"


class Location(msgspec.Struct, frozen=True):
    """A place in the user's code."""

    file: str
    line: int
    function: str


class GroupRef(msgspec.Struct, frozen=True):
    """A process group; `inferred` says that its members were not recorded but inferred."""

    name: str
    desc: str
    ranks: tuple[int, ...]
    inferred: bool = False


class CollectiveRef(msgspec.Struct, frozen=True):
    """A logical collective, or a transfer when `p2p`."""

    seq: int
    op: str
    p2p: bool = False


class Side(msgspec.Struct, frozen=True):
    """One column of a comparison: the ranks that behaved alike and one cell per row."""

    label: str
    ranks: tuple[int, ...]
    cells: tuple[str, ...]


class Comparison(msgspec.Struct, frozen=True):
    """Both sides of the evidence, row by row; `mark` is the row where they first differ."""

    heading: str
    keys: tuple[str, ...]
    sides: tuple[Side, ...]
    mark: int = -1


class StackGroup(msgspec.Struct, frozen=True):
    """Ranks that share one call stack; torch's own frames are left out."""

    ranks: tuple[int, ...]
    label: str
    frames: tuple[Location, ...]
    n_hidden: int = 0


class Evidence(msgspec.Struct, frozen=True, omit_defaults=True):
    """Why the finding is true: what is certain, what is likely, and the data behind it."""

    certain: tuple[str, ...] = ()
    likely: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    comparison: Comparison | None = None
    stacks: tuple[StackGroup, ...] = ()
    waiting_ns: int | None = None
    n_blocked: int | None = None
    cost_pct: float | None = None  # share of the step, or of the capture where there are no steps
    cost_ns: int | None = None  # per step; of compilations: in all
    facts: dict[str, Any] = {}
    capture: int | None = None  # number of the world that it is about, if there are several (see capture.worlds)


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that is wrong. `ranks` are the culprits; `location` is their own line of code."""

    code: str = ""  # this and the next: filled in by the rule that yields it (see analyze/registry.py)
    rule: str = ""
    severity: Severity
    certainty: Certainty
    title: str
    ranks: tuple[int, ...] = ()
    group: GroupRef | None = None
    collective: CollectiveRef | None = None
    location: Location | None = None
    peer_location: Location | None = None
    evidence: Evidence = Evidence()
    help: str = ""
    action: Action = ""  # of findings about how a job ended
    action_hosts: tuple[str, ...] = ()  # the hosts to leave out, where the action is restart-without


class Check(msgspec.Struct, frozen=True):
    """Whether a rule could be checked, and if not, why."""

    rule: str
    status: Literal["ran", "skipped", "failed"]  # failed: by a bug of ours, which `why` describes
    why: str = ""


class WorldRef(msgspec.Struct, frozen=True):
    """One of several jobs that were alive side by side, each with a default group and ranks from 0."""

    number: int  # as `--capture N` and evidence.capture count
    name: str
    ranks: tuple[int, ...]
    world_size: int
    n_calls: int = 0
    first_ns: int | None = None
    last_ns: int | None = None


class AttemptRef(msgspec.Struct, frozen=True):
    """One start of a job that its launcher started again; `title` is what went wrong in it, empty if nothing did."""

    number: int  # restarts before it
    path: str
    ranks: tuple[int, ...]
    title: str = ""


class NodeRef(msgspec.Struct, frozen=True):
    """One node of the job, as its launcher counts them; `is_here`: whether its ranks wrote into this capture."""

    number: int
    host: str
    ranks: tuple[int, ...]
    is_here: bool = True


class Capture(msgspec.Struct, frozen=True):
    """The input: where it is, which ranks it covers, and which kinds of traces it has."""

    paths: tuple[str, ...]
    ranks: tuple[int, ...]
    world_size: int
    sources: dict[str, int]
    hosts: tuple[str, ...] = ()
    n_groups: int = 0
    n_calls: int = 0
    n_steps: int = 0  # that profiler traces hold, of the rank with the most
    step_ns: int | None = None  # the median of them
    devices: tuple[str, ...] = ()
    first_ns: int | None = None
    last_ns: int | None = None
    world: int | None = None  # where there are several: the one that the ranks, groups, calls and times here are of
    worlds: tuple[WorldRef, ...] = ()  # empty where there is but one
    attempts: tuple[AttemptRef, ...] = ()  # empty where the job was started once
    nodes: tuple[NodeRef, ...] = ()  # empty where the launcher does not say

    def shown_world(self) -> WorldRef | None:
        return next((world for world in self.worlds if world.number == self.world), None)


class Report(msgspec.Struct, frozen=True):
    """The answer: findings in order of importance, the first being the root cause."""

    schema: str
    capture: Capture
    findings: tuple[Finding, ...]
    checks: tuple[Check, ...]
    effects: tuple[Finding, ...] = ()

    @property
    def shown_findings(self) -> tuple[Finding, ...]:
        """Those of the world that the capture describes, where there are several; else all."""
        return tuple(finding for finding in self.findings if self.is_shown(finding))

    def is_shown(self, finding: Finding) -> bool:
        """False for a finding about another world than the one that the capture describes: its ranks are others."""
        return finding.evidence.capture in (None, self.capture.world)

    def count(self, severity: Severity) -> int:
        return sum(finding.severity == severity for finding in self.findings)

    def __str__(self) -> str:
        from rankscope.render.terminal import report_text

        return report_text(self)

    def __repr__(self) -> str:
        first = f"; first: {self.findings[0].code} {self.findings[0].title!r}" if self.findings else ""
        counts = ", ".join(f"{self.count(severity)} {severity}" for severity in SEVERITIES if self.count(severity))
        return f"<Report: {counts or 'no findings'}{first}>"

    def _repr_html_(self) -> str:
        from rankscope.render.notebook import report_html

        return report_html(self)


def finding_anchors(findings: Sequence[Finding]) -> list[str]:
    """How a page and a command name each finding: H102-1 is the first one of that code."""
    seen: Counter[str] = Counter()
    anchors = []
    for finding in findings:
        seen[finding.code] += 1
        anchors.append(f"{finding.code}-{seen[finding.code]}")
    return anchors


def format_ranks(ranks: tuple[int, ...] | list[int] | set[int], limit: int = 0) -> str:
    """Compresses a set of ranks: 0-511,513. Beyond `limit` parts the middle is left out: 1,17,...,1009."""
    ordered = sorted(set(ranks))
    parts: list[str] = []
    start = 0
    for end in range(1, len(ordered) + 1):
        if end == len(ordered) or ordered[end] != ordered[end - 1] + 1:
            first, last = ordered[start], ordered[end - 1]
            parts.append(str(first) if first == last else f"{first},{last}" if last == first + 1 else f"{first}-{last}")
            start = end
    if limit and len(parts) > limit:
        parts = [*parts[: limit - 1], "...", parts[-1]]
    return ",".join(parts)


def count_noun(number: int, noun: str, plural: str = "") -> str:
    return f"{number:,} {noun if number == 1 else plural or noun + 's'}"


def format_duration(nanoseconds: int) -> str:
    """For people: 10 min 0 s, 3.2 s, 41 ms."""
    seconds = nanoseconds / 1e9
    if seconds >= 3600:
        return f"{int(seconds // 3600)} h {int(seconds % 3600 // 60)} min"
    if seconds >= 60:
        return f"{int(seconds // 60)} min {int(seconds % 60)} s"
    if seconds >= 1:
        return f"{seconds:.1f} s"
    if seconds >= 0.001:
        return f"{seconds * 1e3:.0f} ms"
    return f"{seconds * 1e6:.0f} us"


def format_size(n_bytes: float) -> str:
    """For people: 3.2 GiB, 41.0 KiB."""
    for unit, scale in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if n_bytes >= scale:
            return f"{n_bytes / scale:.1f} {unit}"
    return f"{n_bytes:.0f} bytes"


def ranks_phrase(ranks: tuple[int, ...] | list[int] | set[int], limit: int = 6) -> str:
    """`rank 3`, `ranks 1,2`, `512 ranks (0-511)`."""
    if len(ranks) == 1:
        return f"rank {next(iter(ranks))}"
    if len(ranks) <= limit:
        return f"ranks {format_ranks(ranks)}"
    return f"{count_noun(len(ranks), 'rank')} ({format_ranks(ranks, limit)})"
