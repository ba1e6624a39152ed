"""H102-H104: calls that do not match what the other ranks of the group called at the same position."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from rankscope.analyze.hangs.cause import Cause
from rankscope.analyze.hangs.evidence import (
    call_text,
    comes_after_loop,
    differences,
    dtype_text,
    group_text,
    shape_text,
    site_text,
    stack_groups,
    user_frames,
)
from rankscope.analyze.hangs.programs import Programs, programs_of
from rankscope.analyze.hangs.view import JobView
from rankscope.analyze.hangs.wording import (
    Sides,
    calls_text,
    common_text,
    compare_with,
    elements,
    findings_of,
    make_evidence,
    make_finding,
    n_calls,
    peers_phrase,
    ranks_of,
    sides_of,
    totals_table,
)
from rankscope.analyze.registry import Effect, rule
from rankscope.model.finding import Finding, count_noun, ranks_phrase
from rankscope.model.tables import MISSING, Trace

_SPLITS = (
    "compare input_split_sizes and output_split_sizes across ranks: what one rank sends to another must be what the "
    "other expects (the dumps record only the totals of each rank)"
)
_MAX_COMPARED = 64  # calls of its past, each from another point of the program, that the rank's call must come after
_LEFT_EARLY = (
    "give all ranks the same number of batches (drop_last, a sampler that pads), or end the loop on all together"
)


@rule("H102", "op-mismatch", needs=("collectives", "groups"))
def op_mismatch(trace: Trace) -> Iterator[Finding | Effect]:
    """Ranks of one group called different operations at the same position.

    What it means: the n-th call of a process group must be the same operation on every member. One rank called a
    different one, so neither call can ever complete, and every rank that depends on them waits.

    Why it happens: a branch that only some ranks take (a condition on local data, a rank number, a NaN check), an
    exception handler that continues with other collectives, or two code versions in one job. A rank with fewer batches
    leaves the training loop early and makes the call after the loop: the finding says so if the source lines show it.

    What to do: make the condition the same on all ranks, for example with an all_reduce of the flag before the branch.
    Compare the two source lines in the finding.

    What could fool it: a group of two has no majority. Then sibling groups and earlier steps decide, and the finding
    says so. If these do not help either, both ranks are named. A rare branch near the end of the loop body looks like
    the end of the loop.
    """
    yield from findings_of(trace, "op-mismatch", _describe_op)


def _describe_op(view: JobView, cause: Cause) -> Finding:
    if cause.divergence is None:
        return _describe_complete(view, cause, "operation")
    ops = view.calls.text("op")
    title = _title(view, cause, "called", ops[cause.culprit_row], ops[cause.peer_row])
    return _mismatch(view, cause, title, "make the condition that leads to these two calls the same on all ranks")


@rule("H103", "size-mismatch", needs=("collectives", "groups"))
def size_mismatch(trace: Trace) -> Iterator[Finding | Effect]:
    """Ranks of one group made the same call with different sizes.

    What it means: the ranks called the same operation with different numbers of elements. Collectives such as
    all_reduce then hang, fail, or silently mix up data. In all_to_all, gather, scatter and the uneven forms of
    all_gather and reduce_scatter, different sizes are fine as long as they match each other; only sizes that do not
    match are reported.

    Why it happens: a last batch of a different length, padding to the local maximum, an uneven shard, a parameter that
    exists on some ranks only.

    What to do: pad or drop so that all ranks have the same shape, or use an operation that allows uneven sizes.

    What could fool it: shapes may differ as long as the number of elements is the same. The split sizes of an
    all_to_all are not recorded, so only its totals can be checked. If a call with different sizes completed and all
    ranks continued, it is not an error: `rankscope fr PATH` lists such calls.
    """
    yield from findings_of(trace, "size-mismatch", _describe_size)


def _describe_size(view: JobView, cause: Cause) -> Finding:
    return _describe_argument(view, cause, shape_text, "size")


def _describe_argument(view: JobView, cause: Cause, describe: Callable[[JobView, int], str], what: str) -> Finding:
    """The same operation with a tensor of a different size or type."""
    if cause.divergence is None:
        is_transfer = bool(view.is_p2p[cause.culprit_row])
        return _describe_transfer(view, cause, describe, what) if is_transfer else _describe_complete(view, cause, what)
    op = view.calls.text("op")[cause.peer_row]
    sides = sides_of(view, cause)
    if what == "size" and op == "all_to_all":
        return _describe_exchange(view, cause)
    culprit, peer = (common_text(view, rows, describe) for rows in (sides.culprits, sides.peers))
    if culprit == peer:  # of many tensors the text names only the first: here a later one differs
        culprit, peer = differences(view, cause.culprit_row, cause.peer_row) or (culprit, peer)
    title = _title(view, cause, f"called {op} with", culprit, peer)
    help_text = f"give the tensor the same {what} on all ranks of the group before the call"
    if what == "size" and _is_gathered(view, cause):
        help_text = "pass parts of the same size on all ranks, or parts that add up to what is gathered"
    return _mismatch(view, cause, title, help_text)


def _is_gathered(view: JobView, cause: Cause) -> bool:
    """Whether parts may differ in size, and the call has no size that most ranks share."""
    op = view.calls.text("op")[cause.peer_row]
    return op.startswith(("all_gather", "reduce_scatter")) and cause.divergence is not None and _is_tie(cause)


def _describe_complete(view: JobView, cause: Cause, what: str) -> Finding:
    """All members are in calls that do not match, and the data does not show which rank is wrong."""
    rows = view.rows_of_match(cause.match).tolist()
    title = f"{ranks_phrase(ranks_of(view, rows))} made {_n_different_calls(view, cause, rows)}"
    certain = ("the calls can never complete together", calls_text(view, rows))
    evidence = make_evidence(view, cause, len(rows), certain=certain, stacks=stack_groups(view, rows))
    return make_finding(view, cause, title, evidence, f"make all ranks of the group agree on the {what} of the call")


def _describe_exchange(view: JobView, cause: Cause) -> Finding:
    """An all_to_all in which more is sent than expected, or less: the totals of each rank are all that is known."""
    assert cause.divergence is not None
    rows = view.rows_of_match(cause.match).tolist()
    sent, expected = (sum(elements(view, row)[side] for row in rows) for side in (0, 1))
    title = (
        f"the {len(rows)} ranks of {group_text(view, cause.group)} send {count_noun(sent, 'element')} in an all_to_all "
        f"but expect {expected:,}"
    )
    odd = [row for row in rows if int(view.rank[row]) in cause.ranks] if not _is_tie(cause) else []
    likely = "the data does not show whose sizes are wrong, so all ranks are named"
    if odd:
        usual = elements(view, cause.peer_row)
        title += f": {_exchanged(view, odd, usual)}"
        n_peers = len(rows) - len(odd)
        others = "the other rank sends" if n_peers == 1 else f"the other {n_peers} ranks each send"
        expects = "expects" if n_peers == 1 else "expect"
        likely = f"{others} {count_noun(usual[0], 'element')} and {expects} {usual[1]:,}"
    totals = [(int(view.rank[row]), *elements(view, row)) for row in rows]
    evidence = make_evidence(
        view,
        cause,
        len(rows) - len(odd),
        certain=("the call can never complete: what all ranks send is not what all ranks expect",),
        likely=(likely,),
        comparison=totals_table(view, rows, odd),
        stacks=stack_groups(view, rows),
        facts={
            "basis": cause.divergence.basis,
            "totals": [{"rank": rank, "sent": given, "expected": taken} for rank, given, taken in totals],
        },
    )
    return make_finding(view, cause, title, evidence, _SPLITS)


def _exchanged(view: JobView, odd: Sequence[int], usual: tuple[int, int]) -> str:
    """`rank 2 sends 6 and expects 8 instead of 8 and 8`; ranks with different amounts are only listed."""
    amounts = {elements(view, row) for row in odd}
    if len(amounts) > 1:
        return f"{ranks_phrase(ranks_of(view, odd))} differ from the others"
    sent, expected = amounts.pop()
    verbs = ("sends", "expects") if len(odd) == 1 else ("each send", "expect")
    who = ranks_phrase(ranks_of(view, odd))
    return f"{who} {verbs[0]} {sent:,} and {verbs[1]} {expected:,} instead of {usual[0]:,} and {usual[1]:,}"


def _describe_transfer(view: JobView, cause: Cause, describe: Callable[[JobView, int], str], what: str) -> Finding:
    """A send and its receive that do not match."""
    rows = sorted(view.rows_of_match(cause.match).tolist(), key=lambda row: view.calls.text("op")[row])
    receiver, sender = rows[0], rows[-1]
    title = (
        f"rank {int(view.rank[sender])} sends {describe(view, sender)}, but rank {int(view.rank[receiver])} "
        f"expects {describe(view, receiver)}"
    )
    certain = (f"a receive completes only with a send of the same {what}",)
    evidence = make_evidence(view, cause, 2, certain=certain, stacks=stack_groups(view, rows))
    return make_finding(view, cause, title, evidence, f"make both sides agree on the {what} before the transfer")


@rule("H104", "dtype-mismatch", needs=("collectives", "groups"))
def dtype_mismatch(trace: Trace) -> Iterator[Finding | Effect]:
    """Ranks of one group made the same call with different element types.

    What it means: operation and number of elements are the same, but the types are not, so the ranks expect different
    numbers of bytes. The collective hangs, fails, or mixes up data.

    Why it happens: autocast or a cast on some ranks only, a checkpoint loaded in a different precision, a Python number
    that became int64 on one rank and float32 on another.

    What to do: cast to the same type before the call, on every rank.

    What could fool it: dumps before layout 2.1 do not record types. What these ranks passed is unknown, and counts as
    matching.
    """
    yield from findings_of(trace, "dtype-mismatch", _describe_dtype)


def _describe_dtype(view: JobView, cause: Cause) -> Finding:
    return _describe_argument(view, cause, dtype_text, "type")


def _is_tie(cause: Cause) -> bool:
    return cause.divergence is not None and cause.divergence.basis == "tie"


def _title(view: JobView, cause: Cause, verb: str, culprit: str, peer: str) -> str:
    """`rank 513 called all_gather where its 63 peers called all_reduce`, or both sides of a tie."""
    again = "called" if verb == "called" else "passed"
    sides = sides_of(view, cause)
    if _is_tie(cause):
        if sides.others:
            rows = [*sides.culprits, *sides.peers, *sides.others]
            return f"{ranks_phrase(ranks_of(view, rows))} made {_n_different_calls(view, cause, rows)}"
        odd_rank, peer_rank = int(view.rank[cause.culprit_row]), int(view.rank[cause.peer_row])
        where = f"at the same position of {group_text(view, cause.group)}"
        return f"rank {odd_rank} {verb} {culprit} and rank {peer_rank} {again} {peer} {where}"
    theirs = "its" if len(cause.ranks) == 1 else "their"
    n_peers, n_all = len(sides.peers), len(sides.peers) + len(sides.others) + len(sides.silent)
    peers = peers_phrase(ranks_of(view, sides.peers), theirs)
    if 1 < n_peers < n_all:
        peers = f"{n_peers} of {theirs} {count_noun(n_all, 'peer')}"
    if sides.others:  # one of them may share the size and not the type: only the whole call shows the difference
        verb = again = "called"
        culprit, peer = (_whole_call(view, rows) for rows in (sides.culprits, sides.peers))
    return f"{ranks_phrase(cause.ranks)} {verb} {culprit} where {peers} {again} {peer}"


def _whole_call(view: JobView, rows: Sequence[int]) -> str:
    texts = list(dict.fromkeys(call_text(view, row) for row in rows))
    return texts[0] if len(texts) == 1 else f"{texts[0]} or an equivalent call"


def _n_different_calls(view: JobView, cause: Cause, rows: Sequence[int]) -> str:
    return f"{n_calls(view, rows)} different calls at the same position of {group_text(view, cause.group)}"


def _mismatch(view: JobView, cause: Cause, title: str, help_text: str) -> Finding:
    divergence = cause.divergence
    assert divergence is not None
    sides = sides_of(view, cause)
    if (
        _is_tie(cause)
        and n_calls(view, [*sides.culprits, *sides.peers, *sides.others]) > 2
        and not _is_gathered(view, cause)
    ):
        help_text = "make the same call, with the same size and type, on all ranks of the group"
    peer_ranks, odd_ranks = ranks_of(view, sides.peers), ranks_of(view, sides.culprits)
    who = _verdict(view, cause, sides)
    is_certain = cause.certainty == "certain"
    early = _left_early(view, cause)
    if early:
        title = title.replace(" called ", f" left the training loop early{_after_steps(view, cause)}: it called ", 1)
    evidence = make_evidence(
        view,
        cause,
        len(peer_ranks) + len(sides.others) + len(sides.silent),
        certain=(
            "the calls can never complete together",
            *([who] if is_certain else []),
            *_also_odd(view, cause, sides),
        ),
        likely=(*([] if is_certain else [who]), *([early] if early else _took_branch(view, cause))),
        notes=_not_recorded(view, sides),
        comparison=compare_with(view, cause, peer_ranks, odd_ranks),
        stacks=(*stack_groups(view, [cause.culprit_row], "culprit"), *stack_groups(view, sides.peers, "peers")),
        facts={"basis": divergence.basis},
    )
    return make_finding(view, cause, title, evidence, _LEFT_EARLY if early else help_text)


def _verdict(view: JobView, cause: Cause, sides: Sides) -> str:
    """Which ranks differ, and how that is known: each part of the sentence is checked against the rows."""
    assert cause.divergence is not None
    basis = cause.divergence.basis
    # A call whose type is not recorded is on no side.
    split = "the group is split evenly" if sides.is_even else "no call has a majority in the group"
    if basis == "tie":
        n_sides = 2 + bool(sides.others)
        named = "side is right, so both are named" if n_sides == 2 else "call is right, so all are named"
        return f"{split}, and the data does not show which {named}"
    peers = ranks_phrase(ranks_of(view, sides.peers))
    odd = ranks_of(view, sides.culprits)
    reason = {
        "majority": _majority(sides),
        "siblings": f"{split}, but sibling groups more often made the call of {peers} at this point",
        "history": f"{split}, but only the call of {peers} was made in earlier steps too",
    }[basis]
    return f"{ranks_phrase(odd)} {'is the outlier' if len(odd) == 1 else 'are the outliers'}: {reason}"


def _majority(sides: Sides) -> str:
    if sides.is_whole:
        return "the other members of the group agree with each other"
    return f"{len(sides.peers)} of the {sides.n_members} members of the group agree with each other"


def _also_odd(view: JobView, cause: Cause, sides: Sides) -> tuple[str, ...]:
    """Members that match neither side: they alone would keep the call from completing."""
    if not sides.others:
        return ()
    if _is_tie(cause):
        return (calls_text(view, [*sides.culprits, *sides.peers, *sides.others]),)
    match = "matches" if len(sides.others) == 1 else "match"
    return (f"{ranks_phrase(ranks_of(view, sides.others))} {match} neither side: {calls_text(view, sides.others)}",)


def _not_recorded(view: JobView, sides: Sides) -> tuple[str, ...]:
    if not sides.silent:
        return ()
    does = "does" if len(sides.silent) == 1 else "do"
    return (f"{ranks_phrase(ranks_of(view, sides.silent))} {does} not record types",)


def _left_early(view: JobView, cause: Cause) -> str:
    """Why the culprits have likely left the loop that their peers are still in; empty if they likely have not.

    Their call is new to the whole job, nothing that they did before follows it, their past and their peers' had the
    peers' call here, and their line comes after every line of the loop in the function that both are in.
    """
    if cause.divergence is None or cause.divergence.basis == "tie":
        return ""
    programs, row, peer = programs_of(view.trace), cause.culprit_row, cause.peer_row
    if not (_is_new(view, programs, cause) and programs.is_usual(peer) and _used_to_go_on(programs, row, peer)):
        return ""
    if not _comes_after_the_loop(view, programs, row):
        return ""
    theirs = f"{view.calls.text('op')[peer]} in {site_text(view, peer)}"
    has = "has" if len(cause.ranks) == 1 else "have"
    return (
        f"{ranks_phrase(cause.ranks)} {has} left the training loop early, with fewer batches than the others: "
        f"{call_text(view, row)} in {site_text(view, row)} comes after the loop and was never called before; "
        f"the usual next call is {theirs}"
    )


def _took_branch(view: JobView, cause: Cause) -> tuple[str, ...]:
    """What the program did where the call is new to the whole job."""
    programs, row = programs_of(view.trace), cause.culprit_row
    is_known = cause.divergence is not None and cause.divergence.basis != "tie" and programs.is_usual(cause.peer_row)
    site = site_text(view, row)
    if not (is_known and site and site != site_text(view, cause.peer_row) and _is_new(view, programs, cause)):
        return ()
    return (f"{ranks_phrase(cause.ranks)} took another branch: {site} was never called before",)


def _after_steps(view: JobView, cause: Cause) -> str:
    """`, after 9 steps`, where the collector counted the same number on all culprits."""
    manifests = view.trace.table("manifests")
    counted = dict(zip(manifests.array("rank").tolist(), manifests.array("n_steps").tolist(), strict=True))
    numbers = {counted.get(rank, MISSING) for rank in cause.ranks}
    n_steps = numbers.pop() if len(numbers) == 1 else MISSING
    return f", after {count_noun(n_steps, 'step')}" if n_steps > 0 else ""


def _is_new(view: JobView, programs: Programs, cause: Cause) -> bool:
    """Whether only the culprits made the call, and neither it nor the calls after it are part of their steps."""
    same = programs.token == programs.token[cause.culprit_row]
    if not set(view.rank[same].tolist()) <= set(cause.ranks):
        return False
    return not any(programs.is_known(row) for row in programs.following(cause.culprit_row).tolist())


def _used_to_go_on(programs: Programs, row: int, peer: int) -> bool:
    return any(programs.token[other] == programs.token[peer] for other in programs.precedents(row))


def _comes_after_the_loop(view: JobView, programs: Programs, row: int) -> bool:
    points = {int(view.signatures.point[other]): other for other in programs.preceding(row, _MAX_COMPARED).tolist()}
    others = [other for other in points.values() if user_frames(view, other)[0]]
    return bool(others) and all(comes_after_loop(view, row, other) for other in others)
