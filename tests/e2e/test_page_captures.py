"""Pages of whole captures in a real browser: real jobs, every source at once, junk, one rank, hostile names."""

from __future__ import annotations

import html
import re
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple

import page_accessibility
import page_captures
import pytest
from page_browser import Opened, expect
from page_captures import Recorded, texts_of, written

import capture_building
from capture_building import SCRIPT
from rankscope.simulate import Fault, JobSpec, Mesh, simulate

pytest.importorskip("torch")
pytestmark = pytest.mark.e2e
if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

ALL_VIEWS = {"findings", "map", "waits", "stacks", "performance", "compile", "metrics", "capture"}
OF_DUMPS = {"findings", "map", "waits", "stacks", "capture"}
LEAST_CONTRAST = 4.5
HAS_COLOURS = """canvas => {
  const pixels = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data;
  return new Set(new Uint32Array(pixels.buffer)).size > 1;
}"""
DOUBLE_IDS = """() => {
  const ids = [...document.querySelectorAll("[id]")].map((each) => each.id);
  return ids.filter((id, position) => ids.indexOf(id) !== position);
}"""


class Shown(NamedTuple):
    page: Path
    views: set[str]  # those that have data


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Recorded:
    return page_captures.record_jobs(tmp_path_factory.mktemp("recorded"))


@pytest.fixture(scope="module")
def trained(recorded: Recorded) -> Shown:
    return Shown(written(recorded.trained, "trained.html"), ALL_VIEWS - {"waits"})


@pytest.fixture(scope="module")
def hung(recorded: Recorded) -> Shown:
    return Shown(written(recorded.hung, "hung.html"), OF_DUMPS)


@pytest.fixture(scope="module")
def mixed(tmp_path_factory: pytest.TempPathFactory) -> Shown:
    capture = capture_building.mixed_capture(tmp_path_factory.mktemp("mixed") / "traces")
    return Shown(written(capture, "report.html"), ALL_VIEWS)


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Shown:
    capture = capture_building.hostile_capture(tmp_path_factory.mktemp("hostile") / "traces")
    return Shown(written(capture, "report.html"), ALL_VIEWS)


@pytest.fixture(scope="module")
def junk(tmp_path_factory: pytest.TempPathFactory) -> Shown:
    capture = tmp_path_factory.mktemp("junk") / "traces"
    simulate(JobSpec(Mesh(dp=2, tp=2), steps=4), Fault("skip", rank=1)).write(capture, "nccl_trace_rank_")
    capture_building.add_junk(capture)
    return Shown(written(capture, "report.html"), OF_DUMPS)


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Shown:
    capture = capture_building.one_rank(tmp_path_factory.mktemp("alone") / "traces")
    return Shown(written(capture, "report.html"), {"findings", "compile", "metrics", "capture"})


def shown_by(request: pytest.FixtureRequest) -> Shown:
    made: Shown = request.getfixturevalue(request.param)
    return made


any_page = pytest.fixture(params=["trained", "hung", "mixed", "hostile", "junk", "alone"])(shown_by)
main_page = pytest.fixture(params=["trained", "hung", "mixed", "hostile"])(shown_by)


@pytest.fixture
def telephone(browser: Browser) -> Iterator[Opened]:
    own = Opened(browser, viewport={"width": 390, "height": 800}, color_scheme="dark")
    yield own
    own.close()


def see_all(page: Page) -> None:
    """Scrolls through the whole page: a view draws itself when it comes near."""
    for section in page.locator("main > section").all():
        section.scroll_into_view_if_needed()
    page.wait_for_timeout(100)


def follow(page: Page, link: str) -> None:
    page.evaluate("link => { location.hash = link; }", link)
    expect(page.locator(link.split("?")[0])).to_be_in_viewport()


