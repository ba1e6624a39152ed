"""The versions of each compiled function in order, and for each the guard that the call failed."""

from __future__ import annotations

import re
from collections import Counter
from typing import Any, NamedTuple

import numpy as np

from rankscope.analyze.compile.ledger import total_times
from rankscope.analyze.compile.sites import NOWHERE, Key, Site, key_of, keys_of, last_rows, row_keys, sites_of
from rankscope.analyze.derived import derived
from rankscope.model.numbers import integer
from rankscope.model.tables import Array, Table, Trace

Row = dict[str, Any]
Costs = dict[tuple[Key, Site], int]  # ids are given again after a reset, so the function is part of the key
_LIMIT = re.compile(r"recompile[_ ]limit|cache_size_limit|FailOnRecompileLimitHit", re.I)
_LIMIT_VALUE = re.compile(r"(?:currently set to |hit config\.\w+ \()(\d+)")
_LIMIT_LINE = re.compile(
    r"hit config\.\w*limit \(\d+\)\s+function: '(?P<function>[^']*)' \((?P<file>.+):(?P<line>\d+)\)"
)
_N_TEXT_KEY = 3  # file, rank, frame
_SCOPE = re.compile(r"\b[LG]\['([^']+)'\]")


class Version(NamedTuple):
    """One compilation of a frame. The guard is the one of the previous version that the call failed."""

    compile_id: str
    number: int
    cost_ns: int
    guard: Row | None = None
    actual: str = ""
    is_absorbed: bool = False  # what differed is a symbol of this version: it will not differ again
    limit: str = ""  # torch's text, where this version was refused because there were too many

    @property
    def is_recompile(self) -> bool:
        return self.number > 0 and not self.limit


class Chain(NamedTuple):
    """The versions of one function in one run, by rank; ranks that recompiled for other reasons have another chain."""

    run: int
    site: Site
    versions: dict[int, list[Version]]

    @property
    def longest(self) -> list[Version]:
        """The versions of the rank that has the most; of the lowest such rank if several do."""
        return max((self.versions[rank] for rank in sorted(self.versions)), key=len)

    @property
    def cost_ns(self) -> int:
        """The time of all but the first version, on the rank that lost most."""
        return max(sum(one.cost_ns for one in made if one.number > 0) for made in self.versions.values())

    @property
    def limit(self) -> str:
        return next((one.limit for versions in self.versions.values() for one in versions if one.limit), "")


def is_limit(fail_type: str, fail_reason: str) -> bool:
    """True if a compilation was refused because the frame has too many versions, in the words of old or new torch."""
    return bool(_LIMIT.search(fail_type) or _LIMIT.search(fail_reason))


def limit_value(text: str) -> str:
    match = _LIMIT_VALUE.search(text)
    return match.group(1) if match else ""


def plain_source(source: str) -> str:
    """`L['x'].size()[0]` -> `x.size()[0]`."""
    return _SCOPE.sub(r"\1", source)


def chains_of(trace: Trace) -> list[Chain]:
    """One chain per function that was compiled more than once or refused; the order depends only on the data."""
    return derived(trace, _make_chains)


def _make_chains(trace: Trace) -> list[Chain]:
    sites = sites_of(trace)
    facts = _Facts.of(trace)
    merged: dict[tuple[int, Site], dict[int, list[Version]]] = {}
    frames = _frames(trace)
    n_same = Counter((key_of(row), row["site"]) for rows in frames.values() for row in rows)
    for rows in frames.values():
        if rows[-1]["number"] == 0:
            continue
        # After torch._dynamo.reset ids come again: what they took together is divided among them.
        versions = [facts.version(row, n_same[key_of(row), row["site"]]) for row in rows]
        named = (row["site"] for row in reversed(rows) if row["site"].function)
        guarded = (sites.find(one.guard) for one in reversed(versions) if one.guard)  # of text that names no function
        key = (sites.run(rows[0]["file_id"]), next(named, next(guarded, NOWHERE)))
        merged.setdefault(key, {}).setdefault(rows[0]["rank"], []).extend(versions)
    alike: dict[tuple[Any, ...], dict[int, list[Version]]] = {}
    for (run, site), versions_of in merged.items():
        for rank, rank_versions in versions_of.items():
            alike.setdefault((run, site, _signature(rank_versions)), {})[rank] = rank_versions
    return [Chain(run, site, versions) for (run, site, _), versions in sorted(alike.items(), key=lambda item: item[0])]


def _signature(versions: list[Version]) -> tuple[Any, ...]:
    """What the ranks of one chain have in common: the causes, and whether the limit was reached."""
    causes = {cause_key(version.guard) for version in versions if version.guard}
    return tuple(sorted(causes)), any(version.limit for version in versions)


def cause_key(guard: Row) -> tuple[str, str, int]:
    """Without a subject, only the guard's text distinguishes conditions."""
    return guard["cause"], guard["subject"] or guard["guard"], guard["dimension"]


def _frames(trace: Trace) -> dict[tuple[Any, ...], list[Row]]:
    """The versions of each frame in order. Torch may restart its frame numbers, so the code is part of the key."""
    sites, compilations = sites_of(trace), trace.table("compilations")
    is_forward = np.flatnonzero(compilations.text("phase").equals("forward"))
    frames: dict[tuple[Any, ...], list[Row]] = {}
    seen: set[Key] = set()
    part, text_files = compilations.take(is_forward), _text_files(trace)
    names = ("file_id", "rank", "compile_id", "frame_id", "file", "function", "fail_type", "fail_reason")
    columns = [part.columns[name].tolist() for name in names]
    numbers = part.array("frame_compile_id").tolist()
    for position, values in enumerate(zip(*columns, strict=True)):
        row: Row = dict(zip(names, values, strict=True))
        row.update(number=numbers[position], site=sites.of_row[int(is_forward[position])])
        # Text names the code of some compilations only, and there frames are not counted anew.
        code = () if row["file_id"] in text_files else (row["file"], row["function"])
        frames.setdefault((row["file_id"], row["rank"], row["frame_id"], *code), []).append(row)
        seen.add(key_of(row))
    _add_text_versions(trace, frames, seen)
    for rows in frames.values():
        rows.sort(key=lambda row: row["number"])
    return frames


