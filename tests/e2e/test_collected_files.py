"""What real jobs leave when they are collected: every file, whole, in a form that this package and others read."""

from __future__ import annotations

import gzip
import json
import pickle
import sys
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from collected_jobs import (
    TORCHRUN,
    Ended,
    Script,
    end,
    files_of,
    manifest_of,
    problems_of,
    run_scripts,
    start_record,
)
from launching import JOBS

import nsys_stand_in
from rankscope.model.tables import Trace
from rankscope.pipeline import load

pytest.importorskip("torch")
pytestmark = pytest.mark.e2e

JOB = str(JOBS / "collected_training.py")
N_STEPS = 13  # as the job has them
OBSERVED_STEPS, CLEAN_STEPS = [7, 8, 9], [11, 12]  # five are waited for, and each profiler has one to warm up
EVERYTHING = ("--desync", "--nsys", "--logs", "recompiles,graph_breaks", "--gzip", "--memory", "--with-stack")


class Collected(NamedTuple):
    folder: Path
    ended: Ended
    trace: Trace
    n_ranks: int

    def rows(self, sql: str) -> list[tuple[Any, ...]]:
        self.trace.table("et_pairs")
        return self.trace.sql(sql).rows()


@pytest.fixture(scope="module")
def everything(tmp_path_factory: pytest.TempPathFactory) -> Collected:
    """Two ranks of torchrun: DDP, torch.compile, messages; a dump is requested; all that can be collected is."""
    scratch = tmp_path_factory.mktemp("everything")
    programs = nsys_stand_in.install(scratch / "bin")
    folder = scratch / "traces"
    job = (*TORCHRUN, "--nproc-per-node", "2", JOB, "--compiles", "--asks")
    ended = end(start_record(folder, ("--no-diagnose", *EVERYTHING), job, programs=programs))
    return Collected(folder, ended, load(folder), 2)


@pytest.fixture(scope="module")
def forked(tmp_path_factory: pytest.TempPathFactory) -> Collected:
    """Four ranks that a script forks, with what is collected if nothing else is said."""
    folder = tmp_path_factory.mktemp("forked") / "traces"
    ended = end(start_record(folder, (), (sys.executable, JOB, "--forks", "4")))
    return Collected(folder, ended, load(folder), 4)


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Collected:
    """One process, which collects by its own code."""
    scratch = tmp_path_factory.mktemp("alone")
    folder = scratch / "traces"
    (ended,) = run_scripts(scratch, [Script("collected_by_api", [str(folder)])])
    return Collected(folder, ended, load(folder), 1)


@pytest.fixture(scope="module", params=["everything", "forked", "alone"])
def collected(request: pytest.FixtureRequest) -> Collected:
    made: Collected = request.getfixturevalue(request.param)
    return made


def printed_in(folder: Path) -> set[str]:
    """What the launcher keeps of the job's output belongs to no rank."""
    return {path.name for path in folder.glob("output_host_*")}


def test_every_file_is_there_for_every_rank(everything: Collected, forked: Collected, alone: Collected) -> None:
    assert (everything.ended.code, forked.ended.code, alone.ended.code) == (0, 0, 0)
    profiled = ("kineto_trace_{}.json", "kineto_clean_{}.json", "torch_et_{}.json")
    dumped = ("nccl_trace_rank_{}", "rankscope_trace_rank_{}", "stacks_{}.txt", "desync_{}.txt")
    more = ("metrics_{}.jsonl", "host_{}.jsonl", "torch_logs_{}.txt", "nsys_{}.nsys-rep", "manifest.d/rank_{}.json")
    kinds = {
        2: (*(f"{name}.gz" for name in profiled), *dumped, *more),
        4: (*profiled, "metrics_{}.jsonl", "host_{}.jsonl", "nccl_trace_rank_{}", "manifest.d/rank_{}.json"),
        1: (*profiled, "metrics_{}.jsonl", "host_{}.jsonl", "manifest.d/rank_{}.json"),
    }
    for made in (everything, forked, alone):
        wanted = {kind.format(rank) for kind in kinds[made.n_ranks] for rank in range(made.n_ranks)}
        found = {name for name in files_of(made.folder) if not name.startswith("torch_trace/")}
        assert found == wanted | {*printed_in(made.folder), "manifest.json", "run.json"}
    assert [len(printed_in(made.folder)) for made in (everything, forked, alone)] == [1, 1, 0]  # one launcher, or none
    assert len(list(everything.folder.glob("torch_trace/*.log"))) == 2


