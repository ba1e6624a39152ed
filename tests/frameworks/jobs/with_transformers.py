"""The Trainer of transformers trains a small model on two ranks."""

from __future__ import annotations

import os
import sys
import tempfile
from typing import Any

import torch
from torch import nn
from torch.utils.data import Dataset
from transformers import Trainer, TrainerCallback, TrainingArguments

STEPS, BATCH, WIDTH = int(sys.argv[1]), 8, 16


class Samples(Dataset[dict[str, torch.Tensor]]):
    def __init__(self) -> None:
        torch.manual_seed(0)
        self.values = torch.randn(2 * STEPS * BATCH, WIDTH)

    def __len__(self) -> int:
        return len(self.values)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {"values": self.values[index]}


class Regression(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.net = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, 1))

    def forward(self, values: torch.Tensor) -> dict[str, torch.Tensor]:
        loss = self.net(values).square().mean()
        return {"loss": loss}


class Telling(TrainerCallback):  # type: ignore[misc]
    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **more: Any) -> None:
        if "loss" in logs:
            print(f"loss {os.environ['RANK']} {state.global_step} {float(logs['loss']):.6f}", flush=True)


with tempfile.TemporaryDirectory() as folder:
    arguments = TrainingArguments(
        output_dir=folder, use_cpu=True, ddp_backend="gloo", max_steps=STEPS, per_device_train_batch_size=BATCH,
        logging_steps=5, save_strategy="no", report_to="none", disable_tqdm=True, seed=0,
    )  # fmt: skip
    Trainer(Regression(), arguments, train_dataset=Samples(), callbacks=[Telling()]).train()
