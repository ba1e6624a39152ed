"""From what a profiler recorded to the tables of the model: the part that all profiler formats share.

A reader stages the events of one or more processes in a DuckDB connection, in the relations of STAGES, with times
relative to the base of each process. `write_profiles` then finds the steps, ties kernels to the calls and operators
that launched them, describes the communication, and writes one Parquet file per table, whose rows know their process: a
statement costs about as much as reading a small trace, so small traces share them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from rankscope.errors import BadFileError
from rankscope.model.comm_names import CPP_DTYPES, DTYPE_BYTES, P2P_OPS, SAME_OP
from rankscope.model.schema import PART_KEYS
from rankscope.model.sql import quote_name, quote_text
from rankscope.model.tables import SCHEMA

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

# What a profiler knows of a collective: on the kernel itself, or on the operator that launched it.
_COMM_FIELDS = """
    collective VARCHAR, dtype VARCHAR, n_in BIGINT, n_out BIGINT, group_size INTEGER, group_name VARCHAR,
    group_desc VARCHAR, group_ranks VARCHAR, seq BIGINT, comms_id VARCHAR, src INTEGER, dst INTEGER,
    in_split VARCHAR, out_split VARCHAR
"""
# The columns of the staged relations. `id` counts the events of a process in the order of its trace.
_EVENTS = {
    "raw_ops": """id BIGINT, name VARCHAR, pid BIGINT, tid BIGINT, start_ns BIGINT, duration_ns BIGINT,
        external_id BIGINT, record_id BIGINT, sequence_number BIGINT, forward_tid BIGINT, input_dims VARCHAR,
        input_types VARCHAR, concrete_inputs VARCHAR""",
    "raw_comm_ops": f"external_id BIGINT, tid BIGINT, start_ns BIGINT, {_COMM_FIELDS}",
    "raw_calls": """id BIGINT, name VARCHAR, kind VARCHAR, pid BIGINT, tid BIGINT, start_ns BIGINT, duration_ns BIGINT,
        correlation BIGINT, external_id BIGINT""",
    "raw_kernels": f"""id BIGINT, name VARCHAR, kind VARCHAR, device INTEGER, context BIGINT, stream BIGINT,
        correlation BIGINT, external_id BIGINT, start_ns BIGINT, duration_ns BIGINT, n_bytes BIGINT,
        bandwidth_gbps DOUBLE, grid VARCHAR, block VARCHAR, registers INTEGER, shared_bytes BIGINT,
        blocks_per_sm DOUBLE, warps_per_sm DOUBLE, occupancy_pct DOUBLE, graph_id BIGINT, graph_node_id BIGINT,
        {_COMM_FIELDS}""",
    "raw_syncs": """kind VARCHAR, device INTEGER, stream BIGINT, correlation BIGINT, wait_on_stream BIGINT,
        wait_on_call BIGINT, start_ns BIGINT, duration_ns BIGINT""",
    "raw_annotations": """id BIGINT, name VARCHAR, kind VARCHAR, pid BIGINT, tid BIGINT, stream BIGINT, start_ns BIGINT,
        duration_ns BIGINT, external_id BIGINT, record_id BIGINT, input_dims VARCHAR, input_types VARCHAR""",
    "raw_memory": """time_ns BIGINT, device_type VARCHAR, device INTEGER, tid BIGINT, address VARCHAR, n_bytes BIGINT,
        allocated_bytes BIGINT, reserved_bytes BIGINT""",
    "raw_counters": """range_id BIGINT, name VARCHAR, start_ns BIGINT, duration_ns BIGINT, counter VARCHAR,
        value DOUBLE""",
    "raw_flows": "flow_id BIGINT, is_start BOOLEAN, pid BIGINT, tid BIGINT, time_ns BIGINT",
    "raw_python_calls": """python_id BIGINT, parent_id BIGINT, name VARCHAR, tid BIGINT, start_ns BIGINT,
        duration_ns BIGINT""",
}
STAGES = {name: f"process INTEGER, {columns}" for name, columns in _EVENTS.items()}

_STEP_NAME = r"^(?:ProfilerStep|step|iteration|train_step)\s*[#:_= ]\s*(\d+)$"
_COMMUNICATION = r"^(nccl|rccl|hccl|oneccl|mscclpp)|ncclKernel|ncclDevKernel|rcclGenericKernel"
# Executions of whole graphs and internal bookkeeping of accelerators: neither computation nor copies.
_OTHER = (
    r"^(runFunction|job_exe|packet|pe_exe|cpum_exe_subgraph|collective_subgraph_execution|hip|Stream Wait Event)"
    r"|^(Stream|Event|Context) Sync|cuda\w*LaunchKernel"
)
_MEMORY = r"^(hip)?mem(cpy|set)|^dma"
# ncclDevKernel_AllReduce_Sum_f32_RING_LL, ncclKernel_SendRecv(...): what is left when the trace has no metadata.
_OP_IN_KERNEL = r"(?:ncclDevKernel|ncclKernel|rcclGenericKernel)_([A-Za-z]+)"
_NAME_IN_KERNEL = {
    "AllReduce": "all_reduce",
    "AllGather": "all_gather",
    "ReduceScatter": "reduce_scatter",
    "Broadcast": "broadcast",
    "Reduce": "reduce",
    "SendRecv": "send_recv",
    "AllToAll": "all_to_all",
}


class Written(msgspec.Struct, frozen=True):
    """What was written of a process: rows per table, and the time from its first event to the end of its last."""

    n_rows: dict[str, int]
    start_ns: int
    end_ns: int


class Staged(NamedTuple):
    """What a staged relation has of a process."""

    n_rows: int
    first_ns: int  # 0 where the events of the relation do not last
    last_ns: int


StagedRows = dict[str, Staged]  # by relation; those without rows are not in it


def staged_rows(connection: DuckDBPyConnection, stages: Collection[str] = STAGES) -> dict[int, StagedRows]:
    """The relations that have rows, for each process; all others are empty."""
    rows: dict[int, StagedRows] = {}
    if stages:
        for process, stage, *values in connection.execute(" UNION ALL ".join(map(_count_staged, stages))).fetchall():
            rows.setdefault(process, {})[stage] = Staged(*values)
    return rows


def _count_staged(stage: str) -> str:
    times = "min(start_ns), max(start_ns + duration_ns)" if stage in _TIMED else "0, 0"
    return f"SELECT process, {quote_text(stage)}, count(*), {times} FROM {stage} GROUP BY process"


def write_profiles(
    connection: DuckDBPyConnection, folder: Path, staged: Mapping[int, StagedRows], bases: Mapping[int, int]
) -> dict[int, Written]:
    """Writes every table that has rows as folder/TABLE.parquet. Bases are what the times of a process count from."""
    if any(_TIMED.isdisjoint(staged.get(process, ())) for process in bases):
        raise BadFileError("has no events that rankscope knows", "rankscope help traces shows how to record one")
    present = {stage for rows in staged.values() for stage in rows}
    _define_steps(connection, staged)
    for statement in (*(_KERNEL_PREPARATIONS if "raw_kernels" in present else _WITHOUT_KERNELS), _ALL_COMMS):
        connection.execute(statement).fetchall()
    n_rows: dict[int, dict[str, int]] = {process: {} for process in staged}
    for table, (stages, select) in _SELECTS.items():
        if present.intersection(stages):
            _copy(connection, folder, table, select, by_process(bases))
            for process, rows in staged.items():
                if table not in _MADE and stages[0] in rows:
                    n_rows[process][table] = rows[stages[0]].n_rows
    made = " UNION ALL ".join(_count_made(table) for table in _MADE if present.intersection(_SELECTS[table][0]))
    for process, table, n in connection.execute(made).fetchall() if made else ():
        n_rows[process][table] = n
    return {process: _written(n_rows[process], rows, bases[process]) for process, rows in staged.items()}


def _written(n_rows: dict[str, int], staged: StagedRows, base_ns: int) -> Written:
    timed = [staged[stage] for stage in _TIMED if stage in staged]
    first, last = min(stage.first_ns for stage in timed), max(stage.last_ns for stage in timed)
    return Written(n_rows, first + base_ns, last + base_ns)


def _copy(connection: DuckDBPyConnection, folder: Path, table: str, select: str, base: str) -> None:
    columns = [column.name for column in SCHEMA[table].columns if column.name not in PART_KEYS]
    absolute = ", ".join(f"{name} + {base} AS {name}" if name in _MOMENTS else quote_name(name) for name in columns)
    path = folder / f"{table}.parquet"
    target = f"{quote_text(str(path))} (FORMAT parquet, COMPRESSION zstd)"
    [(n_rows,)] = connection.execute(f"COPY (SELECT process, {absolute} FROM ({select})) TO {target}").fetchall()
    if not n_rows:
        path.unlink()


_MOMENTS = ("start_ns", "time_ns", "launch_start_ns", "launch_end_ns")
# Tables that do not have a row for each staged event.
_MADE = {"steps": "staged_steps", "comms": "all_comms", "kernels": "kernel_links"}


def _count_made(table: str) -> str:
    return f"SELECT process, {quote_text(table)}, count(*) FROM {_MADE[table]} GROUP BY process"


def by_process(values: Mapping[int, object], key: str = "process") -> str:
    """The value of a process as an expression: a binary search, which spares a join."""
    if len(set(values.values())) == 1:
        return str(next(iter(values.values())))
    ordered = sorted(values)
    middle = len(ordered) // 2
    before, after = ({process: values[process] for process in half} for half in (ordered[:middle], ordered[middle:]))
    return f"CASE WHEN {key} < {ordered[middle]} THEN {by_process(before, key)} ELSE {by_process(after, key)} END"


def _with_step(stage: str, moment: str = "start_ns") -> str:
    return f"SELECT *, step_at(process, {moment}) AS step FROM {stage}"


def _define_steps(connection: DuckDBPyConnection, processes: Iterable[int]) -> None:
    """The table of the steps, and step_at(whose, moment), which spares a join of every event with them."""
    connection.execute(_STAGED_STEPS).fetchall()
    rows = connection.execute("SELECT process, start_ns, end_ns, step FROM staged_steps").fetchall()
    steps: dict[int, list[tuple[int, int, int]]] = {process: [] for process in processes}
    for process, start, end, number in rows:
        steps[process].append((start, end, number))
    search = by_process({process: _step_search(spans) for process, spans in steps.items()}, "whose")
    connection.execute(f"CREATE TEMP MACRO step_at(whose, moment) AS {search}").fetchall()


def _step_search(steps: Sequence[tuple[int, int, int]]) -> str:
    """A binary search in SQL. A step holds what starts in it; the last one begun is the only candidate."""
    if not steps:
        return "NULL::BIGINT"
    if len(steps) == 1:
        [(start, end, number)] = steps
        return f"CASE WHEN moment >= {start} AND moment < {end} THEN {number}::BIGINT END"
    middle = len(steps) // 2
    before, after = _step_search(steps[:middle]), _step_search(steps[middle:])
    return f"CASE WHEN moment < {steps[middle][0]} THEN {before} ELSE {after} END"


# Some traces mark a step on several threads: the first mark counts.
_STAGED_STEPS = rf"""
CREATE TEMP TABLE staged_steps AS
SELECT process, regexp_extract(name, {quote_text(_STEP_NAME)}, 1, 'i')::BIGINT AS step,
       arg_min(name, start_ns) AS name, arg_min(tid, start_ns) AS tid, min(start_ns) AS start_ns,
       arg_min(start_ns + duration_ns, start_ns) AS end_ns
