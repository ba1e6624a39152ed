"""The part of `rankscope metrics` that says what can be measured: in a capture, in any, and what a metric means."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rankscope.commands.loading import load_trace
from rankscope.commands.metric_needs import absent_tables, all_metrics, how_to_record

if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Iterator

    from rankscope.analyze.metric import Metric
    from rankscope.model.tables import Trace

FIRST = "temporal"  # the one to begin with
DIFF = "diff"
DIFF_SUMMARY = (
    "One row per operator and kernel name: how often it runs and how long, here and in the capture --against."
)


def catalog(args: Namespace, chosen: str) -> Iterator[str]:
    trace = load_trace(args) if args.paths else None
    records = [_describe(metric, trace) for metric in sorted(all_metrics().values(), key=lambda metric: metric.name)]
    needs_other = {"metric": DIFF, "table": "trace_diff", "about": DIFF_SUMMARY, "settings": {}}
    records.append(needs_other | ({"available": trace.has("profiles")} if trace else {}))
    if chosen == "json":
        from rankscope.render.as_json import dumps

        yield dumps(records)
    elif chosen == "csv":
        from rankscope.render.query_rows import csv_lines

        yield from csv_lines(list(records[0]), (tuple(record.get(key) for key in records[0]) for record in records))
    else:
        yield from _catalog_page(records, args)


def _describe(metric: Metric, trace: Trace | None) -> dict[str, Any]:
    record: dict[str, Any] = {"metric": metric.name, "table": metric.table, "about": metric.summary}
    record["settings"] = dict(metric.settings)
    if trace is not None:
        absent, recorded_by = absent_tables(trace, metric), ""
        if not absent and not metric.applies(trace):
            absent, recorded_by = [metric.name], metric.applies_if[1]
        record |= {"available": not absent, "missing": absent, "recorded_by": recorded_by or how_to_record(absent)}
    return record


def _catalog_page(records: list[dict[str, Any]], args: Namespace) -> Iterator[str]:
    import shlex

    width = max(len(record["metric"]) for record in records)
    there = [record for record in records if record.get("available", True)]
    paths = " ".join(map(shlex.quote, args.paths)) or "PATH"
    if not there:
        yield f"Nothing to measure here: all {len(records)} metrics need profiler traces or logged training metrics."
        yield "  = fix: rankscope help traces shows how to record them; rankscope metrics lists all metrics"
        yield ""
        yield f"Next: rankscope {paths}"
        return
    for record in there:
        settings = " ".join(f"--set {key}={value}" for key, value in record["settings"].items())
        yield f"{record['metric']:{width}}  {record['about']}" + (f" ({settings})" if settings else "")
    yield from _absent_lines(records)
    names = [record["metric"] for record in there]
    yield ""
    yield f"Next: rankscope metrics {paths} {FIRST if FIRST in names else names[0]}"


def _absent_lines(records: list[dict[str, Any]]) -> Iterator[str]:
    absent: dict[str, list[str]] = {}
    for record in records:
        if not record.get("available", True):
            absent.setdefault(record.get("recorded_by") or how_to_record(["profiles"]), []).append(record["metric"])
    for recorded_by, names in absent.items():
        yield ""
        yield f"Not in this capture: {', '.join(names)}"
        yield f"  = fix: record with {recorded_by}"


def manual(name: str, chosen: str) -> Iterator[str]:
    """A metric without a path: what it measures, and the columns that it gives."""
    from rankscope.model.tables import SCHEMA

    metric = all_metrics().get(name)
    text, table = (metric.doc, metric.table) if metric else (DIFF_SUMMARY, "trace_diff")
    columns = SCHEMA[table].columns
    if chosen == "json":
        from rankscope.render.as_json import dumps

        about = [{"name": column.name, "type": column.kind, "about": column.doc} for column in columns]
        yield dumps({"metric": name, "table": table, "text": text, "columns": about})
        return
    yield f"{name} (table {table})"
    yield ""
    yield from text.splitlines()
    yield ""
    widths = [max(len(getattr(column, key)) for column in columns) for key in ("name", "kind")]
    for column in columns:
        yield f"    {column.name:{widths[0]}}  {column.kind:{widths[1]}}  {column.doc}"
    yield ""
    yield f"Next: rankscope metrics PATH {name}" + (" --against OTHER" if name == DIFF else "")
