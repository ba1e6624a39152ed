from __future__ import annotations

import json
import re
from pathlib import Path

import msgspec
import pytest

from cli.conftest import GivesReport
from rankscope.cli import main
from rankscope.commands.diagnose import next_command
from rankscope.commands.progress import Progress
from rankscope.model.finding import Report
from render import sample

ESCAPE = re.compile("\x1b\\[")


@pytest.mark.parametrize(
    ("report", "fail_on", "code"),
    [
        (sample.hang(), None, 1),
        (sample.clean(), None, 0),
        (sample.report(sample.lost_dumps()), None, 0),
        (sample.report(sample.lost_dumps()), "warning", 1),
        (sample.report(sample.stuck(1, "info")), "warning", 0),
        (sample.report(sample.stuck(1, "info")), "info", 1),
        (sample.hang(), "never", 0),
    ],
)
def test_exit_code(gives: GivesReport, report: Report, fail_on: str | None, code: int) -> None:
    gives(report)
    assert main(["diagnose", "x", *(["--fail-on", fail_on] if fail_on else [])]) == code


def test_the_answer_is_on_stdout_alone(gives: GivesReport, capsys: pytest.CaptureFixture[str]) -> None:
    gives(sample.hang())
    main(["./traces"])
    printed = capsys.readouterr()
    assert "error[H102] (certain) rank 513 called all_gather" in printed.out
    page, following = printed.out.splitlines()[-2:]
    assert page.startswith("As a page: rankscope report ")
    assert following == "Next: rankscope explain H102"
    assert printed.err == ""


def test_a_page_is_asked_of_the_other_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["./traces", "-o", "x.html"]) == 2
    assert "= fix: rankscope report ./traces -o x.html" in capsys.readouterr().err


def test_json_is_the_report(gives: GivesReport, capsys: pytest.CaptureFixture[str]) -> None:
    gives(sample.hang())
    assert main(["--json", "traces"]) == 1
    report = json.loads(capsys.readouterr().out)
    assert report["findings"][0]["rule"] == "op-mismatch"
    assert [effect["ranks"] for effect in report["effects"]] == [[900]]


def test_options_reach_the_pipeline(gives: GivesReport) -> None:
    asked = gives(sample.clean())
    main(["diagnose", "a", "b", "-p", "trace_", "--jobs", "3"])
    assert (asked[0]["paths"], asked[0]["prefix"], asked[0]["jobs"]) == (["a", "b"], "trace_", 3)


@pytest.mark.parametrize("jobs", ["0", "-1", "many"])
def test_jobs_is_a_positive_number(jobs: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["diagnose", "x", f"--jobs={jobs}"]) == 2
    assert "is not a whole number above 0" in capsys.readouterr().err


def test_all_shows_the_effects(gives: GivesReport, capsys: pytest.CaptureFixture[str]) -> None:
    gives(sample.hang())
    main(["diagnose", "x", "--all"])
    assert "rank 900 never reached" in capsys.readouterr().out


