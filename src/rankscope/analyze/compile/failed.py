"""Compilations that failed, restarted or never ended: what the log says about each, grouped by cause."""

from __future__ import annotations

import json
from typing import Any, NamedTuple

import numpy as np

from rankscope.analyze.compile.chains import is_limit
from rankscope.analyze.compile.ledger import total_times
from rankscope.analyze.compile.sites import Key, Site, key_of, keys_of, sites_of
from rankscope.analyze.compile.wording import first_line
from rankscope.model.finding import Location
from rankscope.model.payloads import mapped_log
from rankscope.model.tables import MISSING, Trace

Row = dict[str, Any]
_SOFT = ("Unsupported", "UserError")  # torch falls back to plain Python, unless set not to


class Failure(NamedTuple):
    """One exception at one line, on all ranks of a run."""

    run: int
    site: Site
    exception: str
    message: str
    location: Location | None  # the user's line, where it is not the function itself
    code: str
    is_suppressed: bool
    n: int
    costs: dict[int, int]  # by rank


class Restart(NamedTuple):
    run: int
    site: Site
    reason: str
    n: int  # on the rank with the most
    costs: dict[int, int]


class Unfinished(NamedTuple):
    run: int
    site: Site
    compile_id: str
    ranks: tuple[int, ...]
    phases: tuple[str, ...]  # open when the log ends, the innermost last
    open_ns: int
    is_cut: bool


def failures_of(trace: Trace) -> list[Failure]:
    """Without those that merely fell back: these are graph breaks, or functions with too many versions."""
    sites, compilations = sites_of(trace), trace.table("compilations")
    positions = np.flatnonzero(compilations.text("status").equals("failed"))
    taken = total_times(trace)
    broken = set(keys_of(trace.table("graph_breaks")))
    errors = {key_of(row): row for row in trace.table("compile_errors").rows()}
    groups: dict[tuple[Any, ...], list[tuple[Row, int]]] = {}
    for position, row in zip(positions.tolist(), compilations.take(positions).rows(), strict=True):
        key = key_of(row)
        fell_back = row["fail_type"].rpartition(".")[2] in _SOFT and key in broken
        if fell_back or is_limit(row["fail_type"], row["fail_reason"]):
            continue
        row.update(error=errors.get(key), site=sites.of_row[position])
        group = (sites.run(row["file_id"]), row["site"], row["fail_type"], first_line(row["fail_reason"]))
        groups.setdefault(group, []).append((row, int(taken[position])))
    for row in _printed_errors(trace):
        group = (sites.run(row["file_id"]), row["site"], row["fail_type"], first_line(row["fail_reason"]))
        groups.setdefault(group, []).append((row, 0))
    return [_failure(trace, run, rows) for (run, *_), rows in groups.items()]


def _printed_errors(trace: Trace) -> list[Row]:
    """Tracebacks in a job's captured output, which do not say which compilation they belong to."""
    sites = sites_of(trace)
    rows = trace.table("compile_errors").rows()
    return [
        {
            **row,
            "record": MISSING,
            "error": row,
            "site": sites.find(row),
            "fail_type": row["type"],
            "fail_reason": row["message"].removeprefix(f"{row['type']}: "),
            "fail_file": "",
        }
        for row in rows
        if row["kind"] == "dynamo_error" and not row["compile_id"]
    ]


def _failure(trace: Trace, run: int, rows: list[tuple[Row, int]]) -> Failure:
    row, error = rows[0][0], rows[0][0]["error"]
    costs: dict[int, int] = {}
    for one, taken in rows:
        costs[one["rank"]] = costs.get(one["rank"], 0) + taken
    location = None
    if error is not None and error["file"]:
        location = Location(error["file"], max(error["line"], 0), error["function"])
    elif row["fail_file"]:
        location = Location(row["fail_file"], max(row["fail_line"], 0), "")
    return Failure(
        run=run,
        site=row["site"],
        exception=row["fail_type"],
        message=row["fail_reason"] or (error["message"] if error else ""),
        location=location,
        code=error["code"] if error else "",
        is_suppressed=_is_suppressed(trace, row),
        n=len(rows),
        costs=costs,
    )


def _is_suppressed(trace: Trace, row: Row) -> bool:
    """True if torch was set to continue uncompiled after errors: only the metrics record says so."""
    records = trace.table("compile_records")
    rows = np.flatnonzero((records.array("file_id") == row["file_id"]) & (records.array("record") == row["record"]))
    if not len(rows):
        return False
    [record] = records.take(rows[:1]).rows()
    try:
        metrics = json.loads(mapped_log(trace, row["file_id"]).header(record))[record["kind"]]
    except (ValueError, KeyError):
        return False
    return isinstance(metrics, dict) and metrics.get("config_suppress_errors") is True


