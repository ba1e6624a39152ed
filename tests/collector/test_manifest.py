"""The manifest tells what matters of a job, and none of its secrets."""

from __future__ import annotations

import json
from pathlib import Path

from rankscope.collect import manifest


def test_secrets_are_left_out_of_the_environment() -> None:
    environment = {
        "NCCL_DEBUG": "INFO",
        "MASTER_ADDR": "10.0.0.1",
        "RANK": "3",
        "TORCH_API_TOKEN": "hidden",
        "SLURM_JOB_ID": "7",
        "AWS_SECRET_ACCESS_KEY": "hidden",
        "HOME": "/home/me",
        "TORCH_HOME": "s3://me:hidden@bucket/x",
    }
    told = manifest.telling_environment(environment)
    assert told == {
        "NCCL_DEBUG": "INFO",
        "MASTER_ADDR": "10.0.0.1",
        "RANK": "3",
        "SLURM_JOB_ID": "7",
        "TORCH_HOME": "s3://bucket/x",
    }


def test_secrets_are_left_out_of_the_command() -> None:
    command = [
        "python",
        "train.py",
        "--api-key",
        "hidden",
        "--lr",
        "3",
        "--wandb_token=hidden",
        "https://me:hidden@h/x",
    ]
    assert manifest.telling_command(command) == [
        *("python", "train.py", "--api-key", "(hidden)", "--lr", "3", "--wandb_token=(hidden)", "https://h/x")
    ]


def test_the_whole_is_made_of_the_parts_in_order_of_rank(tmp_path: Path) -> None:
    for rank in (10, 2):
        manifest.write_part(tmp_path, rank, {"rank": rank})
        manifest.write_whole(tmp_path)
    (tmp_path / manifest.PARTS / "rank_3.json").write_text("{ cut", encoding="utf-8")
    manifest.write_whole(tmp_path, {"id": "x", "exit_code": 1})
    manifest.write_whole(tmp_path)  # a rank that ends later does not know what the launcher knew
    whole = json.loads((tmp_path / manifest.NAME).read_text())
    assert whole["schema"] == "rankscope.manifest/1"
    assert [part["rank"] for part in whole["ranks"]] == [2, 10]
    assert whole["run"] == {"id": "x", "exit_code": 1}
    assert not list(tmp_path.rglob("*.partial"))