def test_the_manifest_tells_of_every_file(collected: Collected) -> None:
    manifest = manifest_of(collected.folder)
    assert [rank["rank"] for rank in manifest["ranks"]] == list(range(collected.n_ranks))
    assert {rank["world_size"] for rank in manifest["ranks"]} == {collected.n_ranks}
    assert problems_of(collected.folder) == []
    got = {file["file"]: file["n_bytes"] for rank in manifest["ranks"] for file in rank["got"]}
    about_the_run = {"manifest.json", "run.json", *(f"manifest.d/rank_{rank}.json" for rank in range(4))}
    assert got.keys() == files_of(collected.folder) - about_the_run - printed_in(collected.folder)
    assert got == {name: (collected.folder / name).stat().st_size for name in got}
    assert manifest["run"]["ended_ns"] > manifest["run"]["started_ns"]
    assert all(rank["started_ns"] < rank["ended_ns"] for rank in manifest["ranks"])


def test_every_file_is_read_by_this_package(collected: Collected) -> None:
    files = list(collected.trace.table("files").rows())
    assert [
        file for file in files if file["status"] == "damaged" or (file["status"] == "read" and file["problem"])
    ] == []
    unread = {Path(file["path"]).name for file in files if file["status"] != "read"}
    known = {"run.json", *(f"rank_{rank}.json" for rank in range(4)), *(f"nsys_{rank}.nsys-rep" for rank in range(2))}
    assert unread <= known


@pytest.mark.parametrize(
    ("table", "whose"),
    [
        ("et_nodes", "everything forked alone"),
        ("ops", "everything forked alone"),
        ("metrics", "everything forked alone"),
        ("manifests", "everything forked alone"),
        ("collected_files", "everything forked alone"),
        ("collectives", "everything forked"),
        ("comms", "everything forked"),
        ("memory", "everything"),
        ("thread_stacks", "everything"),
        ("desync_states", "everything"),
        ("compilations", "everything"),
        ("compile_logs", "everything"),
        ("graph_breaks", "everything"),
        ("recompiles", "everything"),
    ],
)
def test_tables_have_rows_of_every_rank(table: str, whose: str, request: pytest.FixtureRequest) -> None:
    for name in whose.split():
        made: Collected = request.getfixturevalue(name)
        assert made.rows(f"SELECT DISTINCT rank FROM {table} ORDER BY 1") == [(rank,) for rank in range(made.n_ranks)]


def test_execution_trace_and_profiler_trace_cover_the_same_steps(collected: Collected) -> None:
    observed, clean = ([2, 3], [5]) if collected.n_ranks == 1 else (OBSERVED_STEPS, CLEAN_STEPS)
    for rank in range(collected.n_ranks):
        in_trace = {
            (part, step)
            for part, step in collected.rows(
                f"""SELECT regexp_extract(path, 'kineto_(trace|clean)', 1), step FROM steps JOIN files USING (file_id)
                    WHERE steps.rank = {rank}"""
            )
        }
        assert in_trace == {*(("trace", step) for step in observed), *(("clean", step) for step in clean)}
        in_execution_trace = collected.rows(
            f"SELECT name FROM et_nodes WHERE rank = {rank} AND name LIKE 'ProfilerStep#%' ORDER BY node_id"
        )
        assert in_execution_trace == [(f"ProfilerStep#{step}",) for step in observed]
    pairs = list(collected.trace.table("et_pairs").rows())
    assert [pair["rank"] for pair in pairs] == list(range(collected.n_ranks))
    for pair in pairs:
        assert (pair["method"], pair["n_wrong_names"], pair["n_outside"]) == ("id", 0, 0)
        assert pair["n_linked"] == pair["n_linkable"] > 20


def test_profiler_files_are_plain_json(collected: Collected) -> None:
    for rank in range(collected.n_ranks):
        for name, n_steps in (("kineto_trace", len(OBSERVED_STEPS)), ("kineto_clean", len(CLEAN_STEPS))):
            events = parsed(collected.folder, f"{name}_{rank}.json")["traceEvents"]
            marks = [event for event in events if event["name"].startswith("ProfilerStep#") and event["ph"] == "X"]
            assert len({event["name"] for event in marks}) == (n_steps if collected.n_ranks > 1 else n_steps - 1)
        nodes = parsed(collected.folder, f"torch_et_{rank}.json")["nodes"]
        parents = {node["ctrl_deps"] for node in nodes}
        assert parents <= {node["id"] for node in nodes}


