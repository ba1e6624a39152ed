"""What NCCL's own NVTX ranges say about its kernels: the operation, the communicator, the size, the peer.

The range of a call (ncclAllReduce) encloses the launch of its kernel. Between ncclGroupStart and ncclGroupEnd the
launch comes at the end of the group, and one kernel may serve all its calls. Names are always there; the rest lies in
the payloads, which an export has only with --include-blobs=true.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rankscope.model.comm_names import DTYPE_BYTES
from rankscope.model.numbers import whole
from rankscope.model.sql import quote_text

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

_OPS = {
    "ncclAllReduce": "all_reduce",
    "ncclAllGather": "all_gather",
    "ncclReduceScatter": "reduce_scatter",
    "ncclBroadcast": "broadcast",
    "ncclBcast": "broadcast",
    "ncclReduce": "reduce",
    "ncclAlltoAll": "all_to_all",
    "ncclGather": "gather",
    "ncclScatter": "scatter",
    "ncclSend": "send",
    "ncclRecv": "recv",
}
# These take the size of one rank's share; the message by the convention of nccl-tests is all shares.
_SHARED = "'all_gather', 'reduce_scatter', 'all_to_all', 'gather', 'scatter'"
# Only a kernel that reduces tells its type, and the place of it has changed:
# ncclDevKernel_AllReduce_Sum_bf16_RING_LL(...), ncclKernel_AllReduce_RING_LL_Sum_float(...).
_TYPE_IN_KERNEL = r"_(?:AllReduce|ReduceScatter|Reduce)_.*(?:Sum|Prod|Max|Min|SumPostDiv)_([a-z0-9_]+?)(?:_[A-Z]|\(|$)"
_DTYPES = {
    **dict.fromkeys(("f16", "half"), "Half"),
    **dict.fromkeys(("bf16", "__nv_bfloat16"), "BFloat16"),
    **dict.fromkeys(("f32", "float"), "Float"),
    **dict.fromkeys(("f64", "double"), "Double"),
    **dict.fromkeys(("u8", "uint8_t"), "Byte"),
    **dict.fromkeys(("i8", "int8_t"), "Char"),
    **dict.fromkeys(("u32", "i32", "uint32_t", "int32_t"), "Int"),  # one kernel serves both signs
    **dict.fromkeys(("u64", "i64", "uint64_t", "int64_t"), "Long"),
    "f8e4m3": "Float8_e4m3fn",
    "f8e5m2": "Float8_e5m2",
}
_HEADER_BYTES = 32  # of a payload: domain, schema, size and place, 8 bytes each


def _chosen(expression: str, mapping: dict[str, str]) -> str:
    return f"CASE {expression} {' '.join(f'WHEN {quote_text(k)} THEN {quote_text(v)}' for k, v in mapping.items())} END"


def kernel_dtype(name: str) -> str:
    """SQL for the type of the elements that a reducing kernel names."""
    return _chosen(f"regexp_extract({name}, {quote_text(_TYPE_IN_KERNEL)}, 1)", _DTYPES)


def dtype_bytes(dtype: str) -> str:
    sizes = " ".join(f"WHEN {quote_text(name)} THEN {DTYPE_BYTES[name]}" for name in sorted(set(_DTYPES.values())))
    return f"CASE {dtype} {sizes} END"


# Numbers in a payload begin with their lowest byte.
_MACROS = (
    """CREATE OR REPLACE TEMP MACRO hex_number(payload, place, size) AS
    array_to_string(list_reverse(regexp_extract_all(
        substr(hex(payload), (2 * place + 1)::BIGINT, (2 * size)::BIGINT), '..')), '')""",
    """CREATE OR REPLACE TEMP MACRO long_number(payload, place) AS
    try_cast(try_cast('0x' || hex_number(payload, place, 8) AS UBIGINT) AS BIGINT)""",
    """CREATE OR REPLACE TEMP MACRO short_number(payload, place) AS
    (try_cast('0x' || hex_number(payload, place, 4) AS BIGINT) + 2147483648) % 4294967296 - 2147483648""",
)
# The fields of each payload stand where its schema says; the first one's place, zero, is left out.
_PAYLOADS = f"""
    SELECT {{key}},
        max('0x' || lower(hex_number(payload, place, 8))) FILTER (field = 'NCCL communicator ID') AS communicator,
        max(long_number(payload, place)) FILTER (field = 'Message size [bytes]') AS n_bytes,
        max(short_number(payload, place)) FILTER (field = 'Peer rank') AS peer,
        max(short_number(payload, place)) FILTER (field = 'No. of ranks') AS n_ranks,
        max(short_number(payload, place)) FILTER (field = 'Rank') AS own_rank
    FROM {{origin}} JOIN (
        SELECT DISTINCT schemaId, name AS field, {_HEADER_BYTES} + coalesce("offset", 0) AS place
        FROM "NVTX_PAYLOAD_SCHEMA_ENTRIES" SEMI JOIN (
            SELECT schemaId FROM "NVTX_PAYLOAD_SCHEMA_ENTRIES" WHERE name = 'NCCL communicator ID') USING (schemaId)
        WHERE "offset" BETWEEN 0 AND 1000 OR idx = 0
    ) AS e ON e.schemaId = long_number(payload, 8)
    WHERE payload IS NOT NULL GROUP BY {{key}}
