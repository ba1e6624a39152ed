"""The user's own code among the traced Python functions."""

from __future__ import annotations

import duckdb
import pytest

from rankscope.analyze.host.python_frames import is_own, location_of
from rankscope.model.finding import Location


@pytest.mark.parametrize(
    ("name", "is_users"),
    [
        ("train.py(12): step", True),
        ("/home/me/job/model.py(7): forward", True),
        ("/usr/lib/python3.11/json/decoder.py(337): decode", False),
        ("/opt/site/torch/nn/modules/module.py(1): _call_impl", False),
        ("threading.py(1): run", False),
        ("<built-in function sleep>", False),
        ("nn.Module: Linear_0", False),
    ],
)
def test_which_functions_are_the_users_own(name: str, is_users: bool) -> None:
    [(found,)] = duckdb.execute(f"SELECT {is_own('name')} FROM (SELECT ? AS name)", [name]).fetchall()
    assert found is is_users


def test_a_function_has_a_place_in_the_code() -> None:
    assert location_of("a (b)/train.py(12): step") == Location("a (b)/train.py", 12, "step")
    assert location_of("<built-in function sleep>") is None