def parsed(folder: Path, name: str) -> dict[str, Any]:
    plain, packed = folder / name, folder / f"{name}.gz"
    content: dict[str, Any] = json.loads(
        gzip.decompress(packed.read_bytes()) if packed.exists() else plain.read_bytes()
    )
    return content


@pytest.mark.parametrize("prefix", ["nccl_trace_rank_", "rankscope_trace_rank_"])
def test_dumps_have_the_layout_of_torch(prefix: str, everything: Collected) -> None:
    for rank in range(2):
        dump = pickle.loads((everything.folder / f"{prefix}{rank}").read_bytes())
        calls = Counter(entry["profiling_name"] for entry in dump["entries"] if not entry["is_p2p"])
        # Each step has one of DDP and one of the job itself; DDP makes a few more when it is set up.
        assert calls["gloo:barrier"] == 1
        assert calls["gloo:all_reduce"] >= 2 * N_STEPS
        numbers = [entry["collective_seq_id"] for entry in dump["entries"] if not entry["is_p2p"]]
        assert numbers == sorted(set(numbers))
        messages = [entry["profiling_name"] for entry in dump["entries"] if entry["is_p2p"]]
        message = "gloo:recv 1<-0" if rank else "gloo:send 0->1"
        assert messages == ([message] * N_STEPS if prefix.startswith("rankscope") else [])


def test_the_two_recorders_number_calls_alike(everything: Collected) -> None:
    for rank in range(2):
        dumps = [
            pickle.loads((everything.folder / f"{name}_trace_rank_{rank}").read_bytes())
            for name in ("nccl", "rankscope")
        ]
        calls = [
            {entry["collective_seq_id"]: entry["profiling_name"] for entry in dump["entries"] if not entry["is_p2p"]}
            for dump in dumps
        ]
        assert calls[1].items() <= calls[0].items()
    calls_in_all = everything.rows(
        "SELECT rank, seq, op, is_p2p, count(*) FROM collectives GROUP BY ALL HAVING count(*) > 1"
    )
    assert calls_in_all == []


def test_torch_finds_nothing_wrong_in_the_dumps_of_the_collector(everything: Collected, tmp_path: Path) -> None:
    """Its own of gloo it cannot judge: they do not name their groups."""
    from torch.distributed.flight_recorder import fr_trace

    judged = tmp_path / "judged"
    fr_trace.main([str(everything.folder), "-p", "rankscope_trace_rank_", "-o", str(judged)])
    _, database = pickle.loads(judged.read_bytes())
    assert [(group.desc, group.size) for group in database.groups] == [("default_pg", 2)]
    calls = Counter(call.collective_name for call in database.collectives)
    assert calls["gloo:barrier"] == 1
    assert calls["gloo:send 0->1"] + calls["gloo:recv 1<-0"] == N_STEPS  # it tells of one end of each message
    assert {(call.pass_check, call.collective_state) for call in database.collectives} == {(True, "completed")}
    assert Counter(call.global_rank for call in database.ncclcalls) == dict.fromkeys((0, 1), sum(calls.values()))


def test_stacks_show_where_the_job_was_when_somebody_asked(everything: Collected) -> None:
    found = everything.rows(
        """SELECT s.rank, reason, function, file FROM thread_stacks AS s JOIN frames ON frame_id = site_id
           WHERE is_main ORDER BY 1"""
    )
    assert found == [(rank, "SIGUSR2", "ask_for_a_dump", JOB) for rank in range(2)]


def test_metrics_have_the_time_of_each_step(forked: Collected, alone: Collected) -> None:
    n_values = "SELECT rank, count(*), min(step), max(step) FROM metrics WHERE name = '{}' GROUP BY rank ORDER BY rank"
    assert forked.rows(n_values.format("step_time_s")) == [(rank, N_STEPS - 1, 2, N_STEPS) for rank in range(4)]
    assert forked.rows("SELECT count(*) FROM metrics WHERE name = 'step_time_s' AND NOT value > 0") == [(0,)]
    assert alone.rows("SELECT rank, count(value) FROM metrics WHERE name = 'loss' GROUP BY rank") == [(0, 6)]
    assert alone.rows(n_values.format("samples_per_s")) == [(0, 5, 2, 6)]


def test_a_healthy_job_has_no_error(forked: Collected) -> None:
    assert "Next: rankscope " in forked.ended.err
    assert "error[" not in forked.ended.err
    assert [forked.ended.out.count(f"rank {rank} has trained {N_STEPS} steps") for rank in range(4)] == [1, 1, 1, 1]
