"""accelerate trains a small model on two ranks, with gradients that are summed over two batches."""

from __future__ import annotations

import sys

import torch
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

STEPS, BATCH, WIDTH = int(sys.argv[1]), 8, 16

torch.manual_seed(0)
accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
net = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, 1))
samples = TensorDataset(torch.randn(2 * 2 * STEPS * BATCH, WIDTH))
model, optimizer, batches = accelerator.prepare(
    net, torch.optim.SGD(net.parameters(), lr=0.05), DataLoader(samples, BATCH)
)
for number, (batch,) in enumerate(batches):
    with accelerator.accumulate(model):
        loss = model(batch).square().mean()
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
    print(f"loss {accelerator.process_index} {number} {loss.item():.6f}", flush=True)
accelerator.end_training()
