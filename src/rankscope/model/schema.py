"""How a table is declared. The declarations are in the schema_*.py beside this file; tables.py joins them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Literal

# memory: numpy columns, made by a reader or a matching step. parts: Parquet, one part per traced process.
# derived: computed by an analysis when first asked for.
Storage = Literal["memory", "parts", "derived"]
# What a row of every `parts` table begins with. The stored parts leave it out: a file may be in many captures.
PART_KEYS = ("file_id", "rank")


@dataclass(frozen=True)
class Column:
    name: str
    kind: str  # "text", "bool", or a numpy integer/float type name
    doc: str

    @property
    def is_text(self) -> bool:
        return self.kind == "text"


@dataclass(frozen=True)
class TableSpec:
    name: str
    doc: str
    columns: tuple[Column, ...]
    storage: Storage = "memory"

    @cached_property
    def kinds(self) -> dict[str, str]:
        return {column.name: column.kind for column in self.columns}


def spec(name: str, doc: str, columns: str, storage: Storage = "memory") -> TableSpec:
    """Reads one `name kind sentence` per line, so that the declarations stay readable."""
    rows = (line.strip().split(None, 2) for line in columns.strip().splitlines())
    return TableSpec(name, doc, tuple(Column(column, kind, doc) for column, kind, doc in rows), storage)
