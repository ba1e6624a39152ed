"""compilation_metrics_N.html: everything torch measured about a compilation, its origin, and its files."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache, partial
from typing import Any, NamedTuple

import msgspec
import numpy as np

from rankscope.model.finding import format_duration
from rankscope.model.payloads import mapped_log
from rankscope.model.tables import Array, Trace
from rankscope.render.compile_tree.outputs import NOT_JSON, Output, Row, by_label, link_target
from rankscope.render.compile_tree.small_pages import BACK
from rankscope.render.html import NOTHING, Html, joined, markup, page, text, text_bytes

_MAX_ROWS = 1000  # of one table
_MAX_LINKS = 60  # before and behind the page itself; a compilation has some fifty files, unless its id repeats
_LONG = 200  # characters above which a value is folded away
_VERY_LONG = 2000  # and above which it is shown once
_MAX_LONG_VALUES = 1000  # that are remembered
_GROUPS = (  # the first pattern that fits a field's name says where it stands
    ("Result", r"fail_|restart_reasons|exception|has_guarded_code|recompile|num_graph_breaks|cudagraph_skip"),
    ("What was compiled", r"co_|frame_key|compile_id|stack_trace|is_forward|is_runtime|(non_)?compliant"),
    ("Configuration and versions", r".*(_config|_version)$|config_|feature_usage|specialize_float|log_format"),
    ("Caches", r".*cache(?!_size|d)|.*bundle|pgo_"),
    ("Time", r".*(_time|_time_s|_us|_ms|_s|_ns)$|start_time|end_time|duration"),
    ("Graph and guards", r"graph_|guard|shape_env|.*cache_size|.*_count$|ir_count|param_|tensorify"),
    ("Other", r""),
)
_PATTERNS = [(name, re.compile(pattern)) for name, pattern in _GROUPS]
_UNITS = {"us": 1_000, "ms": 1_000_000, "s": 1_000_000_000}
_UNIT = re.compile(r"_(us|ms|s)$")
_MOMENT = re.compile(r"(start|end)_time")
_TITLES = {
    "compilation_metrics": "Compilation",
    "bwd_compilation_metrics": "Backward compilation",
    "aot_autograd_backward_compilation_metrics": "Backward compilation",
    "compilation_metrics_runtime": "Work at the first run of compilation",
    "bwd_compilation_metrics_runtime": "Work at the first backward run of compilation",
}

Key = tuple[int, int, str]  # log, rank and compile id: several ranks may have written to one stream


class MetricsPages:
    """The tables that the pages of one tree look things up in, cut up by compilation once."""

    def __init__(self, trace: Trace, outputs: Sequence[Output]) -> None:
        self._trace = trace
        self._outputs = by_label(outputs)
        self._places = {id(output): index for others in self._outputs.values() for index, output in enumerate(others)}
        self._shown_on: dict[str, Output] = {}  # long value -> the page that has it
        self._stacks = _Lookup(trace, "compile_stacks")
        self._guards = _Lookup(trace, "guards")
        self._recompiles = _Lookup(trace, "recompiles")
        # Forward, backward and runtime pages of a compilation have the same sections.
        self._origin = lru_cache(maxsize=256)(self._make_origin)
        self._items = lru_cache(maxsize=None)(
            lambda label: [markup("<li>{}</li>", _link(output)) for output in self._outputs[label]]
        )

    def page(self, output: Output) -> bytes:
        row = output.row
        header = mapped_log(self._trace, row["file_id"]).header(row)
        metrics = _decoded(header, row["kind"])
        title = f"{_TITLES[row['kind']]} {output.label}"
        why, where = self._origin((row["file_id"], row["rank"], row["compile_id"]))
        fields = _field_tables(metrics, partial(self._long_value, output))
        body = [BACK, markup("<h1>{}</h1>", title), *_said_first(metrics), why, *fields, where]
        return page(title, [*body, *self._links(output)]).encode("utf-8", "replace")

    def _long_value(self, output: Output, value: str) -> Html:
        """Torch logs its whole configuration with each compilation: it is shown once, and linked where it is equal."""
        is_kept = len(value) > _VERY_LONG and len(self._shown_on) < _MAX_LONG_VALUES
        first = self._shown_on.setdefault(value, output) if is_kept else output
        if first is output:
            return _folded(value)
        return markup('the same as in <a href="{}">{}</a>', link_target(first, "../"), first.label)

    def _make_origin(self, key: Key) -> tuple[Html, Html]:
        """The HTML before and after the fields."""
        return joined(self._recompile_reasons(key), "\n"), joined((*self._stack(key), *self._shapes(key)), "\n")

    def _recompile_reasons(self, key: Key) -> Iterator[Html]:
        rows = self._recompiles.rows(key)
        if rows:
            yield markup("<h2>Why it was recompiled</h2>")
            heads = ("Compared with", "Failed guard", "Compiled for", "Called with", "Where", "Hint")
            names = ("against", "guard", "expected", "actual")
            yield _table(
                heads, [(*(reason[name] for name in names), _place(reason), reason["hint"]) for reason in rows]
            )

    def _stack(self, key: Key) -> Iterator[Html]:
        frames = self._stacks.rows(key)
        if frames:
            yield markup("<h2>Stack</h2>")
            lines = (f"{_place(frame)}\n    {frame['code']}" if frame["code"] else _place(frame) for frame in frames)
            yield markup("<pre>{}</pre>", "\n".join(lines))

    def _shapes(self, key: Key) -> Iterator[Html]:
        """From all attempts: what an attempt decided before a restart explains the restart."""
        guards = self._guards.rows(key)
        for kind, title in _SHAPE_TITLES.items():
            of_kind = [guard for guard in guards if guard["kind"] == kind]
            if of_kind:
                yield markup("<h2>{}</h2>", title)
                heads = ("Attempt", "Symbol", "Expression", "Value", "Source", "Reason", "Where")
                names = ("attempt", "symbol", "expression", "value", "source", "reason")
                yield _table(heads, [(*(guard[name] for name in names), _place(guard)) for guard in of_kind])

    def _links(self, output: Output) -> Iterator[Html]:
        items, here = self._items(output.label), self._places[id(output)]
        before, behind = items[max(0, here - _MAX_LINKS) : here], items[here + 1 : here + _MAX_LINKS]
        yield markup("<h2>Files of this compilation</h2>\n<ul>") + joined(before) + joined(behind) + markup("</ul>")
        n_left = len(items) - 1 - len(before) - len(behind)
        if n_left:
            yield markup("<p>{:,} more in the report's index.</p>", n_left)


_SHAPE_TITLES = {
    "specialization": "Symbolic shapes that became constants",
    "guard": "Guards on symbolic shapes",
    "symbol": "Symbols",
}


class _Lookup:
    """The rows of a table by log and compile id."""

    def __init__(self, trace: Trace, name: str) -> None:
        self._table = trace.table(name)
        self._places: dict[Key, Array] = {}
        column = self._table.text("compile_id")
        files, ranks, codes = self._table.array("file_id"), self._table.array("rank"), column.codes
        order = np.lexsort((codes, ranks, files))
        changes = [np.diff(values[order].astype(np.int64)) != 0 for values in (files, ranks, codes)]
        for group in np.split(order, np.flatnonzero(np.any(changes, axis=0)) + 1) if len(order) else ():
            first = int(group[0])
            self._places[int(files[first]), int(ranks[first]), column[first]] = group

    def rows(self, key: Key) -> list[Row]:
        if not key[2] or key not in self._places:
            return []
        return list(self._table.take(self._places[key]).rows())


def _decoded(header: bytes, kind: str) -> dict[str, Any]:
    try:
        value = msgspec.json.decode(header).get(kind)
    except NOT_JSON:
        value = _leniently_decoded(header, kind)
    return value if isinstance(value, dict) else {"value": value}


def _leniently_decoded(header: bytes, kind: str) -> Any:
    """Python's own writer lets NaN and lone surrogates through; what is worse than that is shown as it is."""
    shown = header.decode("utf-8", "replace")
    try:
        return json.loads(shown).get(kind)
    except (ValueError, RecursionError):
        return shown


