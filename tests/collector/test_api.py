"""The collector in the job's own code: it joins what runs, ends with its block, and costs nothing where it is off."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import rankscope
from rankscope.collect import run as run_module
from rankscope.collect.part import Part
from rankscope.collect.run import Run
from rankscope.collect.settings import Settings


class Telling(Part):
    """Notes why it was asked to dump."""

    NAME = "telling"
    reasons: tuple[str, ...] = ()

    def dump(self, reason: str) -> None:
        Telling.reasons += (reason,)


@pytest.fixture
def few_parts(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    parts = [part for part in run_module.PARTS if part[1] in ("Profiling", "Metrics")]
    monkeypatch.setattr(run_module, "PARTS", (*parts, (__name__, "Telling", ("metrics",))))
    monkeypatch.setattr(Telling, "reasons", ())
    yield
    assert run_module.current() is None
    assert not [name for name in os.environ if name.startswith(("TORCH_FR_", "TORCH_NCCL_"))]


def manifest_in(folder: Path | None) -> dict[str, Any]:
    assert folder is not None
    content = json.loads((folder / "manifest.json").read_text())
    assert isinstance(content, dict)
    return content


def train(n_steps: int) -> None:
    import torch

    model = torch.nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(n_steps):
        optimizer.zero_grad()
        model(torch.ones(2, 4)).sum().backward()
        optimizer.step()


def run_python(code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", code, *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


def test_where_nothing_is_collected_nothing_is_done_nor_imported() -> None:
    calls = "rankscope.step(samples=3); rankscope.metric('loss', 1.0)"
    done = run_python(f"import rankscope, sys; {calls}; assert 'torch' not in sys.modules")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_the_package_and_the_function_have_one_name() -> None:
    for first in ("", "import rankscope.collect.run;", "from rankscope import step;"):
        then = "assert callable(rankscope.collect); import rankscope.collect.settings as settings; settings.GIB"
        done = run_python(f"import rankscope; {first} {then}")
        assert done.returncode == 0, done.stderr


def test_without_torch_it_does_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with rankscope.collect(tmp_path / "traces", active=3) as run:
        run.step(samples=2)
        run.metric("loss", 0.5)
        assert run.folder is None
    assert not list(tmp_path.iterdir())
    assert "torch is not installed" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("name", "told"),
    [("actve", "did you mean active"), ("with_stacks", "with_stack"), ("zzz", "known settings")],
)
def test_a_wrong_setting_is_told(name: str, told: str) -> None:
    with pytest.raises(TypeError, match=told):
        rankscope.collect("traces", **{name: 1})


def test_a_folder_that_cannot_be_written_does_not_end_the_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: object())
    (tmp_path / "file").write_text("in the way")
    with rankscope.collect(tmp_path / "file" / "traces") as run:
        run.step()
    assert run.folder is None
    assert "rankscope: nothing is collected: NotADirectoryError" in capfd.readouterr().err


def test_a_run_of_the_launcher_is_joined_and_outlives_the_block(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_module, "PARTS", (("rankscope.collect.metrics", "Metrics", ("metrics",)),))
    launched = Run(Settings(str(tmp_path / "launched")))
    launched.begin(0, 1, 0)
    run_module.set_current(launched)
    try:
        with rankscope.collect(tmp_path / "other") as run:
            assert run.folder == launched.folder
        assert not launched.has_ended
        rankscope.metric("loss", 1.0)
    finally:
        run_module.set_current(None)
        launched.finish()
    assert not (tmp_path / "other").exists()
    assert '"loss"' in (tmp_path / "launched" / "metrics_0.jsonl").read_text()


@pytest.mark.e2e
@pytest.mark.usefixtures("few_parts")
@pytest.mark.filterwarnings("default")
class TestWithTorch:
    @pytest.fixture(autouse=True)
    def needs_torch(self) -> None:
        pytest.importorskip("torch")

    def test_a_block_collects_the_steps_that_it_finds(self, tmp_path: Path) -> None:
        with rankscope.collect(tmp_path, wait=0, active=2, clean=0) as run:
            train(5)
            rankscope.metric("loss", 0.5)
        train(2)
        (rank,) = manifest_in(tmp_path)["ranks"]
        assert rank["n_steps"] == 5
        assert {entry["file"] for entry in rank["got"]} == {"metrics_0.jsonl", "torch_et_0.json", "kineto_trace_0.json"}
        assert manifest_in(tmp_path)["run"]["ended_ns"] > manifest_in(tmp_path)["run"]["started_ns"]
        assert run.folder == tmp_path

    def test_steps_can_be_marked_and_are_then_not_counted_twice(self, tmp_path: Path) -> None:
        with rankscope.collect(tmp_path, kineto=False, execution_trace=False) as run:
            for number in range(3):
                train(1)
                run.metric("number", number + 1)
                run.step(samples=8)
        assert manifest_in(tmp_path)["ranks"][0]["n_steps"] == 3
        lines = list(map(json.loads, (tmp_path / "metrics_0.jsonl").read_text().splitlines()[1:]))
        lines = [line for line in lines if "values" not in line]  # what was measured beside
        assert [(line["step"], line["value"]) for line in lines if line["name"] == "number"] == [(1, 1), (2, 2), (3, 3)]
        assert [line["step"] for line in lines if line["name"] == "samples_per_s"] == [2, 3]

    def test_it_can_be_stopped_without_a_block_and_only_once(self, tmp_path: Path) -> None:
        run = rankscope.collect(tmp_path, kineto=False, execution_trace=False)
        train(2)
        run.stop()
        train(2)
        run.stop()
        assert manifest_in(tmp_path)["ranks"][0]["n_steps"] == 2

    def test_a_second_call_joins_the_first(self, tmp_path: Path) -> None:
        with rankscope.collect(tmp_path / "one", kineto=False, execution_trace=False) as outer:
            with rankscope.collect(tmp_path / "two") as inner:
                train(1)
            train(1)
        assert inner.folder == outer.folder
        assert manifest_in(outer.folder)["ranks"][0]["n_steps"] == 2
        assert not (tmp_path / "two").exists()

    def test_a_later_run_gets_a_folder_of_its_own(self, tmp_path: Path) -> None:
        folders = []
        for _ in range(2):
            with rankscope.collect(tmp_path, kineto=False, execution_trace=False) as run:
                train(1)
            folders.append(run.folder)
        assert folders == [tmp_path, tmp_path / "run_2"]
        assert all((folder / "metrics_0.jsonl").exists() for folder in folders if folder)

    def test_an_exception_passes_after_a_dump(self, tmp_path: Path) -> None:
        with pytest.raises(ZeroDivisionError), rankscope.collect(tmp_path, kineto=False, execution_trace=False):
            _ = 1 / 0
        assert Telling.reasons == ("ZeroDivisionError: division by zero", "exit")
        assert manifest_in(tmp_path)["ranks"][0]["ended_ns"]

    def test_leaving_the_program_is_no_reason_to_dump(self, tmp_path: Path) -> None:
        with pytest.raises(SystemExit), rankscope.collect(tmp_path, kineto=False, execution_trace=False):
            sys.exit(3)
        assert Telling.reasons == ("exit",)

    def test_torch_is_as_before_when_the_block_is_left(self, tmp_path: Path) -> None:
        import torch.distributed
        from torch.optim import optimizer

        def found() -> tuple[Any, ...]:
            profiler = torch.autograd.profiler
            distributed = getattr(torch.distributed, "init_process_group", None)
            return len(optimizer._global_optimizer_post_hooks), profiler._prepare_profiler, distributed

        before = found()
        with rankscope.collect(tmp_path):
            assert len({*before, *found()}) == len(before) * 2
        assert found() == before


JOB = """
import os, sys, torch, rankscope

