"""One process that collects from itself, by the few lines that its user has added."""

from __future__ import annotations

import sys

import torch

import rankscope

N_STEPS = 6


def main() -> None:
    model = torch.nn.Linear(8, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with rankscope.collect(sys.argv[1], wait=0, warmup=1, active=2, clean=1) as run:
        for _ in range(N_STEPS):
            optimizer.zero_grad()
            loss = model(torch.randn(16, 8)).square().mean()
            loss.backward()
            optimizer.step()
            rankscope.metric("loss", loss.detach())
            run.step(samples=16)
    print(f"wrote into {run.folder}")


if __name__ == "__main__":
    main()
