"""H110 and H111: aborted calls are called by their name, and how far each group came."""

from __future__ import annotations

from analyze.building import TIMEOUT_NS, Setting, effects, findings, found, job, root_cause


def test_completions_after_the_timeout_are_reported_as_aborted() -> None:
    hangs = ["dp:1 all_reduce done", "dp:1 all_reduce aborted @loop.py:4"]
    trace = job({0: hangs, 1: hangs, 2: hangs[:1]})
    finding = found(trace, "H110")
    assert finding.severity == "info"
    assert (
        finding.title
        == "2 calls of 2 ranks ended only after the timeout of 10 min 0 s: they were aborted and did not complete"
    )
    assert finding.evidence.facts == {"n_calls": 2, "ranks": [0, 1]}
    # And the verdict is what it would be had they never ended, waited in for the time-out.
    cause = root_cause(trace)
    assert (cause.rule, cause.ranks, cause.evidence.waiting_ns) == ("rank-stuck", (2,), TIMEOUT_NS)


def test_honest_completions_are_not() -> None:
    calls = ["dp:1 all_reduce done"]
    assert findings(job({0: calls, 1: calls})) == []


def test_the_first_unfinished_collective_of_each_group_is_listed_beside_the_cause() -> None:
    programs = {
        0: ["dp:1 all_reduce [8] done", "dp:1 all_reduce [8]", "dp:1 all_reduce [8]"],
        1: ["dp:1 all_reduce [8] done"],
        2: ["tp:2 barrier"],
        3: [],
    }
    trace = job(programs, Setting(config={"1": [(0, 1)], "2": [(2, 3)]}))
    (status,) = [finding for finding in effects(trace) if finding.code == "H111"]
    assert status.title.startswith(
        "2 groups have an unfinished collective; the oldest is barrier of group 2 (tp), seq 1"
    )
    comparison = status.evidence.comparison
    assert comparison is not None
    assert comparison.keys == ("group 2 (tp)", "group 1 (dp)")
    assert [side.cells for side in comparison.sides] == [
        ("seq 1  barrier", "seq 2  all_reduce [8] f32"),
        ("1 of 2", "1 of 2"),
    ]


def test_the_status_is_an_effect_of_the_cause() -> None:
    trace = job({0: ["dp:1 all_reduce"], 1: []}, Setting(config={"1": [(0, 1)]}))
    assert [finding.code for finding in findings(trace)] == ["H105"]
    assert "H111" in [finding.code for finding in effects(trace)]
