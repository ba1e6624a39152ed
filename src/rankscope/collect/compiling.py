"""How functions of the collector stay out of what torch.compile compiles."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from typing import Any


def leave_out_of_compiling(functions: Iterable[Callable[..., Any]]) -> None:
    """For functions that a compiled one may call: they are neither traced into nor compiled themselves.

    torch's own decorator for this would import all of its compiler.
    """
    for function in functions:
        function._torchdynamo_disable = True  # type: ignore[attr-defined]  # where it would be traced into
        skip_frame(function)


def skip_frame(function: Callable[..., Any], *, below: bool = True) -> None:
    """torch.compile does not compile this function where it is called; `below`: nor anything that it calls.

    It looks at every Python function that runs below a compiled one, and has nothing to gain in ours. It may still
    trace into it.
    """
    frames: Any = sys.modules.get("torch._C._dynamo.eval_frame")
    if hasattr(frames, "set_code_exec_strategy"):
        action = frames._FrameAction
        strategy = frames._FrameExecStrategy(action.SKIP, action.SKIP if below else action.DEFAULT)
        frames.set_code_exec_strategy(function.__code__, strategy)
    elif hasattr(frames, "skip_code"):  # older versions of torch; only the function itself
        frames.skip_code(function.__code__)


def has_compiled() -> bool:
    """Whether torch.compile has compiled something in this process."""
    utils = sys.modules.get("torch._dynamo.utils")
    return bool(utils is not None and utils.counters["stats"]["unique_graphs"])
