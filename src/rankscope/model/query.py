"""SQL over the tables of a trace, from Python."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rankscope.errors import UsageError
from rankscope.model.database import connect, named_tables

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection, DuckDBPyRelation

    from rankscope.model.tables import Trace


def query(trace: Trace, sql: str) -> DuckDBPyRelation:
    """The rows of a statement. Their connection is their own: what is done to it changes nothing in the trace."""
    from duckdb import Error

    connection = connect(trace, only=named_tables(sql))
    # A name that is no table would else be taken for a variable of this function.
    connection.execute("SET python_enable_replacements = false").fetchall()
    try:
        check_single(connection, sql)
        return connection.sql(sql)
    except Error as error:
        raise UsageError(str(error).partition("\n")[0], "rankscope tables lists every table and column") from error


def check_single(connection: DuckDBPyConnection, sql: str) -> None:
    """A query has one answer, so it is one statement."""
    n_statements = len(connection.extract_statements(sql))
    if n_statements != 1:
        given = "no statement" if n_statements == 0 else f"{n_statements} statements"
        raise UsageError(f"a query is one SQL statement, but this is {given}", "for example: from ranks")
