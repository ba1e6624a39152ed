"""The events of a job's output, one attempt after the other, each with its role: cause, report, wait or consequence."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

import msgspec

from rankscope.analyze.derived import derived
from rankscope.model.finding import Location
from rankscope.model.numbers import rank_number
from rankscope.model.tables import MISSING, Trace

# What a rank says because another one made it wait, left, or told it to stop. It never names a culprit.
CONSEQUENCES = frozenset(
    (
        *("gloo-closed", "gloo-timeout", "gloo-connect", "remote-error", "comm-aborted", "store-gone", "store-wait"),
        *("barrier-victim", "told-to-stop", "agent-signal", "rendezvous", "unique-id", "watchdog-timeout"),
        *("store-unreachable", "watchdog-status", "dump-signal", "dump-observed", "watchdog-stuck", "cascade"),
        *("watchdog-fired", "dump-written", "taken-down", "hccl-wait", "hccl-connect", "network-peer", "nccl-closed"),
    )
)
REPORTS = frozenset(("detail-mismatch", "monitored-barrier", "init-missing", "gloo-mismatch"))
_NOT_OWN = frozenset(
    (
        *("SignalException", "ChildFailedError", "ProcessRaisedException", "ProcessExitedException"),
        *("KeyboardInterrupt", "SystemExit", "DistNetworkError", "DistStoreError"),
        *("CalledProcessError", "TrainingFailedError"),
    )
)
_OWN_NCCL_ERRORS = ("unhandled cuda error", "invalid usage", "invalid argument")  # not brought about by a peer
_BY_THEMSELVES = ("watchdog-error", "device-fault")  # end the process without a traceback
# Each of them shows that the job ended or waits in vain, be it only for what another rank did.
_FAILURES = frozenset(
    (
        *("told-to-stop", "restart", "watchdog-timeout", "agent-signal", "scheduler", "host-oom", "died", "killed"),
        *("dump-signal", "dump-observed", "watchdog-stuck", "watchdog-error", "hccl-wait", "hccl-connect", "segfault"),
    )
)
_BY_KIND = {"killed": -9, "segfault": -11}  # as a shell says it
_STREAM = re.compile(r"(?:std)?(?:out|err)(?:\.log)?|error\.json")
TOLERANCE_NS = 2 * 10**9  # clocks of hosts are trusted beyond this only


class Event(NamedTuple):
    file_id: int
    line: int
    rank: int
    host: str
    pid: int
    time_ns: int
    near_ns: int
    kind: str
    text: str
    fields: dict[str, Any]

    @property
    def says(self) -> str:
        """The kind of what a traceback's exception says; of other events their own."""
        inside = self.fields.get("says")
        return str(inside["kind"]) if isinstance(inside, dict) else self.kind

    @property
    def place(self) -> Location | None:
        frame = self.fields.get("place")
        return Location(str(frame["file"]), int(frame["line"]), str(frame["function"])) if frame else None

    def detail(self, name: str) -> Any:
        """A field of the event, or of the message inside its traceback."""
        inside = self.fields.get("says")
        return self.fields.get(name, inside.get(name) if isinstance(inside, dict) else None)


