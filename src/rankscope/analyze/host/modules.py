"""Modules: the host time of each nn.Module, and the device time of what was launched inside it."""

from __future__ import annotations

import numpy as np

from rankscope.analyze.host.call_tree import Nesting, nest, op_tree, thread_numbers
from rankscope.analyze.metric import Selection, metric
from rankscope.model.sql import quote_text
from rankscope.model.tables import Array, Table, Trace

_FROM_STACKS = """
    SELECT file_id, rank, tid, replace(name, 'nn.Module: ', '') AS module, start_ns,
           coalesce(duration_ns, 0) AS duration_ns
    FROM python_calls WHERE starts_with(name, 'nn.Module: ')
"""
# DistributedDataParallel.forward, # EmbeddingModule #, nn.Module: Linear_0, and paths of modules such as layers.0.mlp.
_MODULE_NAME = r"^nn\.Module: |^\w+\.forward$|^#* *\w+Module\w* *#*$|^\w+(\.\w+)*\.\d+(\.\w+)*$"
_FROM_ANNOTATIONS = f"""
    SELECT file_id, rank, tid, trim(regexp_replace(name, '^nn\\.Module: |\\.forward$', ''), '# ') AS module, start_ns,
           coalesce(duration_ns, 0) AS duration_ns
    FROM annotations WHERE kind = 'host' AND regexp_matches(name, {quote_text(_MODULE_NAME)})
"""


def has_modules(trace: Trace) -> bool:
    queries = (_FROM_STACKS, _FROM_ANNOTATIONS)
    return any(trace.sql(f"{query} LIMIT 1").rows() for query in queries)


@metric(
    "modules",
    "module_breakdown",
    needs=("profiles",),
    applies_if=(
        "has_modules",
        "with_stack=True and read with --stacks, or name modules with torch.profiler.record_function",
    ),
)
def module_breakdown(trace: Trace, selection: Selection) -> Table:
    """One row per rank and module: its host time, and the device time of the kernels launched inside it.

    Modules are Python calls of nn.Module if the trace has them (with_stack=True, read with --stacks), else annotations
    named like modules (Net.forward, layers.0.mlp). Kernels count for the innermost module around their launch on the
    launching thread, and in the columns with `below` for every module around it. Kernels of the backward pass are
    launched outside all modules; in the columns with `backward` they count for the modules around the forward operator
    with the same sequence number.
    """
    from_stacks = bool(trace.sql(f"{_FROM_STACKS} LIMIT 1").rows())
    source = _FROM_STACKS if from_stacks else _FROM_ANNOTATIONS
    calls = trace.sql(f"""
            SELECT m.*, t.thread FROM ({source}) AS m JOIN {thread_numbers(source)} AS t USING (file_id, rank, tid)
            ORDER BY file_id, rank, start_ns
        """).columns()
    nesting = nest(calls["thread"], calls["start_ns"], calls["duration_ns"])
    n_kernels, kernel_ns = _launched_in(trace, nesting, source)
    n_backward, backward_ns = _launched_backward(trace, nesting, source)
    module = calls["module"][nesting.order]
    tree = {name: calls[name][nesting.order] for name in ("file_id", "rank", "start_ns", "duration_ns")}
    tree |= {
        "module": module,
        "parent": np.where(nesting.parent >= 0, module[nesting.parent], ""),
        "depth": nesting.depth,
        "is_recursive": nesting.recursive(np.unique(module.astype(str), return_inverse=True)[1]),
        "self_ns": nesting.self_ns(),
        "n_kernels": n_kernels,
        "kernel_ns": kernel_ns,
        "n_kernels_below": nesting.inside_sums(n_kernels),
        "kernel_below_ns": nesting.inside_sums(kernel_ns),
        "n_kernels_backward": nesting.inside_sums(n_backward),
        "kernel_backward_ns": nesting.inside_sums(backward_ns),
    }
    return _by_module(trace, tree, selection, "stacks" if from_stacks else "annotations")


