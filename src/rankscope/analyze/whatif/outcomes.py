"""What-if: how long a step would take if nothing were slower than its peers."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from rankscope.analyze.derived import derived
from rankscope.analyze.metric import Selection, metric
from rankscope.analyze.path.links import middle
from rankscope.analyze.path.stages import stage_column
from rankscope.analyze.path.work import job_of
from rankscope.analyze.whatif.excerpt import OP_TYPES, Excerpt, find_excerpt
from rankscope.analyze.whatif.graph import (
    BALANCED,
    BUT_HOST,
    LIKE_ALL,
    LIKE_PEERS,
    LIKE_STAGES,
    ONLY_HOST,
    RECORDED,
    build_graph,
    but_type,
    only_type,
)
from rankscope.analyze.whatif.peers import TYPICAL, compare_with_peers
from rankscope.analyze.whatif.replay import Replay
from rankscope.errors import UsageError
from rankscope.model.finding import ranks_phrase
from rankscope.model.tables import MISSING, Array, Table, Trace, concat

_WORST_SHARE = 0.03
_MAX_RANKS = 64  # ranks looked at one by one: those that exceed their peers by the most
_MIN_GAIN = 0.005  # of the step: of less than this, shares would be shares of noise


@metric("whatif", "what_if", needs=("profiles",), settings={"ideal": "median"})
def what_if(trace: Trace, selection: Selection) -> Table:
    """One row per assumption: how long a step would take if some part of the job were as fast as its peers.

    The steps that all traces have in common are replayed. Each stream is split into runs at the points where it waits
    for another stream or another stream waits for it. A run starts when the previous run, everything it waits for and
    its launches are done; a collective starts to move data when its last member has joined, a receive when the send has
    started; and the host continues when what it waits for is done. The row `replayed` uses all durations as recorded:
    its difference from `recorded` is the error.

    The peers of what a rank does between two communication calls are the same parts of its program in all steps and on
    all ranks of its pipeline stage: one duration for each type of operation (forward, backward, optimizer) on the
    device, and one for the host, without waiting. The peers of a transfer are all those of the same operation, size and
    number of members, within one host or not. `ideal` is what replaces a duration: the `median` of the peers (of two,
    the shorter), or their `mean`. Stages are alike if each type of operation takes as long as in a typical stage.

    Kinds: in `all`, everything is as fast as its peers (its slowdown is S, the step divided by the step without
    slowness); in `ranks`, no rank is slower than its peers; in `balance`, the work of all stages is divided evenly.
    `rank`, `stage` and `type` change a single rank, stage or type, where types are forward, backward, optimizer, host,
    collectives or transfers. `worst-ranks` are the slowest 3% of ranks, at least one, and `last-stage` is the last
    stage: their shares are M_W and M_S of ByteDance's what-if study (OSDI 2025). slowdown is the reverse: the step with
    everything except this as fast as its peers, divided by the step with everything as fast as its peers. If `all`
    saves less than half a percent, there are no shares. Waits for ranks that were not traced stay as they were.
    """
    ideal = str(selection.settings["ideal"])
    if ideal not in TYPICAL:
        raise UsageError(f"ideal={ideal} is not supported", f"choose one of: {', '.join(TYPICAL)}")
    excerpt = find_excerpt(trace, selection)
    if excerpt is None:
        return concat("what_if", [])
    rank = job_of(trace).processes.rank[excerpt.processes]
    stage = stage_column(trace, rank)
    numbers, dense = np.unique(stage, return_inverse=True)
    peers = compare_with_peers(excerpt, dense.ravel() - int(numbers[0] == MISSING), TYPICAL[ideal])
    replay = Replay(build_graph(excerpt, peers, _usual_transfers(trace, excerpt, ideal)))
    if not replay.is_possible:
        return concat("what_if", [])
    answers = _answer(replay, [*_questions_of_all(len(rank)), *_questions_of_stages(stage)])
    of_ranks = _answer(replay, _questions_of_ranks(rank, peers.excess_ns))
    if of_ranks:
        answers += [*_answer(replay, [_worst_ranks(rank, of_ranks)]), *of_ranks]
    return _as_table(answers, _recorded_step_ns(excerpt))


class Question(NamedTuple):
    """An assumption: which variant of its lengths each process has, and after them collectives and transfers."""

    kind: str
    what: str
    fixed: Array
    """As recorded but for this."""
    kept: Array
    """Like the peers but for this."""
    rank: int = MISSING
    stage: int = MISSING


class Answer(NamedTuple):
    question: Question
    fixed_ns: float
    kept_ns: float


def _answer(replay: Replay, questions: list[Question]) -> list[Answer]:
    if not questions:
        return []
    variants = np.array([variant for question in questions for variant in (question.fixed, question.kept)])
    times = replay.mean_step_ns(variants).reshape(-1, 2)
    return [Answer(question, *pair) for question, pair in zip(questions, times.tolist(), strict=True)]


def _questions_of_all(n_processes: int) -> list[Question]:
    recorded, ideal = (np.full(n_processes + 2, variant) for variant in (RECORDED, LIKE_ALL))
    is_process = np.arange(n_processes + 2) < n_processes

    def every(variant: int, otherwise: Array) -> Array:
        return np.where(is_process, variant, otherwise)

    questions = [
        Question("replayed", "as recorded", recorded, recorded),
        Question("all", "everything like its peers", ideal, recorded),
        Question("ranks", "no rank slower than its peers", every(LIKE_PEERS, recorded), every(LIKE_STAGES, ideal)),
        Question("type", "host", every(ONLY_HOST, recorded), every(BUT_HOST, ideal)),
    ]
    for code, name in enumerate(OP_TYPES):
        questions.append(Question("type", name, every(only_type(code), recorded), every(but_type(code), ideal)))
    for column, name in ((n_processes, "collectives"), (n_processes + 1, "transfers")):
        fixed, kept = recorded.copy(), ideal.copy()
        fixed[column], kept[column] = LIKE_ALL, RECORDED
        questions.append(Question("type", name, fixed, kept))
    return questions


def _questions_of_stages(stage: Array) -> list[Question]:
    """None without a pipeline."""
    numbers = np.unique(stage[stage >= 0]).tolist()
    if len(numbers) < 2:
        return []
    places = np.append(stage, (MISSING, MISSING))
    recorded, ideal = np.full(len(places), RECORDED), np.full(len(places), LIKE_ALL)
    balanced = np.where(places >= 0, BALANCED, RECORDED)
    questions = [
        Question("balance", "the work of all stages divided evenly", balanced, np.where(places >= 0, LIKE_PEERS, ideal))
    ]
    for number in numbers:
        mine = places == number
        fixed, kept = np.where(mine, LIKE_STAGES, recorded), np.where(mine, LIKE_PEERS, ideal)
        questions.append(Question("stage", f"stage {number}", fixed, kept, stage=number))
    last = questions[-1]
    questions.append(last._replace(kind="last-stage", what=f"the last stage ({numbers[-1]})"))
    return questions


def _questions_of_ranks(rank: Array, excess_ns: Array) -> list[Question]:
    """One per rank; in a large job only for those that exceed their peers by the most. None for a single rank."""
    if len(np.unique(rank)) < 2:
        return []
    total = np.zeros(int(rank.max()) + 1)
    np.add.at(total, rank, excess_ns)
    candidates = np.unique(rank)
    n_wanted = max(_MAX_RANKS, _n_worst(len(candidates)))
    candidates = candidates[np.argsort(-total[candidates], kind="stable")][:n_wanted]
    return [_without_ranks("rank", f"rank {number}", rank, [number]) for number in np.sort(candidates).tolist()]


def _without_ranks(kind: str, what: str, rank: Array, slow: list[int]) -> Question:
    mine = np.append(np.isin(rank, slow), (False, False))
    fixed, kept = np.where(mine, LIKE_PEERS, RECORDED), np.where(mine, LIKE_STAGES, LIKE_ALL)
    return Question(kind, what, fixed, kept, rank=slow[0] if len(slow) == 1 else MISSING)


def _worst_ranks(rank: Array, answers: list[Answer]) -> Question:
    """The slowest 3% of ranks, by what each alone makes of an ideal step."""
    slowest = sorted(answers, key=lambda answer: -answer.kept_ns)
    n_worst = _n_worst(len(np.unique(rank)))
    worst = sorted(answer.question.rank for answer in slowest[:n_worst])
    return _without_ranks("worst-ranks", f"the slowest {n_worst}: {ranks_phrase(worst)}", rank, worst)


def _n_worst(n_ranks: int) -> int:
    return max(1, round(_WORST_SHARE * n_ranks))


def _usual_transfers(trace: Trace, excerpt: Excerpt, ideal: str) -> Array:
    """By work: how long data move in calls like the one that it is part of; as recorded where that is not known."""
    work = excerpt.work
    last = excerpt.links.last_member
    moved = (work.end[last] - work.start[last]).astype(np.float64)
    calls = np.flatnonzero(work.match >= 0)
    kind = derived(trace, _kinds_of_matches)
    kind = kind[np.minimum(work.match[calls], len(kind) - 1)] if len(kind) else np.zeros(len(calls), np.int64)
    once = np.unique(last[calls], return_index=True)[1]  # all members of a call share its time
    n_kinds = int(kind.max(initial=-1)) + 1
    if ideal == "mean":
        usual = np.bincount(kind[once], moved[calls][once], n_kinds) / np.maximum(
            np.bincount(kind[once], minlength=n_kinds), 1
        )
    else:
        usual = middle(kind[once], moved[calls][once], n_kinds)
    moved[calls] = usual[kind]
    return moved


_MATCHES = """
SELECT m.match_id, dense_rank() OVER (
    ORDER BY m.op, m.n_bytes, m.n_members, m.n_seen, coalesce(g.n_hosts, 0) > 1) - 1 AS kind
