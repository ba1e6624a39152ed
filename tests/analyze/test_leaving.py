"""A rank with fewer batches is told to have left the loop; a rank that took another branch in it is not."""

from __future__ import annotations

import pytest

from analyze.building import job, root_cause
from rankscope.model.finding import Finding

STEP = ["dp:1 all_reduce done @/job/train.py:40", "dp:1 all_reduce [1] done @/job/train.py:45"]
NEXT = "dp:1 all_reduce @/job/train.py:40"
LEFT = "left the training loop early"


def judged(*odd: str, n_ranks: int = 4, n_steps: int = 6) -> Finding:
    """What is said when rank 2 makes other calls where its peers begin the next step."""
    programs = {rank: [*STEP * n_steps, NEXT] for rank in range(n_ranks)}
    programs[2 % n_ranks] = [*STEP * n_steps, *odd]
    return root_cause(job(programs))


def test_a_rank_at_the_barrier_after_the_loop_has_left_it_early() -> None:
    cause = judged("dp:1 barrier @/job/train.py:90")
    assert (cause.rule, cause.ranks, cause.certainty) == ("op-mismatch", (2,), "likely")  # or it skipped a call
    assert cause.evidence.likely == (
        "rank 2 is the outlier: the other members of the group agree with each other",
        "rank 2 has left the training loop early, with fewer batches than the others: barrier in step (train.py:90) "
        "comes after the loop and was never called before; the usual next call is all_reduce in step (train.py:40)",
    )
    assert cause.help.startswith("give all ranks the same number of batches")


def test_so_has_one_that_reduces_its_last_metric() -> None:
    cause = judged("dp:1 all_reduce [3] @/job/train.py:95")
    assert cause.rule == "size-mismatch"
    assert LEFT in cause.evidence.likely[-1]


def test_in_a_group_of_two_the_past_tells_it() -> None:
    cause = judged("dp:1 barrier @/job/train.py:90", n_ranks=2)
    assert (cause.ranks, cause.certainty) == ((0,), "likely")
    assert LEFT in cause.evidence.likely[-1]


@pytest.mark.parametrize(
    "odd",
    [
        pytest.param(["dp:1 barrier @/job/train.py:43"], id="a branch within the loop"),
        pytest.param(["dp:1 barrier @/job/other.py:90"], id="another file"),
        pytest.param(["dp:1 barrier"], id="no stack"),
        pytest.param(["dp:1 all_gather @/job/train.py:40"], id="the same line"),
        pytest.param(["dp:1 barrier @/job/train.py:90", NEXT], id="it went on with the loop"),
    ],
)
def test_other_odd_calls_are_not_called_so(odd: list[str]) -> None:
    assert not any(LEFT in text for text in judged(*odd).evidence.likely)


def test_a_call_that_peers_made_before_is_not_the_end_of_the_loop() -> None:
    seldom = "dp:1 barrier done @/job/train.py:90"
    programs = {rank: [seldom, *STEP * 6, NEXT] for rank in range(4)}
    programs[2] = [seldom, *STEP * 6, "dp:1 barrier @/job/train.py:90"]
    assert not any(LEFT in text for text in root_cause(job(programs)).evidence.likely)


def test_a_loop_that_had_no_second_step_has_no_usual_call() -> None:
    assert not any(LEFT in text for text in judged("dp:1 barrier @/job/train.py:90", n_steps=1).evidence.likely)
