"""S211: a loss that becomes NaN or infinite. S212: the loss of one rank that diverges from its peers."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from rankscope.analyze.registry import Effect, Skipped, rule
from rankscope.analyze.training.series import Series, by_rank, series_of
from rankscope.model.finding import Evidence, Finding, count_noun, ranks_phrase
from rankscope.model.tables import MISSING, Array, Trace

_LOSS = re.compile(r"(^|[/_.\- ])(loss|nll|ppl|perplexity)([/_.\- ]|$)", re.IGNORECASE)
_ASIDE = re.compile(r"(^|[/_.\- ])(val|valid|validation|eval|evaluation|test|dev)([/_.\- ]|$)", re.IGNORECASE)
_LASTING = 3  # values that are no numbers at the end: no single batch makes them
_NO_LOSS = "no loss in the metrics: it is recorded where a scalar is passed to backward()"

_N_BLOCKS = 16
_MIN_PER_BLOCK = 4
_MIN_RANKS = 3  # if two diverge, it is unknown which one left
_ALIKE, _APART = 4.0, 8.0  # times the usual distance between ranks
_LEAST_APART = 1.3  # times the loss of the peers
_N_EARLY, _N_LATE = 4, 4  # blocks in which it is alike, and apart


def is_training_loss(name: str) -> bool:
    return bool(_LOSS.search(name)) and not _ASIDE.search(name)


class _Onset(NamedTuple):
    """Where a series stops being finite, for good."""

    rank: int
    step: int
    last_good: int  # the last step with a number
    value: float
    n_bad: int


@rule("S211", "loss-not-finite", needs=("metrics",))
def loss_not_finite(trace: Trace) -> Iterator[Finding | Effect | Skipped]:
    """The training loss becomes NaN or infinite and stays that way.

    What it means: from the step shown on, the loss is not a finite number. Neither are its gradients, so the optimizer
    has written NaN into the weights: everything the job computes from here on is lost. If ranks average their
    gradients, the NaN of one rank reaches all others in the next step. The first rank whose loss broke is named if its
    peers still had a finite loss at that step or later.

    Why it happens: a batch with bad values or an empty target (a mean over nothing), a learning rate that is too high,
    fp16 overflow, a division or logarithm near zero. If it is only one rank: its data shard, or a device that computes
    wrong results.

    What to do: load a checkpoint from before that step. Look at the batch the named rank had then; run the same step
    with torch.autograd.set_detect_anomaly(True). If it is always the same rank while batches differ, test its device.
    Skip steps whose loss is not finite (on all ranks together), clip gradients, lower the learning rate.

    What could fool it: a script that logs NaN to mean "no value". Losses that are NaN for some steps and recover are
    not reported here. If losses on a device are recorded only every few steps, the named rank is only the first in the
    recorded steps.
    """
    losses: dict[str, list[Series]] = {}
    for series in series_of(trace, is_training_loss):
        losses.setdefault(series.name, []).append(series)
    if not losses:
        yield Skipped(_NO_LOSS)
        return
    onsets = {name: [onset for onset in map(_onset, members) if onset is not None] for name, members in losses.items()}
    broken = sorted((name for name in onsets if onsets[name]), key=lambda name: (-len(losses[name]), name))
    if broken:
        name = broken[0]
        yield _broken(name, onsets[name], losses[name], broken[1:])


def _onset(series: Series) -> _Onset | None:
    good = np.flatnonzero(np.isfinite(series.value))
    start = int(good[-1]) + 1 if len(good) else 0
    if start == len(series):
        return None
    last_good = int(series.step[start - 1]) if start else MISSING
    return _Onset(series.rank, int(series.step[start]), last_good, float(series.value[start]), len(series) - start)


def _broken(name: str, onsets: Sequence[_Onset], members: Sequence[Series], more: Sequence[str]) -> Finding:
    first = min(onsets, key=lambda onset: onset.step)
    ranks = {series.rank for series in members if series.rank != MISSING}
    # Proven to be later: it was still finite at the step where the first one was not.
    later = {onset.rank for onset in onsets if onset.last_good >= first.step}
    never = {series.rank for series in members if int(series.step[-1]) >= first.step} - {each.rank for each in onsets}
    first_ranks = ranks & ({onset.rank for onset in onsets} - later)
    culprits = tuple(sorted(first_ranks)) if (later | never) & ranks else ()
    word = "NaN" if np.isnan(first.value) else "infinite"
    whose = f"{name} of {ranks_phrase(culprits)}" if culprits else f"{name}{_all_of(ranks)}"
    when = "from its first value on" if first.last_good == MISSING else f"from step {first.step:,} on"
    is_lasting = max(onset.n_bad for onset in onsets) >= _LASTING
    lines = [
        f"the last finite value of {_named(onset)} is at step {onset.last_good:,}" for onset in onsets if onset == first
    ]
    if later & ranks:
        following = min(onset.step for onset in onsets if onset.rank in later)
        still = "was" if len(later & ranks) == 1 else "were"
        lines.append(
            f"{ranks_phrase(later & ranks)} {still} still finite at step {first.step:,}, but not from {following:,} on"
        )
    if never & ranks:
        lines.append(f"{ranks_phrase(never & ranks)} stayed finite")
    return Finding(
        severity="error" if is_lasting else "warning",
        certainty="certain",
        title=f"{whose} is {word} {when}",
        ranks=culprits,
        evidence=Evidence(
            certain=tuple(lines[first.last_good == MISSING :]),
            notes=(f"the same happened to {', '.join(more[:3])}",) if more else (),
            facts={"metric": name, "step": first.step, "n_values": first.n_bad},
        ),
        help=(f"look at the batch of {ranks_phrase(culprits)} in step {first.step:,}; " if culprits else "")
        + "go back to a checkpoint from before that step; torch.autograd.set_detect_anomaly(True) names the operator",
    )


def _all_of(ranks: set[int]) -> str:
    return f" of all {count_noun(len(ranks), 'rank')}" if len(ranks) > 1 else ""


def _named(onset: _Onset) -> str:
    return f"rank {onset.rank}" if onset.rank != MISSING else "the log"


@rule("S212", "loss-apart", needs=("metrics",))
def loss_apart(trace: Trace) -> Iterator[Finding | Effect | Skipped]:
    """The loss of one rank, at first like that of its peers, rises above theirs and stays there.

    What it means: ranks that train one model on parts of the same data have losses that scatter around one curve. This
    rank has left it for good: its weights no longer match those of its peers, or its data is different.

    Why it happens: gradients that are not averaged on that rank (a wrapper that was bypassed, a parameter missing from
    the group, a no_sync that never ends), a device that computes wrong results, a shard with broken or unshuffled data.

    What to do: compare a checksum of the parameters across ranks (sum of each, all_gather). If they differ, find what
    this rank does not synchronize; if they match, look at its data from that step on.

    What could fool it: ranks that train on different tasks from some step on. Ranks whose losses differ from the start
    are not reported here.
    """
    series = by_rank(trace, "loss")
    if len(series) < _MIN_RANKS:
        yield Skipped(f"it takes losses of at least {_MIN_RANKS} ranks" if series else _NO_LOSS)
        return
    ranks, starts, losses = _in_blocks(series)
    for row in _apart(losses):
        onset = _first_apart(losses, row)
        peers = float(np.nanmedian(np.delete(losses[:, -1], row)))
        yield Finding(
            severity="warning",
            certainty="likely",
            title=f"the loss of rank {ranks[row]} diverges from its peers at about step {starts[onset]:,}",
            ranks=(int(ranks[row]),),
            evidence=Evidence(
                certain=(
                    f"at the end it is {losses[row, -1]:.4g}, on the median rank {peers:.4g}",
                    f"until step {starts[onset]:,} it was as close to its peers as they are to each other",
                ),
                facts={"metric": "loss", "step": int(starts[onset]), "loss": float(losses[row, -1]), "peers": peers},
            ),
            help="compare a checksum of the parameters across ranks; then look for what this rank does not "
            "synchronize, or at its data from that step on",
        )


def _in_blocks(series: dict[int, Series]) -> tuple[Array, Array, Array]:
    """Ranks, the first step of each block, and ranks x blocks: the median loss; NaN where there are few."""
    first = max(int(each.step[0]) for each in series.values())
    last = min(int(each.step[-1]) for each in series.values())
    edges = np.linspace(first, last + 1, _N_BLOCKS + 1).astype(np.int64)
    losses = np.full((len(series), _N_BLOCKS), np.nan)
    for row, each in enumerate(series.values()):
        bounds = np.searchsorted(each.step, edges)
        for block in range(_N_BLOCKS):
            values = each.value[bounds[block] : bounds[block + 1]]
            values = values[np.isfinite(values)]
            if len(values) >= _MIN_PER_BLOCK:
                losses[row, block] = np.median(values)
    return np.array(list(series)), edges, losses


def _apart(losses: Array) -> list[int]:
    if not np.isfinite(losses).all():
        return []
    away, usual = _distances(losses)
    early = np.abs(np.median(away[:, :_N_EARLY], axis=1)) < _ALIKE * usual
    late = (away[:, -_N_LATE:] > _APART * usual).all(axis=1)
    late &= (losses[:, -_N_LATE:] > _LEAST_APART * np.median(losses[:, -_N_LATE:], axis=0)).all(axis=1)
    diverged = np.flatnonzero(early & late)
    return diverged.tolist() if len(diverged) * 4 <= len(losses) or len(diverged) == 1 else []


def _distances(losses: Array) -> tuple[Array, float]:
    """From the median rank; and the usual one: between ranks, but at least a hundredth of the loss."""
    middle = np.median(losses, axis=0)
    away = losses - middle
    spread = np.median(np.abs(away), axis=0) * 1.4826
    return away, max(float(np.median(spread)), float(np.median(np.abs(middle))) / 100, 1e-12)


def _first_apart(losses: Array, row: int) -> int:
    away, usual = _distances(losses)
    near = np.flatnonzero(away[row] <= _APART * usual)
    return int(near[-1]) + 1 if len(near) else 0
