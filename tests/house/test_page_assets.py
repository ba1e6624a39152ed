"""What our pages are made of: small plain scripts and styles that load nothing, and colours that can be read."""

from __future__ import annotations

import itertools
import re

import pytest
from source_tree import PACKAGE, SourceFile, on_files, source_files

from rankscope.render.page.writer import SERVED_SCRIPTS, STYLES

ASSETS = PACKAGE / "render" / "assets"
MAX_SCRIPT_BYTES = 60_000
LEAST_CONTRAST = 4.5  # as WCAG asks it of text (AA)
TEXTS = ("ink", "faint", "link", "accent", "error", "warning", "info")
BACKGROUNDS = ("page", "raised", "soft")
# What makes code or markup of a text. The one place that does so takes what was escaped when it was written.
RUNS_TEXT = re.compile(
    r"\beval\b|\bFunction\(|\binnerHTML\b|\bouterHTML\s*=[^=]|insertAdjacentHTML|createContextualFragment|document\.write"
    r"|set(?:Timeout|Interval)\(\s*[\"'`]|\bimport\("
)
LOADS = re.compile(r"https?://|@import|\burl\(|\bXMLHttpRequest\b|\bWebSocket\b|\bEventSource\b|sendBeacon")
INLINE = re.compile(
    r"""<\w[^>"']*\s(?:style|on[a-z]+)=|["'\s](?:style|on(?:click|error|load|toggle|input|mouse\w+))=\\?["']"""
)
VARIABLE = re.compile(r"--(\w+):\s*light-dark\((#\w{6}), (#\w{6})\);")
CHIP = re.compile(r"\.chip\.(\w+) \{ background: light-dark\((#\w{6}), (#\w{6})\); color: (#\w{3,6});")


def assets(extension: str) -> dict[str, str]:
    return {path.name: path.read_text("utf-8") for path in sorted(ASSETS.glob(f"*.{extension}"))}


def test_every_asset_is_named_by_some_page() -> None:
    source = "".join(each.text for each in source_files() if each.room in ("render", "commands"))
    assert [name for name in (*assets("js"), *assets("css")) if f'"{name}"' not in source] == []


def test_the_scripts_of_the_page_stay_small() -> None:
    sizes = {name: len((ASSETS / name).read_bytes()) for name in SERVED_SCRIPTS}
    assert sum(sizes.values()) < MAX_SCRIPT_BYTES, sizes


def test_scripts_make_neither_code_nor_markup_of_a_text() -> None:
    found = [
        (name, line.strip())
        for name, text in assets("js").items()
        for line in text.splitlines()
        if RUNS_TEXT.search(line)
    ]
    assert found == [("page.js", "template.innerHTML = html;")]


def test_assets_load_nothing() -> None:
    every = {**assets("js"), **assets("css")}
    assert {name: found.group() for name, text in every.items() if (found := LOADS.search(text))} == {}


@on_files(lambda source: source.name.startswith(("render/page/", "render/cards", "render/listing")))
def test_markup_has_neither_inline_styles_nor_handlers(source: SourceFile) -> None:
    """The page's policy would refuse them, and they would be missed only by those who look."""
    found = [line.strip() for line in source.text.splitlines() if INLINE.search(line)]
    assert found == []


# Colours


def luminance(colour: str) -> float:
    digits = colour[1:] if len(colour) == 7 else "".join(2 * digit for digit in colour[1:])
    parts = [int(digits[at : at + 2], 16) / 255 for at in (0, 2, 4)]
    red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: str, other: str) -> float:
    dark, light = sorted((luminance(one), luminance(other)))
    return (light + 0.05) / (dark + 0.05)


def test_contrast_is_measured_as_everybody_does() -> None:
    assert contrast("#000", "#ffffff") == pytest.approx(21)
    assert contrast("#767676", "#fff") == pytest.approx(4.54, abs=0.01)


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_text_can_be_read_on_every_background(theme: str) -> None:
    styles = assets("css")["page.css"]
    colours = {name: light if theme == "light" else dark for name, light, dark in VARIABLE.findall(styles)}
    pairs = [*itertools.product(TEXTS, BACKGROUNDS), ("ink", "mark"), ("faint", "mark")]
    measured = {pair: contrast(colours[pair[0]], colours[pair[1]]) for pair in pairs}
    for name, light, dark, ink in CHIP.findall(styles):
        measured["chip", name] = contrast(ink, light if theme == "light" else dark)
    assert len(measured) >= len(pairs) + 5
    assert {pair: round(ratio, 2) for pair, ratio in measured.items() if ratio < LEAST_CONTRAST} == {}


def test_colours_that_scripts_and_styles_ask_for_are_there() -> None:
    styles = "".join(assets("css").values())
    defined = set(re.findall(r"(--[\w-]+)\s*:", styles))
    scripts = "".join(assets("js").values())
    asked = set(re.findall(r"var\((--[\w-]+)\)", styles)) | set(re.findall(r"[\"'`](--[a-z][\w-]*)[\"'`]", scripts))
    asked |= {
        name
        for source in source_files()
        if source.room == "render"
        for name in re.findall(r"var\((--[\w-]+)\)", source.text)
    }
    assert asked - defined == set()


def test_styles_of_the_page_follow_the_theme() -> None:
    """A colour that is written down once is right in one theme at most: chips and shadows aside, variables say it."""
    for name in STYLES:
        for line in assets("css")[name].splitlines():
            fixed = re.search(r"(?<!-)\b(?:color|background|fill|stroke):\s*#", line)
            assert not fixed or ".chip" in line, f"{name}: {line}"
