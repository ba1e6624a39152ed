from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from rankscope.model.finding import Location
from rankscope.model.source_text import MAX_BYTES, source_line


def test_reads_the_line_by_absolute_and_by_relative_path(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("one = 1\n\ttwo = 2  \n")
    assert source_line(Location(str(tmp_path / "a.py"), 1, "f"), "/nowhere") == "one = 1"
    assert source_line(Location("a.py", 2, "f"), str(tmp_path)) == "    two = 2"


def test_a_form_feed_does_not_count_as_a_line_end(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("one\n\x0c\u2028\ntwo\n")
    assert source_line(Location("a.py", 3, "f"), str(tmp_path)) == "two"


@pytest.mark.parametrize("line", [-1, 0, 2, 3, 10**30])
def test_no_line_no_source(tmp_path: Path, line: int) -> None:
    (tmp_path / "a.py").write_text("one\n")
    assert source_line(Location("a.py", line, "f"), str(tmp_path)) is None


@pytest.mark.parametrize("name", ["gone.py", "", "<string>", "a\0b.py", "\udc80.py", "x" * 5000 + ".py", "folder.py"])
def test_odd_paths_give_nothing(tmp_path: Path, name: str) -> None:
    (tmp_path / "folder.py").mkdir()
    assert source_line(Location(name, 1, "f"), str(tmp_path)) is None


def test_only_source_files_are_read(tmp_path: Path) -> None:
    (tmp_path / "id_rsa").write_text("secret\n")
    assert source_line(Location("id_rsa", 1, "f"), str(tmp_path)) is None


def test_a_named_pipe_does_not_block(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.py")
    writer = os.open(tmp_path / "pipe.py", os.O_RDWR)  # with a writer that leaves, a reader ends instead of hanging
    os.write(writer, b"one\n")
    threading.Timer(1, os.close, [writer]).start()
    assert source_line(Location("pipe.py", 1, "f"), str(tmp_path)) is None


def test_a_huge_file_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "big.py").write_bytes(b"x\n" * (MAX_BYTES // 2 + 1))
    assert source_line(Location("big.py", 1, "f"), str(tmp_path)) is None
