"""Where ranks did not make the same calls: the culprit by majority, and what it did instead.

At one position of a group calls differ; or a rank left out, or made again, a run of calls of several groups. The hang
then shows anywhere: in a cycle of waits, in a transfer without counterpart, in a rank that never comes. What the ranks
of its role did in its place says more than where it shows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence, Set

import numpy as np

from rankscope.analyze.derived import derived
from rankscope.analyze.hangs.cause import Basis, Cause, Divergence, Kind
from rankscope.analyze.hangs.evidence import comes_later
from rankscope.analyze.hangs.matching import segment_starts
from rankscope.analyze.hangs.programs import Departure, Programs, programs_of
from rankscope.analyze.hangs.view import JobView
from rankscope.analyze.hangs.waits import WaitGraph
from rankscope.model.tables import MISSING, Array, Trace

_RULE_OF_KIND: dict[Kind, str] = {
    "op": "op-mismatch",
    "size": "size-mismatch",
    "dtype": "dtype-mismatch",
    "skip": "call-skipped",
    "extra": "call-skipped",
}
_FEW = 4  # calls before which a rank may only have been early with another one


def find_divergences(trace: Trace) -> list[Divergence]:
    """The first divergence of each group, in order of time."""
    view, programs = derived(trace, JobView), programs_of(trace)
    divergences = []
    for group, seqs in _uneven_collectives(view).items():
        divergence = _first_of_group(view, programs, group, seqs)
        if divergence is not None:
            divergences.append(divergence)
    return sorted(divergences, key=lambda divergence: divergence.time_ns)


def _uneven_collectives(view: JobView) -> dict[int, list[int]]:
    """Per group the matches whose ranks differ in signature or in the user's line."""
    rows, _ = view.match_rows
    rows = rows[~view.is_p2p[rows]]
    if not len(rows):
        return {}
    starts = segment_starts(view.match[rows])
    uneven = np.zeros(len(starts), bool)
    for codes in (view.signatures.whole[rows], view.signatures.point[rows]):
        uneven |= np.minimum.reduceat(codes, starts) != np.maximum.reduceat(codes, starts)
    uneven |= _unbalanced_exchanges(view, rows, starts)
    matches: dict[int, list[int]] = {}
    for start in starts[uneven].tolist():
        matches.setdefault(int(view.group[rows[start]]), []).append(int(view.match[rows[start]]))
    return matches


def _unbalanced_exchanges(view: JobView, rows: Array, starts: Array) -> Array:
    """all_to_all may be uneven, but what all ranks send must be what all ranks receive."""
    op = view.calls.text("op").equals("all_to_all")[rows]
    if not op.any():
        return np.zeros(len(starts), bool)
    sent, received = (view.calls.array(name)[rows] for name in ("n_input_bytes", "n_output_bytes"))
    is_known = np.minimum.reduceat(np.minimum(sent, received), starts) >= 0
    n_members = view.trace.table("matches").array("n_members")[view.match[rows[starts]]]
    is_whole = np.diff(np.append(starts, len(rows))) == n_members
    differs = np.add.reduceat(sent, starts) != np.add.reduceat(received, starts)
    result: Array = op[starts] & is_known & is_whole & differs
    return result


def _first_of_group(view: JobView, programs: Programs, group: int, matches: Sequence[int]) -> Divergence | None:
    ignored: set[int] = set()  # ranks whose lines differ by role, not by fault
    for match in matches:
        # What is left of a damaged dump may be wrong itself: nobody is blamed for what only it says.
        unsure = view.headless
        rows = [row for row in view.rows_of_match(match).tolist() if int(view.rank[row]) not in view.cut]
        rows = [row for row in rows if row not in unsure]
        divergence = _judge(view, programs, group, rows, ignored) if rows else None
        if divergence is not None and not (divergence.kind == "size" and _went_on(view, rows)):
            return divergence
    return None


