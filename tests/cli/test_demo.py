from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest

from rankscope.cli import main
from rankscope.commands.demo import is_right, mesh_of
from rankscope.model.finding import Finding
from rankscope.simulate import FAULTS, Mesh, Truth
from rankscope.simulate.compile_job import COMPILE_FAULT_HELP
from rankscope.simulate.profiler import PROFILE_FAULTS
from render import sample


@pytest.fixture(autouse=True)
def _in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_the_diagnosis_comes_first_and_the_truth_after_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo", "--ranks", "8", "--rank", "3"]) == 0
    printed = capsys.readouterr()
    assert printed.err == ""
    verdict = printed.out.index("error[H102] (certain) rank 3 called ")
    assert verdict < printed.out.index("\nSimulated: 8 ranks ")
    assert printed.out.splitlines()[-2].startswith("Rank 3 called ")
    assert printed.out.splitlines()[-2].endswith(" The verdict names it.")
    assert printed.out.splitlines()[-1] == "Next: rankscope report rankscope-demo -o report.html"
    assert len(list(Path("rankscope-demo").iterdir())) == 8


def test_a_new_folder_every_time(capsys: pytest.CaptureFixture[str]) -> None:
    for _ in range(3):
        main(["demo", "--ranks", "4"])
    assert sorted(path.name for path in Path().iterdir()) == ["rankscope-demo", "rankscope-demo-2", "rankscope-demo-3"]


