"""Simulated execution traces that belong to the simulated profiler traces of the same job.

nodes                       what a trace is made of
memory, tensors, schemas    what operators take and give
observer                    who sees them
layouts                     how each version of torch writes it down
pairs                       all of it, beside the profiler traces
"""

from __future__ import annotations

from rankscope.simulate.execution.layouts import (
    LATEST_SCHEMA,
    SCHEMAS,
    execution_trace_text,
    write_execution_trace,
)
from rankscope.simulate.execution.nodes import ExecutionTrace, Node
from rankscope.simulate.execution.pairs import PairOptions, observe, write_pairs

__all__ = [
    "LATEST_SCHEMA",
    "SCHEMAS",
    "ExecutionTrace",
    "Node",
    "PairOptions",
    "execution_trace_text",
    "observe",
    "write_execution_trace",
    "write_pairs",
]
