"""What changed between two captures, as one page that needs nothing else."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from rankscope.model.changes import Changes, FindingChange
from rankscope.render import Options
from rankscope.render.changes import compile_sections, finding_details, other_sections, side_words, time_sections
from rankscope.render.compile_changes import Section, change_verdict
from rankscope.render.html import NOTHING, Html, joined, markup, page
from rankscope.render.plain_table import cell_text

ROWS_SHOWN = 10
_SHORT = 12
_WORSE, _BETTER = ("new", "slower", "more", "worse"), ("gone", "faster", "fewer", "better")


def changes_page(changes: Changes, options: Options) -> str:
    return page("Two captures compared", _body(changes, options), ("page.css", "changes.css"))


def _body(changes: Changes, options: Options) -> Iterator[Html]:
    yield markup('<h1 class="verdict {}">{}</h1>', changes.worst or "calm", changes.verdict)
    yield markup('<dl class="sides">')
    for name, capture in (("A", changes.old), ("B", changes.new)):
        yield markup("<dt>{}</dt><dd>{}</dd>", name, side_words(capture))
    yield markup("</dl>")
    if changes.findings:
        yield markup(
            '<h2 id="findings">Findings</h2><ul class="findings">{}</ul>', joined(map(_finding, changes.findings))
        )
    yield from map(_table, time_sections(changes, options.show_all))
    if changes.compile:
        yield markup('<h2 id="compile">torch.compile</h2><p>{}</p>', change_verdict(changes.compile))
        yield from map(_table, compile_sections(changes, options.show_all))
    yield from map(_table, other_sections(changes, options.show_all))
    notes = [*changes.not_compared, *changes.notes]
    if notes:
        yield (markup("<h2>Notes</h2><ul>") + joined(markup("<li>{}</li>", note) for note in notes) + markup("</ul>"))
    if options.next_command:
        yield markup('<p class="next">Next: <code>{}</code></p>', options.next_command)


def _finding(change: FindingChange) -> Html:
    details = joined(markup("<br><small>{}</small>", detail) for detail in finding_details(change))
    code = markup('<b class="{}">{}[{}]</b>', change.severity, change.severity, change.code)
    return markup("<li>{} {} {}{}</li>", _kind(change.kind), code, change.title, details)


def _kind(kind: str) -> Html:
    mood = "worse" if kind in _WORSE else "better" if kind in _BETTER else "other"
    return markup('<span class="kind {}">{}</span>', mood, kind) if kind else NOTHING


def _table(section: Section) -> Html:
    """Shows the first rows; the others unfold without a script."""
    heads = joined(markup("<th>{}</th>", head) for head in section.heads)
    first, rest = section.rows[:ROWS_SHOWN], section.rows[ROWS_SHOWN:]
    shown = markup('<h3>{}</h3><div class="wide">{}</div>', section.title, _rows(heads, section, first))
    if not rest:
        return shown
    hidden = markup('<div class="wide">{}</div>', _rows(heads, section, rest))
    return markup("{}<details><summary>{:,} more</summary>{}</details>", shown, len(rest), hidden)


def _rows(heads: str, section: Section, rows: Sequence[Sequence[Any]]) -> Html:
    has_kind = not section.heads[0]
    body = joined(
        markup("<tr>")
        + joined(_cell(value, has_kind and index == 0) for index, value in enumerate(row))
        + markup("</tr>")
        for row in rows
    )
    return markup("<table><thead><tr>{}</tr></thead><tbody>{}</tbody></table>", heads, body)


def _cell(value: Any, is_kind: bool) -> Html:
    """Short ones stay on one line: a number apart from its unit is hard to read."""
    shown = cell_text(value)
    if is_kind:
        return markup("<td>{}</td>", _kind(shown))
    return markup('<td class="whole">{}</td>', shown) if len(shown) <= _SHORT else markup("<td>{}</td>", shown)
