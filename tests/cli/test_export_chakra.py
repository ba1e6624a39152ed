from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest

from rankscope.analyze.chakra.validate import validate
from rankscope.cli import main
from rankscope.model.chakra import COMM_COLL, Attribute
from rankscope.read.chakra_file import read_chakra
from rankscope.simulate.execution import PairOptions, observe, write_execution_trace, write_pairs
from rankscope.simulate.profiler import ProfileSpec, simulate_profile

pytestmark = pytest.mark.slow

JOB = simulate_profile(ProfileSpec(data_parallel=2, n_steps=2, n_layers=1, n_microbatches=1))


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("pairs")
    write_pairs(JOB, folder, PairOptions())
    return str(folder)


def export(*arguments: str) -> int:
    return main(["export", "--no-cache", "--to", "chakra", *arguments])


def written(folder: Path) -> Sequence[str]:
    return sorted(path.name for path in folder.iterdir())


def test_every_rank_becomes_a_file_that_simulators_take(
    pairs: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "made" / "et"
    assert export(pairs, "-o", f"{folder}/") == 0
    assert written(folder) == ["trace.0.et", "trace.1.et"]
    files = [read_chakra(folder / name) for name in written(folder)]
    verdict = validate(files)
    assert (verdict.valid, verdict.n_errors, verdict.n_warnings) == (True, 0, 0)
    assert [file.attributes["rank"] for file in files] == [Attribute("int64", 0), Attribute("int64", 1)]
    assert all(any(node.type == COMM_COLL for node in file.nodes) for file in files)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split()[:2] == ["rank", "nodes"]
    assert [line.split()[-1] for line in lines[2:4]] == [f"{folder}/trace.0.et", f"{folder}/trace.1.et"]
    assert [int(line.split()[1]) for line in lines[2:4]] == [len(file.nodes) for file in files]
    assert lines[-1] == f"Next: rankscope chakra validate {folder}"


def test_json_says_what_is_in_the_files(pairs: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert export(pairs, "-o", str(tmp_path / "et"), "--json", "--name", "job") == 0
    said = json.loads(capsys.readouterr().out)
    assert said["format"] == "chakra"
    assert [rank["path"] for rank in said["ranks"]] == [str(tmp_path / "et" / f"job.{rank}.et") for rank in (0, 1)]
    for rank in said["ranks"]:
        nodes = read_chakra(rank["path"]).nodes
        assert rank["n_nodes"] == len(nodes) == sum(rank["nodes_by_type"].values())
        assert rank["n_nodes"] == rank["n_operators"] + rank["n_host_time"] + rank["n_kernels"] + 1  # the groups
        assert rank["n_ctrl_deps"] == sum(len(node.ctrl_deps) for node in nodes)
        assert rank["n_data_deps"] == sum(len(node.data_deps) for node in nodes)
        assert set(rank["left_out"].values()) == {0}
        assert rank["execution_trace"].endswith(f"torch_et_{rank['rank']}.json")
        assert [Path(path).name for path in rank["profiler_traces"]] == [f"kineto_trace_{rank['rank']}.json"]


def test_nothing_is_overwritten_unless_asked(pairs: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    old = tmp_path / "trace.1.et"
    old.write_text("old")
    assert export(pairs, "-o", str(tmp_path)) == 2
    assert (written(tmp_path), old.read_text()) == (["trace.1.et"], "old")
    assert "--force" in capsys.readouterr().err
    assert export(pairs, "-o", str(tmp_path), "--name", "other") == 0
    assert old.read_text() == "old"
    assert export(pairs, "-o", str(tmp_path), "--force") == 0
    assert read_chakra(old).nodes


@pytest.mark.parametrize("name", ["", "a/b"])
def test_a_name_is_no_path(pairs: str, name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert export(pairs, "-o", str(tmp_path / "et"), "--name", name) == 2
    assert "cannot be a file name" in capsys.readouterr().err
    assert not written(tmp_path)


def test_a_file_in_the_place_of_the_folder_is_refused(
    pairs: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "et").write_text("mine")
    assert export(pairs, "-o", str(tmp_path / "et"), "--force") == 2
    assert "is a file" in capsys.readouterr().err


def test_without_an_execution_trace_it_says_what_to_record(
    pairs: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert export(f"{pairs}/kineto_trace_0.json", "-o", str(tmp_path / "et")) == 2
    said = capsys.readouterr().err
    assert "no execution trace" in said
    assert "ExecutionTraceObserver" in said
    assert not written(tmp_path)


def test_without_a_profiler_nodes_take_no_time_and_it_says_so(
    pairs: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert export(f"{pairs}/torch_et_0.json", "-o", str(tmp_path / "et")) == 0
    nodes = read_chakra(tmp_path / "et" / "trace.0.et").nodes
    assert len(nodes) > 100
    assert not any(node.duration_us for node in nodes)
    assert "rank 0: no profiler trace of the same steps" in capsys.readouterr().out


def test_what_the_profiler_did_not_see_is_left_out_and_counted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_pairs(JOB, tmp_path, PairOptions(observed_steps=(0, 2)))
    assert export(str(tmp_path), "-o", str(tmp_path / "et"), "--json") == 0
    [first, second] = json.loads(capsys.readouterr().out)["ranks"]
    assert first["left_out"]["nodes_outside"] > 10
    assert export(str(tmp_path), "-o", str(tmp_path / "et"), "--force") == 0
    n_outside = first["left_out"]["nodes_outside"] + second["left_out"]["nodes_outside"]
    reason = "nodes left out: they ran before or after the profiler recorded (ranks 0,1)"
    assert f"note: {n_outside:,} {reason}" in capsys.readouterr().out


def test_a_second_execution_trace_of_a_rank_is_named(
    pairs: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(pairs, tmp_path / "pairs")
    write_execution_trace(observe(JOB, 0, (2, 2)), tmp_path / "pairs" / "torch_et_0_again.json")
    assert export(str(tmp_path / "pairs"), "-o", str(tmp_path / "et")) == 0
    [note] = [line for line in capsys.readouterr().out.splitlines() if "was not used" in line]
    assert note.split()[1].endswith("torch_et_0_again.json")
    assert len(written(tmp_path / "et")) == 2


def test_durations_of_steps_without_the_observer_are_taken(
    pairs: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    clean = tmp_path / "clean"
    shutil.copytree(pairs, clean)
    for rank in (0, 1):
        (clean / f"torch_et_{rank}.json").unlink()
        path = clean / f"kineto_trace_{rank}.json"
        recorded = json.loads(path.read_text())
        for event in recorded["traceEvents"]:
            event.get("args", {}).pop("Record function id", None)
            if event.get("cat") == "cpu_op":
                event["dur"] /= 2
        path.write_text(json.dumps(recorded))
    for name, more in (("slow", []), ("fast", ["--durations-from", str(clean)])):
        assert export(pairs, "-o", str(tmp_path / name), "--json", *more) == 0
    slow, fast = (read_chakra(tmp_path / name / "trace.0.et").nodes for name in ("slow", "fast"))
    assert [node.name for node in fast] == [node.name for node in slow]
    assert sum(node.duration_us for node in fast if "tid" in node.attributes) < 0.9 * sum(
        node.duration_us for node in slow if "tid" in node.attributes
    )
    assert [node.duration_us for node in fast if "stream" in node.attributes] == [
        node.duration_us for node in slow if "stream" in node.attributes
    ]


def test_durations_from_elsewhere_go_with_chakra_alone(
    pairs: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["export", pairs, "-o", str(tmp_path / "x.duckdb"), "--durations-from", pairs]) == 2
    assert "--to chakra" in capsys.readouterr().err
