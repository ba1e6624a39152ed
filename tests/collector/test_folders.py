from __future__ import annotations

import json
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from rankscope.collect import manifest
from rankscope.collect.launching import folders


def test_a_new_folder_is_made_and_claimed(tmp_path: Path) -> None:
    base = tmp_path / "a" / "traces"
    assert folders.claim(base, "1") == base
    assert json.loads((base / folders.NAME).read_text())["id"] == "1"
    assert os.listdir(base) == [folders.NAME]


def test_an_earlier_run_is_left_alone(tmp_path: Path) -> None:
    assert folders.claim(tmp_path, "1") == tmp_path
    assert folders.claim(tmp_path, "2") == tmp_path / "run_2"
    assert folders.claim(tmp_path, "3") == tmp_path / "run_3"


def test_the_same_run_joins(tmp_path: Path) -> None:
    folders.claim(tmp_path, "1")
    second = folders.claim(tmp_path, "2")
    assert folders.claim(tmp_path, "1") == tmp_path
    assert folders.claim(tmp_path, "2") == second


def test_a_run_that_is_over_is_not_joined(tmp_path: Path) -> None:
    """A job may be started again with the same rendezvous."""
    folders.claim(tmp_path, "1")
    manifest.write_whole(tmp_path, {"id": "1", "ended_ns": None})
    assert folders.claim(tmp_path, "1") == tmp_path
    manifest.write_whole(tmp_path, {"id": "1", "ended_ns": 5})
    assert folders.claim(tmp_path, "1") == tmp_path / "run_2"


@pytest.mark.parametrize("name", ["nccl_trace_rank_0", "kineto_trace_3.json.gz", "manifest.json", "torch_trace"])
def test_traces_of_somebody_else_are_an_earlier_run(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text("x")
    assert folders.claim(tmp_path, "1") == tmp_path / "run_2"


def test_other_files_do_no_harm(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("x")
    (tmp_path / "metrics_of_mine.csv").write_text("x")
    assert folders.claim(tmp_path, "1") == tmp_path


def test_all_who_come_at_once_agree(tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        chosen = list(pool.map(lambda number: (number % 4, folders.claim(tmp_path, str(number % 4))), range(32)))
    by_run = {run: {folder for other, folder in chosen if other == run} for run, _ in chosen}
    assert all(len(places) == 1 for places in by_run.values())
    assert len(set.union(*by_run.values())) == 4


def test_a_file_system_without_hard_links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError("no links here")

    monkeypatch.setattr(os, "link", refuse)
    assert folders.claim(tmp_path, "1") == tmp_path
    assert folders.claim(tmp_path, "1") == tmp_path
    assert folders.claim(tmp_path, "2") == tmp_path / "run_2"


def test_a_rank_that_comes_again_gets_a_place_of_its_own(tmp_path: Path) -> None:
    assert folders.claim_rank(tmp_path, 0) == tmp_path
    assert folders.claim_rank(tmp_path, 1) == tmp_path
    assert folders.claim_rank(tmp_path, 0) == tmp_path / "attempt_1"
    assert folders.claim_rank(tmp_path, 0, attempt=1) == tmp_path / "attempt_2"
    assert folders.claim_rank(tmp_path, 1, attempt=1) == tmp_path / "attempt_1"
    assert [place.name for place in folders.places(tmp_path)[1:]] == ["attempt_1", "attempt_2"]


def test_attempts_are_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    for number in (10, 2):
        (tmp_path / f"attempt_{number}").mkdir()
    assert [place.name for place in folders.places(tmp_path)[1:]] == ["attempt_2", "attempt_10"]


def test_launchers_of_several_nodes_agree() -> None:
    def run_id(*options: str) -> str:
        return folders.launcher_run_id(["torchrun", *options, "train.py"], {})

    two = ("--nnodes=2", "--rdzv-id", "7", "--rdzv_endpoint=h:1")
    assert run_id(*two) == run_id("--nnodes", "2", "--rdzv_id=7", "--rdzv-endpoint", "h:1") == "rdzv-7@h:1"
    assert run_id("--nnodes", "1:4", "--master-addr", "h", "--master_port=5") == "rdzv-none@h:5"
    assert run_id("--nnodes", "1") != run_id("--nnodes", "1")
    assert run_id("--nnodes", "1:1") != run_id("--nnodes", "1:1")
    assert run_id() != run_id()


def test_tasks_of_a_slurm_step_agree() -> None:
    step = {"SLURM_JOB_ID": "5", "SLURM_STEP_ID": "1", "SLURM_STEP_NUM_TASKS": "2"}
    assert folders.launcher_run_id(["python"], step) == folders.job_run_id(step) == "slurm-5-1-0"
    alone = {**step, "SLURM_STEP_NUM_TASKS": "1"}
    assert folders.launcher_run_id(["python"], alone) != folders.launcher_run_id(["python"], alone)


def test_ranks_of_one_job_agree() -> None:
    assert folders.job_run_id({"RANK": "0"}) == folders.job_run_id({"RANK": "1"})
    nodes = {"GROUP_WORLD_SIZE": "2", "TORCHELASTIC_RUN_ID": "9", "RANK": "0"}
    assert folders.job_run_id(nodes) == "rdzv-9@"
    assert folders.job_run_id({}) != folders.job_run_id({})


def test_restarts_are_counted_by_torchrun() -> None:
    assert folders.restart_count({}) == 0
    assert folders.restart_count({"TORCHELASTIC_RESTART_COUNT": "2"}) == 2