def _add_text_versions(trace: Trace, frames: dict[tuple[Any, ...], list[Row]], seen: set[Key]) -> None:
    """Text logs show only the recompilations, and the limit as a warning."""
    sites, recompiles = sites_of(trace), trace.table("recompiles")
    limits = _limit_lines(trace)
    for row in recompiles.take(_newest_rows(recompiles)).rows():
        if key_of(row) in seen:
            continue
        limit, site = limits.get(key_of(row), ("", sites.find(row)))
        frame = frames.setdefault((row["file_id"], row["rank"], row["frame_id"]), [])
        frame.append({**row, "number": row["frame_compile_id"], "site": site, "fail_type": "", "fail_reason": limit})
    for key, rows in frames.items():
        if len(key) == _N_TEXT_KEY and min(row["number"] for row in rows) > 0:  # the first version went by untold
            rows.append({**rows[0], "number": 0, "compile_id": f"{key[-1]}/0", "fail_reason": "", "fail_type": ""})


def _text_files(trace: Trace) -> set[int]:
    logs = trace.table("compile_logs")
    return set(logs.array("file_id")[logs.text("source").equals("text")].tolist())


def _limit_lines(trace: Trace) -> dict[Key, tuple[str, Site]]:
    lines = trace.table("log_lines")
    limits: dict[Key, tuple[str, Site]] = {}
    messages = lines.text("message")
    hits = np.fromiter((bool(_LIMIT_LINE.search(text)) for text in messages.values), bool, len(messages.values))
    rows = np.flatnonzero(hits[messages.codes]) if len(hits) else np.empty(0, np.int64)
    for row in lines.take(rows).rows():
        limit = _LIMIT_LINE.search(row["message"])
        assert limit
        site = Site(limit["file"], int(limit["line"][:9]), limit["function"])
        limits[key_of(row)] = (row["message"], site)
    return limits


def _newest_rows(recompiles: Table) -> Array:
    """For each compilation the row about the newest version: the older ones had already failed before."""
    against = recompiles.text("against")
    numbers = np.array([_version_number(text) for text in against.values], np.int64)
    newest_last = numbers[against.codes] if len(numbers) else np.zeros(len(recompiles), np.int64)
    keys = row_keys(recompiles)
    order = np.lexsort((-np.arange(len(keys)), newest_last, keys))
    return np.sort(order[last_rows(keys[order])])


def _version_number(compile_id: str) -> int:
    number = compile_id.rpartition("/")[2].partition("_")[0]
    return integer(number)


class _Facts(NamedTuple):
    """What is known about single compilations, by file and compile id."""

    guards: dict[Key, Row]
    costs: Costs
    symbols: dict[Key, dict[str, str]]
    made_for: dict[tuple[Any, ...], str]  # by file, rank, compilation, subject and dimension

    @classmethod
    def of(cls, trace: Trace) -> _Facts:
        recompiles = trace.table("recompiles")
        guards = {key_of(row): row for row in recompiles.take(_newest_rows(recompiles)).rows()}
        names = ("file_id", "rank", "against", "subject", "dimension")
        made_for = {tuple(row[name] for name in names): row["expected"] for row in guards.values()}
        return cls(guards, costs_of(trace), _symbols_of(trace), made_for)

    def version(self, row: Row, n_same: int) -> Version:
        key = key_of(row)
        guard, symbols = self.guards.get(key), self.symbols.get(key, {})
        limit = row["fail_reason"] or row["fail_type"] if is_limit(row["fail_type"], row["fail_reason"]) else ""
        cost = self.costs.get((key, row["site"]), 0) // n_same
        if guard is None:
            return Version(row["compile_id"], row["number"], cost, limit=limit)
        subject, dimension = guard["subject"], guard["dimension"]
        source = f"{subject}.size()[{dimension}]" if guard["cause"] == "size" and dimension >= 0 else subject
        # A later guard of this version tells what it was made for, and so what the call had brought.
        later = self.made_for.get((*key, subject, dimension), "")
        actual = guard["actual"] or symbols.get(source, "") or (later if subject else "")
        is_absorbed = guard["cause"] in ("size", "value") and source in symbols
        return Version(row["compile_id"], row["number"], cost, guard, actual, is_absorbed, limit)


def costs_of(trace: Trace) -> Costs:
    """The time each compilation took, including its backward and its run-time work."""
    return derived(trace, _make_costs)


def _make_costs(trace: Trace) -> Costs:
    compilations = trace.table("compilations")
    costs: Costs = {}
    keys = zip(keys_of(compilations), sites_of(trace).of_row, strict=True)
    for key, taken in zip(keys, total_times(trace).tolist(), strict=True):
        costs[key] = costs.get(key, 0) + taken
    return costs


def _symbols_of(trace: Trace) -> dict[Key, dict[str, str]]:
    """What each compilation left open: source -> the value at the time."""
    guards = trace.table("guards")
    part = guards.take(np.flatnonzero(guards.text("kind").equals("symbol")))
    symbols: dict[Key, dict[str, str]] = {}
    columns = part.text("source").tolist(), part.text("value").tolist()
    for key, source, value in zip(keys_of(part), *columns, strict=True):
        symbols.setdefault(key, {})[plain_source(source)] = value
    return symbols
