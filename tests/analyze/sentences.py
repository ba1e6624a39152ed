"""Reads the sentences of a finding back, and compares them with the calls that the tables hold."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from rankscope.model.call_text import count_elements, decode_shapes, describe_shapes, describe_types
from rankscope.model.finding import Finding
from rankscope.model.tables import Trace

# Words that claim that ranks are alike, or how they are divided: a sentence with one must be of a shape below.
_STATES_AGREEMENT = re.compile(
    r"agree|evenly|majority|peers|the others\b|the other (?:\d|rank)|outlier|the same op|different calls"
)


@dataclass(frozen=True)
class Call:
    rank: int
    op: str
    inputs: str
    outputs: str
    size: str
    dtype: str
    line: int
    stack: int
    is_done: bool

    @property
    def text(self) -> str:
        return " ".join(part for part in (self.op, self.size, self.dtype) if part)

    @property
    def amounts(self) -> tuple[int, int]:
        given, taken = (count_elements(decode_shapes(side)) for side in (self.inputs, self.outputs))
        return given, taken

    def says(self, text: str) -> bool:
        """Whether the call is, or passed, what the text says."""
        what = (self.op, self.size, self.dtype, self.text, f"{self.amounts[0]:,} element")
        return text.removesuffix("s") in what or text in what


class Checker:
    """What is false in the sentences of one finding."""

    def __init__(self, trace: Trace, finding: Finding) -> None:
        assert finding.group is not None
        self.finding = finding
        self.members = finding.group.ranks
        self.rows = list(trace.table("collectives").rows())
        self.calls = self.calls_at(finding.group.name, finding.collective.seq if finding.collective else 0)

    def calls_at(self, group: str, seq: int) -> dict[int, Call]:
        newest = {
            row["rank"]: row["group_id"]
            for row in self.rows
            if row["group_name"] == group and not row["is_p2p"] and row["rank"] in self.members and row["seq"] == seq
        }
        return {
            row["rank"]: _call(row)
            for row in self.rows
            if row["group_id"] == newest.get(row["rank"], -1) and row["seq"] == seq and not row["is_p2p"]
        }

    def problems(self) -> list[str]:
        evidence = self.finding.evidence
        said = (self.finding.title, *evidence.certain, *evidence.likely, *evidence.notes)
        return [f"{sentence!r}: {problem}" for sentence in said for problem in self._false(sentence)]

    def _false(self, sentence: str) -> Iterable[str]:
        for pattern, check in _SHAPES.items():
            found = re.fullmatch(pattern, sentence)
            if found:
                try:
                    is_true = check(self, found)
                except KeyError as error:
                    yield f"names rank {error}, which made no call there"
                    return
                if not is_true:
                    yield f"false of {sorted((call.rank, call.text) for call in self.calls.values())}"
                return
        if _STATES_AGREEMENT.search(sentence):
            yield "states agreement in words that this test cannot read"

    def of(self, ranks: Iterable[int]) -> list[Call]:
        return [self.calls[rank] for rank in ranks]

    def apart(self, ranks: Iterable[int]) -> list[Call]:
        left_out = set(ranks)
        return [call for rank, call in self.calls.items() if rank not in left_out]


def ranks_in(text: str) -> list[int]:
    """`rank 3`, `ranks 1,2`, `8 ranks (0-7)`: the ranks, all of them."""
    inside = re.search(r"\((.*)\)", text)
    listed = inside[1] if inside else text.split()[1]
    assert "..." not in listed, text
    ranks: list[int] = []
    for part in listed.split(","):
        first, _, last = part.partition("-")
        ranks += range(int(first), int(last or first) + 1)
    assert not inside or len(ranks) == int(text.split()[0])
    return ranks


def _call(row: dict[str, Any]) -> Call:
    return Call(
        row["rank"],
        row["op"],
        row["input_sizes"],
        row["output_sizes"],
        describe_shapes(row["input_sizes"], row["output_sizes"]),
        describe_types(row["input_dtypes"], row["output_dtypes"]),
        row["site_id"],
        row["stack_id"],
        row["status"] == "done",
    )


def fits(one: Call, other: Call) -> bool:
    """By what the simulator and the hand-made jobs do: equal numbers of elements of equal types, both sides."""
    return (one.op, one.amounts) == (other.op, other.amounts) and (
        one.dtype == other.dtype or not one.dtype or not other.dtype
    )


RANKS = r"(ranks? [\d,-]+|\d+ ranks \([\d,-]+\))"
PEERS = r"(rank \d+|(?:its|their) \d+ peers?|\d+ of (?:its|their) \d+ peers)"


def _one_against_peers(checker: Checker, said: re.Match[str]) -> bool:
    ranks, mine, peers, theirs = ranks_in(said[1]), said["mine"], said["peers"], said["theirs"]
    if tuple(ranks) != checker.finding.ranks or not all(call.says(mine) for call in checker.of(ranks)):
        return False
    saying = [call for call in checker.apart(ranks) if call.says(theirs)]
    numbers = [int(number) for number in re.findall(r"\d+", peers)]
    if peers.startswith("rank"):
        return [call.rank for call in saying] == numbers
    return len(saying) == numbers[0] and len(checker.apart(ranks)) == numbers[-1]


def _tie(checker: Checker, said: re.Match[str]) -> bool:
    one, other = checker.calls[int(said[1])], checker.calls[int(said[3])]
    return one.rank != other.rank and one.says(said["mine"]) and other.says(said["theirs"]) and not fits(one, other)


def _classes(calls: Iterable[Call]) -> Counter[tuple[Any, ...]]:
    return Counter((call.op, call.amounts, call.dtype) for call in calls)


def _different_calls(checker: Checker, said: re.Match[str]) -> bool:
    return ranks_in(said[1]) == sorted(checker.calls) and int(said[2]) == len(_classes(checker.calls.values()))


def _exchange(checker: Checker, said: re.Match[str]) -> bool:
    sums = [f"{sum(call.amounts[side] for call in checker.calls.values()):,}" for side in (0, 1)]
    if int(said[1]) != len(checker.calls) or [said[2], said[3]] != sums or sums[0] == sums[1]:
        return False
    odd = said[4] or ""
    amounts = re.fullmatch(
        f": {RANKS} (?:sends|each send) ([\\d,]+) and expects? ([\\d,]+) instead of ([\\d,]+) and ([\\d,]+)", odd
    )
    if amounts:
        ranks = ranks_in(amounts[1])
        mine = {tuple(f"{amount:,}" for amount in call.amounts) for call in checker.of(ranks)}
        theirs = {tuple(f"{amount:,}" for amount in call.amounts) for call in checker.apart(ranks)}
        return mine == {(amounts[2], amounts[3])} and theirs == {(amounts[4], amounts[5])}
    several = re.fullmatch(f": {RANKS} differ from the others", odd)
    if several:
        ranks = ranks_in(several[1])
        usual = {call.amounts for call in checker.apart(ranks)}
        return len(usual) == 1 and not any(call.amounts in usual for call in checker.of(ranks))
    return not odd


def _others_exchange(checker: Checker, said: re.Match[str]) -> bool:
    others = checker.apart(checker.finding.ranks)
    return len(others) == int(said[1] or 1) and {call.amounts for call in others} == {(int(said[2]), int(said[3]))}


def _odd_by_majority(checker: Checker, said: re.Match[str]) -> bool:
    ranks = ranks_in(said[1])
    others = checker.apart(ranks)
    counts = Counter({call.rank: sum(fits(call, other) and bool(other.dtype) for other in others) for call in others})
    n_alike = max(counts.values())
    is_odd = not any(
        fits(call, other) for call in checker.of(ranks) for other in others if counts[other.rank] == n_alike
    )
    if said["few"]:
        return is_odd and n_alike == int(said["few"]) and len(checker.members) == int(said["all"])
    return is_odd and n_alike == len(others) and len(others) + len(ranks) == len(checker.members)


def _split(checker: Checker, split: str) -> bool:
    counts = sorted(_classes(checker.calls.values()).values())
    if split == "the group is split evenly":
        return len(counts) == 2 and counts[0] == counts[1] and sum(counts) == len(checker.members)
    return 2 * max(counts) <= len(checker.members)


def _odd_by_others(checker: Checker, said: re.Match[str]) -> bool:
    ranks, peers = ranks_in(said[1]), ranks_in(said["peers"])
    alike = all(fits(checker.calls[peers[0]], call) for call in checker.of(peers))
    return _split(checker, said["split"]) and alike and not set(ranks) & set(peers)


def _calls_listed(checker: Checker, said: str) -> bool:
    parts = re.findall(rf"{RANKS} called (.*?)(?=, ranks? [\d,-]+ called|, \d+ ranks \(|, and \d+ more|$)", said)
    return bool(parts) and all(call.says(text) for ranks, text in parts for call in checker.of(ranks_in(ranks)))


def _neither(checker: Checker, said: re.Match[str]) -> bool:
    ranks = ranks_in(said[1])
    usual = checker.apart([*ranks, *checker.finding.ranks])
    is_apart = not any(fits(call, other) for call in checker.of(ranks) for other in usual)
    return is_apart and bool(usual) and _calls_listed(checker, said["calls"])


def _position(checker: Checker, said: re.Match[str]) -> bool:
    assert checker.finding.group is not None
    calls = checker.calls_at(checker.finding.group.name, int(said[1]))
    mine = [calls[rank] for rank in checker.finding.ranks]
    others = [call for rank, call in calls.items() if rank not in checker.finding.ranks]
    if said["what"] == "came from a different line than on":
        differ = [other for other in others if all(other.line != call.line for call in mine)]
    elif said["what"] == "came from a different caller than on":
        differ = [other for other in others if all(other.stack != call.stack for call in mine)]
    else:
        differ = [other for other in others if not any(fits(call, other) for call in mine)]
    return bool(differ) and (len(differ) == int(said["few"]) if said["few"] else len(differ) == len(others))


def _recorded_are_alike(checker: Checker, said: re.Match[str]) -> bool:
    calls = list(checker.calls.values())
    return all(fits(calls[0], call) for call in calls)


def _went_before(checker: Checker, said: re.Match[str]) -> bool:
    """By the first call of each rank that has not ended: with calls enqueued ahead, later ones are there too."""
    first: dict[int, dict[str, Any]] = {}
    for row in checker.rows:
        if row["status"] != "done":
            first.setdefault(row["rank"], row)
    waiting = {rank for rank, row in first.items() if (row["group_name"], _call(row).text) == (said[3], said[2])}
    return bool(waiting) and not waiting & set(ranks_in(said[1]))


def _is_blocked(checker: Checker, said: re.Match[str]) -> bool:
    return 0 < int(said[1].replace(",", "")) <= (checker.finding.evidence.n_blocked or 0)


def _silent(checker: Checker, said: re.Match[str]) -> bool:
    return not any(call.dtype for call in checker.of(ranks_in(said[1])))


def _other_members_went_on(checker: Checker, said: re.Match[str]) -> bool:
    """Fewer calls of the group, or other ones: what the finding's own facts count."""
    return int(checker.finding.evidence.facts["n_agreeing"]) == int(said["calls"] or 0)


