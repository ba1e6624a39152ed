"""Writes the small files in tests/data/execution_trace: `PYTHONPATH=src python tests/data/make_execution_traces.py`.

Two ranks of one pipeline: some nodes of the first in today's layout, all of the second in the oldest one. Equal code
gives equal bytes.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from rankscope.simulate.execution import ExecutionTrace, observe, write_execution_trace
from rankscope.simulate.execution.nodes import GROUPS_NAME, PROCESS_NAME, THREAD_NAME
from rankscope.simulate.profiler import ProfileSpec, simulate_profile

FOLDER = Path(__file__).parent / "execution_trace"
# One of each kind: roots, groups, annotations, tensors of both devices, lists of tensors, backward passes, transfers.
_KEPT = {
    PROCESS_NAME,
    THREAD_NAME,
    GROUPS_NAME,
    "ProfilerStep#1",
    "aten::to",
    "aten::copy_",
    "aten::layer_norm",
    "c10d::send",
    "record_param_comms",
    "nccl:send 0->1",
    "autograd::engine::evaluate_function: GeluBackward0",
    "GeluBackward0",
    "aten::gelu_backward",
    "c10d::allreduce_",
    "nccl:all_reduce",
    "aten::_fused_adamw_",
}


def main() -> None:
    FOLDER.mkdir(exist_ok=True)
    simulation = simulate_profile(
        ProfileSpec(data_parallel=2, stages=2, ranks_per_host=2, n_steps=1, n_layers=1, n_microbatches=1)
    )
    write_execution_trace(some_nodes(observe(simulation, 0)), FOLDER / "torch_et_0.json")
    write_execution_trace(observe(simulation, 3), FOLDER / "torch_et_3.json.gz", "1.0.1")


def some_nodes(trace: ExecutionTrace) -> ExecutionTrace:
    """The nodes of those names, as if they had been all that the rank did: each hangs under the next one kept."""
    parents = {node.node_id: node.parent_id for node in trace.nodes}
    kept = {node.node_id for node in trace.nodes if node.name in _KEPT}

    def next_kept(node_id: int) -> int:
        return node_id if node_id in kept else next_kept(parents[node_id])

    nodes = [node._replace(parent_id=next_kept(node.parent_id)) for node in trace.nodes if node.node_id in kept]
    return replace(trace, nodes=tuple(nodes))


if __name__ == "__main__":
    main()
