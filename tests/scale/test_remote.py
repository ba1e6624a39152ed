"""Traces that lie in an object store, or at any other URL."""

from __future__ import annotations

import gzip
import io
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rankscope.errors import InputError
from rankscope.pipeline import diagnose, load
from rankscope.read import remote
from rankscope.read.files import find_sources
from rankscope.read.remote import RemoteFile, RemoteStream, find_remote, without_secrets
from read.dumps import hung_job, rows_of
from scale.comparing import contents

pytestmark = pytest.mark.slow


def upload(store: Any, folder: Path, url: str) -> None:
    for file in folder.iterdir():
        store.pipe_file(f"{url}/{file.name}", file.read_bytes())


def test_a_capture_in_a_store_is_read_like_one_on_disk(traces: Path, store: Any) -> None:
    upload(store, traces, "memory://bucket/job")
    there = load("memory://bucket/job")
    assert contents(there) == contents(load(traces))
    assert [row["path"] for row in rows_of(there)] == [
        f"memory://bucket/job/kineto_trace_{rank}.json" for rank in (0, 1)
    ]


def test_file_urls_are_paths_of_this_machine(traces: Path, tmp_path: Path) -> None:
    there = load(traces.as_uri(), cache=(tmp_path / "cache").as_uri())
    assert contents(there) == contents(load(traces))
    assert rows_of(there)[0]["path"] == str(traces / "kineto_trace_0.json")
    assert (tmp_path / "cache").is_dir()


def test_dumps_in_a_store_give_the_same_verdict(tmp_path: Path, store: Any) -> None:
    hung_job().write(tmp_path)
    upload(store, tmp_path, "memory://dumps")
    finding = diagnose(load("memory://dumps")).findings[0]
    assert (finding.rule, finding.ranks) == ("op-mismatch", (2,))


def test_packed_files_are_unpacked_on_the_way(traces: Path, store: Any) -> None:
    zstandard = pytest.importorskip("zstandard")
    first, second = (traces / f"kineto_trace_{rank}.json" for rank in (0, 1))
    store.pipe_file("memory://job/kineto_trace_0.json.gz", gzip.compress(first.read_bytes()))
    store.pipe_file("memory://job/kineto_trace_1.json.zst", zstandard.compress(second.read_bytes()))
    there, here = contents(load("memory://job")), contents(load(traces))
    assert {name: rows for name, rows in there.items() if name != "files"} == {
        name: rows for name, rows in here.items() if name != "files"
    }


def test_files_come_in_the_order_of_a_local_folder(tmp_path: Path, store: Any) -> None:
    names = ["rank_10", "rank_2", "b/rank_3", "a/rank_4", "a/z/rank_5", ".hidden/rank_6", "b/.rank_7", "rank_1/rank_8"]
    for name in names:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(b"x")
        store.pipe_file(f"memory://job/{name}", b"x")
    here, _ = find_sources([str(tmp_path)])
    there, _ = find_sources(["memory://job"])
    assert [source.shown.removeprefix("memory://job/") for source in there] == [
        str(source.path.relative_to(tmp_path)) for source in here
    ]
    assert len(there) == 6


def test_a_star_chooses_among_the_names(store: Any) -> None:
    for name in ("a_1", "a_2", "b_1"):
        store.pipe_file(f"memory://job/{name}", b"x")
    assert [file.url.rsplit("/", 1)[-1] for file in find_remote("memory://job/a*")] == ["a_1", "a_2"]
    assert [file.n_bytes for file in find_remote("memory://job/b_1")] == [1]


def test_an_archive_in_a_store_is_told(traces: Path, store: Any) -> None:
    upload(store, traces, "memory://job")
    store.pipe_file("memory://job/more.tar.gz", b"x")
    row = rows_of(load("memory://job"))[-1]
    assert (row["path"], row["status"]) == ("memory://job/more.tar.gz", "damaged")
    assert "unpack" in row["hint"]


@pytest.mark.parametrize(
    ("url", "says", "helps"),
    [
        ("memory://nowhere", "no such file or folder", "folder"),
        ("nosuch://bucket/x", "Protocol not known: nosuch", "rankscope help reading"),
        ("zip://a.json::memory://x.zip", "chained", "unpack"),
        ("file:///no/such/folder", "no such file or folder", "folder"),
    ],
)
def test_what_cannot_be_found_is_said(url: str, says: str, helps: str, store: Any) -> None:
    with pytest.raises(InputError) as caught:
        load(url)
    assert says in caught.value.message
    assert helps in caught.value.hint


