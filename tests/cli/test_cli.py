from __future__ import annotations

import io
import shlex
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import msgspec
import pytest

from cli.conftest import GivesReport
from cli.running import clean_environment, run_rankscope
from rankscope.cli import build_parser, command_parser, main, with_default_command
from rankscope.commands import COMMANDS, SHARED_OPTIONS
from rankscope.commands.help import TOPICS
from rankscope.commands.interrupts import keeps
from rankscope.commands.progress import Progress, progress_line
from rankscope.errors import InputError, UsageError, did_you_mean
from render import sample


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        (["diagnose", "x"], ["diagnose", "x"]),
        (["./nosuch"], ["diagnose", "./nosuch"]),
        (["dump.json"], ["diagnose", "dump.json"]),
        (["--json", "x"], ["diagnose", "--json", "x"]),
        (["--", "nosuch"], ["diagnose", "--", "nosuch"]),
        (["--help"], ["--help"]),
        (["--version"], ["--version"]),
    ],
)
def test_default_command(given: list[str], meant: list[str]) -> None:
    assert with_default_command(given) == meant


def test_an_existing_path_is_diagnosed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "traces").mkdir()
    assert with_default_command(["traces"]) == ["diagnose", "traces"]


def test_a_command_wins_over_a_folder_of_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "explain").mkdir()
    assert with_default_command(["explain"]) == ["explain"]
    assert "to diagnose the folder of that name: rankscope ./explain" in capsys.readouterr().err
    assert with_default_command(["./explain"]) == ["diagnose", "./explain"]


def test_an_unknown_word_is_no_path() -> None:
    with pytest.raises(UsageError, match="'diagnoze' is neither a command nor an existing path") as caught:
        with_default_command(["diagnoze"])
    assert caught.value.hint == "did you mean diagnose?"


def test_did_you_mean_ignores_case_and_stays_silent_when_nothing_is_close() -> None:
    assert did_you_mean("h120", ["H102", "S201"]) == "did you mean H102?"
    assert did_you_mean("zzz", ["H102"]) == ""


