"""X609 to X616: a rank keeps its peers waiting because it works longer, on more or on other things."""

from __future__ import annotations

from collections.abc import Iterator

from rankscope.analyze.late import causes
from rankscope.analyze.late.causes import Cause
from rankscope.analyze.late.profiled import DTYPE, MORE, Measure, dtypes, more_work, odd_operators
from rankscope.analyze.late.telling import finding, findings, of_kind
from rankscope.analyze.registry import rule
from rankscope.model.finding import Finding, count_noun
from rankscope.model.tables import Trace


@rule("X609", "late-same-line-longer", needs=("host_samples", "collectives"))
def longer(trace: Trace) -> Iterator[Finding]:
    """A rank keeps its peers waiting because the same line of code takes longer on it.

    What it means: all ranks run this line, but this rank computes longer there. It is running all that time: it does
    not wait for data, a lock or a core.

    Why it happens: a larger batch, longer sequences or a hot expert on this rank, another dtype or shape, a slower
    processor.

    What to do: compare the inputs of the line (shapes and dtypes) with those on a peer, and balance them; if they are
    the same, compare the processors.

    What could fool it: a line that launches work on a device and waits for it looks the same from the host.
    """
    fix = (
        "compare the shapes and dtypes that reach this line on both ranks "
        "(`rankscope metrics PATH late_causes`); if they are equal, compare the processors"
    )
    for cause in of_kind(trace, causes.LONGER):
        yield finding(cause, f"it takes {_times(cause)} for the same line", fix)


_MANY = 10.0


def _times(cause: Cause) -> str:
    """A multiple of what was hardly ever seen would be a guess."""
    is_seen = cause.own_ns <= _MANY * cause.peers_ns
    return f"{cause.own_ns / cause.peers_ns:.1f} times as long" if is_seen else "much longer"


@rule("X610", "late-extra-work", needs=("host_samples", "collectives"))
def extra(trace: Trace) -> Iterator[Finding]:
    """A rank keeps its peers waiting because it runs code that its peers do not run.

    What it means: before the collectives in which its peers wait, this rank computes at a line where they spend less
    than a tenth of its time.

    Why it happens: evaluation, logging, statistics or debugging code on one rank; a branch that only its data takes; a
    loop of `.item()` calls.

    What to do: move it out of the training loop, spread it over all ranks, or run it less often.

    What could fool it: a line that all ranks reach but that returns at once on the others looks the same.
    """
    for cause in of_kind(trace, causes.EXTRA):
        odd = odd_operators(trace, cause.delays.rank, cause.delays.peers)
        reads = any(one.name in _READS for one in odd)
        fix = "move this line out of the training loop, spread its work over all ranks, or run it less often"
        if reads:
            fix = "read tensors less often: keep results in tensors, and call .item() once every N steps"
        yield finding(cause, "it runs code that its peers do not run", fix, tuple(map(_odd_text, odd)))


_READS = ("aten::item", "aten::_local_scalar_dense")


def _odd_text(odd: Measure) -> str:
    return (
        f"{odd.name}: {count_noun(int(odd.own), 'call')} in the profiled steps, {int(odd.peers):,} on its median peer"
    )


@rule("X611", "late-optimizer", needs=("host_samples", "collectives"))
def optimizer(trace: Trace) -> Iterator[Finding]:
    """A rank keeps its peers waiting because its optimizer step takes longer.

    What it means: the optimizer's step() takes longer on this rank, before collectives in which its peers then wait.
    Each step was recorded with its start and end.

    Why it happens: an optimizer hook, more parameters on this rank (uneven shards), denormal numbers, or
    foreach=False on one rank only.

    What to do: check the hooks and the number of parameters per rank; use fused=True or foreach=True.

    What could fool it: on a device, step() only launches the work.
    """
    fix = "compare the optimizer's hooks and the number of its parameters with a peer's; use fused=True or foreach=True"
    yield from findings(trace, causes.OPTIMIZER, "its optimizer step takes longer", fix)


