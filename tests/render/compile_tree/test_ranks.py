"""The landing page above several ranks, and the files about all of them. Defects are those that tlparse 0.4.3 has."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from rankscope.pipeline import diagnose, load
from rankscope.render.compile_tree.outputs import TreeOptions, plan_ranks
from rankscope.render.compile_tree.ranks_files import write_parity
from rankscope.render.compile_tree.ranks_page import write_ranks
from rankscope.simulate.compile_log import TRAIN, LogBuilder, Site, ids_of, log_name
from read.compile_log_reading import rows_of

SAMPLES = Path(__file__).resolve().parents[4] / "shared" / "samples" / "compile_logs"
PREFIX = "torch.ops._c10d_functional."
REDUCE, WAIT, GATHER = (f"{PREFIX}{op}.default" for op in ("all_reduce_", "wait_tensor", "all_gather_into_tensor"))
SCHEDULE = "inductor_collective_schedule"
ESTIMATES = "inductor_runtime_and_tensor_meta"


class Landing(NamedTuple):
    folder: Path
    page: str

    @property
    def text(self) -> str:
        return re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", self.page.partition("<main>")[2]))

    def section(self, anchor: str) -> str:
        [found] = re.findall(rf'<section id="{anchor}">(.*?)</section>', self.page, re.DOTALL)
        return str(found)

    def about(self, title: str) -> str:
        """What is said below one heading of the differences."""
        return re.sub(
            r"<[^>]+>", "", self.section("differences").partition(f"<h3>{title}</h3>")[2].partition("<h3>")[0]
        )

    def loaded(self, name: str) -> Any:
        return json.loads((self.folder / name).read_bytes())

    @property
    def names(self) -> set[str]:
        return {path.name for path in self.folder.iterdir() if path.is_file()}


def landing_of(logs: Path, folder: Path) -> Landing:
    trace = load(logs, jobs=1)
    trees = plan_ranks(trace, TreeOptions(all_ranks=True))
    for tree in trees:
        (folder / tree.folder).mkdir(parents=True)
        (folder / tree.folder / "index.html").touch()
        write_parity(trace, tree, str(folder / tree.folder))
    write_ranks(trace, diagnose(trace), str(folder), trees, TreeOptions(all_ranks=True))
    return Landing(folder, (folder / "index.html").read_text("utf-8"))


def made(tmp_path: Path, *logs: LogBuilder) -> Landing:
    for log in logs:
        log.write(tmp_path / "logs")
    return landing_of(tmp_path / "logs", tmp_path / "out")


def sample(name: str, tmp_path: Path) -> Landing:
    if not (SAMPLES / name).is_dir():
        pytest.skip(f"the sample {name} is not here")
    return landing_of(SAMPLES / name, tmp_path / "out")


def compiled(rank: int, *ids: str) -> LogBuilder:
    log = LogBuilder(rank=rank).torch_version()
    for compile_id in ids:
        log.start(compile_id).metrics(compile_id)
    return log


def with_code(log: LogBuilder, compile_id: str, *calls: str) -> LogBuilder:
    body = "def call(args):\n" + "".join(f"    buf = {call}(buf0, '0')\n" for call in calls)
    return log.record("inductor_output_code", {"filename": "/cache/abc.py"}, body, **ids_of(compile_id))


def test_tlparse_defect_3_identical_ranks_do_not_diverge_when_one_logs_without_an_id(tmp_path: Path) -> None:
    page = made(tmp_path, compiled(0, "0/0").chromium("compile_file", compile_id=""), compiled(1, "0/0"))
    assert "The same 1 compilation on both ranks." in page.about("Compilations")
    assert "behaved differently" not in page.text


def test_tlparse_defect_7_schedules_behind_the_first_are_compared_and_written(tmp_path: Path) -> None:
    logs = [compiled(rank, "0/0").artifact(SCHEDULE, [REDUCE, WAIT], "0/0") for rank in range(3)]
    for rank, log in enumerate(logs):
        log.artifact(SCHEDULE, [GATHER if rank == 2 else REDUCE, WAIT], "0/0")
    page = made(tmp_path, *logs)
    said = page.about("Collectives in the compiled graphs")
    assert f"at call 3 of [0/0] (forward, {TRAIN}:30): all_gather_into_tensor, where ranks 0,1 had all_reduce_." in said
    assert page.loaded("collective_schedules.json") == [
        {"rank": rank, "graph": "-_0_0_0", "ops": [REDUCE, WAIT, GATHER if rank == 2 else REDUCE, WAIT]}
        for rank in range(3)
    ]


def test_tlparse_defect_8_file_names_of_one_rank_do_not_reach_another(tmp_path: Path) -> None:
    first = LogBuilder(rank=0).start("0/0", [Site("/job/first.py", 3, "one")])
    second = (
        LogBuilder(rank=1)
        .start("0/0", [Site("/job/second.py", 4, "two")])
        .start("0/1", [Site("/job/third.py", 5, "three")])
    )
    page = made(tmp_path, first, second)
    assert "compiled [0/1] (three, /job/third.py:5), which rank 0 did not." in page.about("Compilations")
    stacks = rows_of(load(tmp_path / "logs", jobs=1), "compile_stacks")
    assert {(row["rank"], row["file"]) for row in stacks} == {
        (0, "/job/first.py"),
        (1, "/job/second.py"),
        (1, "/job/third.py"),
    }


def test_tlparse_defect_9_two_logs_of_a_rank_are_one_row_and_unranked_logs_are_shown(tmp_path: Path) -> None:
    for pid, compile_id in ((1, "0/0"), (2, "1/0")):
        LogBuilder(rank=0, pid=pid).start(compile_id).metrics(compile_id).write(
            tmp_path / "logs", log_name(0, f"p{pid}")
        )
    compiled(1, "0/0", "1/0").write(tmp_path / "logs")
    LogBuilder().start("0/0").metrics("0/0").write(tmp_path / "logs")
    page = landing_of(tmp_path / "logs", tmp_path / "out")
    assert re.findall(r'href="(rank_\w+)/index.html"', page.section("ranks")) == ["rank_unknown", "rank_0", "rank_1"]
    assert "The same 2 compilations on both ranks." in page.about("Compilations")
    assert "logs without a rank are not compared" in page.text


def test_tlparse_defect_14_nothing_matches_where_nothing_was_logged(tmp_path: Path) -> None:
    page = made(tmp_path, compiled(0, "0/0"), compiled(1, "0/0"))
    assert "log_tlparse = True" in page.about("Shapes, strides and types of tensors")
    assert "record_and_log_graph_execution_order()" in page.about("Order in which graphs ran")
    for title in (
        "Shapes, strides and types of tensors",
        "Order in which graphs ran",
        "Collectives in the compiled graphs",
    ):
        assert page.about(title).startswith("Not compared. ")
    assert "log_tlparse = True" in page.section("estimates")
    assert "collectives_parity" not in page.page
    assert page.names == {"index.html", "chromium_events.json"}


def test_every_link_leads_somewhere(tmp_path: Path) -> None:
    page = made(tmp_path, compiled(0, "0/0").artifact(SCHEDULE, [REDUCE], "0/0"), compiled(1, "0/0", "0/1"))
    links = re.findall(r'href="([^"]+)"', page.page)
    assert "rank_1/index.html" in links
    for target in links:
        if target.startswith("#"):
            assert f'id="{target[1:]}"' in page.page
        else:
            assert (page.folder / target).is_file()


def test_the_verdict_names_the_odd_rank_and_adds_up_all(tmp_path: Path) -> None:
    page = made(tmp_path, compiled(0, "0/0"), compiled(1, "0/0", "0/1"), compiled(2, "0/0"))
    [verdict] = re.findall("<h1>(.*?)</h1>", page.page)
    assert verdict.endswith("on 3 ranks; rank 1 behaved differently")
    numbers = re.findall(r"<dd>(.*?)<small>", page.page)
    assert numbers == ["4", "4.0 s", "1", "0", "0"]
    cells = [re.findall(r"<td[^>]*>(?:<a[^>]*>)?([^<]*)", line) for line in page.section("ranks").split("<tr>")[2:]]
    assert [(row[0], row[1], row[2], row[3], row[-1]) for row in cells] == [
        ("0", "1", "1.0 s", "0", "A"),
        ("1", "2", "2.0 s", "1", "B"),
        ("2", "1", "1.0 s", "0", "A"),
    ]


def test_of_two_ranks_that_differ_none_is_called_odd(tmp_path: Path) -> None:
    page = made(tmp_path, compiled(0, "0/0"), compiled(1, "0/0", "0/1"))
    assert "on 2 ranks; the ranks differ" in page.text


def test_earlier_runs_are_left_out(tmp_path: Path) -> None:
    for number, at in enumerate(("2026-11-16 06:00:00", "2026-11-16 08:00:00")):
        for rank in (0, 1):
            log = LogBuilder(rank=rank, at=at).start("0/0").artifact(SCHEDULE, [REDUCE] * (number + 1), "0/0")
            log.metrics("0/0").write(tmp_path / "logs", log_name(rank, f"run{number}"))
    page = landing_of(tmp_path / "logs", tmp_path / "out")
    assert "run 2 of 2" in page.text
    assert "The same 2 calls on both ranks." in page.about("Collectives in the compiled graphs")
    assert [len(entry["ops"]) for entry in page.loaded("collective_schedules.json")] == [2, 2]


def test_estimates_are_laid_end_to_end(tmp_path: Path) -> None:
    ops = [
        {"name": "mm", "type": "compute", "estimated_runtime_ns": 1500.5},
        {"name": "add", "estimated_runtime_ns": 0},
    ]
    page = made(tmp_path, *(compiled(rank, "0/0").artifact(ESTIMATES, {"ops": ops}, "0/0") for rank in (0, 1)))
    drawn = [event for event in page.loaded("chromium_trace_with_runtime.json") if event["ph"] == "X"]
    assert [(event["pid"], event["name"], event["ts"], event["dur"]) for event in drawn] == [
        (rank, name, ts, dur) for rank in (0, 1) for name, ts, dur in (("mm", 0, 2), ("add", 2, 1))
    ]
    assert drawn[0]["args"] == {"rank": 0, "graph": "-_0_0_0", "runtime_ns": 1500}
    assert page.loaded("runtime_estimations.json")[1] == {
        "rank": 1,
        "graph": "-_0_0_0",
        "ops": [{"name": "mm", "estimated_runtime_ns": 1500}, {"name": "add", "estimated_runtime_ns": 0}],
    }


def test_orders_of_execution_are_written_and_told(tmp_path: Path) -> None:
    logs = [compiled(rank, "0/0", "0/1") for rank in range(3)]
    orders = (["0/0", "0/1"], ["0/0", "0/1"], ["0/1", "0/0"])
    for log, order in zip(logs, orders, strict=True):
        log.artifact("graph_execution", {"graph_execution_order": order})
    page = made(tmp_path, *logs)
    assert "at graph run 1: [0/1], where ranks 0,1 had [0/0]." in page.about("Order in which graphs ran")
    assert [entry["graph_execution_order"] for entry in page.loaded("graph_execution_order.json")] == list(orders)


def test_parity_lists_what_code_and_schedule_do_not_share(tmp_path: Path) -> None:
    log = with_code(compiled(0, "0/0", "0/1").artifact(SCHEDULE, [REDUCE, WAIT], "0/0"), "0/0", REDUCE, GATHER)
    page = made(tmp_path, with_code(log.artifact(SCHEDULE, [REDUCE, WAIT], "0/1"), "0/1", REDUCE, WAIT))
    assert page.loaded("rank_0/collectives_parity.json")["graphs"] == [
        {"graph": "-_0_0_0", "compile_id": "[0/0]", "offset": 1, "missing_waits": 2}
    ]


def test_names_from_a_log_are_shown_as_text(tmp_path: Path) -> None:
    evil = "<img src=x onerror=alert(1)>"
    log = LogBuilder(rank=1).start("0/0", [Site(f"/job/{evil}.py", 3, evil)]).artifact(SCHEDULE, [evil], "0/0")
    page = made(tmp_path, compiled(0), log.artifact("graph_execution", {"graph_execution_order": [evil]}))
    assert "<img" not in page.page
    assert "onerror" in page.page


def test_sample_of_four_ranks_has_three_groups(tmp_path: Path) -> None:
    page = sample("multi_rank_logs", tmp_path)
    said = page.about("Cache hits and misses")
    for group in ("A ranks 0,2, 0 lookups", "B rank 1, 30 lookups:", "C rank 3, 14 lookups:"):
        assert group in said
    assert {event["pid"] for event in page.loaded("chromium_events.json")} == {0, 1, 2, 3}
    assert page.names == {"index.html", "chromium_events.json"}


def test_sample_schedules_differ_on_rank_1(tmp_path: Path) -> None:
    page = sample("multi_rank_schedule", tmp_path)
    said = page.about("Collectives in the compiled graphs")
    assert "ranks 0,2, 8 calls" in said
    assert "rank 1, 6 calls: at call 4 of [0/0]" in said
    lengths = {(entry["rank"], entry["graph"]): len(entry["ops"]) for entry in page.loaded("collective_schedules.json")}
    assert lengths == {
        (rank, graph): n for rank in range(3) for graph, n in (("-_0_0_0", 4 if rank == 1 else 6), ("-_1_0_0", 2))
    }
    [differing] = page.loaded("rank_1/collectives_parity.json")["graphs"]
    assert differing == {"graph": "-_0_0_0", "compile_id": "[0/0]", "offset": 1, "missing_waits": 0}


def test_sample_parity_finds_missing_waits(tmp_path: Path) -> None:
    page = sample("collectives_parity", tmp_path)
    graphs = {entry["graph"]: entry for entry in page.loaded("rank_0/collectives_parity.json")["graphs"]}
    assert {name: (entry["offset"], entry["missing_waits"]) for name, entry in graphs.items()} == {
        "-_0_0_0": (0, 1),
        "-_0_1_0": (0, 3),
    }
    drawn = [event for event in page.loaded("chromium_trace_with_runtime.json") if event["ph"] == "X"]
    assert {event["cat"] for event in drawn} == {"runtime"}
    assert min(event["dur"] for event in drawn) > 0
    assert {event["pid"] for event in drawn} == {event["args"]["rank"] for event in drawn} == {0}


def test_sample_with_other_files_between_has_two_ranks(tmp_path: Path) -> None:
    page = sample("multi_rank_messy_input", tmp_path)
    assert {path.name for path in page.folder.glob("rank_*")} == {"rank_0", "rank_1"}
    assert "The same 1 compilation on both ranks." in page.about("Compilations")
