"""What the nodes of execution traces that have to do with collectives say about them, as one query."""

from __future__ import annotations

from collections.abc import Iterable

from rankscope.analyze.collectives.names import (
    IN_PLACE,
    P2P,
    PARTNER_AT,
    SIZED_BY_OUTPUT,
    dtype_sql,
    item_bytes_sql,
    op_sql,
)
from rankscope.analyze.link.nodes import NODE_ORDER
from rankscope.model.sql import quote_text

# Where a node is from: NCCL's description of a call, torch's library of collectives, functional collectives, gloo.
RECORDED, LIBRARY, FUNCTIONAL, GLOO = range(4)
_FROM_ANYONE = "name = 'c10d::recv_any_source_'"


def _in(texts: Iterable[str]) -> str:
    return f"IN ({', '.join(map(quote_text, texts))})"


def _argument(position: str) -> str:
    return f"given[greatest({position}, 0)]"  # negative ones would count from the end


def _number(position: str) -> str:
    return f"try_cast({_argument(position)} ->> '$' AS BIGINT)"


def _first_or_only(position: str) -> str:
    """Of what was one value at first and a pair later: the number of a call, the name of a group."""
    value = _argument(position)
    return f"CASE json_type({value}) WHEN 'ARRAY' THEN {value} ->> '$[0]' ELSE {value} ->> '$' END"


def _attribute(name: str, position: str) -> str:
    return f"coalesce(try_cast(extra ->> '$.{name}' AS BIGINT), {_number(position)})"


_LIBRARY_PARTNER = " ".join(f"WHEN {quote_text(op)} THEN {_number(str(at))}" for op, at in PARTNER_AT.items())
_PARTNER = f"""
    CASE WHEN op NOT {_in(PARTNER_AT)} OR {_FROM_ANYONE} THEN NULL
         WHEN origin = {RECORDED} THEN {_number("last_text - 1")} ELSE CASE op {_LIBRARY_PARTNER} END END
"""
_TAG = f"""
    CASE WHEN origin = {LIBRARY} AND op {_in(P2P)}
         THEN {_number(f"CASE WHEN {_FROM_ANYONE} THEN 3 ELSE 4 END")} END
"""
_GROUP = f"""
    CASE origin WHEN {RECORDED} THEN coalesce(group_name, {_first_or_only("last_text - 2")})
                WHEN {FUNCTIONAL} THEN {_argument("last_text")} ->> '$' END
"""
_COUNTS = ", ".join(f"CASE op WHEN 'barrier' THEN 0 ELSE {name} END AS {name}" for name in ("n_in", "n_out", "n_bytes"))
# What record_param_comms was given stands in one order around the name of the collective, which is the last text.
# Before it: tensors (where there are any), number of the call, group, rank; after it: splits, first rank, stride, size.
DESCRIBED = f"""
WITH candidates AS (
    SELECT *, CASE WHEN name = 'record_param_comms' THEN {RECORDED} WHEN name LIKE 'c10d::%' THEN {LIBRARY}
                   WHEN name LIKE 'gloo:%' THEN {GLOO} ELSE {FUNCTIONAL} END AS origin,
           json_extract(inputs, '$[*]') AS given, try_cast(input_types AS VARCHAR[]) AS types,
           len(types) + 1 - list_position(list_reverse(types), 'String') AS last_text
    FROM et_nodes
    WHERE name = 'record_param_comms' OR name LIKE 'c10d::%' OR name LIKE 'gloo:%'
          OR starts_with(name, '_c10d_functional')
), named AS (
    SELECT *, CASE WHEN origin = {RECORDED} THEN coalesce(collective, {_argument("last_text")} ->> '$')
                   ELSE regexp_extract(name, '[^:]*$') END AS called
    FROM candidates
), calls AS (
    SELECT *, {op_sql("called")} AS op FROM named WHERE op IS NOT NULL
), moved AS (
    SELECT file_id, node_id, n_elements, n_item_bytes, t.dtype,
           CASE WHEN origin = {RECORDED} THEN NOT is_output
                WHEN op {_in(IN_PLACE)} THEN NOT is_output AND argument = 0
                ELSE NOT is_output AND argument = 1 END AS is_given,
           CASE WHEN origin = {RECORDED} THEN is_output ELSE NOT is_output AND argument = 0 END AS is_taken
    FROM et_tensors AS t JOIN (SELECT file_id, node_id, origin, op FROM calls) USING (file_id, node_id)
), sums AS (
    SELECT file_id, node_id,
           sum(n_elements) FILTER (is_given)::BIGINT AS n_given, sum(n_elements) FILTER (is_taken)::BIGINT AS n_taken,
           sum(n_elements * n_item_bytes) FILTER (is_given)::BIGINT AS given_bytes,
           sum(n_elements * n_item_bytes) FILTER (is_taken)::BIGINT AS taken_bytes,
           max(n_item_bytes) AS item_bytes, {dtype_sql("max(dtype)")} AS tensor_dtype
    FROM moved WHERE is_given OR is_taken GROUP BY file_id, node_id
), measured AS (
    SELECT * EXCLUDE (item_bytes, dtype), coalesce(item_bytes, {item_bytes_sql("c.dtype")}) AS item_bytes,
           coalesce(c.dtype, tensor_dtype) AS dtype
    FROM calls AS c LEFT JOIN sums USING (file_id, node_id)
), sized AS (
    SELECT * EXCLUDE (n_in, n_out), coalesce(n_in, n_given) AS n_in, coalesce(n_out, n_taken) AS n_out,
           CASE WHEN op {_in(SIZED_BY_OUTPUT)} THEN coalesce(m.n_out * item_bytes, taken_bytes)
                ELSE coalesce(m.n_in * item_bytes, given_bytes) END AS n_bytes
    FROM measured AS m
), described AS (
    SELECT origin, file_id, rank, node_id, position, thread, coalesce(record_id, node_id) AS turn, op,
           CASE WHEN op <> 'barrier' THEN dtype END AS dtype,  -- a barrier is given a tensor that only names the device
           {_COUNTS},
           {_GROUP} AS group_name, coalesce(group_size, {_number("last_text + 5")}) AS group_size,
           {_attribute("global_rank_start", "last_text + 3")} AS first_rank,
           {_attribute("global_rank_stride", "last_text + 4")} AS stride, {_PARTNER} AS partner, {_TAG} AS tag,
           CASE origin WHEN {RECORDED} THEN try_cast({_first_or_only("last_text - 3")} AS BIGINT) END AS seq
    FROM sized
)
SELECT * FROM described
JOIN (SELECT file_id, position, row_number() OVER (ORDER BY {NODE_ORDER}) - 1 AS place FROM et_nodes)
    USING (file_id, position)
"""
