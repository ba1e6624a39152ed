"""What was made of a large trace is kept: whole, and only as long as the trace stays what it was."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import duckdb
import pytest

from cli.running import run_rankscope
from rankscope.commands.loading import default_cache
from rankscope.errors import OutputError, RankscopeError
from rankscope.pipeline import load
from rankscope.read import cache, event_stream
from scale.comparing import contents, write_traces

pytestmark = pytest.mark.slow


def forbid_reading(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: object) -> None:
        raise AssertionError("the trace is read again")

    monkeypatch.setattr(event_stream.EventStream, "__iter__", refuse)


@pytest.mark.parametrize("place", ["folder", "file://", "memory://"])
def test_a_second_run_reads_nothing_again(
    place: str, traces: Path, tmp_path: Path, store: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen = {"folder": str(tmp_path / "kept"), "file://": (tmp_path / "kept").as_uri(), "memory://": "memory://kept/x"}
    first = contents(load(traces, cache=chosen[place]))
    forbid_reading(monkeypatch)
    assert contents(load(traces, cache=chosen[place])) == first
    with pytest.raises(AssertionError, match="read again"):
        load(traces, cache=str(tmp_path / "another"))


def test_parts_in_a_store_are_queried_there(traces: Path, store: Any) -> None:
    there = load(traces, cache="memory://kept")
    assert {part.path.partition("/kept/")[0] for part in there.parts["kernels"]} == {"memory://"}
    assert contents(there) == contents(load(traces))


def test_a_changed_trace_is_read_again(tmp_path: Path) -> None:
    path, _ = write_traces(tmp_path / "job")
    before = contents(load(tmp_path / "job", cache=str(tmp_path / "kept")))
    text = path.read_bytes()
    path.write_bytes(text.replace(b"aten::", b"btcn::"))
    os.utime(path, ns=(1, path.stat().st_mtime_ns + 1))
    after = contents(load(tmp_path / "job", cache=str(tmp_path / "kept")))
    assert before["kernels"] == after["kernels"]
    assert before["ops"] != after["ops"]


def test_a_changed_object_is_read_again(traces: Path, tmp_path: Path, store: Any) -> None:
    text = (traces / "kineto_trace_0.json").read_bytes()
    names = set()
    for content in (text, text.replace(b"aten::", b"btcn::")):
        store.pipe_file("memory://job/kineto_trace_0.json", content)
        names |= {row[3][:4] for row in contents(load("memory://job", cache=str(tmp_path)))["ops"]}
    assert {"aten", "btcn"} <= names


def test_wanting_the_stacks_is_another_entry(traces: Path, tmp_path: Path) -> None:
    for with_stacks in (False, True, False):
        load(traces, cache=str(tmp_path), with_stacks=with_stacks)
    assert len(list(tmp_path.iterdir())) == 4


def test_whoever_fails_in_the_middle_leaves_no_entry(tmp_path: Path, store: Any) -> None:
    def fill_and_fail(workspace: str) -> None:
        with cache.filling(workspace) as aside:
            (aside / "ops.parquet").write_bytes(b"half")
            raise KeyboardInterrupt

    for workspace in (str(tmp_path / "entry"), "memory:///kept/entry"):
        with pytest.raises(KeyboardInterrupt):
            fill_and_fail(workspace)
        assert cache.stored(workspace) is None
    assert list(tmp_path.iterdir()) == []
    assert store.find("/kept") == []


def test_two_who_fill_one_entry_do_not_mix(tmp_path: Path, store: Any) -> None:
    for workspace in (str(tmp_path / "entry"), "memory:///kept/entry"):
        with cache.filling(workspace) as slow:
            with cache.filling(workspace) as quick:
                (quick / "ops.parquet").write_bytes(b"quick")
                cache.note_done(quick, b"quick")
            entry = cache.kept(workspace)
            (slow / "ops.parquet").write_bytes(b"slow")
            cache.note_done(slow, b"slow")
        later = cache.kept(workspace)
        for note, folder in (entry, later):
            read = store.cat_file if "://" in folder else lambda path: Path(path).read_bytes()
            assert read(f"{folder}/ops.parquet") == note


def test_an_entry_without_its_note_is_made_anew(tmp_path: Path) -> None:
    (tmp_path / "entry").mkdir()
    (tmp_path / "entry" / "ops.parquet").write_bytes(b"half")
    with cache.filling(str(tmp_path / "entry")) as aside:
        cache.note_done(aside, b"whole")
    assert cache.kept(str(tmp_path / "entry")).note == b"whole"
    assert [path.name for path in tmp_path.rglob("*")] == ["entry", "profile.json"]


@pytest.mark.parametrize(
    "error",
    [
        OSError(errno.ENOSPC, "No space left on device"),
        duckdb.IOException('Could not write "x": No space left on device'),
    ],
)
def test_a_full_disk_is_said(error: Exception, tmp_path: Path, store: Any) -> None:
    def fill(workspace: str) -> None:
        with cache.filling(workspace):
            raise error

    for workspace in (str(tmp_path / "entry"), "memory:///kept/entry"):
        with pytest.raises(OutputError, match="the disk is full"):
            fill(workspace)
    assert list(tmp_path.iterdir()) == []


def test_a_note_that_is_not_whole_is_none(store: Any) -> None:
    with cache.filling("memory:///kept/entry") as aside:
        cache.note_done(aside, b"[1, 2, 3]")
    note = store.cat_file("/kept/entry/profile.json")
    assert cache.kept("memory:///kept/entry").note == b"[1, 2, 3]"
    for n_bytes in range(len(note)):
        store.pipe_file("/kept/entry/profile.json", note[:n_bytes])
        assert cache.stored("memory:///kept/entry") is None


def test_a_place_that_cannot_be_written_is_said(traces: Path, tmp_path: Path, store: Any) -> None:
    (tmp_path / "file").write_text("")
    for place in (str(tmp_path / "file" / "kept"), "nosuch://kept"):
        with pytest.raises(RankscopeError) as caught:
            load(traces, cache=place)
        assert place.partition("/kept")[0] in str(caught.value)


def test_a_store_that_refuses_is_said(traces: Path, store: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(store, "put_file", refuse)
    with pytest.raises(OutputError) as caught:
        load(traces, cache="memory://kept")
    assert "permission denied" in caught.value.message
    assert "--cache" in caught.value.hint


def test_the_default_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANKSCOPE_CACHE", "s3://bucket/kept")
    assert default_cache() == "s3://bucket/kept"
    monkeypatch.delenv("RANKSCOPE_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "a" / "b"))
    assert default_cache() == str(tmp_path / "a" / "b" / "rankscope")
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    assert default_cache() is None


QUERY = "select rank, count(*) as n from kernels group by all order by all"


def files_below(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def test_commands_keep_what_they_made_unless_told_otherwise(traces: Path, tmp_path: Path) -> None:
    scratch, kept = tmp_path / "scratch", tmp_path / "kept"
    scratch.mkdir()
    environment = {"TMPDIR": str(scratch), "RANKSCOPE_CACHE": str(kept), "HOME": str(tmp_path)}
    without = run_rankscope("query", str(traces), QUERY, "--json", "--no-cache", env=environment)
    assert without.returncode == 0, without.stderr
    assert files_below(tmp_path) == []
    once = run_rankscope("query", str(traces), QUERY, "--json", env=environment)
    entries = {path: path.stat().st_mtime_ns for path in kept.rglob("*.parquet")}
    again = run_rankscope("query", str(traces), QUERY, "--json", env=environment)
    assert entries
    assert entries == {path: path.stat().st_mtime_ns for path in kept.rglob("*.parquet")}
    assert without.stdout == once.stdout == again.stdout
    assert files_below(scratch) == []
    both = run_rankscope("query", str(traces), QUERY, "--no-cache", "--cache", str(kept), env=environment)
    assert both.returncode == 2
    assert "not allowed with" in both.stderr
