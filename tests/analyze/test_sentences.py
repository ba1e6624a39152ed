"""What a verdict says about ranks, sizes and types is true of the tables, whatever went wrong."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from analyze.building import Setting, findings, job
from analyze.sentences import Checker
from analyze.verdicts import Case, first_error
from rankscope import pipeline
from rankscope.model.finding import Finding
from rankscope.model.tables import Trace

DONE = "dp:1 all_reduce [8] done @loop.py:10"
NEXT = "dp:1 all_reduce [8] @loop.py:20"
N_SEEDS = 12


def first(trace: Trace) -> Finding:
    return next(finding for finding in findings(trace) if finding.severity == "error")


@pytest.mark.cases
@pytest.mark.parametrize("kind", ["op", "size", "dtype", "skip", "repeat", "order"])
def test_sentences_about_simulated_faults_are_true(kind: str, tmp_path: Path) -> None:
    false: list[str] = []
    n_judged = 0
    for seed in range(N_SEEDS):
        simulation = Case(seed, kind).simulate()
        if simulation is None:
            continue
        simulation.write(tmp_path / str(seed))
        trace = pipeline.load([tmp_path / str(seed)])
        finding = first_error(pipeline.diagnose(trace))
        if finding is not None and finding.group is not None:
            n_judged += 1
            false += [f"{kind}-{seed}: {problem}" for problem in Checker(trace, finding).problems()]
    assert n_judged >= N_SEEDS / 3
    assert false == []


def calls(*words: str) -> dict[int, list[str]]:
    return {rank: [DONE, f"dp:1 {word}"] for rank, word in enumerate(words)}


R8, R7, B8 = "all_reduce [8]", "all_reduce [7]", "all_reduce [8] bf16"
HAND_MADE = {
    "two members odd in different ways": calls(R8, R7, R8, B8, R8),
    "three sizes": calls(R8, R7, R8, "all_reduce [6]", R8),
    "another operation and another size": calls(R8, "broadcast [8]", R8, R7, R8),
    "two that are odd alike, one in another way": calls(R8, R7, R8, R7, B8, R8, R8),
    "odd alike from two lines": calls(R8, f"{R7} @a.py:1", R8, f"{R7} @a.py:2", R8),
    "no majority, three calls": calls(R8, R7, R8, B8),
    "no majority, the odd one first": calls(R7, R8, R8, B8),
    "eight sizes": calls(*(f"all_reduce [{size}]" for size in range(1, 9))),
    "nine sizes and two alike": calls(*(f"all_reduce [{size}]" for size in range(1, 10)), "all_reduce [9]"),
    "a pair": calls(R8, R7),
    "a pair of types": calls(R8, B8),
    "two against two": calls(R8, "broadcast [8]", R8, "broadcast [8]"),
    "shapes of equal size beside the odd one": calls(R8, "all_reduce [2,4]", R7),
    "uneven parts that do not add up": calls(*(f"all_gather [{part}]->[40]" for part in range(1, 9))),
    "one part that leaves a hole": calls("all_gather [8]->[24]", "all_gather [8]->[24]", "all_gather [5]->[24]"),
    "parts without a majority": calls("all_gather [8]->[24]", "all_gather [7]->[24]", "all_gather [5]->[24]"),
    "an exchange with one odd total": calls(*["all_to_all [8]->[8]"] * 3, "all_to_all [6]->[8]"),
    "an exchange with two odd totals": calls(
        *["all_to_all [8]->[8]"] * 3, "all_to_all [6]->[8]", "all_to_all [9]->[8]"
    ),
    "an exchange without a common total": calls("all_to_all [8]->[8]", "all_to_all [9]->[8]", "all_to_all [6]->[8]"),
    "an exchange of two": calls("all_to_all [8]->[8]", "all_to_all [9]->[8]"),
    "an exchange of many": calls(*["all_to_all [8]->[8]"] * 30, "all_to_all [6]->[8]"),
}


@pytest.mark.parametrize("programs", HAND_MADE.values(), ids=list(HAND_MADE))
def test_sentences_about_hand_made_jobs_are_true(programs: dict[int, list[str]]) -> None:
    trace = job(programs)
    assert Checker(trace, first(trace)).problems() == []


@pytest.mark.parametrize("n_members", [4, 8])
def test_members_without_a_dump_do_not_agree_with_anybody(n_members: int) -> None:
    """A majority of three calls is none of eight members."""
    trace = job(calls(R8, R8, R7), Setting(config={"1": [tuple(range(n_members))]}))
    found = [finding for finding in findings(trace) if finding.rule == "size-mismatch"]
    assert [finding.certainty for finding in found] == ["likely"]
    assert Checker(trace, found[0]).problems() == []
    assert f"2 of the {n_members} members of the group agree" in found[0].evidence.likely[0]


def test_who_fits_neither_side_is_told() -> None:
    finding = first(job(HAND_MADE["two members odd in different ways"]))
    assert finding.title == "rank 1 called all_reduce [7] f32 where 3 of its 4 peers called all_reduce [8] f32"
    assert "rank 3 matches neither side: rank 3 called all_reduce [8] bf16" in finding.evidence.certain


def test_an_exchange_shows_who_sends_and_who_expects_how_much() -> None:
    finding = first(job(HAND_MADE["an exchange with one odd total"]))
    assert finding.ranks == (3,)
    assert finding.title.endswith(
        "send 30 elements in an all_to_all but expect 32: rank 3 sends 6 and expects 8 instead of 8 and 8"
    )
    table = finding.evidence.comparison
    assert table is not None
    assert table.keys == ("0", "1", "2", "3", "all")
    assert [[cell.strip() for cell in side.cells] for side in table.sides] == [
        ["8", "8", "8", "6", "30"],
        ["8", "8", "8", "8", "32"],
    ]
    assert "split_sizes" in finding.help


FALSE = [
    (
        "two members odd in different ways",
        "rank 1 is the odd one out: the other members of the group agree with each other",
    ),
    ("three sizes", "rank 1 called all_reduce with [7] where its 4 peers passed [8]"),
    ("eight sizes", "the group is split evenly and nothing tells which side is right: both are named"),
    ("a pair", "rank 0 called all_reduce with [8] and rank 0 passed [8] at the same position of group 1 (dp)"),
    ("a pair", "ranks 0,1 agree on everything"),
    ("a pair", "at seq 2 of group 1 (dp) the call of rank 1 came from a different line than on its peers"),
    (
        "two that are odd alike, one in another way",
        "at seq 2 of group 1 (dp) the call of rank 1 does not match the call of 4 of its 6 peers",
    ),
]


@pytest.mark.parametrize(("name", "sentence"), FALSE)
def test_the_check_notices_what_is_false(name: str, sentence: str) -> None:
    trace = job(HAND_MADE[name])
    finding = msgspec.structs.replace(first(trace), title=sentence)
    assert Checker(trace, finding).problems() != []
