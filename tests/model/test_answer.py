"""The one way to ask: SQL over the tables of a trace."""

from __future__ import annotations

import weakref
from typing import Any

import numpy as np
import pytest

from rankscope.errors import UsageError
from rankscope.model.tables import MISSING, Table, Trace


@pytest.fixture
def trace() -> Trace:
    ranks = [{"rank": rank, "host": f"node{rank // 2}"} for rank in range(4)]
    return Trace(("job",), {"ranks": Table.from_rows("ranks", ranks)})


def made_steps(trace: Trace) -> list[str]:
    """A maker of steps that asks for another table itself; the list says when it ran."""
    asked: list[str] = []

    def make(own: Trace) -> Table:
        asked.append("steps")
        return Table.from_rows(
            "steps", [{"rank": rank, "step": 7} for (rank,) in own.sql("from ranks select rank").rows()]
        )

    trace.makers["steps"] = make
    return asked


def test_rows_come_as_often_as_they_are_fetched(trace: Trace) -> None:
    answer = trace.sql("select host, count(*) as n_ranks from ranks group by host order by host")
    assert answer.rows() == [("node0", 2), ("node1", 2)]
    assert answer.rows() == [("node0", 2), ("node1", 2)]
    assert list(answer.columns()) == ["host", "n_ranks"]


@pytest.mark.parametrize(
    "sql",
    [
        "select count(*) from steps",
        "with own as (from steps) select count(*) from own",
        "select count(*) from ranks where rank in (select rank from steps where step = 7)",
        "select count(*) from ranks, steps where ranks.rank = steps.rank",
        "select count(*) from (select * from Steps as s join ranks using (rank)) where step = $step",
        "with recursive up as (select 1 as n union all select n + 1 from up where n < (select count(*) from steps)) "
        "select count(*) from up",
    ],
)
def test_a_derived_table_is_made_where_a_statement_names_it(sql: str, trace: Trace) -> None:
    asked = made_steps(trace)
    assert trace.sql("select rank from ranks limit 1").rows() == [(0,)]
    assert trace.sql("select 'steps', rank as steps from ranks limit 1 -- steps").rows() == [("steps", 0)]
    assert asked == []
    parameters = {"step": 7} if "$" in sql else {}
    assert trace.sql(sql, **parameters).rows() == [(4,)]
    assert asked == ["steps"]
    assert trace.sql(sql, **parameters).rows() == [(4,)]
    assert asked == ["steps"]


def test_what_is_created_sees_derived_tables_and_is_made_at_once(trace: Trace) -> None:
    asked = made_steps(trace)
    trace.sql("create temp view mine as select rank, step from steps where rank < 2")
    assert asked == ["steps"]
    trace.sql("create or replace temp table counted as select count(*) as n from mine")
    assert trace.sql("insert into counted select count(*) from steps").rows() == [(1,)]
    assert trace.sql("update counted set n = n + 1 where n > $least", least=2).rows() == [(1,)]
    assert trace.sql("from counted order by n").rows() == [(2,), (5,)]
    trace.sql("drop table counted")
    trace.tables["steps"] = Table.from_rows("steps", [{"rank": 0, "step": 8}])
    assert trace.sql("from mine").rows() == [(0, 8)]


def test_two_answers_are_held_at_once(trace: Trace) -> None:
    ranks = trace.sql("select rank from ranks where rank > $least order by rank", least=1)
    numbers = trace.sql("select range from range(7)")
    batches, others = numbers.batches(3), trace.sql("select rank from ranks order by rank").batches(1)
    assert next(batches) == [(0,), (1,), (2,)]
    assert ranks.rows() == [(2,), (3,)]
    assert next(others) == [(0,)]
    assert next(batches) == [(3,), (4,), (5,)]
    assert list(others) == [[(1,)], [(2,)], [(3,)]]
    assert list(batches) == [[(6,)]]


def test_an_answer_holds_its_trace_and_nothing_else_does() -> None:
    own = Trace((), {"ranks": Table.from_rows("ranks", [{"rank": 0}])})
    is_alive = weakref.ref(own)
    answer = own.sql("select rank from ranks")
    del own
    assert answer.rows() == [(0,)]
    batches = answer.batches(1)
    del answer
    assert list(batches) == [[(0,)]]
    del batches
    assert is_alive() is None, "large columns wait for the next collection of garbage"


def test_what_is_missing_is_one_thing_on_each_side() -> None:
    rows = [{"rank": 0, "op": "send", "peer": 1, "group_name": "dp"}, {}]
    trace = Trace(("job",), {"collectives": Table.from_rows("collectives", rows)})
    trace.tables["metrics"] = Table.from_rows("metrics", [{"value": 0.5}, {"name": "loss"}])
    asked = trace.sql("select rank, op, rank > 0 as is_later, [rank] as ranks from collectives order by rank")
    assert asked.rows() == [(0, "send", False, [0]), (None, None, None, [None])]
    columns = asked.columns()
    assert [columns[name].tolist() for name in ("rank", "op", "is_later")] == [[0, MISSING], ["send", ""], [False] * 2]
    assert columns["rank"].dtype == np.int32
    assert trace.sql("from metrics select value").rows() == [(0.5,), (None,)]
    value = trace.sql("from metrics select value").columns()["value"]
    assert value[0] == 0.5
    assert np.isnan(value[1])
    for name in ("collectives", "metrics"):
        again = trace.sql(f"from {name}").table(name)
        assert list(map(repr, again.rows())) == list(map(repr, trace.table(name).rows()))


