"""A report in one page: all files of the tree are in it, unharmed, and it allows what its parts need and no more."""

from __future__ import annotations

import base64
import re
import zlib
from html import unescape
from pathlib import Path

import pytest

from compile_page_building import OPTIONS, hostile_log, job_log, report_of
from rankscope.pipeline import diagnose, load
from rankscope.render.compile_tree import single_file
from rankscope.render.compile_tree.single_file import pack_folder, write_single
from rankscope.render.html import markup, page


def packed_files(page_path: Path) -> dict[str, bytes]:
    blocks = re.findall(r'<script type="text/plain" data-file="([^"]*)">([^<]*)</script>', page_path.read_text("utf-8"))
    return {unescape(name): zlib.decompress(base64.b64decode(content)) for name, content in blocks}


def tree_files(folder: Path) -> dict[str, bytes]:
    files = {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    del files["index.html"]
    return files


@pytest.mark.parametrize("n_ranks", [1, 2])
def test_all_files_of_the_tree_are_in_the_page_unharmed(tmp_path: Path, n_ranks: int) -> None:
    logs = [job_log()] if n_ranks == 1 else [job_log(rank) for rank in range(n_ranks)]
    folder = report_of(tmp_path, *logs)
    packed = pack_folder(folder, tmp_path / "report.html")
    assert packed_files(tmp_path / "report.html") == tree_files(folder)
    assert packed.left_out == ()
    assert packed.n_bytes == (tmp_path / "report.html").stat().st_size


def test_files_larger_than_a_piece_are_packed_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(single_file, "_CHUNK", 30)
    folder = report_of(tmp_path, job_log())
    pack_folder(folder, tmp_path / "report.html")
    assert packed_files(tmp_path / "report.html") == tree_files(folder)


def test_the_index_stays_readable_as_it_was(tmp_path: Path) -> None:
    folder = report_of(tmp_path, job_log())
    pack_folder(folder, tmp_path / "report.html")
    index, packed = (path.read_text("utf-8") for path in (folder / "index.html", tmp_path / "report.html"))
    main = index[index.index("<main>") : index.index("</main>")]
    assert main in packed
    assert packed.count("</body>") == 1


def test_the_page_allows_what_its_parts_allow_and_nothing_else(tmp_path: Path) -> None:
    folder = report_of(tmp_path, job_log())
    pack_folder(folder, tmp_path / "report.html")
    source = (tmp_path / "report.html").read_text("utf-8")
    [policy] = re.findall(r'http-equiv="Content-Security-Policy" content="([^"]*)"', source)
    allowed = {name: sources for name, *sources in (directive.split() for directive in policy.split(";"))}
    assert allowed.pop("default-src") == ["'none'"]
    assert allowed.pop("img-src") == ["data:"]
    assert set(allowed) == {"style-src", "script-src"}
    hashes = {source for sources in allowed.values() for source in sources}
    assert all(source.startswith("'sha256-") for source in hashes)
    for path in folder.rglob("*.html"):
        assert set(re.findall(r"'sha256-[^']+'", path.read_text("utf-8")[:4096])) <= hashes


def test_a_page_in_the_tree_cannot_widen_the_policy(tmp_path: Path) -> None:
    (tmp_path / "tree").mkdir()
    (tmp_path / "tree" / "index.html").write_text(page("Report", [markup("<main></main>")]))
    forged = '<meta http-equiv="Content-Security-Policy" content="script-src \'unsafe-inline\' https://evil.example">'
    (tmp_path / "tree" / "other.html").write_text(forged)
    pack_folder(tmp_path / "tree", tmp_path / "report.html")
    [policy] = re.findall(
        r'http-equiv="Content-Security-Policy" content="([^"]*)"', (tmp_path / "report.html").read_text()
    )
    assert "unsafe-inline" not in policy
    assert "evil" not in policy


def test_hostile_names_do_not_leave_their_attribute(tmp_path: Path) -> None:
    folder = report_of(tmp_path, hostile_log())
    pack_folder(folder, tmp_path / "report.html")
    assert packed_files(tmp_path / "report.html") == tree_files(folder)


def test_a_large_log_is_left_out_and_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(single_file, "MAX_LOG_BYTES", 100)
    packed = pack_folder(report_of(tmp_path, job_log()), tmp_path / "report.html")
    assert packed.left_out == ("raw.log",)
    assert "raw.log" not in packed_files(tmp_path / "report.html")


def test_a_large_page_comes_with_advice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = report_of(tmp_path, job_log())
    assert pack_folder(folder, tmp_path / "report.html").note == ""
    monkeypatch.setattr(single_file, "LARGE_BYTES", 1000)
    assert "write a folder instead" in pack_folder(folder, tmp_path / "report.html").note


def test_writing_leaves_nothing_but_the_page(tmp_path: Path) -> None:
    job_log().write(tmp_path / "logs")
    (tmp_path / "out").mkdir()
    trace = load(tmp_path / "logs", jobs=1)
    write_single(trace, diagnose(trace), tmp_path / "out" / "report.html", OPTIONS)
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["report.html"]


def test_a_failure_keeps_the_page_that_was_there(tmp_path: Path) -> None:
    (tmp_path / "report.html").write_text("before")
    (tmp_path / "tree").mkdir()
    with pytest.raises(FileNotFoundError):
        pack_folder(tmp_path / "tree", tmp_path / "report.html")
    assert (tmp_path / "report.html").read_text() == "before"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["report.html", "tree"]
