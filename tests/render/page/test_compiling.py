"""The compile view: ranks that agree are told once, those that do not are told apart, and it keeps to its room."""

from __future__ import annotations

import json
import re
import zlib
from html import unescape
from pathlib import Path
from typing import Any

import pytest

from compile_page_building import HOSTILE, crowded_log, hostile_log, job_log, loaded
from rankscope.model.finding import Capture, Finding, Location, Report
from rankscope.model.tables import Trace
from rankscope.pipeline import diagnose, load
from rankscope.render.compile_tree.outputs import TreeOptions, plan_ranks
from rankscope.render.compile_tree.page_data import RankView, compilations_of, totals_of
from rankscope.render.page.blocks import Blocks
from rankscope.render.page.compiling import compile_anchor, compiling_view
from rankscope.render.page.compiling_job import Job, rank_totals
from rankscope.render.page.contents import Contents, PageOptions, View
from rankscope.simulate.compile_log import TRAIN, USER_SITE, LogBuilder, Site, ids_of
from read.log_lines import Logger

FORWARD = Site(TRAIN, 30, "forward")


class Shown:
    """The view of a capture, with what page.js would put in later."""

    def __init__(self, trace: Trace, **options: Any) -> None:
        page_options = PageOptions(base="/job", **options)
        report = Report("", Capture((), (), 0, {}), (), ())
        self.contents = Contents(trace, report, page_options, blocks=Blocks(page_options.is_served))
        self.view: View = compiling_view(self.contents)

    @property
    def html(self) -> str:
        later = self.contents.later
        return self.view.body + "".join(item for items in later.lists.values() for item in items) + "".join(later.folds)

    def about(self, title: str) -> str:
        """What is said below a heading, as text."""
        body = self.html.partition(f"<h3>{title}</h3>")[2].partition("<h3>")[0]
        return re.sub(r"\s+", " ", unescape(re.sub(r"<[^>]+>", " ", body))).strip()

    def row(self, anchor: str) -> str:
        [found] = re.findall(rf'<tr id="{anchor}">(.*?)</tr>', self.html)
        return re.sub(r"\s+", " ", unescape(re.sub(r"<[^>]+>", " ", found))).strip()

    def files(self, anchor: str) -> list[tuple[str, str]]:
        """(name and what is said of it, its text)"""
        [found] = re.findall(rf'<tr id="{anchor}">(.*?)</tr>', self.html)
        items = re.findall(r"<li>(.*?)</li>", found)
        return [(unescape(re.sub(r"<[^>]+>", "", item)), self._text(item)) for item in items]

    def _text(self, item: str) -> str:
        place = re.search(r'href="#compile\?file=(\d+)\.(\d+)"', item)
        if not place:
            return ""
        head = zlib.decompress(self.contents.blocks.get(f"artifact-{place.group(1)}")).partition(b"\n")[0]
        return str(json.loads(head)["meta"]["files"][int(place.group(2))]["text"])


def compiled(rank: int, seconds: float = 1.0, graph: str = "") -> LogBuilder:
    log = LogBuilder(rank).torch_version().start("0/0", (USER_SITE, FORWARD))
    return log.graph("0/0", graph).metrics("0/0", seconds)


def with_code(log: LogBuilder, code: str) -> LogBuilder:
    name = f"/cache/{zlib.crc32(code.encode())}.py"
    return log.record("inductor_output_code", {"filename": name}, code, **ids_of("0/0"))


def recompiled(rank: int, expected: int) -> LogBuilder:
    reason = f"0/0: tensor 'x' size mismatch at index 0. expected {expected}, actual {expected + 1}"
    return compiled(rank).start("0/1", (USER_SITE, FORWARD)).recompile("0/1", reason).metrics("0/1", 2.0 + rank)


def test_without_logs_it_says_how_to_collect_some() -> None:
    shown = Shown(Trace(()))
    assert shown.view.is_absent
    assert "rankscope record --only compile-log" in shown.view.body


def test_logs_without_a_compilation_say_so(tmp_path: Path) -> None:
    shown = Shown(loaded(tmp_path, LogBuilder(0).torch_version()))
    assert shown.view.is_absent
    assert "Nothing was compiled" in shown.view.body


def test_ranks_that_compiled_the_same_share_a_row(tmp_path: Path) -> None:
    shown = Shown(loaded(tmp_path, *(compiled(rank, 1.0 + rank) for rank in range(4))))
    assert re.fullmatch(r"\[0/0\] forward train.py:30 1 file .*0-3 4\.0 s .*", shown.row("compile-0-0"))
    assert shown.view.badge == "4"
    assert "The same on all: compilations" in shown.about("What the ranks did the same and differently")


