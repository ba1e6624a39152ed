"""Training steps are found by themselves: each once, and never inside of the optimizer's own range."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from rankscope.collect.profile import steps
from rankscope.collect.profile.signs import Optimizers
from rankscope.collect.profile.steps import _N_UNTIL_REPLACED, Finder


class Optimizer:
    """As torch's: the hook is called with the keywords of a call that is about to return."""

    def __init__(self, finder: Finder) -> None:
        self.sign = Optimizers(finder)

    def step(self, **keywords: Any) -> None:
        self.sign.stepped(self, keywords)


class Counter:
    def __init__(self) -> None:
        self.n_steps = 0
        self.signs: list[str] = []

    def __call__(self, sign: str, n_ended: int) -> None:
        self.n_steps += n_ended
        if sign not in self.signs:
            self.signs.append(sign)


@pytest.fixture
def counter() -> Counter:
    return Counter()


@pytest.fixture(autouse=True)
def nothing_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(steps, "_is_by_hand", False)


def test_one_of_several_optimizers_marks_the_steps(counter: Counter) -> None:
    finder = Finder(counter)
    first, second, third = (Optimizer(finder) for _ in range(3))
    for _ in range(5):
        for optimizer in (first, second, third, second):
            optimizer.step()
    assert counter.n_steps == 5


def test_an_optimizer_that_is_gone_is_replaced(counter: Counter) -> None:
    finder = Finder(counter)
    first, second = Optimizer(finder), Optimizer(finder)
    first.step()
    del first
    gc.collect()
    second.step()
    second.step()
    assert counter.n_steps == 3


def test_an_optimizer_that_is_used_no_more_is_replaced(counter: Counter) -> None:
    finder = Finder(counter)
    first, second, third = (Optimizer(finder) for _ in range(3))
    first.step()
    for _ in range(_N_UNTIL_REPLACED):
        second.step()
        third.step()
    assert counter.n_steps == 1
    for _ in range(4):
        second.step()
        third.step()
    assert counter.n_steps == 5


def test_an_optimizer_that_steps_several_times_in_a_row_does_not_take_over(counter: Counter) -> None:
    finder = Finder(counter)
    generator, critic = Optimizer(finder), Optimizer(finder)
    for _ in range(10):
        generator.step()
        for _ in range(_N_UNTIL_REPLACED):
            critic.step()
    assert counter.n_steps == 10


def test_steps_end_even_if_the_keywords_of_the_call_are_kept(counter: Counter) -> None:
    finder = Finder(counter)
    optimizer = Optimizer(finder)
    kept: list[dict[str, Any]] = [{}, {}]
    optimizer.sign.stepped(optimizer, kept[0])
    assert counter.n_steps == 0
    optimizer.sign.stepped(optimizer, kept[1])
    assert counter.n_steps == 1
    kept.clear()
    assert counter.n_steps == 2


def go_on() -> None:
    for _ in range(10_000_000):
        pass


@pytest.mark.parametrize("interruption", [KeyboardInterrupt(), SystemExit(7)])
def test_an_interruption_reaches_the_job(interruption: BaseException) -> None:
    def on_step(sign: str, n_ended: int) -> None:
        raise interruption

    optimizer = Optimizer(Finder(on_step))
    with pytest.raises(type(interruption)) as raised:  # noqa: PT012 - it may come anywhere in the job's code
        optimizer.step()
        go_on()
    assert raised.value.args == interruption.args


def test_the_job_can_mark_steps_itself(counter: Counter) -> None:
    finder = Finder(counter)
    steps._finder = finder
    try:
        optimizer = Optimizer(finder)
        optimizer.step()
        assert steps.take_over(), "the optimizer has ended this step already"
        optimizer.step()
        assert not steps.take_over()
        assert counter.n_steps == 1
    finally:
        steps._finder = None


def test_a_job_that_marks_steps_from_the_beginning_has_all_counted() -> None:
    assert not steps.take_over()
    assert not steps.take_over()


@pytest.fixture
def installed(counter: Counter) -> Iterator[Callable[[], None]]:
    pytest.importorskip("torch")
    remove = steps.install(counter)
    yield remove
    remove()


def train(n_steps: int, *, wrap: Callable[[Any], Any] = lambda step: step, scaled: bool = False) -> None:
    import torch

    model = torch.nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    scaler = torch.amp.GradScaler("cpu", enabled=scaled)
    step = wrap(lambda: scaler.step(optimizer))
    for _ in range(n_steps):
        optimizer.zero_grad()
        scaler.scale(model(torch.ones(2, 4)).sum()).backward()
        step()
        scaler.update()
        schedule.step()


@pytest.mark.e2e
@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize("scaled", [False, True])
def test_steps_of_real_optimizers(counter: Counter, scaled: bool) -> None:
    train(3, scaled=scaled)
    assert counter.n_steps == 3


@pytest.mark.e2e
def test_a_removed_hook_counts_no_more(counter: Counter, installed: Callable[[], None]) -> None:
    train(1)
    installed()
    train(2)
    assert counter.n_steps == 1


@pytest.mark.e2e
@pytest.mark.usefixtures("installed")
@pytest.mark.filterwarnings("default")
def test_compiled_optimizers_are_left_alone(counter: Counter) -> None:
    import torch
    from torch._dynamo.utils import counters

    model = torch.nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model(torch.ones(2, 4)).sum().backward()
    counters.clear()
    step = torch.compile(optimizer.step, backend="eager")
    for _ in range(3):
        step()
    assert counter.n_steps == 0
    assert not any("rankscope" in reason or "post_hook" in reason for reason in counters["graph_break"])
    assert model.weight.grad is not None


@pytest.mark.e2e
def test_a_step_ends_after_the_range_of_the_optimizer() -> None:
    """Nothing that is opened when a step ends may lie inside of what torch opened before."""
    torch = pytest.importorskip("torch")
    marks: list[Any] = []

    def on_step(sign: str, n_ended: int) -> None:
        mark = torch.profiler.record_function("mark")
        mark.__enter__()
        marks.append(mark)

    remove = steps.install(on_step)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler:
        train(1)
        marks[0].__exit__(None, None, None)
    remove()
    times = {event.name: event.time_range for event in profiler.events()}
    assert times["mark"].start >= times["Optimizer.step#SGD.step"].end