def _said_first(metrics: dict[str, Any]) -> Iterator[Html]:
    """What the reader came for: what was compiled, how long it took, whether it worked."""
    if metrics.get("co_name"):
        site = f"{metrics.get('co_filename') or ''}:{metrics.get('co_firstlineno') or ''}".strip(":")
        yield markup("<p><code>{}</code> at <code>{}</code>{}</p>", metrics["co_name"], site, _took(metrics))
    if metrics.get("fail_type"):
        yield markup("<p><strong>It failed: {}</strong></p>", metrics["fail_type"])
        yield markup("<pre>{}</pre>", metrics.get("fail_reason") or "No reason was logged.")
    reasons = [reason for reason in metrics.get("restart_reasons") or () if str(reason).strip()]
    if reasons:
        times = "once" if len(reasons) == 1 else f"{len(reasons):,} times"
        yield markup("<p><strong>Tracing restarted {}</strong></p>", times)
        yield from (markup("<pre>{}</pre>", reason) for reason in reasons)


def _took(metrics: dict[str, Any]) -> str:
    for name, scale in (("duration_us", 1_000), ("entire_frame_compile_time_s", 1_000_000_000)):
        value = metrics.get(name)
        if isinstance(value, (int, float)) and math.isfinite(value):
            return f", {format_duration(int(value * scale))}"
    return ""


