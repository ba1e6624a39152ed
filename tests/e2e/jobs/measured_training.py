"""Jobs of a few steps, whose metrics the collector records; each prints what it knows itself."""

from __future__ import annotations

import gc
import json
import sys
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.nn.utils import clip_grad_norm_
from torch.utils.data import DataLoader, TensorDataset

import rankscope

NOTHING: dict[str, Any] = dict.fromkeys(("execution_trace", "kineto", "recorder", "stacks", "compile_log"), False)
N_SAMPLES, BATCH = 10, 4


def batches() -> DataLoader[Any]:
    return DataLoader(TensorDataset(torch.randn(N_SAMPLES, 8)), batch_size=BATCH)


def losses(loss: Callable[[torch.Tensor], torch.Tensor], n_epochs: int) -> Iterator[torch.Tensor]:
    for _ in range(n_epochs):
        for (batch,) in batches():
            yield loss(batch)


def trains() -> dict[str, list[float]]:
    """Clips by a function that was imported before; evaluates between epochs; the rate falls."""
    model = torch.nn.Linear(8, 8)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
    known: dict[str, list[float]] = {"loss": [], "grad_norm": [], "learning_rate": []}
    for _ in range(2):
        for (batch,) in batches():
            optimizer.zero_grad()
            loss = model(batch).square().mean()
            loss.backward()
            known["grad_norm"].append(float(clip_grad_norm_(model.parameters(), 1.0)))
            known["loss"].append(float(loss.detach()))
            known["learning_rate"].append(optimizer.param_groups[0]["lr"])
            optimizer.step()
            schedule.step()
        gc.collect()
        for (batch,) in batches():  # as long as gradients are on nobody can tell it from training
            model(batch)
    return known


def scales() -> dict[str, list[float]]:
    """Mixed precision: what is passed to backward is 1024 times the loss, and divided once more."""
    model = torch.nn.Linear(8, 8)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    known: dict[str, list[float]] = {"loss": []}
    for loss in losses(lambda batch: model(batch).square().mean(), 2):
        optimizer.zero_grad()
        (scaler.scale(loss) / 2).backward()
        known["loss"].append(float(loss.detach()))
        scaler.step(optimizer)
        scaler.update()
    return known


def compiles() -> dict[str, list[float]]:
    """Hooks neither break graphs nor are compiled; what is compiled into a graph is not seen."""
    model = torch.nn.Linear(8, 8)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    forward = torch.compile(lambda batch: model(batch).square().mean(), backend="eager", fullgraph=True)
    clip = torch.compile(lambda parameters: clip_grad_norm_(parameters, 1.0), backend="eager", fullgraph=True)
    known: dict[str, list[float]] = {"loss": []}

    @torch.compile(backend="eager")
    def step(batch: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss = forward(batch)
        loss.backward()
        return loss

    for _ in range(2):
        for (batch,) in batches():
            known["loss"].append(float(step(batch).detach()))
            clip(list(model.parameters()))
            optimizer.step()
    breaks = " ".join(torch._dynamo.utils.counters["graph_break"])
    known["own_breaks"] = [breaks.count("rankscope")]
    return known


def patches() -> dict[str, list[float]]:
    """The job wraps what we have wrapped, and what it was given keeps working when the collector has gone."""
    backward = torch.autograd.backward
    n_calls = []

    def counted(*arguments: Any, **options: Any) -> None:
        n_calls.append(1)
        backward(*arguments, **options)

    torch.autograd.backward = counted
    known = trains()
    known["n_calls"] = [len(n_calls)]
    return known


def holds_nothing() -> dict[str, list[float]]:
    """A graph is gone as soon as the job lets it go."""
    import weakref

    weight = torch.ones(4, requires_grad=True)
    optimizer = torch.optim.SGD([weight], lr=0.1)
    alive = []
    for _ in range(4):
        loss = (weight * 2).sum()
        node = weakref.ref(loss)
        loss.backward()
        optimizer.step()
        del loss
        alive.append(float(node() is not None))
    return {"alive": alive}


CASES = {case.__name__: case for case in (trains, scales, compiles, patches, holds_nothing)}

if __name__ == "__main__":
    case, folder = sys.argv[1:]
    torch.manual_seed(0)
    before = (torch.autograd.backward, torch.nn.utils.clip_grad._clip_grads_with_norm_, torch.amp.GradScaler.scale)
    with rankscope.collect(folder, **NOTHING):
        told = CASES[case]()
    after = (torch.autograd.backward, torch.nn.utils.clip_grad._clip_grads_with_norm_, torch.amp.GradScaler.scale)
    one = torch.ones(1, requires_grad=True)
    one.sum().backward()
    told["restored"] = [float(old is new) for old, new in zip(before, after, strict=True)]
    told["n_callbacks"] = [float(len(gc.callbacks))]
    print(json.dumps(told))
