"""Which profiles count as measurements when some ranks have one recorded with the observer and one without."""

from __future__ import annotations

import numpy as np

from rankscope.analyze.derived import derived
from rankscope.model.schema_profiler import PROFILER_TABLES
from rankscope.model.tables import SCHEMA, Trace

# The observer of execution traces numbers what it sees, and the profiler notes these numbers.
_OBSERVED = """
    SELECT file_id, bool_or(record_id > 0) FROM (
        SELECT file_id, record_id FROM ops UNION ALL SELECT file_id, record_id FROM annotations WHERE kind = 'host'
    ) GROUP BY file_id
"""


def measured(trace: Trace) -> Trace:
    """The capture as metrics and rules about time see it: without profiles of steps that the observer slowed down.

    Those are left out where all their ranks also have clean profiles. Where only some have, the clean ones are left out
    instead: a rank recorded with the observer looks slow next to one without it.
    """
    return derived(trace, _measured)


def left_out(trace: Trace) -> set[int]:
    """The files of profiles that are not measured."""
    return derived(trace, _left_out)


def _measured(trace: Trace) -> Trace:
    unused = left_out(trace)
    if not unused:
        return trace
    kept = {name: table for name, table in trace.tables.items() if SCHEMA[name].storage != "derived"}
    for spec in PROFILER_TABLES:
        if spec.name in kept:
            table = kept[spec.name]
            kept[spec.name] = table.take(np.flatnonzero(~np.isin(table.array("file_id"), list(unused))))
    parts = {name: [part for part in stored if part.file_id not in unused] for name, stored in trace.parts.items()}
    return Trace(trace.paths, kept, {name: stored for name, stored in parts.items() if stored}, trace.makers)


def _left_out(trace: Trace) -> set[int]:
    profiles = trace.table("profiles")
    profiles = profiles.take(np.flatnonzero(profiles.text("source").equals("kineto")))
    file_ids, ranks = profiles.array("file_id").tolist(), profiles.array("rank").tolist()
    if len(set(ranks)) == len(ranks):
        return set()  # one of each rank: nothing to choose
    observed = {file_id for file_id, is_observed in trace.sql(_OBSERVED).rows() if is_observed}
    clean_ranks = {rank for file_id, rank in zip(file_ids, ranks, strict=True) if file_id not in observed}
    observed_ranks = {rank for file_id, rank in zip(file_ids, ranks, strict=True) if file_id in observed}
    if observed_ranks <= clean_ranks:
        return observed
    return set(file_ids) - observed if clean_ranks <= observed_ranks else set()
