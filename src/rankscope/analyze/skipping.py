"""Why a check could not run: what to collect for the table it needs, or that there was nothing to collect."""

from __future__ import annotations

from rankscope.analyze.manifests import asked_for
from rankscope.model.tables import SCHEMA, Trace


def why_skipped(trace: Trace, table: str) -> str:
    """What it means that the table has no rows: its declaration says it, or that of the source it comes from."""
    spec = SCHEMA[table]
    if spec.source and not trace.has(spec.source):
        spec = SCHEMA[spec.source]
    missing = spec.missing
    why = missing.why or f"no data for the table {spec.name} in this capture"
    if not trace.has("manifests"):
        return why
    if missing.setting:
        return missing.none_came if _was_collected(trace, missing.setting) else why
    return missing.to_record or why


def _was_collected(trace: Trace, setting: str) -> bool:
    """Every rank was asked for it, none had a problem with it, and none lists a file of it (which would be lost)."""
    reported = (trace.table(name).text("what") for name in ("collection_problems", "collected_files"))
    if any(what.equals(setting).any() for what in reported):
        return False
    return all(asked_for(row).get(setting) is True for row in trace.table("manifests").rows())
