"""L501 to L504, as a user reads them: on whole simulated pairs, on damaged ones, and on hand-made ones."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from analyze.link.observed_processes import OBJECT, Process, Tensor, loaded
from analyze.link.recordings import observed, profiled, trace_of, training
from rankscope.analyze import RULES, Skipped, run_rules
from rankscope.model.finding import Finding
from rankscope.model.tables import Trace
from rankscope.pipeline import load
from rankscope.simulate.execution import PairOptions, observe, write_execution_trace, write_pairs
from rankscope.simulate.profiler import ProfileNoise, ProfileSpec, simulate_profile

SPEC = ProfileSpec(data_parallel=2, n_steps=2, n_layers=1, n_microbatches=1)
JOB = simulate_profile(SPEC)
DEVICE = {"kernel", "gpu_memcpy", "gpu_memset"}
LAUNCHES = {"cuda_runtime", "cuda_driver", "ac2g"}
Event = dict[str, Any]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two ranks, each with a whole pair."""
    write_pairs(JOB, tmp_path)
    return tmp_path


def findings(trace: Trace, code: str) -> list[Finding]:
    """Of this rule alone: the others take longer."""
    return [found for found in RULES[code].function(trace) if isinstance(found, Finding)]


def change_events(path: Path, change: Callable[[list[Event]], list[Event]]) -> None:
    document = json.loads(path.read_text())
    document["traceEvents"] = change(document["traceEvents"])
    path.write_text(json.dumps(document))


def change_collectives(path: Path, change: Callable[[dict[str, Any]], None]) -> None:
    document = json.loads(path.read_text())
    for node in document["nodes"]:
        if node["name"] in ("record_param_comms", "c10d::allreduce_"):
            change(node)
    path.write_text(json.dumps(document))


@pytest.mark.cases
@pytest.mark.parametrize(
    "options",
    [
        PairOptions(),
        PairOptions(with_record_ids=False),
        PairOptions(observed_steps=(2, 2)),
        PairOptions(schema="1.0.1", gzip=True),
        PairOptions(with_correlation_as_external=True),
    ],
    ids=["whole", "without numbers", "observer of one step", "oldest layout", "external ids of 2023"],
)
def test_pairs_that_fit_are_passed_over(options: PairOptions, tmp_path: Path) -> None:
    write_pairs(JOB, tmp_path, options)
    trace = load(tmp_path)
    assert not [finding for code in ("L501", "L502", "L504") for finding in findings(trace, code)]


def different_run(folder: Path) -> None:
    other = simulate_profile(replace(SPEC, n_layers=2))
    for rank in JOB.ranks:
        write_execution_trace(observe(other, rank), folder / f"torch_et_{rank}.json")


def no_overlap(folder: Path) -> None:
    """The observer watched the first step, the profiler the last one, while another observer ran."""
    write_pairs(JOB, folder, PairOptions(observed_steps=(2, 2)))
    for rank in JOB.ranks:
        write_execution_trace(observe(JOB, rank, (0, 0)), folder / f"torch_et_{rank}.json")


def no_observer(folder: Path) -> None:
    write_pairs(JOB, folder, PairOptions(observed_steps=(0, 0)))


def no_profile(folder: Path) -> None:
    (folder / "kineto_trace_1.json").unlink()


def no_operators(folder: Path) -> None:
    host = {"cpu_op", "user_annotation"}
    change_events(folder / "kineto_trace_1.json", lambda events: [e for e in events if e.get("cat") not in host])


def partial(folder: Path) -> None:
    write_pairs(JOB, folder, PairOptions(observed_steps=(0, 2)))


def cut(folder: Path) -> None:
    write_pairs(simulate_profile(SPEC, noise=ProfileNoise(cut_ranks=(1,))), folder)


def lost(folder: Path) -> None:
    """Of all but the first and the last operators, every second one."""

    def without_some(events: list[Event]) -> list[Event]:
        places = [place for place, event in enumerate(events) if event.get("cat") == "cpu_op"]
        gone = set(places[20:-20:2])
        return [event for place, event in enumerate(events) if place not in gone]

    change_events(folder / "kineto_trace_0.json", without_some)


TWO_TRACES = "ranks 0,1: the execution trace and the profiler trace"


