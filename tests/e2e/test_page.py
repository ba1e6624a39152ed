"""The report in a real browser: the answer first, search, links, light and dark, print, without scripts."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from page_browser import Opened, expect

from demo_captures import demo_page
from rankscope.model.finding import Report
from rankscope.model.tables import Table, Trace
from rankscope.render.page.contents import PageOptions
from rankscope.render.page.writer import write_page
from render import sample

pytestmark = pytest.mark.e2e
if TYPE_CHECKING:
    from playwright.sync_api import Browser
MARKUP = "<img src=x onerror=\"document.title='owned'\"></script><script>document.title='owned'</script>&lt;b&gt;"


@pytest.fixture(scope="module")
def page_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return demo_page(tmp_path_factory.mktemp("job"), "skip", 32, "--lost", "1")


def written(folder: Path, report: Report, trace: Trace | None = None, options: PageOptions | None = None) -> Path:
    write_page(trace or Trace(("traces",)), report, str(folder / "report.html"), options or PageOptions())
    return folder / "report.html"


def test_the_first_screen_is_the_answer(opened: Opened, page_file: Path) -> None:
    page = opened.goto(page_file)
    assert "skipped" in page.locator("h1").inner_text()
    expect(page.locator(".holes")).to_contain_text("No data from rank")
    expect(page.locator("#findings .card").first).to_be_visible()
    box = page.locator("#findings .card h3").first.bounding_box()
    assert box
    assert box["y"] < 720
    assert opened.requests == [page_file.as_uri()]


def test_all_views_have_a_place_in_the_bar(opened: Opened, page_file: Path) -> None:
    page = opened.goto(page_file)
    shown = {link.get_attribute("href") for link in page.locator(".bar nav a").all()}
    assert shown == {f"#{name}" for name in page.locator("main > section").evaluate_all("all => all.map(e => e.id)")}
    assert {"#map", "#waits", "#stacks", "#performance", "#compile", "#metrics", "#capture"} < shown


def test_views_without_data_say_what_to_run(opened: Opened, page_file: Path) -> None:
    page = opened.goto(page_file)
    absent = page.locator("section.absent")
    assert {section.get_attribute("id") for section in absent.all()} >= {"performance", "compile", "metrics"}
    for section in absent.all():
        assert section.locator("code").first.inner_text().startswith(("rankscope ", "TORCH_"))


def test_a_finding_leads_into_the_view_that_shows_it(opened: Opened, page_file: Path) -> None:
    page = opened.goto(page_file)
    page.locator("#findings .links a").first.click()
    assert page.evaluate("location.hash").startswith("#map?")
    expect(page.locator("#map")).to_be_in_viewport()


def test_a_link_to_a_finding_shows_it(opened: Opened, page_file: Path) -> None:
    page = opened.goto(page_file, "#D901-1")
    expect(page.locator("#D901-1")).to_be_in_viewport()
    opened.page.goto("about:blank")
    page = opened.goto(page_file, "#capture")
    expect(page.locator("#capture h2")).to_be_in_viewport()


def test_search_keeps_what_has_all_words_and_gives_the_rest_back(opened: Opened, page_file: Path) -> None:
    page = opened.goto(page_file)
    page.keyboard.press("/")
    page.keyboard.type("nccl_trace_rank_7")
    expect(page.locator("#capture tbody tr")).to_have_count(1)
    page.keyboard.press("Escape")
    expect(page.locator("#capture tbody tr")).to_have_count(20)
    page.locator("#search").fill("there is no such thing here")
    expect(page.locator("#nothing")).to_be_visible()


def test_light_and_dark_by_the_system_and_by_the_button(browser: Browser, page_file: Path) -> None:
    shades = {}
    for scheme in ("light", "dark"):
        own = Opened(browser, color_scheme=scheme)
        page = own.goto(page_file)
        shade = "getComputedStyle(document.body).backgroundColor"
        shades[scheme] = page.evaluate(shade)
        page.locator("#theme").click()
        shades[f"not {scheme}"] = page.evaluate(shade)
        own.close()
    assert shades["light"] == shades["not dark"] != shades["dark"] == shades["not light"]


def test_paper_gets_the_findings_without_the_bar(opened: Opened, page_file: Path) -> None:
    page = opened.goto(page_file)
    page.emulate_media(media="print")
    expect(page.locator(".bar")).to_be_hidden()
    expect(page.locator("#findings .card").first).to_be_visible()
    assert page.pdf().startswith(b"%PDF")


def test_the_findings_need_no_script(browser: Browser, page_file: Path) -> None:
    own = Opened(browser, java_script_enabled=False)
    page = own.goto(page_file)
    expect(page.locator("#findings .card h3").first).to_be_visible()
    expect(page.locator("#findings .card dl").nth(1)).to_contain_text("certain")
    expect(page.locator("#theme")).to_be_hidden()
    own.close()


@pytest.mark.parametrize("width", [390, 700, 1280])
def test_nothing_is_wider_than_the_window(browser: Browser, page_file: Path, width: int) -> None:
    own = Opened(browser, viewport={"width": width, "height": 800})
    page = own.goto(page_file)
    page.wait_for_timeout(300)  # the views draw themselves
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    own.close()


def test_both_sides_of_a_slow_rank_fit_on_a_narrow_page(browser: Browser, tmp_path: Path) -> None:
    own = Opened(browser, viewport={"width": 420, "height": 800})
    page = own.goto(demo_page(tmp_path, "data-loading", 4))
    table = page.locator("#findings .card .wide").first
    assert table.evaluate("frame => frame.scrollWidth - frame.clientWidth") == 0
    own.close()


def test_hostile_names_are_shown_as_text(opened: Opened, tmp_path: Path) -> None:
    finding = sample.mismatch()
    hostile = type(finding)(**{**{name: getattr(finding, name) for name in finding.__struct_fields__}, "title": MARKUP})
    files = [{"file_id": 0, "path": MARKUP, "source": "kineto", "status": "damaged", "problem": MARKUP}]
    trace = Trace((MARKUP,), {"files": Table.from_rows("files", files)})
    page = opened.goto(written(tmp_path, sample.report(hostile, sample.lost_dumps()), trace))
    expect(page.locator("h1")).to_have_text(MARKUP)
    expect(page.locator("#capture td").first).to_have_text(MARKUP)
    assert page.locator("img").count() == 0
    assert page.title() == f"H102: {MARKUP}"
    page.locator("#search").fill("<img src=x")
    expect(page.locator("#findings .card")).to_have_count(1)


def test_the_policy_stops_what_would_slip_through(browser: Browser, tmp_path: Path) -> None:
    """Should a text ever become markup, it still could neither run nor load anything."""
    path = written(tmp_path, sample.hang())
    broken = path.read_text("utf-8").replace("<main>", f"<main>{MARKUP}<style>body {{ display: none }}</style>", 1)
    path.write_text(broken, encoding="utf-8")
    own = Opened(browser)
    page = own.goto(path)
    assert page.title() != "owned"
    expect(page.locator("h1")).to_be_visible()
    assert [url for url in own.requests if not url.startswith("file:")] == []
    assert any("Content Security Policy" in problem for problem in own.problems)
    own.context.close()
