"""Which node reads what another one wrote: tensors of execution traces by their memory.

The numbers of memory are used anew once it is freed, and not every allocation is a node of its own. A generation of a
number begins with a node that gives it without having taken it: the memory was allocated while that node ran. What is
read is trusted to be what was written only if a tensor of that size was given or written in the same generation.
"""

from __future__ import annotations

import re
from typing import NamedTuple

import numpy as np

from rankscope.analyze.link.edges.graph import Edges, Graph
from rankscope.analyze.link.nodes import NODE_ORDER
from rankscope.model.tables import MISSING, Array, Trace

_LAST_ARGUMENT = 62  # what fits into the bits of a number
_WRITTEN = re.compile(r"\([a-z0-9|]*!")


class _Accesses(NamedTuple):
    """A tensor that a node takes or gives, one row each."""

    node: Array
    memory: Array
    tensor: Array
    """The memory together with the size of the tensor."""
    takes: Array
    gives: Array
    """Gives it, be it a view of what it took, or writes to it."""
    writes: Array
    is_new: Array
    """Gives memory that it did not take."""

    def chosen(self, rows: Array) -> _Accesses:
        return _Accesses(*(column[rows] for column in self))


def data_edges(trace: Trace, graph: Graph, runners: Edges) -> Edges:
    """From the last node that wrote the memory and was over when the reader began.

    An operator and what it calls give the same tensors. Of them, the outermost that is over ended last. What a caller
    of gloo writes is written when the runner is done.
    """
    accesses = _load_accesses(trace)
    accesses = accesses.chosen(graph.nodes.is_op[accesses.node])
    reads, given, news, written = (
        accesses.chosen(rows) for rows in (accesses.takes, accesses.gives, accesses.is_new, accesses.writes)
    )
    written = _with_runners(written, runners, graph.n_nodes)
    begin = graph.start[reads.node]
    n_places = 2 * len(graph.start)
    since, _ = _Moments.of(news.memory, graph.start[news.node], news.node, n_places).last(reads.memory, begin)
    seen, _ = _Moments.of(given.tensor, graph.end[given.node], given.node, n_places).last(reads.tensor, begin)
    ended, writer = _Moments.of(written.memory, graph.end[written.node], written.node, n_places).last(
        reads.memory, begin
    )
    return Edges(writer, reads.node).chosen((writer >= 0) & (ended > since) & (seen > since))


class _Moments(NamedTuple):
    """What happened to each memory, in order."""

    key: Array
    node: Array
    n_places: int

    @classmethod
    def of(cls, memory: Array, moment: Array, node: Array, n_places: int) -> _Moments:
        key = memory * n_places + moment
        order = np.argsort(key)
        return cls(key[order], node[order], n_places)

    def last(self, memory: Array, before: Array) -> tuple[Array, Array]:
        """The last place before another one, and the node; MISSING where nothing had happened yet."""
        nothing = np.full(len(memory), MISSING)
        if not len(self.key):
            return nothing, nothing
        row = np.searchsorted(self.key, memory * self.n_places + before) - 1
        is_same = (row >= 0) & (self.key[row] >= memory * self.n_places)
        return np.where(is_same, self.key[row] % self.n_places, nothing), np.where(is_same, self.node[row], nothing)


def _with_runners(written: _Accesses, runners: Edges, n_nodes: int) -> _Accesses:
    runner = np.full(n_nodes, MISSING)
    runner[runners.source] = runners.target
    theirs = written.chosen(runner[written.node] >= 0)
    theirs = theirs._replace(node=runner[theirs.node])
    return _Accesses(*(np.concatenate(pair) for pair in zip(written, theirs, strict=True)))


_SCHEMAS = "SELECT DISTINCT op_schema FROM et_nodes WHERE contains(op_schema, '!')"
# Memory 0 is that of tensors that were never made. Signatures of collectives do not tell what they write: by the rule
# of names it is the first argument of those that end with an underscore.
_TENSORS = f"""
WITH placed AS (
    SELECT file_id, rank, node_id, op_schema, suffix(name, '_') AS is_inplace,
           row_number() OVER (ORDER BY {NODE_ORDER}) - 1 AS row
    FROM et_nodes
), schemas AS (SELECT unnest($schemas::VARCHAR[]) AS op_schema, unnest($arguments::BIGINT[]) AS arguments)
SELECT p.row, t.is_output, hash(t.file_id, t.storage_id, t.device) AS memory,
       hash(t.file_id, t.storage_id, t.device, t.n_elements, t.n_item_bytes) AS tensor,
       NOT t.is_output AND CASE WHEN s.arguments IS NULL THEN p.is_inplace AND t.argument = 0
                                ELSE (s.arguments >> least(t.argument, {_LAST_ARGUMENT})) & 1 = 1 END AS is_written
FROM et_tensors AS t
JOIN placed AS p ON p.file_id = t.file_id AND p.rank IS NOT DISTINCT FROM t.rank AND p.node_id = t.node_id
LEFT JOIN schemas AS s USING (op_schema)
WHERE t.storage_id > 0 AND t.n_elements > 0
"""


def _load_accesses(trace: Trace) -> _Accesses:
    schemas = [schema for (schema,) in trace.sql(_SCHEMAS).rows()]
    arguments = [written_arguments(schema) for schema in schemas]
    rows = trace.sql(_TENSORS, schemas=schemas, arguments=arguments).columns()
    node, is_output, is_written = rows["row"], rows["is_output"], rows["is_written"]
    memories, memory = np.unique(rows["memory"], return_inverse=True)
    tensor = np.unique(rows["tensor"], return_inverse=True)[1]
    is_new = is_output & ~_any_in_group(node * len(memories) + memory, ~is_output)
    return _Accesses(node, memory, tensor, ~is_output, is_output | is_written, is_new | is_written, is_new)


def _any_in_group(group: Array, flags: Array) -> Array:
    """Per row: whether a row of its group is flagged."""
    order = np.argsort(group)
    number = np.cumsum(np.diff(group[order], prepend=group[order[:1]]) > 0)
    n_flagged = np.bincount(number, flags[order])
    flagged = np.empty(len(group), bool)
    flagged[order] = n_flagged[number] > 0
    return flagged


def written_arguments(schema: str) -> int:
    """A bit for each argument that an operator writes to, by its signature: Tensor(a!) self."""
    depth, argument, written = 0, 0, 0
    start = position = schema.find("(") + 1
    for position, sign in enumerate(schema[start:], start):
        if sign in "([":
            depth += 1
        elif sign in ")]":
            depth -= 1
        if depth < 0 or (sign == "," and not depth):
            text = schema[start:position].strip()
            written |= bool(_WRITTEN.search(text)) << min(argument, _LAST_ARGUMENT)
            argument += text != "*"
            start = position + 1
        if depth < 0:
            break
    return written