_SPLIT = r"(?P<split>the group is split evenly|no call has a majority in the group)"
_ODD = rf"{RANKS} (?:is the outlier|are the outliers): "
_SHAPES: dict[str, Callable[[Checker, re.Match[str]], bool]] = {
    rf"{RANKS} called .* of group .* before (.*) of group (\S+) .*where the others are waiting": _went_before,
    rf"{RANKS} called (?:\w+ with )?(?P<mine>.*) where (?P<peers>{PEERS}) (?:called|passed) (?P<theirs>.*)": (
        _one_against_peers
    ),
    r"rank (\d+) called (?:\w+ with )?(?P<mine>.*) and rank (\d+) (?:called|passed) (?P<theirs>.*) at the same "
    r"position of .*": _tie,
    rf"{RANKS} made (\d+) different calls at the same position of .*": _different_calls,
    r"the (\d+) ranks of .* send ([\d,]+) elements? in an all_to_all but expect ([\d,]+)(: .*)?": _exchange,
    r"the other (?:(\d+) ranks each send|rank sends) (\d+) elements? and expects? (\d+)": _others_exchange,
    rf"{_ODD}(?:the other members|(?P<few>\d+) of the (?P<all>\d+) members) of the group agree with each other": (
        _odd_by_majority
    ),
    rf"{_ODD}{_SPLIT}, but .* the call of (?P<peers>{RANKS}) (?:at this point|was made in earlier steps too)": (
        _odd_by_others
    ),
    rf"{_SPLIT}, and the data does not show which .*": lambda checker, said: _split(checker, said["split"]),
    rf"{RANKS} match(?:es)? neither side: (?P<calls>.*)": _neither,
    rf"(?P<calls>{RANKS} called .*)": lambda checker, said: _calls_listed(checker, said["calls"]),
    rf"at seq (\d+) of .* the call of {RANKS} (?P<what>came from a different (?:line|caller) than on"
    r"|does not match the call of) (?:(?:its|their) peers|(?P<few>\d+) of .*)": _position,
    r"the calls that were recorded have the same operation, sizes and type": _recorded_are_alike,
    r"([\d,]+) more ranks? (?:is|are) blocked by this": _is_blocked,
    rf"{RANKS} do(?:es)? not record types": _silent,
    r"(?P<calls>\d+) calls?(?: of rank \d+)? from there on match(?:es)? .* when shifted by \d+": _other_members_went_on,
    r"(?P<calls>)(?:it|rank \d+) made the same call twice in a row where (?:its|the) peers continued": (
        _other_members_went_on
    ),
    rf"{RANKS} made these calls in a different order than the others, or than in (?:its|their) "
    r"earlier steps": lambda checker, said: tuple(ranks_in(said[1])) == checker.finding.ranks,
}
