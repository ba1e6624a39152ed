"""What each view of the page says of a small job that every source tells of."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import rankscope
from capture_building import mixed_capture
from rankscope.pipeline import diagnose, load
from rankscope.render.page.contents import PageOptions
from rankscope.render.page.writer import build_page
from render.outline import outline
from render.snapshot import check_snapshot

pytestmark = pytest.mark.slow
PACKAGE = rankscope.__path__[0]
VIEWS = ("findings", "map", "waits", "stacks", "performance", "compile", "metrics", "capture")


@pytest.fixture(scope="module")
def sections(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder = mixed_capture(tmp_path_factory.mktemp("mixed") / "job")
    trace = load(folder, jobs=1)
    body = str(build_page(trace, diagnose(trace), PageOptions()).body)
    body = body.replace(str(folder), "job").replace(str(Path(PACKAGE)), "rankscope")
    return dict(re.findall(r'<section id="(\w+)"[^>]*>(.*?)</section>\n', body, re.DOTALL))


def test_all_views_are_there(sections: dict[str, str]) -> None:
    assert sorted(sections) == sorted(VIEWS)


@pytest.mark.parametrize("view", VIEWS)
def test_view(sections: dict[str, str], view: str) -> None:
    check_snapshot(f"view_{view}.txt", outline(sections[view]))
