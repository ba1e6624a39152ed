"""`rankscope compile`: what it prints, what it writes and what it leaves alone."""

from __future__ import annotations

import http.client
import json
import signal
import subprocess
import sys
import threading
import urllib.request
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from cli.running import clean_environment
from rankscope.cli import main
from rankscope.commands.serving import report_server
from rankscope.simulate.compile_log import TRAIN, LogBuilder

SIZE_REASON = "{}: tensor 'x' size mismatch at index 0. expected {}, actual {}"


def recompiling_log(rank: int | None = None, at: str = "2026-11-16 06:18:20") -> LogBuilder:
    log = LogBuilder(rank, at=at).start("0/0").graph("0/0").metrics("0/0", 2.0)
    for number in range(1, 5):
        log.start(f"0/{number}").recompile(f"0/{number}", SIZE_REASON.format(f"0/{number - 1}", number, number + 1))
        log.graph(f"0/{number}").metrics(f"0/{number}", 3.0)
    return log


@pytest.fixture
def logs(tmp_path: Path) -> Path:
    recompiling_log().write(tmp_path / "logs")
    return tmp_path / "logs"


@pytest.fixture(autouse=True)
def _in_own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    urls: list[str] = []
    monkeypatch.setattr("webbrowser.open", urls.append)
    return urls


def run(*arguments: str | Path) -> int:
    return main(["compile", *map(str, arguments)])


