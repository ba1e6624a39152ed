"""Findings about sends and receives, each from a handful of calls."""

from __future__ import annotations

from analyze.building import Setting, job, root_cause

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
