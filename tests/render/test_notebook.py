"""What a notebook shows: the same answer as the terminal, in one piece of HTML that touches nothing around it."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from rankscope.model.finding import Report
from rankscope.model.tables import Table, Trace
from rankscope.render.notebook import MAX_ROWS
from render import sample
from render.snapshot import check_snapshot

STYLE = re.compile(r"<style>(.*?)</style>", re.DOTALL)
VOID = {"meta", "br", "hr", "img", "input"}
TAGS_OF_OTHERS = "</td><script>alert(1)</script><img src=x onerror=alert(1)>&amp;\"'"


class Elements(HTMLParser):
    """The elements and the text of a fragment; fails where a tag is closed that is not open."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self._open: list[str] = []
        self.feed(STYLE.sub("", html))
        self.close()
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))
        if tag not in VOID:
            self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data

    @property
    def tags(self) -> set[str]:
        return {tag for tag, _ in self.found}


def shown(value: Report | Trace | Table) -> str:
    html = value._repr_html_()
    assert html.startswith('<div class="rankscope"><style>')
    assert html.encode("utf-8")
    return html


@pytest.fixture
def trace() -> Trace:
    ranks = [{"rank": rank, "host": f"node{rank // 8}", "n_calls": 10 * rank} for rank in range(64)]
    metrics = [
        {"rank": 0, "name": "loss", "value": 0.5, "step": 1, "time_ns": 1_768_485_720_000_000_001},
        {"rank": 0, "name": TAGS_OF_OTHERS, "value": float("nan")},
    ]
    tables = (Table.from_rows("ranks", ranks), Table.from_rows("metrics", metrics))
    return Trace(("traces",), {table.name: table for table in tables}, makers={"steps": lambda _: pytest.fail("made")})


@pytest.mark.parametrize("name", ["hang", "many", "clean"])
def test_reports(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sample.write_sources(tmp_path)
    monkeypatch.chdir(tmp_path)
    html = shown(getattr(sample, name)())
    Elements(html)
    check_snapshot(f"notebook_{name}.html", STYLE.sub("<style>...</style>", html) + "\n")


def test_traces_and_tables(trace: Trace) -> None:
    parts = [shown(trace), shown(trace.table("metrics")), shown(trace.table("group_members"))]
    for html in parts:
        Elements(html)
    check_snapshot("notebook_tables.html", STYLE.sub("<style>...</style>", "\n".join(parts)) + "\n")


def test_a_report_says_what_the_terminal_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sample.write_sources(tmp_path)
    monkeypatch.chdir(tmp_path)
    text = Elements(shown(sample.hang())).text
    for finding in sample.hang().findings:
        for said in (finding.code, finding.title, finding.help, *finding.evidence.certain, *finding.evidence.notes):
            assert said in text
    assert "dist.all_reduce(flat_grads, group=dp)" in text
    assert "train/loop.py:212 in clip_gradients" in text
    assert "Found 1 error, 1 warning." in text


def test_long_tables_are_cut_and_say_so(trace: Trace) -> None:
    elements = Elements(shown(trace.table("ranks")))
    assert sum(tag == "tr" for tag, _ in elements.found) == 1 + MAX_ROWS
    assert f"64 rows, the first {MAX_ROWS} shown, 12 columns" in elements.text


@pytest.mark.parametrize("value", [sample.hostile(), sample.hang()], ids=["hostile", "hang"])
def test_nothing_runs_and_nothing_is_loaded(value: Report) -> None:
    html = shown(value)
    elements = Elements(html)
    assert not elements.tags & {"script", "img", "iframe", "link", "object", "form", "base"}
    assert not [name for _, attributes in elements.found for name in attributes if name.startswith("on")]
    assert not re.search(r"url\(|@import|javascript:", html)


def test_texts_of_a_trace_are_text(trace: Trace) -> None:
    elements = Elements(shown(trace.table("metrics")))
    assert TAGS_OF_OTHERS in elements.text
    assert "script" not in elements.tags


def test_every_rule_of_the_style_is_about_the_fragment_alone(trace: Trace) -> None:
    """Nested in one block, which nothing in it closes early."""
    found = STYLE.search(shown(trace))
    assert found
    style = re.sub(r'/\*.*?\*/|"[^"\n]*"', "", found[1], flags=re.DOTALL)
    assert style.startswith(".rankscope {")
    depth = 0
    for position, char in enumerate(style):
        depth += (char == "{") - (char == "}")
        assert depth > 0 or position in range(len(".rankscope ")) or position == len(style) - 1
    assert depth == 0
    assert ":root" not in style


def test_jupyter_takes_the_html(trace: Trace) -> None:
    formatters = pytest.importorskip("IPython.core.formatters", reason="needs IPython")
    for value in (sample.hang(), trace, trace.table("ranks")):
        data, _ = formatters.DisplayFormatter().format(value)
        assert data["text/html"] == shown(value)
