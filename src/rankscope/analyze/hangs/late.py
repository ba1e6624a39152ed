"""H110, H111: what the states of the collectives show in addition to the cause."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from rankscope.analyze.hangs.evidence import call_text, group_ref, group_text, location_of
from rankscope.analyze.hangs.verdict import causes_of
from rankscope.analyze.hangs.view import JobView, job_view
from rankscope.analyze.hangs.wording import blind_backend
from rankscope.analyze.manifests import came_to_an_end, ended_well
from rankscope.analyze.registry import Effect, Skipped, rule
from rankscope.model.finding import Comparison, Evidence, Finding, Side, count_noun, format_duration, ranks_phrase
from rankscope.model.tables import Array, Trace

_MAX_GROUPS = 8


@rule("H110", "late-completion", needs=("collectives", "groups"))
def late_completion(trace: Trace) -> Iterator[Finding | Effect]:
    """Collectives are recorded as completed, but only after their timeout: they were aborted.

    What it means: when a communicator is aborted, its stuck kernels end, and the recorder then writes `completed`.
    These calls did not succeed; rankscope treats them as unfinished.

    Why it happens: the watchdog's timeout expired, and the job was torn down before the dump was written.

    What to do: nothing about these calls; fix the cause in the first finding.

    What could fool it: a watchdog that itself hung for longer than the timeout records normal completions late.
    """
    view = job_view(trace)
    rows = np.flatnonzero(view.calls.text("status").equals("aborted"))
    if not len(rows):
        return
    ranks = tuple(sorted({int(rank) for rank in view.rank[rows]}))
    first = int(rows[np.argmin(view.created[rows])])
    timeout = format_duration(int(view.calls.array("timeout_ns")[first]))
    yield Finding(
        severity="info",
        certainty="certain",
        title=f"{count_noun(len(rows), 'call')} of {count_noun(len(ranks), 'rank')} ended only after the timeout of "
        f"{timeout}: they were aborted and did not complete",
        ranks=(),
        group=group_ref(view, int(view.group[first])),
        location=location_of(view, first),
        evidence=Evidence(
            certain=("they count as unfinished, although their recorded state is `completed`",),
            facts={"n_calls": len(rows), "ranks": list(ranks[:64])},
        ),
        help="fix the first error in this report: the aborts follow from it",
    )


@rule("H111", "unfinished", needs=("collectives", "groups"))
def unfinished(trace: Trace) -> Iterator[Finding | Effect | Skipped]:
    """The first unfinished collective of each group.

    What it means: one line per process group that shows where its progress ended. In a hang, one group usually blocks
    most of the others.

    Why it happens: the job hangs, or the dumps were taken while it was running.

    What to do: read the cause first; this list shows how far each group got.

    What could fool it: dumps of a running job are not taken at the same instant, so some of the newest calls always
    look unfinished.
    """
    if ended_well(trace) or came_to_an_end(trace):
        yield Skipped("the job ended normally: calls that look unfinished completed after the dumps were written")
        return
    view = job_view(trace)
    matches = trace.table("matches")
    is_open = np.flatnonzero(~matches.array("is_p2p") & (matches.array("n_done") < matches.array("n_joined")))
    groups, first = np.unique(matches.array("group_id")[is_open], return_index=True)
    if not len(groups):
        if not causes_of(trace):
            yield from _unnoticed(view)
            yield from _unrecorded(view)
        return
    firsts = is_open[first]
    order = np.argsort(matches.array("first_created_ns")[firsts], kind="stable")
    rows = [view.rows_of_match(int(match)) for match in firsts[order]]
    shown = rows[:_MAX_GROUPS]
    oldest = int(rows[0][0])
    where = f"{group_text(view, int(view.group[oldest]))}, seq {int(view.seq[oldest])}"
    n_more = len(rows) - len(shown)
    finding = Finding(
        severity="info",
        certainty="certain",
        title=f"{count_noun(len(groups), 'group')} {'has' if len(groups) == 1 else 'have'} an unfinished collective; "
        f"the oldest is {call_text(view, oldest)} of {where}",
        evidence=Evidence(
            comparison=_progress(view, shown),
            notes=(f"{count_noun(n_more, 'more group')}: `rankscope query PATH 'select * from matches'`",)
            if n_more
            else (),
            facts={"n_groups": len(groups)},
        ),
    )
    # With a cause this is one of its effects; alone it is the status of a job that was still running.
    yield Effect(finding) if causes_of(trace) else finding


def _unnoticed(view: JobView) -> Iterator[Finding]:
    """Completions that peers recorded and a rank did not: most likely its dump is a little older, so no warning."""
    is_inferred = view.calls.array("status_inferred") & ~view.ends_unrecorded
    rows = np.flatnonzero(is_inferred & view.is_done & ~view.is_p2p & ~view.is_member)
    if not len(rows):
        return
    ranks = tuple(np.unique(view.rank[rows]).tolist())
    dumps = f"the dump of rank {ranks[0]} was" if len(ranks) == 1 else f"the dumps of {ranks_phrase(ranks)} were"
    first = int(rows[np.argmin(view.created[rows])])
    where = f"seq {int(view.seq[first])} of {group_text(view, int(view.group[first]))}"
    later = f" and {count_noun(len(rows) - 1, 'later call')}" if len(rows) > 1 else ""
    yield Finding(
        severity="info",
        certainty="certain",
        title=f"{ranks_phrase(ranks)} did not record that {call_text(view, first)} ({where}){later} completed, "
        "but peers did",
        group=group_ref(view, int(view.group[first])),
        location=location_of(view, first),
        evidence=Evidence(
            likely=(f"{dumps} taken a moment before the others",),
            notes=("counted as done; `rankscope fr PATH -j` marks them as inferred",),
            facts={"n_calls": len(rows), "ranks": list(ranks[:64])},
        ),
        help=f"if the job hung when the dumps were taken, check {ranks_phrase(ranks)} for device and link errors",
    )


def _unrecorded(view: JobView) -> Iterator[Finding]:
    """All ranks made the same calls, and no rank recorded their ends: whether the job hangs is unknown."""
    for group, name in list(view.blind_groups.items())[:_MAX_GROUPS]:
        last = int(np.flatnonzero(view.ends_unrecorded & (view.group == group))[-1])
        members = view.members[group]
        where = f"seq {int(view.seq[last])} of {group_text(view, group)}"
        yield Finding(
            severity="info",
            certainty="certain",
            title=f"the dumps do not show whether the last call, {call_text(view, last)} ({where}), completed",
            group=group_ref(view, group),
            location=location_of(view, last),
            evidence=Evidence(
                certain=("all members of the group made the same number of calls", blind_backend(view, group)),
                notes=("counted as done; `rankscope fr PATH -j` marks them as inferred",),
                facts={"backend": name, "n_members": len(members)},
            ),
            help="if the job hung, collect the Python stacks of its ranks: run it under `rankscope record`, or use "
            "`py-spy dump --pid PID`",
        )


def _progress(view: JobView, shown: Sequence[Array]) -> Comparison:
    """The first unfinished collective of each group, and how many members are waiting in it."""
    firsts = [int(rows[0]) for rows in shown]
    n_waiting = [int(np.count_nonzero(~view.is_done[rows])) for rows in shown]
    sizes = [len(view.members[int(view.group[row])]) for row in firsts]
    return Comparison(
        "group",
        tuple(group_text(view, int(view.group[row])) for row in firsts),
        (
            Side("first unfinished", (), tuple(f"seq {int(view.seq[row])}  {call_text(view, row)}" for row in firsts)),
            Side("waiting", (), tuple(f"{n} of {size}" for n, size in zip(n_waiting, sizes, strict=True))),
        ),
    )
