"""Findings as cards: the verdict in one sentence, where in the job, both sides of the evidence, what to do."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import NamedTuple

from rankscope.model.border import PLEASE_REPORT
from rankscope.model.finding import (
    Check,
    Comparison,
    Finding,
    Location,
    StackGroup,
    count_noun,
    format_duration,
    ranks_phrase,
)
from rankscope.model.source_text import source_line
from rankscope.render.finding_words import (
    failed_phrases,
    headline,
    merged_stacks,
    peers_phrase,
    remarks_of,
    skipped_by_reason,
    stack_owners,
    where_parts,
)
from rankscope.render.html import NOTHING, Html, joined, markup, text
from rankscope.render.listing import fold
from rankscope.render.source import shown_path

Lines = Mapping[tuple[str, int], str]
MAX_FRAMES = 12
_SHOWN_LABELS = {"help": "fix"}


class Cards(NamedTuple):
    lines: Lines = MappingProxyType({})  # the code that a log has for (file, line)
    meanings: Mapping[str, str] = MappingProxyType({})  # one sentence per code of a rule
    base: str = ""
    source: bool = True
    code_folder: str = ""  # files below it are shown relative to it, where they are not below `base`

    def card(self, anchor: str, finding: Finding, *, is_open: bool = True, links: Html = NOTHING) -> Html:
        """A closed card shows only its title."""
        head = self._head(finding)
        body = joined(self._body(finding)) + (markup('<p class="links">{}</p>', links) if links else NOTHING)
        content = head + body if is_open else fold(head, body)
        return markup('<article class="card {}" id="{}">{}</article>', finding.severity, anchor, content)

    def _body(self, finding: Finding) -> Iterator[Html]:
        remarks = remarks_of(finding)
        yield _remarks(remark for remark in remarks if remark[0] in ("help", "restart"))
        where = where_parts(finding)
        if where:
            yield markup('<p class="where">{}</p>', ", ".join(where))
        if finding.evidence.comparison:
            yield _comparison(finding.evidence.comparison)
        yield from self._sites(finding)
        yield _remarks(remark for remark in remarks if remark[0] not in ("help", "restart"))
        for stack in merged_stacks(finding.evidence.stacks):
            if len(stack.frames) > 1:
                yield self._stack(stack)
        if finding.code in self.meanings:
            yield markup('<p class="meaning">{}: {}</p>', finding.code, self.meanings[finding.code])

    def _head(self, finding: Finding) -> Html:
        evidence = finding.evidence
        cost = format_duration(evidence.cost_ns) if evidence.cost_ns else ""
        if evidence.cost_pct is not None and evidence.cost_pct >= 0.5:
            cost = f"{evidence.cost_pct:.0f}% of the time"
        about = "share of the step time, or of the recording if no steps were marked" if "%" in cost else "total cost"
        shown = markup('<span class="cost" title="{}">{}</span>', about, cost) if cost else NOTHING
        return markup(
            '<header><span class="tag">{}<code>{}</code>'
            '<span class="certainty">({})</span></span>{}'
            "<h3>{}</h3></header>",
            finding.severity,
            finding.code,
            finding.certainty,
            shown,
            prose(headline(finding)),
        )

    def _sites(self, finding: Finding) -> Iterator[Html]:
        """The culprits' line and their peers' line; one entry if both made the call from the same line."""
        culprits = ranks_phrase(finding.ranks) if finding.ranks else ""
        peers = peers_phrase(finding)
        if finding.location and finding.location == finding.peer_location:
            yield self._site(finding.location, " and ".join(filter(None, (peers, culprits))))
            return
        if finding.location:
            yield self._site(finding.location, culprits)
        if finding.peer_location:
            yield self._site(finding.peer_location, peers or "other ranks")

    def _site(self, site: Location, whose: str) -> Html:
        code = (self.lines.get((site.file, site.line)) or source_line(site, self.base)) if self.source else None
        shown = markup('<pre><span class="n">{}</span>{}</pre>', site.line, code.strip()) if code else NOTHING
        of = markup(' <span class="faint">({})</span>', whose) if whose else NOTHING
        return markup('<div class="site"><span class="place">{}</span>{}{}</div>', self._place(site), of, shown)

    def _place(self, site: Location) -> Html:
        path = shown_path(site.file, self.base, self.code_folder)
        shown = markup('<b title="{}">{}:{}</b>', site.file, path, site.line)
        return markup("{} in {}", shown, site.function) if site.function else shown

    def _stack(self, stack: StackGroup) -> Html:
        frames = joined(markup("<li>{}</li>", self._place(frame)) for frame in stack.frames[:MAX_FRAMES])
        whose = stack_owners(stack)
        return fold(f"Stack trace ({whose}), innermost first", markup('<ol class="stack">{}</ol>', frames))


def _comparison(comparison: Comparison) -> Html:
    heads = joined(
        markup('<th scope="col">{}</th>', side.label or ranks_phrase(side.ranks)) for side in comparison.sides
    )
    rows = joined(
        markup('<tr{}><th scope="row">{}</th>', " class=marked" if position == comparison.mark else "", key)
        + joined(markup("<td>{}</td>", side.cells[position]) for side in comparison.sides)
        + markup("</tr>")
        for position, key in enumerate(comparison.keys)
    )
    head = markup('<thead><tr><th scope="col">{}</th>{}</tr></thead>', comparison.heading, heads)
    return markup('<div class="wide"><table class="sides">{}<tbody>{}</tbody></table></div>', head, rows)


def _remarks(remarks: Iterable[tuple[str, str]]) -> Html:
    items, before = NOTHING, ""
    for label, said in remarks:
        label = _SHOWN_LABELS.get(label, label)
        items += markup('<dt class="{}">{}</dt><dd>{}</dd>', label, label if label != before else "", prose(said))
        before = label
    return markup("<dl>{}</dl>", items) if items else NOTHING


def prose(said: str) -> Html:
    """Sentences with `code` and web addresses in them."""
    escaped = re.sub(r"`([^`\n]+)`", markup(r"<code>\1</code>"), text(said))
    return Html(re.sub(r"https?://[^\s<>&()]+[^\s<>&().,;:]", _address, escaped))


def _address(address: re.Match[str]) -> str:
    """Escaped already."""
    return f'<a href="{address.group()}" rel="noreferrer noopener">{address.group()}</a>'


def skipped_checks(checks: tuple[Check, ...]) -> Html:
    """What could not be checked, by reason: a rule that did not run says nothing about the job."""
    failed = failed_phrases(checks)
    broken = joined(markup("<p>Check failed: {}; {}</p>", phrase, PLEASE_REPORT) for phrase in failed)
    by_reason = skipped_by_reason(checks)
    if not by_reason:
        return broken
    items = joined(markup("<li>{}: {}</li>", why or "no data", ", ".join(rules)) for why, rules in by_reason.items())
    n_skipped = sum(map(len, by_reason.values()))
    title = f"{count_noun(n_skipped, 'check')} skipped"
    return joined((broken, fold(title, markup("<ul>{}</ul>", items), kind="checks")))
