"""A dump on request: written whole while the job goes on, and answered in the manifest only then."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import rankscope
from collector.children import child, wait_until
from rankscope.collect import requests
from rankscope.collect import run as runs
from rankscope.collect.run import Run
from rankscope.collect.settings import Settings

OFF: dict[str, Any] = dict.fromkeys(("execution_trace", "kineto", "recorder", "metrics", "compile_log"), False)


def dumped(folder: Path) -> dict[str, Any]:
    part = json.loads((folder / "manifest.d" / "rank_3.json").read_text())
    return part["dumped"] or {}


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Run]:
    run = Run(replace(Settings(folder=str(tmp_path)), **OFF))
    yield run
    run.finish()


def test_a_request_is_answered_when_the_files_are_there(tmp_path: Path) -> None:
    with child(tmp_path, "begin()\ndo_python_for_ever()") as job:
        assert job.read_line() == "ready"
        first = requests.ask(tmp_path)
        wait_until(lambda: dumped(tmp_path).get("request") == first)
        assert "reason: asked by rankscope snapshot ===" in job.stacks()
        assert "in do_python_for_ever" in job.stacks()
        second = requests.ask(tmp_path)
        wait_until(lambda: dumped(tmp_path).get("request") == second)
        assert job.stacks().count("reason: asked by rankscope snapshot ===") == 2
        assert job.process.poll() is None, "the job goes on"


def test_a_request_that_was_left_behind_is_not_for_this_run(tmp_path: Path, run: Run) -> None:
    requests.ask(tmp_path)
    run.begin(3, 4, 0)
    wanted = requests.ask(tmp_path)
    wait_until(lambda: bool(dumped(tmp_path)))
    assert dumped(tmp_path)["request"] == wanted
    assert (tmp_path / "stacks_3.txt").read_text().count("===\n") == 1


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"id": ""}', b"\xff" * 9000])
def test_what_is_no_request_asks_for_nothing(tmp_path: Path, run: Run, content: bytes) -> None:
    run.begin(3, 4, 0)
    (tmp_path / requests.NAME).write_bytes(content)
    part = run.part("requests")
    assert part is not None
    part.tick()
    assert not dumped(tmp_path)


def test_a_dump_from_the_jobs_own_code(tmp_path: Path, run: Run) -> None:
    assert rankscope.dump() == [], "nothing is collected"
    run.begin(3, 4, 0)
    runs.set_current(run)
    try:
        assert rankscope.dump() == [tmp_path / "stacks_3.txt"]
    finally:
        runs.set_current(None)
    text = (tmp_path / "stacks_3.txt").read_text()
    assert "reason: asked by rankscope.dump() ===" in text
    main = text[text.index("[MainThread]") :].splitlines()
    assert main[1].endswith(f"in {test_a_dump_from_the_jobs_own_code.__name__}"), "not where the collector waits"


def test_a_dump_that_takes_too_long_is_not_waited_for(tmp_path: Path, run: Run) -> None:
    run.begin(3, 4, 0)
    runs.set_current(run)
    held = threading.Event()

    def hold() -> None:
        with run._busy:
            held.set()
            release.wait(30)

    release = threading.Event()
    thread = threading.Thread(target=hold)
    thread.start()
    held.wait()
    try:
        assert rankscope.dump(seconds=0.1) == []
    finally:
        release.set()
        thread.join()
        runs.set_current(None)