FROM raw_annotations
WHERE kind = 'host' AND regexp_matches(name, {quote_text(_STEP_NAME)}, 'i')
GROUP BY 1, 2 ORDER BY process, start_ns
"""

# One call per correlation. A graph launch has many kernels; a kernel has one launch.
_LAUNCHES = """
CREATE TEMP TABLE launches AS
SELECT process, correlation, min(id) AS call_id, arg_min(tid, id) AS tid, arg_min(start_ns, id) AS start_ns,
       arg_min(start_ns + duration_ns, id) AS end_ns, arg_min(external_id, id) AS external_id
FROM raw_calls SEMI JOIN raw_kernels USING (process, correlation)
WHERE correlation > 0 GROUP BY process, correlation
"""

_LAUNCHING_OPS = """
CREATE TEMP TABLE launching_ops AS
SELECT process, external_id, max(id) AS op_id, arg_max(start_ns, id) AS start_ns,
       arg_max(start_ns + duration_ns, id) AS end_ns
FROM raw_ops
SEMI JOIN (SELECT process, external_id FROM raw_kernels UNION ALL SELECT process, external_id FROM launches)
    USING (process, external_id)
WHERE external_id > 0 GROUP BY process, external_id
"""

# Kernels have few distinct names: each is matched once.
_KERNEL_TYPES = f"""
CREATE TEMP TABLE kernel_types AS
SELECT name, CASE WHEN regexp_matches(name, {quote_text(_COMMUNICATION)}) THEN 'communication'
                  WHEN regexp_matches(name, {quote_text(_MEMORY)}, 'i') THEN 'memory'
                  WHEN regexp_matches(name, {quote_text(_OTHER)}) THEN 'other' ELSE 'computation' END AS type
