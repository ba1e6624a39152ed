"""Loops of every kind, each with another sign by which its steps can be found. They know nothing of the collector."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile, record_function, schedule

N_STEPS = 16


def main() -> None:
    case, *more = sys.argv[1:]
    torch.manual_seed(0)
    print(f"{case}: {CASES[case](*more):.6f}", flush=True)


def small_model() -> torch.nn.Module:
    return torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 8))


def loss_of(model: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
    return torch.nn.MSELoss()(model(torch.randn(4, 8)), torch.zeros(4, 8))


def trains(n_steps: str = str(N_STEPS)) -> float:
    model = small_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return train(model, optimizer, int(n_steps))


def train(model: torch.nn.Module, optimizer: Any, n_steps: int = N_STEPS) -> float:
    loss = torch.zeros(1)
    for _ in range(n_steps):
        optimizer.zero_grad()
        loss = loss_of(model)
        loss.backward()
        optimizer.step()
    return loss.item()


class OwnOptimizer:
    """Not one of torch's."""

    def __init__(self, parameters: Iterable[torch.Tensor]) -> None:
        self._parameters = list(parameters)

    def zero_grad(self) -> None:
        for parameter in self._parameters:
            parameter.grad = None

    @torch.no_grad()
    def step(self) -> None:
        for parameter in self._parameters:
            parameter -= 0.1 * parameter.grad


def trains_by_itself() -> float:
    model = small_model()
    return train(model, OwnOptimizer(model.parameters()))


def accumulates() -> float:
    """Four micro-batches per step."""
    model = small_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loss = torch.zeros(1)
    for number in range(4 * N_STEPS):
        loss = loss_of(model)
        loss.backward()
        if number % 4 == 3:
            optimizer.step()
            optimizer.zero_grad()
    return loss.item()


def plays_against_itself() -> float:
    """Two models, two optimizers; the second one steps twice for each step of the first."""
    generator, critic = small_model(), small_model()
    of_generator = torch.optim.Adam(generator.parameters())
    of_critic = torch.optim.Adam(critic.parameters())
    loss = torch.zeros(1)
    for _ in range(N_STEPS):
        of_generator.zero_grad()
        critic(generator(torch.randn(4, 8))).mean().backward()
        of_generator.step()
        for _ in range(2):
            of_critic.zero_grad()
            loss = (critic(torch.randn(4, 8)) - critic(generator(torch.randn(4, 8)).detach())).mean()
            loss.backward()
            of_critic.step()
    return loss.item()


def has_several_optimizers() -> float:
    model = small_model()
    optimizers = [torch.optim.SGD(part.parameters(), lr=0.1) for part in (model[0], model[2])]
    loss = torch.zeros(1)
    for _ in range(N_STEPS):
        loss = loss_of(model)
        loss.backward()
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
    return loss.item()


@torch.inference_mode()
def infers() -> float:
    """A model and what it is judged by; batches come from nowhere."""
    model = small_model().eval()
    return sum(loss_of(model).item() for _ in range(N_STEPS))


@torch.no_grad()
def evaluates() -> float:
    """With a loader, whose dataset calls a module of its own for each sample."""
    model = small_model().eval()
    normalize = torch.nn.LayerNorm(8, elementwise_affine=False)
    samples = [normalize(torch.randn(8)) for _ in range(2 * N_STEPS)]
    loader = torch.utils.data.DataLoader(samples, batch_size=2)  # type: ignore[arg-type]
    return sum(model(normalize(batch)).sum().item() for batch in loader)


def evaluates_before_it_trains() -> float:
    """An evaluation that is long enough to be recorded, before there is an optimizer."""
    model = small_model()
    with torch.no_grad():
        total = sum(loss_of(model).item() for _ in range(N_STEPS))
    return total + train(model, torch.optim.SGD(model.parameters(), lr=0.1))


def only_loads() -> float:
    """No module: each batch is summed up."""
    loader = torch.utils.data.DataLoader(list(torch.randn(2 * N_STEPS, 8)), batch_size=2)  # type: ignore[arg-type]
    return sum((batch @ batch.T).sum().item() for batch in loader)


def compiles_its_optimizer() -> float:
    model = small_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    step = torch.compile(optimizer.step, backend="eager")
    loss = torch.zeros(1)
    for _ in range(2 * N_STEPS):
        optimizer.zero_grad()
        loss = loss_of(model)
        loss.backward()
        step()
    return loss.item()


def compiles_its_model() -> float:
    model = torch.compile(small_model().eval(), backend="eager")
    with torch.no_grad():
        return sum(loss_of(model).item() for _ in range(N_STEPS))


def profiles_itself() -> float:
    """Its own profiler has steps 3 and 4; then it goes on without."""
    model = small_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    seen: list[int] = []
    profiler = profile(
        activities=[ProfilerActivity.CPU],
        schedule=schedule(wait=1, warmup=1, active=2, repeat=1),
        on_trace_ready=lambda ready: seen.append(sum(event.name == "aten::linear" for event in ready.events())),
    )
    profiler.start()
    loss = torch.zeros(1)
    for number in range(N_STEPS + 6):
        optimizer.zero_grad()
        loss = loss_of(model)
        loss.backward()
        optimizer.step()
        if number < 5:
            profiler.step()
        elif number == 5:
            profiler.stop()
    print("its own profiler saw", seen)
    return loss.item()


def names_its_ranges() -> float:
    """Ranges of its own, also around the optimizer, and a profiler that is long at rest but goes on to count."""
    model = small_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loss = torch.zeros(1)
    at_first = schedule(wait=0, warmup=1, active=1, repeat=1)
    with profile(activities=[ProfilerActivity.CPU], schedule=at_first) as profiler:
        for number in range(N_STEPS):
            with record_function("forward and backward"):
                loss = loss_of(model)
                loss.backward()
            with record_function("## update ##"), record_function(f"of batch {number}"):
                optimizer.step()
                optimizer.zero_grad()
            profiler.step()
    return loss.item()


CASES: dict[str, Callable[..., float]] = {
    function.__name__: function
    for function in (
        trains,
        trains_by_itself,
        accumulates,
        plays_against_itself,
        has_several_optimizers,
        infers,
        evaluates,
        evaluates_before_it_trains,
        only_loads,
        compiles_its_optimizer,
        compiles_its_model,
        profiles_itself,
        names_its_ranges,
    )
}

if __name__ == "__main__":
    main()