def test_the_verdict_and_the_place_of_the_report_are_printed(logs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(logs) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "5 compilations, 14.0 s in all"
    assert lines[1].startswith("0 graph breaks, 4 recompilations (12.0 s), 0 cache hits")
    assert lines[2] == "Report: tl_out/index.html"
    assert "Next: rankscope explain C4" in lines[-1]
    assert Path("tl_out/index.html").is_file()
    assert Path("tl_out/-_0_4_0/dynamo_output_graph_12.txt").is_file()


def test_one_log_can_be_given_itself(logs: Path) -> None:
    [log] = logs.iterdir()
    assert run(log, "-o", "mine") == 0
    assert Path("mine/raw.log").read_bytes() == log.read_bytes()


def test_json_is_what_diagnose_prints_and_nothing_else(logs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(logs, "--json") == 0
    own = json.loads(capsys.readouterr().out)
    assert main(["diagnose", str(logs), "--json"]) == 0
    assert own == json.loads(capsys.readouterr().out)
    assert own["findings"]


def test_fail_on_decides_the_exit_code(logs: Path) -> None:
    assert run(logs, "--fail-on", "warning") == 1
    assert run(logs, "--fail-on", "never", "--overwrite") == 0


def test_ranks_have_a_folder_each_below_a_landing_page(tmp_path: Path) -> None:
    for rank in (0, 1):
        recompiling_log(rank).write(tmp_path / "ranks")
    assert run(tmp_path / "ranks", "--fail-on", "never") == 0
    assert {path.name for path in Path("tl_out").iterdir() if path.is_dir()} == {"rank_0", "rank_1"}
    assert "rank_1/index.html" in Path("tl_out/index.html").read_text()


def test_all_ranks_makes_a_landing_page_for_one_rank_too(logs: Path) -> None:
    assert run(logs, "--all-ranks") == 0
    assert Path("tl_out/rank_0/raw.log").is_file()


def test_tlparse_defect_1_the_newest_run_is_reported_and_the_others_are_mentioned(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Defect: a folder cannot be given at all, and --latest always fails."""
    broken = LogBuilder(at="2026-11-15 01:00:00").start().graph_break("0/0", TRAIN, 5, "item()")
    broken.metrics("0/0", 1.0, restart_reasons=["item()"]).write(tmp_path / "runs" / "old")
    recompiling_log().write(tmp_path / "runs" / "new")
    assert run(tmp_path / "runs", "--json") == 0
    printed = capsys.readouterr()
    assert "1 log of 1 earlier run is left out" in printed.err
    assert Path("tl_out/-_0_4_0").is_dir()
    assert any(finding["rule"] == "graph-break" for finding in json.loads(printed.out)["findings"])
    assert run(tmp_path / "runs", "--latest", "--json", "--overwrite") == 0
    findings = json.loads(capsys.readouterr().out)["findings"]
    assert findings
    assert not any(finding["rule"] == "graph-break" for finding in findings)


def test_an_older_report_is_replaced_only_if_asked_for(logs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(logs) == 0
    Path("tl_out/-_9_9_0").mkdir()
    assert run(logs) == 2
    assert "--overwrite" in capsys.readouterr().err
    assert Path("tl_out/-_9_9_0").is_dir()
    assert run(logs, "--force") == 0
    assert not Path("tl_out/-_9_9_0").exists()
    assert [path.name for path in Path().iterdir()] == ["tl_out"]


@pytest.mark.parametrize("name", ["thesis.txt", "rank_x", "src"])
def test_a_folder_with_anything_else_is_never_removed(logs: Path, name: str) -> None:
    assert run(logs) == 0
    Path("tl_out", name).write_text("mine")
    assert run(logs, "--overwrite") == 2
    assert Path("tl_out", name).read_text() == "mine"
    assert Path("tl_out/index.html").is_file()


def test_a_folder_that_is_no_report_is_never_removed(logs: Path) -> None:
    Path("tl_out/payloads").mkdir(parents=True)
    assert run(logs, "--overwrite") == 2
    assert Path("tl_out/payloads").is_dir()


def test_an_empty_folder_is_used(logs: Path) -> None:
    Path("tl_out").mkdir()
    assert run(logs) == 0
    assert Path("tl_out/index.html").is_file()


def test_a_file_in_the_place_of_the_folder_is_left(logs: Path) -> None:
    Path("tl_out").write_text("mine")
    assert run(logs, "--overwrite") == 2
    assert Path("tl_out").read_text() == "mine"


def test_a_failure_leaves_the_old_report_and_no_rubbish(logs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert run(logs) == 0
    before = Path("tl_out/index.html").read_bytes()

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("rankscope.render.compile_tree.writer.write_raw_log", full)
    assert run(logs, "--overwrite") == 2
    assert [path.name for path in Path().iterdir()] == ["tl_out"]
    assert Path("tl_out/index.html").read_bytes() == before


def test_one_page_with_everything(logs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(logs, "-o", "report.html") == 0
    assert "Report: report.html" in capsys.readouterr().out
    assert Path("report.html").read_text("utf-8").lstrip().startswith("<!DOCTYPE html>")
    assert [path.name for path in Path().iterdir()] == ["report.html"]
    assert run(logs, "-o", "report.html") == 2
    assert run(logs, "-o", "report.html", "--overwrite") == 0


def test_plain_text_writes_code_as_text(tmp_path: Path) -> None:
    log = recompiling_log().record("inductor_output_code", {"filename": "/x/cab.py"}, "code", frame_id=0)
    assert run(log.write(tmp_path / "logs"), "--plain-text") == 0
    assert [path.suffix for path in Path("tl_out").rglob("inductor_output_code*")] == [".txt"]


def test_tlparse_defect_2_strict_passes_a_whole_log_of_a_distributed_job(tmp_path: Path) -> None:
    """Defect: --strict fails on every one, because torch_version has no rank."""
    assert run(recompiling_log(1).torch_version().write(tmp_path / "logs"), "--strict") == 0


def test_strict_lists_what_is_damaged_and_still_writes_the_report(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Defect: with --strict nothing is written when anything is damaged."""
    log = recompiling_log().record("aot_joint_graph", {}, "cut", has_payload="0" * 32, frame_id=0)
    path = log.raw(b"V1116 no record\n").metrics("1/0").write(tmp_path / "logs")
    assert run(path, "--fail-on", "never") == 0
    assert run(path, "--fail-on", "never", "--strict", "--overwrite") == 1
    errors = capsys.readouterr().err
    assert "has an unknown layout" in errors
    assert "(aot_joint_graph) does not match its checksum" in errors
    assert Path("tl_out/index.html").is_file()


def test_a_browser_opens_only_if_asked_for(logs: Path, opened: list[str]) -> None:
    assert run(logs) == 0
    assert opened == []
    assert run(logs, "--overwrite", "--open") == 0
    assert opened == [Path("tl_out/index.html").resolve().as_uri()]


def test_a_folder_without_compile_logs_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(tmp_path) == 2
    assert "error:" in capsys.readouterr().err
    assert not Path("tl_out").exists()


def test_no_log_at_all_is_a_question_of_usage(capsys: pytest.CaptureFixture[str]) -> None:
    assert run() == 2
    assert "rankscope compile torch_trace/" in capsys.readouterr().err


def test_a_page_cannot_be_served_nor_hold_an_export(logs: Path) -> None:
    assert run(logs, "-o", "x.html", "--serve") == 2
    assert run(logs, "-o", "x.html", "--export") == 2
    assert not Path("x.html").exists()


@contextmanager
def serving(folder: Path) -> Iterator[int]:
    with report_server(str(folder), 0) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield int(server.server_address[1])
        server.shutdown()
        thread.join()


def ask(port: int, method: str, path: str, host: str = "") -> tuple[int, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    connection.request(method, path, headers={"Host": host or f"127.0.0.1:{port}"})
    answer = connection.getresponse()
    content = answer.read()
    connection.close()
    return answer.status, content


def test_the_server_gives_the_report_to_this_machine_only(tmp_path: Path) -> None:
    folder = tmp_path / "served"
    folder.mkdir()
    (folder / "index.html").write_text("the report")
    (tmp_path / "secret").write_text("mine")
    with serving(folder) as port:
        assert ask(port, "GET", "/") == (200, b"the report")
        assert ask(port, "GET", "/", f"localhost:{port}")[0] == 200
        assert ask(port, "GET", "/", f"evil.example:{port}")[0] == 403
        assert ask(port, "HEAD", "/", "evil.example")[0] == 403
        assert ask(port, "POST", "/")[0] == 405
        assert ask(port, "PUT", "/x")[0] == 405
        assert ask(port, "GET", "/../secret")[0] == 404
        assert ask(port, "GET", "/%2e%2e/secret")[0] == 404


def test_serve_shows_the_report_until_it_is_interrupted(logs: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "rankscope", "compile", str(logs), "-o", "served", "--fail-on", "never", "--serve"]
    with subprocess.Popen(
        command, cwd=tmp_path, env=clean_environment(), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stderr is not None
            url = process.stderr.readline().removeprefix("Serving the report at ").partition(" ")[0]
            with urllib.request.urlopen(url, timeout=30) as answer:
                assert "torch.compile" in answer.read().decode()
            process.send_signal(signal.SIGINT)
            assert process.wait(30) == 0
        finally:
            process.kill()


def test_a_zip_holds_all_files_of_the_report(logs: Path) -> None:
    assert run(logs, "-o", "report.zip") == 0
    assert run(logs, "-o", "report") == 0
    with zipfile.ZipFile("report.zip") as archive:
        archive.extractall("unpacked")
    written, unpacked = (
        {path.relative_to(top).as_posix() for path in Path(top).rglob("*") if path.is_file()}
        for top in ("report", "unpacked/report")
    )
    assert unpacked == written
    assert run(logs, "-o", "report.zip") == 2  # it is there already


@pytest.mark.parametrize("logged", ["aotautograd_cache_miss", "aot_autograd_cache_miss"])
def test_both_spellings_of_a_cache_are_found(logged: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """torch writes one, its guide the other."""
    log = LogBuilder(None).start("0/0").artifact(logged, {"key": "abc"}, "0/0").metrics("0/0")
    log.write(tmp_path / "logs")
    assert run(tmp_path / "logs") == 0
    one, other = sorted(path.name for path in Path("tl_out/-_0_0_0").glob("*cache_miss*"))
    assert (one.rpartition("_")[0], other.rpartition("_")[0]) == ("aot_autograd_cache_miss", "aotautograd_cache_miss")
    assert Path("tl_out/-_0_0_0", one).read_bytes() == Path("tl_out/-_0_0_0", other).read_bytes()
    index = Path("tl_out/index.html").read_text()
    assert f">{one}<" in index or f"(also {one})" in index
    assert f">{other}<" in index or f"(also {other})" in index
    for name in ("aotautograd_cache_miss", "aot_autograd_cache_miss"):
        capsys.readouterr()
        query = f"select count(*) as n from cache_events where '{name}' in (artifact, also_named) and outcome = 'miss'"
        assert main(["query", str(tmp_path / "logs"), query, "--json"]) == 0
        assert '"n": 1' in capsys.readouterr().out.replace('"n":1', '"n": 1')
