"""Who is a rank: real processes with a torch that has only what decides it."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from collector.watched import STEP, Job
from rankscope.collect.launching.nsys import main_module, rank_to_wrap

TORCHRUN = {"RANK": "1", "WORLD_SIZE": "4", "LOCAL_RANK": "1"}


@pytest.fixture
def job(tmp_path: Path) -> Job:
    return Job(tmp_path)


def ran(job: Job, code: str, env: dict[str, str] | None = None) -> str:
    script = job.base / "train.py"
    script.write_text(code)
    done = job.python(str(script), env=env)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def test_a_python_without_torch_loads_nothing_of_ours(job: Job) -> None:
    code = "import sys; print([name for name in sys.modules if 'rankscope' in name], 'typing' in sys.modules, sys.path)"
    printed = ran(job, code)
    assert printed.startswith("[] False ")
    assert "hook" not in printed
    assert job.ranks() == {"": []}


def test_torchrun_says_who_is_a_rank(job: Job) -> None:
    ran(job, "import torch", TORCHRUN)
    part = job.part(1)
    assert (part["rank"], part["world_size"], part["local_rank"]) == (1, 4, 1)
    assert part["ended_ns"] >= part["started_ns"]


def test_children_of_a_rank_are_none(job: Job) -> None:
    child = f"import torch; {STEP}; torch.distributed.init_process_group()"
    ran(job, f"import torch, subprocess, sys; subprocess.run([sys.executable, '-c', {child!r}], check=True)", TORCHRUN)
    assert job.ranks() == {"": [1]}


def test_a_fork_of_a_rank_is_none(job: Job) -> None:
    ran(job, f"import torch, os\n{STEP}\nif os.fork() == 0:\n    {STEP}\nelse: os.wait()")
    assert job.ranks() == {"": [0]}
    assert job.part()["n_steps"] == 1


def test_the_optimizer_shows_who_trains_alone(job: Job) -> None:
    ran(job, f"import torch\nfor _ in range(3): {STEP}")
    assert (job.part()["rank"], job.part()["world_size"]) == (0, 1)


def test_init_process_group_shows_who_is_a_rank(job: Job) -> None:
    ran(job, "from torch.distributed import init_process_group as init; init('gloo', rank=2, world_size=3)")
    assert (job.part(2)["rank"], job.part(2)["world_size"]) == (2, 3)


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_workers_that_join_a_group_are_ranks_and_their_parent_is_none(method: str, job: Job) -> None:
    code = f"""
import multiprocessing, torch
def work(rank): torch.distributed.init_process_group(rank=rank, world_size=2)
if __name__ == "__main__":
    context = multiprocessing.get_context({method!r})
    workers = [context.Process(target=work, args=(rank,)) for rank in range(2)]
    for worker in workers: worker.start()
    for worker in workers: worker.join()
