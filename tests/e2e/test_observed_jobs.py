"""Execution traces and profiler traces of the same steps, made by torch: linked, and turned into Chakra's files."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from launching import JOB_ENVIRONMENT, Started, run_forked

from analyze.link.edge_traces import assert_sound
from rankscope.model.tables import Trace
from rankscope.pipeline import load

pytest.importorskip("torch")
pytestmark = pytest.mark.e2e

ALONE = ("mlp", "transformer", "stacks_and_memory", "unscheduled", "observed_longer", "clean", "compiled", "killed")
ON_TWO_RANKS = ("data_parallel", "sharded", "collectives")
LINKED = (*(case for case in ALONE if case not in ("observed_longer", "killed")), *ON_TWO_RANKS)
N_STEPS = 3
N_MORE_RECORDINGS = 2
# What jobs/observed_training.py calls in each step: operation, bytes that a rank gives, and who sends or is the root.
CALLS = {
    ("all_reduce", 400, -1): 1,
    ("all_reduce", 132, -1): 1,  # in the group of its own
    ("broadcast", 800, 1): 1,
    ("reduce", 1200, 1): 1,
    ("all_gather", 160, -1): 1,
    ("all_gather", 200, -1): 1,
    ("gather", 240, 0): 1,
    ("scatter", 280, 0): 1,
    ("reduce_scatter", 640, -1): 1,
    ("all_to_all", 720, -1): 1,
    ("all_to_all", 200, -1): 1,
    ("barrier", 0, -1): 1,
}


@pytest.fixture(scope="module")
def traces(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One folder of traces per case."""
    root = tmp_path_factory.mktemp("observed")
    record(root, ALONE)
    record(root, ON_TWO_RANKS)
    return root


def record(root: Path, cases: Sequence[str]) -> None:
    n_ranks = 2 if cases[0] in ON_TWO_RANKS else 1
    output = root / f"{n_ranks}.txt"
    arguments = ["--output", str(root), "--cases", ",".join(cases)]
    environment = {**JOB_ENVIRONMENT, "TORCHINDUCTOR_COMPILE_THREADS": "1"}
    codes = run_forked(Started("observed_training", arguments, environment, n_ranks, output))
    assert not any(codes), output.read_text()


