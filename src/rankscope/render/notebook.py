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
from rankscope.render.html import NOTHING, Html, assets, joined, markup, text
from rankscope.render.listing import fold
from rankscope.render.source import code_folder

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


def _fragment(parts: Iterable[Html]) -> str:
    html = markup('<div class="rankscope"><style>{}</style>\n{}\n</div>', _style(), joined(parts, "\n"))
    # What a notebook shows it also saves and sends, as Unicode: a dump may hold lone surrogates.
    return html.encode("utf-8", "backslashreplace").decode()


@functools.lru_cache
def _style() -> Html:
    """The pages' style, nested: what it says of the whole page holds for this element."""
    rules = assets(_STYLES).replace(":root", "&")
    return markup(".rankscope {{\n{}}}", Html(rules))


def _report_parts(report: Report) -> Iterator[Html]:
    capture = report.capture
    yield markup('<p class="kicker">{} from {}</p>', sources_phrase(capture), ", ".join(capture.paths))
    yield markup('<p class="kicker">{}</p>', ", ".join(capture_parts(capture)))
    yield markup("<p><b>{}.</b></p>", found_phrase(report))
    cards = Cards(base=os.getcwd(), code_folder=code_folder(report, os.getcwd()))
    for number, finding in enumerate(report.findings):
        yield cards.card(f"rankscope-{number}", finding, is_open=number < MAX_OPEN_FINDINGS)
    if report.effects:
        effects = (cards.card(f"rankscope-effect-{n}", effect) for n, effect in enumerate(report.effects))
        yield fold(f"{count_noun(len(report.effects), 'effect')} of the above", joined(effects, "\n"), kind="checks")
    yield skipped_checks(report.checks)


def _trace_parts(trace: Trace) -> Iterator[Html]:
    held = trace.held_rows()
    yield markup('<p class="kicker">{}</p>', ", ".join(trace.paths))
    rows = (
        markup(
            '<tr><th scope="row">{}</th><td class="num">{:,}</td><td>{}</td></tr>',
            name,
            n_rows,
            SCHEMA[name].doc,
        )
        for name, n_rows in held.items()
    )
    head = markup(
        '<tr><th scope="col">table</th><th scope="col" class="num">rows</th><th scope="col">contents</th></tr>'
    )
    yield markup('<div class="wide"><table><thead>{}</thead><tbody>{}</tbody></table></div>', head, joined(rows))
    waiting = [name for name in SCHEMA if name in trace.makers and name not in trace.tables]
    if waiting:
        yield fold(f"{count_noun(len(waiting), 'table')} created on demand", text(", ".join(waiting)), kind="checks")


def _table_parts(table: Table) -> Iterator[Html]:
    spec = SCHEMA[table.name]
    yield markup("<p><b>{}</b>: {}</p>", table.name, spec.doc)
    heads = joined(map(_head, spec.columns))
    first = table.take(np.arange(min(len(table), MAX_ROWS)))
    rows = joined(markup("<tr>{}</tr>", joined(map(_cell, row.values()))) for row in first.rows())
    yield markup(
        '<div class="wide"><table class="rows"><thead><tr>{}</tr></thead><tbody>{}</tbody></table></div>', heads, rows
    )
    shown = f", the first {len(first)} shown" if len(first) < len(table) else ""
    yield markup(
        '<p class="kicker">{}{}, {}</p>', count_noun(len(table), "row"), shown, count_noun(len(spec.columns), "column")
    )


def _head(column: Column) -> Html:
    kind = NOTHING if column.kind in ("text", "bool") else markup(' class="num"')
    return markup('<th scope="col"{} title="{}">{}</th>', kind, column.doc, column.name)


def _cell(value: Any) -> Html:
    if isinstance(value, str):
        return markup("<td>{}</td>", cut_short(value, MAX_CELL_LENGTH))
    if isinstance(value, bool):
        return markup("<td>{}</td>", "true" if value else "false")
    is_missing = math.isnan(value) if isinstance(value, float) else value == MISSING
    return markup('<td class="num faint">NULL</td>') if is_missing else markup('<td class="num">{}</td>', value)