FROM (SELECT DISTINCT name FROM raw_kernels)
"""
# An operator is found by its number. Old traces write the correlation where there is none: it must enclose the launch.
_KERNEL_LINKS = """
CREATE TEMP TABLE kernel_links AS
SELECT k.process, k.id,
       CASE WHEN k.collective IS NOT NULL THEN 'communication' WHEN k.kind <> 'kernel' THEN 'memory'
            ELSE kernel_types.type END AS type,
       l.call_id, l.tid AS launch_tid, l.start_ns AS launch_start_ns, l.end_ns AS launch_end_ns,
       CASE WHEN l.start_ns IS NULL OR l.start_ns BETWEEN o.start_ns AND o.end_ns THEN o.op_id END AS op_id,
       coalesce(l.start_ns, k.start_ns) AS decisive_ns
FROM raw_kernels AS k
JOIN kernel_types USING (name)
LEFT JOIN launches AS l ON l.process = k.process AND l.correlation = k.correlation
LEFT JOIN launching_ops AS o
    ON o.process = k.process AND o.external_id = coalesce(k.external_id, l.external_id)
"""
# Where the trace has no number, the operator is the innermost one that is open on the launching thread. Operators of a
# thread nest: when n are open at a moment, the innermost of them is the last one begun at depth n.
_ENCLOSING_OPS = """
CREATE TEMP TABLE enclosing_ops AS
WITH untied AS (
    SELECT process, id AS kernel_id, launch_tid AS tid, launch_start_ns AS at_ns FROM kernel_links
    WHERE op_id IS NULL AND launch_start_ns IS NOT NULL
), moments AS (
    SELECT process, tid, start_ns + duration_ns AS at_ns, 0 AS turn, 0 AS lasts, -1 AS change, NULL AS op_id,
           NULL AS kernel_id
    FROM raw_ops SEMI JOIN untied USING (process, tid) WHERE duration_ns > 0
    UNION ALL
    SELECT process, tid, start_ns, 1, duration_ns, 1, id, NULL
    FROM raw_ops SEMI JOIN untied USING (process, tid) WHERE duration_ns > 0
    UNION ALL
    SELECT process, tid, at_ns, 2, 0, 0, NULL, kernel_id FROM untied
), depths AS (
    SELECT *, sum(change) OVER (
        PARTITION BY process, tid ORDER BY at_ns, turn, lasts DESC ROWS UNBOUNDED PRECEDING) AS depth
    FROM moments
)
SELECT q.process, q.kernel_id AS id, o.op_id AS enclosing_op
FROM (SELECT * FROM depths WHERE turn = 2 AND depth > 0) AS q
ASOF JOIN (SELECT * FROM depths WHERE turn = 1) AS o
    ON o.process = q.process AND o.tid = q.tid AND o.depth = q.depth AND q.at_ns >= o.at_ns