def run(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "rankscope", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


def rows(trace: Trace, sql: str) -> list[tuple[Any, ...]]:
    for table in ("et_pairs", "et_links", "et_edges", "et_collectives"):
        trace.table(table)
    return trace.sql(sql).rows()


@pytest.mark.parametrize("case", LINKED)
def test_all_but_roots_and_groups_are_linked(traces: Path, case: str) -> None:
    trace = load(traces / case)
    for pair in trace.table("et_pairs").rows():
        assert (pair["method"], pair["n_wrong_names"], pair["why"]) == ("id", 0, "")
        assert pair["n_linked"] == pair["n_linkable"] > 100
    unlinked = rows(
        trace,
        """SELECT DISTINCT kind FROM et_nodes JOIN et_links USING (file_id, node_id) WHERE how = 'none'""",
    )
    assert {kind for (kind,) in unlinked} <= {"process", "thread", "groups"}
    wrong = """
        SELECT n.name, o.name FROM et_nodes AS n JOIN et_links AS l USING (file_id, node_id)
        JOIN (SELECT file_id, op_id, name, NULL AS annotation_id FROM ops
              UNION ALL SELECT file_id, NULL, name, annotation_id FROM annotations) AS o
        ON o.file_id = l.profile_id
           AND (o.op_id = l.op_id OR (l.op_id IS NULL AND o.annotation_id = l.annotation_id))
        WHERE o.name <> n.name"""
    assert rows(trace, wrong) == []


@pytest.mark.parametrize("case", LINKED)
def test_times_are_consistent(traces: Path, case: str) -> None:
    """Nothing takes longer without what it called than with it, and steps hold what happened in them."""
    trace = load(traces / case)
    [(n_wrong,)] = rows(trace, "SELECT count(*) FROM et_links WHERE own_ns > duration_ns OR own_ns < 0")
    assert n_wrong == 0
    by_thread = """
        SELECT sum(own_ns), max(start_ns + duration_ns) - min(start_ns) FROM et_links
        WHERE how <> 'none' GROUP BY file_id, tid"""
    assert all(busy <= span for busy, span in rows(trace, by_thread))


@pytest.mark.parametrize("case", [*LINKED, "observed_longer"])
def test_edges_lead_forward_and_miss_nothing(traces: Path, case: str) -> None:
    kinds = assert_sound(load(traces / case))
    assert {"call", "thread", "data"} <= set(kinds)
    assert ("backward" in kinds) == (case != "collectives")
    assert ("collective" in kinds) == (case in ON_TWO_RANKS)


def test_an_observer_that_ran_longer_is_told(traces: Path) -> None:
    [pair] = load(traces / "observed_longer").table("et_pairs").rows()
    assert pair["why"] == "partial"
    assert pair["n_linked"] + pair["n_outside"] == pair["n_linkable"]
    assert pair["covered_pct"] == 100


def test_a_killed_job_leaves_what_it_wrote(traces: Path) -> None:
    trace = load(traces / "killed")
    [described] = trace.table("et_traces").rows()
    assert described["is_cut"]
    assert described["n_nodes"] > 300
    done = run(traces / "killed")
    assert "read up to the last complete node" in done.stdout


def test_collectives_have_the_bytes_that_the_job_gave(traces: Path) -> None:
    trace = load(traces / "collectives")
    for rank in (0, 1):
        own = [row for row in trace.table("et_collectives").rows() if row["rank"] == rank]
        called = Counter((row["op"], row["n_bytes"], row["root"]) for row in own if not row["is_p2p"])
        assert called == Counter({call: N_STEPS * n for call, n in CALLS.items()})
        transfers = Counter(
            (row["op"], row["n_bytes"], row["src"], row["dst"], row["tag"]) for row in own if row["is_p2p"]
        )
        first, second = ("send", "recv") if rank == 0 else ("recv", "send")
        assert transfers == {(first, 880, 0, 1, 7): N_STEPS, (second, 480, 1, 0, 0): N_STEPS}
        # Both groups have the same members; which of them it was, gloo does not record.
        groups = {(row["group_name"], row["group_ranks"]) for row in own if row["n_bytes"] == 132}
        assert groups == {("", "[0,1]")}


@pytest.mark.parametrize("case", ON_TWO_RANKS)
def test_ranks_agree(traces: Path, case: str) -> None:
    trace = load(traces / case)
    by_rank = [
        [(row["op"], row["group_name"], row["dtype"], row["n_bytes"]) for row in trace.table("et_collectives").rows()
         if row["rank"] == rank and not row["is_p2p"]]
        for rank in (0, 1)
    ]  # fmt: skip
    assert by_rank[0] == by_rank[1]
    assert by_rank[0]
    calls = "SELECT count(DISTINCT rank) FROM et_collectives WHERE NOT is_p2p GROUP BY group_name, place"
    assert {n_ranks for (n_ranks,) in rows(trace, calls)} == {2}


@pytest.mark.parametrize("case", [*LINKED, "observed_longer"])
def test_the_graph_is_one_that_a_simulator_takes(traces: Path, case: str, tmp_path: Path) -> None:
    ratio = replayed(traces / case, tmp_path / "et")
    for attempt in range(N_MORE_RECORDINGS):
        if is_close(ratio):
            break
        # Where other processes keep the ranks from running, no graph can know when they came: recorded again.
        (again := tmp_path / f"{attempt}").mkdir()
        record(again, [case])
        ratio = replayed(again / case, again / "et")
    assert is_close(ratio)


def replayed(traces: Path, output: Path) -> float:
    """How long the replay of the graphs takes, by how long the job took: both beside the observer."""
    done = run("export", traces, "--to", "chakra", "--raw-durations", "-o", output, "--json")
    assert done.returncode == 0, done.stderr
    judged = run("chakra", "validate", output, "--json")
    assert judged.returncode == 0, judged.stdout
    verdict = json.loads(judged.stdout)
    assert verdict["valid"]
    assert verdict["replay"]["n_executed"] == verdict["replay"]["n_nodes"]
    return float(verdict["replay"]["ratio"])


def is_close(ratio: float) -> bool:
    return 0.85 < ratio < 1.15


@pytest.mark.parametrize("given", ["kineto_clean_0.json", "."])
def test_durations_come_from_clean_steps(traces: Path, given: str, tmp_path: Path) -> None:
    """Of a folder that holds both, the traces without the observer count."""
    clean = traces / "clean" / given
    done = run("link", traces / "clean", "--durations-from", clean, "--json", "-o", tmp_path / "linked")
    assert done.returncode == 0, done.stderr
    [pair] = json.loads(done.stdout)["pairs"]
    assert pair["n_transplanted"] > 0.9 * pair["n_linked"]
    assert pair["n_inflated"] == pair["n_linked"] - pair["n_transplanted"]
    assert (tmp_path / "linked" / "trace.json.gz").exists()
