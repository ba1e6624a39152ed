"""The signs by which steps are found: which one is believed, and that torch does not notice."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from rankscope.collect.profile import steps
from rankscope.collect.profile.signs import BACKWARD, COLLECTIVES, FORWARD, KINDS, LOADER, OPTIMIZER
from rankscope.collect.profile.steps import _N_TO_BELIEVE, _N_WITH_COMPILED_OPTIMIZER, _N_WITH_OPTIMIZER, Finder

torch = pytest.importorskip("torch")
pytestmark = [pytest.mark.e2e, pytest.mark.filterwarnings("default")]


class Found:
    """What the finder has found, in the order in which it did."""

    def __init__(self) -> None:
        self.steps: list[tuple[str, int]] = []

    def __call__(self, sign: str, n_ended: int) -> None:
        self.steps.append((sign, n_ended))

    def n_by(self, sign: str) -> int:
        return sum(n for found, n in self.steps if found == sign)


@pytest.fixture
def found(monkeypatch: pytest.MonkeyPatch) -> Found:
    monkeypatch.setattr(steps, "_is_by_hand", False)
    monkeypatch.setattr(steps, "_has_optimizer", lambda: False)
    monkeypatch.setattr(steps, "has_compiled", lambda: False)
    return Found()


def show(finder: Finder, *signs: str) -> None:
    for sign in signs:
        if finder.saw(sign, KINDS.index(sign)):
            finder.ended(sign)


def test_an_optimizer_is_believed_at_once(found: Found) -> None:
    finder = Finder(found)
    for _ in range(4):
        show(finder, LOADER, FORWARD, BACKWARD, OPTIMIZER)
    assert found.steps == [(OPTIMIZER, 1)] * 4


@pytest.mark.parametrize("best", KINDS[1:])
def test_the_best_sign_of_a_loop_is_believed(best: str, found: Found) -> None:
    """All that it shows counts, from the beginning."""
    finder = Finder(found)
    for _ in range(5):
        show(finder, *reversed(KINDS[KINDS.index(best) :]))
    assert found.steps == [(best, _N_TO_BELIEVE), (best, 1), (best, 1)]


def test_an_optimizer_that_exists_is_waited_for(found: Found, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(steps, "_has_optimizer", lambda: True)
    finder = Finder(found)
    for _ in range(4):
        show(finder, *[FORWARD, BACKWARD] * 16, OPTIMIZER)  # it accumulates
    assert found.steps == [(OPTIMIZER, 1)] * 4


@pytest.mark.parametrize(("compiles", "n_first"), [(True, _N_WITH_COMPILED_OPTIMIZER), (False, _N_WITH_OPTIMIZER)])
def test_an_optimizer_that_never_shows_up_is_not_waited_for_any_longer(
    compiles: bool, n_first: int, found: Found, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(steps, "_has_optimizer", lambda: True)
    monkeypatch.setattr(steps, "has_compiled", lambda: compiles)
    finder = Finder(found)
    show(finder, *[FORWARD, BACKWARD] * (n_first + 1))
    assert found.steps == [(BACKWARD, n_first), (BACKWARD, 1)]


def test_an_evaluation_before_and_amid_the_training(found: Found) -> None:
    finder = Finder(found)
    show(finder, *[FORWARD] * 10)
    for _ in range(3):
        show(finder, *[FORWARD, BACKWARD, OPTIMIZER] * 4, *[FORWARD] * 100)
    assert (found.n_by(FORWARD), found.n_by(BACKWARD), found.n_by(OPTIMIZER)) == (11, 0, 12)


def test_a_step_that_only_sets_an_optimizer_up_is_not_believed_for_ever(found: Found) -> None:
    finder = Finder(found)
    show(finder, OPTIMIZER, *[FORWARD, BACKWARD] * (_N_WITH_OPTIMIZER + 1))
    assert found.steps == [(OPTIMIZER, 1), (BACKWARD, _N_WITH_OPTIMIZER), (BACKWARD, 1)]


@pytest.fixture
def installed(found: Found) -> Iterator[Callable[[], None]]:
    remove = steps.install(found)
    yield remove
    remove()


class Model(torch.nn.Module):  # type: ignore[misc, name-defined]
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = torch.nn.Linear(8, 8), torch.nn.Linear(8, 8)

    def forward(self, batch: Any) -> Any:
        return self.second(self.first(batch).relu())


@pytest.mark.usefixtures("installed")
def test_the_outermost_model_is_called(found: Found) -> None:
    model, loss = Model(), torch.nn.MSELoss()
    for _ in range(6):
        loss(model(torch.ones(2, 8)), torch.ones(2, 8))
    assert found.n_by(FORWARD) == 6
    torch.jit.trace(model, torch.ones(2, 8))
    assert found.n_by(BACKWARD) == 0


@pytest.mark.usefixtures("installed")
def test_checkpoints_and_penalties_are_part_of_one_backward_pass(found: Found) -> None:
    from torch.utils.checkpoint import checkpoint

    model = Model()
    for _ in range(5):
        batch = torch.ones(2, 8, requires_grad=True)
        result = checkpoint(model, batch, use_reentrant=True)
        (slope,) = torch.autograd.grad(model(batch).sum(), batch, create_graph=True)
        (result.sum() + slope.square().sum()).backward()
    assert (found.n_by(BACKWARD), found.n_by(FORWARD)) == (5, 0)


def test_optimizers_that_step_inside_of_the_backward_pass(found: Found, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()  # optimizers are looked for
    remove = steps.install(found)
    model = Model()
    for parameter in model.parameters():
        optimizer = torch.optim.SGD([parameter], lr=0.1)
        parameter.register_post_accumulate_grad_hook(lambda _, optimizer=optimizer: optimizer.step())
    for _ in range(5):
        model(torch.ones(2, 8)).sum().backward()
    remove()
    assert found.steps == [(BACKWARD, _N_TO_BELIEVE), (BACKWARD, 1), (BACKWARD, 1)]


@pytest.mark.usefixtures("installed")
def test_nothing_is_kept_alive(found: Found) -> None:
    model = Model()
    batch = torch.ones(2, 8)
    for _ in range(5):
        model(batch)
    watched = [weakref.ref(model), weakref.ref(batch)]
    del model, batch
    gc.collect()
    assert [watch() for watch in watched] == [None, None]
    other = Model()
    for _ in range(5):
        other(torch.ones(2, 8))
    assert found.n_by(FORWARD) == 10


def compiled_forms() -> dict[str, Callable[[], Callable[[Any], Any]]]:
    def in_place() -> Any:
        model = Model()
        model.compile(backend="eager", fullgraph=True)
        return model

    def in_a_function(prepare: Callable[[Any], object] = lambda model: None) -> Any:
        model = Model()
        prepare(model)
        return torch.compile(lambda batch: model(batch) * 2, backend="eager", fullgraph=True)

    def with_another_forward(model: Any) -> None:
        original = model.first.forward
        model.first.forward = lambda batch: original(batch)

    return {
        "model": lambda: torch.compile(Model(), backend="eager", fullgraph=True),
        "in place": in_place,
        "in a function": in_a_function,
        "with a hook": lambda: in_a_function(lambda model: model.first.register_forward_hook(lambda *_: None)),
        "with another forward": lambda: in_a_function(with_another_forward),
    }


@pytest.mark.parametrize("form", compiled_forms())
def test_what_is_compiled_stays_the_same(form: str, found: Found, monkeypatch: pytest.MonkeyPatch) -> None:
    """One graph before, while and after the signs are watched: nothing breaks, nothing is compiled again."""
    from torch._dynamo.utils import counters

    monkeypatch.undo()  # has_compiled as it is
    torch._dynamo.reset()
    counters.clear()
    remove = steps.install(found)
    model = compiled_forms()[form]()
    for _ in range(2):
        model(torch.ones(2, 8))
    remove()
    model(torch.ones(2, 8))
    remove = steps.install(found)
    model(torch.ones(2, 8))
    remove()
    assert counters["stats"]["unique_graphs"] == 1
    assert not counters["graph_break"]
    counters.clear()
    torch._dynamo.reset()


def test_torch_is_as_before_when_nothing_is_watched(found: Found, monkeypatch: pytest.MonkeyPatch) -> None:
    from torch.utils.data.dataloader import _BaseDataLoaderIter as Batches

    def state() -> list[Any]:
        engine = [vars(module)["_engine_run_backward"] for module in (torch.autograd, torch.autograd.graph)]
        return [*engine, vars(Batches)["__next__"], vars(torch.nn.Module)["_compiled_call_impl"]]

    monkeypatch.setattr("rankscope.collect.profile.signs.has_compiled", lambda: False)  # as another test has
    monkeypatch.setattr(torch.nn.Module, "_compiled_call_impl", None)
    before = state()
    remove = steps.install(found)
    assert all(now is not then for now, then in zip(state(), before, strict=True))
    remove()
    assert all(now is then for now, then in zip(state(), before, strict=True))


def test_lower_signs_are_not_watched_any_more(found: Found) -> None:
    remove = steps.install(found)
    model = Model()
    optimizer = torch.optim.SGD(model.parameters())
    for _ in range(_N_TO_BELIEVE):
        model(torch.ones(2, 8)).sum().backward()
        optimizer.step()
    finder = steps._finder
    assert finder is not None
    assert list(finder._signs) == [OPTIMIZER]
    remove()


@pytest.mark.usefixtures("installed")
def test_the_period_of_collectives_where_there_is_nothing_else(found: Found) -> None:
    import torch.distributed as dist

    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        steps.look_further()
        values = torch.ones(8)
        for _ in range(60):
            dist.all_reduce(values)
            dist.all_reduce(values[:4])
            dist.broadcast(values, 0)
        assert {sign for sign, _ in found.steps} == {COLLECTIVES}
        assert 30 < found.n_by(COLLECTIVES) < 60
    finally:
        dist.destroy_process_group()
