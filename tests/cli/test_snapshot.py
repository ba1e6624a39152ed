"""`rankscope snapshot` asks ranks that run, and is honest about those that do not answer."""

from __future__ import annotations

import json
import signal
import sys
from pathlib import Path

import pytest

from collector.children import child
from rankscope.cli import main
from rankscope.collect import requests


def test_a_rank_that_runs_is_asked_and_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with child(tmp_path, "begin()\ndo_python_for_ever()") as job:
        assert job.read_line() == "ready"
        code = main(["snapshot", str(tmp_path), "--watch", "1", "--json"])
        assert job.process.poll() is None
    live = json.loads(capsys.readouterr().out)["live"]
    assert code == 0
    assert live["folder"] == str(tmp_path)
    assert live["silent"] == []
    assert [each["rank"] for each in live["progress"]["ranks"]] == [3]
    assert job.stacks().count("reason: asked by rankscope snapshot ===") == 2
    assert not (tmp_path / requests.NAME).exists()


def test_the_answer_as_text(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with child(tmp_path, "begin()\ndo_python_for_ever()") as job:
        assert job.read_line() == "ready"
        assert main(["snapshot", str(tmp_path), "--watch", "0.1"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("Within 0.")
    assert any(line.startswith("Read 1 manifest, 1 stack file from ") for line in lines)


@pytest.mark.parametrize(
    ("body", "number", "said"),
    [
        ("begin()\ndo_python_for_ever()", signal.SIGSTOP, "is stopped"),
        ("begin()\ndo_python_for_ever()", signal.SIGKILL, "is gone: it was killed or crashed"),
        ("begin()\nwait_for_ever_in_c(ctypes.PyDLL(None))", None, "is running, but could not run Python code"),
    ],
)
def test_a_rank_that_cannot_answer(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], body: str, number: signal.Signals | None, said: str
) -> None:
    with child(tmp_path, body) as job:
        assert job.read_line() == "ready"
        if number is not None:
            job.send(number)
        if number == signal.SIGKILL:
            job.ended()
        code = main(["snapshot", str(tmp_path), "--timeout", "1"])
        pid = job.process.pid
    error = capsys.readouterr().err
    assert code == 2
    assert f"rank 3 did not answer within 1 s: its process {pid} {said}" in error
    assert not (tmp_path / requests.NAME).exists()


def test_one_silent_rank_does_not_hide_the_others(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with child(tmp_path, "begin()\ndo_python_for_ever()") as job:
        assert job.read_line() == "ready"
        part = json.loads((tmp_path / "manifest.d" / "rank_3.json").read_text())
        elsewhere = {**part, "rank": 1, "host": "gpu-9"}
        (tmp_path / "manifest.d" / "rank_1.json").write_text(json.dumps(elsewhere))
        assert main(["snapshot", str(tmp_path), "--watch", "0.1", "--timeout", "3"]) in (0, 1)
    told = "rank 1 has not dumped: it runs on host gpu-9, and its answer has not reached the folder"
    assert capsys.readouterr().out.startswith(told)


def test_a_job_that_has_ended_is_read_not_asked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with child(tmp_path, "begin()\nready()") as job:
        assert job.ended() == 0
    assert main(["snapshot", str(tmp_path)]) == 2
    assert f"the job in {tmp_path} has ended" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["absent", ""])
def test_a_folder_without_ranks(tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str) -> None:
    assert main(["snapshot", str(tmp_path / name)]) == 2
    assert "give the output folder of a job that runs under rankscope record" in capsys.readouterr().err


LAUNCHED = """
import signal, subprocess, sys
process = subprocess.Popen(
    [sys.executable, "-m", "rankscope", "record", "-o", sys.argv[1], "--no-diagnose", "--", sys.executable, "-c",
     "print('up', flush=True); input(); print('still here')"],
    stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
assert process.stdout.readline() == "up\\n"
process.send_signal(signal.SIGUSR2)
while "asked" not in process.stderr.readline():
    assert process.poll() is None
out, _ = process.communicate("\\n", timeout=60)
print(out, process.returncode)
"""


def test_the_launcher_survives_the_signal_and_asks(tmp_path: Path) -> None:
    import subprocess

    finished = subprocess.run(
        [sys.executable, "-c", LAUNCHED, str(tmp_path / "traces")],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert finished.stdout == "still here\n 0\n", finished.stderr
    assert not list(tmp_path.rglob(requests.NAME)), "nothing is left behind"
