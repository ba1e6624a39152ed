"""Which ranks and steps the findings name, so that charts can mark them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from rankscope.model.finding import Finding, finding_anchors
from rankscope.render.html import Html, joined, markup
from rankscope.render.page.contents import Contents

_FEW = 8  # a finding on most ranks marks none of them
_FAMILIES = ("S", "P", "X")


class Marks(NamedTuple):
    of_rank: Mapping[int, Html]  # links to findings
    of_step: Mapping[int, Sequence[tuple[str, str]]]  # code and anchor of the findings
    all: Html  # links to all findings that are about time

    def label(self, rank: int, word: str = "rank ") -> Html:
        return joined(filter(None, (self.of_rank.get(rank), f"{word}{rank}")), " ")


def marks_of(contents: Contents) -> Marks:
    of_rank: dict[int, list[Html]] = defaultdict(list)
    of_step: dict[int, list[tuple[str, str]]] = defaultdict(list)
    links = []
    findings = contents.report.findings
    for anchor, finding in zip(finding_anchors(findings), findings, strict=True):
        if not finding.code.startswith(_FAMILIES):
            continue
        links.append(finding_link(anchor, finding))
        if 0 < len(finding.ranks) <= max(1, min(_FEW, len(contents.report.capture.ranks) // 2)):
            for rank in finding.ranks:
                of_rank[rank].append(finding_link(anchor, finding))
        for step in steps_of(finding):
            of_step[step].append((finding.code, anchor))
    return Marks({rank: joined(each, " ") for rank, each in of_rank.items()}, of_step, joined(links, " "))


def finding_link(anchor: str, finding: Finding) -> Html:
    return markup('<a class="code" href="#{}">{}</a>', anchor, finding.code)


def steps_of(finding: Finding) -> list[int]:
    """The steps that its evidence names, unless it is about every step that was looked at."""
    facts = finding.evidence.facts
    steps = facts.get("late_steps") or ([facts["step"]] if "step" in facts else [])
    named = [step for step in steps if isinstance(step, int) and step >= 0] if isinstance(steps, (list, tuple)) else []
    return [] if len(named) == facts.get("n_steps") else named
