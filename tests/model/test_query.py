"""SQL from Python."""

from __future__ import annotations

import gc

import pytest

from rankscope.errors import UsageError
from rankscope.model.tables import Table, Trace


@pytest.fixture
def trace() -> Trace:
    ranks = [{"rank": rank, "host": f"node{rank // 2}"} for rank in range(4)]
    return Trace(("job",), {"ranks": Table.from_rows("ranks", ranks)})


def test_rows_and_names(trace: Trace) -> None:
    rows = trace.query("select host, count(*) as n_ranks from ranks group by host order by host")
    assert rows.columns == ["host", "n_ranks"]
    gc.collect()  # the rows keep alive whatever they come from
    assert rows.fetchall() == [("node0", 2), ("node1", 2)]
    assert rows.fetchall() == [("node0", 2), ("node1", 2)]


def test_derived_tables_are_made_when_they_are_named(trace: Trace) -> None:
    asked = []

    def make(_: Trace) -> Table:
        asked.append("steps")
        return Table.from_rows("steps", [{"rank": 0, "step": 7}])

    trace.makers["steps"] = make
    assert trace.query("select rank from ranks limit 1").fetchall() == [(0,)]
    assert asked == []
    assert trace.query("select step from steps").fetchall() == [(7,)]
    assert asked == ["steps"]


def test_a_statement_changes_nothing_in_the_trace(trace: Trace) -> None:
    trace.query("create or replace temp view ranks as select 1 as rank")
    assert trace.query("select count(*) from ranks").fetchall() == [(4,)]


@pytest.mark.parametrize(
    ("sql", "message"),
    [
        ("from nosuch", "Table with name nosuch does not exist"),
        ("select rnk from ranks", 'Referenced column "rnk" not found'),
        ("from connection", "Table with name connection does not exist"),  # not a variable of ours either
        ("selec 1", "syntax error"),
        ("", "this is no statement"),
        ("-- nothing", "this is no statement"),
        ("from ranks; from ranks", "this is 2 statements"),
    ],
)
def test_what_is_wrong_with_a_statement(trace: Trace, sql: str, message: str) -> None:
    with pytest.raises(UsageError, match=message) as caught:
        trace.query(sql)
    assert "\n" not in caught.value.message
    assert caught.value.hint


def test_tables_and_traces_say_what_they_are(trace: Trace) -> None:
    assert repr(trace) == "Trace of job: 1 table with rows"
    assert repr(trace.table("group_members")) == "Table group_members: 0 rows of group_id, group_rank, rank"


def test_a_table_that_is_not_there(trace: Trace) -> None:
    with pytest.raises(UsageError, match="unknown table 'rank'"):
        trace.table("rank")
