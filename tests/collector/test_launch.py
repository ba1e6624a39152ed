"""What the job finds in its environment, and how its Python is wrapped by nsys."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from collector.watched import STEP, Job
from rankscope.collect.launching.environment import HOOK, find_program, job_environment, job_python
from rankscope.collect.settings import VARIABLE, Settings, from_environment

SETTINGS = Settings(folder="/x/traces", ring_size=77)


def test_what_is_set() -> None:
    made = job_environment(SETTINGS, {"HOME": "/h", "PYTHONPATH": "/a:/b"})
    assert made.notes == []
    assert from_environment(made.variables) == SETTINGS
    assert {name: value for name, value in made.variables.items() if name != VARIABLE} == {
        "HOME": "/h",
        "PYTHONPATH": f"{HOOK}:/a:/b",
        "TORCH_FR_BUFFER_SIZE": "77",
        "TORCH_FR_DUMP_TEMP_FILE": "/x/traces/nccl_trace_rank_",
        "TORCH_NCCL_DUMP_ON_TIMEOUT": "1",
        "TORCH_TRACE": "/x/traces/torch_trace",
    }


def test_only_what_is_asked_for_is_set() -> None:
    made = job_environment(Settings(folder="/x", recorder=False, compile_log=False), {})
    assert made.variables.keys() == {VARIABLE, "PYTHONPATH"}


@pytest.mark.parametrize("name", ["TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE", "TORCH_TRACE"])
def test_what_the_user_has_set_stays_and_is_told(name: str) -> None:
    made = job_environment(SETTINGS, {name: "5"})
    assert made.variables[name] == "5"
    assert "77" not in made.variables.values() or name == "TORCH_TRACE"
    (note,) = made.notes
    assert note.startswith(f"{name} is already set to 5 and is not changed: ")


def test_a_launcher_inside_of_a_job_begins_anew() -> None:
    outer = job_environment(SETTINGS, {}).variables
    outer |= {"RANKSCOPE_RANK_PID": "1:1", "RANKSCOPE_TORCH_PID": "1", "RANKSCOPE_NSYS": "x"}
    made = job_environment(Settings(folder="/y"), outer).variables
    assert made["PYTHONPATH"] == str(HOOK)
    assert {name for name in made if name.startswith("RANKSCOPE_")} == {VARIABLE}


def test_the_hook_is_where_python_looks_for_it() -> None:
    assert set(os.listdir(HOOK)) - {"__pycache__"} == {"sitecustomize.py"}


def test_the_jobs_own_python_is_found(tmp_path: Path) -> None:
    def script(name: str, first: str) -> str:
        path = tmp_path / name
        path.write_text(f"{first}\n")
        path.chmod(0o755)
        return str(path)

    environment = {"PATH": f"{tmp_path}:/usr/bin:/bin"}
    python = script("python3.99", "")
    assert job_python(["python3.99", "train.py"], environment) == python
    assert job_python([script("torchrun", f"#!{sys.executable}")], environment) == sys.executable
    assert job_python([script("launch", "#!/usr/bin/env -S python3.99 -u")], environment) == python
    assert job_python([script("run.sh", "#!/bin/bash")], environment) is None
    assert job_python([script("binary", "\x7fELF")], environment) is None
    assert job_python(["no-such-program"], environment) is None
    assert find_program(["no-such-program"], environment) is None


@pytest.fixture
def nsys_job(tmp_path: Path) -> Job:
    """A job whose PATH has an nsys that tells how it was called and then does what it should."""
    job = Job(tmp_path, nsys=True)
    fake = tmp_path / "bin" / "nsys"
    fake.parent.mkdir()
    fake.write_text(
        "#!/bin/sh\n"
        f'echo "$@" >> {tmp_path}/calls\n'
        'report="$3"; while [ "${1#*python}" = "$1" ]; do shift; done\n'
        '"$@"; code=$?\n'
        'echo x > "$report.nsys-rep"; echo x > "$report.sqlite"; exit $code\n'
    )
    fake.chmod(0o755)
    return job


def path_of(job: Job) -> dict[str, str]:
    return {"PATH": f"{job.base / 'bin'}:{os.environ['PATH']}"}


def calls(job: Job) -> list[str]:
    return (job.base / "calls").read_text().splitlines()


def test_a_script_is_wrapped_once_with_all_that_it_starts(nsys_job: Job) -> None:
    script = nsys_job.base / "train.py"
    child = "subprocess.run([sys.executable, '-m', 'this'])"
    script.write_text(f"import subprocess, sys, torch; {STEP}; {child}; sys.exit(7)")
    done = nsys_job.python("-u", str(script), "--lr", "a b", env=path_of(nsys_job))
    assert done.returncode == 7, done.stderr
    (call,) = calls(nsys_job)
    report = nsys_job.folder / "nsys_0"
    assert call.startswith(f"profile -o {report} --trace=")
    assert call.endswith(f"--export=sqlite {sys.executable} -u {script} --lr a b")
    assert (nsys_job.folder / "nsys_0.sqlite").exists()
    assert nsys_job.part()["problems"] == []


def test_each_rank_has_a_report_and_an_earlier_one_is_not_overwritten(nsys_job: Job) -> None:
    torchrun = {"WORLD_SIZE": "2", "LOCAL_RANK": "1", "RANK": "1", **path_of(nsys_job)}
    for _ in range(2):
        assert nsys_job.python("-c", "import torch", env=torchrun).returncode == 0
    assert [call.split()[2] for call in calls(nsys_job)] == [
        str(nsys_job.folder / "nsys_1"),
        str(nsys_job.folder / "attempt_1" / "nsys_1"),
    ]
    assert nsys_job.ranks() == {"": [1], "attempt_1": [1]}


def test_without_nsys_the_rest_goes_on_and_the_manifest_says_so(tmp_path: Path) -> None:
    job = Job(tmp_path, nsys=True)
    done = job.python("-c", f"import torch; {STEP}; print('fine')", env={"PATH": str(tmp_path)})
    assert done.stdout == "fine\n"
    assert [(record["what"], record["problem"]) for record in job.part()["problems"]] == [
        ("nsys", "nsys is not on the PATH")
    ]
