"""Compiles the same function under one choice of logs after another, and says on stderr which one holds."""

from __future__ import annotations

import logging
import sys

import torch
import torch._dynamo
from torch._logging import set_logs  # by name: it is looked up before anything can be put in its place


class OwnHandler(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        sys.stderr.write(f"own handler: {record.name}: {record.getMessage().splitlines()[0]}\n")


def twice(x: torch.Tensor, factor: int) -> torch.Tensor:
    y = x * factor
    torch._dynamo.graph_break()
    return y + 1


def compile_under(choice: str) -> None:
    sys.stderr.write(f"== {choice}\n")
    torch._dynamo.reset()
    compiled = torch.compile(twice, backend="eager")
    for factor in (2, 3):
        compiled(torch.ones(3), factor)
    logging.getLogger("torch._dynamo").info("the choice was %s", choice)


def main() -> None:
    own = OwnHandler()
    logging.getLogger("torch._dynamo").addHandler(own)
    compile_under("nothing")
    set_logs(graph_breaks=True)
    compile_under("graph breaks")
    set_logs(recompiles=True, dynamic=logging.DEBUG)
    compile_under("recompiles and dynamic shapes")
    set_logs()
    compile_under("nothing again")
    try:
        set_logs(modules={"no.such.module": logging.DEBUG})
    except (ValueError, ModuleNotFoundError) as error:
        sys.stderr.write(f"refused: {type(error).__name__}\n")
    set_logs(dynamo=logging.INFO)
    compile_under("messages of Dynamo")
    assert own in logging.getLogger("torch._dynamo").handlers


if __name__ == "__main__":
    main()
