"""Stages the nodes of an execution trace in DuckDB, part by part.

Parts in torch's own nested layout are taken in by the database alone, several times faster than in Python. A part that
holds anything else (the flat layout, fields that are not known, text that is no JSON) is decoded node by node.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from rankscope.model.numbers import whole
from rankscope.model.schema import PART_KEYS
from rankscope.model.sql import quote_name, quote_path, quote_text
from rankscope.model.tables import MISSING, SCHEMA, Array
from rankscope.read.event_stream import MAX_EVENT_BYTES, PART_BYTES, Part
from rankscope.read.execution_nodes import NodeRow, TensorRow, decode_nodes, tensor_places

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

_FIELDS = {"et_nodes": NodeRow._fields, "et_tensors": TensorRow._fields}
_SQL_TYPES = {"text": "VARCHAR", "bool": "BOOLEAN", "int32": "INTEGER", "int64": "BIGINT"}

# What torch writes on every node, in its order; each version only added to the end.
_USUAL = ("rf_id", "fw_parent", "seq_id", "scope", "tid", "fw_tid", "op_schema", "kernel_backend", "kernel_file")
_NEWEST = "tensor_range"  # on every node, too, and nearly always empty
_IO = 'STRUCT("values" VARCHAR, shapes VARCHAR, types VARCHAR, strides VARCHAR)'
_N_PLACES = len(_USUAL) + 2  # the newest, and the one behind it, where there must be none
_PLACES = ", ".join(f"'$[{position}].{part}'" for part in ("value", "name") for position in range(_N_PLACES))
_IS_USUAL = f"""v[{_N_PLACES + 1}:{_N_PLACES + len(_USUAL)}] = [{", ".join(map(quote_text, _USUAL))}]
    AND (v[{2 * _N_PLACES - 1}] IS NULL
         OR (v[{2 * _N_PLACES - 1}] = '{_NEWEST}' AND v[{_N_PLACES - 1}] = '' AND v[{2 * _N_PLACES}] IS NULL))"""
_OTHERS = {"collective_name": "collective", "dtype": "dtype", "in_msg_nelems": "n_in", "out_msg_nelems": "n_out"}
_OTHERS |= {"pg_name": "group_name", "pg_desc": "group_desc", "pg_size": "group_size"}


def _told(name: str) -> str:
    """An attribute as text: by its position where all are in their usual positions, else by its name."""
    by_name = f"(others[{quote_text(name)}] ->> '$')"
    return f"coalesce(v[{_USUAL.index(name) + 1}], {by_name})" if name in _USUAL else by_name


def _number(name: str, none: int = MISSING, kind: str = "BIGINT") -> str:
    return f"nullif(try_cast({_told(name)} AS {kind}), {none})"


def _text(name: str) -> str:
    return f"coalesce({_told(name)}, '')"


_KNOWN = ", ".join(map(quote_text, (*_USUAL, *_OTHERS)))
_EXTRA = f"""list_filter(map_entries(others),
    lambda e: e.key NOT IN ({_KNOWN}) AND e.value <> '""' AND e.value <> 'null')"""
_ROOT = "name LIKE '[pytorch|profiler|execution_%|{0}]'"
_READ = f"""
CREATE TEMP TABLE {{table}} AS
WITH found AS (
    SELECT id, name, ctrl_deps, inputs, outputs, attrs, json_extract_string(attrs, [{_PLACES}]) AS v
    FROM read_json({{path}}, format = 'array', maximum_object_size = {PART_BYTES + MAX_EVENT_BYTES}, columns = {{{{
        id: 'BIGINT', name: 'VARCHAR', ctrl_deps: 'BIGINT', inputs: '{_IO}', outputs: '{_IO}', attrs: 'JSON'}}}})
), judged AS (
    SELECT *, {_IS_USUAL} AS is_usual FROM found
), told AS (
    SELECT * REPLACE (CASE WHEN is_usual THEN v ELSE [] END AS v),
           CASE WHEN NOT is_usual THEN map_from_entries(
               from_json(attrs, '[{{{{"name": "VARCHAR", "value": "JSON"}}}}]')) END AS others,
           CASE WHEN NOT is_usual THEN json_array_length(attrs)
                ELSE {len(_USUAL)} + (v[{2 * _N_PLACES - 1}] IS NOT NULL)::INT END AS n_attributes
    FROM judged
)
SELECT id AS node_id, row_number() OVER () - 1 + {{n_before}} AS position, name,
       CASE WHEN name[1] = '[' AND {_ROOT.format("process")} THEN 'process'
            WHEN name[1] = '[' AND {_ROOT.format("thread")} THEN 'thread'
            WHEN contains(name, 'process_group:init') THEN 'groups' ELSE 'op' END AS kind,
       CASE WHEN ctrl_deps NOT IN (0, id) THEN ctrl_deps END AS parent_id,
       {_number("fw_parent", 0)} AS fw_parent_id, {_number("rf_id", 0)} AS record_id, {_number("seq_id")} AS seq_id,
       {_number("scope", kind="INTEGER")} AS scope, {_number("tid")} AS thread, {_number("fw_tid", 0)} AS fw_thread,
       {_text("op_schema")} AS op_schema,
       coalesce(inputs.values, '[]') AS inputs, coalesce(inputs.shapes, '[]') AS input_shapes,
       coalesce(inputs.types, '[]') AS input_types, coalesce(nullif(inputs.strides, '[]'), '') AS input_strides,
       coalesce(outputs.values, '[]') AS outputs, coalesce(outputs.shapes, '[]') AS output_shapes,
       coalesce(outputs.types, '[]') AS output_types, coalesce(nullif(outputs.strides, '[]'), '') AS output_strides,
       {_text("kernel_backend")} AS kernel_backend, {_text("kernel_file")} AS kernel_file,
       {_text("collective_name")} AS collective, {_text("dtype")} AS dtype,
       {_number("in_msg_nelems")} AS n_in, {_number("out_msg_nelems")} AS n_out,
       {_text("pg_name")} AS group_name, {_text("pg_desc")} AS group_desc,
       {_number("pg_size", kind="INTEGER")} AS group_size,
       CASE WHEN is_usual THEN '' WHEN len({_EXTRA}) > 0 THEN to_json(map_from_entries({_EXTRA}))::VARCHAR
            ELSE '' END AS extra,
       6 + 3 * n_attributes + 6 + (inputs.strides IS NOT NULL)::INT + (outputs.strides IS NOT NULL)::INT AS n_keys