def test_every_view_is_drawn_and_every_link_leads_somewhere(opened: Opened, any_page: Shown) -> None:
    page = opened.goto(any_page.page)
    for link in page.locator(".bar nav a").evaluate_all("all => all.map(each => each.hash)"):
        follow(page, link)
    links = page.locator("#findings .links a").evaluate_all("all => all.map(each => each.hash)")
    assert links
    for link in sorted(set(links)):
        follow(page, link)
    see_all(page)
    present = page.locator("main > section:not(.absent)").evaluate_all("all => all.map(each => each.id)")
    assert set(present) == any_page.views
    assert page.get_by_text("could not be drawn").count() == 0
    for canvas in page.locator("canvas:visible").all():
        assert canvas.evaluate(HAS_COLOURS)
    assert page.evaluate(DOUBLE_IDS) == []
    # All others: to an element of the page, or of a list or fold that is put in later.
    whole = texts_of(any_page.page)["page"].replace('\\"', '"')
    targets = set(re.findall(r'\shref="#([^"?]*)', whole))
    assert targets - set(re.findall(r'\sid="([^"]*)"', whole)) == set()
    assert opened.requests == [any_page.page.as_uri()]


def test_search_finds_the_words_of_every_view(opened: Opened, mixed: Shown) -> None:
    page = opened.goto(mixed.page)
    words = {
        "findings": "rank 1 skipped",
        "map": "all_reduce",
        "waits": "all_reduce",
        "stacks": "ctx.tp_group",
        "performance": "layer_norm",
        "compile": "RuntimeError",
        "metrics": "loss",
        "capture": "metrics_3",
    }
    for view, sought in words.items():
        page.locator("#search").fill(sought)
        expect(page.locator(f"#{view}")).to_be_visible()
        page.locator("#search").fill("there is no such thing")
        expect(page.locator(f"#{view}")).to_be_hidden()
    page.locator("#search").fill("")
    expect(page.locator("main > section:visible")).to_have_count(len(ALL_VIEWS))


def test_a_telephone_needs_no_sideways_scrolling(telephone: Opened, main_page: Shown) -> None:
    page = telephone.goto(main_page.page)
    see_all(page)
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    assert page.evaluate("Math.max(...getComputedStyle(document.body).backgroundColor.match(/\\d+/g))") < 60


def test_without_scripts_and_on_paper_all_can_be_read(browser: Browser, main_page: Shown) -> None:
    own = Opened(browser, java_script_enabled=False)
    page = own.goto(main_page.page)
    expect(page.locator("#findings .card h3").first).to_be_visible()
    for view in sorted(main_page.views - {"findings"}):
        expect(page.locator(f"#{view} :is(table, .trie, svg):visible").first).to_be_attached()
        assert page.locator(f"#{view} :is(table, .trie)").count() > 0
    assert page.pdf().startswith(b"%PDF")
    own.close()


def test_keyboards_and_screen_readers_find_their_way(opened: Opened, main_page: Shown) -> None:
    page = opened.goto(main_page.page)
    see_all(page)
    assert page_accessibility.structure_problems(page) == []
    assert page_accessibility.unmarked_stops(page, 25) == set()


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("capture", ["hung", "mixed"])
def test_all_texts_stand_out_from_their_ground(
    opened: Opened, request: pytest.FixtureRequest, capture: str, theme: Literal["light", "dark"]
) -> None:
    shown: Shown = request.getfixturevalue(capture)
    opened.page.emulate_media(color_scheme=theme)
    page = opened.goto(shown.page)
    see_all(page)
    assert page_accessibility.contrast_problems(page, LEAST_CONTRAST) == []


def test_nothing_hostile_runs_and_all_of_it_is_text(opened: Opened, hostile: Shown) -> None:
    page = opened.goto(hostile.page)
    see_all(page)
    page.evaluate("document.querySelectorAll('details').forEach(each => (each.open = true))")
    page.locator("#search").fill("<img src=x onerror")
    for view in sorted(ALL_VIEWS):
        expect(page.locator(f"#{view}")).to_be_visible()
        assert "<img src=x onerror" in (page.locator(f"#{view}").text_content() or "")
    page.locator("#search").fill("")
    assert not page.title().startswith("owned")
    assert page.locator("img, main script, main iframe, main object").count() == 0
    assert page.evaluate("/[\\u202a-\\u202e\\x00]/.test(document.documentElement.textContent)") is False


