"""The map in a real browser: cells, zoom, hover, pins, links, search, keyboard, light and dark, hostile names."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from page_browser import Opened, expect

from analyze.building import Setting, job
from demo_captures import demo_page
from rankscope.model.finding import SCHEMA_NAME, Capture, CollectiveRef, Finding, GroupRef, Report
from rankscope.model.tables import Trace
from rankscope.render.page.contents import PageOptions
from rankscope.render.page.writer import write_page

pytestmark = pytest.mark.e2e
if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page
DONE = "dp:1 all_reduce [8] f32 done @loop.py:10"
WAITING = "dp:1 all_reduce [8] f32 waiting @loop.py:20"
ODD = "dp:1 all_gather [8]->[32] f32 waiting @loop.py:30"
MARKUP = "<img/src=x/onerror=document.title='owned'></script>\u202e"
DRAWN = "#map canvas[data-drawn]"


@pytest.fixture(scope="module")
def hung(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Rank 6 of 64 leaves out a call on the tensor-parallel group 2."""
    return demo_page(tmp_path_factory.mktemp("job"), "skip", 64)


def written(folder: Path, trace: Trace, *findings: Finding) -> Path:
    ranks = tuple(trace.table("ranks").array("rank").tolist())
    report = Report(SCHEMA_NAME, Capture(("traces",), ranks, len(ranks), {"flight_recorder": len(ranks)}), findings, ())
    write_page(trace, report, str(folder / "report.html"), PageOptions())
    return folder / "report.html"


def mismatch(folder: Path) -> Path:
    """Four ranks, two hosts; rank 2 calls another operation in the last of 40 calls."""
    programs = {rank: [*[DONE] * 39, ODD if rank == 2 else WAITING] for rank in range(4)}
    trace = job(programs, Setting(hosts={0: "gpu-a", 1: "gpu-a", 2: "gpu-b", 3: "gpu-b"}))
    group = GroupRef("1", "dp", (0, 1, 2, 3))
    found = Finding(
        code="H102",
        rule="op-mismatch",
        severity="error",
        certainty="certain",
        title="odd",
        ranks=(2,),
        group=group,
        collective=CollectiveRef(40, "all_reduce"),
    )
    return written(folder, trace, found)


def drawn(opened: Opened, file: Path, fragment: str = "#map") -> Page:
    page = opened.goto(file, fragment)
    expect(page.locator(DRAWN)).to_be_visible()
    return page


def view(page: Page) -> dict[str, Any]:
    seen: dict[str, Any] = page.evaluate("rankscope.map.view()")
    return seen


def settle(page: Page) -> None:
    """What was asked for is drawn with the next frame."""
    page.evaluate("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")


def middle_of(page: Page, place: int, column: int) -> dict[str, float]:
    """Of a cell, within the canvas."""
    seen = view(page)
    return {"x": seen["left"] + (column + 0.5) * seen["w"], "y": seen["top"] + (place + 0.5) * seen["h"]}


def colour_at(page: Page, place: int, column: int) -> list[int]:
    at = middle_of(page, place, column)
    code = "([x, y]) => [...document.querySelector('#map canvas').getContext('2d').getImageData(x, y, 1, 1).data]"
    pixel: list[int] = page.evaluate(code, [at["x"] + 4, at["y"] - 4])  # beside the sign
    return pixel


def test_cells_have_the_states_of_the_job(opened: Opened, hung: Path) -> None:
    page = drawn(opened, hung)
    assert page.evaluate("rankscope.map.cell(6, 68)") == "not joined"
    assert page.evaluate("rankscope.map.cell(4, 68)") == "waiting"
    assert page.evaluate("rankscope.map.cell(6, 64)") == "done, from a different line than most"
    assert page.evaluate("rankscope.map.cell(4, 70)") == "not involved"
    assert page.evaluate("rankscope.map.cell(0, 70)") == "done"
    assert opened.requests == [hung.as_uri() + "#map"] or opened.requests == [hung.as_uri()]


def test_colours_tell_the_states_apart(opened: Opened, tmp_path: Path) -> None:
    page = drawn(opened, mismatch(tmp_path))
    done, waiting, odd = (colour_at(page, place, column) for place, column in ((0, 0), (0, 39), (2, 39)))
    assert len({tuple(done), tuple(waiting), tuple(odd)}) == 3
    words = page.locator(".map-legend span").all_inner_texts()
    assert [word.strip(" •≠") for word in words] == ["done", "waiting", "mismatch: a different call than most"]


