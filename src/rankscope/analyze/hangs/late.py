"""H110, H111: what the states of the collectives tell beside the cause."""

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
    """Collectives are recorded as completed, but later than their time-out: the abort ended them, not the network.

    What it means: when a communicator is aborted its stuck kernels end, and the recorder then writes `completed`.
    These calls did not succeed; rankscope treats them as unfinished.

    Why it happens: the watchdog's time-out passed and the job was torn down before the dump was written.

    What to do: nothing about these calls; the cause is the finding above them.

    What could fool it: a watchdog that itself hung for longer than the time-out notices honest completions late.
    """
    view = job_view(trace)
    rows = np.flatnonzero(view.calls.text("status").equals("aborted"))
    if not len(rows):
        return
    ranks = tuple(sorted({int(rank) for rank in view.rank[rows]}))
    first = int(rows[np.argmin(view.created[rows])])
    timeout = format_duration(int(view.calls.array("timeout_ns")[first]))
    yield Finding(
        code="H110",
        rule="late-completion",
        severity="info",
        certainty="certain",
        title=f"{count_noun(len(rows), 'call')} of {count_noun(len(ranks), 'rank')} ended only after the time-out of "
        f"{timeout}: aborted, not completed",
        ranks=(),
        group=group_ref(view, int(view.group[first])),
        location=location_of(view, first),
        evidence=Evidence(
            certain=("they are counted as unfinished here, whatever their recorded state",),
            facts={"n_calls": len(rows), "ranks": list(ranks[:64])},
        ),
        help="look at the first error; these are its traces",
    )


@rule("H111", "unfinished", needs=("collectives", "groups"))
def unfinished(trace: Trace) -> Iterator[Finding | Effect | Skipped]:
    """The first collective of each group that has not completed.

    What it means: a status line per process group: where its progress ended. In a hang most groups stand still
    because of one of them.

    Why it happens: the job hangs, or the dumps were taken while it was running.

    What to do: read the cause first; this list shows how far each group came.

    What could fool it: dumps of a running job are not taken at one instant, so the newest calls are always
    unfinished somewhere.
    """
    if ended_well(trace) or came_to_an_end(trace):
        yield Skipped("the job ended well: what its dumps show as unfinished ended after they were written")
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
        code="H111",
        rule="unfinished",
        severity="info",
        certainty="certain",
        title=f"{count_noun(len(groups), 'group')} {'has' if len(groups) == 1 else 'have'} an unfinished collective; "
        f"the oldest is {call_text(view, oldest)} of {where}",
        evidence=Evidence(
            comparison=_progress(view, shown),
            notes=(f"{n_more} more groups: `rankscope query PATH 'select * from matches'`",) if n_more else (),
            facts={"n_groups": len(groups)},
        ),
    )
    # Beside a cause this is one of its effects; alone it is the status of a job that was still running.
    yield Effect(finding) if causes_of(trace) else finding


def _unnoticed(view: JobView) -> Iterator[Finding]:
    """Ends that peers saw and a rank did not: most likely its dump is a moment older, so this is no warning."""
    is_inferred = view.calls.array("status_inferred") & ~view.ends_unrecorded
    rows = np.flatnonzero(is_inferred & view.is_done & ~view.is_p2p & ~view.is_member)
    if not len(rows):
        return
    ranks = tuple(np.unique(view.rank[rows]).tolist())
    first = int(rows[np.argmin(view.created[rows])])
    where = f"seq {int(view.seq[first])} of {group_text(view, int(view.group[first]))}"
    yield Finding(
        code="H111",
        rule="unfinished",
        severity="info",
        certainty="certain",
        title=f"{ranks_phrase(ranks)} did not record the end of {call_text(view, first)} ({where}), which peers saw "
        f"complete{f'; {len(rows) - 1} later ones likewise' if len(rows) > 1 else ''}",
        group=group_ref(view, int(view.group[first])),
        location=location_of(view, first),
        evidence=Evidence(
            likely=(f"the dump of {ranks_phrase(ranks)} was taken a moment before the others",),
            notes=("counted as done; `rankscope fr PATH -j` marks them as inferred",),
            facts={"n_calls": len(rows), "ranks": list(ranks[:64])},
        ),
        help=f"if the job hung when the dumps were taken, {ranks_phrase(ranks)} is where to look: device errors, links",
    )


def _unrecorded(view: JobView) -> Iterator[Finding]:
    """All ranks have made the same calls, and nobody has seen them end: neither a hang nor its absence is shown."""
    for group, name in list(view.blind_groups.items())[:_MAX_GROUPS]:
        last = int(np.flatnonzero(view.ends_unrecorded & (view.group == group))[-1])
        members = view.members[group]
        where = f"seq {int(view.seq[last])} of {group_text(view, group)}"
        yield Finding(
            code="H111",
            rule="unfinished",
            severity="info",
            certainty="certain",
            title=f"whether the last call, {call_text(view, last)} ({where}), completed is not recorded",
            group=group_ref(view, group),
            location=location_of(view, last),
            evidence=Evidence(
                certain=("no member is behind in the collectives of the group", blind_backend(view, group)),
                notes=("counted as done; `rankscope fr PATH -j` marks them as inferred",),
                facts={"backend": name, "n_members": len(members)},
            ),
            help="if the job hung when the dumps were taken, the Python stacks of its ranks show where: "
            "rankscope record, py-spy dump --pid",
        )


def _progress(view: JobView, shown: Sequence[Array]) -> Comparison:
    """Per group the first unfinished collective, and how many of its members wait in it."""
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