def test_arrays_are_asked_like_tables(trace: Trace) -> None:
    """What is missing in them is NULL, as in the tables."""
    given = {"rank": np.array([3, MISSING, 1]), "note": np.array(["x", "y", ""], object)}
    sql = "select rank, note, host from given left join ranks using (rank) order by rank"
    assert trace.sql(sql, given=given).rows() == [(1, None, "node0"), (3, "x", "node1"), (None, "y", None)]
    with pytest.raises(UsageError, match="given does not exist"):
        trace.sql("from given").rows()
    with pytest.raises(UsageError, match="steps is a table of the trace"):
        trace.sql("from steps", steps=given)
    in_turn = trace.sql("select rank from given order by rank", given=given).batches(2)
    assert list(in_turn) == [[(1,), (3,)], [(None,)]]


def test_other_libraries_get_the_same_rows(trace: Trace) -> None:
    answer = trace.sql("select rank, host from ranks where rank = $rank", rank=2)
    expected = {"rank": [2], "host": ["node1"]}
    pytest.importorskip("pandas")
    assert answer.df().to_dict("list") == expected
    pytest.importorskip("pyarrow")
    assert answer.arrow().to_pydict() == expected
    pytest.importorskip("polars")
    assert answer.pl().to_dict(as_series=False) == expected


@pytest.mark.parametrize(
    "sql",
    [
        "create or replace temp view ranks as select 1 as rank",
        "create temp table RANKS as select 1 as rank",
        "delete from ranks",
        "delete from temp.ranks",
        'drop table "temp" . "ranks"',
        "drop view ranks",
        "create table mine as select 1 as rank",
        "-- why\ncreate view mine as select 1 as rank",
        "alter table ranks add column x int",
        "with more as (from ranks) insert into comms (rank) select rank from more",
        "merge into comms using ranks on comms.rank = ranks.rank when not matched then insert (rank) values (1)",
    ],
)
def test_a_statement_changes_nothing_in_the_trace(sql: str, trace: Trace) -> None:
    with pytest.raises(UsageError) as caught:
        trace.sql(sql)
    assert caught.value.hint
    assert trace.sql("select count(*) from ranks").rows() == [(4,)]


def test_words_of_changes_may_be_values_and_names(trace: Trace) -> None:
    assert trace.sql("with a as (select 'drop table ranks' as \"delete\") from a").rows() == [("drop table ranks",)]


def test_traces_do_not_see_each_other(trace: Trace) -> None:
    trace.sql("create temp table mine as select 1 as rank")
    other = Trace((), {})
    assert other.sql("from ranks").rows() == []
    with pytest.raises(UsageError, match="mine does not exist"):
        other.sql("from mine").rows()


@pytest.mark.parametrize(
    ("sql", "message", "hint"),
    [
        ("from nosuch", "Table with name nosuch does not exist", "rankscope tables"),
        ("select count(*) from rank", "Table with name rank does not exist", "did you mean ranks?"),
        ("from elsewhere.ranks", "ranks", "rankscope tables"),
        ("select rnk from ranks", 'Referenced column "rnk" not found', "rankscope tables"),
        ("from trace", "Table with name trace does not exist", ""),  # not a variable of the caller either
        ("selec 1", "syntax error", "rankscope tables"),
        ("", "this is no statement", "from ranks"),
        ("-- nothing", "this is no statement", "from ranks"),
        ("from ranks; from ranks", "this is 2 statements", "from ranks"),
        ("from ranks where rank = $rank", "rank", ""),
    ],
)
def test_what_is_wrong_with_a_statement(sql: str, message: str, hint: str, trace: Trace) -> None:
    with pytest.raises(UsageError, match=message) as caught:
        trace.sql(sql).rows()
    assert "\n" not in caught.value.message
    assert hint in (caught.value.hint or "")
    assert caught.value.hint


def test_one_statement_may_end_like_one(trace: Trace) -> None:
    assert trace.sql("select ';' from ranks limit 1;").rows() == [(";",)]
    assert len(trace.sql("from ranks;\n").table("ranks")) == 4


def test_tables_and_traces_say_what_they_are(trace: Trace) -> None:
    assert repr(trace) == "Trace of job: 1 table with rows"
    assert repr(trace.sql("from\n  ranks")).startswith("Answer to 'from ranks': fetch it with rows(), ")
    assert repr(trace.table("group_members")) == "Table group_members: 0 rows of group_id, group_rank, rank"


def test_a_table_that_is_not_there(trace: Trace) -> None:
    with pytest.raises(UsageError, match="unknown table 'rank'") as caught:
        trace.table("rank")
    assert caught.value.hint == "did you mean ranks?"


def test_a_table_needs_all_its_columns(trace: Trace) -> None:
    wanted: Any = trace.sql("select rank from ranks")
    with pytest.raises(UsageError, match="host"):
        wanted.table("ranks")
