"""What is kept of torch's recorder, against bindings that tell what the test wants."""

from __future__ import annotations

import json
import sys
import threading
import types
from pathlib import Path
from typing import Any

import pytest

from rankscope.collect.dumps.recorder import Counts, Recorder, count_calls
from rankscope.collect.run import EXIT, Run
from rankscope.collect.settings import Settings

STALL = "no collective has finished for 300 s"
FAILURE = "RuntimeError: Timed out"


class FakeRing:
    """One of torch's recorders: what it dumps tells the state at that time."""

    def __init__(self, label: str) -> None:
        self.label = label
        self.status: dict[str, dict[str, str]] = {}
        self.has_frames = True
        self.n_open: list[int] = []  # calls that have not ended, at one look after the other

    def set(self, enqueued: int, completed: int) -> None:
        told = {"last_enqueued_collective": str(enqueued), "last_completed_collective": str(completed)}
        self.status = {"0": told, "1": dict.fromkeys(told, "-1")}

    def dump_json(self, includes_calls: bool, _only_active: bool) -> bytes:
        if not includes_calls:
            return json.dumps({"pg_status": self.status}).encode()
        n_open = self.n_open.pop(0) if len(self.n_open) > 1 else sum(self.n_open)
        ended = [{"retired": True, "state": "scheduled"}, {"retired": False, "state": "completed"}]
        return json.dumps({"entries": [*ended, *n_open * [{"retired": False, "state": "scheduled"}]]}).encode()

    def dump(self, **asked: bool) -> bytes:
        if asked["includeStackTraces"]:
            if not self.has_frames:
                raise RuntimeError("cannot symbolize")
            assert not hasattr(sys.modules["torch"]._inductor, "codecache")  # as torch looks for compiled code
        assert asked["includeCollectives"]
        assert not asked["onlyActive"]
        return f"{self.label} {self.status} {asked['includeStackTraces']}".encode()


@pytest.fixture
def bindings(monkeypatch: pytest.MonkeyPatch) -> types.ModuleType:
    """torch as it is for the recorder; a look at torch._inductor imports the compiler."""

    def import_lazily(name: str) -> Any:
        if name == "_inductor":
            raise AssertionError("the compiler was imported")
        raise AttributeError(name)

    torch, found = types.ModuleType("torch"), types.ModuleType("torch._C._distributed_c10d")
    vars(torch)["__getattr__"] = import_lazily
    distributed = types.ModuleType("torch.distributed")
    vars(distributed).update(is_available=lambda: True, is_initialized=lambda: True)
    for name in [name for name in sys.modules if name.partition(".")[0] == "torch"]:
        monkeypatch.delitem(sys.modules, name)
    for module in (torch, found, distributed):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    return found


@pytest.fixture
def gloo(bindings: types.ModuleType) -> FakeRing:
    return add_ring(bindings, "_dump_fr_trace")


def add_ring(bindings: types.ModuleType, name: str) -> FakeRing:
    ring = FakeRing(name)
    vars(bindings).update({name: ring.dump, f"{name}_json": ring.dump_json})
    return ring


@pytest.fixture
def recorder(tmp_path: Path) -> Recorder:
    run = Run(Settings(folder=str(tmp_path)))
    run.rank = 3
    return Recorder(run)


def dumped(recorder: Recorder) -> str:
    path = recorder.run.folder / "nccl_trace_rank_3"
    return path.read_text() if path.exists() else ""


def test_nothing_is_left_by_a_job_without_collectives(gloo: FakeRing, recorder: Recorder) -> None:
    recorder.dump(EXIT)
    assert dumped(recorder) == ""


def test_a_rank_that_hangs_before_its_first_collective_says_so(gloo: FakeRing, recorder: Recorder) -> None:
    recorder.dump(STALL)
    assert dumped(recorder)


def test_a_process_without_groups_leaves_nothing(
    gloo: FakeRing, recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.modules["torch.distributed"], "is_initialized", lambda: False)
    recorder.dump(STALL)
    assert dumped(recorder) == ""


def test_calls_are_counted_over_groups_and_recorders(bindings: types.ModuleType) -> None:
    assert count_calls() is None
    add_ring(bindings, "_dump_nccl_trace").set(7, 5)
    add_ring(bindings, "_dump_fr_trace").set(2, 2)
    assert count_calls() == Counts(9, 7)


def test_a_later_state_takes_the_place_of_an_earlier_one(gloo: FakeRing, recorder: Recorder) -> None:
    gloo.set(5, 4)
    recorder.dump(STALL)
    gloo.set(9, 8)
    recorder.dump(STALL)
    assert "'9'" in dumped(recorder)


def test_a_call_that_failed_after_the_stall_still_waits_in_the_dump(gloo: FakeRing, recorder: Recorder) -> None:
    gloo.set(5, 4)
    recorder.dump(STALL)
    of_the_stall = dumped(recorder)
    gloo.set(5, 5)
    recorder.dump(FAILURE)
    recorder.dump(EXIT)
    assert dumped(recorder) == of_the_stall


def test_a_stall_that_passed_is_not_told_at_a_normal_end(gloo: FakeRing, recorder: Recorder) -> None:
    gloo.set(5, 4)
    recorder.dump(STALL)
    gloo.set(5, 5)
    recorder.dump(EXIT)
    assert "'4'" not in dumped(recorder)