"""
_RANGES = f"""
CREATE TEMP TABLE nccl_ranges AS
WITH told AS (
    SELECT row_number() OVER (ORDER BY start_ns, duration_ns DESC) AS range_id, name, tid, start_ns,
           start_ns + duration_ns AS end_ns, payload
    FROM ranges WHERE regexp_matches(name, '^nccl[A-Z]')
)
SELECT t.* EXCLUDE (payload), {_chosen("t.name", _OPS)} AS op, p.* EXCLUDE (range_id)
FROM told AS t LEFT JOIN ({_PAYLOADS.format(key="range_id", origin="told")}) AS p USING (range_id)
"""
_SO_FAR = "OVER (PARTITION BY tid ORDER BY range_id ROWS UNBOUNDED PRECEDING)"
# The carrier of a call is the range in which its kernel is launched: its own, or the end of its group. A capture may
# begin within a group: the depth is counted from the lowest so far. Peers are ranks of their communicator; they are
# known as ranks of the job where the communicator is the job's.
_CALLS = f"""
CREATE TEMP TABLE nccl_calls AS
WITH counted AS (
    SELECT *, sum(CASE name WHEN 'ncclGroupStart' THEN 1 WHEN 'ncclGroupEnd' THEN -1 ELSE 0 END) {_SO_FAR} AS level
    FROM nccl_ranges
), deep AS (
    SELECT *, level - least(0, min(level) {_SO_FAR}) AS depth FROM counted
), grouped AS (
    SELECT *, sum((name = 'ncclGroupStart' AND depth = 1)::INTEGER) {_SO_FAR} AS group_number FROM deep
), communicators AS (
    SELECT communicator, max(n_ranks) AS n_ranks, max(own_rank) AS own_rank
    FROM nccl_ranges WHERE n_ranks > 0 GROUP BY communicator
)
SELECT c.tid, c.range_id, c.op, c.communicator, m.n_ranks,
       CASE WHEN c.op IN ({_SHARED}) THEN c.n_bytes * m.n_ranks ELSE c.n_bytes END AS n_bytes,
       CASE WHEN m.own_rank = $rank AND m.n_ranks = (SELECT max(n_ranks) FROM communicators) THEN c.peer END AS peer,
       coalesce(e.start_ns, c.start_ns) AS carrier_ns, coalesce(e.end_ns, c.end_ns) AS carrier_end_ns
FROM grouped AS c LEFT JOIN communicators AS m USING (communicator)
LEFT JOIN grouped AS e
    ON c.depth > 0 AND e.tid = c.tid AND e.group_number = c.group_number AND e.name = 'ncclGroupEnd' AND e.depth = 0
