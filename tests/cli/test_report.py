"""`rankscope report`: a page in a file, what is told about it, and what is refused."""

from __future__ import annotations

import json
import webbrowser
from pathlib import Path

import pytest

from demo_captures import demo
from rankscope.cli import main


@pytest.fixture(scope="module")
def hang(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return demo(tmp_path_factory.mktemp("job") / "hang", "op", 8, "--cut", "1")


@pytest.fixture
def healthy(tmp_path: Path) -> Path:
    return demo(tmp_path / "healthy", "none", 8)


def test_writes_a_page_and_says_what_is_in_it(hang: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = tmp_path / "report.html"
    assert main(["report", str(hang), "-o", str(page)]) == 1
    out, err = capsys.readouterr()
    assert out == ""
    wrote, verdict, last = err.splitlines()
    assert wrote.startswith(f"Wrote {page} (")
    assert wrote.endswith("Found 1 error, 1 warning.")
    assert verdict.startswith("error[H102] (certain) rank ")
    assert last == f"Next: open {page} in a browser"
    content = page.read_text("utf-8")
    assert content.startswith("<!DOCTYPE html>")
    assert content.endswith("</html>\n")
    assert 'id="H102-1"' in content


def test_a_healthy_job_exits_with_0(healthy: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", str(healthy), "-o", str(tmp_path / "report.html")]) == 0
    assert "No problems found" in capsys.readouterr().err
    assert "No problems found" in (tmp_path / "report.html").read_text("utf-8")


def test_fail_on_never(hang: Path, tmp_path: Path) -> None:
    assert main(["report", str(hang), "-o", str(tmp_path / "report.html"), "--fail-on", "never"]) == 0


def test_json_tells_what_was_written(hang: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = tmp_path / "report.html"
    main(["report", str(hang), "-o", str(page), "--json"])
    told = json.loads(capsys.readouterr().out)
    assert told["path"] == str(page)
    assert told["n_bytes"] == page.stat().st_size
    assert told["found"] == {"error": 1, "warning": 1, "info": 0}
    assert told["findings"][0]["code"] == "H102"


def test_nothing_is_overwritten_unasked(hang: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = tmp_path / "report.html"
    page.write_text("precious")
    assert main(["report", str(hang), "-o", str(page)]) == 2
    assert "--force" in capsys.readouterr().err
    assert page.read_text() == "precious"
    assert main(["report", str(hang), "-o", str(page), "--force"]) == 1
    assert page.read_text("utf-8").startswith("<!DOCTYPE html>")


def test_a_page_with_paths_left_out(hang: Path, tmp_path: Path) -> None:
    page = tmp_path / "report.html"
    main(["report", str(hang), "-o", str(page), "--redact"])
    content = page.read_text("utf-8")
    assert str(hang) not in content
    assert "simulate/example" not in content
    assert "dist.all_gather" not in content
    assert "(--redact)" in content


@pytest.mark.parametrize("size", ["0", "-1", "much", "nan"])
def test_sizes_that_are_none(hang: Path, size: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", str(hang), "--max-size", size]) == 2
    assert "is not a size in megabytes" in capsys.readouterr().err


def test_a_folder_without_traces(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "junk").mkdir()
    (tmp_path / "junk" / "photo.jpg").write_bytes(b"\xff\xd8 no trace")
    assert main(["report", str(tmp_path / "junk"), "-o", str(tmp_path / "report.html")]) == 2
    assert "junk" in capsys.readouterr().err
    assert not (tmp_path / "report.html").exists()


def test_a_browser_opens_only_when_asked(hang: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[str] = []
    monkeypatch.setattr(webbrowser, "open", shown.append)
    main(["report", str(hang), "-o", str(tmp_path / "a.html")])
    assert shown == []
    main(["report", str(hang), "-o", str(tmp_path / "b.html"), "--open"])
    assert shown == [(tmp_path / "b.html").as_uri()]


def test_a_page_is_not_written_under_the_name_of_a_text(
    hang: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["report", str(hang), "-o", str(tmp_path / "report.txt")]) == 2
    error = capsys.readouterr().err
    assert "does not end in .html" in error
    assert f"-o {tmp_path / 'report.html'}" in error
    assert not list(tmp_path.glob("report.*"))