@pytest.mark.cases
@pytest.mark.parametrize(
    ("damage", "cause", "n_missing", "said"),
    [
        (
            different_run, f"{TWO_TRACES} come from different runs", 600,
            "0 of 300 operators found (0%), 109 ids under a different name",
        ),
        (no_overlap, f"{TWO_TRACES} cover different steps", 174, "one ended before the other began"),
        (no_observer, "ranks 0,1: the observer did not run while the profiler did", 174, "only while an observer runs"),
        (no_profile, "rank 1: the execution trace has no matching profiler trace", 174, "contain no times"),
        (no_operators, "rank 1: the profiler trace has no operators", 174, "profile with ProfilerActivity.CPU too"),
        (
            partial, "ranks 0,1: the observer recorded more than the profiler", 174,
            "rank 0: 174 of 261 operators found (66%), 87 from before or after the profiler's steps",
        ),
        (cut, "rank 1: the profiler trace is cut off", 40, "rank 1: 134 of 174 operators found (77%)"),
        (
            lost, "rank 0: operators of the execution trace are missing from the profiler trace", 61,
            "many are missing from the profiler trace",
        ),
    ],
    ids=lambda value: value.__name__ if callable(value) else "",
)  # fmt: skip
def test_the_reason_is_told(
    folder: Path, damage: Callable[[Path], None], cause: str, n_missing: int, said: str
) -> None:
    damage(folder)
    [finding] = findings(load(folder), "L501")
    assert finding.title == f"{cause}, so {n_missing} operators have no times"
    assert finding.severity == ("info" if damage is partial else "warning")
    assert finding.certainty == ("likely" if damage is different_run else "certain")
    told = finding.evidence
    assert said in "\n".join((*told.certain, *told.likely, *told.notes, finding.help))
    assert told.facts["why"] == damage.__name__.replace("_", "-")
    assert set(told.facts["link_pct"]) == {str(rank) for rank in finding.ranks}


def test_who_records_no_profile_at_all_is_told_without_a_warning(folder: Path) -> None:
    for rank in JOB.ranks:
        (folder / f"kineto_trace_{rank}.json").unlink()
    trace = load(folder)
    [finding] = findings(trace, "L501")
    assert (finding.severity, finding.evidence.facts["why"], finding.ranks) == ("info", "no-profile", (0, 1))
    checks = {check.rule: check.status for check in run_rules(trace)[2]}
    assert (checks["link-rate-low"], checks["durations-inflated"]) == ("ran", "skipped")


def test_without_numbers_a_low_rate_is_likely_at_most() -> None:
    calls = training(8).calls
    # Names that only the execution trace has, within what is found: nothing is from before or after.
    renamed = [
        replace(call, name="custom::op") if call.name == "aten::t" and place > 10 else call
        for place, call in enumerate(calls)
    ]
    [finding] = findings(trace_of(observed(calls), profiled(renamed, ids="absent")), "L501")
    n_missing = sum(call.name == "custom::op" for call in renamed)
    assert finding.title == f"rank 0: the traces have no common ids, so {n_missing} operators have no times"
    assert (finding.certainty, finding.evidence.facts["why"]) == ("likely", "no-ids")
    assert "a newer torch" in finding.help


def test_ranks_with_the_same_reason_are_one_finding_and_only_the_first_are_listed() -> None:
    calls = training().calls
    trace = trace_of(*(observed(calls, file_id=rank, rank=rank) for rank in range(8)), profiled(calls, file_id=9))
    [finding] = findings(trace, "L501")
    assert finding.ranks == tuple(range(1, 8))
    assert finding.title.startswith("7 ranks (1-7): the execution trace has no matching profiler trace")
    assert len(finding.evidence.certain) == 6
    assert finding.evidence.certain[-1] == "and 2 more"


def test_one_missing_operator_is_no_finding() -> None:
    calls = training(6).calls
    assert not findings(trace_of(observed(calls), profiled([*calls[:7], *calls[8:]])), "L501")


def test_another_size_is_told_with_both_sides(folder: Path) -> None:
    def make_smaller(node: dict[str, Any]) -> None:
        node["inputs"]["values"][0][0][3] = 1000
        for attribute in node["attrs"]:
            if attribute["name"].endswith("msg_nelems"):
                attribute["value"] = 1000

    change_collectives(folder / "torch_et_1.json", make_smaller)
    [finding] = findings(load(folder), "L502")
    large, small = "all_reduce of 100,700,160 bytes (BFloat16)", "all_reduce of 2,000 bytes (BFloat16)"
    assert finding.title == f"rank 0 called {large} where rank 1 called {small}"
    assert (finding.ranks, finding.certainty, finding.severity) == (
        (0, 1),
        "certain",
        "warning",
    )  # nobody is outnumbered
    assert finding.group is not None
    assert (finding.group.name, finding.group.ranks, finding.group.inferred) == ("0", (0, 1), False)
    compared = finding.evidence.comparison
    assert compared is not None
    assert [(side.ranks, side.cells) for side in compared.sides] == [((0,), (large,)), ((1,), (small,))]
    assert finding.evidence.certain


