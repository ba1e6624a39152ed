"""The words for a capture and for a finding, the same in the terminal, on the page and in a notebook."""

from __future__ import annotations

from datetime import datetime, timezone

from rankscope.model.finding import (
    SEVERITIES,
    Capture,
    Check,
    Finding,
    GroupRef,
    Location,
    Report,
    StackGroup,
    count_noun,
    format_duration,
    format_ranks,
    ranks_phrase,
)

SOURCE_NOUNS = {
    "flight_recorder": "Flight Recorder dump",
    "execution_trace": "execution trace",
    "kineto": "profiler trace",
    "nsys": "Nsight Systems report",
    "compile_log": "compile log",
    "torch_logs": "TORCH_LOGS file",
    "thread_stacks": "stack file",
    "metrics": "metrics file",
    "manifest": "manifest",
    "desync": "desync report",
    "job_log": "job log",
}
MAX_HEADLINE = 400
MAX_WORLDS = 8
_ROLES = ("culprit", "peers", "waiting")  # labels of stacks that do not name ranks


# The capture


def sources_phrase(capture: Capture) -> str:
    named = [count_noun(n, SOURCE_NOUNS.get(name, f"{name} file")) for name, n in sorted(capture.sources.items())]
    return ", ".join(named) or "no trace"


def ranks_part(capture: Capture) -> str:
    n_ranks = len(capture.ranks)
    of_world = f"{n_ranks:,} of " if n_ranks < capture.world_size else ""
    return of_world + count_noun(max(n_ranks, capture.world_size), "rank")


def time_part(capture: Capture) -> list[str]:
    known = capture.first_ns is not None and capture.last_ns is not None
    return [time_span(capture.first_ns or 0, capture.last_ns or 0)] if known else []


def capture_parts(capture: Capture) -> list[str]:
    """Ranks, hosts, groups, calls, steps, devices and the time span, if known."""
    parts = [ranks_part(capture)]
    if capture.hosts:
        parts.append(count_noun(len(capture.hosts), "host"))
    if capture.n_groups:
        parts.append(count_noun(capture.n_groups, "process group"))
    if capture.n_calls:
        parts.append(count_noun(capture.n_calls, "call"))
    if capture.n_steps and capture.step_ns is not None:
        parts.append(f"{count_noun(capture.n_steps, 'step')} of {format_duration(capture.step_ns)}")
    if capture.devices:
        parts.append(" and ".join(capture.devices[:2]))
    return parts + time_part(capture)


def worlds_parts(capture: Capture) -> list[str]:
    """`trainer (2 ranks, 19 calls)`, one per world."""
    sizes = [max(len(world.ranks), world.world_size) for world in capture.worlds]
    counts = [", " + count_noun(world.n_calls, "call") if world.n_calls else "" for world in capture.worlds]
    listed = [
        f"{world.name} ({count_noun(size, 'rank')}{n_calls})"
        for world, size, n_calls in zip(capture.worlds[:MAX_WORLDS], sizes, counts, strict=False)
    ]
    n_more = len(capture.worlds) - len(listed)
    return [*listed, f"{n_more:,} more"] if n_more else listed


