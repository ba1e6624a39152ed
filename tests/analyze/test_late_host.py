"""The late rank, why it is late and its line, from dumps and what the host sampler saw; one problem is one finding."""

from __future__ import annotations

from pathlib import Path

import pytest

from analyze import late_jobs
from analyze.late_jobs import FILE, LATE, N_RANKS, PAUSE, SCENES, Scene
from rankscope.analyze.merging import merge
from rankscope.model.finding import Finding, Location, Report
from rankscope.pipeline import diagnose, load


def judged(folder: Path) -> Report:
    return diagnose(load(folder, jobs=1))


def codes(report: Report) -> list[str]:
    return [finding.code for finding in report.findings]


@pytest.mark.parametrize("code", SCENES)
def test_the_first_finding_has_rank_cause_and_line(code: str, tmp_path: Path) -> None:
    late_jobs.write(tmp_path, SCENES[code])
    report = judged(tmp_path)
    first = report.findings[0]
    culprits = () if code == "X608" else (LATE,)  # there the machine is at fault
    assert (first.code, first.ranks, first.severity) == (code, culprits, "warning")
    if code not in ("X607", "X608"):  # these slow down every line
        line = SCENES[code].line
        assert first.location == Location(FILE, line, "train")
    assert abs((first.evidence.cost_ns or 0) - PAUSE) < PAUSE // 10


@pytest.mark.parametrize("code", SCENES)
def test_the_same_delay_in_one_source_is_an_effect(code: str, tmp_path: Path) -> None:
    late_jobs.write(tmp_path, SCENES[code])
    report = judged(tmp_path)
    assert [one for one in codes(report) if one[0] in "SX"] == [code]
    assert "S201" in {effect.code for effect in report.effects}
    assert any("S201" in note for note in report.findings[0].evidence.notes)


def test_a_healthy_job_gets_nothing(tmp_path: Path) -> None:
    late_jobs.write(tmp_path, Scene(), late=lambda step: None)
    assert [one for one in codes(judged(tmp_path)) if one[0] in "SX"] == []


def test_ranks_that_are_late_in_turns_are_not_blamed(tmp_path: Path) -> None:
    late_jobs.write(tmp_path, Scene(), late=lambda step: step % N_RANKS)
    assert [one for one in codes(judged(tmp_path)) if one[0] == "X"] == []


def test_no_cause_is_named_without_evidence(tmp_path: Path) -> None:
    late_jobs.write(tmp_path, Scene(state="S"))  # asleep, and the kernel does not say in what
    report = judged(tmp_path)
    assert [one for one in codes(report) if one[0] == "X"] == []
    assert codes(report)[0] == "S201"


def test_another_process_that_takes_the_cores_is_a_note(tmp_path: Path) -> None:
    late_jobs.write(tmp_path, SCENES["X608"])
    for path in tmp_path.glob("host_*"):
        path.write_text(path.read_text().replace('"n_torch_threads": 8', '"n_torch_threads": 1'))
    [finding] = [finding for finding in judged(tmp_path).findings if finding.code == "X608"]
    assert finding.severity == "info"


def test_a_rank_that_computes_more_is_named_even_if_cores_are_short(tmp_path: Path) -> None:
    late_jobs.write(tmp_path, Scene(cpu_ns=late_jobs.SAMPLE // 2, delayed_ns=late_jobs.SAMPLE // 2))
    assert codes(judged(tmp_path))[0] == "X610"


def test_waiting_for_threads_of_torch_is_no_lock_of_the_job(tmp_path: Path) -> None:
    late_jobs.write(tmp_path, Scene(state="S", waits_in="futex", library="/site-packages/torch/autograd/graph.py"))
    assert [one for one in codes(judged(tmp_path)) if one[0] == "X"] == []


def test_what_a_hung_job_spent_time_on_is_an_effect() -> None:
    hang = Finding(code="H102", severity="error", certainty="certain", title="mismatch")
    slow = Finding(code="S201", severity="warning", certainty="likely", title="late", ranks=(1,))
    hole = Finding(code="D901", severity="warning", certainty="certain", title="no dump")
    assert merge([hang, slow, hole]) == ([hang, hole], [slow])


def test_a_rank_that_compiles_is_one_finding() -> None:
    cause = Finding(code="X613", severity="warning", certainty="certain", title="compiles", ranks=(2,))
    own = Finding(code="C411", severity="warning", certainty="likely", title="more often", ranks=(2,))
    other = Finding(code="C411", severity="warning", certainty="likely", title="more often", ranks=(1,))
    kept, same = merge([cause, own, other])
    assert ([finding.code for finding in kept], same) == (["X613", "C411"], [own])
    assert kept[0].evidence.notes == ("C411 shows the same delay: not listed (--all)",)


def test_a_line_that_did_not_run_on_a_core_is_not_blamed(tmp_path: Path) -> None:
    late_jobs.write(tmp_path, Scene(state="R", cpu_ns=late_jobs.SAMPLE // 10))
    assert [one for one in codes(judged(tmp_path)) if one[0] == "X"] == []


def test_what_the_collector_takes_is_no_lateness(tmp_path: Path) -> None:
    late_jobs.write(tmp_path, Scene(mark="recording", cpu_ns=late_jobs.SAMPLE))
    assert [one for one in codes(judged(tmp_path)) if one[0] == "X"] == []


def test_steps_that_the_profiler_slows_down_do_not_count(tmp_path: Path) -> None:
    is_profiled = range(10, 20)
    late_jobs.write(
        tmp_path, Scene(mark="profiled", cpu_ns=late_jobs.SAMPLE), lambda step: LATE if step in is_profiled else None
    )
    assert [one for one in codes(judged(tmp_path)) if one[0] == "X"] == []


def test_a_function_is_named_where_no_single_line_explains_the_delay(tmp_path: Path) -> None:
    late_jobs.write(tmp_path, Scene(cpu_ns=late_jobs.SAMPLE, n_lines=6))
    first = judged(tmp_path).findings[0]
    assert (first.code, first.ranks) == ("X610", (LATE,))
    assert first.location is not None
    assert first.location.function == "statistics"
    assert 200 <= first.location.line < 206
