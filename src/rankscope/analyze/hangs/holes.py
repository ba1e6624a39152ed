"""D9xx: holes in the data: missing, damaged or duplicate files, and ring buffers that were too small."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from rankscope.analyze.hangs.evidence import group_text
from rankscope.analyze.hangs.verdict import causes_of
from rankscope.analyze.hangs.view import JobView, job_view, may_hold_more, ranks_stale
from rankscope.analyze.manifests import ranks_elsewhere
from rankscope.analyze.registry import Effect, rule
from rankscope.model.finding import Evidence, Finding, count_noun, format_ranks, ranks_phrase
from rankscope.model.replicas import outsiders, replica_size
from rankscope.model.tables import Trace

_MAX_FILES = 8


@rule("D901", "dump-missing", needs=("ranks", "groups"))
def dump_missing(trace: Trace) -> Iterator[Finding | Effect]:
    """Ranks of the job left no readable dump.

    What it means: the process groups list members that have no readable file here.

    Why it happens: the process died before it could write, the file is on another node's disk, or the copy was
    incomplete.

    What to do: collect the files of all nodes, and check the stderr of the ranks that wrote none.

    What could fool it: if the members of the groups are not recorded (gloo with several groups), nothing shows that
    the rank with the highest number is missing.
    """
    view = job_view(trace)
    members = {rank for group in view.members for rank in group}
    missing = tuple(sorted(members - view.dumped - ranks_stale(trace)))  # D911 reports stale ones
    causes = causes_of(trace)
    blamed = {rank for cause in causes if not cause.is_effect and cause.rule == "rank-lost" for rank in cause.ranks}
    missing = tuple(rank for rank in missing if rank not in blamed)
    if not missing:
        return
    is_decided = any(not cause.is_effect and cause.rule != "rank-lost" for cause in causes)
    note = "the verdict does not depend on these ranks" if is_decided else "no rank with a dump is waiting for them"
    if set(missing) <= ranks_elsewhere(trace):
        yield Finding(
            severity="info",
            certainty="certain",
            title=f"{len(members) - len(missing)} of {len(members)} ranks are here: the others are on other nodes",
            ranks=missing,
            help="read the folders of all nodes together: `rankscope A B` reads both",
        )
        return
    if unopened := may_hold_more(trace):
        note = f"their dumps may be in {unopened[0]}, which is damaged: whether these ranks are lost is unknown"
    yield Finding(
        severity="warning",
        certainty="certain",
        title=f"no readable dump from {ranks_phrase(missing)} of {len(members)}",
        ranks=missing,
        evidence=Evidence(notes=(note,) if is_decided or not causes or unopened else ()),
        help="copy the archive again"
        if unopened
        else "collect the dumps of all nodes; if a rank wrote no dump, check its stderr",
    )


@rule("D902", "file-damaged", needs=("files",))
def file_damaged(trace: Trace) -> Iterator[Finding | Effect]:
    """Files are empty, truncated, malicious or not trace files.

    What it means: the file was ignored, or only its readable part was used. All other files were analyzed as usual.

    Why it happens: the process was killed while it wrote its dump (a fixed file name is truncated and written again),
    the disk was full, the copy was interrupted, or the file is only named like a dump. A pickle that asks for a class
    is refused: no code in it is run.

    What to do: copy the file again if the original is complete; remove files that are not dumps.

    What could fool it: damage that leaves the file readable is not detected.
    """
    files = trace.table("files")
    damaged = list(files.take(np.flatnonzero(files.text("status").equals("damaged"))).rows())
    if not damaged:
        return
    shown = [f"{row['path']} {row['problem']}" for row in damaged[:_MAX_FILES]]
    ranks = tuple(sorted({row["rank"] for row in damaged if row["rank"] >= 0}))
    title = (
        shown[0]
        if len(damaged) == 1
        else f"{len(damaged)} files are damaged" + (f" ({ranks_phrase(ranks)})" if ranks else "")
    )
    rest = len(damaged) - len(shown)
    yield Finding(
        severity="warning",
        certainty="certain",
        title=title,
        ranks=ranks,
        evidence=Evidence(
            certain=(*(shown if len(damaged) > 1 else ()), *([f"and {rest} more"] if rest else [])),
            notes=("all other files were read and analyzed",),
            facts={"files": [{"path": row["path"], "problem": row["problem"]} for row in damaged]},
        ),
        help=damaged[0]["hint"],
    )


@rule("D903", "duplicate-rank", needs=("files",))
def duplicate_rank(trace: Trace) -> Iterator[Finding | Effect]:
    """Two or more dumps are from the same rank.

    What it means: the dump with the newest call was used; the others were ignored.

    Why it happens: dumps of an earlier run or attempt in the same folder, two prefixes in one tree, a copied file.

    What to do: keep one run per folder, or select the files with --prefix.

    What could fool it: if the folder holds another run whose ranks died at different times, the newest dumps may mix
    the two runs.
    """
    files = trace.table("files")
    doubled = list(files.take(np.flatnonzero(files.text("status").equals("duplicate"))).rows())
    if not doubled:
        return
    ranks = tuple(sorted({row["rank"] for row in doubled}))
    yield Finding(
        severity="warning",
        certainty="certain",
        title=f"{ranks_phrase(ranks)} left more than one dump{'' if len(ranks) == 1 else ' each'}; the newest was used",
        ranks=ranks,
        evidence=Evidence(
            certain=tuple(f"{row['path']} {row['problem']}" for row in doubled[:_MAX_FILES]),
            facts={"left_out": [row["path"] for row in doubled]},
        ),
        help="keep the dumps of each run in a separate folder, or select one run with --prefix",
    )


@rule("D911", "stale-dump", needs=("files",))
def stale_dump(trace: Trace) -> Iterator[Finding | Effect]:
    """A rank's dump is from a different time or attempt than those of its peers, and was not used.

    What it means: the file does not show where the rank was when the others hung. The rank counts as one without a
    dump.

    Why it happens: the rank died before it could write, and the file of an earlier run still had the same name; the
    dumps were taken one after another while the job was running; two attempts were copied into one folder; a host's
    clock is wrong by more than ten minutes.

    What to do: remove the files of earlier runs before a job starts, or use a separate folder for each run. Take the
    dumps of all ranks at the same time.

    What could fool it: a clock that is wrong by more than ten minutes looks like a different run. On gloo only the
    times can show this, as it does not record whether a call completed or failed.
    """
    files = trace.table("files")
    stale = list(files.take(np.flatnonzero(files.text("status").equals("stale"))).rows())
    if not stale:
        return
    ranks = tuple(sorted({row["rank"] for row in stale}))
    is_one = len(stale) == 1
    yield Finding(
        severity="warning",
        certainty="likely",
        title=f"{'the dump' if is_one else 'the dumps'} of {ranks_phrase(ranks)} "
        f"{'is' if is_one else 'are'} from a different time than the others and {'was' if is_one else 'were'} not used",
        ranks=ranks,
        evidence=Evidence(
            certain=tuple(f"{row['path']} {row['problem']}" for row in stale[:_MAX_FILES]),
            facts={"left_out": [row["path"] for row in stale]},
        ),
        help=stale[0]["hint"],
    )


@rule("D912", "replicas", needs=("group_config",))
def replicas(trace: Trace) -> Iterator[Finding | Effect]:
    """The job consists of replicas that each number their ranks from 0.

    What it means: every replica of a fault-tolerant job (torchft) numbers its ranks from 0, so rank 1 is a different
    process in each replica, and some dumps list groups without the rank that wrote them. Each replica was analyzed
    separately.

    Why it happens: torchft starts one world per replica; the dumps are named by global ranks.

    What to do: nothing, if the size of the replicas was inferred. Otherwise pass it with --transform-ft and
    --group-world-size.

    What could fool it: renamed files: the rank in the file name is then not the rank that wrote the dump.
    """
    config = trace.table("group_config")
    strange = outsiders(config)
    if not strange:
        return
    size, ranks = replica_size(config), tuple(sorted(strange))
    are = "is not a member" if len(ranks) == 1 else "are not members"
    facts = f"{ranks_phrase(ranks)} {are} of any group in the same dump"
    yield Finding(
        severity="info" if size else "warning",
        certainty="likely",
        title=f"the job consists of replicas with {count_noun(size, 'rank')} each, which were analyzed separately"
        if size
        else f"{facts}, and the size of the replicas cannot be inferred",
        ranks=() if size else ranks,
        evidence=Evidence(certain=(facts,) if size else (), facts={"replica_size": size}),
        help="if this is wrong, name each file after the rank that wrote it"
        if size
        else "pass the size of a replica: --transform-ft --group-world-size N",
    )


@rule("D904", "ring-too-small", needs=("collectives", "ranks"))
def ring_too_small(trace: Trace) -> Iterator[Finding | Effect]:
    """The ring buffer dropped calls that the verdict needs.

    What it means: the ring buffers of some ranks no longer hold a group's calls, so the first difference between the
    ranks may be older than the oldest call that was kept.

    Why it happens: all groups of a process share one ring buffer with room for 2000 calls by default. A group with
    many calls pushes out the history of the others.

    What to do: run with TORCH_FR_BUFFER_SIZE=20000 (TORCH_NCCL_TRACE_BUFFER_SIZE before torch 2.9).

    What could fool it: nothing; the number of dropped calls is recorded.
    """
    ranks = trace.table("ranks")
    wrapped = ranks.array("rank")[ranks.array("n_dropped") > 0]
    if not len(wrapped):
        return
    view = job_view(trace)
    blind = _blind_groups(view.trace)
    causes = [cause for cause in causes_of(trace) if not cause.is_effect]
    affected = [cause for cause in causes if cause.group in blind]
    if not affected and not blind:
        return
    ranks_blind = tuple(sorted(set().union(*blind.values())))
    yield Finding(
        severity="warning" if affected else "info",
        certainty="certain",
        title=f"the ring buffer dropped all calls of {_groups_shortly(view, sorted(blind))} "
        f"on {count_noun(len(ranks_blind), 'rank')}",
        ranks=ranks_blind,
        evidence=Evidence(
            certain=(f"{_ranks_shortly(sorted(wrapped.tolist()))} dropped calls: the ring buffer was full",),
            notes=("the verdict is based on the counters of these ranks, not on their calls",) if affected else (),
        ),
        help="record with TORCH_FR_BUFFER_SIZE=20000 next time",
    )


def _groups_shortly(view: JobView, groups: list[int]) -> str:
    """`group 3 (tp)`, or `4 groups: group 3 (tp), group 4 (pp)`; groups of the same name are listed once."""
    names = list(dict.fromkeys(group_text(view, group) for group in groups))
    if len(groups) == 1:
        return names[0]
    more = ", ..." if len(names) > _MAX_FILES else ""
    return f"{count_noun(len(groups), 'group')}: {', '.join(names[:_MAX_FILES])}{more}"


def _ranks_shortly(ranks: list[int]) -> str:
    return f"{'rank' if len(ranks) == 1 else 'ranks'} {format_ranks(ranks, 8)}"


def _blind_groups(trace: Trace) -> dict[int, set[int]]:
    """Groups that some ranks have used, but kept no call of, with these ranks."""
    progress = trace.table("group_progress")
    dropped = {
        rank
        for rank, n in zip(
            trace.table("ranks").array("rank").tolist(), trace.table("ranks").array("n_dropped").tolist(), strict=True
        )
        if n > 0
    }
    blind: dict[int, set[int]] = {}
    kept, last, known = progress.array("n_kept"), progress.array("last_seq"), progress.array("known")
    for row in np.flatnonzero((kept == 0) & ((last > 0) | ~known)).tolist():
        rank = int(progress.array("rank")[row])
        if rank in dropped:
            blind.setdefault(int(progress.array("group_id")[row]), set()).add(rank)
    return blind
