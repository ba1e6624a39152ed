"""C401 to C403 on chains made by hand: who is told, what it cost, why, and what to do."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest

from analyze.compile.building import (
    FILE,
    SECOND,
    Made,
    compiled,
    effects,
    findings,
    frame,
    guard_failed,
    log,
    size_changed,
    symbol,
    trace_of,
)
from rankscope.model.finding import Location

LIMIT = (
    "Dynamo recompile limit exceeded\n  Explanation: Dynamo attempted to recompile the code object too many times, "
    "exceeding the recompile_limit cache size limit (currently set to 3)."
)


def sizes(*values: int, rank: int = 0) -> list[Made]:
    """One version per size, each made because the size before it was another."""
    made = [compiled(f"0/{number}", rank=rank, seconds=number + 1) for number in range(len(values))]
    return made + [
        size_changed(f"0/{number + 1}", old, new, rank=rank) for number, (old, new) in enumerate(pairwise(values))
    ]


def refused(number: int, reason: str = LIMIT, fail_type: str = "Unsupported", rank: int = 0) -> Made:
    told: dict[str, Any] = {"status": "failed", "fail_type": fail_type, "fail_reason": reason}
    return compiled(f"0/{number}", rank=rank, seconds=0, **told)


def test_a_chain_is_one_finding_with_the_guard_of_every_version() -> None:
    [finding] = findings(trace_of(*sizes(2, 3, 4, 5)), "C402")
    assert finding.severity == "warning"
    assert finding.title == "step was recompiled 3 times (9.0 s): the size of x (dimension 0) changed: 2, 3, 4, 5"
    assert finding.location == Location(FILE, 10, "step")
    assert finding.evidence.cost_ns == 9 * SECOND  # versions 1, 2 and 3 took 2, 3 and 4 seconds; the first is no loss
    assert finding.evidence.comparison
    assert finding.evidence.comparison.keys == ("0/0", "0/1", "0/2", "0/3")
    reasons, took = finding.evidence.comparison.sides
    assert reasons.cells == ("first version", "x.size(0): 2 -> 3", "x.size(0): 3 -> 4", "x.size(0): 4 -> 5")
    assert took.cells == ("1.0 s", "2.0 s", "3.0 s", "4.0 s")
    assert "mark_dynamic(x, 0)" in finding.help


def test_one_more_version_that_is_dynamic_is_how_torch_works() -> None:
    [finding] = findings(trace_of(*sizes(8, 9), symbol("0/1", "L['x'].size()[0]", "9")), "C402")
    assert finding.severity == "info"
    assert any("dynamic" in note for note in finding.evidence.notes)


def test_the_symbol_must_be_of_the_size_that_changed() -> None:
    trace = trace_of(*sizes(8, 9, 10), symbol("0/1", "L['x'].size()[1]", "9"), symbol("0/2", "L['y'].size()[0]", "9"))
    [finding] = findings(trace, "C402")
    assert finding.severity == "warning"


def test_the_guard_of_the_newest_version_counts_whatever_the_order() -> None:
    older = guard_failed("0/2", "0/0", "n == 1", cause="value", subject="n", expected="1")
    newest = guard_failed("0/2", "0/1", "mode == 'b'", cause="value", subject="mode", expected="'b'")
    first = guard_failed("0/1", "0/0", "mode == 'a'", cause="value", subject="mode", expected="'a'")
    versions = [compiled("0/0"), compiled("0/1"), compiled("0/2")]
    for rows in ((first, older, newest), (first, newest, older)):
        [finding] = findings(trace_of(*versions, *rows), "C402")
        assert "the value of mode changed: 'a', 'b'" in finding.title
        assert finding.evidence.comparison
        # What 0/1 was made for is what its own guard expects later on.
        cells = finding.evidence.comparison.sides[0].cells
        assert cells[1:] == ("mode: 'a' -> 'b'", "mode: 'b' -> other")


@pytest.mark.parametrize(
    ("told", "phrase", "step"),
    [
        ({"cause": "dtype", "subject": "x", "expected": "Float"}, "the dtype of x changed", "one dtype"),
        ({"cause": "gradient", "subject": "x"}, "whether x requires gradients changed", "requires_grad"),
        ({"cause": "rank", "subject": "x", "expected": "1"}, "the number of dimensions of x", "number of dimensions"),
        ({"cause": "identity", "subject": "f"}, "f was a different object", "outside the loop"),
        ({"cause": "keys", "subject": "batch"}, "the length or the keys of batch", "same length and keys"),
        ({"cause": "state", "guard": "GLOBAL_STATE changed: grad_mode "}, "(grad_mode)", "gradient mode"),
        ({"cause": "value", "subject": "n", "expected": "2", "actual": "3"}, "the value of n", "as a tensor"),
        ({"cause": "value", "subject": "self.n", "expected": "2", "actual": "3"}, "self.n", "allow_unspec_int"),
        ({"cause": "value", "subject": "mode", "expected": "'a'"}, "the value of mode", "for each value of mode"),
        ({"cause": "value", "subject": "___stack0", "expected": "2"}, "crosses a graph break", "graph break"),
        ({"cause": "other", "guard": "len(x) > y"}, "`len(x) > y` did not hold", "the same on every call"),
    ],
)
def test_each_kind_of_cause_has_its_own_words_and_next_step(told: dict[str, Any], phrase: str, step: str) -> None:
    row = {"guard": "g"} | told
    failed = guard_failed("0/1", "0/0", row.pop("guard"), **row)
    [finding] = findings(trace_of(compiled("0/0"), compiled("0/1"), failed), "C402")
    assert phrase in finding.title
    assert step in finding.help


def test_the_line_of_the_guard_is_the_place_where_it_is_told() -> None:
    failed = guard_failed("0/1", "0/0", "n == 1", cause="value", subject="n", file="model.py", line=44)
    [finding] = findings(trace_of(compiled("0/0"), compiled("0/1"), failed), "C402")
    assert finding.location == Location("model.py", 44, "step")


def test_ranks_that_do_the_same_are_one_finding() -> None:
    [finding] = findings(trace_of(*(row for rank in range(4) for row in sizes(2, 3, 4, rank=rank))), "C402")
    assert finding.ranks == (0, 1, 2, 3)
    assert "on the slowest rank" in finding.title
    assert finding.evidence.cost_ns == 5 * SECOND


def test_a_rank_with_another_cause_has_a_finding_of_its_own() -> None:
    odd = guard_failed("0/1", "0/0", "mode == 'a'", rank=2, cause="value", subject="mode", expected="'a'")
    made = [*sizes(2, 3), *sizes(2, 3, rank=1), compiled("0/0", rank=2), compiled("0/1", rank=2), odd]
    assert {finding.ranks for finding in findings(trace_of(*made), "C402")} == {(0, 1), (2,)}


def test_runs_are_not_mixed() -> None:
    other = [(table, row | {"file_id": 7}) for table, row in sizes(2, 3)]
    trace = trace_of(log(0, run=0), log(7, run=1), *sizes(2, 3), *other)
    assert [finding.evidence.facts["n_recompiles"] for finding in findings(trace, "C402")] == [{"0": 1}, {"0": 1}]


def test_behind_a_graph_break_the_function_is_the_one_that_was_cut() -> None:
    resumed: dict[str, Any] = {"function": "torch_dynamo_resume_in_step_at_14", "line": 14}
    made = [compiled("0/0"), compiled("1/0", **resumed), compiled("1/1", **resumed), size_changed("1/1", 2, 3)]
    [finding] = findings(trace_of(*made), "C402")
    assert finding.title.startswith("step was recompiled once")
    assert finding.location == Location(FILE, 10, "step")


def test_ids_that_are_given_again_after_a_reset_are_not_recompilations() -> None:
    assert findings(trace_of(compiled("0/0"), compiled("0/0", function="other", record=50)), "C402") == []


def test_modules_that_share_torchs_wrapper_are_not_a_warning() -> None:
    wrapper: dict[str, Any] = {"function": "inner", "file": "torch/_dynamo/external_utils.py", "line": 67}
    made: list[Made] = []
    for number in range(4):
        made.append(compiled(f"0/{number}", **wrapper))
        made.append(frame(f"0/{number}", 0, FILE, 20, "main", is_user=True))
        made.append(frame(f"0/{number}", 1, wrapper["file"], 67, "inner", is_user=False))
        if number:
            made.append(guard_failed(f"0/{number}", f"0/{number - 1}", "id", cause="identity", subject="fn"))
    [finding] = findings(trace_of(*made), "C402")
    assert (finding.severity, finding.location) == ("info", Location(FILE, 20, "main"))
    assert "a different module or function was compiled" in finding.title


def test_the_limit_is_the_finding_and_the_recompilations_its_effect() -> None:
    trace = trace_of(*sizes(2, 3, 4), refused(3), size_changed("0/3", 4, 5))
    [finding] = findings(trace, "C401")
    assert finding.severity == "warning"
    assert "reached the recompile limit of 3" in finding.title
    assert "recompile_limit above 3" in finding.help
    assert findings(trace, "C402") == []
    [effect] = effects(trace, "C402")
    assert "recompiled twice" in effect.title


@pytest.mark.parametrize("reason", ["cache_size_limit reached", "accumulated_cache_size_limit reached"])
def test_old_torch_words_the_limit_otherwise(reason: str) -> None:
    [finding] = findings(trace_of(*sizes(2, 3), refused(2, reason)), "C401")
    assert "reached the recompile limit:" in finding.title


def test_with_fullgraph_the_limit_is_an_error() -> None:
    refusal = refused(2, "Hard failure due to fullgraph=True", "FailOnRecompileLimitHit")
    [finding] = findings(trace_of(*sizes(2, 3), refusal), "C401")
    assert finding.severity == "error"
    assert "the call failed" in finding.title


def test_only_ranks_that_reached_the_limit_are_named() -> None:
    trace = trace_of(*sizes(2, 3), *sizes(2, 3, rank=1), refused(2, rank=1), size_changed("0/2", 3, 4, rank=1))
    assert [finding.ranks for finding in findings(trace, "C401")] == [(1,)]
    assert [finding.ranks for finding in findings(trace, "C402")] == [(0,)]


def test_text_logs_tell_the_limit_in_a_warning() -> None:
    message = "torch._dynamo hit config.recompile_limit (3)\n   function: 'step' (train.py:10)\n   last reason: x"
    line = {"file_id": 0, "rank": 0, "compile_id": "0/2", "message": message}
    rows = [row for row in sizes(2, 3, 4) if row[0] == "recompiles"]
    trace = trace_of(*rows, ("log_lines", line))
    [finding] = findings(trace, "C401")
    assert finding.location == Location(FILE, 10, "step")
    assert "limit of 3" in finding.title
    assert finding.evidence.cost_ns is None


def test_long_chains_are_cut_in_the_middle() -> None:
    [finding] = findings(trace_of(*sizes(*range(30))), "C402")
    assert finding.evidence.comparison
    assert len(finding.evidence.comparison.keys) == 13
    assert finding.evidence.comparison.keys[6] == "..."
    assert finding.evidence.comparison.sides[0].cells[6] == "18 more"


def pinned(compile_id: str = "0/0", *, kind: str = "specialization", rank: int = 0, **columns: Any) -> Made:
    row = {"file_id": rank, "rank": rank, "compile_id": compile_id, "kind": kind, "symbol": "s0", "value": "48"}
    place = {"source": "L['x'].size()[0]", "file": FILE, "line": 13, "function": "step", "code": "if n == 48:"}
    return "guards", row | place | columns


def test_a_dimension_made_constant_is_told_with_its_line() -> None:
    known = symbol("0/0", "L['x'].size()[0]", "48")
    trace = trace_of(*sizes(48, 49), known, pinned())
    [finding] = findings(trace, "C403")
    assert finding.severity == "warning"
    assert finding.title.startswith("dimension 0 of x should be dynamic, but this line fixes it to 48")
    assert finding.location == Location(FILE, 13, "step")
    assert finding.evidence.cost_ns == 2 * SECOND
    assert findings(trace, "C402") == []  # told as what follows from it
    assert len(effects(trace, "C402")) == 1


def test_a_guard_that_leaves_one_value_is_enough() -> None:
    guard = pinned(kind="guard", symbol="", source="", value="", expression="Eq(s0, 48)")
    [finding] = findings(trace_of(compiled("0/0"), symbol("0/0", "L['x'].size()[0]", "48"), guard), "C403")
    assert finding.severity == "info"  # it was never called with another size
    assert "dimension 0 of x" in finding.title
    assert "48" in finding.title


@pytest.mark.parametrize("expression", ["Eq(s0, s1)", "Ne(s0, 48)", "Eq(Mod(s0, 8), 0)", "s0 <= 48"])
def test_other_guards_pin_nothing(expression: str) -> None:
    guard = pinned(kind="guard", symbol="", source="", value="", expression=expression)
    assert findings(trace_of(compiled("0/0"), symbol("0/0", "L['x'].size()[0]", "48"), guard), "C403") == []


def test_both_records_of_one_decision_and_all_attempts_are_one_finding() -> None:
    guard = pinned(kind="guard", symbol="", source="", value="", expression="Eq(s0, 48)")
    trace = trace_of(compiled("0/0"), symbol("0/0", "L['x'].size()[0]", "48"), guard, pinned(), pinned(attempt=1))
    [finding] = findings(trace, "C403")
    assert "the guard is Eq(s0, 48)" in finding.evidence.certain


def test_ranks_that_share_one_captured_text_are_told_apart() -> None:
    """Both wrote 0/0 and 0/1 into the file, of which the text names neither code nor time."""
    untold: dict[str, Any] = {"file_id": 0, "file": "", "function": "", "line": -1, "duration_ns": -1}
    guards = [
        size_changed("0/1", 2, 3, rank=0),
        guard_failed("0/1", "0/0", "n == 1", rank=1, cause="value", subject="n"),
    ]
    rows = [(table, row | {"file_id": 0, "file": FILE, "line": 12, "function": "step"}) for table, row in guards]
    logs = [log(0, rank=rank, source="text") for rank in (0, 1)]
    made = [*logs, *(compiled("0/1", rank=rank, **untold) for rank in (0, 1)), *rows]
    found = findings(trace_of(*made), "C402")
    assert [(finding.ranks, "size of x" in finding.title) for finding in found] == [((0,), True), ((1,), False)]
    assert all(finding.title.startswith("step was recompiled once") for finding in found)


def test_ids_that_come_again_after_a_reset_are_paid_once() -> None:
    made = []
    for round_ in range(3):
        record = 10 * round_
        made += [compiled("0/0", record=record, seconds=2), compiled("0/1", record=record + 1, seconds=1)]
    made += [size_changed("0/1", 4, 6)]
    [finding] = findings(trace_of(*made), "C402")
    assert finding.evidence.cost_ns == 3 * SECOND  # of nine in all
