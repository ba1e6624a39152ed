"""Which rank made which call at one position of a group: the basis for every sentence about agreement."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rankscope.analyze.hangs.cause import Cause
from rankscope.analyze.hangs.evidence import call_text
from rankscope.analyze.hangs.view import JobView
from rankscope.model.call_text import count_elements, decode_shapes
from rankscope.model.finding import Comparison, Side, count_noun, ranks_phrase
from rankscope.model.tables import MISSING, Array

_MAX_SIDES = 4  # calls that are listed in a sentence
_MAX_RANKS = 16  # rows in the table of totals


@dataclass(frozen=True)
class Sides:
    """The rows of one collective: the culprits', those that match the peer's call, and those that match neither."""

    culprits: list[int]
    peers: list[int]
    others: list[int]
    silent: list[int]  # of the peers' side, but their dumps do not record what is compared
    n_members: int

    @property
    def is_even(self) -> bool:
        """Two sides of equal size, and no member besides."""
        return len(self.culprits) == len(self.peers) and self.is_whole

    @property
    def is_whole(self) -> bool:
        """Every member of the group is a culprit or is known to have made the peers' call."""
        return len(self.culprits) + len(self.peers) == self.n_members


def sides_of(view: JobView, cause: Cause) -> Sides:
    codes = _codes(view, cause)
    rows = view.rows_of_match(cause.match).tolist() if cause.match != MISSING else []
    is_tie = cause.divergence is not None and cause.divergence.basis == "tie"
    if is_tie:
        culprits = [row for row in rows if codes[row] == codes[cause.culprit_row]]
    else:
        culprits = [row for row in rows if int(view.rank[row]) in cause.ranks]
    rest = [row for row in rows if row not in set(culprits)]
    fitting = [row for row in rest if cause.peer_row != MISSING and codes[row] == codes[cause.peer_row]]
    is_silent = {row for row in fitting if cause.rule == "dtype-mismatch" and not view.is_typed[row]}
    others = [row for row in rest if row not in set(fitting) and int(view.rank[row]) not in view.cut]
    peers = [row for row in fitting if row not in is_silent]
    return Sides(culprits, peers, others, sorted(is_silent), len(view.members[cause.group]) or len(rows))


def _codes(view: JobView, cause: Cause) -> Array:
    """By the calls themselves; where these are equal, by the lines that made them."""
    whole = view.signatures.whole
    has_both = MISSING not in (cause.culprit_row, cause.peer_row)
    is_same = has_both and whole[cause.culprit_row] == whole[cause.peer_row]
    return view.signatures.token if cause.rule == "call-skipped" and is_same else whole


def ranks_of(view: JobView, rows: Sequence[int]) -> list[int]:
    return sorted(int(view.rank[row]) for row in rows)


def common_text(view: JobView, rows: Sequence[int], describe: Callable[[JobView, int], str]) -> str:
    """What all the rows passed; shapes that differ but match each other appear as a number of elements."""
    texts = list(dict.fromkeys(describe(view, row) for row in rows))
    if len(texts) == 1:
        return texts[0]
    counts = {tuple(elements(view, row)) for row in rows}
    if len(counts) == 1:
        return count_noun(counts.pop()[0], "element")
    return f"{texts[0]} or an equivalent"


def elements(view: JobView, row: int) -> tuple[int, int]:
    """How many elements the call sends and receives."""
    sides = [view.calls.text(name)[row] for name in ("input_sizes", "output_sizes")]
    given, taken = (count_elements(decode_shapes(text)) for text in sides)
    return given, taken


def calls_text(view: JobView, rows: Sequence[int]) -> str:
    """`ranks 1,2 called all_reduce [9] f32, rank 0 called all_reduce [8] f32`."""
    together: dict[str, list[int]] = defaultdict(list)
    for row in rows:
        together[call_text(view, row)].append(row)
    ordered = sorted(together.items(), key=lambda item: (-len(item[1]), item[1][0]))
    sentences = [f"{ranks_phrase(ranks_of(view, mine))} called {text}" for text, mine in ordered[:_MAX_SIDES]]
    n_more = sum(len(mine) for _, mine in ordered[_MAX_SIDES:])
    rest = f", and {count_noun(n_more, 'more rank')} called something else" if n_more else ""
    return ", ".join(sentences) + rest


def n_calls(view: JobView, rows: Sequence[int]) -> int:
    """How many different calls the rows are, counting calls that match each other once."""
    return len({int(view.signatures.whole[row]) for row in rows})


def totals_table(view: JobView, rows: Sequence[int], odd: Sequence[int]) -> Comparison:
    """What each rank of an exchange sends and expects in total, which is all that is recorded; the odd ones first."""
    ordered = [*odd, *(row for row in rows if row not in set(odd))]
    shown, hidden = sorted(ordered[:_MAX_RANKS], key=lambda row: int(view.rank[row])), ordered[_MAX_RANKS:]
    lines = {str(int(view.rank[row])): [row] for row in shown}
    if hidden:
        lines[f"{len(hidden)} more"] = hidden
    lines["all"] = ordered
    ranks, sides = tuple(ranks_of(view, rows)), []
    for side, label in enumerate(("sends", "expects")):
        amounts = [f"{sum(elements(view, row)[side] for row in mine):,}" for mine in lines.values()]
        width = max(len(label), *map(len, amounts))
        sides.append(Side(label.rjust(width), ranks, tuple(cell.rjust(width) for cell in amounts)))
    return Comparison("rank", tuple(lines), tuple(sides), mark=len(lines) - 1)
