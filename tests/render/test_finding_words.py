"""The words for a capture and for a finding."""

from __future__ import annotations

from rankscope.model.finding import Check, StackGroup
from rankscope.render.finding_words import (
    MAX_HEADLINE,
    found_phrase,
    headline,
    shortened,
    skipped_phrases,
    stack_owners,
    time_span,
)
from render import sample


def checks(**n_by_reason: int) -> tuple[Check, ...]:
    return tuple(Check(f"{why}-{n}", "skipped", why) for why, count in n_by_reason.items() for n in range(count))


def test_rules_that_were_not_checked_are_listed_by_reason() -> None:
    assert skipped_phrases(checks(dumps=1, logs=2, stacks=1)) == [
        "logs-0, logs-1 (logs)",
        "dumps-0 (dumps)",
        "stacks-0 (stacks)",
    ]


def test_notes_are_no_problems() -> None:
    note, warning = sample.stuck(9, "info"), sample.stuck(9, "warning")
    assert found_phrase(sample.report()) == "No problems found"
    assert found_phrase(sample.report(note)) == "No problems found (1 note)"
    assert (
        found_phrase(sample.report(note, note), "1 in brief: --all") == "No problems found (2 notes; 1 in brief: --all)"
    )
    assert found_phrase(sample.report(warning, note)) == "Found 1 warning, 1 note"
    assert found_phrase(sample.report(warning, warning), "1 effect not listed: --all") == (
        "Found 2 warnings (1 effect not listed: --all)"
    )


def test_stacks_name_their_ranks() -> None:
    def owners(label: str, *ranks: int) -> str:
        return stack_owners(StackGroup(ranks, label, sample.OUTER))

    assert owners("waiting", 0, 1, 3) == "ranks 0,1,3, waiting"
    assert owners("culprit", 2) == "rank 2"
    assert owners("peers", 0, 1, 3) == "ranks 0,1,3"
    assert owners("rank 2 now", 2) == "rank 2 now"
    assert owners("", 2) == "rank 2"


def test_a_moment_has_no_span() -> None:
    assert time_span(sample.START_NS, sample.START_NS + 5) == "2026-01-15 14:02:00 UTC"
    assert time_span(sample.START_NS, sample.START_NS + 10**9) == "2026-01-15 14:02:00 to 14:02:01 UTC"


def test_a_headline_has_its_beginning_and_its_end() -> None:
    finding = sample.mismatch()
    assert headline(finding) == finding.title
    long = shortened("rank 3 called " + "x" * 10_000 + " at train.py:3", MAX_HEADLINE)
    assert len(long) < MAX_HEADLINE + 4
    assert long.startswith("rank 3 called x")
    assert long.endswith("x at train.py:3")
