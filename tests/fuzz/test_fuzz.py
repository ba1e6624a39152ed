"""A few thousand hostile inputs over all formats; `make fuzz` tries 100,000."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from fuzz.run import SLOW, counted, table
from fuzz.trying import formats, problem_of

N_QUICK, N_INPUTS = 40, 240  # of each format; of slow ones as many as take the same time


def assert_none_harms(name: str, first: int, last: int, folder: Path) -> None:
    """No traceback, no hang, no flood, and no file that is dropped untold."""
    share = SLOW.get(name, 1)
    for seed in range(first // share, last // share):
        assert problem_of(name, seed, folder) is None


@pytest.mark.parametrize("name", formats())
def test_hostile_inputs_give_a_report_or_a_clear_error(name: str, tmp_path: Path) -> None:
    assert_none_harms(name, 0, N_QUICK, tmp_path / "job")


@pytest.mark.slow
@pytest.mark.parametrize("name", formats())
def test_more_hostile_inputs_do_too(name: str, tmp_path: Path) -> None:
    assert_none_harms(name, N_QUICK, N_INPUTS, tmp_path / "job")


def test_slices_add_up() -> None:
    first, second = (table(Counter(desync=1_200, nsys=n), Counter(desync=1)) for n in (30, 4))
    assert counted(first + second) == (Counter(desync=2_400, nsys=34), Counter(desync=2, nsys=0))
