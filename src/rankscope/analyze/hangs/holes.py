"""D9xx: holes in the data: files that are missing, damaged or doubled, and rings that were too small."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from rankscope.analyze.hangs.dump_files import ranks_stale
from rankscope.analyze.hangs.verdict import causes_of
from rankscope.analyze.hangs.view import job_view
from rankscope.analyze.registry import Effect, rule
from rankscope.model.finding import Evidence, Finding, count_noun, format_ranks, ranks_phrase
from rankscope.model.replicas import outsiders, replica_size
from rankscope.model.tables import Trace

_MAX_FILES = 8


@rule("D901", "dump-missing", needs=("ranks", "groups"))
def dump_missing(trace: Trace) -> Iterator[Finding | Effect]:
    """Ranks that belong to the job left no readable dump.

    What it means: the groups name members of which there is no file here, or none that could be read.

    Why it happens: the process was gone before it could write, the file is on the disk of another node, or the copy
    was incomplete.

    What to do: collect the files of all nodes; look at the standard error of the ranks that wrote none.

    What could fool it: where the groups' members are not recorded (gloo with several groups) a missing rank
    with the highest number cannot be noticed.
    """
    view = job_view(trace)
    members = {rank for group in view.members for rank in group}
    missing = tuple(sorted(members - view.dumped - ranks_stale(trace)))  # D911 tells of stale ones
    causes = causes_of(trace)
    blamed = {rank for cause in causes if not cause.is_effect and cause.rule == "rank-lost" for rank in cause.ranks}
    missing = tuple(rank for rank in missing if rank not in blamed)
    if not missing:
        return
    is_decided = any(not cause.is_effect and cause.rule != "rank-lost" for cause in causes)
    note = "the verdict does not depend on them" if is_decided else "nothing that was read waits for them"
    yield Finding(
        code="D901",
        rule="dump-missing",
        severity="warning",
        certainty="certain",
        title=f"no readable dump from {ranks_phrase(missing)} of {len(members)}",
        ranks=missing,
        evidence=Evidence(notes=(note,) if is_decided or not causes else ()),
        help="collect the dumps of all nodes; where there is none, look at the rank's standard error",
    )


@rule("D902", "file-damaged", needs=("files",))
def file_damaged(trace: Trace) -> Iterator[Finding | Effect]:
    """Files that are empty, cut short, foreign or malicious.

    What it means: the file was left out, or only its readable part was used; all other files were judged as usual.

    Why it happens: the process was ended while it wrote its dump (a fixed name is truncated and written again), the
    disk was full, the copy was interrupted, or the file is something else under a dump's name. A pickle that asks
    for a class is refused: nothing in it was run.

    What to do: copy the file again if the original is whole; remove what is not a dump.

    What could fool it: a file that is damaged in a way that still reads well cannot be noticed.
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
        code="D902",
        rule="file-damaged",
        severity="warning",
        certainty="certain",
        title=title,
        ranks=ranks,
        evidence=Evidence(
            certain=(*(shown if len(damaged) > 1 else ()), *([f"and {rest} more"] if rest else [])),
            notes=("all other files were read and judged",),
            facts={"files": [{"path": row["path"], "problem": row["problem"]} for row in damaged]},
        ),
        help=damaged[0]["hint"],
    )


@rule("D903", "duplicate-rank", needs=("files",))
def duplicate_rank(trace: Trace) -> Iterator[Finding | Effect]:
    """Two or more dumps claim to be of the same rank.

    What it means: the dump with the newest call was used; the others were left out.

    Why it happens: dumps of an earlier run or attempt in the same folder, two prefixes in one tree, a copied file.

    What to do: keep the files of one run per folder, or choose them with --prefix.

    What could fool it: when the older files are of another run whose ranks died later, some ranks may speak of
    another run than the rest.
    """
    files = trace.table("files")
    doubled = list(files.take(np.flatnonzero(files.text("status").equals("duplicate"))).rows())
    if not doubled:
        return
    ranks = tuple(sorted({row["rank"] for row in doubled}))
    yield Finding(
        code="D903",
        rule="duplicate-rank",
        severity="warning",
        certainty="certain",
        title=f"more than one dump of {ranks_phrase(ranks)}: the newest was used",
        ranks=ranks,
        evidence=Evidence(
            certain=tuple(f"{row['path']} {row['problem']}" for row in doubled[:_MAX_FILES]),
            facts={"left_out": [row["path"] for row in doubled]},
        ),
        help="keep the dumps of one run in a folder of its own, or choose by --prefix",
    )


