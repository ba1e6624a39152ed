"""The one sentence that sums up two captures, and how bad it is."""

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


class Compared(NamedTuple):
    """Everything that was compared."""

    findings: Sequence[FindingChange]
    step: StepChange | None
    parts: Sequence[TimeChange]
    collectives: Sequence[TimeChange]
    kernels: Sequence[TimeChange]
    compile: CompileChanges | None
    shared: Sequence[Finding]  # findings of B that A has too


def worst_change(compared: Compared) -> Severity | None:
    """Findings keep their severity; anything that is slower or compiled worse counts as a warning."""
    severities = {change.severity for change in compared.findings if change.is_worse}
    if _is_slower(compared) or (compared.compile is not None and compared.compile.is_worse):
        severities.add("warning")
    return next((severity for severity in SEVERITIES if severity in severities), None)


def _is_slower(compared: Compared) -> bool:
    """If steps are known, they decide: what is slower without making the step longer is shown, but costs nothing."""
    return compared.step.is_worse if compared.step else bool(_slower_calls(compared))


def _slower_calls(compared: Compared) -> list[TimeChange]:
    slower = [time for time in (*compared.collectives, *compared.kernels) if time.kind == "slower"]
    return sorted(slower, key=lambda time: -time.change_ns)


def verdict(compared: Compared) -> str:
    return next(_verdicts(compared))


def _verdicts(compared: Compared) -> Iterator[str]:
    """Worse before better, certain before likely."""
    new, gone = _by_kind(compared, "new", "unchecked", is_in_new=True), _by_kind(compared, "gone", is_in_new=False)
    new_errors, gone_errors = ([one for one in side if one.severity == "error"] for side in (new, gone))
    if new_errors:
        yield _new_error(new_errors, gone_errors)
    if compared.step and compared.step.is_worse:
        yield _step_words(compared.step, compared)
    if compared.compile and (worse := compile_words(compared.compile)):
        yield worse
    for kind, than_a in (("new", "A does not have"), ("unchecked", "A could not be checked for")):
        warnings = [change for change in new if change.severity == "warning" and change.kind == kind]
        if warnings:
            yield f"B has {count_noun(len(warnings), 'warning')} that {than_a}: {finding_words(warnings[0])}"
    if not compared.step and (slower := _slower_calls(compared)):
        yield f"B is slower than A: {call_words(slower[0])}"
    if gone_errors:
        does = "B does not hang where A did" if _is_hang(gone_errors[0]) else "B no longer has an error of A"
        yield f"{does}: {finding_words(gone_errors[0])}"
    if compared.step and compared.step.kind == "faster":
        yield _step_words(compared.step, compared)
    gone_warnings = [change for change in gone if change.severity == "warning"]
    if gone_warnings:
        yield f"B no longer has {count_noun(len(gone_warnings), 'warning')} of A: {finding_words(gone_warnings[0])}"
    yield "; ".join(_same(compared))


def _same(compared: Compared) -> Iterator[str]:
    n_other = sum(time.kind != "same" for time in (*compared.collectives, *compared.kernels))
    others = count_noun(n_other, "collective or kernel takes", "collectives or kernels take")
    yield f"{NO_DIFFERENCE} in the step, but {others} a different time" if n_other and compared.step else NO_DIFFERENCE
    errors = [one for one in compared.shared if one.severity == "error"]
    if errors:
        yield f"both have {errors[0].severity}[{errors[0].code}] {errors[0].title}"


def _by_kind(compared: Compared, *kinds: str, is_in_new: bool) -> list[FindingChange]:
    return [change for change in compared.findings if change.kind in kinds and change.is_in_new == is_in_new]


def _is_hang(change: FindingChange) -> bool:
    return change.code.startswith("H")


def finding_words(change: FindingChange) -> str:
    return f"{change.severity}[{change.code}] {change.title}"


def _new_error(errors: Sequence[FindingChange], gone: Sequence[FindingChange]) -> str:
    first = errors[0]
    words = finding_words(first)
    if first.kind == "unchecked":
        return f"B {'hangs' if _is_hang(first) else 'has an error'}; A could not be checked for it: {words}"
    if not _is_hang(first):
        return f"B has an error that A does not have: {words}"
    does = "hangs for a different reason than A" if any(map(_is_hang, gone)) else "hangs where A did not"
    return f"B {does}: {words}"