WHERE c.op IS NOT NULL AND (c.depth = 0 OR e.start_ns IS NOT NULL)
"""
# Several kernels in one carrier: as many as there are calls come in their order; else nobody knows how the calls were
# spread over them, and the sizes stay unknown. Sends to all and receives from all in one kernel are an all_to_all.
_LAUNCHES = """
CREATE TEMP TABLE nccl_launches AS
WITH kernels AS (
    SELECT DISTINCT correlationId AS correlation FROM "CUPTI_ACTIVITY_KIND_KERNEL"
    JOIN "StringIds" AS s ON s.id = coalesce(demangledName, shortName)
    WHERE "globalPid" >> 24 = $process AND s.value LIKE '%nccl%'
), within AS (
    SELECT c.correlation, c.tid, c.start_ns, p.carrier_ns, p.carrier_end_ns
    FROM (FROM raw_calls SEMI JOIN kernels USING (correlation)) AS c
    ASOF JOIN (SELECT DISTINCT tid, carrier_ns, carrier_end_ns FROM nccl_calls) AS p
        ON p.tid = c.tid AND c.start_ns >= p.carrier_ns
), launched AS (
    SELECT correlation, tid, carrier_ns, row_number() OVER (PARTITION BY tid, carrier_ns ORDER BY start_ns) AS place,
           count(*) OVER (PARTITION BY tid, carrier_ns) AS n_launches
    FROM within WHERE start_ns < carrier_end_ns
), called AS (
    SELECT *, row_number() OVER (PARTITION BY tid, carrier_ns ORDER BY range_id) AS place,
           count(*) OVER (PARTITION BY tid, carrier_ns) AS n_calls
    FROM nccl_calls
), served AS (
    SELECT l.correlation, l.n_launches IN (1, c.n_calls) AS is_sure, c.*
    FROM launched AS l JOIN called AS c
        ON c.tid = l.tid AND c.carrier_ns = l.carrier_ns AND (l.n_launches <> c.n_calls OR l.place = c.place)
), summed AS (
    SELECT correlation, bool_and(is_sure) AS is_sure, count(DISTINCT op) AS n_ops, any_value(op) AS op,
           bool_and(op IN ('send', 'recv')) AS is_p2p, count(DISTINCT communicator) = 1 AS is_one_group,
           any_value(communicator) AS communicator, max(n_ranks) AS n_ranks,
           count(*) FILTER (op = 'send') AS n_sends, count(*) FILTER (op = 'recv') AS n_recvs,
           sum(n_bytes) FILTER (op = 'send') AS n_sent, sum(n_bytes) FILTER (op = 'recv') AS n_received,
           sum(n_bytes) FILTER (op NOT IN ('send', 'recv')) AS n_moved,
           max(peer) FILTER (op = 'send') AS receiver, max(peer) FILTER (op = 'recv') AS sender
    FROM served GROUP BY correlation
)
SELECT correlation,
       CASE WHEN n_ops = 1 THEN op WHEN NOT is_p2p THEN NULL
            WHEN n_sends = n_ranks AND n_recvs = n_ranks THEN 'all_to_all' ELSE 'send_recv' END AS collective,
       CASE WHEN is_sure THEN greatest(n_sent, n_received, n_moved)::BIGINT END AS message_bytes,
       CASE WHEN is_one_group THEN communicator END AS group_name,
       CASE WHEN is_one_group THEN n_ranks END AS group_size,
       CASE WHEN n_sends = 1 AND n_recvs = 0 AND receiver >= 0 THEN $rank
            WHEN n_sends = 0 AND n_recvs = 1 THEN sender END AS src,
       CASE WHEN n_sends = 1 AND n_recvs = 0 THEN receiver
            WHEN n_sends = 0 AND n_recvs = 1 AND sender >= 0 THEN $rank END AS dst
FROM summed
"""
_NO_LAUNCHES = """
CREATE TEMP TABLE nccl_launches (correlation BIGINT, collective VARCHAR, message_bytes BIGINT, group_name VARCHAR,
                                 group_size INTEGER, src INTEGER, dst INTEGER)
"""


def describe_nccl_launches(connection: DuckDBPyConnection, process: int, rank: int) -> None:
    """Makes `nccl_launches`: what is known of the kernels of a launch. Needs the relations `ranges` and `raw_calls`."""
    [(is_there,)] = connection.execute(
        "SELECT count(*) > 0 FROM ranges WHERE regexp_matches(name, '^nccl[A-Z]')"
    ).fetchall()
    for statement in (*_MACROS, _RANGES, _CALLS, _LAUNCHES) if is_there else (_NO_LAUNCHES,):
        connection.execute(statement.replace("$rank", str(rank)).replace("$process", str(process))).fetchall()


def communicator_ranks(connection: DuckDBPyConnection) -> dict[int, tuple[int, int]]:
    """Process -> its rank in, and the size of, the largest communicator that it was seen to join."""
    for statement in _MACROS:
        connection.execute(statement).fetchall()
    events = '(SELECT "globalTid" >> 24 AS process, start, binaryData AS payload FROM "NVTX_EVENTS")'
    joined = connection.execute(
        f"""
        SELECT process, arg_max(own_rank, n_ranks), max(n_ranks)
        FROM ({_PAYLOADS.format(key="process, start", origin=events)})
        WHERE own_rank BETWEEN 0 AND n_ranks - 1 GROUP BY process
        """
    ).fetchall()
    return {whole(process): (whole(rank), whole(n_ranks)) for process, rank, n_ranks in joined}