def time_span(first_ns: int, last_ns: int) -> str:
    first, last = (datetime.fromtimestamp(ns // 10**9, timezone.utc) for ns in (first_ns, last_ns))
    if first == last:
        return f"{first:%Y-%m-%d %H:%M:%S} UTC"
    end_format = "%H:%M:%S" if first.date() == last.date() else "%Y-%m-%d %H:%M:%S"
    return f"{first:%Y-%m-%d %H:%M:%S} to {last:{end_format}} UTC"


def skipped_phrases(checks: tuple[Check, ...]) -> list[str]:
    """The rules that were not checked, by reason, the most common reason first."""
    by_reason = skipped_by_reason(checks)
    reasons = sorted(by_reason, key=lambda why: -len(by_reason[why]))
    return [", ".join(by_reason[why]) + (f" ({why})" if why else "") for why in reasons]


def skipped_by_reason(checks: tuple[Check, ...]) -> dict[str, list[str]]:
    by_reason: dict[str, list[str]] = {}
    for check in checks:
        if check.status == "skipped":
            by_reason.setdefault(check.why, []).append(check.rule)
    return by_reason


def failed_phrases(checks: tuple[Check, ...]) -> list[str]:
    """The rules that ended in a bug of ours; those that share one are one line."""
    by_reason: dict[str, list[str]] = {}
    for check in checks:
        if check.status == "failed":
            by_reason.setdefault(check.why, []).append(check.rule)
    return [f"{', '.join(rules)}: {why}" for why, rules in by_reason.items()]


def found_counts(report: Report) -> list[str]:
    """1 error, 2 warnings, 3 notes: severities without findings are left out."""
    counts = [(severity, report.count(severity)) for severity in SEVERITIES]
    return [count_noun(n, "note" if severity == "info" else severity) for severity, n in counts if n]


def found_phrase(report: Report, *remarks: str) -> str:
    """`Found 1 error, 2 notes`, or `No problems found`, with the remarks in brackets."""
    counts = found_counts(report)
    has_problems = bool(report.count("error") or report.count("warning"))
    n_failed = sum(check.status == "failed" for check in report.checks)
    failed = f"{count_noun(n_failed, 'check')} failed" if n_failed else ""
    inside = "; ".join(filter(None, ("" if has_problems else ", ".join(counts), failed, *remarks)))
    return (f"Found {', '.join(counts)}" if has_problems else "No problems found") + (f" ({inside})" if inside else "")


# A finding


def headline(finding: Finding) -> str:
    """The title, as long as a line or two: a trace may hold a name of ten thousand letters."""
    return shortened(finding.title, MAX_HEADLINE)


def shortened(said: str, n_chars: int) -> str:
    """Without its middle where it is longer."""
    half = n_chars // 2
    return said if len(said) <= n_chars else f"{said[:half]} … {said[-half:]}"


def where_parts(finding: Finding) -> list[str]:
    """Where in the job: the group, the collective, and how long it has been waited for."""
    parts = [group_phrase(finding.group)] if finding.group else []
    if finding.collective:
        kind = "transfer" if finding.collective.p2p else "collective"
        # The comparison below shows the operation; without one it has to be said here.
        op = "" if finding.evidence.comparison else f" ({finding.collective.op})"
        parts.append(f"{kind} {finding.collective.seq}{op}")
    if finding.evidence.waiting_ns is not None:
        parts.append(f"waiting {format_duration(finding.evidence.waiting_ns)}")
    return parts


def group_phrase(group: GroupRef) -> str:
    desc = f' "{group.desc}"' if group.desc else ""
    members = count_noun(len(group.ranks), "rank") + (", members inferred" if group.inferred else "")
    return f"group {group.name}{desc} ({members}: {format_ranks(group.ranks, limit=4)})"


def peers_phrase(finding: Finding) -> str:
    """Who the others are: as the evidence names them, else the rest of the group."""
    culprits = set(finding.ranks)
    if finding.evidence.comparison:
        for side in finding.evidence.comparison.sides:
            if side.ranks and culprits.isdisjoint(side.ranks):
                return side.label or ranks_phrase(side.ranks)
    for stack in finding.evidence.stacks:
        if stack.frames and finding.peer_location in stack.frames and culprits.isdisjoint(stack.ranks):
            return stack_owners(stack)
    others = tuple(rank for rank in finding.group.ranks if rank not in culprits) if finding.group else ()
    return ranks_phrase(others) if others else ""


def stack_owners(stack: StackGroup) -> str:
    """Which ranks have the stack, by number: a label such as `waiting` says only what they do."""
    ranks = ranks_phrase(stack.ranks)
    if stack.label in _ROLES:
        return f"{ranks}, {stack.label}" if stack.label == "waiting" else ranks
    return stack.label or ranks


def merged_stacks(stacks: tuple[StackGroup, ...]) -> list[StackGroup]:
    """Ranks with the same stack become one entry, however the evidence listed them."""
    merged: dict[tuple[Location, ...], StackGroup] = {}
    for stack in stacks:
        known = merged.get(stack.frames)
        if known:
            ranks = tuple(sorted({*known.ranks, *stack.ranks}))
            stack = StackGroup(ranks, ranks_phrase(ranks), stack.frames, max(known.n_hidden, stack.n_hidden))
        merged[stack.frames] = stack
    return list(merged.values())


def restart_words(finding: Finding) -> str:
    """Whether the job can be restarted now."""
    words = {
        "restart": "now",
        "restart-without": f"now, without {', '.join(finding.action_hosts)}",
        "fix-first": "after the fix, or it will happen again",
        "collect-more": "when you know more: the data does not show the cause",
    }
    return words.get(finding.action, "")


def remarks_of(finding: Finding) -> list[tuple[str, str]]:
    """What to do and what is known, each with its label: help, restart, certain, likely or note."""
    evidence = finding.evidence
    remarks = [("help", finding.help)] if finding.help else []
    remarks += [("restart", restart_words(finding))] if finding.action else []
    remarks += [("certain", text) for text in evidence.certain]
    remarks += [("likely", text) for text in evidence.likely]
    remarks += [("note", text) for text in evidence.notes]
    return remarks
