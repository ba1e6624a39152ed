"""Charts as SVG: round ticks, marks in the right places, nothing from a trace as markup."""

from __future__ import annotations

import re
from xml.etree import ElementTree

import numpy as np
import pytest

from page_timings import MARKUP
from rankscope.model.tables import Array
from rankscope.render.html import text
from rankscope.render.page.chart_scale import PLAIN, Unit, number_text, tick_texts, ticks, time_unit, whole_ticks
from rankscope.render.page.charts import Bar, Flag, Lane, Line, LineChart, Segment, bars, lines, strips

MS = Unit(1e6, "ms")


def parsed(html: str) -> ElementTree.Element:
    return ElementTree.fromstring(html)


def test_ticks_are_round_and_inside() -> None:
    assert ticks(0, 89, 6) == [0, 20, 40, 60, 80]
    assert ticks(0.12, 0.31, 4) == [0.15, 0.2, 0.25, 0.3]
    assert ticks(-3, 4, 4) == [-2, 0, 2, 4]
    assert ticks(5, 5) == [5]
    assert ticks(float("nan"), 1) == []
    assert whole_ticks(1, 3) == [1, 2, 3]


@pytest.mark.parametrize("low", [0.0, 1e-9, 7.0, 1e12])
@pytest.mark.parametrize("span", [1e-9, 0.3, 8.0, 123456.0])
def test_no_axis_has_more_ticks_than_fit(low: float, span: float) -> None:
    assert len(ticks(low, low + span, 5)) <= 11


def test_ticks_that_are_close_have_the_digits_to_tell_them_apart() -> None:
    assert tick_texts([317.1, 317.2], Unit(1e6, "MB")) == ["317.1 MB", "317.2 MB"]
    assert tick_texts([0.0, 20.0], PLAIN) == ["0", "20"]


def test_numbers_have_three_digits_that_count() -> None:
    assert [number_text(value) for value in (0, 0.5, 12.345, 999.6, 123456.7)] == [
        "0",
        "0.5",
        "12.3",
        "1,000",
        "123,457",
    ]
    assert number_text(float("nan")) == "not a number"
    assert number_text(float("-inf")) == "-infinite"
    assert time_unit(89_123_456).text(89_123_456) == "89.1 ms"
    assert MS.number(550) == "0.001"


def test_bars_start_where_the_one_before_ends() -> None:
    drawn = parsed(bars([Bar("a", [Segment("x", 30, "first"), Segment("y", 60, "second", "60")], "90", 3)], PLAIN))
    rects = drawn.findall(".//rect")
    assert [(rect.get("x"), rect.get("width")) for rect in rects] == [("0%", "33.33%"), ("33.33%", "66.67%")]
    assert [title.text for title in drawn.iter("title")] == ["first", "second"]
    label = drawn.find("span[@data-rank='3']")
    assert label is not None
    assert label.text == "a"


def test_a_narrow_segment_says_nothing_inside() -> None:
    drawn = bars([Bar("a", [Segment("x", 95, "t", "wide"), Segment("y", 5, "t", "narrow")])], PLAIN)
    assert ">wide<" in drawn
    assert ">narrow<" not in drawn


def test_bars_of_nothing_are_drawn() -> None:
    assert parsed(bars([Bar("a", [Segment("x", 0, "t")])], MS)).find(".//rect") is None


def chart(*values: Array, flags: tuple[Flag, ...] = ()) -> ElementTree.Element:
    n = len(values[0])
    drawn = [Line(f"rank {rank}", own, f"s{rank}") for rank, own in enumerate(values)]
    return parsed(lines(LineChart(np.arange(n), drawn, PLAIN, [f"step {step}" for step in range(n)], flags=flags)))


def test_a_line_is_interrupted_where_a_value_is_no_number() -> None:
    path = chart(np.array([1.0, 2.0, np.nan, 3.0, np.inf, 4.0, 5.0])).find(".//path")
    assert path is not None
    drawn = path.get("d") or ""
    assert drawn.count("M") == 3
    assert drawn.count("h0") == 1  # the lonely 3.0 is a dot
    assert "nan" not in drawn
    assert "inf" not in drawn


def test_gaps_can_be_joined() -> None:
    line = Line("rank 0", np.array([1.0, np.nan, 3.0]), "s0", joins_gaps=True)
    path = parsed(lines(LineChart(np.arange(3), [line], PLAIN, [""] * 3))).find(".//path")
    assert path is not None
    assert (path.get("d") or "").count("M") == 1


def test_higher_values_stand_higher() -> None:
    path = chart(np.array([1.0, 2.0])).find(".//path")
    assert path is not None
    heights = [float(number) for number in re.findall(r" ([\d.]+)", path.get("d") or "")]
    assert heights[0] > heights[1]


def test_every_step_can_be_pointed_at() -> None:
    hits = chart(np.arange(5.0)).findall(".//rect[@class='mark hit']")
    widths = [float((hit.get("width") or "").rstrip("%")) for hit in hits]
    assert sum(widths) == pytest.approx(100, abs=0.1)
    assert [title.text for hit in hits for title in hit] == [f"step {step}" for step in range(5)]


def test_values_that_differ_little_do_not_look_different() -> None:
    x = np.arange(2)
    plain = lines(LineChart(x, [Line("a", np.array([100.0, 100.1]), "s0")], PLAIN, ["", ""]))
    calm = lines(LineChart(x, [Line("a", np.array([100.0, 100.1]), "s0")], PLAIN, ["", ""], least_span=20.0))
    spans = []
    for drawn in (plain, calm):
        found = re.search(r'd="M[\d.]+ ([\d.]+)L[\d.]+ ([\d.]+)"', drawn)
        assert found
        spans.append(float(found.group(1)) - float(found.group(2)))
    assert spans[0] > 50
    assert spans[1] < 2


@pytest.mark.parametrize("values", [[np.nan], [5.0], [-1e300, 1e300], [0.0, 0.0]])
def test_odd_values_are_drawn(values: list[float]) -> None:
    chart(np.array(values))


def test_a_flag_links_to_its_finding() -> None:
    drawn = chart(np.arange(4.0), flags=(Flag(2, "S202", "late", "S202-1"),))
    link = drawn.find(".//a")
    assert link is not None
    assert link.get("href") == "#S202-1"


def test_strips_share_one_axis() -> None:
    lanes = [Lane("rank 0", [(0, 50, Segment("x", 0, "a"))], 0), Lane("rank 1", [(50, 100, Segment("x", 0, "b"))], 1)]
    drawn = parsed(strips(lanes, PLAIN, 100.0, edges=[50.0]))
    assert [(rect.get("x"), rect.get("width")) for rect in drawn.iter("rect")] == [("0%", "50%"), ("50%", "50%")]
    assert len(drawn.findall(".//line[@x1='50%']")) == 2


def test_nothing_becomes_markup() -> None:
    drawn = bars([Bar(text(MARKUP), [Segment("x", 1, MARKUP, MARKUP)], MARKUP)], PLAIN)
    drawn += strips([Lane("", [(0, 1, Segment("x", 1, MARKUP))])], PLAIN, 1.0)
    drawn += lines(LineChart(np.arange(1), [], PLAIN, [MARKUP], flags=[Flag(0, MARKUP, MARKUP, MARKUP)], x_name=MARKUP))
    assert "<img" not in drawn
    assert "<script" not in drawn