def _launched_in(trace: Trace, nesting: Nesting, source: str) -> tuple[Array, ...]:
    """Number and time of the kernels for which each module is the innermost one."""
    kernels = trace.sql(f"""
            SELECT t.thread, k.launch_start_ns, k.duration_ns
            FROM kernels AS k JOIN {thread_numbers(source)} AS t
                ON t.file_id = k.file_id AND t.rank = k.rank AND t.tid = k.launch_tid
        """).columns()
    module = nesting.enclosing(kernels["thread"], kernels["launch_start_ns"])
    return tuple(_sums(module, values, nesting) for values in (np.ones(len(module)), kernels["duration_ns"]))


# The number is taken when the forward operator makes its node: the last one begun with it is the one.
_BACKWARD = """
    WITH forward AS (
        SELECT file_id, rank, sequence_number, max(start_ns) AS start_ns, arg_max(tid, start_ns) AS tid
        FROM ops WHERE sequence_number > 0 AND coalesce(forward_tid, 0) = 0 GROUP BY ALL
    ), numbered AS (
        SELECT file_id, rank, sequence_number, forward_tid, row_number() OVER (ORDER BY file_id, rank, op_id) - 1 AS row
        FROM ops
    )
    SELECT n.row, f.start_ns, t.thread
    FROM numbered AS n JOIN forward AS f USING (file_id, rank, sequence_number)
    JOIN {threads} AS t ON t.file_id = f.file_id AND t.rank = f.rank AND t.tid = f.tid WHERE n.forward_tid > 0
"""


def _launched_backward(trace: Trace, nesting: Nesting, source: str) -> tuple[Array, ...]:
    """Number and time of the kernels below backward operators whose forward operator ran directly in each module."""
    pairs = trace.sql(_BACKWARD.format(threads=thread_numbers(source))).columns()
    tree = op_tree(trace)
    place_of_row = np.empty(len(tree.nesting.order), np.int64)
    place_of_row[tree.nesting.order] = np.arange(len(place_of_row))
    module = np.full(len(place_of_row), -1)
    is_backward = np.zeros(len(place_of_row), bool)
    places = place_of_row[pairs["row"]]
    is_backward[places] = True
    module[places] = nesting.enclosing(pairs["thread"], pairs["start_ns"])
    around = tree.nesting.nearest(is_backward)
    owner = np.where(around >= 0, module[around], -1) if len(module) else module
    return tuple(_sums(owner, tree.columns[name], nesting) for name in ("n_kernels", "kernel_ns"))


def _sums(module: Array, values: Array, nesting: Nesting) -> Array:
    """Per range: the sum of the values that fall on it. Doubles are exact here: sums stay far below 2**53."""
    inside = module >= 0
    return np.bincount(module[inside], values[inside].astype(np.float64), len(nesting.order)).astype(np.int64)


def _by_module(trace: Trace, tree: dict[str, Array], selection: Selection, source: str) -> Table:
    # Python calls do not say in which step they are: the last one begun on the rank does.
    sql = f"""
        WITH calls AS (
            SELECT c.*, CASE WHEN c.start_ns < s.start_ns + s.duration_ns THEN s.step END AS step
            FROM module_calls AS c ASOF LEFT JOIN steps AS s
                ON s.file_id = c.file_id AND s.rank = c.rank AND c.start_ns >= s.start_ns
        )
        SELECT rank, module, arg_min(coalesce(parent, ''), start_ns) AS parent, min(depth) AS depth,
               {quote_text(source)} AS source,
               count(*) AS n, sum(duration_ns) FILTER (NOT is_recursive) AS total_ns, sum(self_ns) AS self_ns,
               sum(n_kernels) AS n_kernels, sum(kernel_ns) AS kernel_ns,
               sum(n_kernels_below) FILTER (NOT is_recursive) AS n_kernels_below,
               sum(kernel_below_ns) FILTER (NOT is_recursive) AS kernel_below_ns,
               sum(n_kernels_backward) FILTER (NOT is_recursive) AS n_kernels_backward,
               sum(kernel_backward_ns) FILTER (NOT is_recursive) AS kernel_backward_ns
        FROM calls WHERE {selection.where()} GROUP BY rank, module ORDER BY rank, total_ns DESC, module
    """
    return trace.sql(sql, module_calls=tree).table("module_breakdown")
