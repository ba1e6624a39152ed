from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import duckdb
import pytest

from rankscope.cli import main
from rankscope.model.tables import SCHEMA
from rankscope.simulate.execution import PairOptions, observe, write_execution_trace, write_pairs
from rankscope.simulate.profiler import ProfileNoise, ProfileSpec, simulate_profile

pytestmark = pytest.mark.slow

SPEC = ProfileSpec(data_parallel=2, n_steps=2, n_layers=1, n_microbatches=1)
JOB = simulate_profile(SPEC)
KEYS = {"file_id", "rank"}


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pairs")
    write_pairs(JOB, folder)
    return folder


@pytest.fixture
def copied(pairs: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(pairs, tmp_path / "copied"))


def link(*arguments: str | Path) -> int:
    return main(["link", "--no-cache", *map(str, arguments)])


def lines_of(capsys: pytest.CaptureFixture[str]) -> list[str]:
    printed = capsys.readouterr()
    assert not printed.err
    return printed.out.splitlines()


def pairs_told(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> list[dict[str, Any]]:
    assert link("--json", *arguments) == 0
    told: list[dict[str, Any]] = json.loads(capsys.readouterr().out)["pairs"]
    return told


def query(sql: str) -> list[tuple[Any, ...]]:
    with duckdb.connect() as connection:
        return connection.execute(sql).fetchall()


def as_clean(folder: Path, times_faster: int = 2) -> None:
    """Profiler traces as they are without the observer: no numbers of record functions, and operators are faster."""
    for path in folder.glob("kineto_*.json"):
        document = json.loads(path.read_text())
        for event in document["traceEvents"]:
            if "Record function id" in event.get("args", {}):
                event["args"]["Record function id"] = 0
                event["dur"] /= times_faster
        path.write_text(json.dumps(document))


def test_the_rates_of_all_ranks_are_told(pairs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert link(pairs) == 0
    lines = lines_of(capsys)
    heads = "rank nodes linked how kernels collectives edges execution trace profiler trace"
    assert lines[0].split() == heads.split()
    for rank, line in enumerate(lines[2:4]):
        files = [f"torch_et_{rank}.json", f"kineto_trace_{rank}.json"]
        assert line.split()[:5] == [str(rank), "178", "100%", "id", "62"]
        assert line.split()[-2:] == files
    assert lines[4:-1] == [
        "",
        "note: 348 durations were measured with the observer on: short operators look slower;",
        "      if you have traces of the same steps without it, add --durations-from PATH",
    ]
    assert lines[-1] == f"Next: rankscope link {pairs} -o linked/"


def test_json_has_the_same_and_more(pairs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for rank, pair in enumerate(pairs_told(capsys, pairs)):
        assert {name: pair[name] for name in ("rank", "method", "why")} == {"rank": rank, "method": "id", "why": ""}
        assert (pair["n_nodes"], pair["n_linkable"], pair["n_linked"], pair["link_pct"]) == (178, 174, 174, 100)
        assert (pair["n_wrong_names"], pair["n_outside"]) == (0, 0)
        assert (pair["n_kernels"], pair["n_collectives"]) == (62, 2)
        assert (pair["n_inflated"], pair["n_transplanted"]) == (174, 0)
        assert pair["execution_trace"] == str(pairs / f"torch_et_{rank}.json")
        assert pair["profiler_trace"] == str(pairs / f"kineto_trace_{rank}.json")


def test_a_folder_gets_tables_and_a_timeline(pairs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "made" / "linked"
    assert link(pairs, "-o", f"{folder}{os.sep}") == 0
    tables = ("nodes", "edges", "kernels", "collectives")
    assert sorted(os.listdir(folder)) == sorted([*(f"{name}.parquet" for name in tables), "trace.json.gz"])
    counts = {name: query(f"SELECT count(*) FROM '{folder}/{name}.parquet'")[0][0] for name in tables}
    assert (counts["nodes"], counts["kernels"], counts["collectives"]) == (356, 124, 4)
    lines = lines_of(capsys)
    for name, count in counts.items():
        assert f"Wrote {folder}{os.sep}{name}.parquet ({count:,} rows)" in lines
    [told] = [line for line in lines if "trace.json.gz" in line]
    assert told.endswith(" events)")
    assert lines[-1] == f"Next: rankscope export {pairs} --to chakra -o et/"


def columns_of(path: Path) -> set[str]:
    return {row[0] for row in query(f"DESCRIBE FROM '{path}'")}


def named(*tables: str) -> set[str]:
    return KEYS | {column.name for table in tables for column in SCHEMA[table].columns}


def test_each_table_is_complete_in_itself(pairs: Path, tmp_path: Path) -> None:
    assert link(pairs, "-o", tmp_path / "linked") == 0
    folder = tmp_path / "linked"
    assert columns_of(folder / "nodes.parquet") == named("et_nodes", "et_links")
    assert columns_of(folder / "edges.parquet") == named("et_edges")
    assert columns_of(folder / "kernels.parquet") == named("kernels") | {"node_file_id", "node_id"}
    assert columns_of(folder / "collectives.parquet") == named("et_collectives")
    # Each kernel is under the node that is the operator which launched it.
    assert query(
        f"""SELECT count(*), count(*) FILTER (n.op_id = k.op_id AND n.rank = k.rank AND n.profile_id = k.file_id)
            FROM '{folder}/kernels.parquet' AS k
            LEFT JOIN '{folder}/nodes.parquet' AS n ON n.file_id = k.node_file_id AND n.node_id = k.node_id"""
    ) == [(124, 124)]
    assert query(
        f"""SELECT count(*) FROM '{folder}/edges.parquet' AS e ANTI JOIN '{folder}/nodes.parquet' AS n
            ON n.file_id = e.file_id AND n.node_id = e.target_id WHERE e.target = 'node'"""
    ) == [(0,)]


def test_tables_without_rows_are_written_and_told_as_well(
    pairs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "linked"
    assert link(pairs / "torch_et_0.json", "-o", folder) == 0
    assert columns_of(folder / "kernels.parquet") == named("kernels") | {"node_file_id", "node_id"}
    assert f"Wrote {folder / 'kernels.parquet'} (0 rows)" in lines_of(capsys)


def test_one_observer_over_two_profilers_has_the_kernels_of_both(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As a schedule with repeat=2 leaves them."""
    write_pairs(JOB, tmp_path)
    path = tmp_path / "kineto_trace_0.json"
    document = json.loads(path.read_text())
    ends = sorted(e["ts"] + e["dur"] for e in document["traceEvents"] if e["name"].startswith("ProfilerStep"))
    early = [e for e in document["traceEvents"] if e.get("ts", 0) < ends[0]]
    late = [e for e in document["traceEvents"] if e.get("ts", ends[0]) >= ends[0]]
    for name, events in (("kineto_trace_0.json", early), ("kineto_later_0.json", late)):
        (tmp_path / name).write_text(json.dumps({**document, "traceEvents": events}))
    (tmp_path / "torch_et_1.json").unlink()
    [pair] = pairs_told(capsys, tmp_path, "-o", tmp_path / "linked")
    assert (pair["n_linked"], pair["n_kernels"]) == (174, 62)
    assert query(f"SELECT count(*), count(DISTINCT file_id) FROM '{tmp_path}/linked/kernels.parquet'") == [(62, 2)]
    assert query(f"SELECT count(*) FROM '{tmp_path}/linked/edges.parquet'") == [(pair["n_edges"],)]


def test_a_folder_that_is_in_use_is_not_written_into(
    pairs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "linked"
    folder.mkdir()
    (folder / "mine.txt").write_text("mine")
    assert link(pairs, "-o", folder) == 2
    assert f"{folder} is not empty" in capsys.readouterr().err
    assert os.listdir(folder) == ["mine.txt"]
    assert link(pairs, "-o", folder, "--force") == 0
    assert (folder / "mine.txt").read_text() == "mine"
    assert len(os.listdir(folder)) == 6
    assert link(pairs, "-o", folder, "--force") == 0
    assert len(os.listdir(folder)) == 6


def test_an_empty_folder_is_taken(pairs: Path, tmp_path: Path) -> None:
    (tmp_path / "linked").mkdir()
    assert link(pairs, "-o", tmp_path / "linked") == 0


@pytest.mark.parametrize("more", [[], ["--force"]])
def test_a_file_in_the_place_of_the_folder_stays(
    pairs: Path, more: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "linked").write_text("mine")
    assert link(pairs, "-o", tmp_path / "linked", *more) == 2
    assert f"{tmp_path / 'linked'} is a file" in capsys.readouterr().err
    assert (tmp_path / "linked").read_text() == "mine"


def test_a_folder_below_a_file_cannot_be_made(pairs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("mine")
    assert link(pairs, "-o", tmp_path / "file" / "linked") == 2
    assert "cannot create the folder" in capsys.readouterr().err


def test_without_an_execution_trace_it_says_how_to_record_one(
    pairs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert link(pairs / "kineto_trace_0.json", "-o", tmp_path / "linked") == 2
    printed = capsys.readouterr()
    assert not printed.out
    assert f"no execution trace in {pairs / 'kineto_trace_0.json'}" in printed.err
    assert 'execution_trace_observer=ExecutionTraceObserver().register_callback("torch_et_<rank>.json")' in printed.err
    assert not (tmp_path / "linked").exists()


def test_a_rank_without_a_profiler_trace_is_told_and_the_others_are_linked(
    copied: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (copied / "kineto_trace_1.json").unlink()
    first, second = pairs_told(capsys, copied)
    assert (first["link_pct"], second["link_pct"]) == (100, 0)
    assert (second["why"], second["method"], second["profiler_trace"], second["n_kernels"]) == (
        "no-profile",
        "none",
        "",
        0,
    )
    assert link(copied) == 0
    lines = lines_of(capsys)
    assert lines[3].split()[2:4] == ["0%", "none"]
    assert "note: rank 1: the execution trace has no matching profiler trace, so 174 operators have no times" in lines
    assert lines[-1].startswith("Next: rankscope link")


def test_where_nothing_is_linked_the_next_step_is_to_read_why(copied: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other = simulate_profile(ProfileSpec(data_parallel=2, n_steps=2, n_layers=2, n_microbatches=1))
    for rank in JOB.ranks:
        write_execution_trace(observe(other, rank), copied / f"torch_et_{rank}.json")
    assert link(copied) == 0
    lines = lines_of(capsys)
    assert "note: ranks 0,1: the execution trace and the profiler trace come from different runs, " in "\n".join(lines)
    assert lines[-1] == "Next: rankscope explain L501"


def test_rates_are_cut_so_that_only_all_is_100(copied: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_pairs(JOB, copied, PairOptions(observed_steps=(0, 2)))
    assert link(copied) == 0
    lines = lines_of(capsys)
    assert lines[2].split()[2] == "66.66%"  # 174 of 261
    assert "note: ranks 0,1: the observer recorded more than the profiler, so 174 operators have no times" in lines


def test_two_execution_traces_of_a_rank_are_one_rank_in_the_notes(
    copied: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("torch_et_0.json", "torch_et_0_again.json"):
        write_execution_trace(observe(JOB, 0, (0, 2)), copied / name)
    assert link(copied) == 0
    [note] = [line for line in lines_of(capsys) if "recorded more" in line]
    assert note.startswith("note: rank 0: ")


def test_junk_in_the_folder_does_not_matter(copied: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (copied / "notes.txt").write_text("nothing")
    (copied / "config.json").write_text('{"nodes": 2, "schema": 1}')
    (copied / "core.1234").write_bytes(bytes(range(256)) * 20)
    (copied / "empty.json").touch()
    (copied / "folder").mkdir()
    assert [pair["link_pct"] for pair in pairs_told(capsys, copied)] == [100, 100]


def test_files_that_are_cut_off_are_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_pairs(simulate_profile(SPEC, noise=ProfileNoise(cut_ranks=(1,))), tmp_path)
    assert link(tmp_path) == 0
    lines = lines_of(capsys)
    assert f"note: {tmp_path / 'kineto_trace_1.json'} is truncated after 61,426 bytes: " in "\n".join(lines)
    assert "note: rank 1: the profiler trace is cut off, so 40 operators have no times" in lines


def test_durations_of_clean_steps_are_taken(
    pairs: Path, copied: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The folder of clean steps has execution traces of its own, which are not what is to be linked."""
    as_clean(copied)
    told = pairs_told(capsys, pairs, "--durations-from", copied, "-o", tmp_path / "fast")
    assert [(pair["n_inflated"], pair["n_transplanted"]) for pair in told] == [(0, 174), (0, 174)]
    assert link(pairs, "-o", tmp_path / "slow") == 0
    assert query(
        f"""SELECT count(*), median(slow.duration_ns / fast.duration_ns)
            FROM '{tmp_path}/fast/nodes.parquet' AS fast
            JOIN '{tmp_path}/slow/nodes.parquet' AS slow USING (rank, node_id)
            WHERE fast.duration_ns > 0 AND slow.start_ns = fast.start_ns"""
    ) == [(348, pytest.approx(2, abs=0.01))]
    capsys.readouterr()
    assert link(pairs, "--durations-from", copied) == 0
    lines = lines_of(capsys)
    assert "note: 348 durations are from steps without the observer, 0 are not" in lines
    assert lines[-1] == f"Next: rankscope link {pairs} --durations-from {copied} -o linked/"


def test_durations_that_cannot_be_used_are_told(pairs: Path, copied: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """These were recorded with the observer, too."""
    assert link(pairs, "--durations-from", copied) == 0
    note = f"note: no durations taken from {copied}: other ranks or steps, or recorded with the observer"
    assert note in lines_of(capsys)


def test_durations_from_nowhere_are_refused(pairs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    nowhere = tmp_path / "nowhere"
    assert link(pairs, "--durations-from", nowhere) == 2
    assert f"{nowhere}: no such file or folder\n" in capsys.readouterr().err
    shutil.copy(pairs / "torch_et_0.json", tmp_path)
    assert link(pairs, "--durations-from", tmp_path) == 2
    printed = capsys.readouterr()
    assert f"no profiler trace in {tmp_path}\n" in printed.err
    assert "recorded without the observer" in printed.err


@pytest.fixture
def with_clean_steps(pairs: Path, copied: Path, tmp_path: Path) -> Path:
    """As `rankscope record` leaves it: the pairs, and profiles of clean steps beside them."""
    folder = tmp_path / "recorded"
    shutil.copytree(pairs, folder)
    as_clean(copied)
    for rank in range(2):
        shutil.copy(copied / f"kineto_trace_{rank}.json", folder / f"kineto_clean_{rank}.json")
    return folder


def test_clean_steps_beside_the_pairs_are_taken_unasked(
    with_clean_steps: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    told = pairs_told(capsys, with_clean_steps)
    assert [(pair["n_inflated"], pair["n_transplanted"]) for pair in told] == [(0, 174), (0, 174)]
    assert link(with_clean_steps) == 0
    lines = lines_of(capsys)
    assert "note: 348 durations are from steps without the observer, 0 are not" in lines
    assert lines[-1] == f"Next: rankscope link {with_clean_steps} -o linked/"


def test_raw_durations_can_be_asked_for(with_clean_steps: Path, capsys: pytest.CaptureFixture[str]) -> None:
    told = pairs_told(capsys, with_clean_steps, "--raw-durations")
    assert [(pair["n_inflated"], pair["n_transplanted"]) for pair in told] == [(174, 0), (174, 0)]
    assert link(with_clean_steps, "--raw-durations") == 0
    lines = lines_of(capsys)
    assert "note: 348 durations were measured with the observer on: short operators look slower;" in lines
    assert lines[-1] == f"Next: rankscope link {with_clean_steps} --raw-durations -o linked/"
    assert link(with_clean_steps, "--raw-durations", "--durations-from", with_clean_steps) == 2


def test_a_trace_without_operators_is_no_success(
    copied: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for path in copied.glob("torch_et_*.json"):
        document = json.loads(path.read_text())
        kept = ("[pytorch", "## ", "ProfilerStep")
        document["nodes"] = [node for node in document["nodes"] if node["name"].startswith(kept)]
        path.write_text(json.dumps(document))
    assert link(copied) == 1
    lines = lines_of(capsys)
    assert all("no operators" in line and "%" not in line for line in lines[2:4])
    assert any(line.startswith("note: ranks 0,1: the execution trace has no operators") for line in lines)
    assert lines[-1] == "Next: rankscope explain L505"
    assert main(["export", str(copied), "--to", "chakra", "-o", str(tmp_path / "et")]) == 0
    assert "the execution trace has no operators, so there is nothing to replay" in capsys.readouterr().out