def test_without_fsspec_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "fsspec", None)
    with pytest.raises(InputError) as caught:
        load("s3://bucket/job")
    assert caught.value.hint.startswith("pip install 'rankscope[remote]'")


def test_a_missing_package_of_a_store_is_named(store: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "s3fs", None)
    with pytest.raises(InputError, match="s3fs"):
        load("s3://bucket/job")


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("s3://bucket/a/b.json", "s3://bucket/a/b.json"),
        ("/data/job:1@2/rank_0", "/data/job:1@2/rank_0"),
        ("abfs://container@account.net/x", "abfs://container@account.net/x"),
        ("sftp://me:secret@host/x", "sftp://me:***@host/x"),
        ("ftp://me:se@cret@host:21/x", "ftp://me:***@host:21/x"),
        ("https://token@host/x", "https://***@host/x"),
        ("403 for https://host/x.json?X-Amz-Signature=secret&y=1 today", "403 for https://host/x.json?*** today"),
    ],
)
def test_secrets_are_never_shown(text: str, shown: str) -> None:
    assert without_secrets(text) == shown


def test_a_report_does_not_show_the_password_in_a_path(traces: Path, store: Any) -> None:
    upload(store, traces, "memory://me:secret@host")
    trace = load("memory://me:secret@host")
    report = diagnose(trace)
    assert report.capture.paths == ("memory://me:***@host",)
    assert "secret" not in f"{report}{contents(trace)}{rows_of(trace)}"
    with pytest.raises(InputError) as caught:
        load("memory://me:secret@host/nowhere")
    assert "secret" not in caught.value.message


class Flaky:
    """Fails every so often, as networks do."""

    def __init__(self, store: Any, failures: int, error: Exception) -> None:
        self.read, self.failures, self.error = store.cat_file, failures, error
        self.ranges: list[tuple[int, int]] = []

    def cat_file(self, path: str, start: int | None = None, end: int | None = None) -> bytes:
        if self.failures and start:  # the first range, by which a file is recognised, comes
            self.failures -= 1
            raise self.error
        self.ranges.append((start or 0, end or 0))
        data: bytes = self.read(path, start=start, end=end)
        return data


@pytest.fixture
def small_ranges(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote, "_FIRST_BYTES", 4096)
    monkeypatch.setattr(remote, "_MOST_BYTES", 10_000)
    monkeypatch.setattr(remote, "_PAUSES_S", (0, 0))


@pytest.mark.usefixtures("small_ranges")
def test_a_request_that_failed_is_made_again(traces: Path, store: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    upload(store, traces, "memory://job")
    flaky = Flaky(store, 2, ConnectionResetError(104, "Connection reset by peer"))
    monkeypatch.setattr(store, "cat_file", flaky.cat_file)
    assert contents(load("memory://job")) == contents(load(traces))
    assert flaky.failures == 0
    assert max(end - start for start, end in flaky.ranges) == 10_000


@pytest.mark.usefixtures("small_ranges")
@pytest.mark.parametrize("pack", [bytes, gzip.compress], ids=["plain", "gzip"])
def test_a_broken_connection_does_not_pass_for_a_cut_file(
    pack: Callable[[bytes], bytes], traces: Path, store: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for file in traces.iterdir():
        store.pipe_file(f"memory://job/{file.name}", pack(file.read_bytes()))
    flaky = Flaky(store, 3, RuntimeError("https://host/x?signature=secret is gone"))
    with monkeypatch.context() as patched:
        patched.setattr(store, "cat_file", flaky.cat_file)
        first, second = rows_of(load("memory://job", cache=str(tmp_path)))
    assert (first["status"], second["status"]) == ("damaged", "read")
    assert "https://host/x?*** is gone" in first["problem"]
    again = load("memory://job", cache=str(tmp_path))
    assert [row["status"] for row in rows_of(again)] == ["read", "read"]
    assert contents(again)["ops"] == contents(load(traces))["ops"], "nothing of the failure was kept"


@pytest.mark.usefixtures("small_ranges")
def test_a_server_without_ranges_is_told(traces: Path, store: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    upload(store, traces, "memory://job")
    whole = store.cat_file
    monkeypatch.setattr(store, "cat_file", lambda path, **_: whole(path))
    with pytest.raises(InputError, match="does not support range requests"):
        load("memory://job")


def test_a_file_that_became_shorter_ends_early(store: Any) -> None:
    store.pipe_file("memory://job/x", b"12345")
    stream = io.BufferedReader(RemoteStream(RemoteFile("memory://job/x", 9, "", 0)))
    assert stream.read() == b"12345"