"""
# A view: kernels have many columns, of which the links need few.
_LINKED_KERNELS = """
CREATE TEMP VIEW linked_kernels AS
SELECT k.id AS kernel_id, k.*, l.* EXCLUDE (process, id, op_id, decisive_ns),
       coalesce(l.op_id, e.enclosing_op) AS op_id, step_at(k.process, l.decisive_ns) AS step
FROM raw_kernels AS k
JOIN kernel_links AS l ON l.process = k.process AND l.id = k.id
LEFT JOIN enclosing_ops AS e ON e.process = k.process AND e.id = k.id
"""


def _case(expression: str, mapping: Mapping[str, object], otherwise: str) -> str:
    branches = " ".join(
        f"WHEN {quote_text(key)} THEN {value if isinstance(value, int) else quote_text(str(value))}"
        for key, value in mapping.items()
    )
    return f"CASE {expression} {branches} ELSE {otherwise} END"


_COMM_NAMES = ("collective", "dtype", "n_in", "n_out", "group_size", "group_name", "group_desc", "group_ranks", "seq",
               "comms_id", "src", "dst", "in_split", "out_split")  # fmt: skip
_MERGED = ", ".join(f"coalesce(k.{name}, m.{name}) AS {name}" for name in _COMM_NAMES)
_FIRST_TYPE = "json_extract_string(input_types, '$[0]')"
_FIRST_DIMS = "try_cast(json_extract(input_dims, '$[0]') AS BIGINT[])"
# Device: the kernel's own metadata, else those of the operator that launched it. Host (gloo): the annotation of the
# run, where a scalar has no dimensions, and one element.
_ALL_COMMS = f"""
CREATE TEMP TABLE all_comms AS
WITH operators AS (
    SELECT process, external_id, {", ".join(f"any_value({name}) AS {name}" for name in _COMM_NAMES)}
    FROM raw_comm_ops WHERE external_id > 0 GROUP BY process, external_id
), on_device AS (
    SELECT k.process, k.kernel_id, k.name, k.n_bytes AS told_bytes, {_MERGED}, k.device, k.stream, k.start_ns,
           k.duration_ns, k.step
    FROM linked_kernels AS k LEFT JOIN operators AS m USING (process, external_id) WHERE k.type = 'communication'
), on_host AS (
    SELECT process, name, name[6:] AS collective, {_case(_FIRST_TYPE, CPP_DTYPES, _FIRST_TYPE)} AS dtype,
           CASE WHEN input_dims IS NOT NULL THEN list_product(list_append({_FIRST_DIMS}, 1))::BIGINT END AS n_in,
           n_in AS n_out, tid, start_ns, duration_ns, step
    FROM ({_with_step("raw_annotations")}) WHERE kind = 'host' AND name LIKE 'gloo:%'
), named AS (
    SELECT *, {_case("collective", SAME_OP, "collective")} AS known,
           {_case(f"regexp_extract(name, {quote_text(_OP_IN_KERNEL)}, 1)", _NAME_IN_KERNEL, "'unknown'")} AS guessed
    FROM (SELECT * FROM on_device UNION ALL BY NAME SELECT * FROM on_host)
)
SELECT row_number() OVER (PARTITION BY process ORDER BY start_ns, kernel_id) - 1 AS comm_id,
       * EXCLUDE (collective, known, guessed, told_bytes), coalesce(nullif(known, ''), guessed) AS op,
       op IN ({", ".join(map(quote_text, P2P_OPS))}) AS is_p2p,
       coalesce(greatest(n_in, n_out) * {_case("dtype", DTYPE_BYTES, "NULL")}, told_bytes) AS n_bytes
