"""What `make accuracy` counts: its cases can be made, and verdicts that it once found wrong are right."""

from __future__ import annotations

from pathlib import Path

import pytest

from analyze.accuracy import Expected, all_kinds, outcome
from rankscope import pipeline

KINDS = {kind.name: kind for kind in all_kinds() if not kind.is_healthy}


@pytest.mark.parametrize(
    ("name", "seed"),
    [
        ("skip: a rank leaves out one collective and goes on", 10003),  # defect: size-mismatch, after a rare step
        ("skip, dumps damaged", 10003),  # defect: a rank with a cut file was stuck, for certain
    ],
)
def test_a_verdict_that_was_wrong_is_right(name: str, seed: int, tmp_path: Path) -> None:
    expected = KINDS[name].build(seed, tmp_path)
    assert expected is not None
    result = outcome(expected, pipeline.diagnose(pipeline.load([tmp_path])))
    assert (result["right"], result["further"]) == (True, False)


def test_what_is_counted(tmp_path: Path) -> None:
    expected = KINDS["a file of another run or attempt beside the hung job's"].build(10000, tmp_path)
    assert expected is not None
    report = pipeline.diagnose(pipeline.load([tmp_path]))
    assert outcome(expected, report)["right"]
    other_rule = outcome(Expected("collective-stalled", expected.ranks), report)
    assert (other_rule["rank"], other_rule["wrong"]) == (True, False)
    other_rank = outcome(Expected(expected.rule, (2,)), report)
    assert (other_rank["wrong"], other_rank["certain"]) == (True, report.findings[0].certainty == "certain")
    assert outcome(Expected(None, ()), report) == {"alarm": True}