def _went_on(view: JobView, rows: Sequence[int]) -> bool:
    """Whether the call ended on all ranks, and all of them then made others that ended: its sizes were no obstacle."""
    if not all(view.is_done[row] for row in rows):
        return False
    for row in rows:
        later = view.rows_of(int(view.rank[row]))
        later = later[(later > row) & (view.group[later] == view.group[row])]
        if not view.is_done[later].any():
            return False
    return True


def _judge(view: JobView, programs: Programs, group: int, rows: Sequence[int], ignored: set[int]) -> Divergence | None:
    """One uneven collective: who is odd, and is it a wrong call, a skipped one, or another line of the same call?"""
    normal, odd, basis = _split(view, programs, group, rows)
    if not odd:
        return _unbalanced(view, group, rows)
    is_mismatch = view.signatures.whole[odd[0]] != view.signatures.whole[normal[0]]
    odd = [row for row in odd if is_mismatch or int(view.rank[row]) not in ignored]
    if not odd:
        return None
    at_seq = int(view.seq[odd[0]])
    same_call = programs.rows_at(group, at_seq)
    is_other = view.rank[same_call] != view.rank[odd[0]]
    same_call = same_call[is_other & (programs.token[same_call] == programs.token[normal[0]])]
    outside = same_call[view.group[same_call] != group].tolist()
    departure = _departure(view, programs, odd[0]) or programs.explain(odd[0], [*normal, *outside])
    # Calls swapped between groups keep their order within each group: no divergence of this one.
    if departure is not None and (
        departure.shift.kind == "swapped" or (is_mismatch and _is_made_wrong(view, programs, odd, normal[0], departure))
    ):
        departure = None
    if departure is None and not is_mismatch:
        ignored.update(int(view.rank[row]) for row in odd)
        return None
    if departure is not None and not is_mismatch and departure.shift.n_agreeing < 2 and programs.is_usual(odd[0]):
        ignored.update(
            int(view.rank[row]) for row in odd
        )  # it makes this call from this line at this point in every step
        return None
    kind: Kind = _mismatch_kind(view, odd[0], normal[0])
    typed = [row for row in normal if view.is_typed[row]] or normal
    if kind == "dtype" and basis == "majority" and len(typed) <= len(odd):
        basis = "tie"  # the others do not record their types: they have no vote
    if departure is not None:
        kind = "extra" if departure.shift.kind == "repeated" else "skip"
    # Ranks that made the same odd call share the verdict; others of the minority are told apart later.
    codes = view.signatures.whole if departure is None else programs.token
    same = [row for row in odd if codes[row] == codes[odd[0]]]
    culprits = sorted(
        {int(view.rank[row]) for row in same} if basis != "tie" else {int(view.rank[row]) for row in rows}
    )
    return Divergence(
        kind=kind,
        ranks=tuple(culprits),
        group=group,
        seq=at_seq,
        culprit_row=odd[0],
        peer_row=typed[0],
        basis=basis,
        time_ns=int(min(view.created[row] for row in rows)),
        departure=departure,
        may_be_skip=departure is None and _may_be_skip(view, programs, odd, normal[0]),
    )


def _is_made_elsewhere(programs: Programs, odd: Sequence[int], normal: int) -> bool:
    """Whether any rank makes the first odd call at another place too, in agreement with its peers there.

    A call that its own peers do not match shows no part of the program: the same mistake may be made in several groups.
    Another line than the peers' is enough to know the call; on the same line only its sizes and types are.
    """
    view = programs.view
    point, token, op = view.signatures.point, programs.token, view.signatures.op
    is_same = token == token[odd[0]]
    if point[odd[0]] != point[normal]:
        is_same |= (point == point[odd[0]]) & (op == op[odd[0]])
    same = np.flatnonzero(is_same & (view.match != MISSING))
    n_signatures = view.trace.table("matches").array("n_signatures")[view.match[same]]
    return bool((~np.isin(same, odd) & (n_signatures == 1)).any())


def _is_made_wrong(view: JobView, programs: Programs, odd: Sequence[int], normal: int, departure: Departure) -> bool:
    """The rank went its usual way up to a call that is no part of the program anywhere else: nothing was left out."""
    signatures = view.signatures
    is_same = all(codes[odd[0]] == codes[normal] for codes in (signatures.point, signatures.op))
    return (is_same or departure.row == odd[0]) and not _is_made_elsewhere(programs, odd, normal)


