"""Jobs that use torch.compile: what is said of their logs is what the script really does, to the line."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from compiling import JOB, ODD_RANK, Case, line_of, run_cases
from launching import Diagnosis, diagnose

from named_commands import check_named_commands
from rankscope import pipeline
from rankscope.model.payloads import damaged_payloads
from rankscope.model.tables import Trace
from rankscope.pipeline import load

pytest.importorskip("torch")
pytestmark = pytest.mark.e2e

Row = dict[str, Any]
ALONE = (
    *("recompiles", "graph_breaks", "training", "compiled_autograd", "compile_error", "bypassed"),
    *("simple", "dynamic", "respecialised", "forked"),
)
CACHED = (
    Case("cached", environment=(("RUN", "cold"),), imports_torch=True),
    Case("cached", environment=(("RUN", "warm"),)),
    Case("cached", environment=(("RUN", "wider"), ("WIDTH", "48"))),
    Case("cached", environment=(("RUN", "strict"), ("DETERMINISTIC", "1"))),
)
RANKED = (
    Case("data_parallel", 2),
    Case("data_parallel", 2, ODD_RANK),
    Case("collectives", 2),
    Case("collectives", 2, ODD_RANK),
    Case("collectives", 4, ODD_RANK),  # one against many: of two alone, either could be the odd one
)
FOLDERS = [*ALONE, *(case.folder for case in (*CACHED, *RANKED))]
# How long a rank takes to compile beside others is a matter of the machine that runs the tests.
OF_THE_MACHINE = {"compile-skew", "slow-guards", "compile-time"}


@pytest.fixture(scope="module")
def logs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One folder of logs per case."""
    root = tmp_path_factory.mktemp("compiled")
    alone = [[Case(name, imports_torch=name == "simple")] for name in ALONE]
    run_cases(root, [CACHED, *alone, *([case] for case in RANKED)])
    return root


@pytest.fixture(scope="module")
def verdicts(logs: Path) -> dict[str, Diagnosis]:
    return {folder: diagnose(logs / folder) for folder in FOLDERS}


def found(verdict: Diagnosis, rule: str) -> list[Row]:
    return [finding for finding in verdict.report["findings"] if finding["rule"] == rule]


def alarms(verdict: Diagnosis) -> set[tuple[str, str]]:
    findings = (finding for finding in verdict.report["findings"] if finding["rule"] not in OF_THE_MACHINE)
    return {(finding["code"], finding["severity"]) for finding in findings if finding["severity"] != "info"}


def is_at(finding: Row, line: int, function: str) -> bool:
    place = finding["location"]
    return (place["file"], place["line"], place["function"]) == (str(JOB), line, function)


def rows_of(trace: Trace, table: str) -> list[Row]:
    return list(trace.table(table).rows())


# What was read


@pytest.mark.parametrize("folder", FOLDERS)
def test_every_record_is_read_and_every_payload_is_whole(logs: Path, folder: str) -> None:
    trace = load(logs / folder)

    processes = rows_of(trace, "compile_logs")
    assert {(log["n_bad"], log["is_cut"]) for log in processes} == {(0, False)}
    # Only the child that the job itself forks knows names that its log does not tell.
    assert sum(log["n_unresolved"] > 0 for log in processes) == (folder == "forked")
    assert set(trace.table("files").text("status").tolist()) == {"read"}
    assert set(trace.table("compile_logs").text("clock").tolist()) == {"absolute"}
    assert list(damaged_payloads(trace)) == []


@pytest.mark.parametrize("case", RANKED, ids=[case.folder for case in RANKED])
def test_every_rank_has_a_log_of_the_one_run(verdicts: dict[str, Diagnosis], logs: Path, case: Case) -> None:
    capture = verdicts[case.folder].report["capture"]

    assert capture["ranks"] == list(range(case.n_ranks))
    assert capture["sources"] == {"compile_log": case.n_ranks}
    assert {log["run"] for log in rows_of(load(logs / case.folder), "compile_logs")} == {0}


def test_a_forked_child_knows_the_names_of_its_parent(logs: Path) -> None:
    trace = load(logs / "forked")

    processes = rows_of(trace, "compile_logs")
    assert sorted(log["n_unresolved"] > 0 for log in processes) == [False, True]
    assert [(log["run"], log["rank"]) for log in processes] == [(0, 0), (0, 0)]
    compiled = {row["function"]: row["line"] for row in rows_of(trace, "compile_stacks") if row["file"] == str(JOB)}
    assert compiled["of_parent"] == line_of("def of_parent(") - 1
    assert compiled["of_child"] == line_of("def of_child(") - 1


