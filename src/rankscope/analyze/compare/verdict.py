"""The one sentence that two captures come down to, and how bad it is."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import PurePath
from typing import NamedTuple

from rankscope.analyze.compare.collectives import ARRIVAL, DURATION, TRANSFER, WAITING
from rankscope.analyze.compare.steps import COMMUNICATING, COMPUTING
from rankscope.model.changes import WORSE_TIMES, FindingChange, StepChange, TimeChange
from rankscope.model.compile_changes import CompileChanges
from rankscope.model.finding import (
    SEVERITIES,
    Finding,
    Location,
    Severity,
    count_noun,
    format_duration,
    ranks_phrase,
)

NO_DIFFERENCE = "no difference beyond noise"
HOST = "host: "
MOST = 0.5


class Found(NamedTuple):
    """All that was compared."""

    findings: Sequence[FindingChange]
    step: StepChange | None
    parts: Sequence[TimeChange]
    collectives: Sequence[TimeChange]
    kernels: Sequence[TimeChange]
    compile: CompileChanges | None
    shared: Sequence[Finding]  # findings of B that A has as well


def worst_change(found: Found) -> Severity | None:
    """Findings count as what they are, everything that is slower or compiled worse as a warning."""
    severities = {change.severity for change in found.findings if change.is_worse}
    if _is_slower(found) or (found.compile is not None and found.compile.is_worse):
        severities.add("warning")
    return next((severity for severity in SEVERITIES if severity in severities), None)


def _is_slower(found: Found) -> bool:
    """Where steps are known they decide: what is slower without making the step longer is told, but costs nothing."""
    return found.step.is_worse if found.step else bool(_slower_calls(found))


def _slower_calls(found: Found) -> list[TimeChange]:
    slower = [time for time in (*found.collectives, *found.kernels) if time.kind == "slower"]
    return sorted(slower, key=lambda time: -time.change_ns)


def verdict(found: Found) -> str:
    return next(_verdicts(found))


def _verdicts(found: Found) -> Iterator[str]:
    """Worse before better, certain before likely."""
    new, gone = _by_kind(found, "new", "unchecked", is_in_new=True), _by_kind(found, "gone", is_in_new=False)
    new_errors, gone_errors = ([one for one in side if one.severity == "error"] for side in (new, gone))
    if new_errors:
        yield _new_error(new_errors, gone_errors)
    if found.step and found.step.is_worse:
        yield _step_words(found.step, found)
    if found.compile and (worse := compile_words(found.compile)):
        yield worse
    for kind, than_a in (("new", "A has not"), ("unchecked", "A could not be checked for")):
        warnings = [change for change in new if change.severity == "warning" and change.kind == kind]
        if warnings:
            yield f"B has {count_noun(len(warnings), 'warning')} that {than_a}: {finding_words(warnings[0])}"
    if not found.step and (slower := _slower_calls(found)):
        yield f"B is slower than A: {call_words(slower[0])}"
    if gone_errors:
        does = "B does not hang where A did" if _is_hang(gone_errors[0]) else "B is without an error of A"
        yield f"{does}: {finding_words(gone_errors[0])}"
    if found.step and found.step.kind == "faster":
        yield _step_words(found.step, found)
    gone_warnings = [change for change in gone if change.severity == "warning"]
    if gone_warnings:
        yield f"B is without {count_noun(len(gone_warnings), 'warning')} of A: {finding_words(gone_warnings[0])}"
    yield "; ".join(_same(found))


def _same(found: Found) -> Iterator[str]:
    n_other = sum(time.kind != "same" for time in (*found.collectives, *found.kernels))
    others = count_noun(n_other, "collective or kernel takes", "collectives or kernels take")
    yield f"{NO_DIFFERENCE} in the step, {others} another time" if n_other and found.step else NO_DIFFERENCE
    errors = [one for one in found.shared if one.severity == "error"]
    if errors:
        yield f"both have {errors[0].severity}[{errors[0].code}] {errors[0].title}"


def _by_kind(found: Found, *kinds: str, is_in_new: bool) -> list[FindingChange]:
    return [change for change in found.findings if change.kind in kinds and change.is_in_new == is_in_new]


def _is_hang(change: FindingChange) -> bool:
    return change.code.startswith("H")


def finding_words(change: FindingChange) -> str:
    return f"{change.severity}[{change.code}] {change.title}"


def _new_error(errors: Sequence[FindingChange], gone: Sequence[FindingChange]) -> str:
    first = errors[0]
    words = finding_words(first)
    if first.kind == "unchecked":
        return f"B {'hangs' if _is_hang(first) else 'has an error'}, A could not be checked for it: {words}"
    if not _is_hang(first):
        return f"B has an error that A has not: {words}"
    does = "hangs for another reason than A" if any(map(_is_hang, gone)) else "hangs where A did not"
    return f"B {does}: {words}"


def compile_words(changes: CompileChanges) -> str:
    """What torch.compile does worse, by its first case; empty when it does nothing worse."""
    for noun, plural, found in (
        ("failure to compile", "failures to compile", changes.failures),
        ("graph break", "graph breaks", changes.graph_breaks),
        ("reason to recompile", "reasons to recompile", changes.recompiles),
    ):
        worse = [change for change in found if change.kind in ("new", "more")]
        if worse:
            first = worse[0]
            place = f" at {PurePath(first.file).name}:{first.line}" if first.file else ""
            return f"B has {count_noun(len(worse), noun, plural)} more than A: {first.what}{place}"
    return ""


# The step, and what most of its change is


class _Cause(NamedTuple):
    words: str
    change_ns: int


def _step_words(step: StepChange, found: Found) -> str:
    if step.slow_steps and step.slow_ns is not None:
        change = step.slow_ns - step.old_ns
        n_slow, times = (
            len(step.slow_steps),
            f"{format_duration(step.slow_ns)} instead of {format_duration(step.old_ns)}",
        )
        text = f"B is slower than A in {n_slow} of {count_noun(step.n_new, 'step')}: {times}"
    else:
        change = step.new_ns - step.old_ns
        times = f"{format_duration(step.old_ns)} -> {format_duration(step.new_ns)} a step"
        text = f"{_how_much(step)}: {times}"
    sign = 1 if change > 0 else -1
    causes = sorted(_causes(found, sign), key=lambda cause: -sign * cause.change_ns)
    if not causes:
        return text
    first = causes[0]
    share_words = "the most of it" if abs(first.change_ns) >= MOST * abs(change) else "the largest part of it"
    return f"{text}; {share_words} ({format_duration(abs(first.change_ns))}) is {first.words}"


def _how_much(step: StepChange) -> str:
    ratio = step.new_ns / step.old_ns
    if ratio >= 2:
        return f"B takes {ratio:.1f} times as long as A"
    return f"B is {100 * abs(ratio - 1):.0f} % {'slower' if ratio > 1 else 'faster'} than A"


def _causes(found: Found, sign: int) -> Iterator[_Cause]:
    """Work and transfers; who waits, waits for one of these, so waiting is named only where nothing else changed."""
    kinds = ("slower", "new") if sign > 0 else ("faster", "gone")
    parts = [part for part in found.parts if part.kind in kinds]
    causes = [*_work(parts, found.kernels, kinds), *_transfers(found, parts, kinds)]
    yield from causes
    if not causes:
        for time in found.collectives:
            if time.kind in kinds and time.part in (WAITING, DURATION) and time.source == "profiler":
                yield _Cause(call_name(time), time.change_ns)


def _work(parts: Sequence[TimeChange], kernels: Sequence[TimeChange], kinds: Sequence[str]) -> Iterator[_Cause]:
    host: dict[tuple[int, ...], list[TimeChange]] = {}
    for part in parts:
        if part.name.startswith(HOST):
            host.setdefault(part.ranks, []).append(part)
        elif part.name == COMPUTING:
            own = [time for time in kernels if time.kind in kinds and _share_ranks(time.ranks, part.ranks)]
            first = max(own, key=lambda time: abs(time.change_ns), default=None)
            above = f", above all {short_name(first.name)} ({format_duration(abs(first.change_ns))})" if first else ""
            yield _Cause(f"computing{_on(part.ranks)}{above}", part.change_ns)
        elif part.name != COMMUNICATING:
            yield _Cause(f"{part.name}{_on(part.ranks)}", part.change_ns)
    for ranks, own in host.items():
        whole = sum(part.change_ns for part in own)
        largest = max(own, key=lambda part: abs(part.change_ns))
        named = f": {largest.name.removeprefix(HOST)}" if abs(largest.change_ns) >= MOST * abs(whole) else ""
        yield _Cause(f"time of the host{_on(ranks)}{named}", whole)


def _transfers(found: Found, parts: Sequence[TimeChange], kinds: Sequence[str]) -> Iterator[_Cause]:
    """Transfers cost the step no more than communication is seen to."""
    seen = max((abs(part.change_ns) for part in parts if part.name == COMMUNICATING), default=0)
    for time in found.collectives:
        if seen and time.kind in kinds and time.part == TRANSFER and time.source == "profiler":
            cost = min(abs(time.change_ns), seen)
            yield _Cause(call_name(time), cost if time.kind in WORSE_TIMES else -cost)


def _share_ranks(ours: Sequence[int], theirs: Sequence[int]) -> bool:
    return not ours or not theirs or not set(ours).isdisjoint(theirs)


def _on(ranks: tuple[int, ...]) -> str:
    return f" on {ranks_phrase(ranks)}" if ranks else ""


def short_name(kernel: str) -> str:
    """A kernel without its result type, template arguments and parameters."""
    bare = kernel.removeprefix("void ").replace("(anonymous namespace)::", "")
    return bare.partition("<")[0].partition("(")[0].strip() or kernel


def call_words(time: TimeChange) -> str:
    """`all_reduce (tp) at model.py:42: members join 82 ms apart instead of 2 ms, the last is rank 34`."""
    old, new = format_duration(time.old_ns or 0), format_duration(time.new_ns or 0)
    if time.part == ARRIVAL:
        last = f", the last is mostly {ranks_phrase(time.waits_for)}" if time.waits_for else ""
        return f"{call_name(time)}: its members join {new} apart instead of {old}{last}"
    return f"{call_name(time)} takes {new} instead of {old} a {time.per}{_on(time.ranks)}"


def call_name(time: TimeChange) -> str:
    """`waiting in all_reduce (dp) at train.py:212, mostly for rank 7`."""
    group = f" ({time.group})" if time.group else ""
    name = f"{time.name if time.part else short_name(time.name)}{group}{_at(time.location)}"
    if time.part == WAITING:
        return f"waiting in {name}" + (f", mostly for {ranks_phrase(time.waits_for)}" if time.waits_for else "")
    return f"moving the data of {name}" if time.part == TRANSFER else name


def _at(location: Location | None) -> str:
    return f" at {PurePath(location.file).name}:{location.line}" if location else ""
