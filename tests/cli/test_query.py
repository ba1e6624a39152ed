from __future__ import annotations

import csv
import json
from pathlib import Path

import duckdb
import pytest

from rankscope.cli import main
from rankscope.simulate import Fault, JobSpec, Mesh, simulate

COUNT = "select op, count(*) as calls from collectives group by all order by all"


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("job")
    simulate(JobSpec(Mesh(dp=4, tp=2)), Fault("op", rank=5)).write(folder)
    return str(folder)


def test_table_on_stdout(job: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["query", job, "select rank, peer, op from collectives where rank = 5 and op = 'broadcast'"]) == 0
    printed = capsys.readouterr()
    assert printed.out == "rank  peer  op\n----  ----  ---------\n   5  NULL  broadcast\n(1 row)\n"
    assert printed.err == ""


def test_json_and_csv_say_what_the_table_says(job: str, capsys: pytest.CaptureFixture[str]) -> None:
    sql = "select rank, peer, is_p2p, op from collectives where rank < 2 limit 3"
    assert main(["query", job, sql, "--json"]) == 0
    records = json.loads(capsys.readouterr().out)
    assert records[0] == {"rank": 0, "peer": None, "is_p2p": False, "op": "all_reduce"}
    assert main(["query", job, "--format", "csv", sql]) == 0
    found = list(csv.DictReader(capsys.readouterr().out.splitlines()))
    assert len(found) == len(records) == 3
    assert found[0] == {"rank": "0", "peer": "", "is_p2p": "false", "op": "all_reduce"}


def test_values_that_json_does_not_know(job: str, capsys: pytest.CaptureFixture[str]) -> None:
    sql = "select 'nan'::double a, 10::hugeint ** 0 b, [1, 2] c, {'x': 1} d, to_timestamp(0) e, 1 f, 2 f -- the end"
    assert main(["query", job, sql, "--json"]) == 0
    (record,) = json.loads(capsys.readouterr().out)
    assert (record["a"], record["c"], record["d"]) == (None, [1, 2], {"x": 1})
    assert record["e"].startswith("1970-01-01")
    assert (record["f"], record["f_1"]) == (1, 2)


def test_the_statement_may_stand_in_a_file(job: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "count.sql").write_text(f"-- how often each operation was called\n{COUNT};\n", encoding="utf-8")
    assert main(["query", job, COUNT]) == 0
    expected = capsys.readouterr().out
    assert main(["query", job, f"@{tmp_path / 'count.sql'}"]) == 0
    assert capsys.readouterr().out == expected


def test_a_file_that_is_no_text_is_no_statement(job: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "x.sql").write_bytes(b"\xff\xfe")
    assert main(["query", job, f"@{tmp_path / 'x.sql'}"]) == 2
    assert "x.sql: it is not text" in capsys.readouterr().err


@pytest.mark.parametrize("arguments", [("--json",), ("--format", "csv"), ()])
def test_times_keep_their_nanoseconds(arguments: tuple[str, ...], job: str, capsys: pytest.CaptureFixture[str]) -> None:
    sql = "select make_timestamp_ns(1768485720007634889) as at, 1768485720007634889 as at_ns"
    assert main(["query", job, sql, *arguments]) == 0
    printed = capsys.readouterr().out
    assert "14:02:00.007634889" in printed
    assert "1768485720007634889" in printed


def test_no_rows(job: str, capsys: pytest.CaptureFixture[str]) -> None:
    nothing = "select rank from collectives where rank = 99"
    main(["query", job, nothing, "--json"])
    assert json.loads(capsys.readouterr().out) == []
    main(["query", job, nothing])
    assert capsys.readouterr().out == "rank\n----\n(0 rows)\n"


