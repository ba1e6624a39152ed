"""Every command that an answer about torch.compile names can be run on the logs that the answer is about."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from demo_captures import demo
from named_commands import check_named_commands, commands_in, run_named, unmarked_commands
from rankscope.simulate.compile_job import COMPILE_FAULT_HELP
from rankscope.simulate.compile_log import LogBuilder

DATA = Path(__file__).parents[1] / "data"
# Logs of other people's jobs, which are not part of the repository.
SAMPLES = Path(__file__).parents[2].parent / "shared" / "samples" / "compile_logs"
NAMES = sorted(path.name for path in SAMPLES.iterdir()) if SAMPLES.is_dir() else []


def check(capture: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Both of what `rankscope CAPTURE` and of what `rankscope compile CAPTURE` print."""
    tried = check_named_commands(capture, folder)
    monkeypatch.chdir(folder)
    code, printed = run_named(f"rankscope compile {shlex.quote(str(capture))} -o report --all", capture)
    assert code != 2, printed
    assert not unmarked_commands(printed)
    for command in commands_in(printed):
        if not command.endswith("--open"):  # a browser
            code, answer = run_named(command, capture)
            assert code != 2, f"{command}:\n{answer}"
            tried.append(command)
    return tried


@pytest.mark.cases
@pytest.mark.parametrize("fault", COMPILE_FAULT_HELP)
def test_of_each_simulated_fault(fault: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    demo(tmp_path / "logs", fault, 2)
    tried = check(tmp_path / "logs", tmp_path, monkeypatch)
    assert any(command.startswith("rankscope explain C") for command in tried)


@pytest.mark.parametrize("name", ["compile_log", "torch_logs"])
def test_of_recorded_logs(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert len(check(DATA / name, tmp_path, monkeypatch)) > 2


@pytest.mark.cases
@pytest.mark.skipif(not NAMES, reason="the samples are not on this machine")
@pytest.mark.parametrize("name", NAMES)
def test_of_other_peoples_logs(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    check(SAMPLES / name, tmp_path, monkeypatch)


def test_all_shows_each_finding_in_full(tmp_path: Path) -> None:
    demo(tmp_path / "logs", "recompiles", 2)
    short, whole = (printed(tmp_path, "-o", str(tmp_path / name), *more) for name, *more in (["a"], ["b", "--all"]))
    assert len(whole.splitlines()) > len(short.splitlines())
    assert "--all" in short
    assert "--all" not in whole


def test_a_heading_of_torch_with_nothing_behind_it_is_not_shown(tmp_path: Path) -> None:
    reason = "Unsupported: a call\n  Explanation: it cannot be traced\n\n  Developer debug context: \n\n for details: x"
    log = LogBuilder(0).start().metrics(fail_type="torch._dynamo.exc.Unsupported", fail_reason=reason)
    log.write(tmp_path / "logs")
    shown = printed(tmp_path, "-o", str(tmp_path / "report"), "--all")
    assert "error[C405]" in shown
    assert "it cannot be traced" in shown
    assert "Developer debug context" not in shown


def printed(folder: Path, *options: str) -> str:
    return run_named(shlex.join(["rankscope", "compile", "LOG", *options]), folder / "logs")[1]
