"""The launcher as a user sees it, with jobs that need no torch: output, exit codes, signals, bad usage."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
import time
from argparse import ArgumentTypeError, Namespace
from pathlib import Path
from typing import Any

import pytest

from cli.running import clean_environment, run_rankscope
from rankscope.cli import build_parser, main
from rankscope.collect.settings import Settings
from rankscope.commands import record

# Says when it is ready, counts the signals it gets, and ends half a second after the first.
COUNTER = """
import os, signal, sys, time
seen = []
for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
    signal.signal(number, lambda number, frame: seen.append(number))
print("ready", flush=True)
limit = time.monotonic() + 120
while not seen and time.monotonic() < limit: time.sleep(0.02)
time.sleep(0.5)
print(seen, flush=True)
sys.exit(3)
"""


def parsed(*arguments: str) -> Namespace:
    return build_parser().parse_args(["record", *arguments])


def wanted(*arguments: str) -> Settings:
    return record.read_settings(parsed(*arguments))


def chosen(settings: Settings) -> set[str]:
    return {name for name, setting in record.KINDS.items() if getattr(settings, setting)}


def started(*arguments: str, cwd: Path, **options: Any) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "rankscope", "record", *arguments]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **options}
    return subprocess.Popen(command, env=clean_environment(), cwd=cwd, text=True, **pipes)


def test_what_is_collected_unless_told_otherwise() -> None:
    assert wanted("--", "x") == Settings(folder="")
    assert chosen(wanted()) == set(record.DEFAULTS)


def test_kinds_are_chosen_and_left_out() -> None:
    assert chosen(wanted("--only", "kineto,metrics")) == {"kineto", "metrics"}
    assert chosen(wanted("--only", "kineto", "--only", "compile_log")) == {"kineto", "compile-log"}
    assert chosen(wanted("--only", "kineto", "--desync")) == {"kineto", "desync"}
    assert chosen(wanted("--no", "kineto", "--no", "execution-trace,stacks")) == {
        "recorder",
        "metrics",
        "compile-log",
        "host",
        "output",
    }
    assert chosen(wanted("--nsys")) == {*record.DEFAULTS, "nsys"}


def test_numbers_and_switches_reach_the_settings() -> None:
    numbers = ("--wait=1", "--warmup=0", "--active=2", "--clean=0", "--repeat=3", "--ring-size=9", "--stall=1.5")
    switches = ("--with-stack", "--no-shapes", "--memory", "--gzip", "--max-size=3M", "--debug-server=25999")
    made = wanted(*numbers, *switches, "--logs", "recompiles, +dynamo")
    assert (made.wait, made.warmup, made.active, made.clean, made.repeat) == (1, 0, 2, 0, 3)
    assert (made.ring_size, made.stall_seconds, made.max_bytes, made.debug_port) == (9, 1.5, 3 << 20, 25999)
    assert (made.with_stack, made.shapes, made.memory, made.gzip) == (True, False, True, True)
    assert made.logs == "recompiles,+dynamo"


@pytest.mark.parametrize(
    ("text", "size"), [("7", 7), ("2k", 2048), ("500M", 500 << 20), ("4GiB", 4 << 30), ("1TB", 1 << 40)]
)
def test_sizes(text: str, size: int) -> None:
    assert record.parse_size(text) == size


@pytest.mark.parametrize("text", ["", "G", "x", "-1", "1.5G", "4GG"])
def test_bad_sizes(text: str) -> None:
    with pytest.raises(ArgumentTypeError, match="not a size"):
        record.parse_size(text)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "record needs a command to run"),
        (("--",), "record needs a command to run"),
        (("--", "no-such-program"), "cannot find the program 'no-such-program'"),
        (("--only", "kinetto", "--", "true"), "'kinetto' is not something to collect: did you mean kineto?"),
        (("--stall", "-3", "--", "true"), "'-3' is not a number of seconds"),
        (("--logs", "a;b", "--", "true"), "--logs a;b is not a list of names"),
        (("--active", "0", "--", "true"), "--active is 0: no step would be recorded"),
        (("--repeat", "0", "--", "true"), "--repeat is 0: torch.profiler would record cycles until the job ends"),
        (("-o", "/proc/no", "--", "true"), "cannot write to /proc/no"),
    ],
)
def test_bad_usage(
    arguments: tuple[str, ...],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["record", *arguments]) == 2
    assert message in capsys.readouterr().err
    assert os.listdir(tmp_path) == []


def test_options_after_the_command_are_the_commands() -> None:
    assert parsed("-o", "d", "--", "torchrun", "-o", "e", "--only", "x").output == "d"
    assert parsed("-o", "d", "torchrun", "-o", "e").command == ["torchrun", "-o", "e"]


def test_the_jobs_output_and_input_are_its_own(tmp_path: Path) -> None:
    process = started("-o", "t", "--", "sh", "-c", "cat; echo err >&2; exit 9", cwd=tmp_path, stdin=subprocess.PIPE)
    out, err = process.communicate("line 1\nline 2\n", timeout=60)
    assert (process.returncode, out) == (9, "line 1\nline 2\n")
    assert err.startswith("err\n")
    assert "rankscope: the job ended with exit code 9\n" in err
    assert "rankscope: nothing was collected" in err


def test_the_exit_code_of_a_killed_job(tmp_path: Path) -> None:
    done = run_rankscope("record", "--", "sh", "-c", "kill -9 $$", cwd=tmp_path)
    assert done.returncode == 128 + 9
    assert json.loads((tmp_path / "traces" / "run.json").read_text())["schema"] == "rankscope.run/1"


def test_an_earlier_run_is_never_written_into(tmp_path: Path) -> None:
    for _ in range(2):
        done = run_rankscope("record", "-o", "t", "--", "true", cwd=tmp_path)
        assert done.returncode == 0
    assert f"t has an earlier run: this one goes to {tmp_path}/t/run_2" in done.stderr
    assert (tmp_path / "t" / "run_2" / "run.json").exists()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_signals_reach_all_of_the_job_once(number: signal.Signals, tmp_path: Path) -> None:
    """Below a shell that waits, too."""
    (tmp_path / "job.py").write_text(COUNTER)
    shell = f"trap : INT TERM HUP; {sys.executable} job.py; exit 4"
    process = started("-o", "t", "--", "sh", "-c", shell, cwd=tmp_path)
    assert process.stdout
    assert process.stdout.readline() == "ready\n"
    process.send_signal(number)
    time.sleep(0.05)
    process.send_signal(number)  # as timeout(1) does: once to its child and once to its child's group
    out, err = process.communicate(timeout=60)
    assert out == f"[{int(number)}]\n"
    assert process.returncode == 4
    assert "the job ended with exit code 4" in err


def test_ctrl_c_on_a_terminal_reaches_the_job_once(tmp_path: Path) -> None:
    (tmp_path / "job.py").write_text(COUNTER)
    pid, terminal = pty.fork()
    if pid == 0:
        os.chdir(tmp_path)
        command = [sys.executable, "-m", "rankscope", "record", "-o", "t", "--", sys.executable, "job.py"]
        os.execve(command[0], command, clean_environment())
    shown = _read_until(terminal, b"ready")
    os.write(terminal, b"\x03")
    shown += _read_until(terminal, b"exit code")
    _, status = os.waitpid(pid, 0)
    os.close(terminal)
    assert b"[2]" in shown
    assert os.waitstatus_to_exitcode(status) == 3


def test_a_job_may_talk_to_the_terminal(tmp_path: Path) -> None:
    """It has a process group of its own, so it is given the terminal when it reads from it."""
    pid, terminal = pty.fork()
    if pid == 0:
        os.chdir(tmp_path)
        code = "print('got', input('name? '))"
        command = [sys.executable, "-m", "rankscope", "record", "-o", "t", "--", sys.executable, "-S", "-c", code]
        os.execve(command[0], command, clean_environment())
    shown = _read_until(terminal, b"name?")
    os.write(terminal, b"me\n")
    shown += _read_until(terminal, b"nothing was collected")
    _, status = os.waitpid(pid, 0)
    os.close(terminal)
    assert b"got me" in shown
    assert os.waitstatus_to_exitcode(status) == 0


def test_the_job_has_the_environment_of_its_user(tmp_path: Path) -> None:
    """What rankscope sets for itself, such as its number of threads, would slow a job down."""
    shows = [sys.executable, "-c", "import json, os; print(json.dumps(dict(os.environ)))"]
    given = {name: value for name, value in clean_environment().items() if name != "OPENBLAS_NUM_THREADS"}
    command = [sys.executable, "-m", "rankscope", "record", "-o", "t", "--", *shows]
    bare, recorded = (
        json.loads(subprocess.run(each, env=given, cwd=tmp_path, capture_output=True, check=True).stdout)
        for each in (shows, command)
    )
    changed = {name for name in bare.keys() | recorded.keys() if bare.get(name) != recorded.get(name)}
    assert {name for name in changed if not name.startswith(("TORCH", "RANKSCOPE_"))} == {"PYTHONPATH"}


def test_ctrl_z_stops_both_and_both_go_on(tmp_path: Path) -> None:
    (tmp_path / "job.py").write_text(COUNTER)
    process = started("-o", "t", "--", sys.executable, "job.py", cwd=tmp_path)
    assert process.stdout
    assert process.stdout.readline() == "ready\n"
    job = _child_running(process.pid, "job.py")
    process.send_signal(signal.SIGTSTP)
    _wait_for_state(process.pid, "T")
    _wait_for_state(job, "T")
    process.send_signal(signal.SIGCONT)
    _wait_for_state(job, "S")
    process.send_signal(signal.SIGTERM)
    out, _ = process.communicate(timeout=60)
    assert (process.returncode, out) == (3, "[15]\n")


def _child_running(pid: int, program: str) -> int:
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    commands = {int(child): Path(f"/proc/{child}/cmdline").read_bytes().split(b"\0") for child in children}
    (job,) = (child for child, command in commands.items() if command[1:2] == [program.encode()])
    return job


def _wait_for_state(pid: int, state: str) -> None:
    limit = time.monotonic() + 30
    while (seen := Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]) != state:
        assert time.monotonic() < limit, f"process {pid} is in state {seen}, not {state}"
        time.sleep(0.02)


def _read_until(terminal: int, wanted: bytes) -> bytes:
    seen = b""
    limit = time.monotonic() + 60
    while wanted not in seen and time.monotonic() < limit:
        try:
            seen += os.read(terminal, 4096)
        except OSError:  # the other side has ended
            break
    assert wanted in seen, seen
    return seen


def test_a_job_that_ends_by_an_interrupt_ends_as_under_a_shell(tmp_path: Path) -> None:
    code = "import time; print('ready', flush=True); time.sleep(60)"
    process = started("-o", "t", "--", sys.executable, "-c", code, cwd=tmp_path)
    assert process.stdout
    process.stdout.readline()
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 128 + 2
    assert err.count("KeyboardInterrupt") == 1


def test_what_the_user_ignores_stays_ignored(tmp_path: Path) -> None:
    """As under nohup."""
    code = "import signal; print(signal.getsignal(signal.SIGHUP) == signal.SIG_IGN)"
    process = started(
        *("-o", "t", "--", sys.executable, "-S", "-c", code),
        cwd=tmp_path,
        preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN),
    )
    out, _ = process.communicate(timeout=60)
    assert out == "True\n"


def test_settings_of_the_user_are_told(tmp_path: Path) -> None:
    done = run_rankscope(
        "record", "-o", "t", "--", "sh", "-c", "echo $TORCH_TRACE", cwd=tmp_path, env={"TORCH_TRACE": "/mine"}
    )
    assert done.stdout == "/mine\n"
    assert "rankscope: TORCH_TRACE is already set to /mine and is not changed" in done.stderr


def test_no_nsys_is_told_and_the_job_runs(tmp_path: Path) -> None:
    done = run_rankscope("record", "--nsys", "--", "/bin/echo", "fine", cwd=tmp_path, env={"PATH": str(tmp_path)})
    assert done.stdout == "fine\n"
    assert "nsys is not on the PATH" in done.stderr


@pytest.mark.parametrize(
    ("answer", "lacks"),
    [
        ("2.13.0+cpu jinja2 requests", "tabulate"),
        ("2.13.0 jinja2 tabulate", "aiohttp"),
        ("2.9.1 aiohttp", "torch>=2.10, jinja2, tabulate"),
    ],
)
def test_what_the_debug_server_needs_is_asked_before_the_job_starts(answer: str, lacks: str, tmp_path: Path) -> None:
    python = tmp_path / "python3"
    python.write_text(f'#!/bin/sh\n[ "$1" = -c ] || touch {tmp_path}/started\necho {answer}\n')
    python.chmod(0o755)
    done = run_rankscope("record", "-o", "t", "--debug-server", "25999", "--", str(python), "train.py", cwd=tmp_path)
    assert done.returncode == 2
    assert f"--debug-server needs packages that the job's Python lacks: {lacks}" in done.stderr
    assert f"{python} -m pip install" in done.stderr
    assert "rankscope[live]" in done.stderr
    assert not (tmp_path / "started").exists()
    assert not (tmp_path / "t").exists()


def test_a_python_that_cannot_be_asked_for_the_debug_server(tmp_path: Path) -> None:
    done = run_rankscope("record", "-o", "t", "--debug-server", "25999", "--", "true", cwd=tmp_path)
    assert done.returncode == 0
    assert "cannot check whether" in done.stderr


def test_names_of_logs_that_cannot_be_checked(tmp_path: Path) -> None:
    done = run_rankscope("record", "--logs", "recompiles", "--", "sh", "-c", "exit 5", cwd=tmp_path)
    assert done.returncode == 5
    assert "cannot check the names in --logs: the command does not show which Python it runs" in done.stderr


def test_the_folder_may_be_removed_while_the_job_runs(tmp_path: Path) -> None:
    done = run_rankscope("record", "-o", "t", "--", "rm", "-r", "t", cwd=tmp_path)
    assert done.returncode == 0
    assert "the job ended with exit code 0" in done.stderr