def restarts_of(trace: Trace) -> list[Restart]:
    """By function and reason, without the restarts caused by graph breaks."""
    sites, compilations = sites_of(trace), trace.table("compilations")
    reasons = compilations.text("restart_reasons")
    has_any = np.fromiter((bool(value) for value in reasons.values), bool, len(reasons.values))
    positions = np.flatnonzero(has_any[reasons.codes]) if len(has_any) else np.empty(0, np.int64)
    breaks: dict[Key, list[str]] = {}
    logged_breaks = trace.table("graph_breaks")
    for key, text in zip(keys_of(logged_breaks), logged_breaks.text("reason").tolist(), strict=True):
        breaks.setdefault(key, []).append(text)
    groups: dict[tuple[int, Site, str], dict[int, list[int]]] = {}
    part = compilations.take(positions)
    columns = keys_of(part), part.text("restart_reasons").tolist(), part.array("lost_ns").tolist()
    for position, key, texts, lost_ns in zip(positions.tolist(), *columns, strict=True):
        logged = _texts(texts)
        for reason in logged:
            if not any(text and text in reason for text in breaks.get(key, ())):
                group = (sites.run(key[0]), sites.of_row[position], reason)
                groups.setdefault(group, {}).setdefault(key[1], []).append(max(lost_ns, 0) // len(logged))
    return [
        Restart(run, site, reason, max(map(len, lost.values())), {rank: sum(times) for rank, times in lost.items()})
        for (run, site, reason), lost in groups.items()
    ]


def _texts(reasons: str) -> list[str]:
    values = json.loads(reasons)  # our own reader wrote it
    return [value for value in values if isinstance(value, str)]


def unfinished_of(trace: Trace) -> list[Unfinished]:
    """The last compilation of each log that ends before it does, grouped over ranks that stopped at the same place."""
    compilations, sites = trace.table("compilations"), sites_of(trace)
    is_open = compilations.text("status").equals("unfinished")
    logs = {row["file_id"]: row for row in trace.table("compile_logs").rows()}
    if not is_open.any() and not any(log["is_cut"] for log in logs.values()):
        return []  # the phases need not be read
    groups: dict[tuple[Any, ...], list[tuple[Row, list[Row]]]] = {}
    open_spans = _open_spans(trace)
    for position, row in [*_last_open(trace), *_open_at_cut(trace, open_spans)]:
        spans = open_spans.get(key_of(row), [])
        log = logs.get(row["file_id"], {"is_cut": False})
        # Without an open phase, only a log that is cut off, or that records the end of other compilations, shows it.
        ended_others = bool(((compilations.array("file_id") == row["file_id"]) & ~is_open).any())
        if spans or log["is_cut"] or (ended_others and not trace.has("compile_events")):
            phases = tuple(span["name"] for span in spans)
            key = (sites.run(row["file_id"]), sites.of_row[position], row["compile_id"], phases, log["is_cut"])
            groups.setdefault(key, []).append((row, spans))
    return [_unfinished(key, rows) for key, rows in groups.items()]


def _unfinished(key: tuple[Any, ...], rows: list[tuple[Row, list[Row]]]) -> Unfinished:
    run, site, compile_id, phases, is_cut = key
    open_ns = max((spans[0]["duration_ns"] for _, spans in rows if spans), default=0)
    return Unfinished(run, site, compile_id, tuple(row["rank"] for row, _ in rows), phases, open_ns, is_cut)


def _last_open(trace: Trace) -> list[tuple[int, Row]]:
    """Per file the unfinished compilation, if none started after it: those in between ended without a record."""
    compilations = trace.table("compilations")
    started: dict[int, str] = dict(
        zip(
            trace.table("compile_stacks").array("file_id").tolist(),
            trace.table("compile_stacks").text("compile_id").tolist(),
            strict=True,
        )
    )
    positions = np.flatnonzero(compilations.text("status").equals("unfinished"))
    rows = zip(positions.tolist(), compilations.take(positions).rows(), strict=True)
    return [(position, row) for position, row in rows if started.get(row["file_id"]) == row["compile_id"]]


def _open_at_cut(trace: Trace, open_spans: dict[Key, list[Row]]) -> list[tuple[int, Row]]:
    """Compilations whose forward part ended, but not the backward or the run-time work that was in progress."""
    logs, compilations = trace.table("compile_logs"), trace.table("compilations")
    cut = set(logs.array("file_id")[logs.array("is_cut")].tolist())
    positions = {key: position for position, key in enumerate(keys_of(compilations)) if key[0] in cut}
    still_open = [position for key, position in positions.items() if key in open_spans]
    rows = compilations.take(np.array(still_open, np.int64)).rows()
    return [(position, row) for position, row in zip(still_open, rows, strict=True) if row["status"] != "unfinished"]


def _open_spans(trace: Trace) -> dict[Key, list[Row]]:
    """The phases that have no end, the outermost first."""
    events = trace.table("compile_events")
    spans: dict[Key, list[Row]] = {}
    part = events.take(np.flatnonzero(events.text("state").equals("open")))
    for row in sorted(part.rows(), key=lambda span: (span["start_ns"], span["depth"])):
        spans.setdefault(key_of(row), []).append(row)
    return spans
