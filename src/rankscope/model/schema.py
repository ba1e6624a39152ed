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
class Missing:
    """What it means to the user that a capture has no rows of a table: the reason why a check is listed as skipped."""

    why: str = ""  # what is not there, and how to get it
    to_record: str = ""  # the same for a capture that `rankscope record` made
    setting: str = ""  # of the collector, which fills the table
    none_came: str = ""  # what it means that this setting was on, left nothing, and nothing failed
    record_with: str = ""  # how to get rows; follows "record with", where a metric cannot be measured
    is_always_logged: bool = False  # a TORCH_TRACE log would have it: no rows means that nothing happened


@dataclass(frozen=True)
class TableSpec:
    name: str
    doc: str
    columns: tuple[Column, ...]
    storage: Storage = "memory"
    source: str = ""  # a table that comes with another: the one that has rows wherever such a trace was read
    missing: Missing = Missing()

    @property
    def is_source(self) -> bool:
        """True when its rows alone say something about a job. `files` only lists what was looked at."""
        return not self.source and self.name != "files"

    @cached_property
    def kinds(self) -> dict[str, str]:
        return {column.name: column.kind for column in self.columns}


def spec(
    name: str, doc: str, columns: str, storage: Storage = "memory", *, source: str = "", missing: Missing | str = ""
) -> TableSpec:
    """Reads one `name kind sentence` per line, so that the declarations stay readable."""
    rows = (line.strip().split(None, 2) for line in columns.strip().splitlines())
    declared = tuple(Column(column, kind, doc) for column, kind, doc in rows)
    return TableSpec(name, doc, declared, storage, source, Missing(missing) if isinstance(missing, str) else missing)
