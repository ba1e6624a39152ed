"""P303: steps that wait for their data."""

from __future__ import annotations

from collections.abc import Iterator

from rankscope.analyze.chance import explains, without_core
from rankscope.analyze.device.events import DATA_LOADER
from rankscope.analyze.device.losses import StepLoss, shared_losses, verb
from rankscope.analyze.device.lost_time import Losses
from rankscope.analyze.registry import Effect, rule
from rankscope.model.finding import Evidence, Finding, count_noun, format_duration
from rankscope.model.tables import Trace

_MAX_SHOWN = 3
_MUCH_PCT = 25
_IN_PROCESS = "_SingleProcessDataLoaderIter"  # what torch's DataLoader is without workers


def _keeps_a_device_waiting(trace: Trace, losses: Losses) -> bool:
    """On a CPU the host does the work itself: loading a batch is part of it, unless it takes much of the step, and for
    another reason than that no core is free.
    """
    worst = losses.ranks[0]
    is_crowded = explains(without_core(trace, worst.rank), worst.share)
    return trace.has("kernels") or ((losses.cost_pct or 0) >= _MUCH_PCT and not is_crowded)


@rule("P303", "data-loading", needs=("profiles", "annotations"))
def data_loading(trace: Trace) -> Iterator[Finding | Effect]:
    """The step waits for the next batch: the host loads data, and the device has nothing to do.

    What it means: in this part of the step the training thread was in the data loader, while nothing ran on the device
    and no collective was in progress. It is reported if most ranks are affected; if only a few are, they are reported
    as late ranks.

    Why it happens: too few or too slow workers, no workers at all (num_workers=0 loads in the training process itself),
    slow storage, expensive decoding or augmentation, workers that restart every epoch, a batch that is copied from the
    worker without pinned memory.

    What to do: raise num_workers and prefetch_factor, set persistent_workers=True and pin_memory=True, move decoding
    out of the training job or onto the device, read from faster storage; watch the CPU load while doing so.

    What could fool it: data loaders are recognized by their names (enumerate(DataLoader), dataloader, next_batch, ...):
    one with another name shows up as a busy host instead (P301). If an iterator prefetches on the device, its work runs
    while the host is in the loader: then the device is busy and this rule reports nothing. Without a device, the host
    does all the work: then less than a quarter of the step is only a note, and so is a wait on a machine that has no
    core free.
    """
    steps = trace.table("step_breakdown")
    losses = shared_losses(StepLoss.of_table(steps, "data_loader_ns"))
    if losses is None:
        return
    loaders = trace.sql(
        """SELECT name, count(*) AS n, sum(duration_ns)::BIGINT AS total_ns, max(duration_ns) AS max_ns
           FROM (SELECT name, duration_ns FROM annotations WHERE kind = 'host'
                 UNION ALL SELECT name, duration_ns FROM ops)
           WHERE regexp_matches(name, $loader, 'i') GROUP BY name ORDER BY total_ns DESC LIMIT $n_shown""",
        loader=DATA_LOADER,
        n_shown=_MAX_SHOWN,
    ).rows()
    in_process = any(_IN_PROCESS in name for name, *_ in loaders)
    yield Finding(
        severity=losses.severity if _keeps_a_device_waiting(trace, losses) else "info",
        certainty="certain" if in_process else "likely",
        title=f"{losses.who} {verb(losses, 'waits', 'wait')} for data {losses.cost}",
        ranks=losses.culprits,
        evidence=Evidence(
            certain=(
                *(
                    f"{name}: {count_noun(n, 'fetch', 'fetches')}, {format_duration(total // n)} each, "
                    f"longest {format_duration(longest)}"
                    for name, n, total, longest in loaders
                ),
                *(("the data is loaded in the training process itself (num_workers=0)",) if in_process else ()),
            ),
            cost_pct=losses.cost_pct,
            cost_ns=losses.cost_ns,
            facts={
                **losses.facts,
                "loaders": [dict(zip(("name", "n", "total_ns", "max_ns"), row, strict=True)) for row in loaders],
            },
        ),
        help="set num_workers > 0 and persistent_workers=True in the DataLoader"
        if in_process
        else "raise num_workers and prefetch_factor, set persistent_workers=True and pin_memory=True, or use faster "
        "storage",
    )
