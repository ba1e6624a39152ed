"""The performance view in a real browser: what is under the pointer, the keyboard, links, canvas, dark, no scripts."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from page_browser import Opened, expect

from demo_captures import demo_page
from page_timings import MARKUP, MS, profiled, report, straggler, with_tables
from rankscope.model.tables import Trace
from rankscope.render.page.contents import PageOptions
from rankscope.render.page.writer import write_page

pytestmark = pytest.mark.e2e
if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page


@pytest.fixture(scope="module")
def page_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return demo_page(tmp_path_factory.mktemp("job"), "slow-kernels", 8, "--steps", "4")


def written(folder: Path, trace: Trace, n_ranks: int, slow: int = -1) -> Path:
    findings = (straggler(slow, []),) if slow >= 0 else ()
    write_page(trace, report(n_ranks, *findings), str(folder / "report.html"), PageOptions())
    return folder / "report.html"


def started(page: Page) -> None:
    """The script has taken the titles: tooltips are ours from here on."""
    expect(page.locator("#performance .chart title")).to_have_count(0)


def test_the_slow_rank_of_a_job_is_seen(opened: Opened, page_file: Path) -> None:
    page = opened.goto(page_file, "#performance")
    for chart in ("chart-breakdown", "chart-stragglers", "chart-path", "chart-overlap", "chart-collectives"):
        assert page.locator(f"#{chart} .mark").count() > 0, chart
    expect(page.locator("#chart-breakdown .of").first).to_contain_text("S202")
    expect(page.locator("#chart-breakdown .of").first).to_contain_text("rank 7")
    expect(page.locator("#chart-stragglers .num").first).to_contain_text("slow-kernels")


def test_what_is_under_the_pointer_is_told(opened: Opened, page_file: Path) -> None:
    page = opened.goto(page_file, "#breakdown")
    started(page)
    page.locator("#chart-breakdown .mark").first.hover()
    assert page.locator(".tip").inner_text().startswith("computation: ")
    page.locator("#step-times").hover()
    expect(page.locator(".tip")).to_be_hidden()


def test_arrow_keys_go_from_mark_to_mark(opened: Opened, page_file: Path) -> None:
    page = opened.goto(page_file, "#breakdown")
    started(page)
    page.locator("#chart-breakdown").focus()
    said = []
    for key in ("ArrowRight", "ArrowDown", "ArrowUp", "ArrowRight", "ArrowLeft"):
        page.keyboard.press(key)
        said.append(page.locator(".tip").inner_text())
    assert said[0].startswith("computation")
    assert said[1].startswith("computation")
    assert said[1] != said[0]  # of the rank below
    assert said[3].startswith("copies and fills")
    assert said[2] == said[4] == said[0]
    assert page.locator("#chart-breakdown .on").count() == 1
    page.keyboard.press("Escape")
    expect(page.locator(".tip")).to_be_hidden()


def test_a_mark_leads_to_its_finding(opened: Opened, page_file: Path) -> None:
    page = opened.goto(page_file, "#performance")
    page.locator("#chart-breakdown .of a").first.click()
    assert page.evaluate("location.hash").startswith("#S202-1")
    expect(page.locator("#S202-1")).to_be_in_viewport()


def test_a_link_shows_a_rank(opened: Opened, page_file: Path) -> None:
    page = opened.goto(page_file, "#performance?rank=7")
    expect(page.locator("#chart-breakdown .of.here")).to_have_text("S202 P322 rank 7")
    assert page.locator(".of.here").count() > 1


def test_search_opens_the_tables_that_have_it(opened: Opened, page_file: Path) -> None:
    page = opened.goto(page_file, "#performance")
    expect(page.locator("#performance .overlap-ranks")).to_be_hidden()
    page.locator("#search").fill("all_reduce")
    expect(page.locator("#performance .collective-waits tbody tr").first).to_be_visible()


def test_a_map_of_a_thousand_ranks(opened: Opened, tmp_path: Path) -> None:
    page = opened.goto(written(tmp_path, profiled(1024, 40, slow=513), 1024, slow=513), "#step-times")
    canvas = page.locator("#chart-own-time canvas")
    expect(page.locator("#chart-own-time canvas")).to_have_attribute("style", re.compile("height"))
    box = canvas.bounding_box()
    assert box
    # A slow rank among calm ones that share its line of pixels is what is drawn and what is told.
    canvas.hover(position={"x": box["width"] * 0.5, "y": box["height"] * 513.5 / 1024})
    assert "rank 513, step 21: 95.00 ms" in page.locator(".tip").inner_text()
    dark, light = canvas.evaluate(
        """(canvas) => {
            const context = canvas.getContext("2d");
            const at = (share) => [...context.getImageData(9, Math.floor(canvas.height * share), 1, 1).data];
            return [at(513.5 / 1024), at(0.2)];
        }"""
    )
    assert sum(dark) < sum(light)
    page.locator("#chart-own-time").focus()
    page.keyboard.press("ArrowDown")
    assert page.locator(".tip").inner_text() == "rank 514, step 21: 70.00 ms"


def test_a_map_changes_with_the_theme(browser: Browser, tmp_path: Path) -> None:
    path = written(tmp_path, profiled(1024, 40), 1024)
    seen = []
    for scheme in ("light", "dark"):
        own = Opened(browser, color_scheme=scheme)
        page = own.goto(path, "#step-times")
        expect(page.locator("#chart-own-time canvas")).to_have_attribute("style", re.compile("height"))
        seen.append(
            page.evaluate("[...document.querySelector('canvas').getContext('2d').getImageData(5, 5, 1, 1).data]")
        )
        own.close()
    assert seen[0] != seen[1]


def test_names_are_shown_as_text(opened: Opened, tmp_path: Path) -> None:
    kernels = [
        {"rank": 0, "name": name, "type": MARKUP, "n_kernels": 1, "total_ns": MS, "mean_ns": MS}
        for name in (MARKUP, "x" * 10_000)
    ]
    pieces = [{"rank": 0, "kind": MARKUP, "name": MARKUP, "start_ns": 0, "duration_ns": MS, "step": 1}]
    waits = [
        {"rank": 0, "group_name": MARKUP, "op": MARKUP, "n_calls": 1, "wait_ns": 1, "transfer_ns": 1, "exposed_ns": 1}
    ]
    trace = with_tables(profiled(2, 2), kernel_breakdown=kernels, critical_path=pieces, comm_waits=waits)
    page = opened.goto(written(tmp_path, trace, 2), "#performance")
    started(page)
    expect(page.locator("#kernels ~ div .place").first).to_contain_text("<img src=x")
    page.locator("#chart-path .mark").first.hover()
    expect(page.locator(".tip")).to_contain_text("<img src=x")
    assert page.locator("main img").count() == 0
    assert page.title() != "owned"
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


@pytest.mark.parametrize("width", [1280, 700, 380])
def test_it_fits_the_window(browser: Browser, page_file: Path, width: int) -> None:
    own = Opened(browser, viewport={"width": width, "height": 800})
    page = own.goto(page_file, "#performance")
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    box = page.locator("#chart-breakdown .track").first.bounding_box()
    assert box
    assert box["width"] > 80
    own.close()


def test_without_scripts_the_charts_are_there(browser: Browser, page_file: Path) -> None:
    own = Opened(browser, java_script_enabled=False)
    page = own.goto(page_file, "#performance")
    expect(page.locator("#chart-breakdown rect").first).to_be_visible()
    assert page.locator("#chart-breakdown title").first.text_content()
    page.locator("#performance details.rows summary").first.click()
    expect(page.locator("#performance .worst-steps tbody tr").first).to_be_visible()
    own.close()
