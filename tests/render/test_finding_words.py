"""The words in which a capture and a finding are told, wherever that is."""

from __future__ import annotations

from rankscope.model.finding import Check
from rankscope.render.finding_words import MAX_HEADLINE, headline, shortened, skipped_phrase
from render import sample


def checks(**n_by_reason: int) -> tuple[Check, ...]:
    return tuple(Check(f"{why}-{n}", "skipped", why) for why, count in n_by_reason.items() for n in range(count))


def test_few_reasons_are_all_named() -> None:
    assert skipped_phrase(checks(dumps=1, logs=2, stacks=1), False) == (
        "logs-0, logs-1 (logs); dumps-0 (dumps); stacks-0 (stacks)"
    )


def test_rare_reasons_are_counted_unless_all_is_asked_for() -> None:
    many = checks(dumps=1, logs=20, stacks=2, traces=9, manifests=1)
    assert skipped_phrase(many, False) == (
        "20 rules (logs); 9 rules (traces); 4 more rules for 3 other reasons (--all)"
    )
    assert "manifests-0 (manifests)" in skipped_phrase(many, True)
    assert "logs-19" in skipped_phrase(many, True)


def test_a_headline_has_its_beginning_and_its_end() -> None:
    finding = sample.mismatch()
    assert headline(finding) == finding.title
    long = shortened("rank 3 called " + "x" * 10_000 + " at train.py:3", MAX_HEADLINE)
    assert len(long) < MAX_HEADLINE + 4
    assert long.startswith("rank 3 called x")
    assert long.endswith("x at train.py:3")
