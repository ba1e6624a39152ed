from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from rankscope.cli import main
from rankscope.commands import COMMANDS


@pytest.fixture
def script(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    main(["completion", "bash"])
    path = tmp_path / "completion.bash"
    path.write_text(capsys.readouterr().out)
    return path


def complete_in_bash(script: Path, *words: str) -> list[str]:
    """What bash offers for the last of `words`, by calling the function as bash itself would."""
    program = """
        source "$1"; shift
        COMP_WORDS=(rankscope "$@"); COMP_CWORD=$#
        _rankscope
        printf '%s\\n' "${COMPREPLY[@]}"
    """
    done = subprocess.run(
        ["bash", "--norc", "-uc", program, "bash", str(script), *words], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.split()


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        (("expl",), ["explain"]),
        (("diagnose", "--js"), ["--json"]),
        (("diagnose", "traces", "--fail-on", ""), ["error", "warning", "info", "never"]),
        (("diagnose", "--color", "a"), ["auto", "always"]),
        (("diagnose", "--color", "="), ["auto", "always", "never"]),
        (("diagnose", "--color", "=", "ne"), ["never"]),
        (("traces", "--no-s"), ["--no-source"]),
        (("--no-s",), ["--no-source"]),
        (("--vers",), ["--version"]),
        (("completion", ""), ["bash", "zsh", "fish"]),
        (("diagnose", ""), []),
        (("diagnose", "-o", ""), []),
    ],
)
def test_bash_completes(script: Path, words: tuple[str, ...], offered: list[str]) -> None:
    assert complete_in_bash(script, *words) == offered


def test_bash_offers_every_command(script: Path) -> None:
    assert complete_in_bash(script, "") == list(COMMANDS)


def test_bash_registers_the_function_with_files_as_the_last_resort(script: Path) -> None:
    done = subprocess.run(
        ["bash", "--norc", "-c", f'source "{script}"; complete -p rankscope'],
        capture_output=True,
        text=True,
        check=True,
    )
    assert "-o default" in done.stdout
    assert "-F _rankscope" in done.stdout


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_other_shells_accept_their_script(shell: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["completion", shell])
    path = tmp_path / "script"
    path.write_text(capsys.readouterr().out)
    for name in COMMANDS:
        assert name in path.read_text()
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    subprocess.run([shell, "-n", str(path)], check=True)


def test_json(capsys: pytest.CaptureFixture[str]) -> None:
    main(["completion", "fish", "--json"])
    answer = json.loads(capsys.readouterr().out)
    assert answer["shell"] == "fish"
    assert "complete -c rankscope" in answer["script"]