class _Field(NamedTuple):
    """The unit and scale that a field's name implies."""

    group: str
    opening: str
    scale: int  # nanoseconds per unit; 0 when it is no duration


@lru_cache(maxsize=1000)
def _field(name: str) -> _Field:
    group = next(title for title, pattern in _PATTERNS if pattern.match(name))
    unit = None if _MOMENT.match(name) else _UNIT.search(name)
    return _Field(group, markup("<tr><th>{}</th><td>", name), _UNITS[unit.group(1)] if unit else 0)


def _field_tables(metrics: dict[str, Any], long_value: Callable[[str], Html]) -> Iterator[Html]:
    groups: dict[str, list[Html]] = {name: [] for name, _ in _GROUPS}
    absent = []
    for name, value in metrics.items():
        if value is None:
            absent.append(name)
        else:
            field = _field(name)
            if isinstance(value, (int, float)):
                cell = _number(value, field.scale)
            else:
                shown = value if isinstance(value, str) else msgspec.json.encode(value).decode()
                cell = markup("<code>{}</code>", shown) if len(shown) <= _LONG else long_value(shown)
            groups[field.group].append(markup("{}{}</td></tr>", field.opening, cell))
    for title, rows in groups.items():
        if rows:
            yield markup('<h2>{}</h2>\n<div class="wide"><table><tbody>{}</tbody></table></div>', title, joined(rows))
    if absent:
        yield markup("<p>Fields without a value: {}</p>", ", ".join(absent))


def _number(value: float, scale: int) -> Html:
    if scale and math.isfinite(value) and not isinstance(value, bool):
        return markup('{} <span class="faint">{}</span>', format_duration(int(value * scale)), value)
    return text(value)


def _folded(shown: str) -> Html:
    escaped = text_bytes(_laid_out(shown).encode("utf-8", "replace")).decode()
    return markup("<details><summary>{:,} characters</summary><pre>{}</pre></details>", len(shown), escaped)


def _laid_out(value: str) -> str:
    try:
        return msgspec.json.format(value, indent=2)
    except NOT_JSON:
        return value


def _table(heads: Sequence[str], rows: Sequence[tuple[object, ...]]) -> Html:
    top = joined(markup('<th scope="col">{}</th>', head) for head in heads)
    distinct = list(dict.fromkeys(rows))
    shown = distinct[:_MAX_ROWS]
    lines = (markup("<tr>") + joined(markup("<td>{}</td>", cell) for cell in row) + markup("</tr>") for row in shown)
    more = (
        markup("<p>{:,} more in raw.jsonl.</p>", len(distinct) - len(shown)) if len(shown) < len(distinct) else NOTHING
    )
    return markup(
        '<div class="wide"><table><thead><tr>{}</tr></thead><tbody>{}</tbody></table></div>{}',
        top,
        joined(lines),
        more,
    )


def _place(row: Row) -> str:
    if not row["file"]:
        return ""
    return f"{row['file']}:{row['line']}" + (f" in {row['function']}" if row["function"] else "")


def _link(output: Output) -> Html:
    target = link_target(output, "../")
    name = f"{output.name} {output.suffix}".rstrip()
    linked = markup('<a href="{}">{}</a>', target, name) if target else text(name)
    if output.readable:
        twin = link_target(output._replace(path=output.readable), "../")
        return markup('{} (<a href="{}">readable</a>)', linked, twin)
    return linked
