"""`rankscope attach` against a server that stands in for torch's."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest

from live_serving import TRACEBACK, Answer, calls_json, serving, serving_job, unused_url, worker_routes
from rankscope.cli import main


def waiting(n_calls: int, n_ranks: int = 2) -> dict[str, Answer]:
    return {"fr_trace_json": calls_json(n_calls, n_ranks=n_ranks), "dump_traceback": TRACEBACK % (31, b"step")}


def late(n_calls: int) -> dict[str, Answer]:
    """A rank that is busy elsewhere, all its calls done."""
    return {"fr_trace_json": calls_json(n_calls, waits=False), "dump_traceback": TRACEBACK % (17, b"load")}


HUNG = [waiting(4), late(3)]


class Counting:
    """A rank that makes more calls, or stands elsewhere, each time it is asked."""

    def __init__(self, n_calls: int, *, waits: bool, per_reading: int = 0, lines_per_reading: int = 0) -> None:
        self.n_calls, self.waits, self.line = n_calls, waits, 17
        self._per_reading, self._lines_per_reading = per_reading, lines_per_reading
        self._lock = threading.Lock()

    @property
    def handlers(self) -> dict[str, Answer]:
        return {"fr_trace_json": self._calls, "dump_traceback": self._stacks}

    def _calls(self, handler: BaseHTTPRequestHandler) -> None:
        with self._lock:
            send(handler, calls_json(self.n_calls, waits=self.waits))
            self.n_calls += self._per_reading

    def _stacks(self, handler: BaseHTTPRequestHandler) -> None:
        with self._lock:
            send(handler, TRACEBACK % (self.line, b"load"))
            self.line += self._lines_per_reading


def send(handler: BaseHTTPRequestHandler, content: bytes) -> None:
    handler.send_response(200)
    handler.end_headers()
    handler.wfile.write(content)


def answer(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, dict[str, Any]]:
    code = main(["attach", *arguments, "--json"])
    return code, json.loads(capsys.readouterr().out)


def test_a_job_that_hangs_is_diagnosed(capsys: pytest.CaptureFixture[str]) -> None:
    with serving_job(HUNG) as served:
        code, report = answer(capsys, served.url)
    [cause] = [finding for finding in report["findings"] if finding["severity"] == "error"]
    assert (code, cause["rule"], cause["ranks"]) == (1, "rank-stuck", [1])
    assert cause["location"] == {"file": "/job/train.py", "line": 17, "function": "load"}
    assert report["capture"]["paths"] == [served.url]
    assert report["live"]["progress"] is None
    assert [(worker["rank"], worker["url"], worker["problems"]) for worker in report["live"]["workers"]] == [
        (rank, url, []) for rank, url in enumerate(served.workers)
    ]


def test_one_reading_proposes_the_second(capsys: pytest.CaptureFixture[str]) -> None:
    with serving_job(HUNG) as served:
        assert main(["attach", served.url]) == 1
    assert capsys.readouterr().out.rstrip().endswith(f"Next: rankscope attach {served.url} --watch 10")


def test_two_equal_readings_are_a_hang(capsys: pytest.CaptureFixture[str]) -> None:
    with serving_job(HUNG) as served:
        code, report = answer(capsys, served.url, "--watch", "0.1")
        assert main(["attach", served.url, "--watch", "0.1"]) == 1
    progress = report["live"]["progress"]
    assert (code, progress["verdict"]) == (1, "hung")
    assert [(each["rank"], each["state"], each["n_calls"]) for each in progress["ranks"]] == [
        (0, "still", 0),
        (1, "still", 0),
    ]
    lines = capsys.readouterr().out.splitlines()
    assert "the job hangs" in lines[0]
    assert "  rank 1 did not move, now at /job/train.py:17 in load" in lines


def test_a_job_that_makes_calls_is_slow_rather_than_hung(capsys: pytest.CaptureFixture[str]) -> None:
    """Each reading alone looks like a hang: rank 1 is one call behind."""
    ranks = [Counting(4, waits=True, per_reading=5), Counting(3, waits=False, per_reading=5)]
    with serving_job([rank.handlers for rank in ranks]) as served:
        code, report = answer(capsys, served.url, "--watch", "0.1")
        assert main(["attach", served.url, "--watch", "0.1"]) == 0
    progress = report["live"]["progress"]
    assert (code, progress["verdict"]) == (0, "moving")
    assert progress["collectives_per_s"] == pytest.approx(5 / progress["seconds"])
    assert {finding["severity"] for finding in report["findings"] if finding["rule"] == "rank-stuck"} == {"info"}
    assert "not hung" in capsys.readouterr().out.splitlines()[0]


def test_a_rank_that_works_while_the_others_wait_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    with serving_job([waiting(4), Counting(3, waits=False, lines_per_reading=1).handlers]) as served:
        assert main(["attach", served.url, "--watch", "0.1"]) == 0
    printed = capsys.readouterr().out
    assert "  rank 1 made no call, but its main thread moved, now at /job/train.py:18 in load" in printed
    assert "warning[H105]" in printed


def test_a_rank_that_is_gone_is_told_and_judged(capsys: pytest.CaptureFixture[str]) -> None:
    gone, handlers = unused_url(), waiting(4, n_ranks=3)
    with (
        serving(worker_routes(handlers)) as first,
        serving(worker_routes(handlers)) as last,
        serving_job([handlers, {}, handlers], told=[first, gone, last]) as served,
    ):
        code, report = answer(capsys, served.url)
        assert main(["attach", served.url]) == 1
    cause = report["findings"][0]
    assert (code, cause["rule"], cause["ranks"]) == (1, "rank-lost", [1])
    assert report["live"]["workers"][1]["got"] == []
    assert "refused" in report["live"]["workers"][1]["problems"][0]
    assert f"rank 1 ({gone}) sent nothing: " in capsys.readouterr().out.splitlines()[0]


def test_what_was_read_can_be_kept_and_read_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "kept"
    with serving_job(HUNG) as served:
        _, report = answer(capsys, served.url, "-o", str(folder), "--watch", "0.1")
        assert main(["attach", served.url, "-o", str(folder)]) == 2
    assert "is not empty" in capsys.readouterr().err
    names = ["nccl_trace_rank_0", "nccl_trace_rank_1", "stacks_0.txt", "stacks_1.txt"]
    assert sorted(path.name for path in folder.iterdir()) == names
    assert main([str(folder), "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["findings"] == report["findings"]
    assert report["capture"]["paths"] == [str(folder)]


def test_ranks_of_several_hosts_are_told_apart(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "kept"
    with serving(worker_routes(waiting(4))) as first, serving(worker_routes(late(3))) as second:
        elsewhere = second.replace("127.0.0.1", "localhost")
        code, report = answer(capsys, first, elsewhere, "-o", str(folder))
    assert (code, report["findings"][0]["ranks"]) == (1, [1])
    assert report["capture"]["hosts"] == ["127.0.0.1", "localhost"]
    assert sorted(path.name for path in (folder / "localhost").iterdir()) == ["nccl_trace_rank_1", "stacks_1.txt"]


def test_nothing_is_left_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with serving_job(HUNG) as served:
        main(["attach", served.url, "--watch", "0.1"])
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["https://gpu-1"], "plain http"),
        (["http://127.0.0.1:99999"], "is not an address"),
        (["--watch", "0", "x"], "is not a number of seconds"),
        (["--timeout", "soon", "x"], "is not a number of seconds"),
    ],
)
def test_bad_usage_is_said(arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["attach", *arguments]) == 2
    assert said in capsys.readouterr().err


def test_a_folder_that_holds_something_is_refused_before_the_job_is_asked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "mine").write_text("")
    assert main(["attach", unused_url(), "-o", str(tmp_path)]) == 2
    assert main(["attach", unused_url(), "-o", str(tmp_path / "mine")]) == 2
    assert "refused" not in capsys.readouterr().err


@pytest.mark.parametrize("routes", [{}, {"GET /": b"<h1>hello</h1>"}])
def test_another_server_is_told_from_torchs(routes: dict[str, Answer], capsys: pytest.CaptureFixture[str]) -> None:
    with serving(routes) as url:
        assert main(["attach", url]) == 2
    assert "is not torch's debug server" in capsys.readouterr().err


def test_a_job_of_which_nobody_tells_anything_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    with serving_job([{}, {}]) as served:
        assert main(["attach", served.url]) == 2
    assert "none of the 2 ranks answered" in capsys.readouterr().err


def test_content_that_is_no_dump_is_a_finding_and_the_others_are_judged(capsys: pytest.CaptureFixture[str]) -> None:
    foreign = {**late(3), "fr_trace_json": b"<html>not a dump</html>"}
    with serving_job([waiting(4), foreign]) as served:
        _, report = answer(capsys, served.url)
    assert [finding["ranks"] for finding in report["findings"] if finding["rule"] == "file-damaged"] == [[1]]
