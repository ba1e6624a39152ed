"""The call sites of the example training program, as the stacks that the recorder would have captured there."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from rankscope.simulate.spec import Location

Frame = dict[str, str | int]

EXAMPLE = Path(__file__).resolve().parent / "example"
TORCH = "/opt/venv/lib/python3.11/site-packages/torch"


@dataclass(frozen=True, eq=False)
class Site:
    """One statement of the training program that talks to other ranks."""

    location: Location
    frames: tuple[Frame, ...]
    """Innermost first. The dicts are shared by all sites, as the recorder shares them within a dump."""
    thread_name: str = "python"


class Statement(NamedTuple):
    file: str
    function: str
    """Dotted for methods; empty for module level."""
    text: str


class Library(NamedTuple):
    """A frame of code that is not the user's."""

    file: str
    function: str
    line: int


def _c10d(function: str, line: int) -> tuple[Library, ...]:
    return (
        Library(f"{TORCH}/distributed/distributed_c10d.py", function, line),
        Library(f"{TORCH}/distributed/c10d_logger.py", "wrapper", 83),
    )


_MODULE_CALL = (
    Library(f"{TORCH}/nn/modules/module.py", "_call_impl", 1789),
    Library(f"{TORCH}/nn/modules/module.py", "_wrapped_call_impl", 1778),
)
_MAIN = (
    Statement("train.py", "train", "losses.append(train_step("),
    Statement("train.py", "main", "train(build_trainer()"),
    Statement("train.py", "", "    main()"),
    Library("<frozen runpy>", "_run_code", 88),
    Library("<frozen runpy>", "_run_module_as_main", 198),
)
_PIPELINE = (Statement("train.py", "train_step", "loss = run_microbatches("), *_MAIN)
_FORWARD = (Statement("pipeline.py", "run_microbatches", "passes = run_forward("), *_PIPELINE)
_BLOCK = (
    *_MODULE_CALL,
    Statement("model.py", "Stage.forward", "hidden = block(hidden)"),
    *_MODULE_CALL,
    Statement("pipeline.py", "run_forward", "output = stage(hidden)"),
    *_FORWARD,
)
_ATTENTION = (*_MODULE_CALL, Statement("model.py", "Block.forward", "hidden + self.attention("), *_BLOCK)
_FEED_FORWARD = (*_MODULE_CALL, Statement("model.py", "Block.forward", "hidden + self.feed_forward("), *_BLOCK)
_BACKWARD = (Statement("pipeline.py", "run_microbatches", "run_backward(passes"), *_PIPELINE)
_REDUCE = (Statement("train.py", "train_step", "reduce_gradients("), *_MAIN)
_CLIP = (Statement("train.py", "train_step", "clip_gradients("), *_MAIN)
_EVALUATE = (Statement("train.py", "train", "score = evaluate("), *_MAIN[1:])

# torch keeps a bounded number of frames per call; deeper stacks lose their outermost ones.
_MAX_FRAMES = 12