@pytest.mark.parametrize(
    ("arguments", "message", "hint"),
    [
        (["diagnoze"], "neither a command nor an existing path", "did you mean diagnose?"),
        (["diagnose"], "rankscope diagnose needs PATH", "for example: rankscope traces/"),
        (["diagnose", "x", "--jsno"], "rankscope diagnose has no option --jsno", "did you mean --json?"),
        (["diagnose", "x", "--cahce=y"], "rankscope diagnose has no option --cahce=y", "did you mean --cache?"),
        (["diagnose", "x", "--fault", "y"], "rankscope diagnose has no option --fault", "did you mean --all?"),
        (["x/", "--jsno"], "rankscope diagnose has no option --jsno", "did you mean --json?"),
        (["explain", "H102", "H103"], "rankscope explain does not expect 'H103'", "rankscope explain --help"),
        (
            ["diagnose", "x", "--fail-on", "often"],
            "--fail-on does not accept 'often': choose from error, warning, info, never",
            "rankscope diagnose --help",
        ),
        (["diagnose", "x", "--fail-on", "eror"], "--fail-on does not accept 'eror'", "did you mean error?"),
        (
            ["diagnose", "x", "--jobs", "0"],
            "argument --jobs: '0' is not a whole number above 0",
            "rankscope diagnose --help",
        ),
        (["help", "reding"], "no help on 'reding'", "did you mean reading?"),
        (["help", "h102"], "no help on 'h102'", "rankscope explain H102"),
    ],
)
def test_bad_usage(arguments: list[str], message: str, hint: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 2
    first, second = capsys.readouterr().err.splitlines()
    assert first.startswith("error: ")
    assert message in first
    assert second == f"  = fix: {hint}"


def test_no_arguments_show_the_help_and_fail(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert "usage: rankscope" in printed.err


def test_every_command_is_in_the_help_on_one_line_with_an_example_that_parses() -> None:
    lines = build_parser().format_help().splitlines()
    for name, command in COMMANDS.items():
        [at] = [number for number, line in enumerate(lines) if line.split()[:1] == [name]]
        assert lines[at].endswith(f"  {command.summary}")
        assert lines[at + 1].strip() == command.example
        given = shlex.split(command.example)[1:]
        if name != "record":  # whose example runs a job
            build_parser().parse_args(with_default_command(given))


@pytest.mark.parametrize("name", COMMANDS)
def test_help_on_a_command_is_its_help_option(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["help", name]) == 0
    asked = capsys.readouterr().out
    with pytest.raises(SystemExit):
        main([name, "--help"])
    assert capsys.readouterr().out == asked
    assert f"example:\n  {COMMANDS[name].example}" in asked


def test_help_lists_the_topics_and_every_topic_has_a_page(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["help"]) == 0
    listed = capsys.readouterr().out
    for topic in TOPICS:
        assert f"rankscope help {topic} " in listed
        assert main(["help", topic]) == 0
        assert len(capsys.readouterr().out.splitlines()) > 10
    for name in COMMANDS:
        assert name in listed


def test_the_shared_options_are_described_in_one_place(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["help", "reading"]) == 0
    described = capsys.readouterr().out
    sharing = [name for name in COMMANDS if "see rankscope help reading" in command_parser(name).format_help()]
    assert len(sharing) >= 12
    for name in sharing:
        own = command_parser(name).format_help()
        for group in command_parser(name)._action_groups:
            if group.title == SHARED_OPTIONS:
                for action in group._group_actions:
                    assert action.help
                    assert " ".join(action.help.split()) in " ".join(described.split())
                    assert action.help not in " ".join(own.split())
                    assert action.option_strings[-1] in own


def test_version() -> None:
    done = run_rankscope("--version", flags=("-X", "importtime"))
    assert done.returncode == 0
    assert done.stdout.startswith("rankscope ")
    python = ".".join(map(str, sys.version_info[:3]))
    assert f"(Python {python}, DuckDB {metadata.version('duckdb')}, " in done.stdout
    assert "duckdb" not in done.stderr.split()  # the version is looked up, the database is not loaded


def fails_with(error: BaseException, monkeypatch: pytest.MonkeyPatch) -> int:
    def fail(args: object) -> int:
        raise error

    monkeypatch.setattr("rankscope.commands.explain.run", fail)
    return main(["explain"])


def test_an_expected_failure_is_two_lines(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert fails_with(InputError("no dumps in \x1b[2Jx", "look elsewhere"), monkeypatch) == 2
    assert capsys.readouterr().err == "error: no dumps in \\x1b[2Jx\n  = fix: look elsewhere\n"


def test_an_interrupt_says_what_was_kept(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert fails_with(KeyboardInterrupt(), monkeypatch) == 130
    assert capsys.readouterr().err == "interrupted: nothing was written\n"

    def work(args: object) -> int:
        with keeps(lambda: "the dumps of 3 ranks are in out"), Progress() as progress:
            progress(3, 8, "asking ranks")
            raise KeyboardInterrupt

    monkeypatch.setattr("rankscope.commands.explain.run", work)
    assert main(["explain"]) == 130
    said = "interrupted while asking ranks (3 of 8 done): the dumps of 3 ranks are in out\n"
    assert capsys.readouterr().err == said


@pytest.mark.parametrize(
    ("state", "line"),
    [
        ((0, 0, "opening\x1b[2J"), "opening\\x1b[2J 1:30"),
        ((0, 4, "reading"), "reading [..............................] 0/4 1:30"),
        ((1, 4, "reading"), "reading [#######.......................] 1/4 1:30, 4:30 left"),
        ((4, 4, "reading"), "reading [##############################] 4/4 1:30"),
        ((9, 4, "reading"), "reading [##############################] 9/4 1:30"),
    ],
)
def test_progress_in_one_line(state: tuple[int, int, str], line: str) -> None:
    assert progress_line(*state, elapsed_s=90) == line


def test_progress_is_drawn_on_a_terminal_once_it_takes_long_and_then_wiped_off(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    now = iter(range(100))
    monkeypatch.setattr("rankscope.commands.progress.time.monotonic", lambda: next(now))
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "12")
    for is_terminal, drawn in ((False, ""), (True, "\rreading [##\x1b[K\r\x1b[K")):
        monkeypatch.setattr("sys.stderr.isatty", lambda is_terminal=is_terminal: is_terminal)
        with Progress() as progress:
            progress(1, 8, "reading")
        assert capsys.readouterr().err == drawn


def test_running_out_of_memory_says_what_helps(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert fails_with(MemoryError(), monkeypatch) == 2
    assert "--jobs 1" in capsys.readouterr().err


@pytest.mark.parametrize("debug", [False, True])
def test_a_bug_of_ours_is_called_so(
    debug: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    if debug:
        monkeypatch.setenv("RANKSCOPE_DEBUG", "1")
    assert fails_with(ZeroDivisionError("oops"), monkeypatch) == 2
    shown = capsys.readouterr().err
    assert "ZeroDivisionError: oops. This is a bug in rankscope " in shown
    assert "RANKSCOPE_DEBUG=1" in shown
    assert ("Traceback" in shown) == debug


def test_a_reader_that_goes_away_is_no_error() -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "rankscope", "completion", "bash"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=clean_environment(),
    )
    assert process.stdout
    assert process.stderr
    process.stdout.close()
    errors = process.stderr.read()
    process.stderr.close()
    assert process.wait(timeout=60) == 141
    assert errors == b""


def test_an_encoding_without_the_character_shows_its_escape(
    gives: GivesReport, monkeypatch: pytest.MonkeyPatch
) -> None:
    stdout = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    monkeypatch.setattr("sys.stdout", stdout)
    gives(sample.report(msgspec.structs.replace(sample.lost_dumps(), title="no dump from n\u00f6de")))
    assert main(["diagnose", "x"]) == 0
    stdout.seek(0)
    assert "no dump from n\\xf6de" in stdout.read()


def test_a_missing_path_is_a_clear_error() -> None:
    done = run_rankscope("--", "nosuch")
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.startswith("error: ")
    assert "nosuch" in done.stderr
    assert "Traceback" not in done.stderr


def test_the_answer_ends_with_a_line_end(gives: GivesReport, capsys: pytest.CaptureFixture[str]) -> None:
    gives(sample.clean())
    main(["diagnose", "x", "--json"])
    assert capsys.readouterr().out.endswith("}\n")


@pytest.mark.parametrize("command", ["diagnose", "fr", "query", "export", "tables", "report", "timeline", "metrics"])
def test_every_reading_command_takes_the_prefix_as_torchfrtrace_does(command: str) -> None:
    parser = command_parser(command)
    assert parser._option_string_actions["-p"] is parser._option_string_actions["--prefix"]
