"""Copies and fills: how fast the device's memory is written."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from rankscope.analyze.device.events import largest, with_process
from rankscope.analyze.device.losses import StepLoss, shared_losses, verb
from rankscope.analyze.device.steps import step_windows
from rankscope.analyze.intervals import covered_ns, difference, overlap, union
from rankscope.analyze.metric import EVERYTHING, Selection, metric
from rankscope.analyze.registry import Effect, rule
from rankscope.model.finding import Evidence, Finding, count_noun, format_duration
from rankscope.model.sql import quote_text
from rankscope.model.tables import Array, Table, Trace

_MAX_SHOWN = 3
_HOST_DEVICE = r"HtoD|DtoH|HostToDevice|DeviceToHost|Host -> Device|Device -> Host|Pageable|Pinned"
# Below this a copy is all overhead: PCIe 3 moves 64 KiB in 5 us, about what starting a copy takes.
_SMALL_BYTES = 64 * 1024
# PCIe 3 with 16 lanes gives 12 GB/s, newer ones twice and four times that: half of it means something is in the way.
_SLOW_GBPS = 6.0
# What mends copies, by what is wrong with them.
_PIN_BATCHES = "pin the host memory (pin_memory=True in the DataLoader): only then can copies overlap with kernels"
_PIN_RESULTS = "read results from the device less often, and into pinned memory"
_GATHER = "pack small tensors into one, and copy that"
_CHECK_LINK = "check the link: too few lanes, or other devices behind the same switch"
_HIDE = "copy with non_blocking=True on a separate stream while the device computes"
_LOOK = "`rankscope metrics PATH bandwidth_summary` lists sizes and bandwidth"

# Where the trace does not record the bandwidth it follows from size and time: bytes per nanosecond are GB/s.
BANDWIDTH = "coalesce(bandwidth_gbps, n_bytes / greatest(duration_ns, 1000))"
_COPIES = f"""
    SELECT *, name AS kind, {BANDWIDTH} AS gbps,
           start_ns + CASE WHEN duration_ns > 0 THEN duration_ns ELSE 1000 END AS end_ns
    FROM (SELECT * EXCLUDE (kind) FROM kernels WHERE (kind <> 'kernel' OR type = 'memory') AND {{where}})
    WHERE gbps IS NOT NULL
