"""A real job over a 2 x 2 mesh, recorded with everything: all sources agree with what it really called.

Each source is then left out in turn. What is left gives the same answers, or none.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections import Counter, defaultdict
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import pytest
from launching import JOB_ENVIRONMENT, JOB_LIMIT_S, JOBS

from rankscope.model.tables import Trace
from rankscope.pipeline import load

pytest.importorskip("torch")
pytestmark = pytest.mark.e2e

N_RANKS = 4
FILES = {
    "torch's recorder": ("nccl_trace",),
    "desync": ("rankscope_trace",),
    "recorders": ("nccl_trace", "rankscope_trace"),
    "execution traces": ("torch_et",),
    "profiles": ("kineto",),
    "nothing": (),
}
_CALLS = """
    SELECT c.source, c.rank, f.path, c.op, c.group_name, c.group_ranks, c.generation, c.peer, c.match_id, c.start_ns
    FROM calls AS c JOIN (SELECT file_id, path FROM files) AS f USING (file_id)
    WHERE c.role <> 'batch' ORDER BY c.source, f.path, c.rank, c.row_id
"""


class Called(NamedTuple):
    source: str
    rank: int
    path: str
    op: str
    group_name: str | None
    group_ranks: str | None
    generation: int | None
    peer: int | None
    match_id: int | None
    start_ns: int | None


class Job(NamedTuple):
    traces: Path
    truth: dict[int, list[dict[str, Any]]]
    begins: dict[tuple[str, str], int]  # by source and file: which call of its rank its first one is


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Job:
    """Recorded again where a rank marked other steps than its peers: these tests are about traces of the same steps."""
    for _ in range(3):
        made = recorded_mesh(tmp_path_factory.mktemp("mesh"))
        if len({marked_steps(made.traces, rank) for rank in range(N_RANKS)}) == 1:
            break
    return made


def marked_steps(traces: Path, rank: int) -> tuple[str, ...]:
    files = sorted(traces.rglob(f"torch_et_{rank}.json"))
    return tuple(step for file in files for step in sorted(set(re.findall(r"ProfilerStep#\d+", file.read_text()))))


def recorded_mesh(root: Path) -> Job:
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(N_RANKS)]
    free_port = ["--rdzv-backend", "c10d", "--rdzv-endpoint", "localhost:0"]
    window = ["--wait", "1", "--active", "2", "--clean", "1", "--repeat", "2"]
    what = ["--desync", "--no", "stacks,output", "--no-diagnose"]
    record = [sys.executable, "-m", "rankscope", "record", "-o", str(root / "all"), *what, *window, "--"]
    script = [str(JOBS / "mesh.py"), "--truth", str(root)]
    environment = {**os.environ, **JOB_ENVIRONMENT}
    done = subprocess.run(
        [*record, *torchrun, *free_port, *script],
        env=environment,
        capture_output=True,
        text=True,
        timeout=JOB_LIMIT_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    truth = {rank: keyed(rank, json.loads((root / f"truth_{rank}.json").read_text())) for rank in range(N_RANKS)}
    return Job(root / "all", truth, windows(load(root / "all"), truth))


def keyed(rank: int, calls: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """With the logical call of each: the same on all ranks that take part."""
    count: Counter[tuple[Any, ...]] = Counter()
    for call in calls:
        ends = (rank, call["peer"]) if call["op"] == "send" else (call["peer"], rank)
        key = (call["generation"], call["group"], call["peer"] is not None and ends)
        call["key"] = (*key, count[key])
        count[key] += 1
    return calls


def rows(trace: Trace) -> dict[tuple[str, str], list[Called]]:
    """By source and file, in the order of calls."""
    by_file = defaultdict(list)
    for row in trace.sql(_CALLS).rows():
        call = Called(*row)
        by_file[call.source, "/".join(call.path.split("/")[-2:]).removeprefix("all/")].append(call)
    return by_file


def windows(trace: Trace, truth: dict[int, list[dict[str, Any]]]) -> dict[tuple[str, str], int]:
    """Where the calls of each file begin: at the place with the same operations that is nearest in time."""
    begins = {}
    for key, calls in rows(trace).items():
        made = truth[calls[0].rank]
        names = [call["op"] for call in made]
        ops = [call.op for call in calls]
        places = [place for place in range(len(names) - len(ops) + 1) if names[place : place + len(ops)] == ops]
        assert places, f"{key}: {ops}"
        start = calls[0].start_ns
        assert start is not None
        begins[key] = min(places, key=lambda place: abs(made[place]["time_ns"] - start))
    return begins


def without(job: Job, absent: str) -> Path:
    """The capture less these files."""
    folder = job.traces.parent / absent.replace(" ", "_")
    for path in job.traces.rglob("*"):
        place = folder / path.relative_to(job.traces)
        if path.is_file() and not path.name.startswith(FILES[absent]):
            place.parent.mkdir(parents=True, exist_ok=True)
            place.hardlink_to(path)
    return folder


def thinned(job: Job, seed: int) -> Path:
    """The capture less the files that each source has of some ranks."""
    random = Random(seed)
    sources = sorted({name for names in FILES.values() for name in names})
    absent = {(name, rank) for name in sources for rank in range(N_RANKS) if random.random() < 0.35}
    folder = job.traces.parent / f"thinned_{seed}"
    for path in job.traces.rglob("*"):
        place = folder / path.relative_to(job.traces)
        if path.is_file() and not any(path.name.startswith(name) and f"_{rank}" in path.name for name, rank in absent):
            place.parent.mkdir(parents=True, exist_ok=True)
            place.hardlink_to(path)
    return folder


def compare(job: Job, folder: Path) -> Counter[tuple[str, str]]:
    """How often a source knows each thing; nothing that it knows is wrong."""
    known: Counter[tuple[str, str]] = Counter()
    by_match, by_key = defaultdict(set), defaultdict(set)
    for (source, name), calls in rows(load(folder)).items():
        key = (source, name.removeprefix(folder.name + "/"))
        made = job.truth[calls[0].rank]
        if not any(call.op in ("send", "recv") for call in calls):  # torch's recorder keeps no transfers of gloo
            made = [call for call in made if call["peer"] is None]
        begin = job.begins.get(key, 0)
        for call, true in zip(calls, made[begin:], strict=False):
            is_exact = key in job.begins  # torch records what gloo does: an all_reduce for a reduce_scatter
            assert call.op == true["op"] or not is_exact
            answers = {
                "name": (call.group_name, true["group"]),
                "members": (json.loads(call.group_ranks) if call.group_ranks else None, true["members"]),
                "generation": (call.generation, true["generation"]),
                "peer": (call.peer, true["peer"]),
            }
            for what, (answer, truth) in answers.items():
                assert answer in (None, truth), (source, name, what, call, true)
                known[source, what] += answer is not None
            known[source, "calls"] += 1
            known[source, "peers"] += true["peer"] is not None
            known[source, "match"] += call.match_id is not None
            if call.match_id is not None:
                by_match[call.match_id].add(true["key"])
                by_key[true["key"]].add(call.match_id)
    assert all(len(keys) == 1 for keys in by_match.values())
    assert all(len(matches) == 1 for matches in by_key.values())
    return known


def assert_all_known(known: Counter[tuple[str, str]], *sources: str) -> None:
    for source in sources:
        assert known[source, "calls"] > 0
        for what in ("name", "members", "generation", "match"):
            assert known[source, what] == known[source, "calls"], (source, what)
        assert known[source, "peer"] == known[source, "peers"], source


def test_all_sources_agree_with_what_was_called(job: Job) -> None:
    known = compare(job, without(job, "nothing"))
    assert_all_known(known, "flight_recorder", "kineto", "execution_trace")
    assert known["flight_recorder", "calls"] == sum(map(len, job.truth.values()))


@pytest.mark.parametrize("absent", ["torch's recorder", "execution traces"])
def test_without_a_source_that_knows_nothing_alone_all_is_known(job: Job, absent: str) -> None:
    known = compare(job, without(job, absent))
    left = {source for source, _ in known}
    assert left == {"flight_recorder", "kineto"} | ({"execution_trace"} if absent != "execution traces" else set())
    assert_all_known(known, *left)


def test_without_our_own_recorder_the_transfers_are_unknown(job: Job) -> None:
    known = compare(job, without(job, "desync"))
    for source in ("kineto", "execution_trace"):
        n_collectives = known[source, "calls"] - known[source, "peers"]
        assert known[source, "members"] == known[source, "generation"] == known[source, "match"] == n_collectives
        assert known[source, "peer"] == 0


def test_without_profiles_the_order_of_calls_shows_groups_and_peers(job: Job) -> None:
    """But not which of several equal steps it was, thus neither generation nor match."""
    known = compare(job, without(job, "profiles"))
    source = "execution_trace"
    assert known[source, "members"] == known[source, "calls"] > 0
    assert known[source, "peer"] == known[source, "peers"] > 0
    assert known[source, "match"] == 0


def test_without_recorders_nothing_is_guessed(job: Job) -> None:
    known = compare(job, without(job, "recorders"))
    for source in ("kineto", "execution_trace"):
        assert known[source, "calls"] > 0
        assert all(known[source, what] == 0 for what in ("name", "members", "peer", "match"))


@pytest.mark.parametrize("seed", [2, 3, 4])
def test_what_is_left_of_some_ranks_is_right_or_unknown(job: Job, seed: int) -> None:
    known = compare(job, thinned(job, seed))
    assert known["flight_recorder", "match"] == known["flight_recorder", "calls"] > 0
    assert 0 < known["kineto", "match"] <= known["kineto", "calls"]


def test_chakra_files_have_the_right_groups_and_peers(job: Job, tmp_path: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "rankscope",
        "export",
        str(job.traces),
        "--to",
        "chakra",
        "-o",
        str(tmp_path / "c"),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=JOB_LIMIT_S, check=False)
    assert done.returncode == 0, done.stderr
    assert "written as computation" not in done.stdout + done.stderr
    # The replay needs all members of a collective and both ends of a transfer at the same time.
    check = [sys.executable, "-m", "rankscope", "chakra", "validate", str(tmp_path / "c")]
    done = subprocess.run(check, capture_output=True, text=True, timeout=JOB_LIMIT_S, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
