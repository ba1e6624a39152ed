"""Execution traces linked with exports of Nsight Systems, whose ranges carry the numbers of record functions."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from time import gmtime, strftime
from typing import Any, NamedTuple

import pytest

from rankscope.analyze import RULES
from rankscope.model.tables import Trace
from rankscope.pipeline import load
from rankscope.render.linked_tables import LINKED_TABLES
from rankscope.simulate.execution import ExecutionTrace, Node, write_execution_trace
from rankscope.simulate.execution.nodes import FUNCTION_SCOPE, PROCESS_NAME, ROOT_ID, THREAD_NAME
from read.nsys_exports import STARTED_NS, NsysExport, training_export

SAMPLES = Path(__file__).resolve().parents[4] / "shared" / "samples" / "nsys"
needs_samples = pytest.mark.skipif(not SAMPLES.is_dir(), reason="the shared samples are not here")
TRAINED = ("aten::linear", "aten::t", "aten::addmm", "aten::expand")  # in each step of training_export, in this order
FIRST_NODE = 10


class Op(NamedTuple):
    record_id: int
    name: str
    parent: int = -1  # place among the operators


def observe(folder: Path, ops: Iterable[Op], rank: int = 0, pid: int = 4000, start_ns: int = STARTED_NS) -> Path:
    """The execution trace of some operators on one thread, in the order of their beginnings."""
    nodes = [
        Node(
            node_id=FIRST_NODE + place,
            name=op.name,
            parent_id=2 if op.parent < 0 else FIRST_NODE + op.parent,
            record_id=op.record_id,
            scope=FUNCTION_SCOPE,
            thread=1,
        )
        for place, op in enumerate(ops)
    ]
    roots = (Node(2, THREAD_NAME, ROOT_ID, thread=1), Node(ROOT_ID, PROCESS_NAME, ROOT_ID))
    recorded = strftime("%Y-%m-%d %H:%M:%S", gmtime(start_ns // 10**9))
    trace = ExecutionTrace(pid, recorded, 1_000, 61_000, (*nodes, *roots))
    return write_execution_trace(trace, folder / f"torch_et_{rank}.json")


def trained(first: int = 100) -> list[Op]:
    parents = (-1, 0, 0, 2)
    return [
        Op(first * step + place, name, 4 * (step - 1) + parent if parent >= 0 else -1)
        for step in (1, 2)
        for place, (name, parent) in enumerate(zip(TRAINED, parents, strict=True))
    ]


def query(trace: Trace, sql: str) -> list[tuple[Any, ...]]:
    for table in ("et_pairs", "et_links", "et_edges"):
        trace.table(table)
    return trace.sql(sql).rows()


def pair_of(trace: Trace) -> dict[str, Any]:
    [pair] = trace.table("et_pairs").rows()
    return pair


@pytest.fixture(params=["sqlite", "parquet"])
def trace(request: pytest.FixtureRequest, tmp_path: Path) -> Trace:
    """A training of two steps, in both forms of an export."""
    export = training_export(0, n_ranks=1)
    if request.param == "sqlite":
        export.write(tmp_path / "nsys_0.sqlite")
    else:
        export.write_parquet(tmp_path / "nsys_0")
    observe(tmp_path, trained())
    return load(tmp_path)


@pytest.mark.cases
def test_operators_are_found_by_their_numbers(trace: Trace) -> None:
    pair = pair_of(trace)
    assert (pair["method"], pair["n_linkable"], pair["n_linked"], pair["why"]) == ("id", 8, 8, "")
    assert (pair["n_wrong_names"], pair["n_outside"]) == (0, 0)
    linked = """
        SELECT n.name, o.name, n.record_id, o.record_id, l.start_ns - o.start_ns, l.duration_ns - o.duration_ns
        FROM et_links AS l JOIN et_nodes AS n USING (file_id, node_id)
        JOIN ops AS o ON o.file_id = l.profile_id AND o.op_id = l.op_id ORDER BY n.node_id"""
    assert query(trace, linked) == [(op.name, op.name, op.record_id, op.record_id, 0, 0) for op in trained()]


@pytest.mark.cases
def test_times_are_absolute_and_calls_take_their_share(trace: Trace) -> None:
    """aten::linear of 800 ns calls aten::t (50 ns) and aten::addmm (590 ns), which calls aten::expand (50 ns)."""
    links = list(trace.table("et_links").rows())
    timed = {row["node_id"]: (row["start_ns"], row["duration_ns"], row["own_ns"]) for row in links}
    began = STARTED_NS + 10_000
    assert timed[FIRST_NODE] == (began + 200, 800, 160)
    assert timed[FIRST_NODE + 1] == (began + 250, 50, 50)
    assert timed[FIRST_NODE + 2] == (began + 310, 590, 540)
    assert timed[FIRST_NODE + 4] == (began + 10_200, 800, 160)
    assert [row["step"] for row in links if row["how"] == "id"] == [0] * 4 + [1] * 4


@pytest.mark.cases
def test_kernels_hang_on_the_innermost_node_that_launched_them(trace: Trace) -> None:
    tied = (
        f"SELECT k.name, n.name FROM {LINKED_TABLES['kernels']} AS k LEFT JOIN et_nodes AS n ON n.node_id = k.node_id"
    )
    found = query(trace, f"{tied} ORDER BY k.start_ns")
    assert found.count(("sm80_gemm_f32", "aten::addmm")) == 2
    assert len(found) == 10
    launched = """
        SELECT n.name, k.name FROM et_edges AS e JOIN et_nodes AS n ON n.node_id = e.source_id
        JOIN kernels AS k ON k.kernel_id = e.target_id
        WHERE e.kind = 'launch' AND e.source = 'node' AND e.target = 'kernel'"""
    assert query(trace, launched).count(("aten::addmm", "sm80_gemm_f32")) == 2


@pytest.mark.cases
def test_work_of_a_stream_is_in_order(trace: Trace) -> None:
    ordered = """
        SELECT a.name, b.name, b.start_ns >= a.start_ns + a.duration_ns FROM et_edges AS e
        JOIN kernels AS a ON a.kernel_id = e.source_id JOIN kernels AS b ON b.kernel_id = e.target_id
        WHERE e.kind = 'stream' ORDER BY a.start_ns"""
    found = query(trace, ordered)
    assert ("sm80_gemm_f32", "Memcpy HtoD (Pinned -> Device)", True) in found
    assert all(is_after for _, _, is_after in found)


def many_ops(export: NsysExport, names: Iterable[str]) -> None:
    for place, name in enumerate(names):
        export.range(f"{name}, op_id = {500 + place}", 1_000 * place, 1_000 * place + 600)
        export.launch(f"{name}_kernel", 1_000 * place + 100, place + 1)


def test_a_number_under_another_name_is_not_linked(tmp_path: Path) -> None:
    names = [f"aten::op{place % 7}" for place in range(100)]
    export = NsysExport()
    many_ops(export, names)
    export.write(tmp_path / "nsys_0.sqlite")
    names[40] = "aten::other"
    observe(tmp_path, [Op(500 + place, name) for place, name in enumerate(names)])
    trace = load(tmp_path)
    pair = pair_of(trace)
    assert (pair["n_linked"], pair["n_wrong_names"], pair["method"]) == (99, 1, "id")
    [wrong] = [row for row in trace.table("et_links").rows() if row["node_id"] == FIRST_NODE + 40]
    assert (wrong["how"], wrong["op_id"]) == ("none", -1)


def test_many_other_names_are_another_run(tmp_path: Path) -> None:
    export = NsysExport()
    many_ops(export, [f"aten::op{place % 7}" for place in range(100)])
    export.write(tmp_path / "nsys_0.sqlite")
    observe(tmp_path, [Op(500 + place, f"aten::op{place % 5}") for place in range(100)])
    pair = pair_of(load(tmp_path))
    assert (pair["n_linked"], pair["why"]) == (0, "different-run")
    assert pair["n_wrong_names"] > 50


def test_zero_is_no_number(tmp_path: Path) -> None:
    export = training_export(0, n_ranks=1)
    export.range("aten::mul, op_id = 0", 30_000, 30_100)
    export.write(tmp_path / "nsys_0.sqlite")
    observe(tmp_path, [*trained(), Op(0, "aten::mul")])
    trace = load(tmp_path)
    assert pair_of(trace)["n_linked"] == 8
    assert [row["how"] for row in trace.table("et_links").rows() if row["node_id"] == FIRST_NODE + 8] == ["none"]


def test_ranges_without_numbers_are_aligned_by_name(tmp_path: Path) -> None:
    """autograd-nvtx of older versions names the operators alone."""
    export = NsysExport()
    names = [f"aten::op{place % 7}" for place in range(60)]
    for place, name in enumerate(names):
        export.range(f"{name}, seq = {place}", 1_000 * place, 1_000 * place + 600)
        export.launch("kernel", 1_000 * place + 100, place + 1)
    export.write(tmp_path / "nsys_0.sqlite")
    observe(tmp_path, [Op(500 + place, name) for place, name in enumerate(names)])
    pair = pair_of(load(tmp_path))
    assert (pair["method"], pair["n_linked"], pair["why"]) == ("alignment", 60, "no-ids")


@pytest.fixture
def two_processes(tmp_path: Path) -> Path:
    """One export of two ranks that have the same numbers, under the same names, at other times."""
    export = NsysExport(pid=4000, device=0)
    for rank in (0, 1):
        export.process(pid=4000 + rank, device=rank)
        for place in range(20):
            start = 100_000 * rank + 1_000 * place
            export.range(f"aten::mm, op_id = {500 + place}", start, start + 600 + rank)
            export.launch(f"kernel of rank {rank}", start + 100, place + 1)
    export.write(tmp_path / "nsys_job.sqlite")
    return tmp_path


def test_processes_of_one_file_do_not_mix(two_processes: Path) -> None:
    for rank in (0, 1):
        observe(two_processes, [Op(500 + place, "aten::mm") for place in range(20)], rank, 4000 + rank)
    trace = load(two_processes)
    assert [(row["rank"], row["n_linked"]) for row in trace.table("et_pairs").rows()] == [(0, 20), (1, 20)]
    durations = "SELECT rank, duration_ns, count(*) FROM et_links WHERE how = 'id' GROUP BY ALL ORDER BY ALL"
    assert query(trace, durations) == [(0, 600, 20), (1, 601, 20)]
    tied = f"SELECT rank, name, count(*), count(DISTINCT node_id) FROM {LINKED_TABLES['kernels']} GROUP BY ALL"
    assert query(trace, f"{tied} ORDER BY ALL") == [(0, "kernel of rank 0", 20, 20), (1, "kernel of rank 1", 20, 20)]
    own_trace = (
        f"SELECT count(*) FROM {LINKED_TABLES['kernels']} AS k JOIN et_traces AS t ON t.file_id = k.node_file_id"
    )
    assert query(trace, f"{own_trace} WHERE t.rank <> k.rank") == [(0,)]
    launches = "SELECT rank, from_rank, count(*) FROM et_edges WHERE kind = 'launch' GROUP BY ALL ORDER BY ALL"
    assert query(trace, launches) == [(0, 0, 20), (1, 1, 20)]


def test_a_process_without_an_execution_trace_stays_out(two_processes: Path) -> None:
    observe(two_processes, [Op(500 + place, "aten::mm") for place in range(20)], 1, 4001)
    trace = load(two_processes)
    assert query(trace, f"SELECT DISTINCT rank, name FROM {LINKED_TABLES['kernels']}") == [(1, "kernel of rank 1")]
    assert query(trace, "SELECT DISTINCT rank FROM et_edges") == [(1,)]


def test_kernels_of_a_process_without_an_execution_trace_are_not_missed(tmp_path: Path) -> None:
    """Those of rank 0 belong to no operator, but nothing was to be linked with them."""
    export = NsysExport(pid=4000, device=0)
    for place in range(20):
        export.launch("lone kernel", 1_000 * place, place + 1)
    export.process(pid=4001, device=1)
    many_ops(export, ["aten::mm"] * 20)
    export.write(tmp_path / "nsys_job.sqlite")
    ops = [Op(500 + place, "aten::mm") for place in range(20)]
    observe(tmp_path, ops, 1, 4001)
    assert list(RULES["L504"].function(load(tmp_path))) == []
    observe(tmp_path, ops[:1], 0, 4000)
    assert list(RULES["L504"].function(load(tmp_path))) == []  # it is linked with nothing there either


@pytest.mark.slow
@needs_samples
@pytest.mark.parametrize("rank", [0, 1])
def test_a_process_of_the_real_export_is_linked_whole(rank: int, tmp_path: Path) -> None:
    path = SAMPLES / "h100_2gpu_1s.sqlite"
    recorded = [row for row in load(path).table("ops").rows() if row["rank"] == rank]
    recorded.sort(key=lambda row: (row["start_ns"], row["record_id"]))
    assert len(recorded) == 8391
    ops = [Op(row["record_id"], row["name"]) for row in recorded]
    trace = load([path, observe(tmp_path, ops, rank, recorded[0]["pid"], recorded[0]["start_ns"])])
    pair = pair_of(trace)
    assert (pair["rank"], pair["method"], pair["n_linked"], pair["n_wrong_names"]) == (rank, "id", 8391, 0)
    assert (pair["link_pct"], pair["covered_pct"]) == (100, pytest.approx(100, abs=2))  # ranges of NCCL have no numbers
    others = """
        SELECT count(*) FROM et_links AS l JOIN et_nodes AS n USING (file_id, node_id)
        LEFT JOIN ops AS o ON o.file_id = l.profile_id AND o.rank = l.rank AND o.op_id = l.op_id
        WHERE l.how = 'id' AND (o.name, o.record_id, o.start_ns) IS DISTINCT FROM (n.name, n.record_id, l.start_ns)"""
    assert query(trace, others) == [(0,)]
    tied = f"SELECT rank, count(*), count(node_id) FROM {LINKED_TABLES['kernels']} WHERE kind = 'kernel' GROUP BY rank"
    assert query(trace, tied) == [(rank, 1721, 816)]  # the others were launched before the window
