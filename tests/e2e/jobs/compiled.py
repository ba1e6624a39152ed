"""Jobs that use torch.compile, one function per case; each does what its name says and nothing else.

TORCH_TRACE=FOLDER python compiled.py CASE
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import Tensor, nn


def simple() -> None:
    @torch.compile
    def scaled(x: Tensor) -> Tensor:
        return torch.relu(x) * 2 + 1

    scaled(torch.randn(8, 8))


def graph_breaks() -> None:
    def logged(x: Tensor) -> Tensor:
        y = torch.sin(x)
        print("mean", y.mean().item())  # breaks here
        torch._dynamo.graph_break()  # and here
        return torch.cos(y)

    @torch.compile
    def forward(x: Tensor) -> Tensor:
        return logged(x) + 1

    for _ in range(3):
        forward(torch.randn(16))


def recompiles() -> None:
    @torch.compile
    def scaled(x: Tensor, times: int, mode: str) -> Tensor:
        return x * times if mode == "up" else x / times

    # The limit is Dynamo's: kernels for each of the sizes would tell nothing more about it.
    @torch.compile(dynamic=False, backend="aot_eager")
    def summed(x: Tensor) -> Tensor:
        return (x + 1).sum()

    for number in range(3):
        scaled(torch.randn(4), 2 + number, "up" if number % 2 else "down")
    for size in range(2, 14):  # past the limit of 8: eager from then on
        summed(torch.randn(size))


def dynamic() -> None:
    @torch.compile
    def doubled(x: Tensor) -> Tensor:
        return x + x

    for size in (8, 9, 10, 11):
        doubled(torch.randn(size, 4))


def respecialised() -> None:
    @torch.compile(dynamic=True)
    def padded(x: Tensor) -> Tensor:
        if x.shape[0] == 48:  # pins the dimension that was to be dynamic
            return x + 1
        return x - 1

    for size in (48, 49, 50):
        padded(torch.randn(size, 4))


def compile_error() -> None:
    def broken_backend(graph: torch.fx.GraphModule, inputs: list[Tensor]) -> Callable[..., object]:
        raise RuntimeError("this backend compiles nothing")

    @torch.compile(backend=broken_backend)
    def doomed(x: Tensor) -> Tensor:
        return x + 1

    @torch.compile(fullgraph=True)
    def strict(x: Tensor) -> Tensor:
        print("no graph holds this")
        return x * 2

    for function in (doomed, strict):
        try:
            function(torch.randn(4))
        except Exception as error:
            print(type(error).__name__, "as expected")


def training() -> None:
    model = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 4))
    compiled = torch.compile(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for size in (8, 8, 12, 8):
        optimizer.zero_grad()
        compiled(torch.randn(size, 16)).square().mean().backward()
        optimizer.step()


def compiled_autograd() -> None:
    """The setting counts when a function is given to torch.compile, not when it runs."""
    model = nn.Linear(8, 8)
    with torch._dynamo.config.patch(compiled_autograd=True):

        @torch.compile
        def step(x: Tensor) -> Tensor:
            loss = model(x).square().mean()
            loss.backward()  # breaks, and its own graph is compiled
            return loss.detach()

        for _ in range(2):
            step(torch.randn(4, 8))


def cached() -> None:
    """Run twice with one TORCHINDUCTOR_CACHE_DIR: the first misses, the second hits; another WIDTH is another graph.

    DETERMINISTIC keeps the graph and changes a setting that is part of the caches' keys.
    """
    width = int(os.environ.get("WIDTH", "32"))
    torch.use_deterministic_algorithms("DETERMINISTIC" in os.environ)

    @torch.compile
    def mixed(x: Tensor) -> Tensor:
        return torch.softmax(x @ x.T, dim=-1) + width

    mixed(torch.randn(width, width))


def bypassed() -> None:
    """An autograd function keeps the graph out of AOTAutograd's cache."""

    class Doubled(torch.autograd.Function):
        @staticmethod
        def forward(ctx: object, x: Tensor) -> Tensor:
            return x * 2

        @staticmethod
        def backward(ctx: object, gradient: Tensor) -> Tensor:
            return gradient * 2

    @torch.compile
    def applied(x: Tensor) -> Tensor:
        return Doubled.apply(x).sum()

    applied(torch.randn(4, requires_grad=True)).backward()


def forked() -> None:
    """The child writes a log of its own, in which the file names that its parent used are not told again."""

    @torch.compile(backend="eager")
    def of_parent(x: Tensor) -> Tensor:
        return x + 1

    @torch.compile(backend="eager")
    def of_child(x: Tensor) -> Tensor:
        return x - 1

    of_parent(torch.randn(4))
    child = os.fork()
    if child == 0:
        of_child(torch.randn(4))
        os._exit(0)
    os.waitpid(child, 0)


def data_parallel() -> None:
    """ODD_RANK sees batches of another size than its peers, once, so it alone compiles a second graph."""
    dist.init_process_group("gloo")
    rank, odd = dist.get_rank(), int(os.environ.get("ODD_RANK", "-1"))
    model = nn.parallel.DistributedDataParallel(nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 4)))
    compiled = torch.compile(model, dynamic=False)
    for number in range(3):
        size = 12 if rank == odd and number == 1 else 8
        compiled(torch.randn(size, 16)).sum().backward()
    dist.destroy_process_group()


def collectives() -> None:
    """ODD_RANK's graph holds one reduction more than its peers'; the others wait for it outside of the graph."""
    import torch.distributed._functional_collectives as functional

    dist.init_process_group("gloo")
    rank, odd = dist.get_rank(), int(os.environ.get("ODD_RANK", "-1"))

    @torch.compile
    def reduced(x: Tensor) -> Tensor:
        y = functional.all_reduce(x + 1, "sum", dist.group.WORLD)
        if rank == odd:
            y = functional.all_reduce(y * 2, "sum", dist.group.WORLD)
        return y

    reduced(torch.ones(8))
    if rank != odd and odd >= 0:
        dist.all_reduce(torch.ones(8))
    dist.destroy_process_group()


CASES: dict[str, Callable[[], None]] = {
    case.__name__: case
    for case in (
        simple,
        graph_breaks,
        recompiles,
        dynamic,
        respecialised,
        compile_error,
        training,
        compiled_autograd,
        cached,
        bypassed,
        forked,
        data_parallel,
        collectives,
    )
}

if __name__ == "__main__":
    torch.manual_seed(0)
    CASES[sys.argv[1]]()