def test_only_dumps_are_replaced_and_only_by_force(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo", "-o", "job", "--ranks", "8"]) == 0
    Path("job/notes.txt").write_text("mine")
    before = Path("job/nccl_trace_rank_0").read_bytes()
    assert main(["demo", "-o", "job", "--ranks", "4"]) == 2
    assert "job is not empty" in capsys.readouterr().err
    assert Path("job/nccl_trace_rank_0").read_bytes() == before
    main(["demo", "-o", "job", "--ranks", "4", "--force"])
    assert sorted(path.name for path in Path("job").iterdir()) == [f"nccl_trace_rank_{n}" for n in range(4)] + [
        "notes.txt"
    ]


def test_a_healthy_job(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo", "--fault", "none", "--ranks", "8"]) == 0
    printed = capsys.readouterr().out
    assert "No problems found." in printed
    assert "This job is healthy. The verdict agrees." in printed


def test_json_holds_the_truth_and_the_report(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo", "--mesh", "4,2", "--fault", "stuck", "--rank", "6", "--seed", "2", "--json"]) == 0
    record = json.loads(capsys.readouterr().out)
    assert record["mesh"] == {"dp": 4, "tp": 2, "pp": 1}
    assert record["truth"]["ranks"] == record["report"]["findings"][0]["ranks"] == [6]
    assert record["agrees"] is True


def test_several_faults_in_one_job(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo", "--fault", "op,stuck", "--ranks", "16", "--json"]) == 0
    record = json.loads(capsys.readouterr().out)
    rules = [record["truth"]["rule"], *(truth["rule"] for truth in record["further_truths"])]
    assert rules == ["op-mismatch", "rank-stuck"]
    assert {finding["rule"] for finding in record["report"]["findings"] if finding["severity"] == "error"} == {*rules}
    assert main(["demo", "--fault", "op,stuck", "--rank", "3"]) == 2
    assert "each fault has its own" in capsys.readouterr().err


def test_noise_reaches_the_dumps(capsys: pytest.CaptureFixture[str]) -> None:
    main(["demo", "--ranks", "16", "--lost", "2", "--cut", "1", "--ring", "20", "--clock-skew-ms", "5", "--json"])
    record = json.loads(capsys.readouterr().out)
    assert len(list(Path("rankscope-demo").iterdir())) == 14
    codes = {finding["code"] for finding in record["report"]["findings"]}
    assert {"D901", "D902"} <= codes


def test_the_faults_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo", "--list"]) == 0
    text = capsys.readouterr().out
    listed = [line.split()[0] for line in text.splitlines() if line.startswith("  ")]
    kinds = [*FAULTS, "none", *PROFILE_FAULTS, "healthy-profile", *COMPILE_FAULT_HELP, "healthy-compile"]
    assert listed == kinds
    assert main(["demo", "--fault"]) == 0
    assert capsys.readouterr().out == text
    assert main(["demo", "--fault", "skp"]) == 2
    assert f"did you mean skip? choose one of: {', '.join(kinds)}" in capsys.readouterr().err
    assert main(["demo", "--list", "--json"]) == 0
    assert list(json.loads(capsys.readouterr().out)) == kinds
    assert list(Path().iterdir()) == []


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["healthy-profile", "healthy-compile"])
def test_healthy_twins_of_slow_and_compiling_jobs(fault: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo", "--fault", fault, "--ranks", "4", "--steps", "3", "--json"]) == 0
    record = json.loads(capsys.readouterr().out)
    assert record["agrees"]
    assert {finding["severity"] for finding in record["report"]["findings"]} <= {"info"}
    assert len(list(Path("rankscope-demo").iterdir())) == 4
    assert main(["demo", "--fault", fault, "--ranks", "4", "--steps", "3", "-o", "again"]) == 0
    shown = capsys.readouterr().out
    assert "Nothing is wrong with this job: " in shown
    assert shown.splitlines()[-2].endswith(" The verdict agrees.")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--fault", "gremlin"), "unknown fault 'gremlin'"),
        (("--mesh", "4x2"), "'4x2' is not a mesh"),
        (("--mesh", "1,1,1"), "has only one rank"),
        (("--ranks", "-3"), "argument --ranks"),
        (("--ranks", "8", "--mesh", "4,2"), "not allowed with argument"),
        (("--fault", "none", "--rank", "3"), "without a fault"),
        (("-o", "no/such/folder"), "cannot write no/such/folder"),
    ],
)
def test_requests_that_make_no_sense(
    arguments: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["demo", *arguments]) == 2
    assert message in capsys.readouterr().err
    assert list(Path().iterdir()) == []


@pytest.mark.parametrize(
    ("n_ranks", "fault", "mesh"),
    [
        (2, "op", Mesh(2, 1, 1)),
        (7, "op", Mesh(7, 1, 1)),
        (8, "op", Mesh(4, 2, 1)),
        (8, "p2p", Mesh(2, 2, 2)),
        (16, "op", Mesh(4, 4, 1)),
        (64, "op", Mesh(8, 4, 2)),
        (1024, "op", Mesh(128, 4, 2)),
    ],
)
def test_a_number_of_ranks_gives_a_usual_mesh(n_ranks: int, fault: str, mesh: Mesh) -> None:
    assert mesh_of(n_ranks, fault) == mesh


def test_a_wrong_verdict_is_called_wrong() -> None:
    truth = Truth("op-mismatch", (513,), "dp", "all_reduce", None, None, "")
    finding = sample.hang().findings[0]
    wrong_rank = msgspec.structs.replace(finding, ranks=(7,))
    wrong_rule = msgspec.structs.replace(finding, rule="size-mismatch")
    healthy = Truth(None, (), "", "", None, None, "")
    straggler = Finding(
        code="S201", rule="straggler", severity="warning", certainty="likely", title="rank 3 is late", ranks=(3,)
    )
    assert is_right(sample.report(finding), truth)
    assert not is_right(sample.report(wrong_rank), truth)
    assert not is_right(sample.report(wrong_rule, finding), truth)
    assert not is_right(sample.clean(), truth)
    assert is_right(sample.clean(), healthy)
    assert is_right(sample.report(sample.lost_dumps()), healthy)
    assert not is_right(sample.report(straggler), healthy)
    assert not is_right(sample.hang(), healthy)


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["data-loading", "slow-kernels", "stage-imbalance"])
def test_a_slow_job_is_diagnosed_beside_the_truth(fault: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo", "-o", "slow", "--fault", fault, "--ranks", "4", "--steps", "3"]) == 0
    out = capsys.readouterr().out
    assert f"The fault is {fault} on rank" in out
    assert "The verdict names it." in out
    assert len(list(Path("slow").glob("kineto_trace_*.json.gz"))) == 4
    assert main(["demo", "-o", "slow", "--fault", "op", "--ranks", "4", "--force"]) == 0
    assert not list(Path("slow").glob("kineto_trace_*.json.gz")), "the traces of the demonstration before are gone"


def test_options_of_hung_jobs_do_not_go_with_slow_ones() -> None:
    assert main(["demo", "--fault", "data-loading", "--mesh", "2,2,2"]) == 2


@pytest.mark.parametrize(("fault", "code"), [("recompiles", "C401"), ("graph-break", "C404"), ("odd-graph", "C411")])
def test_a_compiling_job_is_diagnosed_beside_the_truth(
    fault: str, code: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["demo", "-o", "logs", "--fault", fault, "--ranks", "3", "--rank", "1"]) == 0
    printed = capsys.readouterr().out
    assert f"[{code}]" in printed
    assert printed.splitlines()[-2].endswith(" The verdict names it.")
    assert printed.splitlines()[-1] == "Next: rankscope compile logs -o report"
    assert len(list(Path("logs").glob("dedicated_log_torch_trace_rank_*.log"))) == 3
    assert main(["demo", "-o", "logs", "--fault", "op", "--ranks", "4", "--force"]) == 0
    assert not list(Path("logs").glob("*.log")), "the logs of the demonstration before are gone"


def test_what_a_compiling_job_has_not_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo", "--fault", "recompiles", "--lost", "1"]) == 2
    assert main(["demo", "--fault", "odd-graph", "--ranks", "2", "--rank", "2"]) == 2
    assert "the job has no rank 2" in capsys.readouterr().err


@pytest.mark.parametrize("fault", ["stuck", "op", "stall", "lost", "none"])
def test_the_output_of_a_job_alone_gives_the_verdict(fault: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo", "--fault", fault, "--logs", "-o", "job"]) == 0
    assert [path.name for path in Path("job").iterdir()] == ["job.log"]
    assert "The diagnosis is right." in capsys.readouterr().out


def test_a_fault_that_no_log_shows_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo", "--fault", "dtype", "--logs"]) == 2
    assert "choose one of: stuck, op" in capsys.readouterr().err
