"""Findings about sends and receives, each from a handful of calls."""

from __future__ import annotations

from analyze.building import Setting, findings, job, root_cause

PAIR = Setting(config={"4": [(0, 1)]})


def test_a_transfer_of_another_size_names_both_shapes() -> None:
    finding = root_cause(
        job({0: ["pp:4 send>1 [8] f32 waiting @p.py:3"], 1: ["pp:4 recv<0 [9] f32 waiting @p.py:7"]}, PAIR)
    )
    assert finding.rule == "size-mismatch"
    assert finding.title == "rank 0 sends [8], but rank 1 expects [9]"


def test_a_transfer_of_another_type_is_no_matter_of_size() -> None:
    finding = root_cause(
        job({0: ["pp:4 send>1 [8] f32 waiting @p.py:3"], 1: ["pp:4 recv<0 [8] bf16 waiting @p.py:7"]}, PAIR)
    )
    assert finding.rule == "dtype-mismatch"
    assert finding.title == "rank 0 sends f32, but rank 1 expects bf16"


def test_a_rank_that_never_answers_a_transfer_is_told_from_its_peer() -> None:
    before = "dp:5 all_reduce [1] f32 done @p.py:1"
    setting = Setting(config={"4": [(0, 1)], "5": [(0, 1)]})
    finding = root_cause(job({0: [before, "pp:4 send>1 [8] f32 waiting @p.py:3"], 1: [before]}, setting))
    assert finding.ranks == (1,)
    assert finding.title == "rank 1 never answered rank 0, which is waiting in send [8] f32 to rank 1"


def test_a_receive_from_nobody_known_is_still_reported() -> None:
    trace = job({0: ["pp:4 recv<9 [8] f32 waiting @p.py:3"], 1: ["pp:4 all_reduce [1] f32 done @p.py:9"]}, PAIR)
    finding = root_cause(trace)
    assert (finding.rule, finding.ranks, finding.certainty) == ("p2p-unmatched", (0,), "possible")


def test_the_end_of_a_cut_dump_may_be_a_part_of_a_batch_and_waits_in_nothing() -> None:
    """Defect: of a healthy job it was said that a rank never answered, as the batch's last entry was cut off."""
    programs = {
        0: ["pp:1 all_reduce done", "pp:1 recv<1 done", "pp:1 all_reduce done"],
        1: ["pp:1 all_reduce done", "pp:1 send>0 done", "pp:1 send>0"],
    }
    errors = [each for each in findings(job(programs, Setting(damaged=frozenset({1})))) if each.severity == "error"]
    assert errors == []
    assert [each.rule for each in findings(job(programs)) if each.severity == "error"] != []


def test_two_ranks_that_each_wait_for_the_other_after_a_transfer_that_worked_are_both_named() -> None:
    programs = {
        0: ["pp:1 send>1 done @s.py:1", "pp:1 recv<1 @s.py:2"],
        1: ["pp:1 recv<0 done @s.py:3", "pp:1 recv<0 @s.py:3"],
    }
    finding = root_cause(job(programs))
    assert (finding.rule, finding.ranks, finding.certainty) == ("p2p-unmatched", (0, 1), "likely")
    assert finding.title == "rank 0 did not make its send to rank 1, or rank 1 its send to rank 0: both are waiting"
    assert finding.evidence.facts["missing"] == [
        {"rank": 1, "op": "send", "peer": 0},
        {"rank": 0, "op": "send", "peer": 1},
    ]


def test_a_rank_that_left_its_only_earlier_step_is_named_for_the_transfer_that_is_missing() -> None:
    step = {
        0: ["pp:1 send>1 done @s.py:1", "pp:1 send>1 done @s.py:1", "pp:1 recv<1 done @s.py:2", "w:0 all_reduce done"],
        1: ["pp:1 recv<0 done @s.py:3", "pp:1 recv<0 done @s.py:3", "pp:1 send>0 done @s.py:4", "w:0 all_reduce done"],
    }
    programs = {
        0: [*step[0], "pp:1 send>1 done @s.py:1", "pp:1 recv<1 @s.py:2"],
        1: [*step[1], "pp:1 recv<0 done @s.py:3", "pp:1 recv<0 @s.py:3"],
    }
    finding = root_cause(job(programs))
    assert (finding.rule, finding.ranks, finding.certainty) == ("p2p-unmatched", (0,), "likely")
    assert finding.title == "rank 0 skipped its send to rank 1 in step (s.py:1); rank 1 is waiting for it"


def test_a_rank_that_only_a_transfer_waits_for_is_not_certainly_stuck() -> None:
    programs = {0: ["w:0 all_reduce done @s.py:1"], 1: ["w:0 all_reduce done @s.py:1", "pp:1 recv<0 @s.py:2"]}
    finding = root_cause(job(programs, Setting(config={"0": [(0, 1)], "1": [(0, 1)]})))
    assert (finding.rule, finding.ranks, finding.certainty) == ("rank-stuck", (0,), "likely")
