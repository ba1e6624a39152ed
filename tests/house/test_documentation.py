"""The pages agree with the code and with each other."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from source_tree import ROOT

PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "bench").glob("*.md")])
LINK = re.compile(r"(?<!!)\[[^\]]+\]\(([^)\s]+)\)")
HEADING = re.compile(r"(?m)^#+ (.+)$")
FENCE = re.compile(r"(?ms)^```.*?^```$")


def anchors(page: Path) -> set[str]:
    """The ids that a Markdown viewer gives to the headings of a page."""
    headings = HEADING.findall(FENCE.sub("", page.read_text(encoding="utf-8")))
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


@pytest.mark.parametrize(
    "options", [["--without-samples"], pytest.param([], marks=pytest.mark.slow)], ids=["generated", "samples"]
)
def test_generated_pages_are_up_to_date(options: list[str]) -> None:
    command = [sys.executable, str(ROOT / "tools" / "make_docs.py"), "--check", *options]
    finished = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert finished.returncode == 0, f"run `make docs`:\n{finished.stdout}{finished.stderr}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_links_lead_somewhere(page: Path) -> None:
    text = FENCE.sub("", page.read_text(encoding="utf-8"))
    for target in LINK.findall(text):
        if target.startswith(("https://", "http://")):
            continue
        path, _, anchor = target.partition("#")
        linked = (page.parent / path).resolve() if path else page
        assert linked.exists(), target
        assert not anchor or anchor in anchors(linked), target
