"""What ranks did the same and differently, in words, and what to record when it is unknown."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from rankscope.model.finding import count_noun, ranks_phrase
from rankscope.render.rank_groups import Aspect, Difference, RankGroup, Step, first_difference

IDS_NAMED = 4
Place = Callable[[int, str], str]  # rank and compile id -> `[0/1] (forward, model.py:12)`


class AspectWords(NamedTuple):
    title: str
    short: str  # of its column in the table of ranks
    harm: str  # what comes of it when ranks differ
    absent: str  # which setting gives the data


WORDS: dict[Aspect, AspectWords] = {
    "compilations": AspectWords(
        "Compilations",
        "Compiled",
        "Ranks that compile at different times wait for each other.",
        "No log has a record of a compilation.",
    ),
    "collectives": AspectWords(
        "Collectives in the compiled graphs",
        "Collectives",
        "Mismatched collectives hang or corrupt data.",
        "No log lists collectives: the compiled graphs have none, or torch is older than 2.8.",
    ),
    "executions": AspectWords(
        "Order in which graphs ran",
        "Order",
        "Ranks that run graphs with collectives in different orders hang.",
        "No log records it. Run the steps to compare under "
        "torch._inductor.debug.record_and_log_graph_execution_order().",
    ),
    "tensors": AspectWords(
        "Shapes, strides and types of tensors",
        "Tensors",
        "Collectives on tensors of different sizes hang or corrupt data.",
        "No log records them. Set torch._inductor.config.log_tlparse = True; graphs from a cache do not log them.",
    ),
    "caches": AspectWords(
        "Cache hits and misses",
        "Caches",
        "Ranks with cache hits wait for ranks that compile.",
        "No log has a compile cache lookup.",
    ),
}
_NOUNS: dict[Aspect, str] = {
    "compilations": "compilation",
    "collectives": "call",
    "executions": "graph run",
    "tensors": "operation",
    "caches": "lookup",
}


def steps_phrase(aspect: Aspect, group: RankGroup) -> str:
    return count_noun(len(group.steps), _NOUNS[aspect])


def alike_phrase(aspect: Aspect, group: RankGroup, n_ranks: int) -> str:
    """For ranks that form one group; ranks without data are not reported as matching."""
    did = steps_phrase(aspect, group)
    if n_ranks == 1:
        return f"{did} on the only rank with a log: nothing to compare it with."
    if len(group.ranks) < n_ranks:
        n_others = count_noun(n_ranks - len(group.ranks), "rank")
        return f"The same {did} on {ranks_phrase(group.ranks)}; no data from the other {n_others}."
    return f"The same {did} on {'both' if n_ranks == 2 else f'all {n_ranks}'} ranks."


def difference_phrase(aspect: Aspect, groups: Sequence[RankGroup], odd: RankGroup, place: Place) -> str:
    """Where a group first differs from the largest one."""
    peers = groups[0]
    if aspect == "compilations":
        return "; ".join(_compiled_phrases(peers, odd, place)) + "."
    first = first_difference(peers, odd)
    step = first.own or first.peers
    if step is None:
        return ""
    rank = odd.ranks[0] if first.own else peers.ranks[0]
    where = _where(aspect, odd if first.own else peers, first, place(rank, step.compile_id))
    ours, theirs = _shown(aspect, first.own), _shown(aspect, first.peers)
    return f"{where}: {ours}, where {ranks_phrase(peers.ranks)} had {theirs}."


def _where(aspect: Aspect, group: RankGroup, first: Difference, graph: str) -> str:
    if aspect in ("executions", "caches"):
        return f"at {_NOUNS[aspect]} {first.position + 1}" + (f", for {graph}" if aspect == "caches" else "")
    begin = next(at for at, step in enumerate(group.steps) if step.compile_id == group.steps[first.position].compile_id)
    return f"at {_NOUNS[aspect]} {first.position - begin + 1} of {graph}"


def _shown(aspect: Aspect, step: Step | None) -> str:
    if step is None:
        return "none"
    if aspect == "executions":
        return f"[{step.compile_id}]"
    if aspect == "collectives":
        return step.what.removeprefix("torch.ops._c10d_functional.").removesuffix(".default")
    return step.what or "no tensor"


def _compiled_phrases(peers: RankGroup, odd: RankGroup, place: Place) -> Iterator[str]:
    others = ranks_phrase(peers.ranks)
    more = [step.compile_id for step in odd.steps if step not in set(peers.steps)]
    less = [step.compile_id for step in peers.steps if step not in set(odd.steps)]
    if more:
        yield f"compiled {_ids_phrase(more, odd.ranks[0], place)}, which {others} did not"
    if less:
        yield f"did not compile {_ids_phrase(less, peers.ranks[0], place)}, which {others} did"


def _ids_phrase(ids: Sequence[str], rank: int, place: Place) -> str:
    named = ", ".join(place(rank, compile_id) for compile_id in ids[:IDS_NAMED])
    return named + (f" and {len(ids) - IDS_NAMED} more" if len(ids) > IDS_NAMED else "")