def problems(recorder: Recorder) -> list[str]:
    return [problem["problem"] for problem in recorder.run.describe()["problems"]]


def test_the_last_dump_waits_until_the_calls_are_recorded_as_ended(gloo: FakeRing, recorder: Recorder) -> None:
    gloo.set(5, 3)
    gloo.n_open = [2, 1, 0]
    recorder.dump(EXIT)
    assert gloo.n_open == [0]
    assert dumped(recorder)
    assert problems(recorder) == []


def test_calls_that_end_out_of_order_are_not_waited_for(gloo: FakeRing, recorder: Recorder) -> None:
    gloo.set(5, 4)  # the counter stays behind for ever
    gloo.n_open = [0]
    recorder.dump(EXIT)
    assert problems(recorder) == []


def test_after_an_exception_nothing_is_waited_for(gloo: FakeRing, recorder: Recorder) -> None:
    gloo.set(5, 4)
    gloo.n_open = [1, 0]  # it would look finished
    recorder.run.mark_raised()
    recorder.dump(EXIT)
    assert gloo.n_open == [1, 0]
    assert problems(recorder) == []


def test_a_call_that_does_not_end_is_told(gloo: FakeRing, recorder: Recorder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rankscope.collect.dumps.recorder._SETTLE_SECONDS", 0.02)
    gloo.set(5, 4)
    gloo.n_open = [1]
    recorder.dump(EXIT)
    assert dumped(recorder)
    (problem,) = problems(recorder)
    assert "with 1 call not recorded as complete" in problem


def test_the_dump_that_torch_wrote_before_it_aborted_stays(gloo: FakeRing, recorder: Recorder) -> None:
    gloo.set(5, 4)
    (recorder.run.folder / "nccl_trace_rank_3").write_text("by torch")
    recorder.dump(FAILURE)
    assert dumped(recorder) == "by torch"
    assert recorder.run.describe()["got"][0]["file"] == "nccl_trace_rank_3"


def test_so_it_does_where_torch_wrote_over_an_earlier_one(gloo: FakeRing, recorder: Recorder) -> None:
    gloo.set(5, 4)
    recorder.dump(STALL)
    (recorder.run.folder / "nccl_trace_rank_3").write_text("by torch")
    gloo.set(6, 4)
    recorder.dump(FAILURE)
    assert dumped(recorder) == "by torch"


def test_the_dump_of_an_earlier_run_is_not_taken_for_one_of_this(gloo: FakeRing, tmp_path: Path) -> None:
    (tmp_path / "nccl_trace_rank_3").write_text("of yesterday")
    run = Run(Settings(folder=str(tmp_path)))
    run.rank = 3
    gloo.set(5, 4)
    Recorder(run).dump(STALL)
    described = run.describe()
    assert described["got"] == []
    assert "nccl_trace_rank_3" in described["problems"][0]["problem"]
    assert (tmp_path / "nccl_trace_rank_3").read_text() == "of yesterday"


def test_nccl_goes_before_gloo_and_the_rest_is_told(bindings: types.ModuleType, recorder: Recorder) -> None:
    add_ring(bindings, "_dump_fr_trace").set(5, 4)
    nccl = add_ring(bindings, "_dump_nccl_trace")
    assert recorder.to_bytes().startswith(b"_dump_fr_trace")
    nccl.set(1, 1)
    assert recorder.to_bytes().startswith(b"_dump_nccl_trace")
    assert "fr_trace" in recorder.run.describe()["problems"][0]["problem"]


def test_without_frames_where_they_cannot_be_told(gloo: FakeRing, recorder: Recorder) -> None:
    gloo.set(5, 4)
    gloo.has_frames = False
    assert recorder.to_bytes().endswith(b"False")


def test_an_old_torch_that_takes_no_arguments(bindings: types.ModuleType, recorder: Recorder) -> None:
    vars(bindings)["_dump_nccl_trace"] = lambda: b"everything"
    recorder.dump(EXIT)
    assert dumped(recorder) == "everything"


def test_a_torch_without_recorder_is_told(bindings: types.ModuleType, recorder: Recorder) -> None:
    recorder.joined()
    recorder.dump(STALL)
    assert dumped(recorder) == ""
    assert "no readable Flight Recorder" in recorder.run.describe()["problems"][0]["problem"]


def test_other_threads_find_the_compiler_while_a_dump_is_made(
    gloo: FakeRing, recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiler = types.ModuleType("torch._inductor")
    vars(compiler)["config"] = "the real one"
    found: list[str] = []

    def use_the_compiler() -> None:
        monkeypatch.setitem(sys.modules, "torch._inductor", compiler)
        found.append(vars(sys.modules["torch"])["_inductor"].config)

    def dump(**_: bool) -> bytes:
        thread = threading.Thread(target=use_the_compiler)
        thread.start()
        thread.join()
        return b"dumped"

    monkeypatch.setattr(sys.modules["torch._C._distributed_c10d"], "_dump_fr_trace", dump)
    assert recorder.to_bytes() == b"dumped"
    assert found == ["the real one"]
    assert "_inductor" not in vars(sys.modules["torch"])