FROM named
"""

_KERNEL_PREPARATIONS = (
    _LAUNCHES,
    _LAUNCHING_OPS,
    _KERNEL_TYPES,
    _KERNEL_LINKS,
    _ENCLOSING_OPS,
    _LINKED_KERNELS,
    "; ".join(f"DROP TABLE {name}" for name in ("launches", "launching_ops", "kernel_types")),
)
# Nothing is looked for where nothing can be: each statement takes its time even if it finds nothing.
_WITHOUT_KERNELS = (
    "CREATE TEMP VIEW linked_kernels AS SELECT *, id AS kernel_id, '' AS type, NULL::BIGINT AS step FROM raw_kernels",
)
_TIMED = frozenset({"raw_ops", "raw_calls", "raw_kernels", "raw_annotations", "raw_python_calls"})
# Each table: the staged relations without which it has no rows, and how it is made.
_SELECTS = {
    "steps": (
        ("raw_annotations",),
        "SELECT *, end_ns - start_ns AS duration_ns FROM staged_steps",
    ),
    "ops": (("raw_ops",), f"SELECT *, id AS op_id FROM ({_with_step('raw_ops')})"),
    "runtime_calls": (("raw_calls",), f"SELECT *, id AS call_id FROM ({_with_step('raw_calls')})"),
    "kernels": (("raw_kernels",), "FROM linked_kernels"),
    "comms": (("raw_kernels", "raw_annotations"), "FROM all_comms ORDER BY process, comm_id"),
    "syncs": (("raw_syncs",), "FROM raw_syncs"),
    "annotations": (("raw_annotations",), f"SELECT *, id AS annotation_id FROM ({_with_step('raw_annotations')})"),
    "memory": (("raw_memory",), "FROM raw_memory"),
    "counters": (("raw_counters",), "FROM raw_counters"),
    "flows": (("raw_flows",), "FROM raw_flows"),
    "python_calls": (("raw_python_calls",), "FROM raw_python_calls"),
}
