"""What findings about a hang have in common: title, evidence and notes of a cause, and which rank made which call."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from rankscope.analyze.hangs.cause import Cause
from rankscope.analyze.hangs.evidence import (
    call_text,
    collective_ref,
    compare_sides,
    group_ref,
    location_of,
    side_label,
)
from rankscope.analyze.hangs.standing import with_standing
from rankscope.analyze.hangs.verdict import causes_of
from rankscope.analyze.hangs.view import JobView, job_view
from rankscope.analyze.registry import Effect
from rankscope.model.call_text import count_elements, decode_shapes
from rankscope.model.finding import Comparison, Evidence, Finding, Side, count_noun, ranks_phrase
from rankscope.model.tables import MISSING, Array, Trace

Describe = Callable[[JobView, Cause], Finding]
_SHORTEST_WAIT_NS = 1_000_000_000
_MAX_SIDES = 4  # calls that are listed in a sentence
_MAX_RANKS = 16  # rows in the table of totals


def findings_of(trace: Trace, rule: str, describe: Describe) -> Iterator[Finding | Effect]:
    """One finding for each cause that falls under the rule of that name, made by `describe`."""
    view = job_view(trace)
    for cause in causes_of(trace):
        if cause.rule == rule:
            finding = with_standing(view, cause, describe(view, cause))
            yield Effect(finding) if cause.is_effect else finding


def make_finding(view: JobView, cause: Cause, title: str, evidence: Evidence, help_text: str) -> Finding:
    """The finding of a cause. It shows the call of the peers, as they did what the program wanted."""
    shown = cause.peer_row if cause.peer_row != MISSING else cause.culprit_row
    return Finding(
        severity="error",
        certainty=cause.certainty,
        title=title,
        ranks=cause.ranks,
        group=group_ref(view, cause.group),
        collective=collective_ref(view, shown) if shown != MISSING else None,
        location=location_of(view, cause.culprit_row),
        peer_location=location_of(view, cause.peer_row),
        evidence=evidence,
        help=help_text,
    )


def make_evidence(view: JobView, cause: Cause, n_named: int, **parts: Any) -> Evidence:
    """The evidence with what every cause has: how long ranks have waited, and how many more ranks are blocked."""
    notes = (*parts.pop("notes", ()), *_blocked_note(cause, n_named), *_blind_note(view, cause))
    return Evidence(notes=notes, waiting_ns=waited_ns(view, cause.match), n_blocked=len(cause.blocked), **parts)


def _blocked_note(cause: Cause, n_named: int) -> tuple[str, ...]:
    n_others = len(cause.blocked) - n_named
    if n_others <= 0:
        return ()
    return (f"{count_noun(n_others, 'more rank')} {'is' if n_others == 1 else 'are'} blocked by this",)


def _blind_note(view: JobView, cause: Cause) -> tuple[str, ...]:
    if cause.group not in view.blind_groups:
        return ()
    return (f"{blind_backend(view, cause.group)}: the verdict is based on which ranks made which calls",)


def blind_backend(view: JobView, group: int) -> str:
    """`backend ucc does not record whether calls complete`, for one of the view's blind groups."""
    name = view.blind_groups[group]
    return f"{f'backend {name}' if name else 'this backend'} does not record whether calls complete"


def waited_ns(view: JobView, match: int) -> int | None:
    """How long ranks have waited in the call, as far as recorded: dumps do not say when they were written."""
    if match == MISSING:
        return None
    rows = [row for row in view.rows_of_match(match).tolist() if not view.is_done[row]]
    if not rows:
        return None
    if any(view.calls.text("status")[row] == "aborted" for row in rows):
        return int(view.calls.array("timeout_ns")[rows[0]])
    waited = view.last_activity_ns - min(int(view.created[row]) for row in rows)
    return waited if waited >= _SHORTEST_WAIT_NS else None


def normal_rows(view: JobView, cause: Cause) -> list[int]:
    """The calls at this position of the members that are not to blame."""
    rows = view.rows_of_match(cause.match).tolist() if cause.match != MISSING else []
    return [row for row in rows if int(view.rank[row]) not in cause.ranks]


def compare_with(view: JobView, cause: Cause, peers: Sequence[int], odd: Sequence[int] = ()) -> Comparison | None:
    """The group's last calls, peers beside culprits; None for transfers, which have no common sequence."""
    if not peers or view.members[cause.group] == () or cause.seq < 1:
        return None
    culprits = list(odd or cause.ranks)
    sides = [(side_label(peers), peers), (side_label(culprits), culprits)]
    # If operation and sizes agree, only the lines show how the two sides differ.
    return compare_sides(view, cause.group, cause.seq, sides, with_lines=cause.rule == "call-skipped")


def peers_phrase(peers: Sequence[int], whose: str = "") -> str:
    """`its 63 peers`; `rank 0` for a single peer."""
    return f"rank {peers[0]}" if len(peers) == 1 else f"{whose} {count_noun(len(peers), 'peer')}".strip()


def are_waiting(number: int) -> str:
    return "is waiting" if number == 1 else "are waiting"


def has(number: int) -> str:
    return "has" if number == 1 else "have"


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