def test_what_is_told_under_the_pointer_is_text_too(opened: Opened, hostile: Shown) -> None:
    page = opened.goto(hostile.page)
    see_all(page)
    canvas = page.locator("#map canvas")
    expect(canvas).to_be_visible()
    canvas.focus()
    page.keyboard.press("ArrowRight")
    expect(page.locator("#map .map-said")).to_contain_text(SCRIPT[:20])
    page.keyboard.press("Enter")
    expect(page.locator("#map .map-pins")).to_contain_text(SCRIPT[:20])
    box = canvas.bounding_box()
    assert box
    canvas.hover(position={"x": box["width"] * 0.9, "y": box["height"] / 2})
    page.locator("#metrics figure").focus()
    page.keyboard.press("ArrowRight")
    expect(page.locator("body > .tip")).to_be_visible()
    assert page.locator("img").count() == 0
    assert not page.title().startswith("owned")


def test_a_damaged_dump_is_told_and_the_rest_is_judged(opened: Opened, junk: Shown) -> None:
    page = opened.goto(junk.page)
    assert "rank 1 skipped" in page.locator("h1").inner_text()
    expect(page.locator("#capture tr", has_text="nccl_trace_rank_2")).to_contain_text("damaged")
    expect(page.locator("#capture")).to_contain_text("other files")


# What leaves the house


def own_lines(program: Path) -> set[str]:
    """Lines that nothing but this program has. What torch quotes when it explains a graph break is none of them."""
    lines = {line.strip() for line in program.read_text().splitlines() if "(" in line}
    return {line for line in lines if len(line) > 15 and not line.startswith("torch._dynamo.")}


def leaks(page: Path, secrets: set[str]) -> set[tuple[str, str]]:
    told = {where: html.unescape(text) for where, text in texts_of(page).items()}
    return {(where, secret) for where, text in told.items() for secret in secrets if secret in text}


@pytest.mark.parametrize("job", ["trained", "hung"])
def test_a_redacted_page_tells_neither_directories_nor_hosts_nor_code(recorded: Recorded, job: str) -> None:
    program, capture = page_captures.TRAINING, Path(getattr(recorded, job))
    page = written(capture, f"{job}-redacted.html", "--redact")
    folders = {f"{folder}/" for folder in (capture, capture.parent, program.parent, Path(pytest.__file__).parents[1])}
    assert leaks(page, folders | {"e2e/jobs", "site-packages"} | own_lines(program)) == set()
    host = re.compile(rf"(?<![\w.-]){re.escape(socket.gethostname())}(?![\w-])")
    assert not any(map(host.search, texts_of(page).values()))
    assert program.name in texts_of(page)["page"]


def test_directories_of_any_name_are_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With blanks and brackets in it, given as it is called from where the user stands."""
    folder = tmp_path / "secret place" / "of {alice} & [bob]"
    folder.parent.mkdir()
    capture_building.one_rank(folder)
    monkeypatch.chdir(tmp_path)
    page = written(folder.relative_to(tmp_path), "report.html", "--redact")
    assert leaks(page, {"secret", "alice", "bob"}) == set()
    assert "metrics_0.jsonl" in texts_of(page)["page"]


@pytest.mark.parametrize("job", ["trained", "hung"])
def test_a_page_without_source_has_places_but_no_code(
    recorded: Recorded, job: str, request: pytest.FixtureRequest
) -> None:
    whole: Shown = request.getfixturevalue(job)
    lines = own_lines(page_captures.TRAINING)
    assert leaks(whole.page, lines)
    capture = Path(getattr(recorded, job))
    page = written(capture, f"{job}-without.html", "--no-source")
    assert leaks(page, lines) == set()
    assert page_captures.TRAINING.name in texts_of(page)["page"]


def test_a_small_page_says_what_it_leaves_out(
    opened: Opened, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    capture = capture_building.large_capture(tmp_path / "traces", 2_000_000)
    page_file = written(capture, "small.html", "--max-size", "0.5")
    assert page_file.stat().st_size <= 500_000
    page = opened.goto(page_file)
    expect(page.locator(".remarks")).to_contain_text("did not fit in the page")
    assert "note:" in capsys.readouterr().err
