"""The metrics view in a real browser."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
from page_browser import Opened, expect

from page_timings import MARKUP, measured, report, straggler
from rankscope.model.tables import Array
from rankscope.render.page.contents import PageOptions
from rankscope.render.page.writer import write_page

pytestmark = pytest.mark.e2e
if TYPE_CHECKING:
    from playwright.sync_api import Browser


def written(folder: Path, values: Array, name: str = "loss") -> Path:
    own = report(len(values), straggler(1, [6], len(values[0])))
    write_page(measured(name, values), own, str(folder / "report.html"), PageOptions())
    return folder / "report.html"


def falling(n_ranks: int, n_steps: int) -> Array:
    values: Array = np.exp(-np.arange(n_steps) / n_steps)[None, :] + np.arange(n_ranks)[:, None] * 0.01
    return values


def test_the_values_of_a_step_are_told(opened: Opened, tmp_path: Path) -> None:
    page = opened.goto(written(tmp_path, falling(4, 20)), "#metrics")
    expect(page.locator("#metrics .chart title")).to_have_count(0)
    page.locator("#metric-0 .hit").nth(10).hover()
    expect(page.locator(".tip")).to_contain_text("step 10")
    expect(page.locator(".tip")).to_contain_text("rank 3: 0.637")
    page.locator("#metric-0").focus()
    page.keyboard.press("ArrowRight")
    expect(page.locator(".tip")).to_contain_text("step 0")


def test_a_finding_on_the_axis_leads_to_its_card(opened: Opened, tmp_path: Path) -> None:
    page = opened.goto(written(tmp_path, falling(4, 20)), "#metrics")
    page.locator("#metric-0 .flag a").click()
    expect(page.locator("#S202-1")).to_be_in_viewport()
    assert page.evaluate("location.hash") == "#S202-1"


def test_the_first_value_that_is_no_number_is_marked(opened: Opened, tmp_path: Path) -> None:
    values = falling(2, 20)
    values[:, 12:] = np.nan
    page = opened.goto(written(tmp_path, values), "#metrics")
    expect(page.locator("#metrics .holes")).to_contain_text("loss is not a number at step 12")
    expect(page.locator("#metric-0 .flag.broken")).to_contain_text("not a number")


def test_the_table_is_plain_rows(opened: Opened, tmp_path: Path) -> None:
    values = falling(4, 20)
    values[2, 7] = 100
    page = opened.goto(written(tmp_path, values), "#metrics")
    page.locator("#metrics details.rows summary").click()
    cells = page.locator("#metrics tbody tr").first.locator("td").all_inner_texts()
    assert cells[:4] == ["loss", "2", "7", "100"]


def test_names_are_shown_as_text(opened: Opened, tmp_path: Path) -> None:
    page = opened.goto(written(tmp_path, falling(2, 5), MARKUP * 200), "#metrics")
    expect(page.locator("#metrics h3")).to_contain_text("<img src=x")
    assert page.locator("main img").count() == 0
    assert page.title() != "owned"
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_lines_are_seen_in_both_themes(browser: Browser, tmp_path: Path, scheme: str) -> None:
    own = Opened(browser, color_scheme=scheme, viewport={"width": 700, "height": 800})
    page = own.goto(written(tmp_path, falling(20, 30)), "#metrics")
    stroke, ground = page.evaluate(
        """() => [getComputedStyle(document.querySelector("#metrics .line")).stroke,
                  getComputedStyle(document.querySelector("#metrics .plot")).backgroundColor]"""
    )
    assert stroke != ground
    assert stroke.startswith("rgb")
    assert page.locator("#metrics .band").count() == 2
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    own.close()
