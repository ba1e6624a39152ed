"""`rankscope compare A B` as a user runs it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from msgspec.structs import replace

from rankscope.cli import main
from rankscope.commands.compare import exit_code, next_command, told_only
from rankscope.simulate import Fault, JobSpec, Mesh, simulate
from rankscope.simulate.compile_log import TRAIN, LogBuilder
from render import changes_sample as sample


@pytest.fixture(scope="module")
def dumps(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folders = {}
    for name, fault in (("good", None), ("bad", Fault("skip"))):
        folder = tmp_path_factory.mktemp(name)
        simulate(JobSpec(Mesh(2, 2, 1), steps=3), fault).write(folder, "nccl_trace_rank_")
        folders[name] = str(folder)
    return folders


@pytest.fixture
def logs(tmp_path: Path) -> tuple[str, str]:
    """The newer run has a graph break that the older one had not, and its code stands some lines further down."""
    LogBuilder(0).start().metrics().write(tmp_path / "old")
    LogBuilder(0).start().graph_break("0/0", TRAIN, 33, "Tensor.item()").metrics().write(tmp_path / "new")
    return str(tmp_path / "old"), str(tmp_path / "new")


def test_a_hang_fails_and_its_absence_does_not(dumps: dict[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", dumps["good"], dumps["bad"]]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("B hangs where A did not: error[H106] ")
    assert lines[1].startswith(f"  A  {dumps['good']}: ")
    assert lines[-1] == "Next: rankscope explain H106"
    assert main(["compare", dumps["bad"], dumps["good"]]) == 0
    assert capsys.readouterr().out.startswith("B does not hang where A did: error[H106] ")


def test_the_same_folder_twice_is_no_difference(dumps: dict[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("good", "bad"):
        assert main(["compare", dumps[name], dumps[name]]) == 0
        assert capsys.readouterr().out.startswith("no difference beyond noise")


def test_what_is_compiled_worse_is_said_and_fails(logs: tuple[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", *logs]) == 1
    told = capsys.readouterr().out
    assert told.startswith("B has 1 more graph break than A: Tensor.item() at train.py:33")
    assert "torch.compile: Worse: 1 new graph break." in told
    assert main(["compare", *reversed(logs)]) == 0


def test_json_is_the_comparison_and_nothing_else(dumps: dict[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", dumps["good"], dumps["bad"], "--json"]) == 1
    changes = json.loads(capsys.readouterr().out)
    assert (changes["schema"], changes["worst"]) == ("rankscope.changes/1", "error")
    assert [(change["kind"], change["code"]) for change in changes["findings"]] == [("new", "H106")]


def test_what_is_the_same_is_in_the_json_only_on_asking(
    dumps: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    found = []
    for options in ([], ["--all"]):
        main(["compare", dumps["good"], dumps["good"], "--json", *options])
        found.append(json.loads(capsys.readouterr().out)["collectives"])
    assert found[0] == []
    assert {call["kind"] for call in found[1]} == {"same"}
    assert [kernel.kind for kernel in told_only(sample.slower()).kernels] == ["slower"] * 11


def test_the_extension_of_the_output_decides_on_the_format(dumps: dict[str, str], tmp_path: Path) -> None:
    for name, begins in (("c.txt", "B hangs"), ("c.json", "{"), ("c.html", "<!DOCTYPE html>")):
        path = tmp_path / name
        assert main(["compare", dumps["good"], dumps["bad"], "-o", str(path)]) == 1
        assert path.read_text().startswith(begins)


def test_an_existing_file_is_kept_unless_forced(dumps: dict[str, str], tmp_path: Path) -> None:
    kept = tmp_path / "c.txt"
    kept.write_text("mine")
    assert main(["compare", dumps["good"], dumps["bad"], "-o", str(kept)]) == 2
    assert kept.read_text() == "mine"
    assert main(["compare", dumps["good"], dumps["bad"], "-o", str(kept), "--force"]) == 1
    assert kept.read_text() != "mine"


def test_captures_that_have_nothing_in_common_are_refused(
    dumps: dict[str, str], logs: tuple[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["compare", dumps["good"], logs[0]]) == 2
    told = capsys.readouterr().err
    assert "cannot be compared" in told
    assert "4 Flight Recorder dumps" in told
    assert "1 compile log" in told


@pytest.mark.parametrize("place", ["A", "B"])
def test_a_folder_without_traces_is_named(
    dumps: dict[str, str], tmp_path: Path, place: str, capsys: pytest.CaptureFixture[str]
) -> None:
    junk = tmp_path / "junk"
    junk.mkdir()
    (junk / "notes.txt").write_text("no trace")
    paths = [str(junk), dumps["good"]] if place == "A" else [dumps["good"], str(junk)]
    assert main(["compare", *paths]) == 2
    assert str(junk) in capsys.readouterr().err


def test_two_captures_are_needed(dumps: dict[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", dumps["good"]]) == 2
    assert "B" in capsys.readouterr().err
    assert main(["compare", dumps["good"], dumps["bad"], "--json", "-o", "x.txt"]) == 2
    assert "--json and -o x.txt contradict each other" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("worst", "fail_on", "code"),
    [
        ("error", "error", 1),
        ("warning", "error", 0),
        ("warning", "warning", 1),
        ("info", "warning", 0),
        ("info", "info", 1),
        ("error", "never", 0),
        (None, "info", 0),
    ],
)
def test_exit_code(worst: str | None, fail_on: str, code: int) -> None:
    assert exit_code(replace(sample.slower(), worst=worst), fail_on) == code


def test_the_next_command_fits_the_answer() -> None:
    slower, same = sample.slower(), sample.same()
    assert next_command(slower) == "rankscope metrics bad diff --against good"
    assert next_command(replace(slower, worst="error")) == "rankscope explain S202"
    assert next_command(same) == "rankscope compare good bad --all"
    dumps = {"flight_recorder": 8}
    unprofiled = replace(slower, old=replace(slower.old, sources=dumps), new=replace(slower.new, sources=dumps))
    assert next_command(unprofiled) == "rankscope explain S202"
    assert next_command(replace(unprofiled, findings=())) == "rankscope bad"
    compiled = sample.compiled()
    logged = replace(compiled, old=replace(compiled.old, sources={}), new=replace(compiled.new, sources={}))
    assert next_command(logged) == "rankscope compile --compare good bad"