def test_the_worst_of_a_pixel_is_seen_to_the_last_column(opened: Opened, tmp_path: Path) -> None:
    """5,000 columns on a thousand pixels: the one that never ended is the very last."""
    programs = {rank: [*[DONE] * 4999, WAITING] for rank in range(2)}
    page = drawn(opened, written(tmp_path, job(programs)))
    seen = view(page)
    assert seen["w"] < 0.5
    code = """([from, to, y]) => {
      const context = document.querySelector('#map canvas').getContext('2d');
      const data = context.getImageData(0, y, to, 1).data;
      return [from, to - 1].map((x) => [...data.slice(x * 4, x * 4 + 3)]);
    }"""
    first, last = page.evaluate(code, [round(seen["left"]), round(seen["left"] + seen["width"]), seen["top"] + 7])
    assert first != last
    assert last[0] > 150 > last[2]  # the amber of those that wait


def test_hover_tells_the_call_and_its_stack(opened: Opened, tmp_path: Path) -> None:
    page = drawn(opened, mismatch(tmp_path))
    page.locator("#map canvas").hover(position=middle_of(page, 2, 39))
    tip = page.locator(".map-tip")
    expect(tip).to_be_visible()
    for said in ("gpu-b", "all_gather [8] -> [32] f32", "mismatch", "loop.py:30 in step", "40"):
        expect(tip).to_contain_text(said)


def test_two_cells_are_pinned_side_by_side_and_let_go(opened: Opened, tmp_path: Path) -> None:
    page = drawn(opened, mismatch(tmp_path))
    canvas, pins = page.locator("#map canvas"), page.locator(".map-pins article")
    for place in (0, 1, 2):
        canvas.click(position=middle_of(page, place, 39))
    expect(pins).to_have_count(2)
    expect(pins.nth(1).locator("dd.differs", has_text="all_gather")).to_be_visible()
    expect(pins.nth(0).locator("li.differs")).to_contain_text("loop.py:20")
    expect(pins.nth(0).locator("dd.differs", has_text="40")).to_have_count(0)
    canvas.click(position=middle_of(page, 2, 39))
    expect(pins).to_have_count(1)
    canvas.press("Escape")
    expect(pins).to_have_count(0)


def test_wheel_buttons_and_drag_move_the_view(opened: Opened, hung: Path) -> None:
    page = drawn(opened, hung)
    canvas, before = page.locator("#map canvas"), view(page)
    canvas.hover(position={"x": 600, "y": 200})
    page.mouse.wheel(0, -300)
    settle(page)
    zoomed = view(page)
    assert zoomed["w"] > before["w"]
    column = (600 - before["left"]) / before["w"]
    assert abs((600 - zoomed["left"]) / zoomed["w"] - column) < 0.01  # what is under the pointer stays there
    page.mouse.down()
    page.mouse.move(500, 300)
    page.mouse.move(400, 300)
    page.mouse.up()
    expect(page.locator(".map-pins article")).to_have_count(0)
    settle(page)
    assert view(page)["x"] > zoomed["x"]
    page.locator("[data-map=fit]").click()
    settle(page)
    assert view(page)["w"] == pytest.approx(before["w"])
    page.locator("[data-map=in]").click()
    settle(page)
    assert view(page)["w"] > before["w"]


def test_a_link_chooses_zooms_and_pins_the_rank_beside_a_peer(opened: Opened, hung: Path) -> None:
    page = drawn(opened, hung, "#map?group=2&seq=68&rank=6")
    pins = page.locator(".map-pins article")
    expect(pins).to_have_count(2)
    expect(pins.nth(0)).to_contain_text("not joined")
    expect(pins.nth(0)).to_contain_text("Last call")
    expect(pins.nth(1)).to_contain_text("waiting")
    expect(page.locator("[data-map=group]")).to_have_value("2")
    seen = view(page)
    assert seen["rows"] == 4
    assert seen["x"] <= 67 < seen["x"] + seen["width"] / seen["w"]


def test_links_of_the_tables_and_of_findings_lead_to_the_cell(opened: Opened, hung: Path) -> None:
    page = drawn(opened, hung)
    page.locator("#map tbody a", has_text="6").first.click()
    expect(page.locator(".map-said")).to_contain_text("Rank 6")
    page.locator("#findings .links a", has_text="map").first.click()
    expect(page.locator(".map-said")).to_contain_text("collective 64")


def test_a_link_into_another_kind_of_group_loads_its_map(opened: Opened, hung: Path) -> None:
    page = drawn(opened, hung, "#map?group=0&seq=5&rank=9")
    expect(page.locator("[data-map=choice] option:checked")).to_contain_text("default_pg")
    expect(page.locator(".map-pins article").first).to_contain_text("default_pg")
    page = drawn(opened, hung, "#map?group=25&seq=3&rank=0&p2p=1")
    expect(page.locator("[data-map=choice] option:checked")).to_contain_text("transfers")
    page = drawn(opened, hung, "#map?group=nothing&seq=x&rank=y")
    assert view(page)["rows"] == 64