def test_a_terminal_gets_shortened_cells_and_others_whole_ones(
    job: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    sql = "select repeat('x', 200) as long, rank from ranks limit 1"
    main(["query", job, sql])
    assert "x" * 200 in capsys.readouterr().out
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    monkeypatch.setenv("COLUMNS", "60")
    main(["query", job, sql])
    lines = capsys.readouterr().out.splitlines()
    assert lines[2].split() == ["x" * 51 + "...", "0"]
    assert max(map(len, lines)) == 60


@pytest.mark.parametrize("arguments", [(), ("--format", "csv")])
def test_nothing_in_a_trace_steers_the_terminal(
    arguments: tuple[str, ...], job: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    main(["query", job, "select chr(27) || '[2J' as evil", *arguments])
    printed = capsys.readouterr().out
    assert "\\x1b[2J" in printed
    assert "\x1b" not in printed


@pytest.mark.parametrize(
    ("sql", "message", "hint"),
    [
        ("select rnk from collectives", "no table of this query has a column 'rnk'", "did you mean rank?"),
        ("select c.oop from collectives c", "oop", "did you mean op?"),
        ("select op from ranks", "no table of this query has a column 'op'", "op is a column of collectives, "),
        (
            "select zzzzzz from ranks",
            "no table of this query has a column 'zzzzzz'",
            "the columns of ranks are rank, host, ",
        ),
        ("from collectivs", "no table is called 'collectivs'", "did you mean collectives?"),
        ("from zzzzzz", "no table is called 'zzzzzz'", "the tables are files, ranks, "),
        ("selec 1", "syntax error", "rankscope tables"),
        ("from read_text('/etc/hostname')", "Permission Error", "rankscope export"),
        ("", "this is no statement", "from ranks"),
        ("from ranks; from ranks", "this is 2 statements", "from ranks"),
        ("@nosuch.sql", "cannot read nosuch.sql: No such file", "@FILE"),
    ],
)
def test_errors_of_sql_are_two_lines(
    sql: str, message: str, hint: str, job: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["query", job, sql]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    first, second = printed.err.splitlines()
    assert message in first
    assert hint in second


def test_files_by_extension(job: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    paths = {name: tmp_path / f"rows.{name}" for name in ("json", "csv", "parquet", "txt")}
    for path in paths.values():
        assert main(["query", job, f"{COUNT};", "-o", str(path)]) == 0
        assert capsys.readouterr().err == f"Wrote the rows to {path}\n"
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(path.name for path in paths.values())
    expected = [(record["op"], record["calls"]) for record in json.loads(paths["json"].read_text())]
    assert duckdb.execute(f"from '{paths['parquet']}'").fetchall() == expected
    assert [(row["op"], int(row["calls"])) for row in csv.DictReader(paths["csv"].read_text().splitlines())] == expected
    assert paths["txt"].read_text().endswith(f"({len(expected)} rows)\n")


@pytest.mark.parametrize("name", ["rows.csv", "rows.parquet"])
def test_nothing_is_overwritten_without_force(
    name: str, job: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / name
    path.write_text("mine")
    assert main(["query", job, COUNT, "-o", str(path)]) == 2
    assert "exists already" in capsys.readouterr().err
    assert path.read_text() == "mine"
    assert main(["query", job, COUNT, "-o", str(path), "--force"]) == 0
    assert path.read_bytes() != b"mine"


def test_a_failed_query_leaves_no_file(job: str, tmp_path: Path) -> None:
    assert main(["query", job, "from nothing_like_this", "-o", str(tmp_path / "rows.parquet")]) == 2
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["rows.parquet", "rows.csv"])
def test_a_failed_write_leaves_no_file(
    name: str, job: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.replace", fail)
    path = tmp_path / name
    assert main(["query", job, COUNT, "-o", str(path)]) == 2
    assert f"error: cannot write {path}: No space left on device" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--format", "parquet"), "Parquet cannot be printed"),
        (("--format", "csv", "--json"), "--json and --format csv contradict"),
        (("-o", "rows.xlsx"), "unknown file extension: 'rows.xlsx'"),
    ],
)
def test_requests_that_make_no_sense(
    arguments: tuple[str, ...], message: str, job: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["query", job, COUNT, *arguments]) == 2
    assert message in capsys.readouterr().err