@dataclass(frozen=True)
class Attempt:
    """One start of the job: from its first line to its restart or end."""

    number: int
    is_only: bool
    events: tuple[Event, ...]

    def of(self, *kinds: str) -> list[Event]:
        return [event for event in self.events if event.kind in kinds]

    def saying(self, *kinds: str) -> list[Event]:
        return [event for event in self.events if event.says in kinds]

    @property
    def ranks(self) -> set[int]:
        """The ranks with at least one line."""
        return {event.rank for event in self.events if event.rank != MISSING and event.kind != "exit"}

    @property
    def world_size(self) -> int:
        sizes = [rank_number(str(event.detail(name))) for event in self.events for name in ("expected", "n_ranks")]
        known = {event.rank for event in self.events}
        return max([*sizes, max(known, default=-1) + 1])

    @property
    def hosts(self) -> dict[int, str]:
        return {event.rank: event.host for event in self.events if event.host and event.rank != MISSING}

    @property
    def stopped_pids(self) -> set[int]:
        """Processes that the launcher stopped itself."""
        return {int(event.fields["told_pid"]) for event in self.of("told-to-stop") if "told_pid" in event.fields}

    @property
    def exits(self) -> dict[int, Event]:
        """How each process ended that ended on its own, by rank; the launcher's table comes before its lines."""
        stopped = self.stopped_pids
        exits: dict[int, Event] = {}
        for event in self.of("exit"):
            if event.rank == MISSING or event.fields.get("exit_pid") in stopped or exit_code(event) in (-15, 143):
                continue
            if event.rank not in exits or "exit_rank" in event.fields:
                exits[event.rank] = event
        return exits

    @property
    def has_failed(self) -> bool:
        """The log shows that something ended the job or keeps it waiting, be it only a consequence."""
        return any(
            event.kind in _FAILURES
            or (event.kind == "exit" and exit_code(event) != 0)
            or (event.kind == "traceback" and (event.fields.get("is_hooked") or _is_parent(event)))
            for event in self.events
        )


def _is_parent(event: Event) -> bool:
    """mp.spawn's own exception: one of its processes failed."""
    return str(event.fields.get("type", "")).endswith(("ProcessRaisedException", "ProcessExitedException"))


def exit_code(event: Event) -> int | None:
    code = event.fields.get("exit_code", _BY_KIND.get(event.kind))
    if code is not None:
        return int(code)
    names = {"SIGKILL": -9, "SIGSEGV": -11, "SIGABRT": -6, "SIGBUS": -7, "SIGTERM": -15}
    signal = str(event.fields.get("signal") or "")
    if signal in names:
        return names[signal]
    number = event.fields.get("signal_number")
    if number is not None:
        return -int(number)
    how = {
        "Killed": -9,
        "Out Of Memory": -9,
        "Aborted": -6,
        "Segmentation fault": -11,
        "Bus error": -7,
        "Terminated": -15,
    }
    return how.get(str(event.fields.get("how") or ""))


def attempts_of(trace: Trace) -> list[Attempt]:
    return derived(trace, _attempts)


def _attempts(trace: Trace) -> list[Attempt]:
    names = ("file_id", "line", "host", "pid", "time_ns", "near_ns", "kind", "text")
    by_number: dict[int, list[Event]] = {}
    rows = list(trace.table("log_events").rows())
    unsure = _unsure_rows(trace, rows)
    for number, row in enumerate(rows):
        fields = msgspec.json.decode(row["fields"]) if row["fields"] else {}
        rank = MISSING if number in unsure else row["rank"]
        event = Event(**{name: row[name] for name in names}, rank=rank, fields=fields)
        by_number.setdefault(row["attempt"], []).append(event)
    return [Attempt(number, len(by_number) == 1, tuple(events)) for number, events in sorted(by_number.items())]


def _unsure_rows(trace: Trace, rows: list[dict[str, Any]]) -> set[int]:
    """Rows whose rank is only the number on a node, where the logs of several nodes are here."""
    paths = {row["file_id"]: str(row["path"]) for row in trace.table("files").rows()}
    places: dict[tuple[int, int], set[str]] = {}
    is_shifted = False
    for row in rows:
        if row["rank_from"] == "local":
            stream = _STREAM.sub("", paths.get(row["file_id"], ""))  # both streams of a process are of one rank
            places.setdefault((row["attempt"], row["rank"]), set()).add(stream)
        elif row["rank_from"] in ("prefix", "table") and row["local_rank"] != MISSING:
            is_shifted |= row["local_rank"] != row["rank"]
    is_unsure = is_shifted or any(len(each) > 1 for each in places.values())
    return {number for number, row in enumerate(rows) if is_unsure and row["rank_from"] == "local"}


