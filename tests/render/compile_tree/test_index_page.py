"""The index of one rank's report: what it says, that it links only what is there, and that nothing in it can run."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote

import pytest

from compile_page_building import HOSTILE, crowded_log, hostile_log, index_alone, job_log, report_of
from rankscope.render.html import asset
from rankscope.render.listing import (
    Column,
    Later,
    cell,
    n_bytes_phrase,
    outer_link,
    row,
    table,
    without_empty,
)
from rankscope.simulate.compile_log import TRAIN, USER_SITE, LogBuilder, Site


class Elements(HTMLParser):
    """All elements with their attributes, and the visible text; as a browser without scripts would see them."""

    def __init__(self, source: str) -> None:
        super().__init__(convert_charrefs=True)
        self.found: list[tuple[str, dict[str, str]]] = []
        self.text = ""
        self._hidden = ""
        self.feed(source)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, {name: value or "" for name, value in attrs}))
        self._hidden = tag if tag in ("script", "style") else ""

    def handle_endtag(self, tag: str) -> None:
        self._hidden = ""

    def handle_data(self, data: str) -> None:
        self.text += "" if self._hidden else data

    def of(self, tag: str, **wanted: str) -> list[dict[str, str]]:
        return [
            own
            for name, own in self.found
            if name == tag and all(own.get(key) == value for key, value in wanted.items())
        ]


def index_of(report: Path) -> str:
    return (report / "index.html").read_text("utf-8")


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return report_of(tmp_path_factory.mktemp("job"), job_log())


def later_of(source: str) -> dict[str, object]:
    found = re.search(r'<script type="application/json" id="later">(.*?)</script>', source, re.DOTALL)
    assert found
    data: dict[str, object] = json.loads(found.group(1))
    return data


def test_the_first_thing_said_is_the_verdict_in_numbers(report: Path) -> None:
    told = re.sub(r"<[^>]+>", " ", index_of(report)[index_of(report).index("<h1>") :])
    told = " ".join(told.split())
    assert re.match(r"\d+ errors? and \d+ warnings? in 8\.0 s of compile time compilations 7 1 failed", told), told[
        :200
    ]
    assert "recompilations 2 5.0 s graph breaks 1 1 place cache hits 2 1 missed" in told


def test_findings_stand_in_the_page_itself_with_line_code_cost_and_meaning(report: Path) -> None:
    source = index_of(report)
    cards = source[source.index('id="finding-1"') : source.index('<section id="time"')]
    assert "train.py:30" in cards
    assert "C402" in cards
    assert "recompiled" in cards
    assert "y.item()" in cards, "the code of the line, as the log has it"
    assert re.search(r'class="cost"[^>]*>5\.0 s<', cards)
    assert 'class="meaning">C402: ' in cards


def test_each_compilation_has_its_colour(report: Path) -> None:
    elements = Elements(index_of(report))
    colours = {own["href"]: own["class"] for own in elements.of("a") if own.get("class", "").startswith("chip ")}
    assert colours["#frame-0-0"] == "chip ok"
    assert colours["#frame-1-0"] == "chip break"
    assert colours["#frame-2-0"] == "chip error"
    assert colours["#frame-3-0"] == "chip empty"
    assert colours["#frame-4-0"] == "chip missing"


def test_every_chip_leads_to_a_compilation_with_that_name(report: Path) -> None:
    elements = Elements(index_of(report))
    names = {own["id"] for own in elements.of("tr") if "id" in own}
    assert {own["href"][1:] for own in elements.of("a") if own.get("class", "").startswith("chip")} <= names
    assert {"frame-0-0", "frame-0-1", "frame-0-2", "frame-none"} <= names


@pytest.mark.parametrize("make", [job_log, hostile_log], ids=["job", "hostile"])
def test_every_file_that_is_linked_exists(tmp_path: Path, make: object) -> None:
    assert callable(make)
    folder = report_of(tmp_path, make())
    links = [own["href"] for own in Elements(index_of(folder)).of("a") if "href" in own]
    inner = [unquote(href) for href in links if not href.startswith(("#", "https:"))]
    assert [href for href in inner if not (folder / href).is_file()] == []
    assert any("dynamo_output_graph" in href for href in inner)


def test_every_place_that_is_linked_in_the_page_exists(report: Path) -> None:
    elements = Elements(index_of(report))
    names = {own["id"] for _, own in elements.found if "id" in own}
    assert {own["href"] for own in elements.of("a") if own.get("href", "").startswith("#")} <= {
        f"#{name}" for name in names
    }


def test_failed_guards_are_shown_with_what_was_expected_and_what_came(report: Path) -> None:
    source = index_of(report)
    chain = source[source.index('<section id="recompiles"') : source.index('<section id="breaks"')]
    assert "recompiled 2 times, 5.0 s" in chain
    cells = re.findall(r"<td><code>(\w+)</code></td>", chain)
    assert cells == ["1", "2", "2", "3"]


def test_equal_breaks_are_one_row_with_a_count(tmp_path: Path) -> None:
    log = LogBuilder()
    for frame in range(3):
        log.start(f"{frame}/0").graph_break(f"{frame}/0", TRAIN, 52, "Tensor.item() call").metrics(f"{frame}/0")
    log.start("3/0").graph_break("3/0", TRAIN, 60, "print").metrics("3/0")
    source = index_of(index_alone(tmp_path, log))
    rows = re.search(r'<tbody data-list="breaks".*?</tbody>', source, re.DOTALL)
    assert rows
    assert re.findall(r'data-v="(\d+)"', rows.group()) == ["3", "1"]


def test_stacks_are_merged_and_parted_only_where_they_differ(report: Path) -> None:
    source = index_of(report)
    trie = source[source.index('<div class="trie">') : source.index('<section id="compilations"')]
    assert trie.count("<b>step</b>") == 1
    assert trie.count("<b>forward</b>") == 1
    assert trie.count("<b>loss</b>") == 1
    assert [len(re.findall("chip", chips)) for chips in re.findall(r'<span class="chips">(.*?)</span>', trie)] == [3, 4]


def test_stacks_nested_without_end_are_drawn(tmp_path: Path) -> None:
    log, sites = LogBuilder(), [USER_SITE]
    for depth in range(150):
        sites.append(Site(TRAIN, 1000 + depth, f"deep_{depth}"))
        log.start(f"{depth}/0", [*sites, Site(TRAIN, 9000 + depth, "leaf")]).metrics(f"{depth}/0")
    source = index_of(index_alone(tmp_path, log))
    assert "deep_39" in Elements(source).text
    assert "deep_149" in json.dumps(later_of(source)), "beyond so many forks the rest waits"


def test_a_crowd_of_frames_does_not_become_a_crowd_of_elements(tmp_path: Path) -> None:
    source = index_of(index_alone(tmp_path, crowded_log(1200)))
    assert len(Elements(source).found) < 12_000
    waiting = json.dumps(later_of(source))
    for name in ("frame-0-0", "frame-1199-1"):
        assert f'id="{name}"' in source or f'id=\\"{name}\\"' in waiting


def test_nothing_from_the_log_becomes_an_element_or_an_address(tmp_path: Path) -> None:
    source = index_of(report_of(tmp_path, hostile_log()))
    elements = Elements(source)
    assert HOSTILE in elements.text
    assert elements.of("img") == []
    assert [own for _, own in elements.found if any(name.startswith("on") or name == "style" for name in own)] == []
    assert [own["href"] for own in elements.of("a") if own.get("href", "").lower().startswith("javascript")] == []
    assert len(elements.of("script")) == 2, "the block of data and the page's own script"


def test_waiting_html_cannot_end_its_block_of_data(tmp_path: Path) -> None:
    source = index_of(report_of(tmp_path, hostile_log()))
    block = source[source.index('id="later">') + len('id="later">') :].partition("</script>")[0]
    assert "<" not in block
    assert json.loads(block)["folds"]


def test_kinds_that_nobody_knows_are_listed(tmp_path: Path) -> None:
    log = job_log().record("brand_new_kind", {"a": 1}, "text")
    told = Elements(index_of(index_alone(tmp_path, log))).text
    assert "brand_new_kind" in told
    assert "unknown to this version" in told


def test_records_that_missed_their_compilation_are_shown_where_they_were_written(tmp_path: Path) -> None:
    log = job_log()
    log.record("artifact", {"name": "stray", "encoding": "string"}, "x", stack=log.frames([Site(TRAIN, 77, "outside")]))
    source = index_of(index_alone(tmp_path, log))
    strays = source[source.index("records without a compile id") : source.index('<section id="settings"')]
    assert "train.py:77" in strays
    assert "<b>outside</b>" in strays
    assert ">stray</span>" in strays


def test_settings_and_versions_come_from_the_first_metrics(tmp_path: Path) -> None:
    log = LogBuilder().torch_version("2.13.0").start("0/0")
    log.metrics("0/0", dynamo_config='{"recompile_limit": 8}', python_version="3.11.7", triton_version="3.4.0")
    source = index_of(index_alone(tmp_path, log))
    assert "2.13.0" in Elements(source).text
    assert "3.11.7" in Elements(source).text
    assert "3.4.0" in Elements(source).text
    assert "recompile_limit" in json.dumps(later_of(source))


def test_a_log_without_compilations_says_so(tmp_path: Path) -> None:
    assert "Nothing was compiled in this log" in index_of(report_of(tmp_path, LogBuilder().torch_version()))


def test_a_rank_shows_its_own_findings_and_where_the_others_are(tmp_path: Path) -> None:
    failing = job_log(rank=1)
    quiet = LogBuilder(0).torch_version().start("0/0").graph("0/0").metrics("0/0")
    folder = report_of(tmp_path, quiet, failing)
    assert "RuntimeError" in index_of(folder / "rank_1")
    first = index_of(folder / "rank_0")
    assert "RuntimeError" not in first
    assert "about other ranks" in first
    assert 'href="../index.html"' in first


def test_bars_fill_no_more_than_their_width(report: Path) -> None:
    for bar in re.findall(r"<svg.*?</svg>", index_of(report)):
        assert 0 < sum(map(float, re.findall(r' width="([\d.]+)%"', bar))) <= 100.1


def test_own_scripts_stay_small() -> None:
    assert sum(len(asset(name).encode()) for name in ("page.js", "code.js", "pack.js")) < 60_000


def test_rows_beyond_the_first_wait_in_order() -> None:
    later = Later()
    shown = table(later, "numbers", [Column("Number", True)], [row([cell(str(n), n)]) for n in range(5)], n_shown=2)
    assert shown.count("<tr>") == 3, "the head and two rows"
    assert [re.findall(r"\d", html)[-1] for html in later.lists["numbers"]] == ["2", "3", "4"]


def test_columns_of_numbers_that_are_empty_in_all_rows_are_left_out() -> None:
    columns = [Column("Name"), Column("Zero", True), Column("Some", True)]
    kept, rows = without_empty(columns, [[cell(""), cell("", 0), cell("", 0)], [cell("b"), cell("", 0), cell("3", 3)]])
    assert [column.title for column in kept] == ["Name", "Some"]
    assert [len(cells) for cells in rows] == [2, 2]


@pytest.mark.parametrize(
    "url", ["javascript:alert(1)", "JavaScript:alert(1)", "data:text/html,x", "file:///etc/passwd", ""]
)
def test_only_web_addresses_become_links(url: str) -> None:
    assert outer_link(url, "there") == "there"


@pytest.mark.parametrize(
    ("number", "shown"),
    [(0, "0 B"), (999, "999 B"), (1000, "1 kB"), (999_499, "999 kB"), (999_500, "1.0 MB"), (2_100_000_000, "2.1 GB")],
)
def test_sizes_are_said_for_people(number: int, shown: str) -> None:
    assert n_bytes_phrase(number) == shown
