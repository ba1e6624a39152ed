from __future__ import annotations

import re
from html.parser import HTMLParser

import pytest
from msgspec.structs import replace

from rankscope.model.changes import Changes, StepChange
from rankscope.render import Options
from rankscope.render.changes import precise, render
from rankscope.render.changes_page import changes_page
from render import changes_sample as sample
from render.snapshot import check_snapshot

ESCAPE = re.compile("\x1b")


def told(changes: Changes, **options: object) -> str:
    return "\n".join(render(changes, Options(**options))) + "\n"  # type: ignore[arg-type]


def test_snapshot() -> None:
    check_snapshot("changes.txt", told(sample.slower(), next_command="rankscope explain S202"))
    check_snapshot("changes_compile.txt", told(sample.compiled()))


def test_the_verdict_is_the_first_line_and_the_next_command_the_last() -> None:
    lines = told(sample.slower(), next_command="rankscope explain S202").splitlines()
    assert lines[0] == sample.slower().verdict
    assert lines[-1] == "Next: rankscope explain S202"


def test_where_nothing_differs_there_are_no_sections() -> None:
    assert told(sample.same()).splitlines()[3:] == []


def test_ten_of_each_are_shown_and_all_on_asking() -> None:
    short, whole = told(sample.slower()), told(sample.slower(), show_all=True)
    assert "gemm_9" in short
    assert "gemm_10" not in short
    assert "... and 1 more: --all lists them" in short
    assert "gemm_10" in whole
    assert "gemm_11" in whole  # the same within noise
    assert "x" * 90 in whole


def test_slow_steps_have_a_row_of_their_own() -> None:
    step = StepChange("same", "profiler", 100, 101, 3, 100, 150, 4, 4, slow_steps=(2,), slow_ns=300)
    changes = replace(sample.same(), step=step, parts=sample.slower().parts)
    text = told(changes)
    assert "1 slow of B: 2" in text
    assert "Where the time goes in step 2 of B" in text


def test_colour_only_repeats_what_words_say() -> None:
    coloured = told(sample.slower(), color=True)
    assert ESCAPE.search(coloured)
    assert re.sub("\x1b\\[[0-9;]*m", "", coloured) == told(sample.slower())


def test_nothing_in_a_trace_can_steer_the_terminal() -> None:
    text = told(sample.hostile())
    assert not [char for char in text if not char.isprintable() and char != "\n"]


@pytest.mark.parametrize(
    ("nanoseconds", "text"),
    [(0, "0 ns"), (999, "999 ns"), (8_420_000, "8.42 ms"), (999_700_000, "1 s"), (5_000_000_000_000, "5,000 s")],
)
def test_times_have_three_digits(nanoseconds: int, text: str) -> None:
    assert precise(nanoseconds) == text


class _Page(HTMLParser):
    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.text = ""
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)

    def handle_data(self, data: str) -> None:
        self.text += data


def test_the_page_tells_the_same_and_runs_nothing() -> None:
    page = _Page(changes_page(sample.slower(), Options(next_command="rankscope explain S202")))
    for words in (
        sample.slower().verdict,
        "warning[S202]",
        "all_reduce (dp) at train.py:212",
        "rankscope explain S202",
    ):
        assert words in page.text
    assert "1 more" in page.text  # folded, not left out
    assert "gemm_10" in page.text
    assert "script" not in page.tags


def test_hostile_names_are_text_on_the_page() -> None:
    source = changes_page(sample.hostile(), Options())
    assert "script" not in _Page(source).tags
    assert "<script>alert(1)</script>" in _Page(source).text


def test_the_page_has_what_was_compiled() -> None:
    page = _Page(changes_page(sample.compiled(), Options()))
    assert "the value of t changed" in page.text