FROM told
"""
_CHECK = """
SELECT count(*), sum(n_keys), bool_and(node_id >= 0 AND name IS NOT NULL AND n_keys IS NOT NULL) FROM {table}
"""
# Six numbers and a device: nothing else that torch writes looks like it. Tensors without memory are none.
_TENSOR = r'\[\d+,\d+,-?\d+,\d+,\d+,"[^"\\]*"\]'
_TENSORS = """
INSERT INTO et_tensors
WITH each AS (
    SELECT node_id, unnest(p.argument) AS argument, unnest(p.element) AS element, unnest(p.dtype) AS dtype,
           string_split(unnest(regexp_extract_all({side}puts, {pattern}))[2:-2], ',') AS f
    FROM {table} JOIN tensor_places AS p ON p.types = {side}put_types
)
SELECT node_id, {is_output}, argument, coalesce(element, 0), try_cast(f[1] AS BIGINT), try_cast(f[2] AS BIGINT),
       try_cast(f[3] AS BIGINT), try_cast(f[4] AS BIGINT), try_cast(f[5] AS BIGINT), coalesce(dtype, ''), f[6][2:-2]
FROM each WHERE f[2] <> '0' OR f[4] <> '0'
"""
_NEW_TYPES = """
SELECT DISTINCT types FROM (
    SELECT input_types AS types FROM {table} UNION ALL SELECT output_types FROM {table})