def test_another_operation_is_told(folder: Path) -> None:
    def make_gather(node: dict[str, Any]) -> None:
        if node["name"] == "record_param_comms":
            node["inputs"]["values"][4] = "allgather"
            for attribute in node["attrs"]:
                if attribute["name"] == "collective_name":
                    attribute["value"] = "allgather"
        else:
            node["name"] = "c10d::allgather_"

    change_collectives(folder / "torch_et_1.json", make_gather)
    [finding] = findings(load(folder), "L502")
    assert finding.title.startswith("rank 0 called all_reduce of ")
    assert "where rank 1 called all_gather of " in finding.title


def test_the_odd_one_is_the_culprit(tmp_path: Path) -> None:
    processes = [Process(rank, size=3) for rank in range(3)]
    for process in processes:
        process.all_reduce(10)
        process.all_reduce(30 + (process.rank == 1))
    [finding] = findings(loaded(tmp_path, *processes), "L502")
    assert finding.title == (
        "rank 1 called all_reduce of 124 bytes (Float) where ranks 0,2 called all_reduce of 120 bytes (Float)"
    )
    assert finding.ranks == (1,)
    assert finding.evidence.facts["place"] == 1


@pytest.mark.parametrize(
    ("name", "operation", "direction"), [("c10d::broadcast_", "broadcast", "from"), ("c10d::reduce_", "reduce", "to")]
)
def test_roots_are_told_in_words_that_fit(name: str, operation: str, direction: str, tmp_path: Path) -> None:
    processes = [Process(0), Process(1)]
    for process in processes:
        given: list[Any] = [process.rank, 0] if operation == "broadcast" else [OBJECT, process.rank, 0]
        process.call(name, [Tensor(5)], OBJECT, *given, False, -1)
    [finding] = findings(loaded(tmp_path, *processes), "L502")
    told = [f"{operation} of 20 bytes (Float) {direction} rank {rank}" for rank in (0, 1)]
    assert finding.title == f"rank 0 called {told[0]} where rank 1 called {told[1]}"


def test_calls_of_an_unknown_group_are_not_compared(tmp_path: Path) -> None:
    groups: dict[str, list[int]] = {"0": [], "1": [0, 1]}
    processes = [Process(rank, groups) for rank in range(2)]
    for process in processes:
        process.all_reduce(10)
        process.all_reduce(20 + process.rank)
    assert not findings(loaded(tmp_path, *processes), "L502")


def test_a_group_whose_members_nothing_lists_makes_it_likely(tmp_path: Path) -> None:
    groups: dict[str, list[int]] = {"0": [], "1": [0, 1]}
    processes = [Process(rank, groups) for rank in range(2)]
    for process in processes:
        functional = process.call("_c10d_functional::all_reduce", Tensor(4 + process.rank), "sum", "7")
        process.call("c10d::allreduce_", [Tensor(4 + process.rank)], OBJECT, parent=functional)
    [finding] = findings(loaded(tmp_path, *processes), "L502")
    assert finding.certainty == "likely"
    assert finding.group is not None
    assert finding.group.inferred
    assert not finding.evidence.certain


def as_clean(path: Path, source: Path, times_faster: float) -> None:
    """The same steps, recorded without the observer: no numbers, and all is faster."""
    shutil.copy(source, path)

    def make_clean(events: list[Event]) -> list[Event]:
        for event in events:
            if "Record function id" in event.get("args", {}):
                event["args"]["Record function id"] = 0
            if event.get("cat") in ("cpu_op", "user_annotation"):
                event["dur"] /= times_faster
        return events

    change_events(path, make_clean)


def test_that_the_observer_ran_is_told(folder: Path) -> None:
    [finding] = findings(load(folder), "L503")
    assert finding.title == "ranks 0,1: operators took longer than usual because the observer was running"
    assert (finding.severity, finding.certainty, finding.evidence.facts) == ("info", "certain", {})
    assert "profile two more steps without the observer" in finding.help


def test_clean_steps_in_the_capture_are_taken_and_then_nothing_is_told(folder: Path) -> None:
    as_clean(folder / "kineto_clean_0.json", folder / "kineto_trace_0.json", 4)
    [finding] = findings(load(folder), "L503")
    assert finding.ranks == (1,)
    as_clean(folder / "kineto_clean_1.json", folder / "kineto_trace_1.json", 4)
    assert findings(load(folder), "L503") == []


def test_clean_steps_of_another_process_are_not_taken_unasked(folder: Path) -> None:
    def move(events: list[Event]) -> list[Event]:
        return [event | {"pid": 1} if event.get("cat") in ("cpu_op", "user_annotation") else event for event in events]

    for rank in range(2):
        as_clean(folder / f"kineto_clean_{rank}.json", folder / f"kineto_trace_{rank}.json", 4)
        change_events(folder / f"kineto_clean_{rank}.json", move)
    [finding] = findings(load(folder), "L503")
    assert finding.ranks == (0, 1)


