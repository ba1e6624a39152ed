"""What commands print of small simulated jobs, and what is written of graphs and tables made by hand."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import rankscope
from analyze.link.edge_traces import Observed, trace_of
from compile_page_building import job_log, report_of
from rankscope.cli import main
from rankscope.model.chakra import COMM_COLL, COMP, Attribute, ChakraNode, ChakraStream
from rankscope.render import Options
from rankscope.render.chakra_graphs import dot_lines, graphml_lines
from rankscope.render.chakra_views import Excerpt, json_lines, node_lines, summarize, summary_lines
from rankscope.render.changes_page import changes_page
from rankscope.render.linked_timeline import write_linked_timeline
from rankscope.render.plain_table import table_lines
from rankscope.simulate import Fault, JobSpec, Mesh, simulate
from rankscope.simulate.profiler import ProfileFault, ProfileSpec, simulate_profile
from render import changes_sample
from render.outline import outline
from render.snapshot import check_snapshot

pytestmark = pytest.mark.slow
PACKAGE = str(Path(rankscope.__path__[0]))
ON_HOST, ON_DEVICE = ({"is_cpu_op": Attribute("bool", is_cpu)} for is_cpu in (True, False))
NODES = (
    ChakraNode(0, "aten::mm", COMP, [], [], 10, 5, attributes=ON_HOST),
    ChakraNode(1, 'gemm<"bf16">', COMP, [0], [], 17, 40, attributes=ON_DEVICE),
    ChakraNode(2, "nccl:all_reduce", COMM_COLL, [0], [1], 60, 30, attributes={"comm_size": Attribute("int64", 4096)}),
)


@pytest.fixture(scope="module")
def jobs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("jobs")
    simulate(JobSpec(Mesh(dp=2, tp=2), steps=2, layers=1), Fault("op", rank=1, step=1)).write(folder / "hang")
    simulate(JobSpec(Mesh(dp=2, tp=1), steps=1, layers=1, microbatches=1, buckets=1)).write(folder / "tiny")
    slow = ProfileSpec(data_parallel=2, n_steps=3, n_layers=1, n_microbatches=1)
    simulate_profile(slow, ProfileFault("slow-kernels", 1)).write(folder / "slow", gzip=False)
    job_log(0).write(folder / "old")
    changed = job_log(0)
    changed.start("5/0").graph("5/0").metrics("5/0", 3.0)
    changed.write(folder / "new")
    return folder


@pytest.mark.parametrize(
    ("name", "command"),
    [
        ("fr.txt", "fr hang"),
        ("fr_flat_database.txt", "fr tiny -v"),
        ("fr_entries.txt", "fr hang -j --pg-filters tp --selected-ranks 0 1 --print-stack-trace"),
        ("metrics_temporal.txt", "metrics slow temporal"),
        ("metrics_kernels.txt", "metrics slow kernels"),
        ("compile_changes.txt", "compile --compare old new"),
    ],
)
def test_printed(
    name: str, command: str, jobs: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(jobs)
    assert main(command.split()) in (0, 1)
    check_snapshot(name, capsys.readouterr().out.replace(PACKAGE, "rankscope").replace(str(jobs), "jobs"))


def test_chakra_views() -> None:
    def stream() -> ChakraStream:
        return ChakraStream("job.0.et", "0.0.4", {"rank": Attribute("int64", 0)}, iter(NODES))

    parts = (
        json_lines(Excerpt(stream())),
        summary_lines(summarize(stream(), 2), 100),
        node_lines(NODES[2]),
        dot_lines(Excerpt(stream())),
        graphml_lines(Excerpt(stream())),
    )
    check_snapshot("chakra_views.txt", "\n\n".join("\n".join(part) for part in parts) + "\n")


def test_plain_table() -> None:
    rows = [(1, "all_reduce", 0.5, None), (12, "a\tb\x1b[2J\u202e" + "x" * 80, 12345.678, True)]
    lines = [*table_lines(("rank", "name", "value", "is_late"), rows, 60), "", *table_lines(("none",), [])]
    check_snapshot("plain_table.txt", "\n".join(lines) + "\n")


def test_linked_timeline(tmp_path: Path) -> None:
    process = Observed()
    outer = process.node("step", 0, 100)
    process.node("aten::mm", 10, 30, parent=outer)
    process.node("c10d::send", 40, 50, parent=outer)
    process.node("gloo:send", 45, 120, parent=outer)
    write_linked_timeline(trace_of(process), str(tmp_path / "linked.json"))
    text = (tmp_path / "linked.json").read_text("utf-8").replace(rankscope.__version__, "VERSION")
    check_snapshot("linked_timeline.json", text)


def test_page_of_changes() -> None:
    body = re.sub(".*<body>", "", changes_page(changes_sample.slower(), Options()), flags=re.DOTALL)
    check_snapshot("changes_page.txt", outline(body))


@pytest.mark.parametrize(("name", "n_ranks"), [("compile_index.txt", 1), ("compile_ranks.txt", 2)])
def test_index_of_a_compile_report(name: str, n_ranks: int, tmp_path: Path) -> None:
    index = report_of(tmp_path, *map(job_log, range(n_ranks))) / "index.html"
    body = re.sub(".*<body>", "", index.read_text("utf-8"), flags=re.DOTALL).replace(str(tmp_path), "job")
    check_snapshot(name, outline(body))