def train(folder):
    with rankscope.collect(folder, wait=0, warmup=0, active=1, clean=1, stall_seconds=60):
        model = torch.nn.Linear(4, 4)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(4):
            model(torch.ones(2, 4)).sum().backward()
            optimizer.step()
            rankscope.metric("loss", torch.tensor(0.5))
        if os.fork() == 0:
            sys.exit(7)
        assert os.waitstatus_to_exitcode(os.wait()[1]) == 7

for rank in ("0", "1"):
    if os.fork() == 0:
        os.environ.update(RANK=rank, LOCAL_RANK=rank, WORLD_SIZE="2")
        train(sys.argv[1])
        sys.exit(0)
sys.exit(max(os.wait()[1], os.wait()[1]))
"""


@pytest.mark.e2e
def test_all_ranks_of_a_job_write_into_one_folder(tmp_path: Path) -> None:
    """With all that is collected by default; a forked child leaves the block as well and changes nothing."""
    pytest.importorskip("torch")
    done = run_python(JOB, str(tmp_path / "traces"))
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    ranks = manifest_in(tmp_path / "traces")["ranks"]
    assert [(rank["rank"], rank["world_size"], rank["n_steps"]) for rank in ranks] == [(0, 2, 4), (1, 2, 4)]
    for rank in ranks:
        got = {entry["file"] for entry in rank["got"]}
        number = rank["rank"]
        assert got >= {f"{kind}_{number}.json" for kind in ("torch_et", "kineto_trace", "kineto_clean")}
        assert f"metrics_{number}.jsonl" in got
        assert (tmp_path / "traces" / f"metrics_{number}.jsonl").read_text().count('"loss"') == 4
    assert not list((tmp_path / "traces").rglob("*.partial"))
