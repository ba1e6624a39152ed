from __future__ import annotations

import json
import pickle
import sqlite3
from itertools import groupby
from pathlib import Path
from typing import Any

import duckdb
import pytest

from rankscope import pipeline
from rankscope.cli import build_parser, main
from rankscope.commands.fr import parse_ranks
from rankscope.simulate import Fault, JobSpec, Mesh, Noise, simulate

pytestmark = pytest.mark.slow

TORCH_FLAGS = [
    *("--selected-ranks", "--allow-incomplete-ranks", "--pg-filters", "--output", "--prefix", "--just_print_entries"),
    *("--verbose", "--print_stack_trace", "--mismatch_cap", "--transform-ft", "--group-world-size", "-o", "-p", "-j"),
]


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Rank 5 calls something else on the world group."""
    folder = tmp_path_factory.mktemp("job")
    simulate(JobSpec(Mesh(dp=4, tp=2)), Fault("op", rank=5)).write(folder)
    return str(folder)


@pytest.fixture(scope="module")
def pipeline_job(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("pipeline")
    simulate(JobSpec(Mesh(dp=2, tp=2, pp=2)), Fault("stuck", rank=5)).write(folder)
    return str(folder)


@pytest.mark.parametrize("flag", TORCH_FLAGS)
def test_flags_of_torch_in_both_spellings(flag: str) -> None:
    values = {"--selected-ranks": ["0"], "--pg-filters": ["dp"], "--mismatch_cap": ["3"], "--group-world-size": ["2"]}
    values |= {"--output": ["x.json"], "-o": ["x.json"], "--prefix": ["trace_"], "-p": ["trace_"]}
    spellings = {flag, flag[:2] + flag[2:].replace("_", "-"), flag[:2] + flag[2:].replace("-", "_")}
    parsed = [vars(build_parser().parse_args(["fr", "x", name, *values.get(flag, [])])) for name in spellings]
    assert all(options == parsed[0] for options in parsed)
    assert parsed[0] != vars(build_parser().parse_args(["fr", "x"]))


@pytest.mark.parametrize(
    ("text", "ranks"), [("3", [3]), ("0-2", [0, 1, 2]), ("0-2,7", [0, 1, 2, 7]), ("4,1", [4, 1]), ("2-2", [2])]
)
def test_ranks_as_people_write_them(text: str, ranks: list[int]) -> None:
    assert parse_ranks(text) == ranks


def test_groups_mismatches_and_verdict(job: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fr", job]) == 1
    printed = capsys.readouterr()
    assert printed.err == ""
    lines = printed.out.splitlines()
    world = next(line for line in lines if line.startswith("0 ")).split(None, 6)
    assert world[1:3] == ["default_pg", "8"]
    assert int(world[3]) == int(world[4]) + 1
    assert world[5:] == ["1", f"{world[3]} all_reduce: all joined"]
    place = lines.index(f'group 0 "default_pg" (8 ranks), collective {world[3]}:')
    assert lines[place + 1].split("  ")[2].strip() == "7 ranks (0-4,6,7)"
    assert " all_reduce [1] f32 waiting " in lines[place + 1]
    assert lines[place + 2].strip().startswith("rank 5 ")
    assert "error[H102] (certain) rank 5 called broadcast" in printed.out
    assert lines[-1] == "Next: rankscope explain H102"


def test_who_has_not_joined_is_named(pipeline_job: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fr", pipeline_job, "--json"]) == 1
    record = json.loads(capsys.readouterr().out)
    open_groups = [group for group in record["groups"] if group["first_unfinished"]]
    assert all(group["first_unfinished"]["missing"] for group in open_groups)
    assert any(group["first_unfinished"]["missing"] == [5] for group in open_groups)
    assert record["report"]["findings"][0]["ranks"] == [5]


def test_a_healthy_job_is_in_order(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    simulate(JobSpec(Mesh(dp=32, tp=2))).write(tmp_path)
    assert main(["fr", str(tmp_path)]) == 0
    printed = capsys.readouterr().out
    assert printed.startswith("35 groups with every call matched and done (-v lists them)\n")
    assert "No problems found." in printed
    assert printed.splitlines()[-1] == f"Next: rankscope fr {tmp_path} -j"


def test_wrapped_rings_are_no_mismatch(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    simulate(JobSpec(Mesh(dp=2, tp=2, pp=2)), noise=Noise(ring=40)).write(tmp_path)
    assert main(["fr", str(tmp_path), "--json"]) == 0
    record = json.loads(capsys.readouterr().out)
    assert record["mismatches"] == []
    assert all(group["n_done"] == group["n_collectives"] for group in record["groups"])
    assert any(0 < group["n_collectives"] < 40 for group in record["groups"])
    assert all(group["first_unfinished"] is None for group in record["groups"])


def test_the_cap_counts_what_it_does_not_list(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    simulate(JobSpec(Mesh(dp=4, tp=2), steps=6), Fault("size", rank=2)).write(tmp_path)
    main(["fr", str(tmp_path), "--mismatch_cap", "0"])
    printed = capsys.readouterr().out
    assert "1 mismatch in 1 group not listed" in printed
    main(["fr", str(tmp_path), "--mismatch-cap", "1"])
    assert "not listed" not in capsys.readouterr().out.replace("not listed (--all)", "").replace("not listed:", "")


def test_ranks_side_by_side(job: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fr", job, "-j"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "group default_pg: 0 (8 ranks)"
    assert lines[1] == "group tp: 4 groups of 2 ranks (1, 2, 3, ...)"
    head = next(line for line in lines if line.startswith("group       seq"))
    assert head.endswith("  rank 5")
    assert "7 ranks (0-4,6,7)" in head
    last = [line for line in lines if line.startswith("default_pg")][-1]
    assert "all_reduce [1] f32 waiting" in last
    assert last.endswith("broadcast [1] f32 waiting")
    assert lines[-1] == f"Next: rankscope {job}"


def side_by_side(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    assert main(["fr", *arguments, "-j", "--json"]) == 0
    record: dict[str, Any] = json.loads(capsys.readouterr().out)
    return record


def test_every_call_is_shown_once_and_in_the_order_of_its_rank(
    pipeline_job: str, capsys: pytest.CaptureFixture[str]
) -> None:
    record = side_by_side(capsys, pipeline_job)
    assert sorted(rank for ranks in record["columns"] for rank in ranks) == list(range(8))
    main(["query", pipeline_job, "select rank, op from collectives order by rank, record_id", "--json"])
    calls = json.loads(capsys.readouterr().out)
    for column, ranks in enumerate(record["columns"]):
        shown = [row["cells"][column].split()[0] for row in record["rows"] if row["cells"][column]]
        for rank in ranks:
            assert without_order_in_batches(shown) == without_order_in_batches(
                [call["op"] for call in calls if call["rank"] == rank]
            )


def without_order_in_batches(ops: list[str]) -> list[str]:
    """Sends and receives between two other calls are made at once."""
    pairs = groupby(ops, key=lambda op: op in ("send", "recv"))
    return [op for is_p2p, part in pairs for op in (sorted(part) if is_p2p else part)]


def test_a_send_stands_beside_its_receive(pipeline_job: str, capsys: pytest.CaptureFixture[str]) -> None:
    record = side_by_side(capsys, pipeline_job, "--selected-ranks", "0", "4", "--pg-filters", "pp")
    pairs = [row["cells"] for row in record["rows"] if row["cells"][0].startswith("send")]
    assert record["columns"] == [[0], [4]]
    assert pairs
    assert all(cells[0].startswith("send to 4 ") and cells[1].startswith("recv from 0 ") for cells in pairs)


def test_transfers_of_different_pairs_stand_apart(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    simulate(JobSpec(Mesh(dp=2, tp=1, pp=3))).write(tmp_path)
    record = side_by_side(capsys, str(tmp_path), "--selected-ranks", "0", "2", "4", "--pg-filters", "pp")
    assert record["columns"] == [[0], [2], [4]]
    transfers = [[cell for cell in row["cells"] if cell[:4] in ("send", "recv")] for row in record["rows"]]
    kinds = {tuple(sorted(" ".join(cell.split()[:3]) for cell in cells)) for cells in transfers if cells}
    assert kinds == {(f"recv from {src}", f"send to {dst}") for src, dst in ((0, 2), (2, 4), (4, 2), (2, 0))}


def test_equal_ranks_name_their_peers_by_distance(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    simulate(JobSpec(Mesh(dp=4, tp=2, pp=2))).write(tmp_path)
    record = side_by_side(capsys, str(tmp_path))
    assert record["columns"] == [list(range(8)), list(range(8, 16))]
    cells = next(row["cells"] for row in record["rows"] if row["cells"][0].startswith("send"))
    assert cells[0].startswith("send to rank+8 ")
    assert cells[1].startswith("recv from rank-8 ")


def test_opposite_orders_are_still_printed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    simulate(JobSpec(Mesh(dp=4, tp=2)), Fault("order")).write(tmp_path)
    record = side_by_side(capsys, str(tmp_path))
    main(["query", str(tmp_path), "select rank, count(*) as n from collectives group by rank", "--json"])
    n_calls = {row["rank"]: row["n"] for row in json.loads(capsys.readouterr().out)}
    for column, ranks in enumerate(record["columns"]):
        assert {n_calls[rank] for rank in ranks} == {sum(bool(row["cells"][column]) for row in record["rows"])}


def test_selected_ranks_and_groups(job: str, capsys: pytest.CaptureFixture[str]) -> None:
    record = side_by_side(capsys, job, "--selected_ranks", "4-5", "7", "--pg_filters", "default_pg", "1")
    assert sorted(rank for ranks in record["columns"] for rank in ranks) == [4, 5, 7]
    assert {row["group"] for row in record["rows"]} == {"default_pg"}, "none of the ranks is in group 1"
    main(["fr", job, "--selected-ranks", "5", "--json"])
    shown = [group["desc"] for group in json.loads(capsys.readouterr().out)["groups"]]
    assert shown == ["default_pg", "tp", "dp"]


def test_a_terminal_gets_columns_that_fit(
    job: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    monkeypatch.setenv("COLUMNS", "70")
    main(["fr", job, "-j", "--color", "never"])
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines[:-1])) <= 70
    assert sum(line.startswith("group       seq") for line in lines) == 2


def test_stacks_are_numbered_and_shared(job: str, capsys: pytest.CaptureFixture[str]) -> None:
    main(["fr", job, "-j", "--print_stack_trace", "--pg-filters", "default_pg"])
    printed = capsys.readouterr().out
    call = next(line for line in printed.splitlines() if "broadcast [1]" in line).rpartition("#")[2]
    assert f"stack #{call}: rank 5, 1 call (broadcast)\n" in printed
    assert " in clip_gradients\n" in printed.partition(f"stack #{call}:")[2]
    main(["fr", job, "--print-stack-trace"])
    assert f"stack #{call}: rank 5, 1 call (broadcast)\n" in capsys.readouterr().out


def test_dumps_without_stacks(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    simulate(JobSpec(Mesh(dp=4, tp=2)), Fault("op", rank=5)).write(tmp_path / "job", as_json=True)
    assert main(["fr", str(tmp_path / "job"), "-j", "--print-stack-trace"]) == 0
    printed = capsys.readouterr().out
    assert "#" not in printed
    assert "\nstack" not in printed
    flat = flat_json(str(tmp_path / "job"), tmp_path)
    assert {row["id"]: row["frames"] for row in flat["tracebacks"]} == {
        call["traceback_id"]: [] for call in flat["ncclcalls"]
    }


def test_groups_of_one_name_are_told_apart(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for first in (0, 4):
        for rank, dump in simulate(JobSpec(Mesh(dp=2, tp=2))).dumps():
            for group in dump["pg_config"].values():
                members = [first + int(member) for member in json.loads(group["ranks"])]
                group.update(ranks=str(members), desc="")
            for entry in dump["entries"]:
                entry["process_group"] = (entry["process_group"][0], "undefined")
            (tmp_path / f"nccl_trace_rank_{first + rank}").write_bytes(pickle.dumps(dump, protocol=2))
    record = side_by_side(capsys, str(tmp_path))
    assert {"0:0", "0:1"} <= {row["group"] for row in record["rows"]}


def test_verbose_prints_the_tables(job: str, capsys: pytest.CaptureFixture[str]) -> None:
    main(["fr", job, "-v", "--pg-filters", "dp"])
    lines = capsys.readouterr().out.splitlines()
    for name in ("groups:", "memberships:", "collectives:", "ncclcalls:"):
        assert name in lines
    assert sum(line.split()[:1] == ["5"] and "dp" in line for line in lines) >= 1


def test_missing_ranks_are_warned_of_unless_expected(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    simulate(JobSpec(Mesh(dp=4, tp=2)), Fault("op", rank=5), Noise(lost=1)).write(tmp_path)
    assert main(["fr", str(tmp_path)]) == 1
    assert "warning[D901]" in capsys.readouterr().out
    assert main(["fr", str(tmp_path), "--allow-incomplete-ranks"]) == 1
    printed = capsys.readouterr().out
    assert "D901" not in printed
    assert "error[H102] (certain) rank 5" in printed


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--selected-ranks", "99"), "no dump of rank 99"),
        (("--selected-ranks", "first"), "'first' is not a list of ranks; write it like 0-7,12"),
        (("--pg-filters", "dpp"), "no process group is called 'dpp'"),
        (("--transform-ft",), "--transform-ft needs to know how many ranks a replica has"),
        (("--mismatch_cap", "-1"), "argument --mismatch_cap"),
        (("-o", "x.xlsx"), "unknown file extension"),
    ],
)
def test_requests_that_make_no_sense(
    arguments: tuple[str, ...], message: str, job: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["fr", job, *arguments]) == 2
    assert message in capsys.readouterr().err


def test_replicas_are_told_apart(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Two replicas of four ranks; each numbers the members of its groups from 0."""
    for first, fault in ((0, None), (4, Fault("op", rank=1))):
        for rank, dump in simulate(JobSpec(Mesh(dp=2, tp=2)), fault).dumps():
            (tmp_path / f"nccl_trace_rank_{first + rank}").write_bytes(pickle.dumps(dump, protocol=2))
    assert main(["fr", str(tmp_path), "--transform-ft", "--group-world-size", "4", "--json"]) == 1
    record = json.loads(capsys.readouterr().out)
    assert [group["size"] for group in record["groups"] if group["desc"] == "default_pg"] == [4, 4]
    finding = record["report"]["findings"][0]
    assert (finding["rule"], finding["ranks"]) == ("op-mismatch", [5])


