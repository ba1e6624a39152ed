from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest

from rankscope.analyze.metric import METRICS
from rankscope.cli import main
from rankscope.model.tables import SCHEMA
from rankscope.simulate import JobSpec, Mesh, simulate
from rankscope.simulate.profiler import ProfileSpec, simulate_profile

pytestmark = pytest.mark.slow

Output = pytest.CaptureFixture[str]


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("job")
    simulate_profile(ProfileSpec(data_parallel=2, n_steps=3, n_layers=2)).write(folder)
    return str(folder)


@pytest.fixture(scope="module")
def host_only(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Rank 5 has operators and nothing on a device."""
    folder = tmp_path_factory.mktemp("host_only")
    operator = {
        "ph": "X",
        "cat": "cpu_op",
        "pid": 1,
        "tid": 1,
        "ts": 10.5,
        "dur": 2.25,
        "name": "aten::only_here",
        "args": {},
    }
    text = {"schemaVersion": 1, "distributedInfo": {"rank": 5, "world_size": 6}, "traceEvents": [operator]}
    (folder / "kineto_trace_5.json").write_text(json.dumps(text))
    return str(folder)


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANKSCOPE_CACHE", str(tmp_path / "cache"))


def printed(capsys: Output, *arguments: str) -> str:
    assert main(["metrics", *arguments]) == 0
    return capsys.readouterr().out


def test_all_metrics_are_listed_with_what_a_row_is(capsys: Output) -> None:
    text = printed(capsys)
    for name, metric in METRICS.items():
        assert f"\n{name} " in f"\n{text}"
        assert metric.summary in text
    assert "\ndiff " in text
    assert text.splitlines()[-1].startswith("Next: rankscope metrics PATH ")


def test_a_capture_says_what_it_can_give_and_how_to_get_the_rest(host_only: str, capsys: Output) -> None:
    records = {record["metric"]: record for record in json.loads(printed(capsys, host_only, "--json"))}
    assert records["ops"]["available"]
    assert not records["launches"]["available"]
    assert records["launches"]["missing"] == ["kernels", "runtime_calls"]
    assert "ProfilerActivity.CUDA" in records["launches"]["recorded_by"]
    text = printed(capsys, host_only)
    there, absent = text.split("Not in this capture: ", 1)
    assert "\nops " in f"\n{there}"
    assert "launches" in absent
    assert "  = fix: record with torch.profiler and ProfilerActivity.CUDA" in absent


def test_only_what_has_rows_is_offered(host_only: str, tmp_path: Path, capsys: Output) -> None:
    records = {record["metric"]: record for record in json.loads(printed(capsys, host_only, "--json"))}
    assert records["modules"]["missing"] == ["modules"]
    assert "record_function" in records["modules"]["recorded_by"]
    simulate(JobSpec(Mesh(dp=2, tp=2))).write(tmp_path / "dumps")
    text = printed(capsys, str(tmp_path / "dumps"))
    assert text.startswith("Nothing to measure here: all ")
    assert "rankscope help traces" in text
    assert text.splitlines()[-1] == f"Next: rankscope {tmp_path / 'dumps'}"


def test_a_name_without_a_path_gives_the_definition(capsys: Output) -> None:
    text = printed(capsys, "launch_summary")
    assert METRICS["launch_summary"].doc in text
    assert "    n_slow " in text
    assert json.loads(printed(capsys, "ops", "--json"))["table"] == "op_breakdown"
    assert "--against" in printed(capsys, "diff")


def test_people_get_units_and_programs_nanoseconds(job: str, capsys: Output) -> None:
    text = printed(capsys, job, "launch_summary")
    first, _, heads, rule, *rows, count = text.splitlines()
    assert first == "launch_summary of ranks 0,1, steps 1-3"
    assert "  gpu (ms)" in heads
    assert "  median_gpu (us)" in heads
    assert set(rule) == {"-", " "}
    assert len(rows) == 2
    assert count == "(2 rows)"
    records = json.loads(printed(capsys, job, "launch_summary", "--json"))
    assert list(records[0]) == list(SCHEMA["launch_summary"].kinds)
    assert f"{records[0]['gpu_ns'] / 1e6:.3f}" in rows[0].split()
    found = list(csv.DictReader(printed(capsys, job, "launch_summary", "--format", "csv").splitlines()))
    assert [int(row["cpu_ns"]) for row in found] == [record["cpu_ns"] for record in records]


def test_moments_are_counted_from_the_first_event(job: str, capsys: Output) -> None:
    text = printed(capsys, job, "queue", "--limit", "3")
    assert "times are relative to the first event, " in text.splitlines()[1]
    heads = next(line for line in text.splitlines() if "n_queued" in line)
    assert "time (" in heads
    assert text.splitlines()[-1].startswith("(3 rows, ")
    assert text.splitlines()[-1].endswith(" more with --limit 0)")
    record = json.loads(printed(capsys, job, "queue", "--json", "--limit", "1"))[0]
    assert record["time_ns"] > 10**18


def test_ranks_and_steps_are_chosen(job: str, capsys: Output) -> None:
    whole, part = (
        json.loads(printed(capsys, job, "launches", "--json", *more))
        for more in ((), ("--ranks", "1", "--steps", "1-2"))
    )
    assert part == [row for row in whole if row["rank"] == 1 and row["step"] in (1, 2)]
    assert 0 < len(part) < len(whole)
    assert printed(capsys, job, "launch_summary", "--ranks", "1", "--steps", "2").startswith(
        "launch_summary of rank 1, step 2\n"
    )


def test_settings_of_a_metric(job: str, capsys: Output) -> None:
    (strict, lax) = (
        json.loads(printed(capsys, job, "launch_summary", "--json", "--set", f"slow_us={limit}"))[0]["n_slow"]
        for limit in ("0.001", "1e9")
    )
    assert strict > lax == 0


def test_two_captures_are_compared(job: str, host_only: str, capsys: Output) -> None:
    records = json.loads(printed(capsys, host_only, "diff", "--against", job, "--json"))
    by_name = {record["name"]: record for record in records}
    assert by_name["aten::only_here"]["count_change"] == "added"
    assert (by_name["aten::only_here"]["diff_count"], by_name["aten::only_here"]["diff_ns"]) == (1, 2250)
    assert {record["count_change"] for record in records if record["kind"] == "kernel"} == {"deleted"}
    text = printed(capsys, host_only, "diff", "--against", job)
    assert text.startswith(
        f"before: ranks 0,1, steps 1-3 ({job})\nafter:  rank 5, all that was recorded ({host_only})\n"
    )
    assert text.endswith("  = note: different numbers of ranks or steps: select with --ranks and --steps\n")
    same = json.loads(printed(capsys, job, "diff", "--against", job, "--json"))
    assert {record["diff_ns"] for record in same} == {0}


def test_ranks_without_a_device_are_said_to_be_left_out(job: str, host_only: str, capsys: Output) -> None:
    text = printed(capsys, job, host_only, "launch_summary")
    assert text.endswith("  = note: left out rank 5: these traces have no device activity (CPU only)\n")
    assert "left out" not in printed(capsys, job, host_only, "launch_summary", "--ranks", "0")
    assert "left out" not in printed(capsys, job, host_only, "ops")


def test_modules_say_how_to_record_them(host_only: str, capsys: Output) -> None:
    assert "with_stack=True" in printed(capsys, host_only, "modules")


def test_files_by_extension(job: str, tmp_path: Path, capsys: Output) -> None:
    for name in ("json", "csv", "txt"):
        path = tmp_path / f"rows.{name}"
        assert printed(capsys, job, "ops", "-o", str(path)) == ""
        assert "aten::" in path.read_text()
    assert json.loads((tmp_path / "rows.json").read_text())
    assert main(["metrics", job, "ops", "-o", str(tmp_path / "rows.csv")]) == 2
    assert "exists already" in capsys.readouterr().err
    assert main(["metrics", job, "ops", "-o", str(tmp_path / "rows.csv"), "--force"]) == 0


@pytest.mark.parametrize(
    ("arguments", "message", "hint"),
    [
        (("lauches",), "no metric is called 'lauches'", "did you mean launches?"),
        (("diff",), "diff needs a second capture", "--against"),
        (("launch_summary", "--set", "fast_us=1"), "no setting 'fast_us=1'", "slow_us=50, delay_us=100"),
        (("launch_summary", "--set", "slow_us=x"), "slow_us takes a number, not 'x'", "--set slow_us=50"),
        (("launch_summary", "--set", "slo_us=1"), "no setting 'slo_us=1'", "did you mean slow_us?"),
        (("ops", "--set", "a=1"), "this metric has no settings", "leave out --set"),
        (("ops", "--steps", "first"), "'first' is not a list of steps; write it like 10-12", "--help"),
        (("ops", "--json", "--format", "csv"), "--json and --format csv contradict", "use one of the two"),
    ],
)
def test_requests_that_make_no_sense(
    arguments: tuple[str, ...], message: str, hint: str, job: str, capsys: Output
) -> None:
    assert main(["metrics", job, *arguments]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    first, second = said.err.splitlines()
    assert message in first
    assert hint in second


def test_a_metric_that_the_capture_cannot_give(host_only: str, capsys: Output) -> None:
    assert main(["metrics", host_only, "launches"]) == 2
    said = capsys.readouterr().err
    assert "cannot measure launches: no kernels in " in said
    assert "ProfilerActivity.CUDA" in said


def test_nothing_in_a_trace_steers_the_terminal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Output
) -> None:
    operator = {
        "ph": "X",
        "cat": "cpu_op",
        "pid": 1,
        "tid": 1,
        "ts": 1.0,
        "dur": 2.0,
        "name": "\x1b[2Jaten",
        "args": {},
    }
    text = {"schemaVersion": 1, "distributedInfo": {"rank": 0}, "traceEvents": [operator]}
    (tmp_path / "kineto_trace_0.json").write_text(json.dumps(text))
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    for chosen in ("table", "csv"):
        assert "\x1b" not in printed(capsys, str(tmp_path), "ops", "--format", chosen)


def test_modules_read_the_python_calls_without_being_told(tmp_path: Path, capsys: Output) -> None:
    simulate_profile(ProfileSpec(data_parallel=2, n_steps=1, n_layers=2, with_stack=True)).write(tmp_path)
    records = json.loads(printed(capsys, str(tmp_path), "modules", "--json"))
    assert {record["source"] for record in records} == {"stacks"}
    assert {"Block_0", "Block_1"} <= {record["module"] for record in records}