def test_a_rank_with_another_graph_has_a_row_of_its_own(tmp_path: Path) -> None:
    graph = (
        "class GraphModule(torch.nn.Module):\n    def forward(self, x):\n        {} = torch.{}(x)\n        return ()"
    )
    logs = [compiled(rank, graph=graph.format("y", "sin" if rank == 2 else "cos")) for rank in range(4)]
    shown = Shown(loaded(tmp_path, *logs))
    assert " 0,1,3 " in shown.row("compile-0-0")
    assert " 2 1.0 s" in shown.row("compile-0-0-v2")
    assert "torch.sin" in shown.files("compile-0-0-v2")[0][1]


def test_who_compiled_more_is_said_first(tmp_path: Path) -> None:
    shown = Shown(loaded(tmp_path, compiled(0), compiled(1), recompiled(2, 8)))
    said = shown.about("What the ranks did the same and differently")
    assert said.startswith("Rank 2 behaved differently.")
    assert "compiled [0/1] (forward, train.py:30), which ranks 0,1 did not" in said
    assert shown.html.index("What the ranks did the same and differently") < shown.html.index("Compile time by line")


def test_the_ledger_names_the_slowest_rank_and_the_time_of_all(tmp_path: Path) -> None:
    shown = Shown(loaded(tmp_path, compiled(0, 1.0), compiled(1, 5.0), compiled(2, 2.0)))
    assert re.search(r"forward train.py:30 5\.0 s 1 8\.0 s", shown.about("Compile time by line"))


def test_one_rank_needs_no_columns_about_ranks(tmp_path: Path) -> None:
    shown = Shown(loaded(tmp_path, job_log()))
    assert "Ranks" not in shown.html
    assert "All ranks" not in shown.html
    assert "What the ranks did the same and differently" not in shown.html


def test_chains_that_differ_in_values_alone_are_one(tmp_path: Path) -> None:
    shown = Shown(loaded(tmp_path, *(recompiled(rank, 8 + rank) for rank in range(3)), compiled(3)))
    said = shown.about("Recompilations")
    assert said.count("recompiled") == 1
    assert "forward train.py:30 recompiled 1 time, up to 4.0 s, ranks 0-2" in said
    assert "expected 8, actual 9" in said


def test_chains_about_another_guard_stay_apart(tmp_path: Path) -> None:
    other = compiled(1).start("0/1", (USER_SITE, FORWARD)).recompile("0/1", "0/0: L['scale'] == 3").metrics("0/1")
    said = Shown(loaded(tmp_path, recompiled(0, 8), other)).about("Recompilations")
    assert said.count("recompiled") == 2
    assert "rank 0" in said
    assert "rank 1" in said


def test_graph_breaks_are_counted_over_all_ranks(tmp_path: Path) -> None:
    logs = [
        LogBuilder(rank)
        .start("0/0", (USER_SITE, FORWARD))
        .graph_break("0/0", TRAIN, 33, "Tensor.item() call", function="forward")
        .metrics("0/0", restart_reasons=["break"])
        for rank in range(3)
    ]
    logs.append(compiled(3))
    said = Shown(loaded(tmp_path, *logs)).about("Graph breaks")
    assert re.search(r"3 train.py:33 in forward .* Tensor.item\(\) call .*\[0/0\] 0-2$", said)


def test_failures_say_who_failed_and_why(tmp_path: Path) -> None:
    failing = LogBuilder(1).start("0/0", (USER_SITE, FORWARD))
    failing.metrics("0/0", fail_type="RuntimeError", fail_reason="no kernel\n  File train.py\n    secret = 1")
    shown = Shown(loaded(tmp_path, compiled(0), failing))
    assert "rank 1 RuntimeError: no kernel File train.py secret = 1" in shown.about("Failures")


def test_a_file_that_all_ranks_share_is_stored_once(tmp_path: Path) -> None:
    shown = Shown(loaded(tmp_path, *(with_code(compiled(rank), "x = 1\n") for rank in range(3))))
    (graph, _), (code, said) = shown.files("compile-0-0")
    assert re.fullmatch(r"dynamo_output_graph \d+ B", graph)
    assert re.fullmatch(r"inductor_output_code_\d+ \d+ B", code)
    assert said == "x = 1\n"
    assert zlib.decompress(shown.contents.blocks.get("artifact-0")).count(b"x = 1") == 1