_STACKS: dict[str, tuple[Statement | Library, ...]] = {
    "attention": (
        *_c10d("all_reduce", 3245),
        Statement("model.py", "Attention.forward", "dist.all_reduce("),
        *_ATTENTION,
    ),
    "feed_forward": (
        *_c10d("all_reduce", 3245),
        Statement("model.py", "FeedForward.forward", "dist.all_reduce("),
        *_FEED_FORWARD,
    ),
    "feed_forward_gather": (
        *_c10d("all_gather_into_tensor", 4392),
        Statement("model.py", "FeedForward.forward", "dist.all_gather_into_tensor("),
        *_FEED_FORWARD,
    ),
    "tp_backward": (
        *_c10d("all_reduce", 3245),
        Statement("model.py", "CopyToTensorParallel.backward", "dist.all_reduce("),
        Library(f"{TORCH}/autograd/function.py", "apply", 325),
    ),
    "send_activations": (
        *_c10d("send", 2652),
        Statement("pipeline.py", "send_activations", "dist.send("),
        Statement("pipeline.py", "run_forward", "send_activations("),
        *_FORWARD,
    ),
    "receive_activations": (
        *_c10d("recv", 2709),
        Statement("pipeline.py", "receive_activations", "dist.recv("),
        Statement("pipeline.py", "run_forward", "hidden = receive_activations("),
        *_FORWARD,
    ),
    "exchange_gradients": (
        Library(f"{TORCH}/distributed/distributed_c10d.py", "batch_isend_irecv", 3051),
        Statement("pipeline.py", "exchange_gradients", "dist.batch_isend_irecv("),
        Statement("pipeline.py", "run_backward", "exchange_gradients(finished, gradient"),
        *_BACKWARD,
    ),
    "hand_over_last_gradient": (
        Library(f"{TORCH}/distributed/distributed_c10d.py", "batch_isend_irecv", 3051),
        Statement("pipeline.py", "exchange_gradients", "dist.batch_isend_irecv("),
        Statement("pipeline.py", "run_backward", "exchange_gradients(finished, None"),
        *_BACKWARD,
    ),
    "bucket": (
        *_c10d("all_reduce", 3245),
        Statement("train.py", "reduce_gradients", "dist.all_reduce("),
        *_REDUCE,
    ),
    "bucket_gather": (
        *_c10d("all_gather_into_tensor", 4392),
        Statement("train.py", "reduce_gradients", "dist.all_gather_into_tensor("),
        *_REDUCE,
    ),
    "norm": (*_c10d("all_reduce", 3245), Statement("train.py", "clip_gradients", "dist.all_reduce("), *_CLIP),
    "norm_broadcast": (*_c10d("broadcast", 3145), Statement("train.py", "clip_gradients", "dist.broadcast("), *_CLIP),
    "loss": (
        *_c10d("all_reduce", 3245),
        Statement("train.py", "sync_loss", "dist.all_reduce("),
        Statement("train.py", "train_step", "return sync_loss("),
        *_MAIN,
    ),
    "evaluate": (
        *_c10d("all_gather_into_tensor", 4392),
        Statement("train.py", "evaluate", "dist.all_gather_into_tensor("),
        *_EVALUATE,
    ),
    "dispatch": (
        *_c10d("all_to_all_single", 5010),
        Statement("experts.py", "dispatch", "dist.all_to_all_single("),
        *_FORWARD,
    ),
    "combine": (
        *_c10d("all_to_all_single", 5010),
        Statement("experts.py", "combine", "dist.all_to_all_single("),
        *_FORWARD,
    ),
    "gather_counts": (
        *_c10d("all_gather", 4295),
        Statement("experts.py", "reduce_experts", "dist.all_gather("),
        *_REDUCE,
    ),
    "scatter_gradients": (
        *_c10d("reduce_scatter", 4722),
        Statement("experts.py", "reduce_experts", "dist.reduce_scatter("),
        *_REDUCE,
    ),
    "barrier": (*_c10d("barrier", 5349), Statement("train.py", "evaluate", "dist.barrier("), *_EVALUATE),
}


@lru_cache(maxsize=1)
def example_sites() -> dict[str, Site]:
    """Every call site by name, with line numbers looked up in the example program as it is installed."""
    names = ("train.py", "model.py", "pipeline.py", "experts.py")
    sources = {name: (EXAMPLE / name).read_text(encoding="utf-8") for name in names}
    frames: dict[Statement | Library, Frame] = {}
    sites: dict[str, Site] = {}
    for name, stack in _STACKS.items():
        for part in stack:
            if part not in frames:
                frames[part] = _frame(part, sources)
        statement = next(frames[part] for part in stack if isinstance(part, Statement))
        location = (str(statement["filename"]), int(statement["line"]), str(statement["name"]))
        thread = "pt_autograd_0" if name == "tp_backward" else "python"
        sites[name] = Site(location, tuple(frames[part] for part in stack[:_MAX_FRAMES]), thread)
    return sites


def _frame(part: Statement | Library, sources: dict[str, str]) -> Frame:
    if isinstance(part, Library):
        return {"name": part.function, "filename": part.file, "line": part.line}
    line = line_of(part, sources[part.file])
    return {"name": part.function.rpartition(".")[2] or "<module>", "filename": str(EXAMPLE / part.file), "line": line}


def line_of(statement: Statement, source: str) -> int:
    lines = source.splitlines()
    first, last = 1, len(lines)
    body: list[ast.stmt] = ast.parse(source).body
    for name in statement.function.split(".") if statement.function else ():
        scope = next(n for n in body if isinstance(n, (ast.ClassDef, ast.FunctionDef)) and n.name == name)
        first, last, body = scope.lineno + 1, scope.end_lineno or last, scope.body
    numbers = [number for number in range(first, last + 1) if statement.text in lines[number - 1]]
    if len(numbers) != 1:
        raise AssertionError(f"{statement} is at lines {numbers} of the example program, not at exactly one")
    return numbers[0]