@rule("D911", "stale-dump", needs=("files",))
def stale_dump(trace: Trace) -> Iterator[Finding | Effect]:
    """A rank's dump is from another moment or attempt than those of its peers, and was not used.

    What it means: the file says nothing about where the rank was when the others hung. The verdict treats the rank as
    one without a dump.

    Why it happens: the rank died before it could write, and the file of an earlier run was still there under the same
    name; the dumps were taken one after another while the job went on; two attempts were copied into one folder; the
    clock of a host is wrong by more than ten minutes.

    What to do: remove the files of earlier runs before a job starts, or write each run into a folder of its own; take
    the dumps of all ranks at the same time.

    What could fool it: a clock that is wrong by more than ten minutes looks like another run. On gloo only times tell,
    as it does not record whether a call completed or failed.
    """
    files = trace.table("files")
    stale = list(files.take(np.flatnonzero(files.text("status").equals("stale"))).rows())
    if not stale:
        return
    ranks = tuple(sorted({row["rank"] for row in stale}))
    is_one = len(stale) == 1
    yield Finding(
        code="D911",
        rule="stale-dump",
        severity="warning",
        certainty="likely",
        title=f"{'the dump' if is_one else 'the dumps'} of {ranks_phrase(ranks)} "
        f"{'is' if is_one else 'are'} from another moment than the others: not used",
        ranks=ranks,
        evidence=Evidence(
            certain=tuple(f"{row['path']} {row['problem']}" for row in stale[:_MAX_FILES]),
            facts={"left_out": [row["path"] for row in stale]},
        ),
        help=stale[0]["hint"],
    )


@rule("D912", "replicas", needs=("group_config",))
def replicas(trace: Trace) -> Iterator[Finding | Effect]:
    """Ranks are not among the members of their own groups: the job is made of replicas that count from 0.

    What it means: every replica of a fault-tolerant job (torchft) numbers its own ranks from 0, so what one dump calls
    rank 1 is another rank than what the next one calls so. Each replica was judged as groups of its own.

    Why it happens: torchft starts one world per replica; the dumps are named by global ranks.

    What to do: nothing, where the size of the replicas was inferred. Otherwise pass it with --transform-ft and
    --group-world-size.

    What could fool it: files that were renamed: the rank in the name is then not the one that wrote the dump.
    """
    config = trace.table("group_config")
    strange = outsiders(config)
    if not strange:
        return
    size, ranks = replica_size(config), tuple(sorted(strange))
    facts = f"{ranks_phrase(ranks)} {'is' if len(ranks) == 1 else 'are'} no member of a group that the same dump lists"
    yield Finding(
        code="D912",
        rule="replicas",
        severity="info" if size else "warning",
        certainty="likely",
        title=f"the job is made of replicas of {count_noun(size, 'rank')}: each was judged on its own"
        if size
        else f"{facts}, and the size of the replicas cannot be inferred",
        ranks=() if size else ranks,
        evidence=Evidence(certain=(facts,) if size else (), facts={"replica_size": size}),
        help="if this is wrong, name the files by the ranks that wrote them"
        if size
        else "pass the size of a replica: --transform-ft --group-world-size N",
    )


@rule("D904", "ring-too-small", needs=("collectives", "ranks"))
def ring_too_small(trace: Trace) -> Iterator[Finding | Effect]:
    """The ring buffer had dropped what would have decided the verdict.

    What it means: some ranks' rings no longer hold the calls of a group that others of the group still show, so where
    they first differ may lie before the oldest call kept.

    Why it happens: the ring holds a number of calls over all groups of the process; a group with many calls drops
    the history of the others. The default is 2000.

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
    names = trace.table("groups").text("name")
    shown = ", ".join(names[group] for group in sorted(blind)[:_MAX_FILES])
    yield Finding(
        code="D904",
        rule="ring-too-small",
        severity="warning" if affected else "info",
        certainty="certain",
        title=f"the ring dropped all calls of {count_noun(len(blind), 'group')} ({shown}) "
        f"on {count_noun(len(ranks_blind), 'rank')}",
        ranks=ranks_blind,
        evidence=Evidence(
            certain=(f"{format_ranks(sorted(wrapped.tolist()), 8)} dropped calls: the ring was full",),
            notes=("the verdict rests on the counters of these ranks, not on their calls",) if affected else (),
        ),
        help="record with TORCH_FR_BUFFER_SIZE=20000 next time",
    )


def _blind_groups(trace: Trace) -> dict[int, set[int]]:
    """Groups that some rank has used but kept no call of."""
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