"""


@metric("bandwidth", "memory_bandwidth", needs=("kernels",))
def bandwidth(trace: Trace, selection: Selection) -> Table:
    """One row per traced process, kind of copy or fill, and moment at which their bandwidth changes.

    The bandwidth is the sum over all copies and fills of that kind that run at the time, in GB/s as recorded, or else
    bytes divided by duration. A copy or fill without a duration counts as one microsecond long.
    """
    # In bytes per second the sums are exact, and what has ended leaves nothing behind.
    return trace.sql(f"""
        WITH copies AS ({_COPIES.format(where=selection.where())}),
        edges AS (
            SELECT file_id, rank, kind, start_ns AS time_ns, round(gbps * 1e9)::BIGINT AS change FROM copies
            UNION ALL SELECT file_id, rank, kind, end_ns, -round(gbps * 1e9)::BIGINT FROM copies
        ), changes AS (
            SELECT file_id, rank, kind, time_ns, sum(change) AS change FROM edges GROUP BY ALL HAVING sum(change) <> 0
        )
        SELECT file_id, rank, kind, time_ns,
               sum(change) OVER (PARTITION BY file_id, rank, kind ORDER BY time_ns) / 1e9 AS bandwidth_gbps
        FROM changes ORDER BY file_id, rank, kind, time_ns
        """).table("memory_bandwidth")


@metric("bandwidth_summary", "bandwidth_summary", needs=("kernels",))
def bandwidth_summary(trace: Trace, selection: Selection) -> Table:
    """One row per rank and kind of copy or fill, the longest in total first.

    Slowest, median and fastest are over single copies; the mean weights each by its duration.
    """
    return trace.sql(f"""
        SELECT rank, kind, count(*) AS n_copies, sum(n_bytes) AS total_bytes, sum(duration_ns) AS total_ns,
               round(median(n_bytes)) AS median_bytes, min(gbps) AS min_gbps, median(gbps) AS median_gbps,
               max(gbps) AS max_gbps, sum(gbps * (end_ns - start_ns)) / sum(end_ns - start_ns) AS mean_gbps
        FROM ({_COPIES.format(where=selection.where())})
        GROUP BY rank, kind ORDER BY rank, total_ns DESC, kind
        """).table("bandwidth_summary")


@rule("P304", "copies-slow", needs=("kernels",))
def copies_slow(trace: Trace) -> Iterator[Finding | Effect]:
    """The device waits for copies between host and device.

    What it means: in this part of the step the device copied from or to the host and ran no kernel at the same time. It
    is reported if most ranks are affected.

    Why it happens: the host memory is not pinned, so each copy goes through a driver buffer and cannot overlap with
    kernels; many small copies instead of one; tensors that go back and forth (.cpu(), .to(device) inside the step); a
    slow link, or one shared with other devices.

    What to do: use pin_memory=True in the DataLoader and non_blocking=True in .to(), copy the next batch on a separate
    stream while this one is computed, pack small tensors into one, create tensors on the device where they are used.

    What could fool it: a copy that waits for its turn on the link counts as copying. Whether memory is pinned is known
    only from the copy's name.
    """
    copies = with_process(
        trace,
        trace.sql(f"""
            SELECT file_id, rank, start_ns, start_ns + duration_ns AS end_ns, name, duration_ns,
                   coalesce(n_bytes, 0) AS n_bytes
            FROM kernels WHERE kind = 'memcpy' AND regexp_matches(name, {quote_text(_HOST_DEVICE)}, 'i')
        """).columns(),
    )
    others = with_process(
        trace,
        trace.sql(
            "SELECT file_id, rank, start_ns, start_ns + duration_ns AS end_ns FROM kernels "
            "WHERE type IS DISTINCT FROM 'memory'"
        ).columns(),
    )
    waited = difference(*(union(rows["start_ns"], rows["end_ns"], rows["process"]) for rows in (copies, others)))
    windows = step_windows(trace, EVERYTHING).with_device(trace)
    losses = shared_losses(StepLoss.of_windows(trace, windows, windows.covered(waited)))
    if losses is None:
        return
    waited = overlap(waited, windows.as_intervals())
    cost_ns = covered_ns(waited, copies["start_ns"], copies["end_ns"], copies["process"])
    causes = _why_slow(copies, cost_ns)
    reasons = [reason for reason, _ in causes]
    yield Finding(
        severity=losses.severity,
        certainty="certain",
        title=f"{losses.who} {verb(losses, 'waits', 'wait')} for copies between host and device {losses.cost}"
        + (f": {reasons[0]}" if reasons else ""),
        ranks=losses.culprits,
        evidence=Evidence(
            certain=tuple(
                f"{name}: {count_noun(n, 'copy', 'copies')} not hidden by kernels, {format_duration(spent)} in total"
                for name, spent, n in largest(copies["name"], cost_ns, _MAX_SHOWN)
            ),
            likely=tuple(reasons[1:]),
            cost_pct=losses.cost_pct,
            cost_ns=losses.cost_ns,
            facts={**losses.facts, "reasons": reasons, "n_bytes": int(copies["n_bytes"][cost_ns > 0].sum())},
        ),
        help="; ".join(filter(None, (*(advice for _, advice in causes), _HIDE, _LOOK))),
    )


def _why_slow(copies: dict[str, Array], cost_ns: Array) -> list[tuple[str, str]]:
    """What is wrong with the copies that cost most of the time, the largest share first, and how to fix each."""
    total = max(int(cost_ns.sum()), 1)
    n_bytes, duration_ns = copies["n_bytes"], np.maximum(copies["duration_ns"], 1)
    names = np.char.lower(copies["name"].astype(str))
    is_pageable = np.char.find(names, "pageable") >= 0
    is_small = (n_bytes > 0) & (n_bytes < _SMALL_BYTES)
    is_slow = (n_bytes >= _SMALL_BYTES) & (n_bytes / duration_ns < _SLOW_GBPS)
    comes_back = np.char.find(names, "device -> ") >= 0
    to_host = int(cost_ns[is_pageable & comes_back].sum()) > int(cost_ns[is_pageable & ~comes_back].sum())
    checks = {
        "the host memory is not pinned": (is_pageable, _PIN_RESULTS if to_host else _PIN_BATCHES),
        f"copies of less than {_SMALL_BYTES // 1024} KiB": (is_small, _GATHER),
        f"less than {_SLOW_GBPS:.0f} GB/s": (is_slow, "" if is_pageable[cost_ns > 0].any() else _CHECK_LINK),
    }
    shares = {reason: int(cost_ns[chosen].sum()) / total for reason, (chosen, _) in checks.items()}
    return [
        (reason, checks[reason][1])
        for reason, share in sorted(shares.items(), key=lambda item: -item[1])
        if share >= 0.5
    ]