def test_a_second_observed_profile_is_not_clean(folder: Path) -> None:
    """It has numbers, though not those of the execution trace: it was recorded with another observer."""

    def shift(events: list[Event]) -> list[Event]:
        for event in events:
            if "Record function id" in event.get("args", {}):
                event["args"]["Record function id"] += 10**6
                event["dur"] /= 4
        return events

    shutil.copy(folder / "kineto_trace_0.json", folder / "kineto_again_0.json")
    change_events(folder / "kineto_again_0.json", shift)
    [finding] = findings(load(folder), "L503")
    assert finding.evidence.facts == {}


def test_without_numbers_it_is_likely(tmp_path: Path) -> None:
    write_pairs(JOB, tmp_path, PairOptions(with_record_ids=False))
    [finding] = findings(load(tmp_path), "L503")
    assert finding.certainty == "likely"


def test_traces_that_do_not_belong_together_are_not_judged(folder: Path) -> None:
    different_run(folder)
    [skipped] = RULES["L503"].function(load(folder))
    assert skipped == Skipped("no execution trace was recorded together with a profiler trace")


def without_launches(path: Path, keep: int = 0) -> None:
    """Kernels lose the call that launched them and the number of their operator, but for the first ones."""

    def change(events: list[Event]) -> list[Event]:
        kernels = [event for event in events if event.get("cat") in DEVICE]
        kept = {event["args"]["correlation"] for event in kernels[:keep]}
        for kernel in kernels[keep:]:
            kernel["args"].pop("External id", None)
        return [
            event
            for event in events
            if event.get("cat") not in LAUNCHES or event.get("args", {}).get("correlation") in kept
        ]

    change_events(path, change)


def test_kernels_without_launches_are_told(folder: Path) -> None:
    without_launches(folder / "kineto_trace_0.json")
    [finding] = findings(load(folder), "L504")
    assert finding.title == "rank 0: 100% of the kernels belong to no operator"
    assert (finding.ranks, finding.severity) == ((0,), "warning")
    first, second = finding.evidence.certain
    assert first.startswith("62 of 62 kernels have no operator, most often ")
    assert second == "for 62 of these, the runtime call that launched them is missing too"
    assert finding.evidence.facts == {"n_kernels": 62, "n_untied": 62, "n_without_launch": 62}


def test_launches_outside_of_operators_are_counted_apart(folder: Path) -> None:
    """Calls are there, but the operators around them are not, nor their numbers."""

    def change(events: list[Event]) -> list[Event]:
        for event in events:
            if event.get("cat") in DEVICE | LAUNCHES:
                event.get("args", {}).pop("External id", None)
            if event.get("cat") in LAUNCHES:
                event["tid"] = 999_999
        return events

    change_events(folder / "kineto_trace_1.json", change)
    [finding] = findings(load(folder), "L504")
    assert finding.ranks == (1,)
    assert finding.evidence.facts["n_without_launch"] < finding.evidence.facts["n_untied"]


def test_a_few_kernels_of_the_first_moment_are_no_finding(folder: Path) -> None:
    without_launches(folder / "kineto_trace_0.json", keep=54)
    trace = load(folder)
    kernels = [row for row in trace.table("kernels").rows() if row["rank"] == 0]
    assert sum(row["op_id"] < 0 for row in kernels) == 8
    assert not findings(trace, "L504")


def test_profiles_without_an_execution_trace_are_not_judged(folder: Path) -> None:
    """The rank with lost launches has no execution trace, so nothing was to be linked there."""
    without_launches(folder / "kineto_trace_0.json")
    (folder / "torch_et_0.json").unlink()
    assert not findings(load(folder), "L504")


def without_operators(path: Path) -> None:
    """What is left is what every execution trace begins with, and the marks of steps."""
    document = json.loads(path.read_text())
    kept = ("[pytorch", "## ", "ProfilerStep")
    document["nodes"] = [node for node in document["nodes"] if node["name"].startswith(kept)]
    path.write_text(json.dumps(document))


def test_execution_traces_without_operators_are_told(folder: Path) -> None:
    without_operators(folder / "torch_et_1.json")
    trace = load(folder)
    [finding] = findings(trace, "L505")
    assert finding.title == "rank 1: the execution trace has no operators, so nothing can be linked"
    assert (finding.ranks, finding.severity, finding.certainty) == ((1,), "warning", "certain")
    assert findings(trace, "L501") == []
    assert [found.ranks for found in findings(trace, "L503")] == [(0,)]


def test_execution_traces_with_operators_are_in_order(folder: Path) -> None:
    trace = load(folder)
    assert [found for code in ("L501", "L502", "L504", "L505") for found in findings(trace, code)] == []