def _may_be_skip(view: JobView, programs: Programs, odd: Sequence[int], normal: int) -> bool:
    """Whether the odd call may be a later one of the program, before which the rank left some out.

    This is possible if the odd call is made elsewhere too; if its line comes after that of its peers; if the rank's
    previous call was the one its peers make now, so that it may have left out a repetition; and if it has made no call
    before, so that nothing shows where it is.
    """
    if view.signatures.point[odd[0]] == view.signatures.point[normal] and not _is_made_elsewhere(programs, odd, normal):
        return False
    before = programs.token[programs.preceding(odd[0], limit=1)]
    is_repetition = not len(before) or bool(before[-1] == programs.token[normal])
    return is_repetition or _is_made_elsewhere(programs, odd, normal) or comes_later(view, odd[0], normal)


def _departure(view: JobView, programs: Programs, row: int) -> Departure | None:
    """Where the rank of the call left the path of the ranks of its role, if that was before the call, or there."""
    departure = programs.departure_beside(int(view.rank[row]))
    return departure if departure is not None and departure.row <= row else None


def _split(view: JobView, programs: Programs, group: int, rows: Sequence[int]) -> tuple[list[int], list[int], Basis]:
    """The rows that made the normal call and the odd ones, by majority or by what breaks the tie."""
    whole = view.signatures.whole
    codes = whole if len({int(whole[row]) for row in rows}) > 1 else programs.token
    votes = Counter(int(codes[row]) for row in rows)
    (winner, n_winner), *others = votes.most_common()
    if not others:
        return list(rows), [], "majority"
    basis: Basis = "majority"
    if 2 * n_winner <= len(rows):
        contenders = [code for code, count in votes.items() if count == n_winner] if len(rows) > 2 else list(votes)
        winner, basis = _break_tie(view, programs, group, rows, codes, contenders)
    normal = [row for row in rows if codes[row] == winner]
    odd = [row for row in rows if codes[row] != winner]
    return normal, odd, basis


def _break_tie(
    view: JobView, programs: Programs, group: int, rows: Sequence[int], codes: Array, contenders: Sequence[int]
) -> tuple[int, Basis]:
    """By the sibling groups at the same point of the program, else by the ranks' own earlier steps."""
    outside = [row for row in programs.rows_at(group, int(view.seq[rows[0]])).tolist() if view.group[row] != group]
    sharing = [row for row in outside if any(programs.same_context(mine, row) for mine in rows[:2])]
    votes = Counter(int(codes[row]) for row in sharing if int(codes[row]) in contenders)
    ranked = votes.most_common(2)
    if ranked and (len(ranked) == 1 or ranked[0][1] > ranked[1][1]):
        return ranked[0][0], "siblings"
    for is_normal in (programs.is_usual, programs.is_known):
        normal = {int(codes[row]) for row in rows if is_normal(row)}
        if len(normal) == 1:
            return normal.pop(), "history"
    return int(codes[rows[0]]), "tie"


def _mismatch_kind(view: JobView, odd: int, normal: int) -> Kind:
    signatures = view.signatures
    if signatures.op[odd] != signatures.op[normal]:
        return "op"
    return "size" if signatures.size[odd] != signatures.size[normal] else "dtype"


def _unbalanced(view: JobView, group: int, rows: Sequence[int]) -> Divergence | None:
    """An all_to_all whose totals do not fit: the odd rank is the one whose own total is not the common one."""
    sent, received = (view.calls.array(name) for name in ("n_input_bytes", "n_output_bytes"))
    if not view.calls.text("op").equals("all_to_all")[rows[0]]:
        return None
    if sum(int(sent[row]) for row in rows) == sum(int(received[row]) for row in rows):
        return None
    totals = Counter((int(sent[row]), int(received[row])) for row in rows)
    common, n_common = totals.most_common(1)[0]
    odd = [row for row in rows if (int(sent[row]), int(received[row])) != common]
    has_majority = 2 * n_common > len(rows) and bool(odd)
    culprits = odd if has_majority else list(rows)
    normal = next(row for row in reversed(rows) if row not in odd)
    return Divergence(
        kind="size",
        ranks=tuple(sorted(int(view.rank[row]) for row in culprits)),
        group=group,
        seq=int(view.seq[rows[0]]),
        culprit_row=culprits[0],
        peer_row=normal,
        basis="totals" if has_majority else "tie",
        time_ns=int(min(view.created[row] for row in rows)),
    )


