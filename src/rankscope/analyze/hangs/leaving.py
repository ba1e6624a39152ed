"""Ranks that left the training loop before their peers and are in a call that comes after the loop."""

from __future__ import annotations

from rankscope.analyze.hangs.cause import Cause
from rankscope.analyze.hangs.evidence import call_text, comes_later, site_text, user_frames
from rankscope.analyze.hangs.programs import Programs, programs_of
from rankscope.analyze.hangs.view import JobView
from rankscope.model.finding import ranks_phrase

_MAX_COMPARED = 64  # calls of its past, each from another point of the program, that the rank's call must come after
HELP = "give all ranks the same number of batches (drop_last, a sampler that pads), or end the loop on all together"


def left_early(view: JobView, cause: Cause) -> str:
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
    return bool(others) and all(comes_later(view, row, other) for other in others)
