from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from cli.running import clean_environment
from rankscope.cli import main
from rankscope.render.torch_types import TORCH_MODULE
from rankscope.simulate import Fault, JobSpec, Mesh, simulate


@pytest.fixture(scope="module")
def hung(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("hung")
    simulate(JobSpec(Mesh(dp=4, tp=1), steps=2), Fault("op", rank=2, step=1)).write(folder)
    return str(folder)


def test_its_whole_command_line_is_taken(hung: str, capsys: pytest.CaptureFixture[str]) -> None:
    shown = ["-j", "--selected-ranks", "0", "2", "--pg-filters", "default_pg", "dp", "--print_stack_trace"]
    line = [hung, "--allow-incomplete-ranks", "-p", "nccl_trace_rank_", "-v", "--mismatch_cap", "3"]
    assert main(["torchfrtrace", *line, *shown]) == 0
    printed = capsys.readouterr().out
    assert "rank 2" in printed
    assert "rank 1" not in printed
    assert "stack #" in printed
    assert main(["torchfrtrace", hung, "--transform-ft", "--group-world-size", "4"]) == 1
    assert "error[H102] (certain) rank 2 called" in capsys.readouterr().out


def test_its_abbreviations_are_taken_there_and_nowhere_else(hung: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["torchfrtrace", hung, "--just", "--allow", "--sel", "1"]) == 0
    assert main(["fr", hung, "--just"]) == 2
    capsys.readouterr()


def test_a_folder_is_needed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["torchfrtrace"]) == 2
    assert "torchfrtrace needs a folder of dumps" in capsys.readouterr().err


def test_its_output_needs_no_extension_and_replaces_an_earlier_one(
    hung: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "flat"
    for _ in range(2):
        assert main(["torchfrtrace", hung, "-o", str(path)]) == 1
        assert "(torch's layout)" in capsys.readouterr().err
    assert TORCH_MODULE.encode() in path.read_bytes()
    path.write_text("mine")
    assert main(["torchfrtrace", hung, "-o", str(path)]) == 2
    assert path.read_text() == "mine"


def test_torch_layout_needs_a_file_and_keeps_an_existing_one(
    hung: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["fr", hung, "--torch-layout"]) == 2
    assert "add -o" in capsys.readouterr().err
    path = tmp_path / "flat.pickle"
    path.write_text("mine")
    assert main(["fr", hung, "--torch-layout", "-o", str(path)]) == 2
    assert main(["fr", hung, "--torch-layout", "-o", str(path), "--force"]) == 1
    assert TORCH_MODULE.encode() in path.read_bytes()


@pytest.mark.cases
@pytest.mark.parametrize("options", [["-o", "flat.json"], ["-o", "flat.pickle", "--torch-layout"]])
def test_the_file_is_written_even_if_nobody_reads_what_is_printed(
    hung: str, tmp_path: Path, options: list[str]
) -> None:
    """`rankscope fr ... | head` ends the command at its first line."""
    command = [sys.executable, "-m", "rankscope", "fr", hung, "-v", *options]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, env=clean_environment({}), cwd=tmp_path)
    assert process.stdout is not None
    process.stdout.close()
    process.wait(60)
    written = tmp_path / options[1]
    assert written.stat().st_size > 1000
    if written.suffix == ".json":
        assert json.loads(written.read_text())["ncclcalls"]


def test_torch_is_not_imported_to_write_its_layout(hung: str, tmp_path: Path) -> None:
    code = (
        "import sys; from rankscope.cli import main; "
        f"main(['torchfrtrace', {hung!r}, '-o', {str(tmp_path / 'flat')!r}]); "
        "sys.exit(any(name.partition('.')[0] == 'torch' for name in sys.modules))"
    )
    finished = subprocess.run([sys.executable, "-c", code], env=clean_environment({}), capture_output=True, check=False)
    assert finished.returncode == 0, finished.stderr