# The flat database


def flat_json(job: str, folder: Path) -> dict[str, list[dict[str, Any]]]:
    assert main(["fr", job, "-o", str(folder / "flat.json")]) == 1
    content: dict[str, list[dict[str, Any]]] = json.loads((folder / "flat.json").read_text())
    return content


def test_the_flat_database_names_both_sides(job: str, tmp_path: Path) -> None:
    flat = flat_json(job, tmp_path)
    (odd,) = (row for row in flat["collectives"] if row["type_of_mismatch"])
    assert (odd["pg_desc"], odd["collective_name"], odd["pass_check"]) == ("default_pg", "nccl:all_reduce", False)
    assert odd["type_of_mismatch"] == "COLLECTIVE_TYPE_MISMATCH"
    assert [(call["global_rank"], call["collective_name"]) for call in odd["mismatch_collectives"]] == [
        (5, "nccl:broadcast")
    ]
    assert odd["expected_ranks"] == list(range(8))
    assert (odd["input_sizes"], odd["input_numel"]) == ([[1]], 1)


def test_the_flat_database_is_whole(pipeline_job: str, tmp_path: Path) -> None:
    flat = flat_json(pipeline_job, tmp_path)
    assert len(flat["memberships"]) == sum(group["size"] for group in flat["groups"])
    assert [call["id"] for call in flat["ncclcalls"]] == list(range(len(flat["ncclcalls"])))
    tracebacks = {row["id"]: row["frames"] for row in flat["tracebacks"]}
    assert all(tracebacks[call["traceback_id"]] for call in flat["ncclcalls"])
    assert {"name", "filename", "line"} == tracebacks[0][0].keys()
    by_id = {row["id"]: row for row in flat["collectives"]}
    for call in flat["ncclcalls"]:
        if call["collective_id"] is not None:
            assert call["global_rank"] in by_id[call["collective_id"]]["expected_ranks"]
            assert call["global_rank"] not in by_id[call["collective_id"]]["missing_ranks"]
    assert any(row["missing_ranks"] == [5] for row in flat["collectives"])
    assert all(row["pass_check"] == (not row["missing_ranks"]) for row in flat["collectives"])


