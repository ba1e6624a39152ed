"""Real jobs on gloo and a TCPStore whose calls are tracked: report, dump, verdict of each way to fall out of step."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from launching import JOB_ENVIRONMENT, Started, code_site, diagnose, run_forked

pytest.importorskip("torch")
pytestmark = pytest.mark.e2e

JOB = "tracked"
N_RANKS = 3
CULPRIT = 2
GAVE_UP = 3  # the exit code of a rank whose call failed


class Ended(NamedTuple):
    codes: list[int]
    printed: str
    folder: Path

    def report(self, rank: int) -> str:
        return (self.folder / f"desync_{rank}.txt").read_text()

    def dump(self, rank: int) -> dict[str, Any]:
        dump: dict[str, Any] = pickle.loads((self.folder / f"rankscope_trace_rank_{rank}").read_bytes())
        return dump

    def calls(self, rank: int) -> list[tuple[int, str, str]]:
        entries = self.dump(rank)["entries"]
        return [(entry["collective_seq_id"], entry["profiling_name"], entry["state"]) for entry in entries]

    def verdict(self) -> dict[str, Any]:
        errors = diagnose(self.folder).errors
        assert errors
        return errors[0]


def run(fault: str, folder: Path) -> Ended:
    traces = folder / "traces"
    traces.mkdir()
    output = folder / "output.txt"
    arguments = ["--dumps", str(traces), "--fault", fault]
    codes = run_forked(Started(JOB, arguments, JOB_ENVIRONMENT, N_RANKS, output))
    printed = output.read_text(errors="replace")
    print(printed)
    return Ended(codes, printed, traces)


def test_a_rank_that_left_out_the_next_collective(tmp_path: Path) -> None:
    ended = run("leave_out_next", tmp_path)
    assert ended.codes == [GAVE_UP, GAVE_UP, 0]
    for rank in (0, 1):
        report = ended.report(rank)
        assert f" - [{rank}] Timeout at collective: ALLREDUCE, #5\n" in report
        assert "   - [2] finished collective #4 but did not join collective #5 (counted from 1)\n" in report
        assert "   #5 started:\n     [0, 1] started ALLREDUCE\n" in report
        site = code_site(JOB, "leave_out_next", "dist.all_reduce")
        assert f"#0 leave_out_next from {site['file']}:{site['line']}\n" in report
    assert ended.printed.count("rankscope desync report") == 1, "one rank speaks for all"
    verdict = ended.verdict()
    assert (verdict["rule"], verdict["ranks"], verdict["collective"]["seq"]) == ("rank-stuck", [CULPRIT], 5)
    assert verdict["peer_location"] == code_site(JOB, "leave_out_next", "dist.all_reduce")
    assert (ended.dump(0)["entries"][-1]["state"], ended.dump(0)["entries"][-1]["retired"]) == ("started", True)


def test_a_rank_that_joined_no_collective_at_all(tmp_path: Path) -> None:
    ended = run("never_join", tmp_path)
    assert " - Ranks that never joined any collective: [2]\n" in ended.report(0)
    assert "Lagging" not in ended.report(0)
    assert ended.calls(CULPRIT) == []
    verdict = ended.verdict()
    assert (verdict["rule"], verdict["ranks"], verdict["collective"]["seq"]) == ("rank-stuck", [CULPRIT], 1)


def test_a_rank_that_calls_something_else(tmp_path: Path) -> None:
    ended = run("call_another", tmp_path)
    assert ended.codes == [GAVE_UP] * N_RANKS
    for rank in range(N_RANKS):
        assert "   - [0, 1, 2] joined but did not finish collective #5 (counted from 1)\n" in ended.report(rank)
        assert "   #5 started:\n     [0, 1] started ALLREDUCE\n     [2] started ALLGATHER\n" in ended.report(rank)
    verdict = ended.verdict()
    assert (verdict["rule"], verdict["ranks"]) == ("op-mismatch", [CULPRIT])
    assert verdict["location"] == code_site(JOB, "call_another", "dist.all_gather")
    _torch_agrees(ended.folder, "Culprit rank 2", "COLLECTIVE_TYPE_MISMATCH")


def test_a_receive_that_nobody_answers(tmp_path: Path) -> None:
    ended = run("receive_in_vain", tmp_path)
    assert ended.codes == [GAVE_UP, 0, 0]
    assert " - [0] Timeout at collective: RECV, #4\n" in ended.report(0)
    assert "   #4 finished:\n     [1, 2] finished ALLREDUCE\n" in ended.report(0)
    assert ended.calls(0)[-1] == (4, "gloo:recv 0<-2", "started")
    assert ended.dump(0)["entries"][-1]["input_sizes"] == [[7]]
    verdict = ended.verdict()
    assert (verdict["rule"], verdict["ranks"], verdict["collective"]["p2p"]) == ("rank-stuck", [CULPRIT], True)
    assert verdict["peer_location"] == code_site(JOB, "receive_in_vain", "dist.irecv")


def test_a_handle_that_is_waited_for_in_the_backward_pass(tmp_path: Path) -> None:
    """The call is told where it was made, and the stack that it failed in down to the C++ of the autograd engine."""
    ended = run("wait_for_handle", tmp_path)
    assert ended.codes == [GAVE_UP, GAVE_UP, 0]
    made = code_site(JOB, "wait_for_handle", "dist.all_reduce")
    assert f"#0 wait_for_handle from {made['file']}:{made['line']}\n" in ended.report(0)
    waited = code_site(JOB, "wait_for_handle", "handle.wait()")
    [speaker] = [rank for rank in (0, 1) if "then C++" in ended.report(rank)]
    in_both = ended.report(speaker).partition("(Python frames first, then C++):\n")[2]
    assert in_both.startswith(f"#0 <lambda> from {waited['file']}:{waited['line']}\n")
    assert "torch::autograd::Engine" in in_both


def test_a_rank_missing_in_a_small_group(tmp_path: Path) -> None:
    ended = run("miss_in_pair", tmp_path)
    assert ended.codes == [GAVE_UP, 0, 0]
    report = ended.report(0)
    assert 'group 1 "pair" (2 ranks: 0, 2)' in report
    assert "   - [1] finished collective #1 but did not join collective #2 (counted from 1)\n" in report
    assert "default_pg" not in report, "that group is in step"
    verdict = ended.verdict()
    assert (verdict["rule"], verdict["ranks"], verdict["group"]["desc"]) == ("rank-stuck", [CULPRIT], "pair")


def test_a_value_that_somebody_spoilt(tmp_path: Path) -> None:
    ended = run("spoil_value", tmp_path)
    told = " - Partial report: the store gave nothing readable for rank 1 (its value has 1 bytes"
    assert told in ended.report(0)
    assert "   - [2] finished collective #4 but did not join collective #5 (counted from 1)\n" in ended.report(0)


def test_a_store_that_dies_with_its_rank(tmp_path: Path) -> None:
    ended = run("lose_store", tmp_path)
    assert ended.codes == [GAVE_UP, GAVE_UP, 0]
    for rank in (0, 1):
        assert "Partial report: the store gave nothing readable for ranks 0, 1, 2" in ended.report(rank)
        assert ended.calls(rank)[-1] == (5, "gloo:all_reduce", "started")


def test_calls_of_the_reducer_are_taken_from_torchs_recorder(tmp_path: Path) -> None:
    ended = run("average_gradients", tmp_path)
    assert "   - [2] finished collective #9 but did not join collective #10 (counted from 1)\n" in ended.report(0)
    assert ended.calls(0)[-1] == (10, "gloo:all_reduce", "started")
    verdict = ended.verdict()
    assert (verdict["rule"], verdict["ranks"], verdict["collective"]["seq"]) == ("rank-stuck", [CULPRIT], 10)


def test_a_job_in_which_nothing_goes_wrong(tmp_path: Path) -> None:
    ended = run("do_it_all", tmp_path)
    assert "deprecated" not in ended.printed  # of what the tracker asks torch
    assert ended.codes == [0] * N_RANKS
    assert "rankscope" not in ended.printed
    assert not list(ended.folder.glob("desync_*"))
    assert ended.calls(0) == [
        (1, "gloo:_all_gather_base", "completed"),
        (2, "gloo:_reduce_scatter_base", "completed"),
        (2, "gloo:send 0->1", "completed"),
        (2, "gloo:recv 0<-2", "completed"),
        (2, "gloo:send 0->1", "completed"),
        *((seq, "gloo:all_reduce", "completed") for seq in (3, 4, 5, 6)),
        (7, "gloo:all_gather", "completed"),
        (8, "gloo:all_gather", "completed"),
        (9, "gloo:barrier", "completed"),
        (11, "gloo:barrier", "completed"),  # a monitored one takes two numbers in torch's recorder, too
    ]
    frames = ended.dump(0)["entries"][0]["frames"]
    assert (frames[0]["name"], Path(frames[0]["filename"]).name) == ("do_it_all", f"{JOB}.py"), "not in torch's FSDP"
    assert not diagnose(ended.folder).report["findings"]


@pytest.mark.parametrize("hooked", ["before", "after"])
def test_compiled_functions_do_not_notice(hooked: str, tmp_path: Path) -> None:
    output = tmp_path / "output.txt"
    arguments = ["--dumps", str(tmp_path), "--hooked", hooked]
    assert run_forked(Started("tracked_compiled", arguments, JOB_ENVIRONMENT, 1, output)) == [0], output.read_text()
    answer = json.loads((tmp_path / "answer.json").read_text())
    assert answer["found"] == answer["found_unhooked"] == [[3.0] * 3] * 2
    assert answer["n_frames"] == answer["n_frames_unhooked"], "the hooks themselves are not compiled"
    assert answer["calls"] == [
        [1, "all_reduce", True, False],  # compiled into the graph, which calls C++
        [2, "barrier", True, True],
        [3, "all_reduce", True, True],
    ]
    assert answer["n_calls_unhooked"] == 2, "nothing is noted after the hooks were removed"


def _torch_agrees(folder: Path, *texts: str) -> None:
    prefix = "rankscope_trace_rank_"
    for other in [path for path in folder.iterdir() if path.is_file() and not path.name.startswith(prefix)]:
        other.unlink()  # it takes every file for a dump
    for other in (folder / "manifest.d").iterdir():
        other.unlink()
    command = [sys.executable, "-m", "torch.distributed.flight_recorder.fr_trace", str(folder), "-p", prefix]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    for text in texts:
        assert text in done.stdout + done.stderr