def is_cause(attempt: Attempt, event: Event) -> bool:
    """True for a traceback or a fatal error that the process brought on itself and did not survive."""
    if event.kind in _BY_THEMSELVES:
        return True
    if event.kind not in ("traceback", "fatal") or event.fields.get("is_launcher"):
        return False
    if event.says == "loader-killed" and event.detail("signal") == "Terminated":  # it was told to stop
        return False
    if event.fields.get("is_ignored") or not event.fields.get("type"):  # without its last line it may be a victim's
        return False
    is_own = event.says == "port-taken"  # the store's, not another rank's
    if not is_own and str(event.fields.get("type", "")).rsplit(".", 1)[-1] in _NOT_OWN:
        return False
    if event.says in CONSEQUENCES or event.says in REPORTS or _is_broken_link(attempt, event):
        return False
    return was_uncaught(attempt, event)


def _is_broken_link(attempt: Attempt, event: Event) -> bool:
    """A connection between ranks or to the store that broke; one that the job's own code opened may be its fault."""
    if event.says == "hccl-error":
        return bool(attempt.saying("hccl-wait", "hccl-connect"))
    if event.says == "nccl-error":
        text = str(event.detail("text") or "")
        return not text.startswith(_OWN_NCCL_ERRORS) and not _have_all(attempt, "nccl-error")
    frames = event.fields.get("frames") or ()
    return event.says == "connection-reset" and any("torch/distributed" in str(frame.get("file")) for frame in frames)


def _have_all(attempt: Attempt, kind: str) -> bool:
    """All ranks say it: then it is not that one of them went away."""
    return attempt.ranks <= {event.rank for event in attempt.saying(kind)}


def surely_ended(attempt: Attempt, event: Event) -> bool:
    """The log shows that the process did not survive it, or at least that the job did not."""
    if event.kind in ("fatal", *_BY_THEMSELVES) or event.fields.get("is_hooked"):
        return True
    return attempt.has_failed and not event.fields.get("in_thread")


def was_uncaught(attempt: Attempt, event: Event) -> bool:
    """torch's hook prints only what nobody caught; any other traceback must be the last word of a job that failed."""
    if event.kind == "fatal" or event.fields.get("is_hooked"):
        return True
    if event.fields.get("n_after"):
        return False
    ended = attempt.exits.get(event.rank)
    if ended is not None:
        return exit_code(ended) != 0
    return attempt.has_failed or is_last(attempt, event)


def is_last(attempt: Attempt, event: Event) -> bool:
    outputs = [other for other in _last_outputs(attempt, event) if "is_whole_file" not in other.fields]
    same_rank = [other for other in outputs if other.rank == event.rank] or outputs
    n_frames = 3 * len(event.fields.get("frames") or ()) + 8
    return all(other.line <= event.line + n_frames for other in same_rank)


def ends_its_output(attempt: Attempt, event: Event) -> bool:
    """Hardly anything was printed after the last message of this kind."""
    last = max(other.line for other in attempt.of(event.kind) if other.file_id == event.file_id)
    outputs = _last_outputs(attempt, event)
    same_rank = [other for other in outputs if other.rank == event.rank] or outputs
    return all(other.line <= last + 1 for other in same_rank)


def _last_outputs(attempt: Attempt, event: Event) -> list[Event]:
    return [other for other in attempt.of("last-output") if other.file_id == event.file_id]


def is_before(first: Event, second: Event) -> bool | None:
    """Which came first: by line in one file, by time beyond the clocks' error between two; None if unknown."""
    if first.file_id == second.file_id:
        return first.line < second.line
    if first.time_ns == MISSING or second.time_ns == MISSING:
        return None
    return first.time_ns < second.time_ns if abs(first.time_ns - second.time_ns) > TOLERANCE_NS else None


def earliest(events: Iterable[Event]) -> list[Event]:
    """Those that nothing is known to precede, in a fixed order."""
    given = list(events)
    first = [event for event in given if not any(is_before(other, event) for other in given)]
    return sorted(first, key=lambda event: (event.rank, event.file_id, event.line))