@pytest.mark.parametrize("folder", FOLDERS)
def test_no_finding_points_into_generated_code(verdicts: dict[str, Diagnosis], folder: str) -> None:
    places = [finding["location"] for finding in verdicts[folder].report["findings"] if finding["location"]]

    assert {place["file"] for place in places} <= {str(JOB)}


# Healthy jobs


@pytest.mark.parametrize(
    "folder",
    [
        *("simple", "dynamic", "training", "forked", "cached_cold", "cached_warm", "cached_wider_48"),
        *(case.folder for case in RANKED if case.odd_rank < 0),
    ],
)
def test_a_healthy_job_raises_no_alarm(verdicts: dict[str, Diagnosis], folder: str) -> None:
    assert alarms(verdicts[folder]) == set()
    assert verdicts[folder].exit_code == 0


def test_one_recompilation_that_made_a_size_dynamic_is_told_as_normal(verdicts: dict[str, Diagnosis]) -> None:
    [again] = found(verdicts["dynamic"], "recompiles")

    assert again["severity"] == "info"
    assert again["evidence"]["facts"]["n_recompiles"] == {"0": 1}
    assert causes_of(again) == [("size", "x", 0)]


# Graph breaks


def test_graph_breaks_are_told_by_line_and_reason(verdicts: dict[str, Diagnosis]) -> None:
    breaks = found(verdicts["graph_breaks"], "graph-break")

    printed, asked_for = line_of("# breaks here"), line_of("# and here")
    assert {finding["location"]["line"] for finding in breaks} == {printed, asked_for}
    assert {finding["location"]["function"] for finding in breaks} == {"logged"}
    by_kind = {finding["evidence"]["facts"]["break_id"]: finding for finding in breaks}
    assert is_at(by_kind["gb0124"], printed, "logged")
    assert "Tensor.item()" in by_kind["gb0124"]["title"]
    assert is_at(by_kind["gb0025"], asked_for, "logged")
    assert {finding["severity"] for finding in breaks} == {"warning"}
    assert alarms(verdicts["graph_breaks"]) == {("C404", "warning")}


def test_a_backward_inside_of_the_compiled_function_breaks_its_graph(verdicts: dict[str, Diagnosis]) -> None:
    [broken] = found(verdicts["compiled_autograd"], "graph-break")

    assert is_at(broken, line_of("# breaks, and its own graph is compiled"), "step")


def test_graphs_of_compiled_autograd_have_ids_of_their_own(logs: Path) -> None:
    trace = load(logs / "compiled_autograd")

    ids = set(trace.table("compile_records").text("compile_id").tolist())
    assert {"0/0", "!0", "!0/1/0"} <= ids
    autograd = [row for row in rows_of(trace, "compilations") if row["compile_id"] == "!0/1/0"]
    assert [(row["autograd_id"], row["frame_id"], row["status"]) for row in autograd] == [(0, 1, "ok")]


# Recompilations


def causes_of(finding: Row) -> list[tuple[str, str, int]]:
    causes = finding["evidence"]["facts"]["causes"]
    return [(cause["cause"], cause["subject"], cause["dimension"]) for cause in causes]


def test_the_limit_is_told_with_the_function_and_all_sizes(verdicts: dict[str, Diagnosis]) -> None:
    [limit] = found(verdicts["recompiles"], "recompile-limit")

    assert (limit["code"], limit["severity"], limit["ranks"]) == ("C401", "warning", [0])
    assert is_at(limit, line_of("@torch.compile(dynamic=False, "), "summed")
    assert causes_of(limit) == [("size", "x", 0)]
    # Eight versions were compiled, for 2 to 9; the call with 10 met the limit.
    assert limit["evidence"]["facts"]["n_recompiles"] == {"0": 7}
    assert limit["evidence"]["facts"]["causes"][0]["values"] == [str(size) for size in range(2, 11)]


def test_values_that_change_are_told_with_the_argument(verdicts: dict[str, Diagnosis]) -> None:
    [again] = found(verdicts["recompiles"], "recompiles")

    assert (again["code"], again["severity"]) == ("C402", "warning")
    assert is_at(again, line_of('return x * times if mode == "up"'), "scaled")
    assert again["evidence"]["facts"]["n_recompiles"] == {"0": 2}
    assert ("value", "mode", -1) in causes_of(again)