def test_source_lines_can_be_left_out(
    gives: GivesReport, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    gives(sample.hang())
    sample.write_sources(tmp_path)
    monkeypatch.chdir(tmp_path)
    main(["diagnose", "x"])
    assert "dist.all_reduce(flat_grads" in capsys.readouterr().out
    main(["diagnose", "x", "--no-source"])
    assert "dist.all_reduce(flat_grads" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("environment", "arguments", "is_colored"),
    [
        ({}, (), False),
        ({}, ("--color", "always"), True),
        ({"FORCE_COLOR": "1"}, (), True),
        ({"FORCE_COLOR": "0"}, (), False),
        ({"FORCE_COLOR": "1", "NO_COLOR": "1"}, (), False),
        ({"FORCE_COLOR": "1", "TERM": "dumb"}, (), True),
        ({"FORCE_COLOR": "1"}, ("--color", "never"), False),
        ({"NO_COLOR": "1"}, ("--color=always",), True),
        ({"NO_COLOR": "", "FORCE_COLOR": "1"}, (), True),
    ],
)
def test_color(
    environment: dict[str, str],
    arguments: tuple[str, ...],
    is_colored: bool,
    gives: GivesReport,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    gives(sample.hang())
    main(["diagnose", "x", *arguments])
    assert bool(ESCAPE.search(capsys.readouterr().out)) == is_colored


@pytest.mark.parametrize(("term", "is_colored"), [("xterm", True), ("dumb", False)])
def test_a_terminal_gets_color_and_wrapped_lines(
    term: str,
    is_colored: bool,
    gives: GivesReport,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    monkeypatch.setenv("TERM", term)
    monkeypatch.setenv("COLUMNS", "70")
    gives(sample.hang())
    main(["diagnose", "x"])
    printed = capsys.readouterr().out
    assert bool(ESCAPE.search(printed)) == is_colored
    assert all(len(re.sub("\x1b\\[[0-9;]+m", "", line)) <= 70 for line in printed.splitlines())


@pytest.mark.parametrize("name", ["report.json", "report.txt", "REPORT.JSON"])
def test_the_extension_decides_the_format(
    name: str, gives: GivesReport, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    gives(sample.hang())
    path = tmp_path / name
    assert main(["diagnose", "x", "-o", str(path), "--color", "always"]) == 1
    text = path.read_text()
    assert json.loads(text)["findings"] if name.lower().endswith("json") else text.startswith("Read 1,022")
    assert not ESCAPE.search(text)
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err == f"Wrote 2 findings to {path}\n"
    assert [entry.name for entry in tmp_path.iterdir()] == [name]


def test_nothing_is_overwritten_without_force(
    gives: GivesReport, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = gives(sample.hang())
    path = tmp_path / "report.txt"
    path.write_text("mine")
    assert main(["diagnose", "x", "-o", str(path)]) == 2
    assert "exists already" in capsys.readouterr().err
    assert path.read_text() == "mine"
    assert asked == [], "it refuses before it reads"
    assert main(["diagnose", "x", "-o", str(path), "--force"]) == 1
    assert path.read_text().startswith("Read")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("-o", "report.html"), "diagnose does not write web pages"),
        (("-o", "report"), "use one of .json, .txt"),
        (("-o", "nosuch/report.txt"), "the folder nosuch does not exist"),
        (("-o", "folder.txt", "--force"), "is a folder"),
        (("-o", "report.txt", "--json"), "--json and -o report.txt contradict each other"),
    ],
)
def test_outputs_that_cannot_be(
    arguments: tuple[str, ...],
    message: str,
    gives: GivesReport,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    gives(sample.hang())
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder.txt").mkdir()
    assert main(["diagnose", "x", *arguments]) == 2
    assert message in capsys.readouterr().err


def test_the_next_command_fits_what_was_found() -> None:
    assert next_command(sample.hang()) == "rankscope explain H102"
    assert next_command(sample.clean()) == "rankscope fr /shared/job-4711 -j"
    clean, hang = sample.clean(), sample.hang()
    compiled = msgspec.structs.replace(clean.capture, sources={"compile_log": 4})
    assert next_command(msgspec.structs.replace(clean, capture=compiled)) == "rankscope compile /shared/job-4711"
    assert next_command(msgspec.structs.replace(hang, capture=compiled)) == "rankscope explain H102"


def test_progress_is_silent_when_piped(capsys: pytest.CaptureFixture[str]) -> None:
    with Progress() as progress:
        progress(1, 2, "reading")
    assert capsys.readouterr().err == ""


def test_progress_appears_on_a_terminal_after_a_while(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    now = [100.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    monkeypatch.setenv("TERM", "xterm")
    with Progress() as progress:
        progress(1, 9, "reading [bold]dumps")
        assert capsys.readouterr().err == ""
        now[0] += 1
        progress(4, 9, "reading [bold]dumps")
    shown = capsys.readouterr().err
    assert "reading [bold]dumps" in shown
    assert "4/9" in shown