def compile_words(changes: CompileChanges) -> str:
    """What torch.compile does worse, with its first case; empty if it does nothing worse."""
    for noun, plural, compared in (
        ("failure to compile", "failures to compile", changes.failures),
        ("graph break", "graph breaks", changes.graph_breaks),
        ("reason to recompile", "reasons to recompile", changes.recompiles),
    ):
        worse = [change for change in compared if change.kind in ("new", "more")]
        if worse:
            first = worse[0]
            where = f" at {PurePath(first.file).name}:{first.line}" if first.file else ""
            return f"B has {len(worse):,} more {noun if len(worse) == 1 else plural} than A: {first.what}{where}"
    return ""


# The step, and what most of its change comes from


class _Cause(NamedTuple):
    words: str
    change_ns: int


def _step_words(step: StepChange, compared: Compared) -> str:
    if step.slow_steps and step.slow_ns is not None:
        change = step.slow_ns - step.old_ns
        n_slow, times = (
            len(step.slow_steps),
            f"{format_duration(step.slow_ns)} instead of {format_duration(step.old_ns)}",
        )
        text = f"B is slower than A in {n_slow} of {count_noun(step.n_new, 'step')}: {times}"
    else:
        change = step.new_ns - step.old_ns
        times = f"{format_duration(step.old_ns)} -> {format_duration(step.new_ns)} per step"
        text = f"{_how_much(step)}: {times}"
    sign = 1 if change > 0 else -1
    causes = sorted(_causes(compared, sign), key=lambda cause: -sign * cause.change_ns)
    if not causes:
        return text
    first = causes[0]
    share_words = "most of it" if abs(first.change_ns) >= MOST * abs(change) else "the largest part of it"
    return f"{text}; {share_words} ({format_duration(abs(first.change_ns))}) is {first.words}"


def _how_much(step: StepChange) -> str:
    ratio = step.new_ns / step.old_ns
    if ratio >= 2:
        return f"B takes {ratio:.1f} times as long as A"
    return f"B is {100 * abs(ratio - 1):.0f}% {'slower' if ratio > 1 else 'faster'} than A"


def _causes(compared: Compared, sign: int) -> Iterator[_Cause]:
    """Work and transfers. Waiting is always for one of these, so it is named only if nothing else changed."""
    kinds = ("slower", "new") if sign > 0 else ("faster", "gone")
    parts = [part for part in compared.parts if part.kind in kinds]
    causes = [*_work(parts, compared.kernels, kinds), *_transfers(compared, parts, kinds)]
    yield from causes
    if not causes:
        for time in compared.collectives:
            if time.kind in kinds and time.part in (WAITING, DURATION) and time.source == "profiler":
                yield _Cause(call_name(time), time.change_ns)


def _work(parts: Sequence[TimeChange], kernels: Sequence[TimeChange], kinds: Sequence[str]) -> Iterator[_Cause]:
    host: dict[tuple[int, ...], list[TimeChange]] = {}
    for part in parts:
        if part.name.startswith(HOST):
            host.setdefault(part.ranks, []).append(part)
        elif part.name == COMPUTING:
            slower = [time for time in kernels if time.kind in kinds and _share_ranks(time.ranks, part.ranks)]
            first = max(slower, key=lambda time: abs(time.change_ns), default=None)
            above = f", mostly {short_name(first.name)} ({format_duration(abs(first.change_ns))})" if first else ""
            yield _Cause(f"computing{_on(part.ranks)}{above}", part.change_ns)
        elif part.name != COMMUNICATING:
            yield _Cause(f"{part.name}{_on(part.ranks)}", part.change_ns)
    for ranks, on_host in host.items():
        whole = sum(part.change_ns for part in on_host)
        largest = max(on_host, key=lambda part: abs(part.change_ns))
        named = f": {largest.name.removeprefix(HOST)}" if abs(largest.change_ns) >= MOST * abs(whole) else ""
        yield _Cause(f"host time{_on(ranks)}{named}", whole)


def _transfers(compared: Compared, parts: Sequence[TimeChange], kinds: Sequence[str]) -> Iterator[_Cause]:
    """Transfers cannot cost the step more than its exposed communication."""
    seen = max((abs(part.change_ns) for part in parts if part.name == COMMUNICATING), default=0)
    for time in compared.collectives:
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
    return f"{call_name(time)} takes {new} instead of {old} per {time.per}{_on(time.ranks)}"


def call_name(time: TimeChange) -> str:
    """`waiting in all_reduce (dp) at train.py:212, mostly for rank 7`."""
    group = f" ({time.group})" if time.group else ""
    name = f"{time.name if time.part else short_name(time.name)}{group}{_at(time.location)}"
    if time.part == WAITING:
        return f"waiting in {name}" + (f", mostly for {ranks_phrase(time.waits_for)}" if time.waits_for else "")
    return f"moving data in {name}" if time.part == TRANSFER else name


def _at(location: Location | None) -> str:
    return f" at {PurePath(location.file).name}:{location.line}" if location else ""
