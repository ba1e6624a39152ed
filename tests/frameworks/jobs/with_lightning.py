"""Lightning trains a small model on two ranks."""

from __future__ import annotations

import sys

import lightning
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

STEPS, BATCH, WIDTH = int(sys.argv[1]), 8, 16


class Regression(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, 1))

    def training_step(self, batch: list[torch.Tensor], number: int) -> torch.Tensor:
        loss = self.net(batch[0]).square().mean()
        print(f"loss {self.global_rank} {number} {loss.item():.6f}", flush=True)
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.05)


lightning.seed_everything(0)
samples = TensorDataset(torch.randn(2 * STEPS * BATCH, WIDTH))
trainer = lightning.Trainer(
    accelerator="cpu", devices=2, strategy="ddp", max_epochs=1, logger=False, enable_checkpointing=False,
    enable_progress_bar=False, enable_model_summary=False,
)  # fmt: skip
trainer.fit(Regression(), DataLoader(samples, BATCH, shuffle=False))
