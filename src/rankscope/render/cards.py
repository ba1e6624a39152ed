"""Findings as cards: the verdict in one sentence, where in the job, both sides of the evidence, what to do."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import NamedTuple

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
    headline,
    merged_stacks,
    peers_phrase,
    remarks_of,
    skipped_by_reason,
    stack_owners,
    where_parts,
)
from rankscope.render.html import text
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

    def card(self, anchor: str, finding: Finding, *, is_open: bool = True, links: str = "") -> str:
        """A closed card shows only its title. `links` is HTML."""
        head = self._head(finding)
        body = "".join(self._body(finding)) + (f'<p class="links">{links}</p>' if links else "")
        content = f"{head}{body}" if is_open else fold(head, body)
        return f'<article class="card {finding.severity}" id="{text(anchor)}">{content}</article>'

    def _body(self, finding: Finding) -> Iterator[str]:
        remarks = remarks_of(finding)
        yield _remarks(remark for remark in remarks if remark[0] == "help")
        where = where_parts(finding)
        if where:
            yield f'<p class="where">{text(", ".join(where))}</p>'
        if finding.evidence.comparison:
            yield _comparison(finding.evidence.comparison)
        yield from self._sites(finding)
        yield _remarks(remark for remark in remarks if remark[0] != "help")
        for stack in merged_stacks(finding.evidence.stacks):
            if len(stack.frames) > 1:
                yield self._stack(stack)
        if finding.code in self.meanings:
            yield f'<p class="meaning">{text(finding.code)}: {text(self.meanings[finding.code])}</p>'

    def _head(self, finding: Finding) -> str:
        evidence = finding.evidence
        cost = format_duration(evidence.cost_ns) if evidence.cost_ns else ""
        if evidence.cost_pct is not None and evidence.cost_pct >= 0.5:
            cost = f"{evidence.cost_pct:.0f}% of the time"
        about = "share of the step time, or of the recording if no steps were marked" if "%" in cost else "total cost"
        shown = f'<span class="cost" title="{about}">{text(cost)}</span>' if cost else ""
        return (
            f'<header><span class="tag">{text(finding.severity)}<code>{text(finding.code)}</code>'
            f'<span class="certainty">({text(finding.certainty)})</span></span>{shown}'
            f"<h3>{prose(headline(finding))}</h3></header>"
        )

    def _sites(self, finding: Finding) -> Iterator[str]:
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

    def _site(self, site: Location, whose: str) -> str:
        code = (self.lines.get((site.file, site.line)) or source_line(site, self.base)) if self.source else None
        shown = f'<pre><span class="n">{site.line}</span>{text(code.strip())}</pre>' if code else ""
        of = f' <span class="faint">({text(whose)})</span>' if whose else ""
        return f'<div class="site"><span class="place">{self._place(site)}</span>{of}{shown}</div>'

    def _place(self, site: Location) -> str:
        place = f"<b>{text(shown_path(site.file, self.base))}:{site.line}</b>"
        return f"{place} in {text(site.function)}" if site.function else place

    def _stack(self, stack: StackGroup) -> str:
        frames = "".join(f"<li>{self._place(frame)}</li>" for frame in stack.frames[:MAX_FRAMES])
        whose = text(stack_owners(stack))
        return fold(f"Stack trace ({whose}), innermost first", f'<ol class="stack">{frames}</ol>')


def _comparison(comparison: Comparison) -> str:
    heads = "".join(f'<th scope="col">{text(side.label or ranks_phrase(side.ranks))}</th>' for side in comparison.sides)
    rows = "".join(
        f'<tr{" class=marked" if position == comparison.mark else ""}><th scope="row">{text(key)}</th>'
        + "".join(f"<td>{text(side.cells[position])}</td>" for side in comparison.sides)
        + "</tr>"
        for position, key in enumerate(comparison.keys)
    )
    head = f'<thead><tr><th scope="col">{text(comparison.heading)}</th>{heads}</tr></thead>'
    return f'<div class="wide"><table class="sides">{head}<tbody>{rows}</tbody></table></div>'


def _remarks(remarks: Iterable[tuple[str, str]]) -> str:
    items, before = "", ""
    for label, said in remarks:
        label = _SHOWN_LABELS.get(label, label)
        items += f'<dt class="{label}">{label if label != before else ""}</dt><dd>{prose(said)}</dd>'
        before = label
    return f"<dl>{items}</dl>" if items else ""


def prose(said: str) -> str:
    """Sentences with `code` and web addresses in them."""
    escaped = re.sub(r"`([^`\n]+)`", r"<code>\1</code>", text(said))
    return re.sub(r"https?://[^\s<>&()]+[^\s<>&().,;:]", _address, escaped)


def _address(address: re.Match[str]) -> str:
    return f'<a href="{address.group()}" rel="noreferrer noopener">{address.group()}</a>'


def skipped_checks(checks: tuple[Check, ...]) -> str:
    """What could not be checked, by reason: a rule that did not run says nothing about the job."""
    by_reason = skipped_by_reason(checks)
    if not by_reason:
        return ""
    items = "".join(f"<li>{text(why or 'no data')}: {text(', '.join(rules))}</li>" for why, rules in by_reason.items())
    n_skipped = sum(map(len, by_reason.values()))
    title = f"{count_noun(n_skipped, 'check')} skipped"
    return fold(title, f"<ul>{items}</ul>", kind="checks")