def from_divergence(view: JobView, divergence: Divergence) -> Cause:
    is_provable = divergence.basis in ("majority", "siblings") and divergence.departure is None
    is_provable &= not divergence.may_be_skip
    if divergence.basis == "majority":  # of the members, not only of those whose calls are at hand
        rows = view.rows_of_match(view.collective_match[divergence.group, divergence.seq])
        whole = view.signatures.whole
        n_normal = int((whole[rows] == whole[divergence.peer_row]).sum())
        is_provable &= 2 * n_normal > len(view.members[divergence.group])
    return Cause(
        rule=_RULE_OF_KIND[divergence.kind],
        ranks=divergence.ranks,
        group=divergence.group,
        seq=divergence.seq,
        certainty="certain" if is_provable else "likely",
        time_ns=divergence.time_ns,
        match=view.collective_match[divergence.group, divergence.seq],
        culprit_row=divergence.culprit_row,
        peer_row=divergence.peer_row,
        divergence=divergence,
    )


def left_out_runs(view: JobView, graph: WaitGraph, programs: Programs, known: Set[int]) -> Iterator[Cause]:
    """One cause per rank that others wait for and that left the path of its role; not those already `known`."""
    holders = {rank for call in graph.calls.values() for rank, why in call.held_up_by.items() if why == "absent"}
    for rank in sorted(holders - set(known)):
        departure = programs.departure_beside(rank)
        if departure is not None and _is_run(view, programs, departure):
            yield _from_run(view, graph, programs, departure)


def wrong_calls(programs: Programs, departure: Departure) -> list[int]:
    """The calls that were left out, as the reference made them, or those that were made once more."""
    rows = departure.expected.rows
    if departure.shift.kind != "skipped":
        rows = tuple(programs.following(departure.row).tolist())
    return list(rows[: departure.shift.n_calls])


def _is_run(view: JobView, programs: Programs, departure: Departure) -> bool:
    """Several calls, at least one of them a collective; a single transfer is a matter of the schedule of transfers."""
    shift = departure.shift
    if shift.kind == "swapped" or shift.n_calls < 2 or view.is_p2p[wrong_calls(programs, departure)].all():
        return False
    # A rank that waits for every call shows one only: it may make those before it later.
    return shift.n_agreeing > 1 or shift.n_calls > _FEW


def _from_run(view: JobView, graph: WaitGraph, programs: Programs, departure: Departure) -> Cause:
    rank = int(view.rank[departure.row])
    wrong = wrong_calls(programs, departure)
    first = next(row for row in wrong if not view.is_p2p[row])
    has_skipped = departure.shift.kind == "skipped"
    group = int(view.group[first])
    if has_skipped:  # the reference may be of another group of the same role
        wanted = programs.row_class[first]
        group = next((each for each in view.groups_of[rank] if programs.group_class[each] == wanted), group)
    seq = int(view.seq[first])
    match = view.collective_match.get((group, seq), MISSING) if has_skipped and view.rank[first] != rank else MISSING
    rows = view.rows_of_match(match).tolist() if match != MISSING else []
    calls = tuple(call for call in graph.calls.values() if rank in call.held_up_by or rank in call.waiting)
    return Cause(
        rule="call-skipped",
        ranks=(rank,),
        group=group,
        seq=seq,
        certainty="likely",
        time_ns=int(view.created[departure.row]),
        match=match,
        culprit_row=departure.row,
        peer_row=next((row for row in rows if int(view.rank[row]) != rank), wrong[0]),
        departure=departure,
        calls=calls,
    )
