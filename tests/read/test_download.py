"""Traces at an http address: read like those on disk, with limits that hold whatever the server does."""

from __future__ import annotations

import tarfile
import threading
import zipfile
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from rankscope.errors import InputError
from rankscope.pipeline import diagnose, load
from rankscope.read import download
from rankscope.read.download import is_download
from rankscope.read.files import find_sources
from read.dumps import hung_job, rows_of


class Handler(SimpleHTTPRequestHandler):
    def do_GET(self) -> None:
        targets = {
            "/moved.zip": "/job.zip",
            "/elsewhere.zip": "http://localhost/job.zip",
            "/local.zip": "file:///etc/hostname",
        }
        if self.path in targets:
            self.send_response(302)
            self.send_header("Location", targets[self.path])
            self.end_headers()
        elif self.path == "/short.zip":
            self.send_response(200)
            self.send_header("Content-Length", "1000")
            self.end_headers()
            self.wfile.write(b"PK")
        elif self.path == "/page":
            self.send_response(200)
            self.send_header("Content-Type", "text/html")
            self.end_headers()
        else:
            super().do_GET()

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def served(tmp_path: Path) -> Iterator[tuple[Path, str]]:
    folder = tmp_path / "served"
    hung_job().write(folder / "job")
    with tarfile.open(folder / "job.tar.gz", "w:gz") as archive:
        archive.add(folder / "job", "job")
    with zipfile.ZipFile(folder / "job.zip", "w") as packed:
        for file in sorted((folder / "job").iterdir()):
            packed.write(file, file.name)
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Handler, directory=str(folder))) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield folder, f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def test_a_folder_a_pattern_archives_and_addresses_give_the_same_verdict(served: tuple[Path, str]) -> None:
    folder, url = served
    ways = [f"{folder}/job", f"{folder}/job/*", f"{folder}/job.zip", f"{folder}/job.tar.gz"]
    ways += [f"{url}/job.zip", f"{url}/job.tar.gz", f"{url}/moved.zip"]
    for way in ways:
        report = diagnose(load(way))
        finding = report.findings[0]
        assert (finding.rule, finding.ranks) == ("op-mismatch", (2,)), way
        assert report.capture.hosts == (), way


def test_files_are_shown_under_their_address_and_known_by_their_content(served: tuple[Path, str]) -> None:
    folder, url = served
    one = next(iter(sorted((folder / "job").iterdir())))
    trace = load(f"{url}/job/{one.name}")
    assert [row["path"] for row in rows_of(trace)] == [f"{url}/job/{one.name}"]
    first, second = (find_sources([f"{url}/job.zip"])[0] for _ in range(2))
    assert [source.shown for source in first] == [
        f"{url}/job.zip!{file.name}" for file in sorted((folder / "job").iterdir())
    ]
    assert [source.path for source in first] != [source.path for source in second]
    assert [source.identity for source in first] == [source.identity for source in second]


@pytest.mark.parametrize(
    ("path", "problem"),
    [
        ("nosuch.zip", "the server answers 404"),
        ("elsewhere.zip", "redirects to http://localhost/job.zip"),
        ("local.zip", "cannot download"),
        ("short.zip", "ended after 2 of 1,000 bytes"),
        ("page", "is a web page, not a trace"),
    ],
)
def test_what_cannot_be_downloaded_says_so(path: str, problem: str, served: tuple[Path, str]) -> None:
    with pytest.raises(InputError, match=problem) as caught:
        load(f"{served[1]}/{path}")
    assert path in caught.value.message
    assert caught.value.hint


def test_there_is_a_limit_to_the_size(served: tuple[Path, str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(download, "MAX_BYTES", 100)
    with pytest.raises(InputError, match="is the limit"):
        load(f"{served[1]}/job.zip")


def test_nobody_listening_is_no_traceback() -> None:
    with pytest.raises(InputError, match="refused"):
        load("http://127.0.0.1:1/job.zip")


@pytest.mark.parametrize(
    ("url", "is_one"),
    [
        ("https://host/a.zip", True),
        ("https://host/a.zip?token=x", True),
        ("https://host/folder/", False),
        ("https://host", False),
        ("https://host/*.json", False),
        ("s3://bucket/a.zip", False),
    ],
)
def test_only_single_files_are_downloaded(url: str, is_one: bool) -> None:
    assert is_download(url) is is_one