def test_the_keyboard_goes_from_cell_to_cell(opened: Opened, tmp_path: Path) -> None:
    page = drawn(opened, mismatch(tmp_path))
    canvas, said = page.locator("#map canvas"), page.locator(".map-said")
    canvas.focus()
    for key in ("End", "End", "ArrowDown", "ArrowDown"):
        canvas.press(key)
    expect(said).to_contain_text("Rank 2")
    expect(said).to_contain_text("all_gather")
    expect(said).to_have_attribute("aria-live", "polite")
    canvas.press("Enter")
    expect(page.locator(".map-pins article")).to_have_count(1)
    before = view(page)["w"]
    canvas.press("-")
    assert view(page)["w"] <= before


def test_rows_are_ordered_and_filtered(opened: Opened, tmp_path: Path) -> None:
    page = drawn(opened, mismatch(tmp_path))
    page.locator("[data-map=host]").fill("gpu-b")
    expect(page.locator("#map canvas")).to_have_attribute("data-drawn", "map-0 state 2")
    page.locator("[data-map=host]").fill("")
    page.locator("[data-map=order]").select_option("worst")
    settle(page)
    page.locator("#map canvas").hover(position=middle_of(page, 0, 39))
    expect(page.locator(".map-tip")).to_contain_text("mismatch")
    page.locator("[data-map=host]").fill("no such host")
    expect(page.locator("#map canvas")).to_have_attribute("data-drawn", "map-0 state 0")


def test_layers_have_legends_of_their_own(opened: Opened, tmp_path: Path) -> None:
    moments = {0: 10, 1: 11, 2: 12, 3: 500}
    programs = {rank: [f"{DONE} +{moment} =600", WAITING + " +700"] for rank, moment in moments.items()}
    page = drawn(opened, written(tmp_path, job(programs)))
    page.locator("[data-map=layer]").select_option("late")
    expect(page.locator(".map-legend")).to_contain_text("up to 510 ms")
    page.locator("[data-map=layer]").select_option("duration")
    expect(page.locator(".map-legend")).to_contain_text("not finished")


def test_search_lists_places_on_the_map(opened: Opened, tmp_path: Path) -> None:
    page = drawn(opened, mismatch(tmp_path))
    page.locator("#search").fill("all_gather")
    hits = page.locator(".map-hits a")
    expect(hits).to_have_count(1)
    expect(hits.first).to_contain_text("loop.py:30")
    hits.first.click()
    expect(page.locator(".map-said")).to_contain_text("Rank 2")
    page.locator("#search").fill("rank 3")
    expect(hits.first).to_contain_text("rank 3")
    page.locator("#search").fill("")
    expect(page.locator(".map-hits")).to_be_hidden()


def test_light_and_dark_have_their_own_colours(opened: Opened, tmp_path: Path) -> None:
    page = drawn(opened, mismatch(tmp_path))
    light = colour_at(page, 0, 0)
    page.emulate_media(color_scheme="dark")
    settle(page)
    assert colour_at(page, 0, 0) != light


def test_hostile_names_are_shown_as_text(opened: Opened, tmp_path: Path) -> None:
    call = f"{MARKUP}:1 {MARKUP} done @{MARKUP}:7"
    trace = job({0: [call, WAITING], 1: [call]}, Setting(hosts={0: MARKUP, 1: MARKUP + "x" * 10_000}))
    page = drawn(opened, written(tmp_path, trace))
    page.locator("#map canvas").hover(position=middle_of(page, 0, 0))
    expect(page.locator(".map-tip")).to_contain_text("<img/src=x")
    expect(page.locator(".map-tip")).to_contain_text("\\u202e")
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    page.locator("#map canvas").click(position=middle_of(page, 1, 0))
    expect(page.locator(".map-pins")).to_contain_text("<img/src=x")
    page.locator("#search").fill("onerror")
    expect(page.locator(".map-hits a").first).to_contain_text("<img/src=x")
    assert page.title() != "owned"
    assert page.locator("#map img").count() == 0


def test_the_tables_stay_without_scripts(browser: Browser, tmp_path: Path) -> None:
    own = Opened(browser, java_script_enabled=False)
    page = own.goto(mismatch(tmp_path), "#map")
    expect(page.locator(".map-tools")).to_be_hidden()
    expect(page.locator("#map tbody tr").first).to_contain_text("mismatch")
    own.close()


def test_one_rank_is_a_map_too(opened: Opened, tmp_path: Path) -> None:
    page = drawn(opened, written(tmp_path, job({0: [DONE]})))
    seen = view(page)
    assert (seen["rows"], seen["columns"]) == (1, 1)
    assert seen["h"] <= 14
    assert seen["w"] <= 28


def test_the_finding_about_a_transfer_leads_to_its_column(opened: Opened, tmp_path: Path) -> None:
    """A finding counts transfers by rank, the map by pair: the link must not mix them up."""
    page = opened.goto(demo_page(tmp_path, "p2p", 16))
    link = page.locator("#findings .links a").first
    assert "p2p=1" in (link.get_attribute("href") or "")
    link.click()
    expect(page.locator("#map .map-said")).to_contain_text("not joined")
    assert "transfers" in page.locator("[data-map=choice] option:checked").inner_text()
