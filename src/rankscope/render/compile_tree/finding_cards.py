"""Findings as cards: the verdict in one sentence, the user's line, both sides of the evidence, what to do."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from rankscope.model.finding import Check, Comparison, Finding, Location, StackGroup, format_duration, ranks_phrase
from rankscope.render.compile_tree.listing import fold
from rankscope.render.html import text
from rankscope.render.source import source_line

Lines = Mapping[tuple[str, int], str]
MAX_FRAMES = 12


class Cards:
    """`lines` is the code that the log has for (file, line); `meanings` one sentence per code of a rule."""

    def __init__(self, lines: Lines, meanings: Mapping[str, str], base: str) -> None:
        self.lines = lines
        self.meanings = meanings
        self.base = base

    def card(self, number: int, finding: Finding, *, is_open: bool = True) -> str:
        """One that is not open shows its title until somebody wants more."""
        head = self._head(finding)
        body = "".join(self._body(finding))
        content = f"{head}{body}" if is_open else fold(head, body)
        return f'<article class="card {finding.severity}" id="finding-{number}">{content}</article>'

    def _body(self, finding: Finding) -> Iterator[str]:
        yield from self._sites(finding)
        yield _remarks(finding)
        if finding.evidence.comparison:
            yield _comparison(finding.evidence.comparison)
        for stack in finding.evidence.stacks:
            if len(stack.frames) > 1:
                yield self._stack(stack)
        if finding.code in self.meanings:
            yield f'<p class="meaning">{text(finding.code)}: {text(self.meanings[finding.code])}</p>'

    def _head(self, finding: Finding) -> str:
        cost = finding.evidence.cost_ns
        shown = f'<span class="cost" title="what it cost in all">{text(format_duration(cost))}</span>' if cost else ""
        return (
            f'<header><span class="tag">{text(finding.severity)}<code>{text(finding.code)}</code></span>{shown}'
            f"<h3>{prose(finding.title)}</h3></header>"
        )

    def _sites(self, finding: Finding) -> Iterator[str]:
        sites = {finding.location: "", finding.peer_location: "the others"}
        if finding.location and len(finding.ranks) > 1:
            sites[finding.location] = ranks_phrase(finding.ranks)
        for site, whose in sites.items():
            if site:
                yield self._site(site, whose)

    def _site(self, site: Location, whose: str) -> str:
        code = self.lines.get((site.file, site.line)) or source_line(site, self.base)
        shown = f'<pre><span class="n">{site.line}</span>{text(code.strip())}</pre>' if code else ""
        of = f' <span class="faint">({text(whose)})</span>' if whose else ""
        return f'<div class="site"><span class="place">{self._place(site)}</span>{of}{shown}</div>'

    def _place(self, site: Location) -> str:
        shown = site.file.removeprefix(self.base.rstrip("/") + "/") if self.base else site.file
        return f"<b>{text(shown)}:{site.line}</b>" + (f" in {text(site.function)}" if site.function else "")

    def _stack(self, stack: StackGroup) -> str:
        frames = "".join(f"<li>{self._place(frame)}</li>" for frame in stack.frames[:MAX_FRAMES])
        whose = f" of {text(stack.label)}" if stack.label else ""
        return fold(f"Stack{whose}, innermost first", f'<ol class="stack">{frames}</ol>')


def _comparison(comparison: Comparison) -> str:
    heads = "".join(f'<th scope="col">{text(side.label)}</th>' for side in comparison.sides)
    rows = "".join(
        f'<tr{" class=marked" if position == comparison.mark else ""}><th scope="row">{text(key)}</th>'
        + "".join(f"<td>{text(side.cells[position])}</td>" for side in comparison.sides)
        + "</tr>"
        for position, key in enumerate(comparison.keys)
    )
    head = f'<thead><tr><th scope="col">{text(comparison.heading)}</th>{heads}</tr></thead>'
    return f'<div class="wide"><table class="sides">{head}<tbody>{rows}</tbody></table></div>'


def _remarks(finding: Finding) -> str:
    evidence = finding.evidence
    remarks = [("certain", said) for said in evidence.certain]
    remarks += [("likely", said) for said in evidence.likely]
    remarks += [("do", finding.help)] if finding.help else []
    remarks += [("note", said) for said in evidence.notes]
    if finding.certainty != "certain":
        remarks.append(("note", f"this verdict is {finding.certainty}, not certain"))
    items = ""
    for position, (label, said) in enumerate(remarks):
        is_first = position == 0 or remarks[position - 1][0] != label
        items += f'<dt class="{label}">{label if is_first else ""}</dt><dd>{prose(said)}</dd>'
    return f"<dl>{items}</dl>" if items else ""


def prose(said: str) -> str:
    """Sentences with `code` and web addresses in them."""
    escaped = re.sub(r"`([^`\n]+)`", r"<code>\1</code>", text(said))
    return re.sub(r"https?://[^\s<>&()]+[^\s<>&().,;:]", _address, escaped)


def _address(found: re.Match[str]) -> str:
    return f'<a href="{found.group()}" rel="noreferrer noopener">{found.group()}</a>'


def skipped_checks(checks: tuple[Check, ...]) -> str:
    """What could not be checked, by reason: no finding is not the same as all is well."""
    by_reason: dict[str, list[str]] = {}
    for check in checks:
        if check.status == "skipped":
            by_reason.setdefault(check.why or "no data", []).append(check.rule)
    if not by_reason:
        return ""
    items = "".join(f"<li>{text(why)}: {text(', '.join(rules))}</li>" for why, rules in by_reason.items())
    return fold(f"{sum(map(len, by_reason.values()))} checks were not made", f"<ul>{items}</ul>", kind="checks")
