"""When two calls of one collective fit each other: by the rules of each operation."""

from __future__ import annotations

import pytest

from analyze.building import job
from rankscope.analyze.hangs.signatures import Signatures
from rankscope.analyze.hangs.view import job_view


def signatures_of_pair(first: str, second: str) -> Signatures:
    return job_view(job({0: [f"dp:1 {first}"], 1: [f"dp:1 {second}"]})).signatures


def fit(first: str, second: str) -> bool:
    whole = signatures_of_pair(first, second).whole
    return bool(whole[0] == whole[1])


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("all_reduce [8,4]", "all_reduce [32]"),
        ("all_reduce_coalesced [8][4]", "all_reduce_coalesced [2,4][4]"),
        ("broadcast [8]", "broadcast [8]"),
        # The sides of an even gather agree in part and whole; a list of outputs is as good as one large one.
        ("all_gather [8]->[16]", "all_gather [8]->[8][8]"),
        # Uneven parts are fine as long as the whole agrees, also where one of them happens to divide it.
        ("all_gather [3]->[3][5]", "all_gather [5]->[3][5]"),
        ("all_gather [2]->[2][6]", "all_gather [6]->[2][6]"),
        ("all_gather_into_tensor_coalesced [8]->[16]", "all_gather_into_tensor_coalesced [4,2]->[16]"),
        ("reduce_scatter [16]->[8]", "reduce_scatter [8][8]->[8]"),
        ("reduce_scatter [3][5]->[3]", "reduce_scatter [3][5]->[5]"),
        # Only the root of a gather has outputs, only that of a scatter inputs.
        ("gather [8]->[8][8]", "gather [8]->"),
        ("scatter [8][8]->[8]", "scatter ->[8]"),
        ("all_to_all [3][5]->[3][4]", "all_to_all [4][4]->[5][4]"),
        ("barrier", "barrier"),
        ("barrier [1] f32", "barrier"),
        ("something_new [8]", "something_new [9]"),
    ],
)
def test_calls_that_fit(first: str, second: str) -> None:
    assert fit(first, second)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("all_reduce [8]", "all_reduce [9]"),
        ("all_reduce [8]", "all_reduce [8] bf16"),
        ("all_reduce_coalesced [8][4]", "all_reduce_coalesced [4][8]"),
        ("broadcast [8]", "broadcast [4]"),
        ("reduce [8]", "reduce [4]"),
        ("all_gather [8]->[16]", "all_gather [9]->[18]"),
        ("all_gather [3]->[3][5]", "all_gather [5]->[3][6]"),
        ("reduce_scatter [16]->[8]", "reduce_scatter [18]->[9]"),
        ("reduce_scatter [3][5]->[3]", "reduce_scatter [3][6]->[6]"),
        ("gather [8]->[8][8]", "gather [9]->"),
        ("scatter [8][8]->[8]", "scatter ->[9]"),
        ("all_to_all [8]->[8]", "all_to_all [8]->[8] i64"),
        ("something_new [8]", "something_new [8] bf16"),
        ("all_reduce [8]", "reduce [8]"),
    ],
)
def test_calls_that_do_not_fit(first: str, second: str) -> None:
    assert not fit(first, second)


def test_the_parts_of_a_signature_tell_what_differs() -> None:
    def differing(first: str, second: str) -> list[str]:
        codes = signatures_of_pair(first, second)
        return [name for name in ("op", "size", "dtype") if getattr(codes, name)[0] != getattr(codes, name)[1]]

    assert differing("all_reduce [8]", "reduce [8]") == ["op"]
    assert differing("all_reduce [8]", "all_reduce [9]") == ["size"]
    assert differing("all_reduce [8]", "all_reduce [8] bf16") == ["dtype"]


def test_only_the_users_lines_make_the_point_of_a_call() -> None:
    codes = signatures_of_pair("all_reduce @a.py:1", "all_reduce @a.py:2")
    assert codes.whole[0] == codes.whole[1]
    assert codes.point[0] != codes.point[1]
    assert codes.token[0] != codes.token[1]
    same = signatures_of_pair("all_reduce @a.py:1", "all_reduce @a.py:1")
    assert same.token[0] == same.token[1]


def test_calls_without_stacks_are_at_no_point_and_still_compared() -> None:
    codes = signatures_of_pair("all_reduce [8]", "all_reduce [8] @a.py:1")
    assert codes.whole[0] == codes.whole[1]
    assert codes.point[0] != codes.point[1]