FROM comm_matches AS m LEFT JOIN comm_groups AS g USING (group_key)
"""


def _kinds_of_matches(trace: Trace) -> Array:
    """By match_id: a number for operation, size and members."""
    rows = trace.sql(_MATCHES).columns()
    kinds = np.zeros(int(rows["match_id"].max(initial=-1)) + 1, np.int64)
    kinds[rows["match_id"]] = rows["kind"]
    return kinds


def _recorded_step_ns(excerpt: Excerpt) -> float:
    """The mean step of the replayed processes, from when the last of them started to when the last was done."""
    last_end = max(int(excerpt.end.max()), int(excerpt.work.end.max(initial=0)))
    return (last_end - int(excerpt.begin[:, 0].max())) / len(excerpt.steps)


def _as_table(answers: list[Answer], recorded_ns: float) -> Table:
    by_kind = {answer.question.kind: answer for answer in answers}
    replayed, ideal = by_kind["replayed"].fixed_ns, by_kind["all"].fixed_ns
    gain = replayed - ideal
    rows: list[dict[str, object]] = [{"kind": "recorded", "what": "as recorded", "step_ns": round(recorded_ns)}]
    for question, fixed, kept in answers:
        saved = replayed - fixed
        rows.append({
            "kind": question.kind,
            "what": question.what,
            "rank": question.rank,
            "stage": question.stage,
            "step_ns": round(fixed),
            "saved_ns": round(saved),
            "slowdown": kept / ideal if ideal and question.kind != "replayed" else np.nan,
            "share_pct": 100 * saved / gain if gain > _MIN_GAIN * replayed and question.kind != "replayed" else np.nan,
        })  # fmt: skip
    return Table.from_rows("what_if", rows)
