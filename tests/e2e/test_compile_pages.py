"""The pages about torch.compile in a real browser: they answer, lead where they say, and neither fail nor call out."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from page_browser import Opened, expect

from compile_page_building import HOSTILE, crowded_log, hostile_log, index_alone, job_log, report_of
from rankscope.cli import main
from rankscope.render.compile_tree.single_file import pack_folder
from rankscope.simulate.compile_log import LogBuilder, ids_of
from render.compile_tree.test_provenance import training_step

pytestmark = pytest.mark.e2e
if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return report_of(tmp_path_factory.mktemp("job"), job_log())


@pytest.fixture(scope="module")
def single(report: Path) -> Path:
    pack_folder(report, report.parent / "report.html")
    return report.parent / "report.html"


def number_of_first_info(report: Path) -> str:
    found = re.search(r'class="card info" id="finding-(\d+)"', (report / "index.html").read_text("utf-8"))
    assert found
    return found.group(1)


def shown_rows(page: Page, section: str) -> int:
    number: int = page.locator(f"#{section} tbody > tr:visible").count()
    return number


def test_the_first_screen_is_the_answer(opened: Opened, report: Path) -> None:
    page = opened.goto(report / "index.html")
    assert "in 8.0 s of compile time" in page.locator("h1").inner_text()
    expect(page.locator(".tiles dd").first).to_have_text("7 1 failed")
    box = page.locator(".card h3").first.bounding_box()
    assert box
    assert box["y"] < 700


def test_search_narrows_and_gives_all_back(opened: Opened, report: Path) -> None:
    page = opened.goto(report / "index.html")
    n_all = shown_rows(page, "compilations")
    page.keyboard.press("/")
    page.keyboard.type("no kernel RuntimeError")
    expect(page.locator("#compilations tbody > tr")).to_have_count(1)
    expect(page.locator("#compilations tbody > tr")).to_have_id("frame-2-0")
    expect(page.locator("#caches")).to_be_hidden()
    page.keyboard.press("Escape")
    assert shown_rows(page, "compilations") == n_all


def test_search_says_when_nothing_has_the_words(opened: Opened, report: Path) -> None:
    page = opened.goto(report / "index.html")
    page.locator("#search").fill("nosuchword")
    page.locator("#nothing").wait_for(state="visible")
    assert page.locator("main > section:visible").count() == 0


def test_search_finds_stacks_by_what_leads_to_them(opened: Opened, report: Path) -> None:
    page = opened.goto(report / "index.html")
    page.locator("#search").fill("[2/0]")
    expect(page.locator("#stacks .hits")).not_to_be_empty()
    told = page.locator(".trie").inner_text()
    assert "loss" in told
    assert "step" in told
    assert "forward" not in told


def test_sort_by_click_and_by_key(opened: Opened, report: Path) -> None:
    page = opened.goto(report / "index.html")
    head = page.locator("#compilations th", has_text="Time")
    head.locator("button").click()
    assert head.get_attribute("aria-sort") == "descending"
    assert page.locator("#compilations tbody > tr").first.get_attribute("id") == "frame-0-2"
    head.locator("button").focus()
    page.keyboard.press("Enter")
    assert head.get_attribute("aria-sort") == "ascending"
    times = page.locator("#compilations tbody > tr > td:nth-child(3)").evaluate_all("all => all.map(e => +e.dataset.v)")
    assert times == sorted(times)


def test_ids_are_sorted_as_numbers(opened: Opened, tmp_path: Path) -> None:
    page = opened.goto(index_alone(tmp_path, crowded_log(12)) / "index.html")
    page.locator("#compilations th", has_text="Id").locator("button").click()
    ids = page.locator("#compilations tbody > tr > td:first-child").all_inner_texts()
    assert ids[2:4] == ["[1/0]", "[1/1]"]
    assert ids[-1] == "[11/1]"


def test_chips_have_the_known_colours(opened: Opened, report: Path) -> None:
    page = opened.goto(report / "index.html")

    def channels(name: str) -> list[int]:
        colour: str = page.locator(f"#{name} .chip").first.evaluate("e => getComputedStyle(e).backgroundColor")
        return [int(part) for part in colour.removeprefix("rgb(").rstrip(")").split(",")]

    red, green, blue = channels("frame-0-0")
    assert green > 1.5 * max(red, blue), "green: compiled"
    light = channels("frame-1-0")
    assert light[1] > green, "light green: restarted"
    red, green, blue = channels("frame-2-0")
    assert red > 2 * max(green, blue), "red: failed"
    assert min(channels("frame-3-0")) > 220, "white: nothing captured"
    red, green, blue = channels("frame-4-0")
    assert min(red, blue) > green, "purple: no metrics"


def test_a_deep_link_opens_and_shows_its_compilation(opened: Opened, report: Path) -> None:
    page = opened.goto(report / "index.html", "#frame-0-1")
    assert page.locator("#frame-0-1 details").evaluate("e => e.open")
    assert page.locator("#frame-0-1").evaluate(
        "e => e.getBoundingClientRect().top < innerHeight && e.getBoundingClientRect().top > 0"
    )
    page.locator("#stacks .chip", has_text="[2/0]").click()
    expect(page.locator("#frame-2-0 .fail")).to_be_visible()


def test_a_finding_that_is_folded_opens_by_its_link(opened: Opened, report: Path) -> None:
    page = opened.goto(report / "index.html")
    folded = page.locator(".card.info").first
    expect(folded.locator("h3")).to_be_visible()
    expect(folded.locator("dl").first).to_be_hidden()
    page.goto("about:blank")
    opened.goto(report / "index.html", f"#finding-{number_of_first_info(report)}")
    expect(folded.locator("dl").first).to_be_visible()


def test_a_deep_link_reaches_rows_that_are_not_drawn_yet(opened: Opened, tmp_path: Path) -> None:
    folder = index_alone(tmp_path, crowded_log(800))
    page = opened.goto(folder / "index.html", "#frame-799-1")
    expect(page.locator("#frame-799-1 a[href*=dynamo_output_graph]")).to_be_visible()


def test_many_frames_are_drawn_in_steps(opened: Opened, tmp_path: Path) -> None:
    page = opened.goto(index_alone(tmp_path, crowded_log(800)) / "index.html")
    assert page.evaluate("document.querySelectorAll('*').length") < 12_000
    before = shown_rows(page, "compilations")
    page.locator("#compilations .more button").click()
    assert shown_rows(page, "compilations") == 2 * before
    page.locator("#search").fill("layer_799")
    expect(page.locator("#compilations tbody > tr")).to_have_count(2)


def test_files_open_from_the_tree(opened: Opened, report: Path) -> None:
    page = opened.goto(report / "index.html", "#frame-0-0")
    page.locator("#frame-0-0 a[href*=inductor_output_code]").click()
    page.wait_for_selector(".tok-keyword")
    expect(page.locator("#L3")).to_have_text("def call(args):  # runs it")
    expect(page.locator(".tok-comment")).to_have_text("# runs it")
    page.goto(page.url.split("#")[0] + "#L4")
    assert page.locator("#L4").evaluate("e => getComputedStyle(e).backgroundColor") != "rgba(0, 0, 0, 0)"


def test_megabytes_of_code_are_numbered_and_coloured_where_one_looks(opened: Opened, tmp_path: Path) -> None:
    kernel = "async_compile.cpp_pybinding(['float*'], r'''\nextern void kernel(const float* x) { return; }\n''')\n"
    code = kernel + "def call(args):  # comment\n    return 'text', 12\n" * 45_000
    log = LogBuilder().start("0/0").record("inductor_output_code", {"filename": "/c/big.py"}, code, **ids_of("0/0"))
    folder = report_of(tmp_path, log.metrics("0/0"))
    [path] = folder.glob("*/inductor_output_code*.html")
    page = opened.goto(path, "#L90001")
    page.wait_for_selector("#L90001 .tok-keyword, #L90002 .tok-keyword")
    assert page.locator("#L90001").evaluate("e => e.getBoundingClientRect().top < innerHeight")
    assert page.evaluate("document.querySelectorAll('span[class^=tok]').length") < 60_000
    page.evaluate("scrollTo(0, 0)")
    page.wait_for_selector("#L2 .tok-keyword")
    assert page.locator("#L2 .tok-keyword").all_inner_texts() == ["extern", "void", "const", "float", "return"]


def test_the_single_file_shows_texts_and_pages_and_leads_back(opened: Opened, single: Path) -> None:
    page = opened.goto(single, "#frame-0-0")
    page.locator("#frame-0-0 a[href*=dynamo_output_graph]").click()
    page.locator("#pane .line").first.wait_for()
    expect(page.locator("#pane .line").first).to_contain_text("class GraphModule")
    page.keyboard.press("Escape")
    expect(page.locator("#pane")).to_be_hidden()
    page.locator("#frame-0-0 a[href*=inductor_output_code]").click()
    frame = page.frame_locator("#pane iframe")
    frame.locator(".tok-keyword").first.wait_for()
    expect(frame.locator("#L3")).to_have_text("def call(args):  # runs it")
    frame.locator("a", has_text="Back to the report").click()
    page.locator("#pane").wait_for(state="hidden")
    page.go_back()
    frame.locator("#L3").wait_for()


def test_files_of_the_single_file_can_be_downloaded(opened: Opened, single: Path, report: Path) -> None:
    page = opened.goto(single, "#file:chromium_events.json")
    page.locator("#pane .line").first.wait_for()
    with page.expect_download() as waiting:
        page.locator("#pane header a").click()
    assert waiting.value.suggested_filename == "chromium_events.json"
    assert Path(waiting.value.path()).read_bytes() == (report / "chromium_events.json").read_bytes()


def test_all_ranks_are_in_one_single_file(opened: Opened, tmp_path: Path) -> None:
    folder = report_of(tmp_path, job_log(0), job_log(1))
    pack_folder(folder, tmp_path / "report.html")
    page = opened.goto(tmp_path / "report.html", "#file:rank_1/index.html#frame-0-1")
    rank = page.frame_locator("#pane iframe")
    rank.locator("#frame-0-1 a[href*=dynamo_output_graph]").click()
    page.locator("#pane .line").first.wait_for()
    assert "rank_1/" in page.locator("#pane header b").inner_text()


@pytest.mark.parametrize("is_single", [False, True], ids=["tree", "single"])
def test_hostile_text_is_shown_as_text(opened: Opened, tmp_path: Path, is_single: bool) -> None:
    folder = report_of(tmp_path, hostile_log())
    if is_single:
        pack_folder(folder, tmp_path / "report.html")
    page = opened.goto(tmp_path / "report.html" if is_single else folder / "index.html", "#frame-0-0")
    for details in page.locator("details").all():
        details.evaluate("e => { e.open = true; }")
    page.locator("#search").fill("onerror")
    expect(page.locator("#help")).to_be_hidden()
    for section in ("recompiles", "breaks", "caches", "stacks", "compilations", "records"):
        expect(page.locator(f"#{section}")).to_contain_text(HOSTILE)
    assert page.locator("img").count() == 0
    assert page.title() == "torch.compile"
    assert page.locator("a[href^=javascript]").count() == 0


def test_every_page_of_a_hostile_report_is_harmless(browser: Browser, tmp_path: Path) -> None:
    for path in sorted(report_of(tmp_path, hostile_log()).rglob("*.html")):
        own = Opened(browser)
        page = own.goto(path)
        page.wait_for_timeout(50)
        assert page.title() != "owned", path
        assert page.locator("img").count() == 0, path
        assert own.problems == [], path
        own.context.close()


def test_findings_are_readable_without_scripts(browser: Browser, report: Path, single: Path) -> None:
    own = Opened(browser, java_script_enabled=False)
    for path in (report / "index.html", single):
        page = own.goto(path)
        expect(page.locator(".card h3").first).to_be_visible()
        assert "y.item()" in page.locator("#findings").inner_text()
        expect(page.locator("#frame-0-0")).to_be_visible()
        expect(page.locator("#pane")).to_be_hidden()
    own.context.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_stands_out_from_its_ground(browser: Browser, report: Path, scheme: str) -> None:
    own = Opened(browser, color_scheme=scheme)
    page = own.goto(report / "index.html")
    ratios = page.evaluate(
        CONTRAST,
        ["body", ".chip.ok", ".chip.break", ".chip.empty", ".chip.error", ".chip.missing", ".card .tag", ".place", "a"],
    )
    assert {name: ratio for name, ratio in ratios.items() if ratio < 4.5} == {}
    light = page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert light == (scheme == "light")
    own.context.close()


def test_a_narrow_screen_is_not_scrolled_sideways(browser: Browser, report: Path) -> None:
    own = Opened(browser, viewport={"width": 390, "height": 800})
    page = own.goto(report / "index.html")
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    own.context.close()


# WCAG's contrast of the first element of each selector with what lies behind it.
CONTRAST = """selectors => {
  const parse = (colour) => (colour.match(/[\\d.]+/g) || []).map(Number);
  const luminance = (rgb) => {
    const [r, g, b] = rgb.map((c) => (c /= 255) <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const ground = (e) => {
    for (; e; e = e.parentElement) {
      const c = parse(getComputedStyle(e).backgroundColor);
      if (c.length === 3 || c[3] === 1) return c.slice(0, 3);
    }
    return [255, 255, 255];
  };
  return Object.fromEntries(selectors.map((selector) => {
    const e = document.querySelector(selector);
    const [a, b] = [luminance(parse(getComputedStyle(e).color).slice(0, 3)), luminance(ground(e))];
    return [selector, (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05)];
  }));
}"""


def test_lines_of_graphs_and_code_that_belong_together_light_up(opened: Opened, tmp_path: Path) -> None:
    training_step().write(tmp_path / "logs")
    folder = tmp_path / "report"
    assert main(["compile", str(tmp_path / "logs"), "-o", str(folder), "--provenance", "--fail-on", "never"]) == 0
    page = opened.goto(folder / "provenance_tracking_-_0_0_0.html")
    forward = page.locator("section[data-mappings]").first

    forward.locator("[data-pane=pre] .line", has_text="torch.relu(x)").click()

    expect(forward.locator("[data-pane=pre] .chosen")).to_have_text('        y: "f32[8]" = torch.relu(x)')
    expect(forward.locator("[data-pane=post] .lit")).to_have_text(re.compile(r"relu: .* torch.ops.aten.relu"))
    expect(forward.locator("[data-pane=cpp] .lit, [data-pane=python] .lit").first).to_contain_text("cpp_fused_0")
    page.keyboard.press("Escape")
    expect(forward.locator(".lit")).to_have_count(0)
