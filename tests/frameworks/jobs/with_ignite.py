"""ignite trains a small model on two ranks, and evaluates it in between."""

from __future__ import annotations

import sys
from typing import Any

import ignite.distributed as idist
import torch
from ignite.engine import Engine, Events, create_supervised_evaluator
from ignite.metrics import MeanSquaredError
from torch import nn

STEPS, BATCH, WIDTH = int(sys.argv[1]), 8, 16


def train(rank: int) -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, 1))
    model = idist.auto_model(net)
    optimizer = idist.auto_optim(torch.optim.SGD(model.parameters(), lr=0.05))
    torch.manual_seed(rank)
    batches = [(torch.randn(BATCH, WIDTH), torch.zeros(BATCH, 1)) for _ in range(STEPS)]

    def step(engine: Engine, batch: Any) -> float:
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(batch[0]), batch[1])
        loss.backward()
        optimizer.step()
        print(f"loss {rank} {engine.state.iteration} {loss.item():.6f}", flush=True)
        return loss.item()

    trainer = Engine(step)
    evaluator = create_supervised_evaluator(model, {"error": MeanSquaredError()})
    trainer.add_event_handler(Events.ITERATION_COMPLETED(every=10), lambda: evaluator.run(batches[:2]))
    trainer.run(batches, max_epochs=1)


with idist.Parallel(backend="gloo") as parallel:
    parallel.run(train)
