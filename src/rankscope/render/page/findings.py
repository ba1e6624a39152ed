"""The findings as cards, the cause first, each with a way into the view that shows it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rankscope.model.finding import Finding, count_noun, finding_anchors
from rankscope.render.cards import Cards, skipped_checks
from rankscope.render.html import NOTHING, Html, joined, markup
from rankscope.render.listing import blocks, fold
from rankscope.render.page.compiling import compile_anchor
from rankscope.render.page.contents import Contents, View, map_link

FINDINGS_SHOWN = 100
ANCHOR = "findings"
# Which views show what a family of rules is about; those with data are linked.
_VIEWS_OF = {
    "H": ("map", "waits", "stacks"),
    "S": ("map", "performance"),
    "P": ("performance",),
    "C": ("compile",),
    "L": ("capture",),
    "X": ("performance", "compile", "map"),
    "D": ("capture",),
}
_VIEW_WORDS = {
    "map": "Show on the map",
    "waits": "Who waits for whom",
    "stacks": "Where each rank is now",
    "performance": "Where the time goes",
    "compile": "What was compiled",
    "capture": "What was read",
}


def findings_view(contents: Contents, anchors: Sequence[str]) -> View:
    """`anchors` are those of the views that have data."""
    report = contents.report
    base, code_folder = contents.folders
    cards = Cards(code_lines(contents), contents.options.meanings, base, contents.options.shows_source, code_folder)
    is_healthy = all(finding.severity == "info" for finding in report.findings)
    shown = [
        cards.card(
            anchor,
            finding,
            is_open=is_healthy or finding.severity != "info",  # good to know must not hide what is wrong
            links=joined(_links(contents, finding, anchors), " "),
        )
        for anchor, finding in zip(finding_anchors(report.findings), report.findings, strict=True)
    ]
    body = blocks(contents.later, "cards", shown, FINDINGS_SHOWN) or markup("<p>No problems found.</p>")
    if report.effects:
        effects = joined(markup("<li>{}: {}</li>", finding.code, finding.title) for finding in report.effects)
        body += fold(
            f"{count_noun(len(report.effects), 'effect')} of the above", markup("<ul>{}</ul>", effects), kind="checks"
        )
    body += _in_order(contents) + skipped_checks(report.checks)
    return View(ANCHOR, "Findings", body, badge=f"{len(report.findings):,}" if report.findings else "")


def _links(contents: Contents, finding: Finding, anchors: Sequence[str]) -> Iterator[Html]:
    for anchor in _VIEWS_OF.get(finding.code[:1], ()) if contents.report.is_shown(finding) else ():
        if anchor in anchors:
            yield markup('<a href="{}">{}</a>', _target(contents, finding, anchor), _VIEW_WORDS[anchor])


def _target(contents: Contents, finding: Finding, anchor: str) -> str:
    """The very place in the view, where the finding names one."""
    if anchor == "map":
        return _place_on_map(contents, finding)
    if anchor == "performance" and len(finding.ranks) == 1:
        return f"#{anchor}?rank={finding.ranks[0]}"
    return f"#{compile_anchor(contents, finding) if anchor == 'compile' else anchor}"


def _place_on_map(contents: Contents, finding: Finding) -> str:
    group = contents.map_group(finding.group) if finding.group else None
    rank = finding.ranks[0] if finding.ranks else None
    if group is None or not finding.collective:
        return map_link(group, rank)
    if finding.collective.p2p:  # counted by the rank, not by the pair: the map finds the worst transfer of the rank
        return map_link(group, rank, p2p=True)
    return map_link(group, rank, finding.collective.seq)


def _in_order(contents: Contents) -> Html:
    report = contents.report
    broken = {finding.rule for finding in (*report.findings, *report.effects)}
    passed = [check.rule for check in report.checks if check.status == "ran" and check.rule not in broken]
    if not passed:
        return NOTHING
    return fold(f"{count_noun(len(passed), 'check')} passed", markup("<p>{}</p>", ", ".join(passed)), kind="checks")


def code_lines(contents: Contents) -> dict[tuple[str, int], str]:
    """Lines of code that a compile log quotes: the files themselves may not be on this machine."""
    lines: dict[tuple[str, int], str] = {}
    for name in ("compile_stacks", "graph_breaks"):
        table = contents.trace.table(name)
        places = zip(table.text("file").tolist(), table.array("line").tolist(), strict=True)
        lines |= {site: code for site, code in zip(places, table.text("code").tolist(), strict=True) if code}
    return lines