"""
    ran(job, code)
    assert job.ranks() == {"": [0, 1]}
    assert [job.part(rank)["ended_ns"] is None for rank in (0, 1)] == [False, False]


def test_workers_of_a_process_that_trained_alone_are_ranks_of_their_own(job: Job) -> None:
    child = "import torch; torch.distributed.init_process_group(rank=1, world_size=2)"
    ran(job, f"import subprocess, sys, torch; {STEP}; subprocess.run([sys.executable, '-c', {child!r}])")
    assert job.ranks() == {"": [0, 1]}


def test_who_only_imports_torch_is_a_rank_when_it_ends(job: Job) -> None:
    child = "import torch"
    ran(job, f"import subprocess, sys, torch; subprocess.run([sys.executable, '-c', {child!r}])")
    assert job.ranks() == {"": [0]}


def test_one_that_raises_early_is_a_rank_and_raises_as_ever(job: Job) -> None:
    job.settings = dataclasses.replace(job.settings, stacks=True)
    done = job.python("-c", "import torch; raise ValueError('no data')")
    assert done.returncode == 1
    assert done.stderr.count("Traceback") == 1
    assert done.stderr.endswith("ValueError: no data\n")
    assert job.ranks() == {"": [0]}


def test_torchruns_agent_is_no_rank(job: Job) -> None:
    """Operators of clusters set RANK for it, too."""
    agent = job.base / "lib" / "torch" / "distributed" / "run.py"
    agent.write_text("import subprocess, sys\nif sys.argv[1:]: subprocess.call([sys.executable, *sys.argv[1:]])")
    script = job.base / "train.py"
    script.write_text("import torch")
    env = {"RANK": "0", "WORLD_SIZE": "2"}
    assert job.python("-m", "torch.distributed.run", str(script), env=env).returncode == 0
    assert job.ranks() == {"": []}
    assert job.python("-c", "import torch.distributed.run", env=env).returncode == 0
    assert job.ranks() == {"": []}


def test_jobs_one_after_the_other_do_not_mix(job: Job) -> None:
    for _ in range(2):
        ran(job, f"import torch; {STEP}")
    ran(job, "import torch")
    assert job.ranks() == {"": [0], "attempt_1": [0], "attempt_2": [0]}


def test_restarts_of_torchrun_write_beside_each_other(job: Job) -> None:
    code = "import os, torch; print(os.environ.get('TORCH_TRACE'))"
    job.settings = dataclasses.replace(job.settings, compile_log=True)
    for attempt, place in enumerate((job.folder, job.folder / "attempt_1")):
        printed = ran(job, code, {**TORCHRUN, "TORCHELASTIC_RESTART_COUNT": str(attempt)})
        assert printed.strip() == str(place / "torch_trace")
    assert job.ranks() == {"": [1], "attempt_1": [1]}


def test_what_fails_in_the_collector_is_left_for_the_launcher(job: Job) -> None:
    (job.base / "lib" / "torch" / "compiler.py").write_text("raise RuntimeError('broken')")
    assert ran(job, "import torch; print('fine')", TORCHRUN) == "fine\n"
    (note,) = job.folder.glob("startup_failure_*.txt")
    assert note.read_text().endswith("RuntimeError: broken\n")


def test_a_folder_that_is_gone_does_not_hurt_the_job(job: Job) -> None:
    job.folder.rmdir()
    job.folder.write_text("a file")
    done = job.python("-c", f"import torch; {STEP}; print('fine')", env=TORCHRUN)
    assert (done.returncode, done.stdout) == (0, "fine\n")


def test_the_users_own_sitecustomize_runs(job: Job) -> None:
    own = job.base / "lib" / "sitecustomize.py"
    own.write_text("import sys; sys.seen = __file__")
    code = "import sys, sitecustomize; print(sys.seen == sitecustomize.__file__ == sys.argv[1]); import torch"
    done = job.python("-c", code, str(own), env=TORCHRUN)
    assert (done.stdout, done.stderr) == ("True\n", "")
    assert job.ranks() == {"": [1]}


def test_a_sitecustomize_that_fails_is_told_by_python_alone(job: Job) -> None:
    (job.base / "lib" / "sitecustomize.py").write_text("1 / 0")
    done = job.python("-c", "import torch; print('fine')", env=TORCHRUN)
    assert done.stdout == "fine\n"
    assert "Error in sitecustomize" in done.stderr
    assert "ZeroDivisionError" in done.stderr
    assert job.ranks() == {"": [1]}


def test_the_package_is_found_where_the_job_does_not_have_it(job: Job) -> None:
    """And a folder of traces that is called like it does not stand in for it. Its neighbours stay out of reach."""
    (job.base / "rankscope").mkdir()
    code = "import rankscope, sys; print(rankscope.__file__ is not None, any('site-packages' in p for p in sys.path))"
    done = job.python("-S", "-c", f"import sitecustomize; {code}")
    assert (done.stdout, done.stderr) == ("True False\n", "")


def test_torch_keeps_its_own_loader(job: Job) -> None:
    code = "import torch, sys; print(type(torch.__spec__.loader).__name__, vars(torch.__spec__.loader).keys())"
    assert ran(job, code, TORCHRUN).startswith("SourceFileLoader dict_keys(['name', 'path'])")


def test_an_import_of_torch_that_fails_fails_as_ever(job: Job) -> None:
    (job.base / "lib" / "torch" / "__init__.py").write_text("raise ImportError('no libcuda')")
    done = job.python("-c", "import torch")
    assert done.returncode == 1
    assert done.stderr.endswith("ImportError: no libcuda\n")


@pytest.mark.parametrize(
    ("arguments", "module"),
    [
        ("python -m torch.distributed.run x.py", "torch.distributed.run"),
        ("python -um torch.distributed.run x.py", "torch.distributed.run"),
        ("python -mtorch.distributed.run", "torch.distributed.run"),
        ("python -X dev -W error -m pkg", "pkg"),
        ("python train.py -m torch.x", ""),
        ("python -c import_m -m torch.x", ""),
        ("python", ""),
    ],
)
def test_main_module(arguments: str, module: str) -> None:
    assert main_module(arguments.split()) == module


@pytest.mark.parametrize(
    ("arguments", "env", "rank"),
    [
        ("python train.py", {}, 0),
        ("python -m pkg", {}, 0),
        ("python -u train.py", {"RANK": "3", "LOCAL_RANK": "1"}, 3),
        ("python train.py", {"RANK": "3", "LOCAL_RANK": "1", "RANKSCOPE_NSYS": "x"}, None),
        ("python /bin/torchrun train.py", {"RANK": "0"}, None),
        ("python -m torch.distributed.run train.py", {}, None),
        ("python -c pass", {}, None),
    ],
)
def test_who_is_wrapped_by_nsys(arguments: str, env: dict[str, str], rank: int | None) -> None:
    assert rank_to_wrap(env, arguments.split()) == rank
