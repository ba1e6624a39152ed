"""The page as text: what stands in it, what does not, and what it may load."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from rankscope.model.finding import Report, finding_anchors
from rankscope.model.tables import Table, Trace
from rankscope.render.html import asset, digest
from rankscope.render.page.contents import PageOptions, map_link
from rankscope.render.page.writer import SCRIPTS, SERVED_SCRIPTS, STYLES, build_page, write_page
from render import sample
from render.snapshot import check_snapshot

EMPTY = Trace(("traces",))
PLAIN = PageOptions()


def body_of(report: Report, options: PageOptions = PLAIN, trace: Trace = EMPTY) -> str:
    return build_page(trace, report, options).body


def without_views(body: str) -> str:
    """The top and the findings; each view has tests of its own."""
    return body[: body.index("</section>")]


def test_the_page_of_a_hang(tmp_path: Path) -> None:
    sample.write_sources(tmp_path)
    body = body_of(sample.hang(), PageOptions(base=str(tmp_path), meanings={"H102": "What it means."}))
    check_snapshot("page_hang.html", without_views(body))


def test_the_page_of_a_clean_job() -> None:
    check_snapshot("page_clean.html", without_views(body_of(sample.clean())))


def test_nothing_in_a_finding_becomes_markup() -> None:
    body = body_of(sample.hostile())
    assert "<img" not in body
    assert not re.search(r"<script(?! type=\"application/json\" id=\"later\")", body)


def test_only_our_own_styles_and_scripts_may_run() -> None:
    built = build_page(EMPTY, sample.hang(), PageOptions())
    policy = re.search('Content-Security-Policy" content="([^"]*)"', built.before)
    assert policy
    style, script = ("\n".join(map(asset, names)) for names in (STYLES, SCRIPTS))
    allowed = f"default-src 'none'; style-src {digest(style)}; img-src data:; script-src {digest(script)}"
    assert policy.group(1) == allowed
    assert f"<style>{style}</style>" in built.before
    assert f"<script>{script}</script>" in built.behind
    assert not re.search(r"""\s(?:style|on\w+)=["']""", built.body)
    served = build_page(EMPTY, sample.hang(), PageOptions(is_served=True))
    assert "connect-src 'self'" in served.before


def test_our_own_scripts_stay_small() -> None:
    assert sum(len(asset(name).encode()) for name in SERVED_SCRIPTS) < 60_000


def test_an_empty_page_is_small(tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    written = write_page(EMPTY, sample.clean(), str(path), PageOptions())
    assert written.n_bytes == path.stat().st_size < 120_000
    assert [each.name for each in tmp_path.iterdir()] == ["report.html"]


def test_the_same_capture_gives_the_same_bytes(tmp_path: Path) -> None:
    pages = []
    for name in ("a.html", "b.html"):
        write_page(EMPTY, sample.hang(), str(tmp_path / name), PageOptions())
        pages.append((tmp_path / name).read_bytes())
    assert pages[0] == pages[1]


def test_anchors_count_the_findings_of_a_code() -> None:
    findings = (sample.mismatch(), sample.stuck(3), sample.mismatch())
    assert finding_anchors(findings) == ["H102-1", f"{findings[1].code}-1", "H102-2"]


@pytest.mark.parametrize("options", [PageOptions(source=False), PageOptions(redact=True)])
def test_lines_of_code_can_be_left_out(tmp_path: Path, options: PageOptions) -> None:
    sample.write_sources(tmp_path)
    with_code = body_of(sample.hang(), PageOptions(base=str(tmp_path)))
    without = body_of(sample.hang(), options._replace(base=str(tmp_path)))
    assert "dist.all_gather(bad_ranks" in with_code
    assert "dist.all_gather(bad_ranks" not in without
    assert "left out" in without


def test_redaction_reaches_findings_files_and_the_title() -> None:
    files = [{"file_id": 0, "path": "/mnt/alice/job/rank_0", "source": "flight_recorder", "status": "damaged"}]
    trace = Trace(("/mnt/alice/job",), {"files": Table.from_rows("files", files)})
    built = build_page(trace, sample.hang(), PageOptions(redact=True))
    whole = built.before + built.body
    assert "alice" not in whole
    assert "train/loop.py" not in whole
    assert "loop.py" in whole


def test_links_into_the_map_name_transfers_as_the_map_does() -> None:
    assert map_link(3, 513, 48211) == "#map?group=3&rank=513&seq=48211"
    assert map_link("p2", 0, 7, p2p=True) == "#map?group=p2&rank=0&seq=7&p2p=1"
    assert map_link() == "#map"


def test_holes_are_told_at_the_top() -> None:
    body = body_of(sample.hang())
    holes = body[: body.index('id="findings"')]
    assert "No data from ranks 77,78." in holes
