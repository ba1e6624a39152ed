"""Files of the collector appear whole or not at all, and never in the place of others."""

from __future__ import annotations

import errno
import gzip
import os
from pathlib import Path

import pytest

from rankscope.collect.files import Publisher


def publisher(folder: Path, max_bytes: int = 1000) -> Publisher:
    return Publisher(folder, max_bytes)


def writing(text: str):  # type: ignore[no-untyped-def]
    return lambda path: path.write_text(text, encoding="utf-8")


def test_a_file_has_its_name_only_when_it_is_whole(tmp_path: Path) -> None:
    seen: list[list[str]] = []

    def write(path: Path) -> None:
        path.write_text("half", encoding="utf-8")
        seen.append(os.listdir(tmp_path))
        path.write_text("whole", encoding="utf-8")

    assert publisher(tmp_path).publish("a.json", write) == "a.json"
    assert [name.endswith(".partial") for name in seen[0]] == [True]
    assert os.listdir(tmp_path) == ["a.json"]
    assert (tmp_path / "a.json").read_text() == "whole"


def test_a_failed_write_leaves_nothing(tmp_path: Path) -> None:
    def write(path: Path) -> None:
        path.write_text("half", encoding="utf-8")
        raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(OSError, match="No space"):
        publisher(tmp_path).publish("a.json", write)
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("replace", [False, True])
def test_files_of_others_are_never_replaced(tmp_path: Path, replace: bool) -> None:
    (tmp_path / "a.json").write_text("an earlier run's")
    with pytest.raises(FileExistsError):
        publisher(tmp_path).publish("a.json", writing("ours"), replace=replace)
    assert (tmp_path / "a.json").read_text() == "an earlier run's"
    assert os.listdir(tmp_path) == ["a.json"]


def test_a_newer_state_replaces_our_own_and_is_counted_once(tmp_path: Path) -> None:
    files = publisher(tmp_path, max_bytes=10)
    for text in ("12345678", "123456789"):
        files.publish("a", writing(text), replace=True)
    assert (tmp_path / "a").read_text() == "123456789"
    assert files.n_bytes == 9


def test_what_would_exceed_the_limit_is_not_kept(tmp_path: Path) -> None:
    files = publisher(tmp_path, max_bytes=10)
    files.publish("a", writing("123456"))
    with pytest.raises(OSError, match=r"5 bytes, which exceeds the limit of 10 bytes"):
        files.publish("b", writing("12345"))
    assert os.listdir(tmp_path) == ["a"]


def test_packed_files_carry_the_ending(tmp_path: Path) -> None:
    files = publisher(tmp_path)
    partial = files.aside("a.json")
    partial.write_text("text" * 100, encoding="utf-8")
    assert files.publish_written("a.json", partial, pack=True) == "a.json.gz"
    assert os.listdir(tmp_path) == ["a.json.gz"]
    with gzip.open(tmp_path / "a.json.gz", "rt") as stream:
        assert stream.read() == "text" * 100


def test_without_hard_links_names_are_still_not_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "link", refuse)
    publisher(tmp_path).publish("a", writing("first"))
    with pytest.raises(FileExistsError):
        publisher(tmp_path).publish("a", writing("second"))
    assert (tmp_path / "a").read_text() == "first"