def test_the_guards_are_in_the_tables_as_they_failed(logs: Path) -> None:
    failed = rows_of(load(logs / "recompiles"), "recompiles")

    newest = {
        row["compile_id"]: (row["guard"], row["expected"], row["actual"])
        for row in failed
        if row["frame_id"] == 1 and row["against"] == f"1/{row['frame_compile_id'] - 1}"
    }
    for version in range(1, 8):
        guard = f"tensor 'x' size mismatch at index 0. expected {version + 1}, actual {version + 2}"
        assert newest[f"1/{version}"] == (guard, str(version + 1), str(version + 2))


def test_a_dimension_that_was_pinned_again_is_told_with_the_line_that_did_it(verdicts: dict[str, Diagnosis]) -> None:
    [pinned] = found(verdicts["respecialised"], "dimension-specialised")

    assert (pinned["code"], pinned["severity"]) == ("C403", "warning")
    assert is_at(pinned, line_of("if x.shape[0] == 48"), "padded")
    assert "dimension 0 of x" in pinned["title"]
    assert pinned["evidence"]["facts"]["values"] == ["48"]


# Errors


def test_both_errors_are_told_with_the_line_that_raised_them(verdicts: dict[str, Diagnosis]) -> None:
    errors = found(verdicts["compile_error"], "compile-error")

    by_function = {error["evidence"]["facts"]["function"]: error for error in errors}
    assert set(by_function) == {"doomed", "strict"}
    assert is_at(by_function["doomed"], line_of("raise RuntimeError("), "broken_backend")
    assert "this backend compiles nothing" in by_function["doomed"]["title"]
    assert is_at(by_function["strict"], line_of("no graph holds this"), "strict")
    assert {error["severity"] for error in errors} == {"error"}
    assert verdicts["compile_error"].exit_code == 1


# Caches


def outcomes(trace: Trace) -> set[tuple[str, str]]:
    return {(event["cache"], event["outcome"]) for event in rows_of(trace, "cache_events")}


@pytest.mark.parametrize(
    ("folder", "outcome"),
    [("cached_cold", "miss"), ("cached_warm", "hit"), ("cached_wider_48", "miss"), ("cached_strict_1", "miss")],
)
def test_caches_hit_what_they_hold_and_miss_what_differs(logs: Path, folder: str, outcome: str) -> None:
    assert ("aotautograd", outcome) in outcomes(load(logs / folder))
    assert {told for _, told in outcomes(load(logs / folder))} == {outcome}


def test_a_cold_cache_is_said_and_a_warm_one_is_not(verdicts: dict[str, Diagnosis]) -> None:
    assert [finding["severity"] for finding in found(verdicts["cached_cold"], "cache-miss")] == ["info"]
    assert found(verdicts["cached_warm"], "cache-miss") == []


def test_runs_in_one_folder_are_told_apart(logs: Path) -> None:
    trace = load([logs / case.folder for case in CACHED])

    times = {log["run"]: log["first_ns"] for log in rows_of(trace, "compile_logs")}
    assert sorted(times) == list(range(len(CACHED)))
    assert sorted(times.values()) == [times[run] for run in range(len(CACHED))]


def test_a_miss_of_an_equal_graph_names_the_setting_that_changed(logs: Path) -> None:
    report = pipeline.diagnose(load([logs / "cached_cold", logs / "cached_strict_1"]))

    [explained] = [finding for finding in report.findings if finding.code == "C407" and finding.severity == "warning"]
    assert "deterministic_algorithms_settings" in explained.evidence.facts["components"]
    assert explained.location is not None
    assert (explained.location.file, explained.location.line) == (str(JOB), line_of("def mixed(") - 1)


def test_a_recompilation_is_no_cold_cache_and_names_what_changed(logs: Path) -> None:
    [finding] = [each for each in pipeline.diagnose(load([logs / "dynamic"])).findings if each.code == "C407"]
    assert "because the graph, example_inputs changed within this process" in finding.title
    assert finding.evidence.comparison
    assert "doubled [0/1]: the graph" in finding.evidence.comparison.keys
    assert any(
        "without TORCH_LOGS=+aot, the AOTAutograd cache logs nothing about its keys" in note
        for note in finding.evidence.notes
    )


@pytest.mark.parametrize("folder", ["recompiles", "compile_error", RANKED[1].folder])
def test_every_command_that_the_answer_names_can_be_run(logs: Path, tmp_path: Path, folder: str) -> None:
    assert len(check_named_commands(logs / folder, tmp_path)) > 3


def test_a_miss_of_another_graph_is_no_alarm(logs: Path) -> None:
    report = pipeline.diagnose(load([logs / "cached_cold", logs / "cached_wider_48"]))

    assert {finding.severity for finding in report.findings if finding.code == "C407"} == {"info"}


