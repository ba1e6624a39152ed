"""The ready-made queries of docs/queries: each says what it answers, runs, and finds what was put into a capture."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest

import rankscope
from rankscope.analyze import table_makers
from rankscope.cli import main
from rankscope.model.tables import Table, Trace
from rankscope.simulate import Fault, JobSpec, Mesh, simulate
from rankscope.simulate.compile_job import simulate_compiling
from rankscope.simulate.profiler import ProfileFault, ProfileSpec, simulate_profile

FOLDER = Path(__file__).parents[2] / "docs" / "queries"
DATA = Path(__file__).parents[1] / "data"
QUERIES = {path.stem: path for path in sorted(FOLDER.glob("*.sql"))}
HEAD = re.compile(r"-- (?P<question>\S.*[.?])\n-- Needs: (?P<sources>\S.*)\.\n(?=select|with)")

Row = dict[str, Any]


def hung(fault: str) -> Callable[[Path], Trace]:
    def make(folder: Path) -> Trace:
        simulate(JobSpec(Mesh(dp=4, tp=2)), Fault(fault, rank=5)).write(folder)
        return rankscope.load(folder)

    return make


def slow(kind: str) -> Callable[[Path], Trace]:
    def make(folder: Path) -> Trace:
        spec = ProfileSpec(data_parallel=4, n_steps=3, n_layers=2)
        simulate_profile(spec, ProfileFault(kind, 2)).write(folder)
        return rankscope.load(folder)

    return make


def compiling(fault: str) -> Callable[[Path], Trace]:
    def make(folder: Path) -> Trace:
        simulate_compiling(2, fault).write(folder)
        return rankscope.load(folder)

    return make


def collected(_: Path) -> Trace:
    return rankscope.load([DATA / name for name in ("metrics", "manifest", "thread_stacks")])


def with_memory(_: Path) -> Trace:
    moment = {"file_id": 0, "device_type": "cuda", "device": 0, "tid": 1, "reserved_bytes": 9_000_000_000}
    rows = [{**moment, "rank": rank, "time_ns": 100, "allocated_bytes": (1 + rank) * 10**9} for rank in range(3)]
    return Trace(("job",), {"memory": Table.from_rows("memory", rows)}, makers=table_makers())


CAPTURES: dict[str, Callable[[Path], Trace]] = {
    "stuck": hung("stuck"),
    "op": hung("op"),
    "straggler": hung("straggler"),
    "data-loading": slow("data-loading"),
    "slow-kernels": slow("slow-kernels"),
    "memory": with_memory,
    "recompiles": compiling("recompiles"),
    "graph-break": compiling("graph-break"),
    "collected": collected,
}
# Which capture answers a query, and what its first row has to say there.
ANSWERS: dict[str, tuple[str, Row]] = {
    "who_waits_for_whom": ("stuck", {"waited_for": 5, "is_cause": True}),
    "last_call_of_each_rank": ("stuck", {"rank": 5, "status": "done"}),
    "waiting_by_line": ("stuck", {"op": "all_reduce"}),
    "mismatched_calls": ("op", {"op": "all_reduce"}),
    "late_to_calls": ("straggler", {"rank": 5}),
    "clock_offsets": ("stuck", {"source": "flight recorder"}),
    "files_and_problems": ("stuck", {"source": "flight_recorder", "status": "read", "n_files": 8}),
    "slowest_collectives": ("data-loading", {"op": "all_reduce", "last_rank": 2, "n_members": 4}),
    "lateness_per_rank": ("data-loading", {"rank": 2}),
    "stragglers_and_causes": ("data-loading", {"rank": 2, "cause": "data-loading", "n_steps": 3}),
    "kernels_slower_than_elsewhere": ("slow-kernels", {"rank": 2}),
    "most_expensive_kernels": ("slow-kernels", {"n_ranks": 4}),
    "idle_by_cause": ("data-loading", {"rank": 0, "device": 0}),
    "exposed_communication_per_step": ("data-loading", {"step": 1, "n_ranks": 4}),
    "step_times": ("data-loading", {"step": 1, "n_ranks": 4}),
    "host_waits_for_device": ("data-loading", {"name": "cudaStreamSynchronize", "n_ranks": 4}),
    "bandwidth_by_size": ("data-loading", {"op": "all_reduce", "group_size": 4}),
    "critical_path": ("data-loading", {"rank": 2}),
    "memory_peaks": ("memory", {"rank": 2, "peak_gb": 3.0, "reserved_gb": 9.0}),
    "compile_cost_by_line": ("recompiles", {"n_ranks": 2, "function": "forward"}),
    "recompiles_by_line": ("recompiles", {"causes": "value", "subjects": "temperature", "n_ranks": 2}),
    "guard_failures": ("recompiles", {"cause": "value", "subject": "temperature", "n_guards": 8}),
    "graph_breaks_by_reason": ("graph-break", {"n_breaks": 2, "n_ranks": 2}),
    "where_threads_are": ("collected", {"place": "/job/data.py:31", "function": "load_batch", "first_ranks": [1]}),
    "metrics_over_steps": ("collected", {"name": "host_memory_bytes", "step": 1, "n_ranks": 2}),
}


@pytest.fixture(scope="module")
def captured(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Trace]:
    made: dict[str, Trace] = {}

    def capture(query: str) -> Trace:
        name = ANSWERS[query][0]
        if name not in made:
            made[name] = CAPTURES[name](tmp_path_factory.mktemp(name))
        return made[name]

    return capture


@lru_cache
def head_of(path: Path) -> tuple[str, str]:
    found = HEAD.match(path.read_text(encoding="utf-8"))
    assert found, f"{path.name} does not begin with a question and what it needs"
    return found["question"], found["sources"]


def test_every_query_has_a_capture_that_answers_it() -> None:
    assert ANSWERS.keys() == QUERIES.keys()


@pytest.mark.cases
@pytest.mark.parametrize("name", QUERIES)
def test_a_query_finds_what_the_capture_holds(name: str, captured: Callable[[str], Trace]) -> None:
    answer = captured(name).sql(QUERIES[name].read_text(encoding="utf-8"))
    found = [dict(zip(answer.columns(), row, strict=True)) for row in answer.rows()]
    assert found
    expected = ANSWERS[name][1]
    assert {column: found[0][column] for column in expected} == expected


def test_both_sides_of_a_mismatch_are_there(captured: Callable[[str], Trace]) -> None:
    sql = QUERIES["mismatched_calls"].read_text(encoding="utf-8")
    sides = captured("mismatched_calls").sql(f"select op, n_ranks, first_ranks from ({sql})").rows()
    assert len({op for op, _, _ in sides}) == 2
    assert [ranks for _, n_ranks, ranks in sides if n_ranks == 1] == [[5]]


def test_idle_time_is_shared_among_its_causes(captured: Callable[[str], Trace]) -> None:
    sql = QUERIES["idle_by_cause"].read_text(encoding="utf-8")
    shares = f"select rank, sum(share_pct) from ({sql}) group by rank"
    assert {round(share) for _, share in captured("idle_by_cause").sql(shares).rows()} == {100}


@pytest.mark.slow
def test_a_capture_without_the_sources_gives_no_rows() -> None:
    nothing = Trace((), {})
    for name, path in QUERIES.items():
        assert nothing.sql(path.read_text(encoding="utf-8")).rows() == [], name


def test_the_readme_lists_them_all() -> None:
    lines = (FOLDER / "README.md").read_text(encoding="utf-8").splitlines()
    listed = [line for line in lines if line.startswith("| [")]
    heads = {name: head_of(path) for name, path in QUERIES.items()}
    expected = {f"| [{name}]({name}.sql) | {question} | {sources} |" for name, (question, sources) in heads.items()}
    assert set(listed) == expected
    assert len(listed) == len(expected)


def test_from_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    hung("stuck")(tmp_path)
    assert main(["query", str(tmp_path), f"@{QUERIES['who_waits_for_whom']}", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)[0]["waited_for"] == 5


def test_the_python_of_the_page_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("pandas")
    hung("op")(tmp_path / "traces")
    monkeypatch.chdir(tmp_path)
    page = (FOLDER.parent / "database.md").read_text(encoding="utf-8")
    names: dict[str, Any] = {}
    for block in re.findall(r"(?ms)^```python\n(.*?)^```$", page):
        exec(block, names)
    assert names["report"].findings[0].code == "H102"
    assert len(names["late"]) == 8
    assert [op for op, _ in names["answer"].rows()] == ["all_reduce", "broadcast"]
