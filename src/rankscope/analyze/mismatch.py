"""H102-H104, H106: calls that do not fit what the other ranks of the group called."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from rankscope.analyze.evidence import (
    call_text,
    collective_ref,
    compare_sides,
    group_ref,
    group_text,
    location_of,
    shape_text,
    side_label,
    site_text,
    stack_groups,
)
from rankscope.analyze.programs import Shift
from rankscope.analyze.registry import RULES, Effect, rule
from rankscope.analyze.verdict import Cause, causes_of
from rankscope.analyze.view import JobView, job_view
from rankscope.model.finding import Evidence, Finding, count_noun, ranks_phrase
from rankscope.model.tables import MISSING, Trace

Describe = Callable[[JobView, Cause], Finding]
_NEEDS = ("collectives", "groups")
_BASIS = {
    "majority": "the other members of the group agree with each other",
    "siblings": "the group is split evenly, but the groups of the same role made the other call at this point",
    "history": "the group is split evenly, but in its earlier steps the rank made the same call as its peer",
    "tie": "the group is split evenly and nothing tells which side is right",
    "totals": "its amounts are not those of the other ranks",
}


def findings_of(trace: Trace, code: str, describe: Describe) -> Iterator[Finding | Effect]:
    """The causes that fall under a rule, each put into words by `describe`."""
    view = job_view(trace)
    for cause in causes_of(trace):
        if cause.rule == RULES[code].name:
            finding = describe(view, cause)
            yield Effect(finding) if cause.is_effect else finding


def waiting_ns(view: JobView, cause: Cause) -> int | None:
    """How long the call has been waited in, as far as the records tell: they do not say when the dump was written."""
    if cause.match == MISSING:
        return None
    rows = [row for row in view.rows_of_match(cause.match).tolist() if not view.is_done[row]]
    if not rows:
        return None
    since = min(int(view.calls.array("created_ns")[row]) for row in rows)
    timeout = int(view.calls.array("timeout_ns")[rows[0]])
    is_aborted = any(view.calls.text("status")[row] == "aborted" for row in rows)
    if is_aborted:
        return timeout
    waited = view.last_activity_ns - since
    return waited if waited >= 1_000_000_000 else None


def blocked_note(cause: Cause, n_direct: int) -> tuple[str, ...]:
    others = len(cause.blocked) - n_direct
    if others <= 0:
        return ()
    return (
        f"{count_noun(others, 'rank')} in other groups {'waits' if others == 1 else 'wait'} for these: effects, not listed (--all)",
    )


def normal_rows(view: JobView, cause: Cause) -> list[int]:
    """The calls of the members that are not to blame, at the position in question."""
    rows = view.rows_of_match(cause.match).tolist() if cause.match != MISSING else []
    return [row for row in rows if int(view.rank[row]) not in cause.ranks]


def _mismatch(view: JobView, cause: Cause, code: str, verdict: str, help_text: str) -> Finding:
    divergence = cause.divergence
    assert divergence is not None
    is_tie = divergence.basis == "tie"
    peers = normal_rows(view, cause)
    if is_tie:
        peers = [
            row
            for row in view.rows_of_match(cause.match).tolist()
            if view.signatures.whole[row] == view.signatures.whole[cause.peer_row]
        ]
    peer_ranks = sorted(int(view.rank[row]) for row in peers)
    odd_ranks = [rank for rank in cause.ranks if rank not in peer_ranks] or list(cause.ranks)
    sides = [(side_label(peer_ranks), peer_ranks), (side_label(odd_ranks), odd_ranks)]
    certain = ["the calls can never complete together"] if cause.certainty == "certain" or is_tie else []
    who = f"{ranks_phrase(odd_ranks)} {'is' if len(odd_ranks) == 1 else 'are'} the odd one out: {_BASIS[divergence.basis]}"
    if is_tie:
        who = f"{_BASIS['tie']}: both sides are named"
    return Finding(
        code=code,
        rule=cause.rule,
        severity="error",
        certainty=cause.certainty,
        title=verdict,
        ranks=cause.ranks,
        group=group_ref(view, cause.group),
        collective=collective_ref(view, cause.peer_row),
        location=location_of(view, cause.culprit_row),
        peer_location=location_of(view, cause.peer_row),
        evidence=Evidence(
            certain=(*certain, who) if cause.certainty == "certain" else tuple(certain),
            likely=() if cause.certainty == "certain" else (who,),
            notes=blocked_note(cause, len(peer_ranks)),
            comparison=compare_sides(view, cause.group, cause.seq, sides),
            stacks=(*stack_groups(view, [cause.culprit_row], "culprit"), *stack_groups(view, peers, "peers")),
            waiting_ns=waiting_ns(view, cause),
            n_blocked=len(cause.blocked),
            facts={"basis": divergence.basis},
        ),
        help=help_text,
    )


def _sides_phrase(view: JobView, cause: Cause, culprit: str, peer: str) -> str:
    """`rank 513 called A where its 63 peers called B`, or both sides of a tie."""
    divergence = cause.divergence
    assert divergence is not None
    n_peers = len(normal_rows(view, cause))
    if divergence.basis == "tie":
        culprit_rank, peer_rank = int(view.rank[cause.culprit_row]), int(view.rank[cause.peer_row])
        return f"rank {culprit_rank} called {culprit} and rank {peer_rank} called {peer} at the same position of {group_text(view, cause.group)}"
    theirs = "its" if len(cause.ranks) == 1 else "their"
    return f"{ranks_phrase(cause.ranks)} called {culprit} where {theirs} {count_noun(n_peers, 'peer')} called {peer}"


@rule("H102", "op-mismatch", needs=_NEEDS)
def op_mismatch(trace: Trace) -> Iterator[Finding | Effect]:
    """Ranks of one group called different operations at the same position.

    What it means: the n-th call of a process group must be the same operation on every member. One rank called
    another one, so neither call can ever complete, and every rank that depends on them waits.

    Why it happens: a branch that is taken on some ranks only (a condition on local data, a rank number, a NaN
    check), an exception handler that goes on with other collectives, or two code versions in one job.

    What to do: make the condition the same on all ranks, for example by an all_reduce of the flag before the branch.
    Compare the two source lines shown.

    What could fool it: in a group of two, nobody is in the majority. Then sibling groups and earlier steps decide,
    and the finding says so; when these are silent too, both ranks are named.
    """

    def describe(view: JobView, cause: Cause) -> Finding:
        ops = view.calls.text("op")
        title = _sides_phrase(view, cause, ops[cause.culprit_row], ops[cause.peer_row])
        return _mismatch(
            view, cause, "H102", title, "make the condition that leads to these two calls the same on all ranks"
        )

    yield from findings_of(trace, "H102", describe)


@rule("H103", "size-mismatch", needs=_NEEDS)
def size_mismatch(trace: Trace) -> Iterator[Finding | Effect]:
    """Ranks of one group made the same call with different sizes.

    What it means: the operation agrees, the number of elements does not. Collectives such as all_reduce then hang,
    fail, or silently mix up data. all_to_all, gather, scatter and the uneven forms of all_gather and reduce_scatter are
    judged by their own rules: there, different sizes are fine as long as they fit each other.

    Why it happens: a last batch of another length, padding to the local maximum, an uneven shard, a parameter that
    exists on some ranks only.

    What to do: pad or drop so that all ranks have the same shape, or use an operation that allows uneven sizes.

    What could fool it: shapes may differ as long as the number of elements agrees; the split sizes of an
    all_to_all are not recorded, so only its totals can be checked.
    """

    def describe(view: JobView, cause: Cause) -> Finding:
        if cause.divergence is None:
            return _transfer_sizes(view, cause)
        op = view.calls.text("op")[cause.peer_row]
        culprit, peer = (f"{op} with {shape_text(view, row)}" for row in (cause.culprit_row, cause.peer_row))
        title = _sides_phrase(
            view, cause, culprit, peer.removeprefix(f"{op} ") if cause.divergence.basis != "tie" else peer
        )
        title = title.replace("peers called with", "peers passed").replace("peer called with", "peer passed")
        return _mismatch(view, cause, "H103", title, "give the tensor the same size on all ranks of the group")

    yield from findings_of(trace, "H103", describe)


def _transfer_sizes(view: JobView, cause: Cause) -> Finding:
    """A send and its receive that do not fit."""
    rows = sorted(view.rows_of_match(cause.match).tolist(), key=lambda row: view.calls.text("op")[row], reverse=True)
    sender, receiver = rows[0], rows[-1]
    return Finding(
        code="H103",
        rule="size-mismatch",
        severity="error",
        certainty="certain",
        title=f"rank {int(view.rank[sender])} sends {shape_text(view, sender)} and rank {int(view.rank[receiver])} expects {shape_text(view, receiver)}",
        ranks=cause.ranks,
        group=group_ref(view, cause.group),
        collective=collective_ref(view, sender),
        location=location_of(view, sender),
        peer_location=location_of(view, receiver),
        evidence=Evidence(
            certain=("a receive completes only with a send of its size",),
            notes=blocked_note(cause, 2),
            stacks=stack_groups(view, rows),
            waiting_ns=waiting_ns(view, cause),
            n_blocked=len(cause.blocked),
        ),
        help="make both sides agree on the shape before the transfer",
    )


@rule("H104", "dtype-mismatch", needs=_NEEDS)
def dtype_mismatch(trace: Trace) -> Iterator[Finding | Effect]:
    """Ranks of one group made the same call with different element types.

    What it means: operation and number of elements agree, the types do not, so the ranks disagree about the bytes.
    The collective hangs, fails, or mixes up data.

    Why it happens: autocast or a cast on some ranks only, a checkpoint loaded in another precision, a Python number
    that became int64 here and float32 there.

    What to do: cast to one type before the call, on every rank.

    What could fool it: nothing known; the recorder writes the type of every tensor since layout 2.1.
    """

    def describe(view: JobView, cause: Cause) -> Finding:
        op = view.calls.text("op")[cause.peer_row]
        culprit, peer = (f"{op} with {_full_dtype(view, row)}" for row in (cause.culprit_row, cause.peer_row))
        assert cause.divergence is not None
        title = _sides_phrase(
            view, cause, culprit, peer.removeprefix(f"{op} ") if cause.divergence.basis != "tie" else peer
        )
        title = title.replace("peers called with", "peers passed").replace("peer called with", "peer passed")
        return _mismatch(view, cause, "H104", title, "cast the tensor to the same type on all ranks before the call")

    yield from findings_of(trace, "H104", describe)


def _full_dtype(view: JobView, row: int) -> str:
    return call_text(view, row).rsplit(" ", 1)[-1]


@rule("H106", "call-skipped", needs=_NEEDS)
def call_skipped(trace: Trace) -> Iterator[Finding | Effect]:
    """A rank left out a call that its peers made, or made one more.

    What it means: from that call on everything the rank does in the group is shifted against its peers. As long as
    operation and sizes happen to agree nothing stops, and wrong values are combined; the hang shows later, where they
    no longer agree or where the counts run out.

    Why it happens: `continue` or an early `return` on one rank, a condition on local data around the call, a retry.

    What to do: look at the condition around the call that is named, not at the line where the job hangs.

    What could fool it: the verdict comes from the lines of user code that made the calls. Without stacks, or with all
    calls made from one line, a skipped call cannot be told from a late one.
    """

    def describe(view: JobView, cause: Cause) -> Finding:
        return _skipped(view, cause)

    yield from findings_of(trace, "H106", describe)


def _skipped(view: JobView, cause: Cause) -> Finding:
    shift, wrong_row = _shift_of(cause)
    verb = "skipped" if shift.kind == "skipped" else "made one call too many:"
    call = call_text(view, wrong_row)
    site = site_text(view, wrong_row)
    n_calls = f" and {shift.n_calls - 1} more" if shift.n_calls > 1 else ""
    title = f"{ranks_phrase(cause.ranks)} {verb} {call}{n_calls}" + (f" in {site}" if site else "")
    hang_row = _hang_row(view, cause)
    shown = "" if hang_row == MISSING else (
        f"the hang shows at {call_text(view, hang_row)} of {group_text(view, int(view.group[hang_row]))}, "
        f"seq {int(view.seq[hang_row])}" + (f", in {site_text(view, hang_row)}" if site_text(view, hang_row) else "")
    )  # fmt: skip
    peers = normal_rows(view, cause)
    peer_ranks = sorted(int(view.rank[row]) for row in peers)
    likely = f"the {count_noun(shift.n_agreeing, 'call')} that followed {'fits' if shift.n_agreeing == 1 else 'fit'} those of its peers when shifted by {shift.n_calls}"
    if not shift.n_agreeing:
        likely = "it made the same call twice in a row where its peers went on"
    sides = [(side_label(peer_ranks), peer_ranks), (side_label(cause.ranks), list(cause.ranks))]
    return Finding(
        code="H106",
        rule="call-skipped",
        severity="error",
        certainty=cause.certainty,
        title=title,
        ranks=cause.ranks,
        group=group_ref(view, cause.group),
        collective=collective_ref(view, cause.peer_row if cause.peer_row != MISSING else wrong_row),
        location=location_of(view, cause.culprit_row),
        peer_location=location_of(view, cause.peer_row),
        evidence=Evidence(
            certain=(f"at seq {cause.seq} of {group_text(view, cause.group)} its line differs from its peers'",)
            if peer_ranks
            else (),
            likely=(likely, *([shown] if shown else [])),
            notes=blocked_note(cause, len(peer_ranks)),
            comparison=compare_sides(view, cause.group, cause.seq, sides) if peer_ranks else None,
            stacks=(*stack_groups(view, [cause.culprit_row], "culprit"), *stack_groups(view, peers, "peers")),
            waiting_ns=waiting_ns(view, cause),
            n_blocked=len(cause.blocked),
            facts=_skip_facts(view, cause, wrong_row, hang_row),
        ),
        help="look at the condition around that call: it must hold on all ranks or on none",
    )


def _shift_of(cause: Cause) -> tuple[Shift, int]:
    """How the rank is shifted, and the call that was left out or made once more."""
    source = cause.divergence or cause.departure
    assert source is not None and source.shift is not None
    if source.shift.kind == "repeated":
        return source.shift, cause.culprit_row
    reference = (
        cause.divergence.reference if cause.divergence else cause.departure.expected if cause.departure else None
    )
    assert reference is not None
    return source.shift, reference.rows[0]


def _hang_row(view: JobView, cause: Cause) -> int:
    """The call in which the culprits, or else their peers in the group, wait now."""
    waiting: Sequence[int] = [view.first_waiting[rank] for rank in cause.ranks if rank in view.first_waiting]
    in_group = [
        view.first_waiting[rank]
        for rank in view.members[cause.group]
        if rank in view.first_waiting and int(view.group[view.first_waiting[rank]]) == cause.group
    ]
    return next(iter([*in_group, *waiting]), MISSING)


def _skip_facts(view: JobView, cause: Cause, wrong_row: int, hang_row: int) -> dict[str, object]:
    shift, _ = _shift_of(cause)
    site = location_of(view, wrong_row)
    facts: dict[str, object] = {"what": shift.kind, "n_calls": shift.n_calls, "n_agreeing": shift.n_agreeing}
    facts["call"] = {
        "op": view.calls.text("op")[wrong_row],
        "file": site.file if site else "",
        "line": site.line if site else 0,
    }
    if hang_row != MISSING:
        facts["hangs_at"] = {"group": group_ref(view, int(view.group[hang_row])).name, "seq": int(view.seq[hang_row])}
    return facts