def test_files_that_differ_say_whose_they_are(tmp_path: Path) -> None:
    logs = [with_code(compiled(rank), f"x = {min(rank, 1)}\n") for rank in (1, 2, 0)]
    found = {name.partition(", ")[2]: said for name, said in Shown(loaded(tmp_path, *logs)).files("compile-0-0")}
    assert found["ranks 1,2"] == "x = 1\n"
    assert found["rank 0"] == "x = 0\n"


def test_of_many_versions_of_a_file_some_are_shown_and_the_rest_counted(tmp_path: Path) -> None:
    shown = Shown(loaded(tmp_path, *(with_code(compiled(rank), f"x = {rank}\n") for rank in range(6))))
    names = [name for name, _ in shown.files("compile-0-0") if name.startswith("inductor_output_code")]
    assert len(names) == 3
    assert "3 other versions on other ranks" in names[0]


def test_json_is_laid_out_for_people(tmp_path: Path) -> None:
    log = compiled(0).artifact("settings", {"a": [1, 2]}, "0/0")
    files = {name.split()[0]: text for name, text in Shown(loaded(tmp_path, log)).files("compile-0-0")}
    assert files["settings"] == '{\n  "a": [\n    1,\n    2\n  ]\n}'


def test_texts_beyond_the_room_are_counted_and_said(tmp_path: Path) -> None:
    noise = "\n".join(f"# {number * 2654435761 % 4294967296:x}" for number in range(40_000))
    log = with_code(compiled(0), noise).artifact("dull", {"a": 1}, "0/0")
    shown = Shown(loaded(tmp_path, log), max_bytes=200_000)
    files = dict(shown.files("compile-0-0"))
    assert [text for name, text in files.items() if name.startswith("inductor_output_code")] == [""]
    assert any(text for text in files.values())
    assert shown.contents.remarks == [
        "1 of 4 compile files did not fit in the page. For all of them, run rankscope compile PATH -o report/."
    ]
    assert sum(map(len, shown.contents.blocks.packed.values())) < 30_000


def test_compilations_beyond_the_room_are_counted_and_said(tmp_path: Path) -> None:
    shown = Shown(loaded(tmp_path, crowded_log(60)), max_bytes=100_000)
    assert shown.html.count('<tr id="compile-') == 20
    assert 'id="compile-59-1"' in shown.html  # the most expensive
    assert any(
        said.startswith("The page shows the 20 most important of 120 different compilations")
        for said in shown.contents.remarks
    )


def test_ranks_and_messages_beyond_the_room_are_counted_and_said(tmp_path: Path) -> None:
    loggers = [Logger(rank=rank, pid=100 + rank) for rank in range(60)]
    lines = "".join(logger.graph_break("0/0", 14 + rank % 50, "no") for rank, logger in enumerate(loggers))
    (tmp_path / "job.log").write_text(lines)
    shown = Shown(load(tmp_path, jobs=1), max_bytes=100_000)
    said = " ".join(shown.contents.remarks)
    for what, table in (
        ("ranks", "compile_ledger"),
        ("different messages", "log_lines"),
        ("graph breaks", "graph_breaks"),
    ):
        assert re.search(
            rf'shows the \d+ most important of \d+ {what}. For all of them, run rankscope query PATH "from {table}"',
            said,
        )
    assert len(shown.html) < 30_000


def test_a_server_packs_nothing_before_it_is_asked(tmp_path: Path) -> None:
    shown = Shown(loaded(tmp_path, compiled(0)), is_served=True)
    assert shown.contents.blocks.makers
    assert not shown.contents.blocks.packed
    assert "class GraphModule" in shown.files("compile-0-0")[0][1]


@pytest.mark.parametrize("options", [{"redact": True}, {"source": False}])
def test_without_source_no_text_of_a_file_is_in_the_page(tmp_path: Path, options: dict[str, bool]) -> None:
    log = with_code(compiled(0), "secret = 1\n").start("1/0", (USER_SITE, FORWARD))
    log.metrics("1/0", fail_type="RuntimeError", fail_reason="no kernel\n    secret = 1")
    shown = Shown(loaded(tmp_path, log), **options)
    assert "inductor_output_code" in shown.html
    assert not shown.contents.blocks.makers
    assert "secret" not in shown.html
    assert "RuntimeError: no kernel" in shown.html
    assert any("left out" in said for said in shown.contents.remarks)


