"""`rankscope record` with real torch jobs: each way to start one, and each way in which it may end."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from launching import JOB_ENVIRONMENT, JOB_LIMIT_S, JOBS

import rankscope

pytest.importorskip("torch")
pytestmark = pytest.mark.e2e

SOURCE = Path(rankscope.__path__[0]).parent
ROOT = Path(__file__).resolve().parents[2]
JOB = str(JOBS / "recorded.py")
TORCHRUN = os.path.join(os.path.dirname(sys.executable), "torchrun")
FREE_PORT = ("--rdzv-backend", "c10d", "--rdzv-endpoint", "localhost:0")
QUICK = ("--no-diagnose", "--only", "metrics,stacks")


class Recorded(NamedTuple):
    code: int
    out: str
    err: str


def start(*arguments: str, env: Mapping[str, str] | None = None, cwd: Path | None = None) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "rankscope", "record", *arguments],
        env={**os.environ, "PYTHONPATH": str(SOURCE), **JOB_ENVIRONMENT, **(env or {})},
        cwd=cwd,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def end(process: subprocess.Popen[str], given: str = "") -> Recorded:
    try:
        out, err = process.communicate(given, timeout=JOB_LIMIT_S)
    except subprocess.TimeoutExpired:
        process.terminate()
        out, err = process.communicate(timeout=60)
    print(out, err, sep="\n")  # a failing test shows it
    return Recorded(process.returncode, out, err)


def manifest_of(folder: Path) -> dict[str, Any]:
    manifest: dict[str, Any] = json.loads((folder / "manifest.json").read_text())
    return manifest


def ranks_of(folder: Path) -> list[tuple[int, int]]:
    return [(rank["rank"], rank["world_size"]) for rank in manifest_of(folder)["ranks"]]


def names_in(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir() if path.is_file()}


def test_a_script(tmp_path: Path) -> None:
    folder = tmp_path / "t"
    done = end(start("-o", str(folder), "--", sys.executable, JOB, "--reads"), "some input\n")
    assert (done.code, done.out) == (0, "read 'some input\\n'\n")
    files = {"torch_et_0.json", "kineto_trace_0.json", "kineto_clean_0.json", "metrics_0.jsonl", "host_0.jsonl"}
    (printed,) = folder.glob("output_host_*")
    assert names_in(folder) == {*files, printed.name, "manifest.json", "run.json"}
    assert "read 'some input\\n'\n" in printed.read_text()
    manifest = manifest_of(folder)
    assert manifest["run"]["exit_code"] == 0
    assert manifest["run"]["command"] == [sys.executable, JOB, "--reads"]
    (rank,) = manifest["ranks"]
    assert {got["file"] for got in rank["got"]} == files
    assert (rank["n_steps"], rank["problems"]) == (13, [])
    assert "rankscope:   execution trace  1 rank, 1 file" in done.err
    assert "Next: rankscope " in done.err  # the diagnosis


def test_torchrun_as_the_readme_has_it(tmp_path: Path) -> None:
    (line,) = re.findall(r"`rankscope record (.+?)`", (ROOT / "README.md").read_text(encoding="utf-8"))
    assert line == "-o traces/ -- torchrun --nproc-per-node 2 train.py"
    folder = tmp_path / "traces"
    job = ("--", TORCHRUN, *FREE_PORT, "--nproc-per-node", "2", JOB)
    done = end(start("-o", "traces/", "--no-diagnose", "--only", "metrics,recorder,kineto", *job, cwd=tmp_path))
    assert done.code == 0
    assert ranks_of(folder) == [(0, 2), (1, 2)]
    kinds = ("kineto_trace_{}.json", "metrics_{}.jsonl", "nccl_trace_rank_{}")
    assert {kind.format(rank) for kind in kinds for rank in (0, 1)} <= names_in(folder)
    assert "  recorder  2 ranks, 2 files" in done.err
    assert "deprecated" not in done.err  # of the variables that were set


def test_a_shell_script_whose_ranks_fail_and_are_restarted(tmp_path: Path) -> None:
    script = tmp_path / "run.sh"
    torchrun = [sys.executable, "-m", "torch.distributed.run", *FREE_PORT, "--nproc-per-node=1", "--max-restarts=1"]
    script.write_text(f"#!/bin/sh\n{' '.join(torchrun)} {JOB} --fails-on 0\nexit $((40 + $?))\n")
    script.chmod(0o755)
    folder = tmp_path / "t"
    done = end(start("-o", str(folder), *QUICK, "--", str(script)))
    assert done.code == 41
    assert ranks_of(folder) == ranks_of(folder / "attempt_1") == [(0, 1)]
    for place in (folder, folder / "attempt_1"):
        assert {"stacks_0.txt", "metrics_0.jsonl"} <= names_in(place)
    assert "ranks were started 2 times" in done.err


def test_two_nodes_write_into_one_folder(tmp_path: Path) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    rendezvous = ("--rdzv-backend", "c10d", "--rdzv-endpoint", f"127.0.0.1:{port}", "--rdzv-id", "7", "--nnodes", "2")
    job = ("--", TORCHRUN, *rendezvous, "--local-addr", "127.0.0.1", "--nproc-per-node", "1", JOB)
    nodes = [start("-o", str(tmp_path / "t"), *QUICK, *job) for _ in range(2)]
    assert [end(node).code for node in nodes] == [0, 0]
    assert ranks_of(tmp_path / "t") == [(0, 2), (1, 2)]
    assert names_in(tmp_path / "t") >= {"metrics_0.jsonl", "metrics_1.jsonl"}
    assert [path.name for path in tmp_path.joinpath("t").glob("run_*")] == []


def test_spawned_workers(tmp_path: Path) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    job = ("--", sys.executable, JOB, "--spawns", "2")
    done = end(start("-o", str(tmp_path / "t"), *QUICK, *job, env={"MASTER_PORT": port}))
    assert done.code == 0
    assert ranks_of(tmp_path / "t") == [(0, 2), (1, 2)]
    assert all(rank["ended_ns"] for rank in manifest_of(tmp_path / "t")["ranks"])
    assert names_in(tmp_path / "t") >= {"metrics_0.jsonl", "metrics_1.jsonl"}


def test_a_module_with_a_sitecustomize_of_its_own_that_fails(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("import os; os.environ['SEEN'] = 'own'")
    paths = os.pathsep.join([str(tmp_path), str(SOURCE)])
    job = ("--", "sh", "-c", f"{sys.executable} -m recorded --fails-on 0; echo $?; exit 5")
    done = end(start("-o", str(tmp_path / "t"), *QUICK, *job, env={"PYTHONPATH": paths}, cwd=JOBS))
    assert (done.code, done.out) == (5, "1\n")
    assert done.err.count("RuntimeError: this rank fails") == 1
    assert ranks_of(tmp_path / "t") == [(0, 1)]
    assert names_in(tmp_path / "t") >= {"stacks_0.txt", "metrics_0.jsonl"}


def test_logs_go_to_a_file_and_leave_the_jobs_own_alone(tmp_path: Path) -> None:
    asked = ("--no-diagnose", "--only", "compile-log", "--logs", "recompiles")
    job = ("--", sys.executable, JOB, "--compiles")
    done = end(start("-o", str(tmp_path / "t"), *asked, *job, env={"TORCH_LOGS": "graph_breaks"}))
    assert done.code == 0
    logged = (tmp_path / "t" / "torch_logs_0.txt").read_text()
    assert "[__recompiles]" in logged
    assert "[__graph_breaks]" not in logged
    assert "[__graph_breaks]" in done.err
    assert "[__recompiles]" not in done.err
    got = {record["what"]: record["file"] for record in manifest_of(tmp_path / "t")["ranks"][0]["got"]}
    assert got["torch_logs"] == "torch_logs_0.txt"
    assert (tmp_path / "t" / got["compile_log"]).read_text().startswith("V")
    assert got["compile_log"].startswith("torch_trace/dedicated_log_torch_trace_")


def test_a_python_that_ignores_the_environment(tmp_path: Path) -> None:
    done = end(start("-o", str(tmp_path / "t"), "--", sys.executable, "-E", "-c", "print('fine')"))
    assert (done.code, done.out) == (0, "fine\n")
    assert "nothing was collected" in done.err
    assert "-E" in done.err


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signals_end_the_job_and_what_it_wrote_is_kept(number: signal.Signals, tmp_path: Path) -> None:
    process = start("-o", str(tmp_path / "t"), *QUICK, "--", sys.executable, JOB, "--sleeps")
    assert process.stdout
    assert process.stdout.readline() == "ready\n"
    process.send_signal(number)
    done = end(process)
    # torch ends with 1 after an interrupt, also without anybody who watches it
    code = 1 if number == signal.SIGINT else 128 + number
    assert done.code == code
    assert done.err.count("KeyboardInterrupt") == (number == signal.SIGINT)
    (rank,) = manifest_of(tmp_path / "t")["ranks"]
    assert rank["ended_ns"] is not None
    assert len((tmp_path / "t" / "metrics_0.jsonl").read_text().splitlines()) > 10
    assert manifest_of(tmp_path / "t")["run"]["exit_code"] == code
