"""`rankscope timeline`: what its options choose, what it refuses, and what it says."""

from __future__ import annotations

import gzip
import json
from argparse import ArgumentTypeError
from pathlib import Path
from typing import Any

import pytest

from rankscope.cli import main
from rankscope.commands.timeline import Moment, parse_moment, parse_span
from rankscope.render.timeline.chrome import LEAD_NS
from rankscope.simulate.profiler import ProfileSpec, simulate_profile

SPEC = ProfileSpec(data_parallel=2, n_steps=3, n_layers=1, n_microbatches=1)


@pytest.fixture(scope="module")
def hang(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("hang") / "dumps"
    assert main(["demo", "-o", str(folder), "--fault", "op", "--ranks", "16"]) == 0
    return folder


@pytest.fixture(scope="module")
def profiles(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("profiles")
    simulate_profile(SPEC).write(folder)
    return folder


def timeline(*arguments: str | Path) -> int:
    return main(["timeline", "--no-cache", *map(str, arguments)])


def document(path: Path) -> dict[str, Any]:
    with gzip.open(path) if path.name.endswith(".gz") else path.open("rb") as file:
        found: dict[str, Any] = json.load(file)
    return found


def spans(path: Path) -> list[dict[str, Any]]:
    return [event for event in document(path)["traceEvents"] if event["ph"] == "X"]


def test_everything_of_all_ranks_in_one_packed_file(
    hang: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "trace.perfetto.json.gz"
    assert timeline(hang, "-o", path) == 0
    shown = capsys.readouterr()
    assert shown.out == ""
    lines = shown.err.splitlines()
    assert lines[0].startswith(f"Wrote {len(spans(path)):,} spans, ")
    assert lines[0].endswith(f" of 16 ranks to {path}")
    assert lines[-1].startswith("Next: open https://ui.perfetto.dev and drop ")
    marks = [event for event in document(path)["traceEvents"] if event["ph"] == "i"]
    assert marks[0]["s"] == "g"
    assert marks[0]["name"].startswith("error[H102] ")


def test_what_was_written_as_json(hang: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "trace.json"
    assert timeline(hang, "-o", path, "--json", "--ranks", "0-3,99") == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["path"], told["n_bytes"], told["ranks"]) == (str(path), path.stat().st_size, [0, 1, 2, 3])
    assert told["counts"]["spans"] == len(spans(path))
    assert told["n_events"] == len(document(path)["traceEvents"])
    assert told["clocks"].keys() == {"0", "1", "2", "3"}


def test_steps_choose_a_window(profiles: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, whole = tmp_path / "step.json", tmp_path / "whole.json"
    assert timeline(profiles, "-o", whole) == 0
    [step] = {event["args"]["step"] for event in spans(whole) if event["name"] == "step 1"}
    assert timeline(profiles, "-o", path, "--steps", str(step)) == 0
    kept = {event["name"] for event in spans(path) if event["cat"] == "step"}
    assert "step 1" in kept
    assert 0 < len(spans(path)) < len(spans(whole))
    assert timeline(profiles, "-o", path, "--force", "--steps", "77") == 2
    assert "no step 77 in these traces" in capsys.readouterr().err


def test_since_and_until_are_from_the_beginning_or_absolute(hang: Path, tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    assert timeline(hang, "-o", path) == 0
    base = document(path)["otherData"]["baseTimeNanoseconds"] + LEAD_NS
    expected = [event for event in spans(path) if event["ts"] < 300_001 and event["ts"] + event["dur"] >= 200_001]
    for since, until in (("200ms", "0.3s"), (str(base + 200_000_000), str(base + 300_000_000))):
        assert timeline(hang, "-o", path, "--force", "--since", since, "--until", until) == 0
        assert [event["ts"] for event in spans(path)] == [event["ts"] for event in expected]
    assert expected


def test_around_a_finding_is_its_time_and_its_ranks(hang: Path, tmp_path: Path) -> None:
    path, whole = tmp_path / "around.json", tmp_path / "whole.json"
    assert timeline(hang, "-o", whole) == 0
    assert timeline(hang, "-o", path, "--around", "h102-1", "--margin", "50ms") == 0
    told = document(path)
    [mark] = [event for event in told["traceEvents"] if event["ph"] == "i" and "H102" in event["name"]]
    cut = told["otherData"]
    middle = cut["baseTimeNanoseconds"] + round(mark["ts"] * 1000)
    assert (cut["sinceNanoseconds"], cut["untilNanoseconds"]) == (middle - 50_000_000, middle + 50_000_000)
    assert str(mark["pid"]) in cut["clocks"]
    assert len(spans(path)) < len(spans(whole))


def test_too_many_events_are_thinned_and_said(
    profiles: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "trace.json"
    assert timeline(profiles, "-o", path, "--max-events", "500") == 0
    assert len(spans(path)) <= 500
    assert "note: left out those shorter than " in capsys.readouterr().err
    assert timeline(profiles, "-o", path, "--force", "--max-events", "100") == 0
    assert "note: left out all of ops: a larger --max-events" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["-o", "trace.txt"], "unknown file extension: 'trace.txt'"),
        (["-o", "trace.json", "--steps", "1"], "these traces do not mark steps"),
        (["-o", "trace.json", "--ranks", "99"], "no traces of ranks 99"),
        (["-o", "trace.json", "--around", "H199"], "no finding H199 in these traces"),
        (["-o", "trace.json", "--around", "H102", "--since", "1s"], "--around and --since cannot be combined"),
        (["-o", "trace.json", "--steps", "1", "--until", "1s"], "--steps and --until cannot be combined"),
        (["-o", "trace.json", "--margin", "1s"], "--margin works only with --around"),
        (["-o", "trace.json", "--since", "2s", "--until", "1s"], "--since is not before --until"),
    ],
)
def test_what_cannot_be_done_is_refused_and_nothing_is_written(
    arguments: list[str],
    says: str,
    hang: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert timeline(hang, *arguments) == 2
    assert says in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_nothing_is_overwritten_without_force(hang: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "trace.json"
    path.write_text("mine")
    assert timeline(hang, "-o", path) == 2
    assert "exists already" in capsys.readouterr().err
    assert path.read_text() == "mine"


def test_an_empty_window_says_so(hang: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert timeline(hang, "-o", tmp_path / "trace.json", "--since", "5h") == 0
    assert "note: nothing was recorded there" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "moment"),
    [
        ("12.5s", Moment(12_500_000_000, False)),
        ("300ms", Moment(300_000_000, False)),
        ("2min", Moment(120_000_000_000, False)),
        ("1700000000000000001", Moment(1_700_000_000_000_000_001, True)),
        ("2023-11-14T22:13:20.000001Z", Moment(1_700_000_000_000_001_000, True)),
        ("2023-11-14T22:13:20", Moment(1_700_000_000_000_000_000, True)),
        ("2023-11-15T00:13:20+02:00", Moment(1_700_000_000_000_000_000, True)),
    ],
)
def test_times_as_they_are_written(text: str, moment: Moment) -> None:
    assert parse_moment(text) == moment


@pytest.mark.parametrize("text", ["", "soon", "5", "-1s", "1e3s", "nan", "12.5"])
def test_what_is_no_time(text: str) -> None:
    with pytest.raises(ArgumentTypeError):
        parse_moment(text)
    with pytest.raises(ArgumentTypeError):
        parse_span(text)
