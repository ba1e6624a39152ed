"""Questions about a trace go through `trace.sql`, which makes the tables that they name."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from source_tree import SourceFile, imported_modules, source_files

from rankscope import load
from rankscope.model.tables import Trace
from rankscope.simulate.profiler import ProfileSpec, simulate_profile

# A connection of their own, which is no trace's: `query` locks its one, the others write it to files.
OWN_CONNECTION = {
    "commands/query.py",
    "commands/export.py",
    "commands/fr.py",
    "commands/link.py",
    "render/database_files.py",
    "render/flat_database.py",
}
OTHER_DATABASES = {"model", "read", "collect", "simulate"}  # readers stage files in one before there is a trace
OF_A_CONNECTION = {"execute", "executemany", "fetchall", "fetchmany", "fetchnumpy", "register"}


def asked_otherwise(source: SourceFile) -> Iterator[str]:
    for line, module in imported_modules(source):
        if module.startswith(("duckdb", "rankscope.model.database", "rankscope.model.answer")):
            yield f"{source.name}:{line} imports {module}"
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in OF_A_CONNECTION:
            yield f"{source.name}:{node.lineno} calls {node.func.attr}()"


def made_for_its_effect(tree: ast.AST) -> Iterator[int]:
    """Lines with a table that is asked for and not used."""
    for node in ast.walk(tree):
        value = node.value if isinstance(node, ast.Expr) else None
        for each in value.elts if isinstance(value, ast.Tuple) else [value]:
            if isinstance(each, ast.Call) and isinstance(each.func, ast.Attribute) and each.func.attr == "table":
                yield each.lineno


def test_nothing_asks_a_connection_of_the_trace() -> None:
    rooms = [source for source in source_files() if source.room not in OTHER_DATABASES]
    found = {source.name: list(asked_otherwise(source)) for source in rooms}
    assert [said for name, lines in found.items() if name not in OWN_CONNECTION for said in lines] == []
    assert {name for name, lines in found.items() if lines} >= OWN_CONNECTION, "an exception that none needs any more"


def test_no_table_is_asked_for_only_to_have_it_made() -> None:
    assert list(made_for_its_effect(ast.parse("trace.table('ranks')\nfor x in y:\n    a.table(x), b.table(x)"))) == [
        1,
        3,
        3,
    ]
    found = [f"{source.name}:{line}" for source in source_files() for line in made_for_its_effect(source.tree)]
    assert found == []


def test_a_rule_counts_derived_rows_that_nobody_has_asked_for(tmp_path: Path) -> None:
    """It was 0 until another rule had asked for the table: checked and in order, over nothing."""

    def counted(trace: Trace) -> int:
        [(n_matches,)] = trace.sql("SELECT count(*) FROM comm_matches WHERE n_members = $members", members=2).rows()
        return int(n_matches)

    simulate_profile(ProfileSpec(data_parallel=2, n_steps=2, n_layers=1)).write(tmp_path)
    fresh, asked = load(tmp_path), load(tmp_path)
    expected = int((asked.table("comm_matches").array("n_members") == 2).sum())
    assert expected > 0
    assert counted(fresh) == expected
    assert counted(asked) == expected
