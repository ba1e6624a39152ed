"""Which symbolic sizes and numbers were made constant, by which line, and what that led to."""

from __future__ import annotations

import re
from typing import Any, NamedTuple

from rankscope.analyze.compile.chains import Chain, chains_of, plain_source
from rankscope.analyze.compile.sites import Key, Site, key_of, sites_of
from rankscope.analyze.compile.wording import ranks_of
from rankscope.analyze.derived import derived
from rankscope.model.finding import Location
from rankscope.model.tables import Trace

_EQUALS = re.compile(
    r"^Eq\((?:(?P<symbol>[sz]f?\d+), (?P<value>-?[\d.]+)|(?P<value2>-?[\d.]+), (?P<symbol2>[sz]f?\d+))\)$"
)
_SIZE = re.compile(r"^(?P<tensor>.+)\.(?P<what>size|stride)\(\)\[(?P<dimension>\d+)\]$")

Row = dict[str, Any]


class Pinned(NamedTuple):
    """One source of a symbol that one line made constant, on all ranks of a run."""

    run: int
    site: Site
    source: str
    location: Location | None
    code: str
    expression: str
    reason: str
    values: tuple[str, ...]
    compile_ids: tuple[str, ...]
    ranks: tuple[int, ...]
    n_recompiles: int
    cost_ns: int

    @property
    def subject(self) -> str:
        size = _SIZE.match(self.source)
        if size is None:
            return self.source or "a symbolic number"
        what = "dimension" if size["what"] == "size" else "stride of dimension"
        return f"{what} {size['dimension']} of {size['tensor']}"


def pinned_dimensions(trace: Trace) -> list[Pinned]:
    return derived(trace, _make_pinned)


def _make_pinned(trace: Trace) -> list[Pinned]:
    sites = sites_of(trace)
    groups: dict[tuple[Any, ...], list[Row]] = {}
    for row in _pinning_rows(trace):
        site = sites.find(row)
        key = (sites.run(row["file_id"]), site, row["source"], row["file"], row["line"])
        groups.setdefault(key, []).append(row)
    chains: dict[tuple[int, Site], list[Chain]] = {}
    for chain in chains_of(trace):
        chains.setdefault((chain.run, chain.site), []).append(chain)
    return [
        _pinned(key, rows, chains.get(key[:2], [])) for key, rows in sorted(groups.items(), key=lambda item: item[0])
    ]


def _pinning_rows(trace: Trace) -> list[Row]:
    """Specializations, and equalities with a constant that none of them mentions; each once, whatever the attempt."""
    symbols: dict[tuple[Key, str], Row] = {}
    equal: dict[tuple[Key, str], Row] = {}
    pinned: dict[tuple[Key, str], Row] = {}
    for row in trace.table("guards").rows():
        if row["kind"] == "symbol":
            symbols[key_of(row), row["symbol"]] = row
        elif row["kind"] == "specialization":
            pinned[key_of(row), row["symbol"]] = {**row, "source": plain_source(row["source"])}
        elif (equality := _EQUALS.match(row["expression"])) is not None:
            symbol, value = equality["symbol"] or equality["symbol2"], equality["value"] or equality["value2"]
            equal[key_of(row), symbol] = {**row, "symbol": symbol, "value": value}
    for key, row in equal.items():
        if key in pinned:
            pinned[key]["expression"] = row["expression"]
        elif key in symbols:  # symbols that are not inputs were never dynamic
            pinned[key] = {**row, "source": plain_source(symbols[key]["source"])}
    return list(pinned.values())


def _pinned(key: tuple[Any, ...], rows: list[Row], chains: list[Chain]) -> Pinned:
    run, site, source, file, line = key
    first = rows[0]
    n_recompiles, cost = _led_to(chains, source)
    return Pinned(
        run=run,
        site=site,
        source=source,
        location=Location(file, line, first["function"]) if file and line >= 0 else None,
        code=first["code"],
        expression=next((row["expression"] for row in rows if row["expression"]), ""),
        reason=first["reason"].replace("_", " "),
        values=tuple(dict.fromkeys(row["value"] for row in rows)),
        compile_ids=tuple(dict.fromkeys(row["compile_id"] for row in rows)),
        ranks=ranks_of(row["rank"] for row in rows),
        n_recompiles=n_recompiles,
        cost_ns=cost,
    )


def _led_to(chains: list[Chain], source: str) -> tuple[int, int]:
    """Recompilations of the function because of this very size or number: the most on one rank, and their time."""
    counts, costs = [0], [0]
    for chain in chains:
        for versions in chain.versions.values():
            caused = [version for version in versions if version.guard and source_of(version.guard) == source]
            counts.append(len(caused))
            costs.append(sum(version.cost_ns for version in caused))
    return max(counts), max(costs)


def source_of(guard: Row) -> str:
    """The source a failed guard is about, as the guards on symbols write it."""
    if guard["cause"] in ("size", "stride") and guard["dimension"] >= 0:
        return f"{guard['subject']}.{guard['cause']}()[{guard['dimension']}]"
    return str(guard["subject"])
