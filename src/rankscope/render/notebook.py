"""How reports, traces and tables look in a notebook: HTML that needs no script and no file.

It has the style of the pages, confined to its own element: the notebook has its own style, and many such elements.
"""

from __future__ import annotations

import functools
import math
import os
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from rankscope.model.finding import Report, count_noun
from rankscope.model.tables import MISSING, SCHEMA, Column, Table, Trace
from rankscope.render.cards import Cards, skipped_checks
from rankscope.render.escape import cut_short
from rankscope.render.finding_words import capture_parts, found_phrase, sources_phrase
from rankscope.render.html import asset, text
from rankscope.render.listing import fold

MAX_OPEN_FINDINGS = 5
MAX_ROWS = 20
MAX_CELL_LENGTH = 80
_STYLES = ("page.css", "parts.css", "notebook.css")


def report_html(report: Report) -> str:
    return _fragment(_report_parts(report))


def trace_html(trace: Trace) -> str:
    return _fragment(_trace_parts(trace))


def table_html(table: Table) -> str:
    return _fragment(_table_parts(table))


def _fragment(parts: Iterable[str]) -> str:
    html = f'<div class="rankscope"><style>{_style()}</style>\n' + "\n".join(parts) + "\n</div>"
    # What a notebook shows it also saves and sends, as Unicode: a dump may hold lone surrogates.
    return html.encode("utf-8", "backslashreplace").decode()


@functools.lru_cache
def _style() -> str:
    """The pages' style, nested: what it says of the whole page holds for this element."""
    rules = "\n".join(map(asset, _STYLES)).replace(":root", "&")
    return f".rankscope {{\n{rules}}}"


def _report_parts(report: Report) -> Iterator[str]:
    capture = report.capture
    yield f'<p class="kicker">{text(sources_phrase(capture))} from {text(", ".join(capture.paths))}</p>'
    yield f'<p class="kicker">{text(", ".join(capture_parts(capture)))}</p>'
    yield f"<p><b>{text(found_phrase(report))}.</b></p>"
    cards = Cards(base=os.getcwd())
    for number, finding in enumerate(report.findings):
        yield cards.card(f"rankscope-{number}", finding, is_open=number < MAX_OPEN_FINDINGS)
    if report.effects:
        effects = (cards.card(f"rankscope-effect-{n}", effect) for n, effect in enumerate(report.effects))
        yield fold(f"{count_noun(len(report.effects), 'effect')} of the above", "\n".join(effects), kind="checks")
    yield skipped_checks(report.checks)


def _trace_parts(trace: Trace) -> Iterator[str]:
    held = trace.held_rows()
    yield f'<p class="kicker">{text(", ".join(trace.paths))}</p>'
    rows = (
        f'<tr><th scope="row">{text(name)}</th><td class="num">{n_rows:,}</td><td>{text(SCHEMA[name].doc)}</td></tr>'
        for name, n_rows in held.items()
    )
    head = '<tr><th scope="col">table</th><th scope="col" class="num">rows</th><th scope="col">contents</th></tr>'
    yield f'<div class="wide"><table><thead>{head}</thead><tbody>{"".join(rows)}</tbody></table></div>'
    waiting = [name for name in SCHEMA if name in trace.makers and name not in trace.tables]
    if waiting:
        yield fold(f"{count_noun(len(waiting), 'table')} created on demand", text(", ".join(waiting)), kind="checks")


def _table_parts(table: Table) -> Iterator[str]:
    spec = SCHEMA[table.name]
    yield f"<p><b>{text(table.name)}</b>: {text(spec.doc)}</p>"
    heads = "".join(map(_head, spec.columns))
    first = table.take(np.arange(min(len(table), MAX_ROWS)))
    rows = "".join(f"<tr>{''.join(map(_cell, row.values()))}</tr>" for row in first.rows())
    yield f'<div class="wide"><table class="rows"><thead><tr>{heads}</tr></thead><tbody>{rows}</tbody></table></div>'
    shown = f", the first {len(first)} shown" if len(first) < len(table) else ""
    yield f'<p class="kicker">{count_noun(len(table), "row")}{shown}, {count_noun(len(spec.columns), "column")}</p>'


def _head(column: Column) -> str:
    kind = "" if column.kind in ("text", "bool") else ' class="num"'
    return f'<th scope="col"{kind} title="{text(column.doc)}">{text(column.name)}</th>'


def _cell(value: Any) -> str:
    if isinstance(value, str):
        return f"<td>{text(cut_short(value, MAX_CELL_LENGTH))}</td>"
    if isinstance(value, bool):
        return f"<td>{'true' if value else 'false'}</td>"
    is_missing = math.isnan(value) if isinstance(value, float) else value == MISSING
    return '<td class="num faint">NULL</td>' if is_missing else f'<td class="num">{value}</td>'
