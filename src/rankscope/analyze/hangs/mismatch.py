"""H102-H104: calls that do not fit what the other ranks of the group called at the same position."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from rankscope.analyze.hangs.cause import Cause
from rankscope.analyze.hangs.evidence import differences, dtype_text, group_text, shape_text, stack_groups
from rankscope.analyze.hangs.leaving import HELP, left_early
from rankscope.analyze.hangs.view import JobView
from rankscope.analyze.hangs.wording import (
    NEEDS,
    compare_with,
    findings_of,
    make_evidence,
    make_finding,
    normal_rows,
    peers_phrase,
)
from rankscope.analyze.registry import Effect, rule
from rankscope.model.finding import Finding, ranks_phrase
from rankscope.model.tables import Trace

_BASIS = {
    "majority": "the other members of the group agree with each other",
    "siblings": "the group is split evenly, but the groups of the same role made the other call at this point",
    "history": "the group is split evenly, but in earlier steps the rank made the call that its peer made now",
    "totals": "its amounts are not those of the other ranks",
}
_TIE = "the group is split evenly and nothing tells which side is right: both are named"


@rule("H102", "op-mismatch", needs=NEEDS)
def op_mismatch(trace: Trace) -> Iterator[Finding | Effect]:
    """Ranks of one group called different operations at the same position.

    What it means: the n-th call of a process group must be the same operation on every member. One rank called
    another one, so neither call can ever complete, and every rank that depends on them waits.

    Why it happens: a branch that is taken on some ranks only (a condition on local data, a rank number, a NaN
    check), an exception handler that goes on with other collectives, or two code versions in one job. A rank with fewer
    batches leaves the training loop early and is at the call after it: the finding says so where the lines show it.

    What to do: make the condition the same on all ranks, for example by an all_reduce of the flag before the branch.
    Compare the two source lines shown.

    What could fool it: in a group of two, nobody is in the majority. Then sibling groups and earlier steps decide,
    and the finding says so; when these are silent too, both ranks are named. A rare branch further down in the loop
    than all its other calls looks like the end of the loop.
    """
    yield from findings_of(trace, "H102", _describe_op)


def _describe_op(view: JobView, cause: Cause) -> Finding:
    ops = view.calls.text("op")
    title = _title(view, cause, "called", ops[cause.culprit_row], ops[cause.peer_row])
    return _mismatch(view, cause, title, "make the condition that leads to these two calls the same on all ranks")


@rule("H103", "size-mismatch", needs=NEEDS)
def size_mismatch(trace: Trace) -> Iterator[Finding | Effect]:
    """Ranks of one group made the same call with different sizes.

    What it means: the operation agrees, the number of elements does not. Collectives such as all_reduce then hang,
    fail, or silently mix up data. all_to_all, gather, scatter and the uneven forms of all_gather and reduce_scatter are
    judged by their own rules: there, different sizes are fine as long as they fit each other.

    Why it happens: a last batch of another length, padding to the local maximum, an uneven shard, a parameter that
    exists on some ranks only.

    What to do: pad or drop so that all ranks have the same shape, or use an operation that allows uneven sizes.

    What could fool it: shapes may differ as long as the number of elements agrees; the split sizes of an
    all_to_all are not recorded, so only its totals can be checked. Sizes that differed in a call which ended on all
    ranks, and after which they went on, are no error: `rankscope fr PATH` lists them.
    """
    yield from findings_of(trace, "H103", _describe_size)


def _describe_size(view: JobView, cause: Cause) -> Finding:
    return _describe_argument(view, cause, shape_text, "size")


def _describe_argument(view: JobView, cause: Cause, describe: Callable[[JobView, int], str], what: str) -> Finding:
    """The same operation with another size or type of its tensor."""
    if cause.divergence is None:
        return _describe_transfer(view, cause, describe, what)
    op = view.calls.text("op")[cause.peer_row]
    rows = (cause.culprit_row, cause.peer_row)
    culprit, peer = (describe(view, row) for row in rows)
    if culprit == peer:  # of many tensors only the first is told: here it is another one
        culprit, peer = differences(view, *rows) or (culprit, peer)
    title = _title(view, cause, f"called {op} with", culprit, peer)
    return _mismatch(view, cause, title, f"give the tensor the same {what} on all ranks of the group before the call")


def _describe_transfer(view: JobView, cause: Cause, describe: Callable[[JobView, int], str], what: str) -> Finding:
    """A send and its receive that do not fit."""
    rows = sorted(view.rows_of_match(cause.match).tolist(), key=lambda row: view.calls.text("op")[row])
    receiver, sender = rows[0], rows[-1]
    title = (
        f"rank {int(view.rank[sender])} sends {describe(view, sender)} and rank {int(view.rank[receiver])} "
        f"expects {describe(view, receiver)}"
    )
    certain = (f"a receive completes only with a send of its {what}",)
    evidence = make_evidence(view, cause, 2, certain=certain, stacks=stack_groups(view, rows))
    return make_finding(view, cause, title, evidence, f"make both sides agree on the {what} before the transfer")


@rule("H104", "dtype-mismatch", needs=NEEDS)
def dtype_mismatch(trace: Trace) -> Iterator[Finding | Effect]:
    """Ranks of one group made the same call with different element types.

    What it means: operation and number of elements agree, the types do not, so the ranks disagree about the bytes.
    The collective hangs, fails, or mixes up data.

    Why it happens: autocast or a cast on some ranks only, a checkpoint loaded in another precision, a Python number
    that became int64 here and float32 there.

    What to do: cast to one type before the call, on every rank.

    What could fool it: dumps before layout 2.1 record no types: what their ranks passed is unknown, and counts as
    fitting.
    """
    yield from findings_of(trace, "H104", _describe_dtype)


def _describe_dtype(view: JobView, cause: Cause) -> Finding:
    return _describe_argument(view, cause, dtype_text, "type")


def _title(view: JobView, cause: Cause, verb: str, culprit: str, peer: str) -> str:
    """`rank 513 called all_gather where its 63 peers called all_reduce`, or both sides of a tie."""
    again = "called" if verb == "called" else "passed"
    if cause.divergence is not None and cause.divergence.basis == "tie":
        odd_rank, peer_rank = int(view.rank[cause.culprit_row]), int(view.rank[cause.peer_row])
        where = f"at the same position of {group_text(view, cause.group)}"
        return f"rank {odd_rank} {verb} {culprit} and rank {peer_rank} {again} {peer} {where}"
    theirs = "its" if len(cause.ranks) == 1 else "their"
    peers = peers_phrase([int(view.rank[row]) for row in normal_rows(view, cause)], theirs)
    return f"{ranks_phrase(cause.ranks)} {verb} {culprit} where {peers} {again} {peer}"


def _mismatch(view: JobView, cause: Cause, title: str, help_text: str) -> Finding:
    divergence = cause.divergence
    assert divergence is not None
    is_tie = divergence.basis == "tie"
    peers = normal_rows(view, cause)
    if is_tie:
        whole = view.signatures.whole
        peers = [row for row in view.rows_of_match(cause.match).tolist() if whole[row] == whole[cause.peer_row]]
    peer_ranks = sorted(int(view.rank[row]) for row in peers)
    odd_ranks = [rank for rank in cause.ranks if rank not in peer_ranks]
    who = _TIE
    if not is_tie:
        is_are = "is the odd one" if len(odd_ranks) == 1 else "are the odd ones"
        who = f"{ranks_phrase(odd_ranks)} {is_are} out: {_BASIS[divergence.basis]}"
    is_certain = cause.certainty == "certain"
    early = left_early(view, cause)
    evidence = make_evidence(
        view,
        cause,
        len(peer_ranks),
        certain=("the calls can never complete together", *([who] if is_certain else [])),
        likely=(*([] if is_certain else [who]), *([early] if early else [])),
        comparison=compare_with(view, cause, peer_ranks, odd_ranks),
        stacks=(*stack_groups(view, [cause.culprit_row], "culprit"), *stack_groups(view, peers, "peers")),
        facts={"basis": divergence.basis},
    )
    return make_finding(view, cause, title, evidence, HELP if early else help_text)
