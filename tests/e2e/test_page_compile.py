"""The compile view of the page in a real browser: chips lead to compilations, files open on demand and close again."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from page_browser import Opened, expect

from compile_page_building import HOSTILE, hostile_log, job_log, loaded
from rankscope.pipeline import diagnose
from rankscope.render.page.contents import PageOptions
from rankscope.render.page.writer import write_page
from rankscope.simulate.compile_log import LogBuilder, ids_of
from render.page.test_compiling import with_code

if TYPE_CHECKING:
    from playwright.sync_api import Browser
pytestmark = pytest.mark.e2e
PANE = "dialog.artifact"


def page_of(folder: Path, *logs: LogBuilder) -> Path:
    trace = loaded(folder, *logs)
    write_page(trace, diagnose(trace), str(folder / "report.html"), PageOptions(base="/job"))
    return folder / "report.html"


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Path:
    logs = [with_code(job_log(rank), f"def call(args):\n    return {min(rank, 1)}\n") for rank in range(3)]
    return page_of(tmp_path_factory.mktemp("job"), *logs)


def test_a_chip_leads_to_its_compilation_and_opens_it(opened: Opened, job: Path) -> None:
    page = opened.goto(job, "#compile")
    page.locator("#compile .trie .chip", has_text="[0/2]").click()
    expect(page.locator("#compile-0-2")).to_be_in_viewport()
    expect(page.locator("#compile-0-2 details")).to_have_attribute("open", "")


def test_a_file_is_shown_when_it_is_asked_for_and_the_page_stays_where_it_is(opened: Opened, job: Path) -> None:
    page = opened.goto(job, "#compile-0-0")
    before = page.evaluate("scrollY")
    page.locator("#compile-0-0 .files li", has_text="ranks 1,2").locator("a").click()
    expect(page.locator(f"{PANE} pre")).to_contain_text("return 1")
    expect(page.locator(f"{PANE} header b")).to_contain_text("[0/0] inductor_output_code")
    expect(page.locator(f"{PANE} .tok-keyword").first).to_have_text("def")
    assert page.evaluate("location.hash").startswith("#compile?file=")
    page.keyboard.press("Escape")
    expect(page.locator(PANE)).to_be_hidden()
    page.wait_for_function("location.hash === '#compile-0-0'")  # the browser goes back when it gets to it
    assert page.evaluate("scrollY") == before


def test_a_link_to_a_file_opens_it(opened: Opened, job: Path) -> None:
    link = opened.goto(job).locator("#compile-0-0 .files a", has_text="dynamo_output_graph").get_attribute("href")
    assert link
    page = opened.page
    page.goto("about:blank")
    page.goto(job.as_uri() + link)
    expect(page.locator(f"{PANE} header b")).to_have_text("dynamo_output_graph")
    expect(page.locator(f"{PANE} pre")).to_contain_text("class GraphModule")
    page.locator(f"{PANE} button").click()
    expect(page.locator(PANE)).to_be_hidden()


def test_a_link_to_a_file_that_is_not_there_says_so(opened: Opened, job: Path) -> None:
    page = opened.goto(job, "#compile?file=0.9999")
    expect(page.locator(f"{PANE} header b")).to_have_text("This page does not contain the file.")


def test_a_file_can_be_saved(opened: Opened, job: Path) -> None:
    page = opened.goto(job, "#compile-0-0")
    page.locator("#compile-0-0 .files li", has_text="ranks 1,2").locator("a").click()
    with page.expect_download() as saved:
        page.locator(f"{PANE} header a").click()
    assert saved.value.suggested_filename.endswith(".py")
    assert "return 1" in Path(saved.value.path()).read_text("utf-8")


def test_search_keeps_what_has_the_words(opened: Opened, job: Path) -> None:
    page = opened.goto(job)
    page.locator("#search").fill("no kernel RuntimeError")
    expect(page.locator("#compile .compilations tbody > tr")).to_have_count(1)
    expect(page.locator("#compile .compilations tbody > tr")).to_have_id("compile-2-0")


def test_the_table_of_compilations_is_sorted_by_time(opened: Opened, job: Path) -> None:
    page = opened.goto(job, "#compile")
    page.locator("#compile .compilations th button", has_text="Time").click()
    expect(page.locator("#compile .compilations tbody > tr").first).to_have_id("compile-0-2")


def test_the_pane_follows_the_theme(opened: Opened, job: Path) -> None:
    page = opened.page
    page.emulate_media(color_scheme="dark")
    page.goto(job.as_uri() + "#compile?file=0.0")
    expect(page.locator(f"{PANE} pre")).to_be_visible()
    red, green, blue = page.evaluate(
        f"getComputedStyle(document.querySelector('{PANE}')).backgroundColor.match(/\\d+/g)"
    )
    assert max(int(red), int(green), int(blue)) < 80


def test_without_scripts_the_tables_are_there(browser: Browser, job: Path) -> None:
    bare = Opened(browser, java_script_enabled=False)
    page = bare.goto(job)
    assert page.locator("#compile .ledger tbody > tr").count() == 2
    assert page.locator("#compile .compilations tbody > tr").count() >= 7
    bare.close()


def test_hostile_names_and_texts_stay_text(opened: Opened, tmp_path: Path) -> None:
    log = hostile_log().artifact("long" * 2500, "\u202e" + HOSTILE, "0/0").artifact("x", "\u202e" * 5000, "0/0")
    log.record("aot_joint_graph", {}, "\ud83d\ude00".encode("utf-16", "surrogatepass"), **ids_of("0/0"))
    page = opened.goto(page_of(tmp_path, log), "#compile-0-0")
    links = page.locator("#compile-0-0 .files a")
    for number in range(links.count()):
        links.nth(number).click()
        expect(page.locator(f"{PANE} pre")).to_be_visible()
        page.keyboard.press("Escape")
    assert links.count() >= 5
    assert page.title() != "owned"
    assert page.locator("img").count() == 0