WHERE contains(types, 'Tensor') AND types NOT IN (SELECT types FROM tensor_places)
"""


class NodeStage:
    """Takes part after part of a trace; `write` makes Parquet of them."""

    def __init__(self, connection: DuckDBPyConnection, folder: Path) -> None:
        self._connection = connection
        self._folder = folder
        self._parts: list[str] = []  # tables of nodes, in the order of the file
        self.n_nodes = 0
        self.n_damaged = 0
        self._create("et_tensors", "et_tensors")
        places = "types VARCHAR, argument INTEGER[], element INTEGER[], dtype VARCHAR[]"
        connection.execute(f"CREATE TEMP TABLE tensor_places ({places})").fetchall()

    def _create(self, table: str, like: str) -> None:
        kinds = SCHEMA[like].kinds
        columns = ", ".join(f"{quote_name(name)} {_SQL_TYPES[kinds[name]]}" for name in _FIELDS[like])
        self._connection.execute(f"CREATE TEMP TABLE {table} ({columns})").fetchall()

    def add(self, part: Part) -> None:
        table = f"nodes_{len(self._parts)}"
        if not self._add_as_a_whole(part, table):
            self._connection.execute(f"DROP TABLE IF EXISTS {table}").fetchall()
            self._add_one_by_one(b"".join(part), table)
        self._parts.append(table)

    def _add_as_a_whole(self, part: Part, table: str) -> bool:
        """False when something in it is not as torch writes it: then nothing was added."""
        import duckdb

        text = self._folder / "part.json"
        with text.open("wb") as stream:
            stream.writelines(part)
        try:
            read = _READ.format(table=table, path=quote_path(str(text)), n_before=self.n_nodes)
            self._connection.execute(read).fetchall()
            [(n_nodes, n_keys, is_whole)] = self._connection.execute(_CHECK.format(table=table)).fetchall()
        except duckdb.Error:
            return False
        finally:
            text.unlink()
        # Keys that the database was not asked for are lost silently: so many keys as it read have to be all of them.
        if not is_whole or n_keys != sum(_n_keys(piece) for piece in part):
            return False
        self._add_tensors(table)
        self.n_nodes += n_nodes
        return True

    def _add_tensors(self, table: str) -> None:
        """Which argument a tensor is follows from the types alone, and these are few."""
        new = [types for (types,) in self._connection.execute(_NEW_TYPES.format(table=table)).fetchall()]
        for types in new:
            columns = [list(column) for column in zip(*tensor_places(types), strict=True)] or [[], [], []]
            self._connection.execute("INSERT INTO tensor_places VALUES (?, ?, ?, ?)", [types, *columns]).fetchall()
        for side, is_output in (("in", False), ("out", True)):
            statement = _TENSORS.format(table=table, side=side, is_output=is_output, pattern=quote_text(_TENSOR))
            self._connection.execute(statement).fetchall()

    def _add_one_by_one(self, part: bytes, table: str) -> None:
        decoded = decode_nodes(part, self.n_nodes)
        self._create(table, "et_nodes")
        for target, like, rows in ((table, "et_nodes", decoded.nodes), ("et_tensors", "et_tensors", decoded.tensors)):
            if rows:
                self._insert(target, like, rows)
        self.n_nodes += len(decoded.nodes)
        self.n_damaged += decoded.n_damaged

    def _insert(self, table: str, like: str, rows: Sequence[Any]) -> None:
        names, kinds = _FIELDS[like], SCHEMA[like].kinds
        columns = zip(names, zip(*rows, strict=True), strict=True)
        self._connection.register("decoded_rows", {name: _array(values, kinds[name]) for name, values in columns})
        selected = ", ".join(
            f"nullif({quote_name(name)}, {MISSING})" if kinds[name].startswith("int") else quote_name(name)
            for name in names
        )
        self._connection.execute(f"INSERT INTO {table} SELECT {selected} FROM decoded_rows").fetchall()
        self._connection.unregister("decoded_rows")

    def group_descriptions(self) -> list[str]:
        """The inputs of the nodes that describe process groups."""
        rows = self._connection.execute(f"SELECT inputs FROM {self._nodes} WHERE kind = 'groups' ORDER BY position")
        return [inputs for (inputs,) in rows.fetchall()]

    def counts(self) -> dict[str, Any]:
        [(n_nodes, n_threads, has_ids)] = self._connection.execute(
            "SELECT count(*), count(DISTINCT thread) FILTER (kind <> 'process'), "
            f"coalesce(bool_or(record_id > 0 AND kind = 'op'), false) FROM {self._nodes}"
        ).fetchall()
        return {"n_nodes": n_nodes, "n_threads": n_threads, "has_record_ids": has_ids}

    def write(self) -> dict[str, int]:
        """One Parquet file per table that has rows; how many it has."""
        relations = {"et_nodes": self._nodes, "et_tensors": "et_tensors"}
        return {table: n_rows for table, relation in relations.items() if (n_rows := self._write(table, relation))}

    @property
    def _nodes(self) -> str:
        columns = ", ".join(NodeRow._fields)
        return "(" + " UNION ALL ".join(f"SELECT {columns} FROM {table}" for table in self._parts) + ")"

    def _write(self, table: str, relation: str) -> int:
        columns = ", ".join(quote_name(column.name) for column in SCHEMA[table].columns if column.name not in PART_KEYS)
        path = self._folder / f"{table}.parquet"
        target = f"{quote_text(str(path))} (FORMAT parquet, COMPRESSION zstd)"
        [(n_rows,)] = self._connection.execute(f"COPY (SELECT {columns} FROM {relation}) TO {target}").fetchall()
        if not n_rows:
            path.unlink()
        return whole(n_rows)


def _n_keys(piece: bytes | memoryview) -> int:
    """Keys of all objects in a JSON text: what comes before a colon, unless within a string."""
    text = bytes(piece)
    return text.count(b'":') - text.count(b'\\":')


def _array(values: Sequence[Any], kind: str) -> Array:
    return np.array(values, dtype=object if kind == "text" else kind)