def test_a_bypass_is_told_with_its_reason(verdicts: dict[str, Diagnosis]) -> None:
    [bypass] = found(verdicts["bypassed"], "cache-bypass")

    assert bypass["code"] == "C408"
    assert "autograd.Function" in bypass["title"]
    assert is_at(bypass, line_of("def applied(") - 1, "applied")


# Ranks


def ranked(name: str) -> list[Any]:
    cases = [case for case in RANKED if case.name == name and case.odd_rank >= 0]
    return [pytest.param(case, id=case.folder) for case in cases]


@pytest.mark.parametrize("case", ranked("data_parallel"))
def test_the_rank_that_saw_another_batch_is_named_with_the_reason(verdicts: dict[str, Diagnosis], case: Case) -> None:
    [differ] = found(verdicts[case.folder], "graphs-differ")

    assert (differ["code"], differ["severity"], differ["ranks"]) == ("C411", "warning", [ODD_RANK])
    assert is_at(differ, line_of("compiled(torch.randn(size, 16)).sum().backward()"), "data_parallel")
    assert "expected 8, got 12" in " ".join(differ["evidence"]["likely"])
    [again] = found(verdicts[case.folder], "recompiles")
    assert again["ranks"] == [ODD_RANK]


@pytest.mark.parametrize("case", ranked("collectives"))
def test_the_rank_with_one_collective_more_is_named(verdicts: dict[str, Diagnosis], case: Case) -> None:
    [schedules] = found(verdicts[case.folder], "schedules-differ")
    [graphs] = found(verdicts[case.folder], "graphs-differ")

    for finding in (schedules, graphs):
        assert (finding["severity"], finding["ranks"]) == ("error", [ODD_RANK])
    assert schedules["evidence"]["facts"]["position"] == 1
    sides = {tuple(side["ranks"]): side["cells"] for side in schedules["evidence"]["comparison"]["sides"]}
    peers = tuple(rank for rank in range(case.n_ranks) if rank != ODD_RANK)
    assert sides[ODD_RANK,].count("all_reduce") == 2
    assert sides[peers].count("all_reduce") == 1
    assert is_at(graphs, line_of("functional.all_reduce(y * 2"), "reduced")
    assert verdicts[case.folder].exit_code == 1


# The report


def write_report(logs: Path, out: Path) -> Path:
    command = [sys.executable, "-m", "rankscope", "compile", str(logs), "-o", str(out)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode in (0, 1), done.stderr
    return out


def assert_is_a_tree(folder: Path) -> None:
    """What scripts built on the tree look for is there and can be parsed; no link leads nowhere."""
    first, *others = (folder / "raw.jsonl").read_text().splitlines()
    assert "string_table" in json.loads(first)
    assert all(isinstance(json.loads(line), dict) for line in others)
    events = json.loads((folder / "chromium_events.json").read_text())
    assert {event["ph"] for event in events} & {"B", "X"}
    directory = json.loads((folder / "compile_directory.json").read_text())
    artifacts = [artifact for entry in directory.values() for artifact in entry["artifacts"]]
    assert artifacts
    local = [artifact["url"] for artifact in artifacts if "://" not in artifact["url"]]
    assert [url for url in local if not (folder / url).is_file()] == []
    assert "<html" in (folder / "index.html").read_text()


@pytest.mark.parametrize("name", ["graph_breaks", "recompiles", "compile_error", "training", "compiled_autograd"])
def test_the_report_of_one_process_is_whole(logs: Path, tmp_path: Path, name: str) -> None:
    tree = write_report(logs / name, tmp_path / "tl_out")

    assert_is_a_tree(tree)
    assert (tree / "raw.log").read_bytes() == next((logs / name).glob("*.log")).read_bytes()
    assert list(tree.glob("*/dynamo_output_graph_*.txt"))


def test_the_report_of_several_ranks_has_a_tree_for_each(logs: Path, tmp_path: Path) -> None:
    case = max(RANKED, key=lambda case: case.n_ranks)
    tree = write_report(logs / case.folder, tmp_path / "tl_out")

    for rank in range(case.n_ranks):
        assert_is_a_tree(tree / f"rank_{rank}")
    assert "<html" in (tree / "index.html").read_text()
    assert json.loads((tree / "collective_schedules.json").read_text())
    combined = json.loads((tree / "chromium_events.json").read_text())
    assert {event["pid"] for event in combined} == set(range(case.n_ranks))
