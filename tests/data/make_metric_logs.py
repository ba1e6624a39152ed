"""Writes logs of training numbers of other tools: `python tests/data/make_metric_logs.py`.

They go into tests/data/tensorboard, wandb and metric_log. Equal code gives equal bytes.
"""

from __future__ import annotations

import gzip
from pathlib import Path

from read.collected_files import START_NS
from read.metric_files import csv_log, json_log, tfevents, wandb_history, wandb_log, wandb_stats

DATA = Path(__file__).parent
N_STEPS = 6


def losses() -> list[tuple[int, dict[str, float]]]:
    return [(step, {"train/loss": 2.0 / (step + 1), "lr": 0.1}) for step in range(N_STEPS)]


def packed(content: bytes) -> bytes:
    return gzip.compress(content, mtime=0)


def make_tensorboard() -> dict[str, bytes]:
    return {
        "events.out.tfevents.1763294400.gpu-1.rank_0": tfevents(losses()),
        "events.out.tfevents.1763294400.gpu-1.rank_1.gz": packed(tfevents(losses(), as_tensors=True)),
    }


def make_wandb() -> dict[str, bytes]:
    records = [wandb_history(step, {**told, "note": "text"}) for step, told in losses()]
    large = wandb_history(N_STEPS, {"table": "x" * 40_000, "train/loss": 0.25})
    return {
        "run-abc.rank_0.wandb": wandb_log([*records, wandb_stats(3, {"gpu.0.gpu": 91.0})]),
        "run-def.rank_1.wandb.gz": packed(wandb_log([*records, large])),
    }


def make_metric_logs() -> dict[str, bytes]:
    rows = [{"epoch": 0, "step": step, **told} for step, told in losses()]
    timed = [{"timestamp": (START_NS + step * 10**9) / 1e9, "step": step, **told} for step, told in losses()]
    return {
        "log_rank_0.csv": csv_log([*rows, {"epoch": 0, "val_loss": 0.5}]).encode(),
        "log_rank_1.jsonl": json_log(timed).encode(),
        "log_rank_2.csv.gz": packed(csv_log(rows, "\t").encode()),
    }


def main() -> None:
    made = {"tensorboard": make_tensorboard(), "wandb": make_wandb(), "metric_log": make_metric_logs()}
    for folder, contents in made.items():
        (DATA / folder).mkdir(exist_ok=True)
        for name, content in contents.items():
            (DATA / folder / name).write_bytes(content)


if __name__ == "__main__":
    main()
