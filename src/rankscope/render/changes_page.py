"""What changed between two captures, as one page that needs nothing else."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from rankscope.model.changes import Changes, FindingChange
from rankscope.render import Options
from rankscope.render.changes import compile_sections, finding_details, other_sections, side_words, time_sections
from rankscope.render.compile_changes import Section, change_verdict
from rankscope.render.html import page, text
from rankscope.render.plain_table import cell_text

ROWS_SHOWN = 10
_SHORT = 12
_WORSE, _BETTER = ("new", "slower", "more", "worse"), ("gone", "faster", "fewer", "better")


def changes_page(changes: Changes, options: Options) -> str:
    return page("Two captures compared", _body(changes, options), ("page.css", "changes.css"))


def _body(changes: Changes, options: Options) -> Iterator[str]:
    yield f'<h1 class="verdict {changes.worst or "calm"}">{text(changes.verdict)}</h1>'
    yield '<dl class="sides">'
    for name, capture in (("A", changes.old), ("B", changes.new)):
        yield f"<dt>{name}</dt><dd>{text(side_words(capture))}</dd>"
    yield "</dl>"
    if changes.findings:
        yield f'<h2 id="findings">Findings</h2><ul class="findings">{"".join(map(_finding, changes.findings))}</ul>'
    yield from map(_table, time_sections(changes, options.show_all))
    if changes.compile:
        yield f'<h2 id="compile">torch.compile</h2><p>{text(change_verdict(changes.compile))}</p>'
        yield from map(_table, compile_sections(changes, options.show_all))
    yield from map(_table, other_sections(changes, options.show_all))
    notes = [*changes.not_compared, *changes.notes]
    if notes:
        yield "<h2>Notes</h2><ul>" + "".join(f"<li>{text(note)}</li>" for note in notes) + "</ul>"
    if options.next_command:
        yield f'<p class="next">Next: <code>{text(options.next_command)}</code></p>'


def _finding(change: FindingChange) -> str:
    details = "".join(f"<br><small>{text(detail)}</small>" for detail in finding_details(change))
    code = f'<b class="{change.severity}">{change.severity}[{text(change.code)}]</b>'
    return f"<li>{_kind(change.kind)} {code} {text(change.title)}{details}</li>"


def _kind(kind: str) -> str:
    mood = "worse" if kind in _WORSE else "better" if kind in _BETTER else "other"
    return f'<span class="kind {mood}">{text(kind)}</span>' if kind else ""


def _table(section: Section) -> str:
    """Shows the first rows; the others unfold without a script."""
    heads = "".join(f"<th>{text(head)}</th>" for head in section.heads)
    first, rest = section.rows[:ROWS_SHOWN], section.rows[ROWS_SHOWN:]
    shown = f'<h3>{text(section.title)}</h3><div class="wide">{_rows(heads, section, first)}</div>'
    if not rest:
        return shown
    hidden = f'<div class="wide">{_rows(heads, section, rest)}</div>'
    return f"{shown}<details><summary>{len(rest):,} more</summary>{hidden}</details>"


def _rows(heads: str, section: Section, rows: Sequence[Sequence[Any]]) -> str:
    has_kind = not section.heads[0]
    body = "".join(
        "<tr>" + "".join(_cell(value, has_kind and place == 0) for place, value in enumerate(row)) + "</tr>"
        for row in rows
    )
    return f"<table><thead><tr>{heads}</tr></thead><tbody>{body}</tbody></table>"


def _cell(value: Any, is_kind: bool) -> str:
    """Short ones stay on one line: a number apart from its unit is hard to read."""
    shown = cell_text(value)
    if is_kind:
        return f"<td>{_kind(shown)}</td>"
    return f'<td class="whole">{text(shown)}</td>' if len(shown) <= _SHORT else f"<td>{text(shown)}</td>"
