"""What a notebook shows, in a real browser: it follows the notebook's theme and leaves the rest of the page alone."""

from __future__ import annotations

from pathlib import Path

import pytest
from page_browser import Opened

from rankscope.model.tables import Table
from render import sample

pytestmark = pytest.mark.e2e

HOSTILE = "<img src=x onerror=document.title='owned'>"


def notebook(folder: Path, theme: str, *fragments: str) -> Path:
    """The least of a notebook: its theme on the body, and its own rules for the tables of outputs."""
    path = folder / "notebook.html"
    style = "<style>.output td { text-align: right } .output tbody tr:nth-child(odd) { background: #eee }</style>"
    outputs = "".join(f'<div class="output">{html}</div>' for html in fragments)
    head = f'<!DOCTYPE html><meta charset="utf-8"><title>notebook</title>{style}'
    path.write_text(f'{head}<body data-jp-theme-light="{theme}"><h3 id="own">mine</h3>{outputs}', encoding="utf-8")
    return path


def style_of(opened: Opened, selector: str, name: str) -> str:
    value: str = opened.page.locator(selector).first.evaluate(f"(node) => getComputedStyle(node).{name}")
    return value


@pytest.mark.parametrize("system", ["light", "dark"])
def test_the_theme_of_the_notebook_counts(system: str, opened: Opened, tmp_path: Path) -> None:
    opened.page.emulate_media(color_scheme=system)
    colors = {}
    for theme in ("true", "false"):
        opened.goto(notebook(tmp_path, theme, sample.hang()._repr_html_()))
        colors[theme] = style_of(opened, ".rankscope", "backgroundColor"), style_of(opened, ".rankscope h3", "color")
    assert colors == {
        "true": ("rgb(255, 255, 255)", "rgb(27, 32, 39)"),
        "false": ("rgb(21, 24, 29)", "rgb(229, 233, 238)"),
    }


def test_styles_stay_on_their_side(opened: Opened, tmp_path: Path) -> None:
    bare = opened.goto(notebook(tmp_path, "true")) and style_of(opened, "#own", "fontSize")
    opened.goto(notebook(tmp_path, "true", sample.hang()._repr_html_()))
    assert style_of(opened, "#own", "fontSize") == bare
    assert style_of(opened, ".sides td", "textAlign") == "left"
    assert style_of(opened, ".sides tbody tr", "backgroundColor") == "rgba(0, 0, 0, 0)"


def test_texts_of_a_trace_stay_text(opened: Opened, tmp_path: Path) -> None:
    table = Table.from_rows("metrics", [{"rank": 0, "name": HOSTILE, "value": 1.0}])
    page = opened.goto(notebook(tmp_path, "true", table._repr_html_(), sample.hostile()._repr_html_()))
    assert page.locator(".rankscope img").count() == 0
    assert HOSTILE in page.locator(".rows td").all_inner_texts()
    assert page.title() == "notebook"