@rule("X612", "late-sleeping", needs=("host_samples", "collectives"))
def sleeping(trace: Trace) -> Iterator[Finding]:
    """A rank keeps its peers waiting because its code sleeps.

    What it means: before the collectives in which its peers wait, the main thread of this rank is in a sleep call.

    Why it happens: a retry with a delay, a loop that polls a file or a server, a rate limit, leftover debugging code.

    What to do: wait for the event itself instead of polling, or poll in another thread.

    What could fool it: nothing known: the kernel names the call.
    """
    fix = "remove the sleep from the training loop, or wait for the event itself in another thread"
    yield from findings(trace, causes.SLEEP, "it is sleeping", fix)


@rule("X613", "late-compiling", needs=("host_samples", "collectives"))
def compiling(trace: Trace) -> Iterator[Finding]:
    """A rank keeps its peers waiting because torch.compile is compiling on it.

    What it means: before the collectives in which its peers wait, torch.compile was compiling on this rank. Each
    compilation was recorded with its start and end. Compilation at the start of the job does not count.

    Why it happens: this rank gets new shapes or values and recompiles, or its compile cache is empty.

    What to do: mark dynamic dimensions (torch._dynamo.mark_dynamic), give all ranks the same shapes, or warm up
    before training. The recompile findings (C402) name the guard that failed.

    What could fool it: compilations in other threads are not counted.
    """
    fix = (
        "give all ranks the same shapes or mark dimensions as dynamic (torch._dynamo.mark_dynamic); "
        "TORCH_LOGS=recompiles says why"
    )
    yield from findings(trace, causes.COMPILE, "it is compiling", fix)


@rule("X614", "late-more-work", needs=("host_samples", "collectives"))
def more(trace: Trace) -> Iterator[Finding]:
    """A rank keeps its peers waiting because it has more work to do.

    What it means: the same line takes longer on this rank, and its input is larger: more samples or tokens per step, or
    larger matrices, in the metrics and in the profiled steps.

    Why it happens: batches of different sizes, sequences of different lengths, a hot expert, an uneven shard.

    What to do: give all ranks the same number of tokens: batch by tokens instead of samples, sort by length, balance
    experts and shards.

    What could fool it: the profiler recorded only a few steps; the work may be spread differently in others.
    """
    fix = "give all ranks equal work: build batches by tokens instead of samples, balance experts and shards"
    for cause in of_kind(trace, MORE):
        measures = more_work(trace, cause.delays.rank, cause.delays.peers)
        lines = tuple(f"{one.name}: {one.own:,.0f}, its median peer {one.peers:,.0f}" for one in measures)
        yield finding(cause, "it has more work to do", fix, lines)


@rule("X615", "late-other-dtype", needs=("host_samples", "collectives"))
def other_dtype(trace: Trace) -> Iterator[Finding]:
    """A rank keeps its peers waiting because it computes in a different data type.

    What it means: the same line takes longer on this rank, and in the profiled steps most of its operators compute in a
    different type than on its peers, for example float64 instead of float32.

    Why it happens: a model or a batch built from numpy arrays (float64), a missing .to(dtype), or autocast that is on
    for some ranks only.

    What to do: convert the model and its inputs to the same type as on the peers.

    What could fool it: a type chosen on purpose, for example a router in float32 on one rank.
    """
    for cause in of_kind(trace, DTYPE):
        dtype, theirs = dtypes(trace, cause.delays.rank, cause.delays.peers) or ("", "")
        fix = f"convert this rank's model and inputs to {theirs}, as on its peers: .to(dtype)"
        yield finding(cause, f"it computes in {dtype}, its peers in {theirs}", fix)


@rule("X616", "late-evaluating", needs=("host_samples", "collectives"))
def evaluating(trace: Trace) -> Iterator[Finding]:
    """A rank keeps its peers waiting because it runs evaluation code (torch.no_grad()).

    What it means: before the collectives in which its peers wait, this rank spends its time in torch.no_grad() or
    torch.inference_mode(). Each block was recorded with its start and end.

    Why it happens: one rank evaluates, samples or logs statistics for all the others.

    What to do: evaluate on all ranks, each on its part of the data; or evaluate less often, or in a separate job.

    What could fool it: other work under no_grad, such as a manual parameter update, looks the same.
    """
    fix = "evaluate on all ranks, each on its part of the data, or less often, or in a separate job"
    yield from findings(trace, causes.EVALUATION, "it is running evaluation code, under torch.no_grad", fix)
