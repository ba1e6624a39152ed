"""The graph of a hang and the stacks of all ranks in a real browser."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from page_browser import Opened, expect

from rankscope import pipeline
from rankscope.cli import main
from rankscope.model.tables import Table, Text, Trace
from rankscope.render.page.contents import PageOptions
from rankscope.render.page.writer import write_page

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

pytestmark = pytest.mark.e2e
MARKUP = "<img src=x onerror=\"document.title='owned'\"></script><script>document.title='owned'</script>\u202e"


@pytest.fixture(scope="module")
def captures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("hangs")
    for fault in ("order", "stuck", "none"):
        main(["demo", "-o", str(folder / fault), "--ranks", "16", "--fault", fault])
        main(["report", str(folder / fault), "-o", str(folder / f"{fault}.html")])
    return folder


def keep_to_their_width(page: Page) -> bool:
    sections = page.locator("#waits, #stacks")
    return all(sections.evaluate_all("all => all.map((each) => each.scrollWidth <= each.clientWidth)"))


def test_the_cause_is_drawn_and_leads_to_its_finding(opened: Opened, captures: Path) -> None:
    page = opened.goto(captures / "stuck.html", "#waits")
    cause = page.locator("#waits svg .node.cause")
    expect(cause).to_be_visible()
    expect(cause.locator(".tag")).to_have_text("cause")
    rank = cause.locator(".who").text_content()
    assert rank
    assert rank.startswith("rank ")
    cause.locator("a", has_text="cause").click()
    expect(page.locator(page.evaluate("location.hash"))).to_contain_text(rank)
    assert keep_to_their_width(page)


def test_boxes_do_not_cover_each_other(opened: Opened, captures: Path) -> None:
    page = opened.goto(captures / "stuck.html", "#waits")
    boxes = [box.bounding_box() for box in page.locator("#waits svg .shape").all()]
    for number, one in enumerate(boxes):
        for other in boxes[number + 1 :]:
            assert one
            assert other
            apart_x = one["x"] + one["width"] <= other["x"] or other["x"] + other["width"] <= one["x"]
            apart_y = one["y"] + one["height"] <= other["y"] or other["y"] + other["height"] <= one["y"]
            assert apart_x or apart_y


def test_text_stays_within_its_box(opened: Opened, captures: Path) -> None:
    page = opened.goto(captures / "order.html", "#waits")
    too_wide = page.evaluate(
        """() => [...document.querySelectorAll('#waits svg .node')].filter((node) => {
          const box = node.querySelector('.shape').getBoundingClientRect();
          return [...node.querySelectorAll('text')].some((each) => each.getBoundingClientRect().right > box.right);
        }).length"""
    )
    assert too_wide == 0


def test_a_cycle_is_drawn_as_one(opened: Opened, captures: Path) -> None:
    page = opened.goto(captures / "order.html", "#waits")
    assert page.locator("#waits svg .edge.cycle").count() >= 2
    expect(page.locator("#waits > p").first).to_contain_text("wait for each other")


def test_a_line_of_the_graph_leads_to_the_stack(opened: Opened, captures: Path) -> None:
    page = opened.goto(captures / "order.html", "#waits")
    line = page.locator("#waits svg .node a .mono").first
    line.click()
    target = page.locator(page.evaluate("location.hash"))
    expect(target).to_be_in_viewport()
    expect(target).to_have_class("chip ranks")


def test_the_same_stands_below_as_a_table(opened: Opened, captures: Path) -> None:
    page = opened.goto(captures / "stuck.html", "#waits")
    rows = page.locator("#waits tbody tr")
    expect(rows.first).to_contain_text("cause")
    assert rows.count() >= 1
    page.locator("#search").fill("has not come")
    expect(rows.first).to_be_visible()


def test_search_finds_a_frame(opened: Opened, captures: Path) -> None:
    page = opened.goto(captures / "stuck.html")
    page.locator("#search").fill("clip_gradients")
    expect(page.locator("#stacks .frame b", has_text="clip_gradients").first).to_be_visible()
    expect(page.locator("#stacks .frame b", has_text="reduce_gradients")).to_have_count(0)
    page.locator("#search").fill("no-such-function")
    expect(page.locator("#stacks")).to_be_hidden()


def test_frames_of_torch_appear_when_asked_for(opened: Opened, captures: Path) -> None:
    page = opened.goto(captures / "stuck.html", "#stacks")
    foreign = page.locator("#stacks li.foreign").first
    expect(foreign).to_be_hidden()
    page.locator("#foreign-stacks").check()
    expect(foreign).to_be_visible()


def test_a_job_that_does_not_hang_says_so(opened: Opened, captures: Path) -> None:
    page = opened.goto(captures / "none.html", "#waits")
    expect(page.locator("#waits")).to_contain_text("No rank is waiting for another")


def test_narrow_dark_and_without_scripts(browser: Browser, captures: Path) -> None:
    settings = {"viewport": {"width": 700, "height": 800}, "color_scheme": "dark", "java_script_enabled": False}
    opened = Opened(browser, **settings)
    page = opened.goto(captures / "stuck.html", "#waits")
    expect(page.locator("#waits svg .node.cause")).to_be_in_viewport()  # the end of the chains is seen first
    expect(page.locator("#stacks .odd").first).to_be_visible()
    fill = page.locator("#waits svg .who").first.evaluate("each => getComputedStyle(each).fill")
    assert fill != "rgb(0, 0, 0)"
    opened.close()


def hostile(trace: Trace) -> Trace:
    """Whatever a dump may name: functions, files, groups."""
    for name, column in (("frames", "function"), ("frames", "file"), ("groups", "description")):
        table: Table = trace.table(name)
        text = table.text(column)
        odd = Text(text.codes, [f"{MARKUP}{value}{'x' * 10_000}" for value in text.values])
        trace.tables[name] = table.replaced({column: odd})
    return trace


def test_names_from_a_trace_are_shown_as_text(opened: Opened, captures: Path, tmp_path: Path) -> None:
    trace = pipeline.load(str(captures / "order"))
    report = pipeline.diagnose(trace)
    write_page(hostile(trace), report, str(tmp_path / "page.html"), PageOptions())
    page = opened.goto(tmp_path / "page.html", "#waits")
    expect(page.locator("#stacks .frame b").first).to_contain_text("<img src=x")
    assert page.locator("#waits img, #stacks img").count() == 0
    assert page.title() != "owned"
    assert keep_to_their_width(page)
