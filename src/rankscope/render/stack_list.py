"""Call stacks, numbered as in the database, each with the ranks that share it."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from rankscope.model.finding import count_noun, ranks_phrase
from rankscope.model.tables import Array, Trace
from rankscope.render.escape import escape


def stack_lines(trace: Trace, calls: Array) -> Iterator[str]:
    """The stacks of the given rows of `collectives`, innermost frame first."""
    for stack, ranks, ops, n_calls in _stacks_of(trace, calls):
        yield escape(f"stack #{stack}: {ranks_phrase(ranks)}, {count_noun(n_calls, 'call')} ({', '.join(ops)})")
        for frame in _frames(trace, stack):
            yield escape(f"    {frame['file']}:{frame['line']} in {frame['function']}")


def stack_records(trace: Trace, calls: Array) -> list[dict[str, object]]:
    return [
        {"stack_id": stack, "ranks": ranks, "ops": ops, "n_calls": n_calls, "frames": _frames(trace, stack)}
        for stack, ranks, ops, n_calls in _stacks_of(trace, calls)
    ]


def _stacks_of(trace: Trace, calls: Array) -> Iterator[tuple[int, list[int], list[str], int]]:
    table = trace.table("collectives")
    stack = table.array("stack_id")[calls]
    calls = calls[np.argsort(stack, kind="stable")]
    stack = table.array("stack_id")[calls]
    numbers, starts = np.unique(stack, return_index=True)
    ops = table.text("op")
    known = set(trace.table("stacks").array("stack_id").tolist())  # a dump may come without stacks
    for number, start, end in zip(numbers.tolist(), starts.tolist(), [*starts[1:].tolist(), len(calls)], strict=True):
        if number in known:
            rows = calls[start:end]
            named = [ops.values[code] for code in np.unique(ops.codes[rows]).tolist()]
            yield number, np.unique(table.array("rank")[rows]).tolist(), named, end - start


def _frames(trace: Trace, stack: int) -> list[dict[str, object]]:
    stacks, frames = trace.table("stacks"), trace.table("frames")
    low, high = np.searchsorted(stacks.array("stack_id"), [stack, stack + 1])
    return [
        {
            "file": frames.text("file")[at],
            "line": int(frames.array("line")[at]),
            "function": frames.text("function")[at],
        }
        for at in stacks.array("frame_id")[low:high].tolist()
    ]
