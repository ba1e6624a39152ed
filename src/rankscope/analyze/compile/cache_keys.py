"""Why a lookup missed: the components of its key compared with the same lookup in another run or rank, or with an
earlier version of the function in this process."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from typing import Any, NamedTuple

import msgspec
import numpy as np

from rankscope.analyze.compile.sites import NOWHERE, Site, sites_of
from rankscope.analyze.compile.wording import shortened
from rankscope.model.payloads import mapped_log
from rankscope.model.tables import Trace

Row = dict[str, Any]
_Known = dict[tuple[int, int], dict[str, tuple[str, str]]]  # file and record -> the components read from there
GRAPH = "gm"  # the component that is the graph itself
_MAX_EXPLAINED = 20  # payloads hold 100 kB each
_MAX_CANDIDATES = 4
_CONTEXT = 24  # characters of a value before the first difference
_MAX_VALUE = 70


class Change(NamedTuple):
    component: str
    old: str
    new: str


class Miss(NamedTuple):
    """A miss, and the same lookup as it was made before: in an earlier run, by another rank, or in this process."""

    event: Row
    before: Row
    site: Site
    run: int
    run_before: int
    changes: tuple[Change, ...] = ()  # empty where the key is the same, or where the log has no components

    @property
    def is_same_run(self) -> bool:
        return self.run == self.run_before

    @property
    def is_same_process(self) -> bool:
        return bool(self.event["file_id"] == self.before["file_id"])

    @property
    def compilation(self) -> tuple[Any, ...]:
        """The compilation that made the lookup."""
        return tuple(self.event[name] for name in ("file_id", "rank", "compile_id", "attempt", "instance"))

    @property
    def is_same_key(self) -> bool:
        return bool(self.event["key"] == self.before["key"])

    @property
    def is_other_graph(self) -> bool:
        return any(change.component == GRAPH for change in self.changes)


def misses_of(trace: Trace, cache: str) -> list[Miss]:
    """The most expensive misses whose lookup was made before, explained where the log has the components."""
    repeated = sorted(_repeated(trace, cache), key=lambda candidates: -candidates[0].event["taken_ns"])
    known: _Known = {}
    misses = [candidates[0] for candidates in repeated if candidates[0].is_same_key]
    for candidates in [pairs for pairs in repeated if not pairs[0].is_same_key][:_MAX_EXPLAINED]:
        compared = [miss._replace(changes=_changes(trace, miss, known)) for miss in candidates]
        explained = [miss for miss in compared if miss.changes]
        misses.append(min(explained or compared, key=lambda miss: len(miss.changes)))
    return misses


def logs_components(trace: Trace, cache: str) -> bool:
    """Judged by the first miss of the cache: torch logs the components of AOTAutograd's keys only with debug messages
    on."""
    events = trace.table("cache_events")
    is_miss = events.text("cache").equals(cache) & events.text("outcome").equals("miss")
    rows = events.take(np.flatnonzero(is_miss)[:1]).rows()
    return any(_texts(trace, (row["file_id"], row["record"])) for row in rows)


def _repeated(trace: Trace, cache: str) -> Iterator[list[Miss]]:
    """Each miss next to the latest earlier lookups of the same thing: in another process those of the same function,
    compilation and position; if there are none, those of an earlier version of the function in this process. One with
    the same key is returned alone."""
    sites, events = sites_of(trace), trace.table("cache_events")
    wanted = events.take(np.flatnonzero(events.text("cache").equals(cache)))
    starts = _starts(trace, set(wanted.array("file_id").tolist()))
    by_look_up: dict[tuple[Any, ...], dict[str, Row]] = {}
    by_function: dict[tuple[Any, ...], dict[str, Row]] = {}
    counts: dict[tuple[Any, ...], int] = {}
    for event in sorted(wanted.rows(), key=lambda event: (event["time_ns"], event["file_id"], event["record"])):
        process, compile_id = (event["file_id"], event["rank"]), event["compile_id"]
        event["instance"] = bisect_right(starts.get((event["file_id"], compile_id), ()), event["record"])
        compilation = (*process, compile_id, event["attempt"], event["instance"])
        position = counts[compilation] = counts.get(compilation, 0) + 1
        site = sites.find(event)
        same = by_look_up.setdefault((site, compile_id, event["attempt"], position), {})
        versions = by_function.setdefault((*process, site, compile_id.rpartition("/")[0], position), {})
        others = [row for row in _latest(same, event) if row["file_id"] != event["file_id"]]
        before = others or [row for row in _latest(versions, event) if site != NOWHERE and _is_other(row, event)]
        if event["outcome"] == "miss" and before:
            runs = [sites.run(row["file_id"]) for row in (event, *before)]
            yield [Miss(event, row, site, runs[0], run) for row, run in zip(before, runs[1:], strict=True)]
        if event["key"]:
            for seen in (same, versions):  # by key, the latest last: ranks that agree are one candidate
                seen.pop(event["key"], None)
                seen[event["key"]] = event


def _starts(trace: Trace, file_ids: set[int]) -> dict[tuple[int, str], list[int]]:
    """(file, compile id) -> the records with which it started: more than one if torch._dynamo.reset was called."""
    records = trace.table("compile_records")
    rows = np.flatnonzero(records.text("kind").equals("dynamo_start") & np.isin(records.array("file_id"), [*file_ids]))
    starts: dict[tuple[int, str], list[int]] = {}
    for row in records.take(rows).rows():
        starts.setdefault((row["file_id"], row["compile_id"]), []).append(row["record"])
    return starts


def _latest(seen: dict[str, Row], event: Row) -> list[Row]:
    return [seen[event["key"]]] if event["key"] in seen else list(seen.values())[: -_MAX_CANDIDATES - 1 : -1]


def _is_other(row: Row, event: Row) -> bool:
    """Not an abandoned attempt at the same compilation."""
    return bool((row["compile_id"], row["instance"]) != (event["compile_id"], event["instance"]))


def _changes(trace: Trace, miss: Miss, known: _Known) -> tuple[Change, ...]:
    old, new = (_components(trace, row, known) for row in (miss.before, miss.event))
    names = dict.fromkeys((*old, *new))
    changed = [name for name in names if old.get(name, ("", ""))[0] != new.get(name, ("", ""))[0]]
    return tuple(
        Change(name, *differing(old.get(name, ("", "(absent)"))[1], new.get(name, ("", "(absent)"))[1]))
        for name in changed
    )


class _Payload(msgspec.Struct):
    components: list[str] = []


def _components(trace: Trace, event: Row, known: _Known) -> dict[str, tuple[str, str]]:
    """Component -> its hash, which counts, and its text: `[hash] inductor_config[dce]: False`."""
    record_key = (event["file_id"], event["record"])
    if record_key not in known:
        known[record_key] = {}
        for text in _texts(trace, record_key):
            digest, _, rest = text.removeprefix("[").partition("] ")
            name, _, value = rest.partition(": ")
            known[record_key][name] = (digest, value)
    return known[record_key]


def _texts(trace: Trace, record_key: tuple[int, int]) -> list[str]:
    records = trace.table("compile_records")
    rows = np.flatnonzero((records.array("file_id") == record_key[0]) & (records.array("record") == record_key[1]))
    for row in records.take(rows[:1]).rows():
        try:
            return msgspec.json.decode(mapped_log(trace, record_key[0]).payload(row), type=_Payload).components
        except (msgspec.DecodeError, UnicodeDecodeError):
            return []
    return []


def differing(old: str, new: str) -> tuple[str, str]:
    """Two long values, each from just before the first difference to just after the last one."""
    old, new = " ".join(old.split()), " ".join(new.split())
    if max(len(old), len(new)) <= _MAX_VALUE:
        return old, new
    n_head = _n_equal(old, new)
    n_tail = _n_equal(old[n_head:][::-1], new[n_head:][::-1])
    start = max(n_head - _CONTEXT, 0)
    return _part(old, start, n_tail), _part(new, start, n_tail)


def _n_equal(one: str, other: str) -> int:
    """How many characters two texts have in common at the start."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((n for n, (left, right) in pairs if left != right), min(len(one), len(other)))


def _part(text: str, start: int, n_tail: int) -> str:
    end = len(text) - max(n_tail - _CONTEXT, 0)
    cut = shortened(text[start:end], _MAX_VALUE)
    return f"{'...' if start else ''}{cut}{'...' if end < len(text) else ''}"