def test_text_logs_of_several_ranks_in_one_file(tmp_path: Path) -> None:
    lines = ""
    for rank in range(3):
        logger = Logger(rank=rank, pid=100 + rank)
        lines += logger.graph_break("0/0", 14, "Tensor.item() call")
        lines += logger.recompile("0/1", f"0/0: tensor 'x' size mismatch at index 0. expected {rank + 3}, actual 2")
        if rank == 1:
            lines += logger.lines("too few registers\nat all", channel="perf_hints", level="W")
    (tmp_path / "job.log").write_text(lines)
    shown = Shown(load(tmp_path, jobs=1))
    assert "from TORCH_LOGS" in shown.view.body
    assert re.search(r"^.* 3 .*train.py:14 in step .* 0-2$", shown.about("Graph breaks"))
    assert "recompiled 1 time, ranks 0-2" in shown.about("Recompilations")
    assert re.search(r"warning perf_hints 1 too few registers at all 1 debug", shown.about("TORCH_LOGS messages"))
    assert "0 us" not in shown.html
    assert "file</span>" not in shown.html


def test_only_the_newest_run_is_shown(tmp_path: Path) -> None:
    older = LogBuilder(0, at="2026-11-16 05:00:00").start("7/0", (USER_SITE, FORWARD)).metrics("7/0")
    newer = LogBuilder(0, at="2026-11-16 07:00:00").start("0/0", (USER_SITE, FORWARD)).metrics("0/0")
    shown = Shown(loaded(tmp_path, older, newer))
    assert "run 2 of 2" in shown.view.body
    assert "compile-7-0" not in shown.html
    assert "compile-0-0" in shown.html


def test_a_log_that_tells_no_rank_is_not_called_minus_one(tmp_path: Path) -> None:
    nameless = LogBuilder().start("0/0", (USER_SITE, FORWARD))
    nameless.metrics("0/0", fail_type="RuntimeError", fail_reason="no kernel")
    shown = Shown(loaded(tmp_path, compiled(1), with_code(nameless, "x = 1")))
    assert "a log with no rank RuntimeError" in shown.about("Failures")
    assert " unknown " in shown.row("compile-0-0") + shown.row("compile-0-0-v2")
    assert "-1" not in re.sub(r"<[^>]+>", " ", shown.html)


def test_the_totals_of_each_rank_are_those_of_its_own_report(tmp_path: Path) -> None:
    logs = [job_log(0), recompiled(1, 8), LogBuilder(2).torch_version(), crowded_log(3)]
    logs[3].rank = 3
    trace = loaded(tmp_path, *logs)
    found = {each.rank: each.totals for each in rank_totals(Job(trace))}
    for tree in plan_ranks(trace, TreeOptions()):
        view = RankView(trace, tree)
        assert found[tree.rank] == totals_of(view, compilations_of(view)), tree.rank


def test_what_a_log_says_stays_text(tmp_path: Path) -> None:
    hostile = hostile_log()
    hostile.rank = 1
    shown = Shown(loaded(tmp_path, hostile, compiled(0)))
    assert "<img" not in shown.html
    assert "<script" not in shown.html
    assert "javascript:" not in shown.html
    assert any(HOSTILE in text for _, text in shown.files("compile-0-0-v2") + shown.files("compile-0-0"))


def test_the_same_capture_gives_the_same_bytes(tmp_path: Path) -> None:
    trace = loaded(tmp_path, *(with_code(recompiled(rank, 8 + rank), f"x = {rank}") for rank in range(5)))
    first, second = Shown(trace), Shown(load(trace.paths, jobs=1))
    assert first.html == second.html
    assert first.contents.blocks.packed == second.contents.blocks.packed


def finding_at(file: str, line: int, function: str) -> Finding:
    return Finding(
        code="C404",
        rule="graph-break",
        severity="warning",
        certainty="certain",
        title="broke",
        location=Location(file, line, function),
    )


def test_a_finding_leads_to_its_compilation(tmp_path: Path) -> None:
    trace = loaded(tmp_path, job_log())
    shown = Shown(trace)
    assert compile_anchor(shown.contents, finding_at(TRAIN, 52, "loss")) == "compile-1-0"
    assert compile_anchor(shown.contents, finding_at(TRAIN, 31, "forward")) == "compile-0-0"
    assert compile_anchor(shown.contents, finding_at("/job/other.py", 1, "main")) == "compile"
    for finding in diagnose(trace).findings:
        anchor = compile_anchor(shown.contents, finding)
        assert anchor == "compile" or f'id="{anchor}"' in shown.html