@pytest.mark.parametrize(
    ("fault", "kind"), [("size", "SIZE_OR_SYNTAX_MISMATCH"), ("dtype", "COLLECTIVE_DTYPE_MISMATCH")]
)
def test_kinds_of_mismatch(fault: str, kind: str, tmp_path: Path) -> None:
    simulate(JobSpec(Mesh(dp=4, tp=1)), Fault(fault, rank=0)).write(tmp_path / "job")
    flat = flat_json(str(tmp_path / "job"), tmp_path)
    odd = [row for row in flat["collectives"] if row["type_of_mismatch"]]
    assert {row["type_of_mismatch"] for row in odd} == {kind}
    assert [call["global_rank"] for call in odd[0]["mismatch_collectives"]] == [0], "the first rank may be the odd one"


def test_the_flat_database_is_the_same_in_every_format(
    job: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trace = pipeline.load([job])
    monkeypatch.setattr(pipeline, "load", lambda *_, **__: trace)
    flat = flat_json(job, tmp_path)
    for name in ("flat.duckdb", "flat.sqlite", "flat.pickle", "folder"):
        assert main(["fr", job, "-o", str(tmp_path / name)]) == 1
    content = pickle.loads((tmp_path / "flat.pickle").read_bytes())
    connection = sqlite3.connect(tmp_path / "flat.sqlite")
    with duckdb.connect(str(tmp_path / "flat.duckdb"), read_only=True) as written:
        for table, rows in flat.items():
            values = [tuple(row.values()) for row in rows]
            assert written.execute(f"from {table}").fetchall() == values
            assert duckdb.execute(f"from '{tmp_path}/folder/{table}.parquet'").fetchall() == values
            assert list(zip(*content[table].values(), strict=True)) == values
            stored = connection.execute(f"select * from {table}").fetchall()
            assert [tuple(map(_from_sqlite, row, value)) for row, value in zip(stored, values, strict=True)] == values
    connection.close()


def _from_sqlite(stored: Any, value: Any) -> Any:
    return json.loads(stored) if isinstance(value, list) else bool(stored) if isinstance(value, bool) else stored


def test_an_existing_database_is_kept(job: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "flat.sqlite"
    path.write_text("mine")
    assert main(["fr", job, "-o", str(path)]) == 2
    assert path.read_text() == "mine"
    assert capsys.readouterr().out == "", "it refuses before it reads"
